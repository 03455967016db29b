// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
)

const (
	// largest is the largest answer that is read. Update graphs have less than a megabyte.
	largest = 16 << 20
	// mostKept is how many answers are kept. A stream asks the same few questions again and again.
	mostKept = 512
)

// conditional is a transport that asks whether an answer has changed. It keeps each answer that has an ETag, sends the
// ETag along with the same question, and gives the kept answer where the server says that nothing has changed. Answers
// are bounded.
type conditional struct {
	next http.RoundTripper
	mu   sync.Mutex
	kept map[string]*answer
}

type answer struct {
	etag   string
	header http.Header
	body   []byte
}

// RoundTrip implements http.RoundTripper.
func (c *conditional) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return c.next.RoundTrip(r)
	}
	key := r.Method + " " + r.URL.String() + " " + r.Header.Get("Accept")
	c.mu.Lock()
	have := c.kept[key]
	c.mu.Unlock()
	if have != nil {
		r = r.Clone(r.Context())
		r.Header.Set("If-None-Match", have.etag)
	}
	response, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if have != nil && response.StatusCode == http.StatusNotModified {
		_ = response.Body.Close()
		response.StatusCode, response.Status = http.StatusOK, "200 OK"
		response.Header = have.header.Clone()
		response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(have.body)), int64(len(have.body))
		if r.Method == http.MethodHead {
			response.ContentLength = contentLength(have.header)
		}
		return response, nil
	}
	return c.keep(key, response)
}

// keep reads an answer within its limit, and keeps it if it has an ETag.
func (c *conditional) keep(key string, response *http.Response) (*http.Response, error) {
	body, err := io.ReadAll(io.LimitReader(response.Body, largest+1))
	_ = response.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	if len(body) > largest {
		return nil, fmt.Errorf("the answer is larger than %d bytes", largest)
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	etag := response.Header.Get("ETag")
	if response.StatusCode != http.StatusOK || etag == "" {
		return response, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kept) >= mostKept {
		c.kept = map[string]*answer{}
	}
	c.kept[key] = &answer{etag, maps.Clone(response.Header), body}
	return response, nil
}

func contentLength(h http.Header) int64 {
	var n int64 = -1
	_, _ = fmt.Sscan(h.Get("Content-Length"), &n)
	return n
}
