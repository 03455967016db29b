// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"slices"
)

// Early reloads and restarts services in the boot that waits for our unit. A job of a unit that starts after ours waits
// until we have ended: to wait for such a job is to wait for ourselves.
type Early struct {
	Unit string // our own
	Say  func(phase, what string)

	left []string // services whose jobs Early did not wait for
}

// jobs are the functions of systemd that Early needs.
type jobs interface {
	StartsAfter(ctx context.Context, name, other string) (bool, error)
	ActiveState(ctx context.Context, names ...string) (map[string]string, error)
	QueueReload(ctx context.Context, name string) error
	QueueRestart(ctx context.Context, name string) error
	ReloadUnit(ctx context.Context, name string) error
	RestartUnit(ctx context.Context, name string) error
}

// Act reloads or restarts a service. Act never fails because systemd takes its time. Other units may wait for ours too.
// A job that does not end in this boot proves nothing about the configuration.
func (e *Early) Act(ctx context.Context, m jobs, service string, restart bool) error {
	after, err := m.StartsAfter(ctx, service, e.Unit)
	if err != nil {
		return err
	}
	if after {
		return e.behind(ctx, m, service, restart)
	}
	if restart {
		err = m.RestartUnit(ctx, service)
	} else {
		err = m.ReloadUnit(ctx, service)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		e.left = append(e.left, service)
		e.Say("act", "the wait is over: "+err.Error())
		return nil
	}
	return err
}

// behind leaves a service that starts after us to its own start, which reads the new files. A service that already runs
// gets its job queued, to run once we have ended.
func (e *Early) behind(ctx context.Context, m jobs, service string, restart bool) error {
	e.left = append(e.left, service)
	states, err := m.ActiveState(ctx, service)
	if err != nil {
		return err
	}
	if s := states[service]; s != "active" && s != "reloading" {
		e.Say("act", service+" starts after this, and needs no action")
		return nil
	}
	if restart {
		return m.QueueRestart(ctx, service)
	}
	return m.QueueReload(ctx, service)
}

// Late reports whether a service may not have taken up its changes yet.
func (e *Early) Late(service string) bool { return e != nil && slices.Contains(e.left, service) }
