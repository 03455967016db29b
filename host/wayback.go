// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// wayBackCheck is the name of the check for everything that the agent needs to take a host to another configuration.
const wayBackCheck = "way back"

// reloadTimeout bounds a daemon-reload of the verdict: systemd itself gives up on generators after 90 seconds.
const reloadTimeout = 2 * time.Minute

// meansCheck asks whether this host can still be rolled back, and updated again. After a boot the check makes systemd
// read its units again once. Without a boot it does so only where systemd has not read the agent's units since their
// installation: before version 246 systemd remembers that a unit which others name is missing.
func (h *Host) meansCheck(booted bool) transaction.Check {
	reloaded, failed := false, error(nil)
	again := func(ctx context.Context) error {
		if !reloaded {
			ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
			defer cancel()
			failed = h.services.Reload(ctx)
			reloaded = failed == nil // a failure may be a passing one
		}
		return failed
	}
	return transaction.Check{Name: wayBackCheck, After: transaction.BootCheck, Run: func(ctx context.Context) error {
		m, err := h.means(ctx)
		if err != nil {
			return err
		}
		unread := slices.ContainsFunc(m.Units, func(u systemd.Facts) bool { return u.Load == "not-found" })
		if booted || unread {
			m.Reload = again(ctx)
		}
		if unread && m.Reload == nil {
			if m, err = h.means(ctx); err != nil {
				return err
			}
		}
		return m.Judge()
	}}
}

// means examines everything that the agent needs.
func (h *Host) means(ctx context.Context) (m transaction.Means, err error) {
	m.Command, m.Written = map[string][]string{}, map[string]error{}
	for _, name := range agent.BootUnits {
		m.Command[name] = agent.BootCommand(name)
	}
	for _, w := range agent.Wants() {
		at, err := h.root.Resolve(w.Path)
		if err != nil {
			return m, err
		}
		w.Node.Label = h.labels.Of(at, w.Node.Type)
		if d, err := h.root.Compare(w); err != nil {
			return m, fmt.Errorf("comparing %s: %w", w.Path, err)
		} else if len(d) > 0 {
			m.Differing = append(m.Differing, w.Path)
		}
	}
	err = h.services.with(ctx, BusTimeout, func(ctx context.Context, manager *systemd.Manager) (err error) {
		m.Units, err = manager.Facts(ctx, slices.Concat(agent.BootUnits, plan.Needed)...)
		return err
	})
	if h.plain != nil {
		covered, looking := ostree.CoveredMounts()
		m.Covered, err = covered, errors.Join(err, looking)
	}
	for _, dir := range []string{transaction.StateDir, systemd.UnitDir, transaction.ConfigDir} {
		m.Written[dir] = transaction.TryWriting(h.root, dir)
	}
	return m, err
}

// covering adds to a negative verdict the mounts that cover what this host needs for a rollback. A check that fails
// only because of such a mount does not know the cause.
func (h *Host) covering(verdict error) error {
	if h.plain == nil {
		return verdict
	}
	covered, _ := ostree.CoveredMounts() // the verdict has a reason without it
	for _, at := range covered {
		if why := transaction.Covered(at); !strings.Contains(verdict.Error(), why.Error()) {
			verdict = errors.Join(why, verdict)
		}
	}
	return verdict
}

// maintenance are the targets in which a boot ends that gets no further.
var maintenance = []string{"emergency.target", "rescue.target"}

// sight returns what this boot shows of the units that should move a pending update on.
func (h *Host) sight(ctx context.Context) (s transaction.Sight, err error) {
	s.BootID, s.Uptime = h.bootID(), transaction.Uptime()
	if h.plain != nil {
		booted, err := h.booted(ctx)
		if err != nil {
			return s, err
		}
		s.Booted = booted.ID
	}
	err = h.services.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) error {
		facts, err := m.Facts(ctx, slices.Concat(agent.BootUnits, maintenance)...)
		if err != nil {
			return err
		}
		s.Recover, s.Prove = facts[0], facts[1]
		for _, f := range facts[len(agent.BootUnits):] {
			if f.Active == "active" || f.Active == "activating" {
				s.Maintenance = f.Name
			}
		}
		return nil
	})
	return s, err
}

// stuck explains in a status why a pending update makes no progress: the record was written before the reason was
// known.
func (h *Host) stuck(ctx context.Context, r *transaction.Record, s *Status) {
	if h.services == nil || r == nil || !r.Pending.Waits() {
		return
	}
	seen, err := h.sight(ctx)
	if err != nil {
		s.Reason += "; asking systemd for the unit that continues the update failed: " + message.OneLine(err.Error())
		s.Reason = strings.TrimPrefix(s.Reason, "; ")
		return
	}
	if why := transaction.Stuck(r.Pending, seen); why != "" {
		s.State, s.Reason, s.Stuck = transaction.Degraded, why, true
	} else if where := transaction.Booting(r.Pending, seen); where != "" {
		s.Reason = where
	}
}

// unheld returns the reason why the agent's unit missed a deadline that has passed.
func (h *Host) unheld(ctx context.Context) string {
	seen, err := h.sight(ctx)
	if err != nil {
		return "" // the update has a reason without it
	}
	return transaction.Unheld(seen)
}

// recoveryPatience is how long the verdict's unit leaves the booted update to recovery.
const recoveryPatience = time.Minute

// awaitRecovery waits until recovery has had its turn in this boot: while systemd has recovery running or waiting, and
// at most half of the verdict's time. A fault that keeps recovery from running must not keep the verdict's clock from
// running.
func (h *Host) awaitRecovery(ctx context.Context) error {
	patience := recoveryPatience
	if r, err := h.store().Load(); err == nil && r.Pending != nil && r.Pending.Timeout > 0 {
		patience = min(patience, r.Pending.Timeout/2)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errPatience)
	defer cancel()
	for {
		var facts []systemd.Facts
		err := h.services.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) (err error) {
			facts, err = m.Facts(ctx, transaction.RecoverUnit)
			return err
		})
		if err == nil && !facts[0].Moves() {
			return nil
		}
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, errPatience) {
				return cause
			}
			h.say("prove", "starting the checks without recovery, which has not run in time")
			return nil
		case <-time.After(recoveryPoll):
		}
	}
}

// errPatience is the cause that ends awaitRecovery when its time is over.
var errPatience = errors.New("the time to wait for recovery is over")

// recoveryPoll is the interval at which systemd is asked whether recovery has ended.
const recoveryPoll = 50 * time.Millisecond

// makeWritable makes the file system of the record writable where the service that does so in each boot has not run,
// and may never run. Without a writable place, a verdict and a rollback are impossible.
func (h *Host) makeWritable() {
	root, err := files.OpenRemounted(path.Join(h.root.Path(), transaction.StateDir))
	if err == nil {
		err = root.Close()
	}
	if err != nil {
		h.say("prove", err.Error()) // the next write reports its own error, too
	}
}
