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
	// mostConnections is how many clients are connected at a time. One of them that reads slowly costs some 180 KiB, the
	// kernel's share included.
	mostConnections = 1024
	// sendBuffer is how many bytes the kernel holds for a client who does not read; it takes twice that. Without a limit
	// it takes a whole answer for each. With less than the largest packet, 64 KiB on the own machine, each waits for the
	// one before to be acknowledged, and an answer takes a hundred times as long.
	sendBuffer = 64 << 10
	// stride is how many more bytes of an answer a connection has to take to count as one that gets on.
	stride = 16 << 10
	// greeting is how long a client that has just come may take to say something, before others go first.
	greeting = time.Second
)

// Bounded returns a listener for a server whose connections need a bounded memory. Where there are too many, the one
// goes that loses least: one that asks for nothing, else the one whose client has not got on for longest, and last one
// that waits for this server. A new machine is served in a moment, so a connection that does not get on is left over or
// of a client that does not read, and no number of those keeps a new machine waiting, or a slow one from its answer.
// There is no bound for each address, for behind a balancer all machines have one.
func Bounded(l net.Listener, h *http.Server) net.Listener {
	h.ConnState = follow
	h.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, counted(conn))
	}
	// A connection of HTTP/2 has hundreds of requests, each with memory of its own, and no client here needs one.
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

// connection is one that its listener counts until it is closed.
type connection struct {
	net.Conn
	of *bounded

	mu  sync.Mutex
	now standing
	// taken are the bytes since the last stride.
	taken int
}

// standing is what decides which connection goes first.
type standing struct {
	state http.ConnState
	// moved is when that state began, when the answer was made, or when the client last took a stride.
	moved time.Time
	// working: the server makes the answer, and the client is not the one who is waited for.
	working bool
}

// idle reports whether a connection asks for nothing: its request was answered, or it had its time to make one.
func (s standing) idle(now time.Time, grace time.Duration) bool {
	return s.state == http.StateIdle || s.state == http.StateNew && now.Sub(s.moved) >= grace
}

// before reports whether a connection goes before another one.
func (s standing) before(other standing, now time.Time, grace time.Duration) bool {
	if idle := s.idle(now, grace); idle != other.idle(now, grace) {
		return idle
	}
	if s.working != other.working {
		return other.working
	}
	return s.moved.Before(other.moved)
}

// Accept waits for a client.
func (b *bounded) Accept() (net.Conn, error) {
	conn, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if sized, ok := conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = sized.SetWriteBuffer(sendBuffer) // else the client has gone, which its first read says
	}
	c := &connection{Conn: conn, of: b, now: standing{state: http.StateNew, moved: time.Now()}}
	if out := b.add(c); out != nil {
		abrupt, ok := out.Conn.(interface{ SetLinger(seconds int) error })
		if ok && !out.standing().idle(time.Now(), b.grace) {
			_ = abrupt.SetLinger(0) // the kernel would keep for minutes what a client does not read
		}
		_ = out.Close()
	}
	return c, nil
}

// add counts a connection, and returns the one that there is no room for any more.
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
		delete(b.open, out) // so that two that come at once have two others go
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

// counted is the counted one below a connection; nil: there is none.
func counted(conn net.Conn) *connection {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secure.NetConn()
	}
	c, _ := conn.(*connection)
	return c
}

// follow is told by an HTTP server what its connections do.
func follow(conn net.Conn, state http.ConnState) {
	if c := counted(conn); c != nil {
		c.stands(standing{state: state, moved: time.Now()})
	}
}

// work notes that the server makes the answer to a request, until the returned function is called.
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

// Write sends in strides, and notes each.
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

// Close ends the connection. It may be called again.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
