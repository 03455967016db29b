// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// Recover brings the host to one side of an interrupted operation.
func (h *Host) Recover(ctx context.Context) (*Result, error) {
	res := &Result{Reboot: RebootNone}
	r, err := h.store().Load()
	if err != nil {
		return h.result(ctx, res, r), err
	}
	if err := h.contradicts(r); err != nil {
		return h.result(ctx, res, r), err
	}
	if h.transient && h.services != nil {
		h.services.early = &systemd.Early{Unit: transaction.RecoverUnit, Say: h.say}
	}
	var moving []*transaction.Revision // whose extensions recovery may write after systemd looked for them
	if p := r.Pending; p != nil {
		moving = append(moving, &p.Revision, r.Committed)
	} else if h.transient {
		moving = append(moving, r.Committed)
	}
	out, err := h.engine().Recover(ctx, r)
	switch {
	case out.Rebooting:
		res.Reboot = RebootStarted
	case out.Do == transaction.AwaitBoot:
		res.Reboot = RebootNeeded
	case err == nil:
		if failed := h.redeliver(ctx, r); failed != nil {
			// The difference is drift then. People are told of drift, and it is no reason to hold up the boot.
			res.Warnings = append(res.Warnings, "delivering certificates again: "+message.OneLine(failed.Error()))
		}
		// Last, because extensions may make /etc read-only.
		if failed := h.mergeAnew(ctx, moving...); failed != nil {
			res.Warnings = append(res.Warnings, message.OneLine(failed.Error()))
		}
	}
	return h.result(ctx, res, r), err
}

// RollbackOptions are the options of a rollback.
type RollbackOptions struct{ RebootOptions }

// Rollback rolls back to the previous committed configuration; where an update is not proved yet, to the one before
// that update. Rollback quarantines nothing: a person asked for it.
func (h *Host) Rollback(ctx context.Context, o RollbackOptions) (*Result, error) {
	res := &Result{Reboot: RebootNone}
	r, err := h.store().Load()
	if err != nil {
		return h.result(ctx, res, r), err
	}
	err = h.rollback(ctx, r, o, res)
	return h.result(ctx, res, r), err
}

func (h *Host) rollback(ctx context.Context, r *transaction.Record, o RollbackOptions, res *Result) error {
	if err := h.contradicts(r); err != nil {
		return err
	}
	e := h.engine()
	out, err := e.Recover(ctx, r)
	if err != nil && r.Pending != nil {
		return fmt.Errorf("recovering the unfinished update: %w", err)
	}
	if p := r.Pending; p != nil && p.Road == transaction.RoadReboot && out.Do != transaction.Foreign && !out.Rebooting {
		if err := h.engine().WithdrawReboot(ctx, r, "a rollback was asked for before the verdict"); err != nil {
			return err
		}
		out.Do = transaction.Nothing
	}
	switch out.Do {
	case transaction.Foreign:
		if err := h.takeOver(ctx, r, out.Why, res); err != nil {
			return err
		}
	case transaction.AwaitBoot:
		if err := e.Withdraw(ctx, r, r.Pending.Config+" was withdrawn before it had booted"); err != nil {
			return err
		}
		return h.unstage(ctx, "")
	case transaction.AwaitProof, transaction.FirstBoot:
		if r.Pending == nil || out.Rebooting {
			break
		}
		err := e.GoBack(ctx, r, "a rollback was asked for before "+r.Pending.Config+" was proved", false)
		if err == nil {
			res.Reboot = RebootStarted
		}
		return err
	case transaction.GoBack:
		res.Reboot = RebootStarted
		return nil
	}
	if r.Previous == nil || r.Previous.Digest == "" {
		return errors.New("rolling back: there is no previous committed configuration")
	}
	cfg, err := h.revision(r.Previous)
	if err != nil {
		return err
	}
	a := &attempt{record: r, result: res, cfg: cfg, unasked: true,
		options: ApplyOptions{RebootOptions: o.RebootOptions, SkipOS: len(r.Previous.Skipped) > 0}}
	if h.plain != nil {
		if a.back, err = h.wayBack(ctx, r.Previous); err != nil {
			return err
		}
	}
	return h.apply(ctx, a)
}

// wayBack is a deployment that has run, and the packages in that deployment that were ours.
type wayBack struct {
	deployment ostree.Deployment
	layers     transaction.Layers
}

// wayBack finds the deployment of a revision, nil where the deployment is gone: then the OS stays as it is, or becomes
// what the configuration names.
func (h *Host) wayBack(ctx context.Context, rev *transaction.Revision) (*wayBack, error) {
	ds, err := h.deployments.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading deployments: %w", err)
	}
	for _, d := range ds {
		if d.ID == rev.Deployment {
			return &wayBack{deployment: d, layers: rev.Layers}, nil
		}
	}
	return nil, nil
}
