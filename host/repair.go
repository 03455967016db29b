// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/layout"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

// Repair writes back those drifted parts of the committed configuration that only names ("file /etc/x"). Where only is
// empty, Repair writes back every part that can be written. Repair is a transaction that decides nothing: the host has
// the same configuration before and after, and an interruption leaves at most drift. Where an action fails, everything
// is taken back, actions included.
func (h *Host) Repair(ctx context.Context, policy *plan.Policy, only []string) (*Result, error) {
	res := &Result{Reboot: RebootNone}
	r, err := h.store().Load()
	if err != nil {
		return h.result(ctx, res, r), err
	}
	if err = h.repair(ctx, r, policy, only, res); err == nil {
		err = h.unforce()
	}
	return h.result(ctx, res, r), err
}

func (h *Host) repair(ctx context.Context, r *transaction.Record, policy *plan.Policy, only []string,
	res *Result) error {
	booted, err := h.booted(ctx)
	if err != nil {
		return err
	}
	switch {
	case r.Pending != nil:
		return &Refused{Err: fmt.Errorf("the update to %s is under way: there is nothing to repair", r.Pending.Config)}
	case r.Committed == nil:
		return errors.New("repairing: this host has no committed configuration")
	case r.Committed.Deployment != booted.ID:
		return &Refused{Err: errors.New("the booted deployment is not that of the committed configuration: " +
			"run apply")}
	}
	cfg, err := h.revision(r.Committed)
	if err == nil {
		cfg, err = h.fetch(ctx, agent.RepairVerb.Name, cfg)
	}
	if err != nil {
		return err
	}
	h.say("plan", cfg.Name)
	drift, err := h.compare(cfg)
	if err != nil {
		return err
	}
	drift = slices.DeleteFunc(drift, func(d Drift) bool {
		return len(only) > 0 && !slices.Contains(only, d.key())
	})
	if len(drift) == 0 {
		return nil
	}
	u, err := h.planRepair(r, cfg, policy, drift, res)
	if err != nil {
		return err
	}
	if err := h.otherManagers(ctx, cfg, false); err != nil {
		return err
	}
	if err := h.engine().Mend(ctx, r, *u); err != nil {
		return err
	}
	for _, d := range drift {
		left := slices.ContainsFunc(h.left, func(l transaction.Left) bool { return slices.Contains(d.paths, l.Path) })
		if !left {
			res.Warnings = append(res.Warnings, "wrote back "+driftText(d))
		}
	}
	return nil
}

// planRepair returns the update that writes back the drift, with those of the needed actions that a repair may do.
func (h *Host) planRepair(r *transaction.Record, cfg *machineconfig.Config, policy *plan.Policy, drift []Drift,
	res *Result) (*transaction.Update, error) {
	p, err := plan.Make(observed(cfg, drift), cfg, plan.Options{Policy: policy, Committed: cfg})
	if err != nil {
		return nil, err
	}
	for _, a := range p.Actions {
		if a.Type == plan.ActionReboot || a.Type == plan.ActionDrain {
			res.Warnings = append(res.Warnings, fmt.Sprintf(
				"repair never does a %s, which the policy asks for because of %s: running programs may not have read the "+
					"repaired files",
				strings.ToLower(string(a.Type)), a.Because))
		}
	}
	p.Actions = slices.DeleteFunc(p.Actions, func(a plan.Action) bool {
		return a.Type == plan.ActionReboot || a.Type == plan.ActionDrain
	})
	p.Reboot, p.Drain, p.SoftReboot = false, false, false
	res.Plan = p
	c, err := layout.Make(h.view(), cfg, cfg, r.Committed.Made)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Name, err)
	}
	if h.plain != nil {
		if err := c.Writable(); err != nil {
			return nil, err
		}
	}
	u := &transaction.Update{Revision: *r.Committed, Actions: p.Actions, Wants: repaired(c.Wants, drift)}
	for _, d := range drift {
		u.Drifted = append(u.Drifted, d.paths...)
	}
	slices.Sort(u.Drifted)
	u.Drifted = slices.Compact(u.Drifted)
	return u, nil
}

// repaired returns the wants of these drifts.
func repaired(wants []files.Want, drift []Drift) []files.Want {
	about := map[string]bool{}
	for _, d := range drift {
		about[d.key()] = true
	}
	return slices.DeleteFunc(slices.Clone(wants), func(w files.Want) bool {
		return !slices.ContainsFunc(layout.Subjects(w), func(s string) bool { return about[s] })
	})
}

// forced reports whether ForceFile exists.
func (h *Host) forced() bool { return h.exists(ForceFile) }

// unforce removes ForceFile: the file counts once.
func (h *Host) unforce() error {
	if !h.forced() {
		return nil
	}
	return h.root.Remove(ForceFile)
}
