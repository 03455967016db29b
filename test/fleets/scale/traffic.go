// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
)

// Traffic is what went between a client and the API server. Bytes are of bodies, before compression.
type Traffic struct {
	Requests, NodePatches, Bytes, WatchBytes int64
}

// counter counts the traffic of one client.
type counter struct{ requests, patches, bytes, watched atomic.Int64 }

func (c *counter) read() Traffic {
	return Traffic{c.requests.Load(), c.patches.Load(), c.bytes.Load(), c.watched.Load()}
}

func (c *counter) reset() {
	for _, n := range []*atomic.Int64{&c.requests, &c.patches, &c.bytes, &c.watched} {
		n.Store(0)
	}
}

// wrap makes a transport count.
func (c *counter) wrap(next http.RoundTripper) http.RoundTripper { return transport{c, next} }

type transport struct {
	*counter
	next http.RoundTripper
}

// RoundTrip counts a request when it is sent, and its answer as it is read.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.requests.Add(1)
	if r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
		t.patches.Add(1)
	}
	t.bytes.Add(max(r.ContentLength, 0))
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	to := &t.bytes
	if watch := r.URL.Query().Get("watch"); watch == "true" || watch == "1" {
		to = &t.watched
	}
	resp.Body = &body{resp.Body, to}
	return resp, nil
}

type body struct {
	io.ReadCloser
	count *atomic.Int64
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.count.Add(int64(n))
	return n, err
}
