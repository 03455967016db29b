// SPDX-License-Identifier: Apache-2.0

package reboots

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// A host whose soft reboot becomes a full one waits for a full one: the boot brings a kernel, and answers each want.
func TestASoftRebootThatBecomesAFullOneIsRecordedAsFull(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		stuck error // of kexec -u
		down  transaction.Method
		how   transaction.SoftReboot
	}{
		"the kernel is unloaded":    {nil, transaction.MethodSoft, transaction.SoftStarted},
		"the kernel remains loaded": {errors.New("Operation not permitted"), transaction.MethodFull, ""},
	} {
		w := newWorld(t)
		w.stuck = c.stuck
		w.put(kexecLoaded, "1\n", 0o644)
		e := &transaction.Engine{Root: w.root, BootID: "k1", Now: time.Now, Say: func(string, string) {}}
		store := transaction.NewStore(w.root)
		r, err := store.Load()
		w.must(err)
		w.must(e.BeginReboot(t.Context(), r, transaction.Reboot{Rebooted: transaction.Rebooted{Why: "a test", Soft: true}}))
		_, err = w.start(transaction.MethodSoft, func(t *Trip) {
			t.Loaded = "0ld"
			t.Record = func(w *transaction.Way) error { return e.StartBy(r, w) }
		})
		now, loading := store.Load()
		w.must(errors.Join(err, loading))
		if w.down[0] != c.down || now.Way.Started != c.down || now.Pending.SoftReboot != c.how ||
			now.Rebooted.Soft != (c.how != "") || now.Reason != "rebooting: a test" {
			t.Errorf("%s: down %v, way %+v, soft reboot %q, order %+v, %q", what, w.down, now.Way, now.Pending.SoftReboot,
				now.Rebooted, now.Reason)
		}
	}
}

// The next boot has another cause than an order whose reboot does not come, and is not judged as the order's.
func TestAnOrderWhoseRebootDoesNotComeIsWithdrawn(t *testing.T) {
	t.Parallel()
	const full, kexec, command = transaction.MethodFull, transaction.MethodKexec, transaction.MethodCommand
	for what, c := range map[string]struct {
		id    string
		asked transaction.Method
		world func(w *world)
		stop  bool // during the load, or as soon as systemd is asked
		err   error
		stays bool
	}{
		"a person stops the load":                      {"", kexec, nil, true, context.Canceled, false},
		"the agent is stopped":                         {"one", kexec, nil, true, context.Canceled, true},
		"no record, by an order":                       {"one", kexec, func(w *world) { w.full = true }, false, unix.ENOSPC, false},
		"no record after the command":                  {"", command, func(w *world) { w.fails, w.stops, w.fullAfter = unix.EIO, false, command }, false, unix.ENOSPC, true},
		"inhibitors can't be read":                     {"", command, func(w *world) { w.inhibited = unix.EPIPE }, false, unix.EPIPE, false},
		"the bus can't be reached":                     {"", full, func(w *world) { w.inhibited = unix.EPIPE }, false, unix.EPIPE, false},
		"the agent is stopped, and a program inhibits": {"one", full, func(w *world) { w.refuses[full] = &systemd.InhibitedError{} }, true, nil, false},
		"a program inhibits":                           {"", full, func(w *world) { w.refuses[full] = &systemd.InhibitedError{} }, false, nil, false},
		"systemd does not answer":                      {"", full, func(w *world) { w.refuses[full] = unix.ETIMEDOUT }, false, unix.ETIMEDOUT, true},
		"the reboot has really begun":                  {"", kexec, nil, false, nil, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if c.world != nil {
				c.world(w)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if c.stop {
				w.asked = stop
			}
			e := &transaction.Engine{Root: w.root, BootID: "k1", Now: time.Now, Say: func(string, string) {}}
			store := transaction.NewStore(w.root)
			r, err := store.Load()
			w.must(err)
			order := transaction.Reboot{Rebooted: transaction.Rebooted{ID: c.id, Why: "a test"}}
			err = CarryOut(ctx, e, r, order, func() error {
				_, err := w.trip(c.asked, func(trip *Trip) {
					trip.Record = func(way *transaction.Way) error {
						if w.full {
							return unix.ENOSPC
						}
						return e.StartBy(r, way)
					}
					trip.AfterLoad = func() error {
						if c.stop {
							stop()
						}
						return nil
					}
				}).Start(ctx)
				return err
			})
			now, loading := store.Load()
			w.must(loading)
			if c.err != nil && !errors.Is(err, c.err) || (now.Pending != nil) != c.stays ||
				now.Rebooted.Ended.IsZero() != c.stays || (now.Rebooted.Failed == "") != c.stays {
				t.Errorf("%v; pending %+v, order %+v", err, now.Pending, now.Rebooted)
			}
		})
	}
}
