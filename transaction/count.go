// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/noderefit/noderefit/ostree"
)

// counts reports whether the boot loader may be counting boots for what is pending. On the staged road it does so for
// another program. No boots are counted of a deployment that runs already.
func (e *Engine) counts(p *Pending) bool {
	return e.Counter != nil && (p.Road == RoadSwitch || p.Road == RoadReboot && p.deploys())
}

// countBoots makes the boot loader count the boots of the deployment that is about to become the default, if the boot
// loader can. After too many boots the machine falls back on the entry after that one. before has the deployments as
// they were.
func (e *Engine) countBoots(ctx context.Context, p *Pending, before []ostree.Deployment) error {
	if !e.counts(p) {
		return nil
	}
	set, err := e.Counter.Set(e.Counter.Limit())
	if err != nil || !set {
		return err
	}
	if err := fault("counted"); err != nil {
		return err
	}
	if slices.ContainsFunc(before, func(d ostree.Deployment) bool { return d.Default && d.ID != p.From }) {
		if err := e.Deployments.SetDefault(ctx, p.From); err != nil {
			return fmt.Errorf("making %s what the boot loader falls back on: %w", p.From, err)
		}
		return fault("fallback")
	}
	return nil
}

// countReboot makes the boot loader count the boots of the deployment to which an ordered reboot leads, if the boot
// loader can. Boots are counted only where the machine would fall back on the deployment that runs: another program has
// decided the order of the boot entries, and that order stays.
func (e *Engine) countReboot(ctx context.Context, p *Pending) error {
	if !e.counts(p) {
		return nil
	}
	all, err := e.Deployments.Status(ctx)
	if err != nil {
		return fmt.Errorf("reading deployments: %w", err)
	}
	var order []string
	for _, d := range all {
		if !d.Staged {
			order = append(order, d.ID)
		} else if !d.Locked {
			order = slices.Insert(order, 0, d.ID) // the shutdown puts it before the others
		}
	}
	if len(order) < 2 || order[0] != p.Deployment || order[1] != p.From {
		return nil
	}
	_, err = e.Counter.Set(e.Counter.Limit())
	return errors.Join(err, fault("counted"))
}

// uncount ends the counting of an update's boots, or of those of an ordered reboot.
func (e *Engine) uncount(p *Pending) error {
	if !e.counts(p) {
		return nil
	}
	return e.Counter.Clear()
}

// recounted moves the default and then ends the counting of boots, where any may be counted. With no boot left the
// boot loader boots the entry after the default: right before the move, wrong after it. So one boot is left until the
// counter is gone. A cut at any point costs at most one boot of the new deployment.
func (e *Engine) recounted(counts bool, move func() error) error {
	if !counts {
		return move()
	}
	left, counted, err := e.Counter.Left()
	if err != nil {
		return err
	}
	if counted && left < 1 {
		if _, err := e.Counter.Set(1); err != nil {
			return err
		}
	}
	for _, step := range []func() error{
		func() error { return fault("recounted") }, move, func() error { return fault("moved") }, e.Counter.Clear,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// leave makes the deployment that the pending update started from the default again.
func (e *Engine) leave(ctx context.Context, p *Pending) error {
	return e.recounted(e.counts(p), func() error {
		if err := e.Deployments.SetDefault(ctx, p.From); err != nil {
			return fmt.Errorf("making %s the default again: %w", p.From, err)
		}
		return nil
	})
}

// stay makes the booted deployment the default while the boots of the pending update are still counted. The boot loader
// may have chosen the booted deployment by its counter, and would choose another without the counter.
func (e *Engine) stay(ctx context.Context, p *Pending) error {
	if !e.counts(p) {
		return nil
	}
	_, counted, err := e.Counter.Left()
	if err != nil || !counted {
		return err
	}
	ds, err := e.Deployments.Status(ctx)
	if err != nil {
		return fmt.Errorf("reading deployments: %w", err)
	}
	return e.recounted(true, func() error {
		for _, d := range ds {
			if d.Booted {
				return e.defaultIs(ctx, d.ID)
			}
		}
		return nil
	})
}
