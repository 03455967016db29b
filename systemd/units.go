// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// questionTimeout bounds one exchange with systemd.
const questionTimeout = 30 * time.Second

// Units runs commands as services of a host, and reports their outcome. It connects at the first use, and anew after an
// error, so that it still sees running commands after a restart of the bus.
type Units struct {
	// Connect makes a connection. Its context bounds only the connecting.
	Connect func(context.Context) (*Manager, error)

	mu sync.Mutex
	m  *Manager
}

// Close closes the connection. Running commands continue.
func (u *Units) Close() { u.drop(nil) }

// drop closes the connection, if it is m or m is nil.
func (u *Units) drop(m *Manager) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.m != nil && (m == nil || u.m == m) {
		u.m.Close()
		u.m = nil
	}
}

func (u *Units) manager(ctx context.Context) (*Manager, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.m != nil && !u.m.conn.Connected() {
		u.m.Close()
		u.m = nil
	}
	if u.m == nil {
		m, err := u.Connect(ctx)
		if err != nil {
			return nil, err
		}
		u.m = m
	}
	return u.m, nil
}

// ask has one exchange with systemd.
func (u *Units) ask(ctx context.Context, question func(context.Context, *Manager) error) error {
	return u.askFor(ctx, questionTimeout, question)
}

func (u *Units) askFor(ctx context.Context, limit time.Duration, question func(context.Context, *Manager) error) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	m, err := u.manager(limited)
	if err != nil {
		return err
	}
	err = question(limited, m)
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrUnitExists) && !errors.Is(err, ErrUnitGone) {
		u.drop(m)
	}
	return err
}

// Service returns a service by name. A service that does not exist is inactive.
func (u *Units) Service(ctx context.Context, name string) (s Service, err error) {
	err = u.ask(ctx, func(ctx context.Context, m *Manager) error {
		s, err = m.service(ctx, name)
		return err
	})
	return s, err
}

// ActiveState returns the active state of a unit, not-found for a unit that systemd does not know.
func (u *Units) ActiveState(ctx context.Context, name string) (state string, err error) {
	err = u.ask(ctx, func(ctx context.Context, m *Manager) error {
		states, err := m.ActiveState(ctx, name)
		state = states[name]
		return err
	})
	return state, err
}

// Kill sends a signal to all processes of a unit. A missing unit is no error.
func (u *Units) Kill(ctx context.Context, name string, signal syscall.Signal) error {
	return u.ask(ctx, func(ctx context.Context, m *Manager) error { return m.kill(ctx, name, signal) })
}

// Stop stops a unit, waits for the end of the stop, and forgets how the unit ended. A missing unit is no error. The
// processes have as long to end as systemd gives them.
func (u *Units) Stop(ctx context.Context, name string) error {
	return u.askFor(ctx, stopTimeout, func(ctx context.Context, m *Manager) error { return m.clearAway(ctx, name) })
}

// stopTimeout bounds the stop of a unit. systemd's own default is 90 s; a hand that needs longer is killed.
const stopTimeout = 5 * time.Minute

// clearAway stops and forgets the unit with that name. Without such a unit it does nothing.
func (m *Manager) clearAway(ctx context.Context, name string) error {
	if err := m.Stop(ctx, name); err != nil {
		return err
	}
	return m.Forget(ctx, name)
}

// Start starts a command, and returns once it has been started. Service returns its outcome.
func (u *Units) Start(ctx context.Context, c Command) error {
	return u.ask(ctx, func(ctx context.Context, m *Manager) error {
		if err := m.Forget(ctx, c.Name); err != nil {
			return err
		}
		return m.start(ctx, c.Name, c.reporting())
	})
}

// Run runs a command to its end. A command that does not outlive its caller is stopped when ctx ends, and Run returns
// when nothing of it is left. An error means that systemd could not run the command, or that ctx has ended. How the
// command ended is in ended, never in the error.
func (u *Units) Run(ctx context.Context, c Command) (ended Ended, err error) {
	if !c.Outlives {
		if err := u.Stop(ctx, c.Name); err != nil {
			return ended, err
		}
		defer func() {
			// Stop the processes left in the cgroup, and free the name.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Grace+questionTimeout)
			defer cancel()
			err = errors.Join(err, u.Stop(ctx, c.Name))
		}()
	}
	by, err := u.launch(ctx, c)
	if err != nil {
		return ended, err
	}
	if c.Outlives {
		defer u.release(ctx, c.Name)
	}
	return u.wait(ctx, c, by)
}

// Keep runs a command to its end. After a success its unit stays active, until a program stops the unit or the machine
// goes down. After a failure nothing of the unit is left.
func (u *Units) Keep(ctx context.Context, c Command) error {
	err := u.Stop(ctx, c.Name)
	if err != nil {
		return err
	}
	by, err := u.launch(ctx, c)
	if err == nil {
		var ended Ended
		if ended, err = u.wait(ctx, c, by); err == nil {
			err = ended.Err()
		}
	}
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), questionTimeout)
	defer cancel()
	return errors.Join(err, u.Stop(ctx, c.Name))
}

// launchTries is how many times a command is started whose unit exists although nothing runs in it.
const launchTries = 3

// release allows systemd to forget a command that outlives its caller.
func (u *Units) release(ctx context.Context, name string) {
	u.mu.Lock()
	m := u.m
	u.mu.Unlock()
	if m != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), questionTimeout)
		defer cancel()
		_ = m.refer(ctx, "UnrefUnit", name) // the reference ends with the connection anyway
	}
}

// launch starts a command that remains, and returns the connection that started it. Where its unit already runs, launch
// waits for the end of that run first.
func (u *Units) launch(ctx context.Context, c Command) (by *Manager, err error) {
	for try := 1; ; try++ {
		err := u.ask(ctx, func(ctx context.Context, m *Manager) error {
			by = m
			return m.start(ctx, c.Name, c.remaining())
		})
		if !errors.Is(err, ErrUnitExists) || try == launchTries {
			return by, err
		}
		s, err := u.Service(ctx, c.Name)
		if err != nil {
			return nil, err
		}
		if !s.Ended() {
			try = 0
		}
		if err := Wait(ctx, u, c.Name); err != nil {
			return nil, err
		}
		if err := u.Stop(ctx, c.Name); err != nil {
			return nil, err
		}
	}
}

// The intervals between questions for an end: most commands are short, and those that outlive their caller take
// minutes.
const (
	soon   = 5 * time.Millisecond
	later  = 250 * time.Millisecond
	seldom = time.Second
)

// wait waits for the end of a command that remains and that the connection by started. A new connection refers to the
// unit again.
func (u *Units) wait(ctx context.Context, c Command, by *Manager) (ended Ended, err error) {
	slowest := later
	if c.Outlives {
		slowest = seldom
	}
	var limit <-chan time.Time
	if c.Limit > 0 {
		limit = time.After(c.Limit)
	}
	heard := time.Now()
	for pause := soon; ; pause = min(2*pause, slowest) {
		running := false
		err := u.ask(ctx, func(ctx context.Context, m *Manager) (err error) {
			if c.Outlives && m != by {
				if err := m.refer(ctx, "RefUnit", c.Name); noSuchUnit(err) {
					return ErrUnitGone
				} else if err != nil {
					return err
				}
				by = m
			}
			running, ended, err = m.ended(ctx, c.Name)
			return err
		})
		switch {
		case err == nil && !running || errors.Is(err, ErrUnitGone):
			return ended, err
		case err == nil:
			heard = time.Now()
		case ctx.Err() == nil && time.Since(heard) > questionTimeout:
			return ended, err
		}
		select {
		case <-ctx.Done():
			return ended, fmt.Errorf("running %s: %w", c.Name, context.Cause(ctx))
		case <-limit:
			return Ended{Result: "timeout"}, nil
		case <-time.After(pause):
		}
	}
}

// Wait returns once a service no longer runs, or ctx has ended.
func Wait(ctx context.Context, u interface {
	Service(ctx context.Context, name string) (Service, error)
}, name string) error {
	for pause := soon; ; pause = min(2*pause, seldom) {
		s, err := u.Service(ctx, name)
		if err != nil || s.Ended() {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}
