// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"slices"

	"github.com/noderefit/noderefit/plan"
)

// early carries out actions in the boot that waits for our unit. A job of a unit that starts after ours waits until we
// have ended: to wait for such a job is to wait for ourselves.
type early struct {
	unit string // our own
	say  func(phase, what string)
	left []string // services whose jobs early did not wait for
}

// jobs are the functions of systemd that early needs.
type jobs interface {
	StartsAfter(ctx context.Context, name, other string) (bool, error)
	ActiveState(ctx context.Context, names ...string) (map[string]string, error)
	QueueReload(ctx context.Context, name string) error
	QueueRestart(ctx context.Context, name string) error
	ReloadUnit(ctx context.Context, name string) error
	RestartUnit(ctx context.Context, name string) error
}

// act never fails because systemd takes its time. Other units may wait for ours too. A job that does not end in this
// boot proves nothing about the configuration.
func (e *early) act(ctx context.Context, m jobs, a plan.Action) error {
	after, err := m.StartsAfter(ctx, a.Service, e.unit)
	if err != nil {
		return err
	}
	restart := a.Type == plan.ActionRestart
	if after {
		return e.behind(ctx, m, a.Service, restart)
	}
	if restart {
		err = m.RestartUnit(ctx, a.Service)
	} else {
		err = m.ReloadUnit(ctx, a.Service)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		e.left = append(e.left, a.Service)
		e.say("act", "the wait is over: "+err.Error())
		return nil
	}
	return err
}

// behind leaves a service that starts after us to its own start, which reads the new files. A service that already runs
// gets its job queued, to run once we have ended.
func (e *early) behind(ctx context.Context, m jobs, service string, restart bool) error {
	e.left = append(e.left, service)
	states, err := m.ActiveState(ctx, service)
	if err != nil {
		return err
	}
	if s := states[service]; s != "active" && s != "reloading" {
		e.say("act", service+" starts after this, and needs no action")
		return nil
	}
	if restart {
		return m.QueueRestart(ctx, service)
	}
	return m.QueueReload(ctx, service)
}

// late reports whether a service may not have taken up its changes yet.
func (e *early) late(service string) bool { return e != nil && slices.Contains(e.left, service) }
