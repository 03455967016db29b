// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/godbus/dbus/v5"

	"github.com/noderefit/noderefit/test/standin/rpmostree/fault"
)

// socketPath is where clients meet the daemon about the transaction that is under way.
const socketPath = "/run/rpm-ostree-transaction.sock"

const transactionInterface = "org.projectatomic.rpmostree1.Transaction"

// errCancelled is what a transaction that was cancelled ends with.
var errCancelled = original("Operation was cancelled")

// transaction is one change of the deployments: made by a method call, run when a client calls Start, and gone when
// it has finished and no client listens any more.
type transaction struct {
	method string
	sender string
	path   string // of the object that was called
	params []any
	title  string
	client string // who asked for it, as status shows it
	unit   string // the systemd unit of who asked, "" if it has none
	run    func(ctx context.Context, t *transaction) error

	address  string
	listener net.Listener
	ctx      context.Context //nolint:containedctx // that of what runs, which outlives the call
	cancel   context.CancelCauseFunc
	closed   func() // called once the transaction is over and nobody listens
	finished chan struct{}
	gone     chan struct{} // the daemon has forgotten it

	mu      sync.Mutex
	started bool
	done    bool
	failure string
	peers   map[*peer]bool
}

// listen opens the transaction's socket.
func (t *transaction) listen() error {
	if err := os.Remove(socketPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socketPath)
	if err != nil {
		return err
	}
	id := make([]byte, 16)
	rand.Read(id)
	guid := hex.EncodeToString(id) // which the address does not say
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	t.listener, t.peers = listener, map[*peer]bool{}
	t.finished, t.gone = make(chan struct{}), make(chan struct{})
	t.address = "unix:path=" + socketPath
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go t.serve(conn, guid)
		}
	}()
	return nil
}

// serve answers one client until it goes.
func (t *transaction) serve(conn net.Conn, guid string) {
	p, err := newPeer(conn, guid)
	if err != nil {
		conn.Close()
		return
	}
	t.mu.Lock()
	t.peers[p] = true
	t.mu.Unlock()
	for {
		call, err := p.receive()
		if err != nil {
			break
		}
		t.answer(p, call)
	}
	conn.Close()
	t.mu.Lock()
	delete(t.peers, p)
	over := t.done && len(t.peers) == 0
	t.mu.Unlock()
	if over {
		t.closed()
	}
}

// answer answers one call.
func (t *transaction) answer(p *peer, call *dbus.Message) {
	member, _ := call.Headers[dbus.FieldMember].Value().(string)
	properties := map[string]dbus.Variant{
		"Title": dbus.MakeVariant(t.title), "InitiatingClientDescription": dbus.MakeVariant(t.client),
	}
	switch member {
	case "Start":
		first, done, failure := t.begin()
		p.reply(call, first)
		if first {
			go t.execute()
		} else if done {
			// Who comes late is told again.
			p.signal(transactionInterface, "Finished", failure == "", failure)
		}
	case "Cancel":
		p.reply(call)
		t.stop()
	case "Get":
		if len(call.Body) == 2 {
			name, _ := call.Body[1].(string)
			if value, ok := properties[name]; ok {
				p.reply(call, value)
				return
			}
		}
		p.fail(call, "org.freedesktop.DBus.Error.InvalidArgs", "No such property")
	case "GetAll":
		p.reply(call, properties)
	default:
		p.fail(call, "org.freedesktop.DBus.Error.UnknownMethod", "No such method "+member)
	}
}

// stop cancels the transaction at its next step; ostree is stopped while it runs.
func (t *transaction) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.started {
		t.cancel(errCancelled)
	}
}

// begin says whether this is the call that starts the transaction, and else how it ended, if it has.
func (t *transaction) begin() (first, done bool, failure string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first, t.started = !t.started, true
	return first, t.done, t.failure
}

// over says whether it has finished.
func (t *transaction) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.done
}

// execute runs the transaction. It outlives the client.
func (t *transaction) execute() {
	ctx := t.ctx
	err := fault.Pass(ctx, fault.Begin)
	if err == nil {
		err = t.run(ctx, t)
	}
	if err == nil {
		err = fault.Pass(ctx, fault.End)
	}
	t.signal("ProgressEnd")
	t.end(err)
}

// end says how it ended.
func (t *transaction) end(err error) {
	t.mu.Lock()
	t.done = true
	if err != nil {
		t.failure = err.Error()
	}
	failure, alone := t.failure, len(t.peers) == 0
	t.mu.Unlock()
	close(t.finished)
	t.signal("Finished", failure == "", failure)
	if alone {
		t.closed()
	}
}

// signal tells every client.
func (t *transaction) signal(member string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := range t.peers {
		p.signal(transactionInterface, member, args...)
	}
}

func (t *transaction) say(format string, args ...any) {
	t.signal("Message", fmt.Sprintf(format, args...))
}

// task runs a step between its signals.
func (t *transaction) task(name string, step func() error) error {
	t.signal("TaskBegin", name)
	err := step()
	t.signal("TaskEnd", "done")
	return err
}

// close closes the socket, under which the next transaction will listen.
func (t *transaction) close() { t.listener.Close() }
