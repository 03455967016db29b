// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// mostConnections is how many clients are connected at a time. A client that reads slowly costs some 180 KiB,
	// including the kernel's share.
	mostConnections = 1024
	// sendBuffer is how many bytes the kernel holds for a client that does not read. The kernel takes twice that. Without
	// a limit it takes a whole answer for each client. The largest packet is 64 KiB, on the loopback interface. With a
	// smaller buffer each packet waits until the packet before is acknowledged, and an answer takes a hundred times as
	// long.
	sendBuffer = 64 << 10
	// stride is how many more bytes of an answer a client has to take to count as getting on.
	stride = 16 << 10
	// greeting is how long a new client may take to send a request. After that its connection counts as idle.
	greeting = time.Second
)

// Bounded returns a listener for a server whose connections need a bounded memory. Where the connections are too many,
// the connection goes that loses least. First go connections that ask for nothing, then those whose clients have not
// got on for longest. Connections that have just come, or wait for this server, go last.
//
// A new machine is served in a moment. So a connection that does not get on is left over, or its client does not read.
// No number of such connections keeps a new machine waiting, or a slow machine from its answer. Addresses have no bound
// of their own, since behind a balancer all machines have the same address.
func Bounded(l net.Listener, h *http.Server) net.Listener {
	h.ConnState = follow
	h.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, counted(conn))
	}
	// A connection of HTTP/2 has hundreds of requests, each with memory of its own. No client here needs HTTP/2.
	h.Protocols = new(http.Protocols)
	h.Protocols.SetHTTP1(true)
	return &bounded{Listener: l, most: mostConnections, grace: greeting, open: map[*connection]bool{}}
}

type bounded struct {
	net.Listener
	most  int
	grace time.Duration
	mu    sync.Mutex
	open  map[*connection]bool
}

// connection is a connection that its listener counts until it is closed.
type connection struct {
	net.Conn
	of *bounded

	mu  sync.Mutex
	now standing
	// taken is how many bytes the client took since the last stride.
	taken int
}

// standing decides which connection goes first.
type standing struct {
	state http.ConnState
	// moved is when the state began, when the answer was made, or when the client last took a stride.
	moved time.Time
	// working is true while the server makes the answer, so that the client is not to blame for the wait.
	working bool
}

// idle reports whether a connection asks for nothing: its request was answered, or its time to send a request is over.
func (s standing) idle(now time.Time, grace time.Duration) bool {
	return s.state == http.StateIdle || s.state == http.StateNew && now.Sub(s.moved) >= grace
}

// before reports whether a connection has to go before another.
func (s standing) before(other standing, now time.Time, grace time.Duration) bool {
	idle := s.idle(now, grace)
	if idle != other.idle(now, grace) {
		return idle
	}
	if blameless := s.blameless(); !idle && blameless != other.blameless() {
		return !blameless
	}
	return s.moved.Before(other.moved)
}

// blameless reports whether the client is not the cause of the wait: the client has just come, or the server makes the
// answer. Among these the oldest goes first, so that no number of waiting clients keeps a new client out.
func (s standing) blameless() bool { return s.working || s.state == http.StateNew }

// Accept waits for a client. A connection that loses least is closed where there is no room.
func (b *bounded) Accept() (net.Conn, error) {
	conn, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if sized, ok := conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = sized.SetWriteBuffer(sendBuffer) // fails if the client has gone, which the first read reports
	}
	c := &connection{Conn: conn, of: b, now: standing{state: http.StateNew, moved: time.Now()}}
	if out := b.add(c); out != nil {
		abrupt, ok := out.Conn.(interface{ SetLinger(seconds int) error })
		if ok && !out.standing().idle(time.Now(), b.grace) {
			_ = abrupt.SetLinger(0) // the kernel would keep unread bytes for minutes
		}
		_ = out.Close()
	}
	return c, nil
}

// add counts a connection. It returns the connection that has to go, and nil if there is room.
func (b *bounded) add(c *connection) *connection {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out *connection
	if len(b.open) >= b.most {
		now, least := time.Now(), standing{}
		for one := range b.open {
			if s := one.standing(); out == nil || s.before(least, now, b.grace) {
				out, least = one, s
			}
		}
		delete(b.open, out) // so that two new connections close two others
	}
	b.open[c] = true
	return out
}

func (c *connection) standing() standing {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// connectionKey is the key of a request's connection in its context.
type connectionKey struct{}

// counted returns the counted connection below a connection, and nil if the connection is not counted.
func counted(conn net.Conn) *connection {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secure.NetConn()
	}
	c, _ := conn.(*connection)
	return c
}

// follow notes the state of a connection, as an HTTP server reports it.
func follow(conn net.Conn, state http.ConnState) {
	if c := counted(conn); c != nil {
		c.stands(standing{state: state, moved: time.Now()})
	}
}

// work notes that the server is making the answer to a request, until the returned function is called.
func work(ctx context.Context) func() {
	c, _ := ctx.Value(connectionKey{}).(*connection)
	if c == nil {
		return func() {}
	}
	c.stands(standing{state: http.StateActive, moved: time.Now(), working: true})
	return func() { c.stands(standing{state: http.StateActive, moved: time.Now()}) }
}

func (c *connection) stands(now standing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now, c.taken = now, 0
}

// Write sends in strides, and notes each stride.
func (c *connection) Write(data []byte) (int, error) {
	sent := 0
	for {
		n, err := c.Conn.Write(data[sent:min(len(data), sent+stride)])
		sent += n
		c.took(n)
		if err != nil || sent == len(data) {
			return sent, err
		}
	}
}

func (c *connection) took(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken += n; c.taken >= stride {
		c.taken, c.now.moved = 0, time.Now()
	}
}

// Close ends the connection. It may be called more than once.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
