// SPDX-License-Identifier: Apache-2.0

package server

import (
	"container/list"
	"net"
	"sync"
)

const (
	// mostConnections is how many clients are connected at a time. One of them that reads slowly costs some 180 KiB, the
	// kernel's share included.
	mostConnections = 1024
	// sendBuffer is how many bytes the kernel holds for a client who does not read; it takes twice that. Without a limit
	// it takes a whole answer for each. With less than the largest packet, 64 KiB on the own machine, each waits for the
	// one before to be acknowledged, and an answer takes a hundred times as long.
	sendBuffer = 64 << 10
)

// Bounded returns a listener whose connections need a bounded memory. Where there are too many, the oldest is closed:
// a new machine is served in a moment, so an old connection is idle or of a client that does not read, and no number of
// those keeps a new machine waiting. There is no bound for each address, for behind a balancer all machines have one.
func Bounded(l net.Listener) net.Listener {
	return &bounded{Listener: l, most: mostConnections, open: list.New()}
}

type bounded struct {
	net.Listener
	most int
	mu   sync.Mutex
	open *list.List // of *connection, the oldest first
}

// connection is one that its listener counts until it is closed.
type connection struct {
	net.Conn
	of    *bounded
	place *list.Element
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
	c := &connection{Conn: conn, of: b}
	if oldest := b.add(c); oldest != nil {
		_ = oldest.Close()
	}
	return c, nil
}

// add counts a connection, and returns the one that there is no room for any more.
func (b *bounded) add(c *connection) *connection {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.place = b.open.PushBack(c)
	if b.open.Len() <= b.most {
		return nil
	}
	oldest, _ := b.open.Front().Value.(*connection)
	return oldest
}

// Close ends the connection. It may be called again.
func (c *connection) Close() error {
	c.of.mu.Lock()
	c.of.open.Remove(c.place)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
