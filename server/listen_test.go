// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
)

// listenBounded serves on so many connections until the test ends. A silent one has no time.
func listenBounded(t *testing.T, s *Server, most int) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	b := Bounded(l, h).(*bounded)
	b.most, b.grace = most, 0
	var group sync.WaitGroup
	group.Go(func() { _ = h.Serve(b) })
	t.Cleanup(func() {
		_ = h.Close()
		group.Wait()
	})
	return l.Addr().String()
}

// silent connects and says nothing.
func silent(t *testing.T, at string) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// wires is a listener whose clients come by net.Pipe, which holds nothing on the way, in the time of a bubble.
type wires struct {
	come chan net.Conn
	shut chan struct{}
}

func (w wires) Addr() net.Addr { return &net.TCPAddr{} }
func (w wires) Close() error   { close(w.shut); return nil }

func (w wires) Accept() (net.Conn, error) {
	select {
	case c := <-w.come:
		return c, nil
	case <-w.shut:
		return nil, net.ErrClosed
	}
}

func TestASlowClientThatGetsOnKeepsItsConnectionWhereOthersStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := &counting{source: example()}
		from.configs["rendered-worker-a"] = large("rendered-worker-a")
		s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard()})
		size := get(t, s, "GET", "/config/worker", "Accept", ignition35).Body.Len()
		h, w := &http.Server{Handler: s}, wires{make(chan net.Conn), make(chan struct{})}
		b := Bounded(w, h).(*bounded)
		b.most = 3
		go h.Serve(b)
		defer h.Close()
		ask := func(request string) net.Conn {
			ours, theirs := net.Pipe()
			w.come <- theirs
			go fmt.Fprint(ours, request)
			synctest.Wait()
			return ours
		}
		const request = "GET /config/worker HTTP/1.1\r\nHost: a\r\nAccept: " + ignition35 + "\r\n\r\n"
		honest := ask(request)
		answer, err := http.ReadResponse(bufio.NewReader(honest), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		got := 0
		others := []string{request, request, "GET /config/wor", "", request, request, "", request}
		for i, other := range others {
			conn := ask(other)
			defer conn.Close()
			time.Sleep(3 * time.Second) //nolint:forbidigo // of the bubble's clock
			n, err := io.CopyN(io.Discard, answer.Body, int64(size/len(others)))
			if got += int(n); err != nil {
				t.Fatalf("beside %d others that stall the slow client lost its connection after %d bytes: %v", i+1, got, err)
			}
		}
		rest, err := io.Copy(io.Discard, answer.Body)
		if got += int(rest); got != size || err != nil {
			t.Errorf("the slow client got %d bytes of %d: %v", got, size, err)
		}
	})
}

// making is a source that has a configuration read only when the test says so.
type making struct {
	*counting
	name string
	free chan struct{}
}

func (m making) Config(
	ctx context.Context, pool *mcfgv1.MachineConfigPool, name string,
) (*mcfgv1.MachineConfig, string, error) {
	if name == m.name {
		<-m.free
	}
	return m.counting.Config(ctx, pool, name)
}

func TestAConnectionWhoseAnswerIsBeingMadeDoesNotCountAsStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := making{&counting{source: example()}, "rendered-new-a", make(chan struct{})}
		from.configs["rendered-worker-a"], from.configs["rendered-new-a"] = large("rendered-worker-a"), large("rendered-new-a")
		from.pools["new"] = pool("new", "rendered-new-a")
		s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard()})
		h, w := &http.Server{Handler: s}, wires{make(chan net.Conn), make(chan struct{})}
		b := Bounded(w, h).(*bounded)
		b.most = 3
		go h.Serve(b)
		defer h.Close()
		ask := func(path string) net.Conn {
			ours, theirs := net.Pipe()
			w.come <- theirs
			go fmt.Fprint(ours, "GET "+path+" HTTP/1.1\r\nHost: a\r\nAccept: "+ignition35+"\r\n\r\n")
			synctest.Wait()
			return ours
		}
		waits := ask("/config/new")
		defer waits.Close()
		for range 6 {
			time.Sleep(3 * time.Second) //nolint:forbidigo // of the bubble's clock
			conn := ask("/config/worker")
			defer conn.Close()
		}
		close(from.free)
		answer, err := http.ReadResponse(bufio.NewReader(waits), nil)
		if err != nil {
			t.Fatalf("while its answer was made its connection was closed: %v", err)
		}
		defer func() { _ = answer.Body.Close() }()
		if got, err := io.Copy(io.Discard, answer.Body); got != answer.ContentLength || err != nil {
			t.Errorf("it got %d bytes of %d: %v", got, answer.ContentLength, err)
		}
		// Now the client is the one that is waited for.
		stalls := ask("/config/new")
		defer stalls.Close()
		for range 3 {
			time.Sleep(3 * time.Second) //nolint:forbidigo // of the bubble's clock
			conn := ask("/config/worker")
			defer conn.Close()
		}
		if n, err := io.Copy(io.Discard, stalls); err != nil || n >= answer.ContentLength/2 {
			t.Errorf("a connection that stalls after its answer was made goes on: %d bytes, %v", n, err)
		}
	})
}

func TestASilentConnectionMakesRoomBeforeOneThatIsServed(t *testing.T) {
	from := &counting{source: example()}
	from.configs["rendered-worker-a"] = large("rendered-worker-a")
	s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard()})
	at := listenBounded(t, s, 3)
	served := begin(t, at, "worker")
	var idle []net.Conn
	for range 5 {
		idle = append(idle, silent(t, at))
	}
	for i, conn := range idle[:3] {
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the silent connection %d is open: %v", i, err)
		}
	}
	if n, err := io.CopyN(io.Discard, served, 1<<20); err != nil {
		t.Errorf("the connection that is served ended after %d bytes: %v", n, err)
	}
}

func TestWhatAnEncryptedConnectionDoesIsKnown(t *testing.T) {
	server := httptest.NewUnstartedServer(New(Options{Source: example(), Log: logr.Discard()}))
	b := Bounded(server.Listener, server.Config).(*bounded)
	server.Listener = b
	server.StartTLS()
	defer server.Close()
	r, err := server.Client().Get(server.URL + "/healthz")
	if err != nil || r.Body.Close() != nil {
		t.Fatal(err)
	}
	idle := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		for c := range b.open {
			return c.standing().state == http.StateIdle
		}
		return false
	}
	for deadline := time.Now().Add(10 * time.Second); !idle(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("an answered connection does not count as idle")
		}
	}
}

// One connection of HTTP/2 has hundreds of requests: no bound on connections would bound the memory.
func TestAConnectionHasOneRequestAtATime(t *testing.T) {
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	server := &http.Server{Handler: New(Options{Source: example(), Log: logr.Discard()}),
		ReadHeaderTimeout: time.Second, TLSConfig: &tls.Config{Certificates: certificate.TLS.Certificates}}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeTLS(Bounded(at, server), "", "") }()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	conn, err := tls.Dial("tcp", at.Addr().String(),
		&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if is := conn.ConnectionState().NegotiatedProtocol; is == "h2" {
		t.Errorf("it speaks %s", is)
	}
	if conn, err := tls.Dial("tcp", at.Addr().String(),
		&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}); err == nil {
		is := conn.ConnectionState().NegotiatedProtocol
		_ = conn.Close()
		if is == "h2" {
			t.Errorf("where nothing else is offered it speaks %s", is)
		}
	}
}

func TestTheConnectionThatLosesLeastGoesFirst(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(state http.ConnState, d time.Duration) standing {
		return standing{state: state, moved: now.Add(-d)}
	}
	working := ago(http.StateActive, time.Minute)
	working.working = true
	longer := working
	longer.moved = now.Add(-time.Hour)
	for name, c := range map[string]struct{ first, second standing }{
		"stalled before one whose answer is made":   {ago(http.StateActive, 2*time.Second), working},
		"waiting before just come":                  {working, ago(http.StateNew, time.Second/2)},
		"the one that waits longest for its answer": {longer, working},
		"answered before stalled":                   {ago(http.StateIdle, 0), ago(http.StateActive, time.Minute)},
		"answered before just come":                 {ago(http.StateIdle, 0), ago(http.StateNew, time.Second/2)},
		"silent before stalled":                     {ago(http.StateNew, 2*time.Second), ago(http.StateActive, time.Minute)},
		"stalled before just come":                  {ago(http.StateActive, 2*time.Second), ago(http.StateNew, time.Second/2)},
		"the longest stalled":                       {ago(http.StateActive, 3*time.Second), ago(http.StateActive, 2*time.Second)},
		"the longest idle":                          {ago(http.StateNew, 3*time.Second), ago(http.StateIdle, 2*time.Second)},
	} {
		if !c.first.before(c.second, now, time.Second) || c.second.before(c.first, now, time.Second) {
			t.Errorf("%s: %+v does not go before %+v", name, c.first, c.second)
		}
	}
}

func TestARequestWaitsForRoomNoLongerThanSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := &counting{source: example()}
		from.configs["rendered-worker-a"] = large("rendered-worker-a")
		s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard()})
		s.answers.limit = 1 << 20
		// A reader that does not go when it is cut, as one whose connection does not notice.
		stuck := &answer{recipe: recipe{config: "stuck"}, body: make([]byte, s.answers.limit)}
		if err := s.answers.put(t.Context(), stuck); err != nil {
			t.Fatal(err)
		}
		by := &reader{cut: func() {}}
		s.answers.take(stuck.recipe, by)
		start := time.Now()
		w := get(t, s, "GET", "/config/worker", "Accept", ignition35)
		if took := time.Since(start); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" ||
			!strings.Contains(w.Body.String(), "room") || took > workLimit {
			t.Errorf("after %s: %d %s, Retry-After %q", took, w.Code, w.Body, w.Header().Get("Retry-After"))
		}
		if held := s.answers.held(); held != s.answers.limit {
			t.Errorf("%d bytes are held, though nothing was made", held)
		}
		ctx, leave := context.WithCancel(t.Context())
		leave()
		if err := s.answers.put(ctx, &answer{recipe: recipe{config: "gone"}}); err == nil {
			t.Error("who went away has waited for room")
		}
		s.answers.leave(stuck, by)
		if w := get(t, s, "GET", "/config/worker", "Accept", ignition35); w.Code != http.StatusOK {
			t.Errorf("where there is room again: %d %s", w.Code, w.Body)
		}
	})
}
