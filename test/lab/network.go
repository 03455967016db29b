// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// network is a host's own network. It has a loopback interface, which stays over reboots as an external switch would.
// It also has the connections that Connect has made.
type network struct {
	namespace *os.File

	mu        sync.Mutex
	unplugged bool
	closed    bool
	listeners []net.Listener
	open      map[net.Conn]bool
}

func newNetwork() (*network, error) {
	n := &network{open: map[net.Conn]bool{}}
	err := elsewhere(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		var err error
		if n.namespace, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		return loopbackUp()
	})
	if err != nil {
		return nil, fmt.Errorf("making a network: %w", err)
	}
	return n, nil
}

// elsewhere calls do on a thread of its own, which then ends. So do may change its thread.
func elsewhere(do func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		result <- do()
	}()
	return <-result
}

func loopbackUp() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
}

// Connect lets programs on the host, in each boot, reach a port of this machine's 127.0.0.1 at the same address. On a
// host that has this machine's network, Connect does nothing.
func (h *Host) Connect(port int) error {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	return h.ConnectAt(address, address)
}

// ConnectAt lets programs on the host, in each boot, reach an address of this machine at an address of the host, which
// one of its interfaces has by now. On a host that has this machine's network, ConnectAt does nothing.
func (h *Host) ConnectAt(inside, outside string) error {
	if h.network == nil {
		return nil
	}
	listen := func() (net.Listener, error) { return h.network.listen(inside) }
	dial := func() (net.Conn, error) { return net.Dial("tcp", outside) }
	if err := h.network.connect(listen, dial); err != nil {
		return fmt.Errorf("connecting %s: %w", h.options.Name, err)
	}
	return nil
}

// Expose lets programs on this machine reach an address of the host at a loopback address of this machine. On a host
// that has this machine's network, Expose does nothing.
func (h *Host) Expose(outside, inside string) error {
	if h.network == nil {
		return nil
	}
	listen := func() (net.Listener, error) { return net.Listen("tcp", outside) }
	dial := func() (net.Conn, error) { return h.network.dial(inside) }
	if err := h.network.connect(listen, dial); err != nil {
		return fmt.Errorf("exposing %s of %s: %w", inside, h.options.Name, err)
	}
	return nil
}

// Unplug pulls the network cable out, or puts the cable back. Without the cable, no connection of Connect works. A host
// that has this machine's network has no cable.
func (h *Host) Unplug(out bool) {
	if h.network != nil {
		h.network.unplug(out)
	}
}

// inside calls do in the host's network.
func (n *network) inside(do func() error) error {
	return elsewhere(func() error {
		if err := unix.Setns(int(n.namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return do()
	})
}

func (n *network) listen(address string) (listener net.Listener, err error) {
	err = n.inside(func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	return listener, err
}

func (n *network) dial(address string) (c net.Conn, err error) {
	err = n.inside(func() (err error) {
		c, err = net.Dial("tcp", address)
		return err
	})
	return c, err
}

// connect carries each connection that comes to the listener to the one that dial makes for it.
func (n *network) connect(listen func() (net.Listener, error), dial func() (net.Conn, error)) error {
	listener, err := listen()
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.listeners = append(n.listeners, listener)
	n.mu.Unlock()
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go n.carry(from, dial)
		}
	}()
	return nil
}

// carry carries one connection until either side ends it.
func (n *network) carry(from net.Conn, dial func() (net.Conn, error)) {
	if !n.keep(from) {
		return
	}
	defer n.drop(from)
	to, err := dial()
	if err != nil || !n.keep(to) {
		return
	}
	defer n.drop(to)
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			// When one direction ends, for any reason, the other side is told as TCP would tell it.
			_, _ = io.Copy(way[1], way[0])
			_ = way[1].(*net.TCPConn).CloseWrite()
		})
	}
	both.Wait()
}

func (n *network) keep(c net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unplugged || n.closed {
		c.Close()
		return false
	}
	n.open[c] = true
	return true
}

func (n *network) drop(c net.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.open, c)
	c.Close()
}

func (n *network) unplug(out bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unplugged = out
	if out {
		n.closeAll()
	}
}

func (n *network) closeAll() {
	for c := range n.open {
		c.Close()
	}
}

func (n *network) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	for _, l := range n.listeners {
		l.Close()
	}
	n.closeAll()
	n.namespace.Close()
}
