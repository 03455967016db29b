// SPDX-License-Identifier: Apache-2.0

// Package spoil is a proxy in front of an API server. It spoils some of the requests, as bad networks, load balancers
// and overloaded servers do. A seed and the number of a request decide whether the request is spoiled.
package spoil

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Delay is how long a slow request is delayed.
const Delay = 4 * time.Second

// The ways in which a request is spoiled.
const (
	Fails     = "500"
	TooMany   = "429"
	Gone      = "410"
	Forbidden = "403"
	HTML      = "html"
	Cut       = "cut"
	Slow      = "slow"
	// Done carries out the request, and tells the client that it failed.
	Done = "done, but 500"
)

var ways = []string{Fails, TooMany, Gone, Forbidden, HTML, Cut, Slow, Done}

// Proxy is a proxy in front of an API server. It is safe for concurrent use.
type Proxy struct {
	// Config is a configuration that reaches the API server through the proxy.
	Config *rest.Config

	percent int
	forward *httputil.ReverseProxy
	server  *http.Server
	group   sync.WaitGroup

	mu     sync.Mutex
	chance *rand.Rand
	seen   int
	counts map[string]int
}

// Start starts a proxy in front of the API server of config. Until Stop, the proxy spoils that percentage of the
// requests.
func Start(ctx context.Context, config *rest.Config, percent int, seed uint64) (*Proxy, error) {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	to, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("reading the address of the API server: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting a proxy: %w", err)
	}
	p := &Proxy{
		Config: &rest.Config{Host: "http://" + listener.Addr().String(), QPS: config.QPS, Burst: config.Burst},
		forward: &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, Transport: transport, FlushInterval: -1,
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
		},
		percent: percent, chance: rand.New(rand.NewPCG(seed, 1)), counts: map[string]int{},
	}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: time.Minute}
	p.group.Go(func() { _ = p.server.Serve(listener) })
	return p, nil
}

// Stop ends the proxy, and all running requests.
func (p *Proxy) Stop() error {
	err := p.server.Close()
	p.group.Wait()
	return err
}

// Spoiled returns the number of requests, and how many of them were spoiled in each way.
func (p *Proxy) Spoiled() (seen int, counts map[string]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen, maps.Clone(p.counts)
}

// way returns the way in which the next request is spoiled; empty: the request is not spoiled.
func (p *Proxy) way() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen++
	if p.chance.IntN(100) >= p.percent {
		return ""
	}
	way := ways[p.chance.IntN(len(ways))]
	p.counts[way]++
	return way
}

// ServeHTTP answers a request, or spoils it.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch p.way() {
	case Fails:
		refuse(w, http.StatusInternalServerError, "InternalError")
	case TooMany:
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusTooManyRequests, "TooManyRequests")
	case Gone:
		refuse(w, http.StatusGone, "Expired")
	case Forbidden:
		refuse(w, http.StatusForbidden, "Forbidden")
	case HTML:
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<html><body>Please log in to the network.</body></html>")
	case Cut:
		cut := &cutter{ResponseWriter: w}
		p.forward.ServeHTTP(cut, r)
		panic(http.ErrAbortHandler) // the connection ends
	case Slow:
		select {
		case <-time.After(Delay):
			p.forward.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	case Done:
		p.forward.ServeHTTP(&unsaid{header: http.Header{}}, r.WithContext(soon(r)))
		refuse(w, http.StatusInternalServerError, "InternalError")
	default:
		p.forward.ServeHTTP(w, r)
	}
}

// soon returns the context of a request whose answer is not sent to the client. Without the limit, a watch would not
// end.
func soon(r *http.Request) context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	context.AfterFunc(r.Context(), cancel)
	return ctx
}

func refuse(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w,
		`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":"spoiled"}`, reason, code)
}

// cutter lets only the first half of the first piece of an answer through.
type cutter struct {
	http.ResponseWriter

	ended bool
}

var errCut = errors.New("the answer is cut")

func (c *cutter) Write(text []byte) (int, error) {
	if c.ended {
		return 0, errCut
	}
	c.ended = true
	n, err := c.ResponseWriter.Write(text[:len(text)/2])
	return n, errors.Join(err, http.NewResponseController(c.ResponseWriter).Flush(), errCut)
}

// unsaid is an answer that the client never gets.
type unsaid struct{ header http.Header }

func (u *unsaid) Header() http.Header            { return u.header }
func (u *unsaid) Write(text []byte) (int, error) { return len(text), nil }
func (u *unsaid) WriteHeader(int)                {}

// String sums up the spoiled requests.
func (p *Proxy) String() string {
	seen, counts := p.Spoiled()
	var parts []string
	total := 0
	for _, way := range ways {
		parts = append(parts, fmt.Sprintf("%s %d", way, counts[way]))
		total += counts[way]
	}
	return fmt.Sprintf("spoiled %d of %d requests: %s", total, seen, strings.Join(parts, ", "))
}
