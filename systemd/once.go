// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// Once is a command that runs to its end as a service without a unit file, in a cgroup of its own: whatever it has
// started goes with it.
type Once struct {
	Name        string
	Description string
	Argv        []string
	Environment []string // NAME=value
	// Output is where standard output and error go.
	Output *os.File
	// Limit bounds how long it may run, Grace is what all of it has between SIGTERM and SIGKILL. RunOnce holds the limit
	// itself: a drop-in for all services may give systemd another one.
	Limit, Grace time.Duration
}

// Ended is how a command ended.
type Ended struct {
	// Result is systemd's word: "success", "exit-code", "signal", "timeout", "oom-kill" or another.
	Result string
	// Status is the exit status, or the number of the signal.
	Status int32
}

// RunOnce runs the command and returns when nothing of it is left. What already runs under its name is stopped first.
// An error says that systemd could not do that, or that ctx has ended, never how the command did.
func (m *Manager) RunOnce(ctx context.Context, o Once) (ended Ended, err error) {
	if err := m.clearAway(ctx, o.Name); err != nil {
		return ended, err
	}
	fd := godbus.UnixFD(o.Output.Fd())
	properties := []dbus.Property{
		dbus.PropDescription(o.Description),
		dbus.PropExecStart(o.Argv, false),
		// Not oneshot, as in StartTransient; it remains, so that how it ended can be asked.
		dbus.PropType("simple"),
		property("RemainAfterExit", true),
		property("Environment", o.Environment),
		property("StandardOutputFileDescriptor", fd),
		property("StandardErrorFileDescriptor", fd),
		property("RuntimeMaxUSec", uint64(o.Limit.Microseconds())),
		property("TimeoutStopUSec", uint64(o.Grace.Microseconds())),
	}
	defer func() {
		// Whatever it left behind in its cgroup, and the name.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.Grace+explainTimeout)
		defer cancel()
		err = errors.Join(err, m.clearAway(ctx, o.Name))
	}()
	if err := m.startTransient(ctx, o.Name, properties); err != nil {
		return ended, err
	}
	const often, seldom = 5 * time.Millisecond, 250 * time.Millisecond
	limit := time.After(o.Limit)
	for wait := often; ; wait = min(2*wait, seldom) {
		running, ended, err := m.ended(ctx, o.Name)
		if err != nil || !running {
			return ended, err
		}
		select {
		case <-ctx.Done():
			return ended, fmt.Errorf("running %s: %w", o.Name, context.Cause(ctx))
		case <-limit:
			return Ended{Result: "timeout"}, nil
		case <-time.After(wait):
		}
	}
}

// ended says whether the command of a Once still runs, and if not how it ended.
func (m *Manager) ended(ctx context.Context, name string) (running bool, e Ended, err error) {
	fail := func(err error) (bool, Ended, error) {
		return false, e, fmt.Errorf("asking how %s ended: %w", name, err)
	}
	props, err := m.conn.GetUnitPropertiesContext(ctx, name)
	if err != nil {
		return fail(err)
	}
	active, _ := props["ActiveState"].(string)
	if sub, _ := props["SubState"].(string); active != "failed" && sub != "exited" {
		if active == "inactive" {
			return fail(errors.New("somebody else has stopped it"))
		}
		return true, e, nil
	}
	result, err := m.conn.GetUnitTypePropertyContext(ctx, name, "Service", "Result")
	if err != nil {
		return fail(err)
	}
	status, err := m.conn.GetUnitTypePropertyContext(ctx, name, "Service", "ExecMainStatus")
	if err != nil {
		return fail(err)
	}
	e.Result, _ = result.Value.Value().(string)
	e.Status, _ = status.Value.Value().(int32)
	return false, e, nil
}

// clearAway stops what runs under a name and forgets it; where there is nothing it does nothing.
func (m *Manager) clearAway(ctx context.Context, name string) error {
	if err := m.Stop(ctx, name); err != nil {
		return err
	}
	return m.Forget(ctx, name)
}
