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
	// mostRead is how much is read of all answers to one question: a list of tags may have pages without an end.
	mostRead = 64 << 20
	// mostKept is how much is kept of answers. A stream asks the same few questions again and again.
	mostKept = 32 << 20
	// perAnswer is what a kept answer takes besides its body: http.Transport reads headers of up to this size.
	perAnswer = 64 << 10
)

// conditional is a transport that asks whether an answer has changed. It keeps each answer that has an ETag, sends the
// ETag along with the same question, and gives the kept answer where the server says that nothing has changed. Answers
// are bounded. A server can't lead a question that began with TLS to a place without.
type conditional struct {
	next http.RoundTripper
	mu   sync.Mutex
	kept map[string]*answer
	// size is that of all kept answers, read that of all answers to the present question.
	size, read int
}

// begin begins a question.
func (c *conditional) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = 0
}

type answer struct {
	etag   string
	header http.Header
	body   []byte
}

// RoundTrip implements http.RoundTripper.
func (c *conditional) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Response != nil {
		if from := r.Response.Request.URL; from.Scheme == "https" && r.URL.Scheme != "https" {
			return nil, fmt.Errorf("%s redirects to %s://%s, which has no TLS", from.Host, r.URL.Scheme, r.URL.Host)
		}
	}
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read += len(body); c.read > mostRead {
		return nil, fmt.Errorf("the answers to one question are larger than %d bytes", mostRead)
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	etag := response.Header.Get("ETag")
	if response.StatusCode != http.StatusOK || etag == "" {
		return response, nil
	}
	size := len(body) + perAnswer
	if was := c.kept[key]; was != nil {
		c.size -= len(was.body) + perAnswer
	}
	if c.size+size > mostKept {
		c.kept, c.size = map[string]*answer{}, 0
	}
	c.kept[key], c.size = &answer{etag, maps.Clone(response.Header), body}, c.size+size
	return response, nil
}

func contentLength(h http.Header) int64 {
	var n int64 = -1
	_, _ = fmt.Sscan(h.Get("Content-Length"), &n)
	return n
}
