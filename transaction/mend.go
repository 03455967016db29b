// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
)

// Mend writes back wants of the committed configuration that other programs have changed, and acts. The record is not
// touched: the host is on that configuration throughout, and its way back stays open. An interruption at any point
// leaves drift of fewer paths than before, and a journal that the next operation removes. An action that fails undoes
// everything. u may decide something that is recorded elsewhere. The writer of that record rolls it forward by another
// Mend, or takes it back when this Mend fails.
func (e *Engine) Mend(ctx context.Context, r *Record, u Update) error {
	if err := e.tidyDrift(); err != nil {
		return err
	}
	if err := e.sweep(r); err != nil {
		return err
	}
	e.Say("stage", u.Revision.Config)
	j, err := e.stageJournal(u, RoadLive, newID(e.Now()))
	if err != nil {
		return err
	}
	if err := errors.Join(j.sync(), ctx.Err(), fault("mend prepared"), j.unmoved()); err != nil {
		return e.abandon(j, err)
	}
	if u.Decide != nil {
		if err := errors.Join(u.Decide(implied(j.Steps)), fault("mend decided")); err != nil {
			return e.abandon(j, err)
		}
	}
	ctx = context.WithoutCancel(ctx)
	e.Say("apply", u.Revision.Config)
	if err := errors.Join(fault("mend applying"), j.roll()); err != nil {
		return e.unmend(ctx, j, err, false)
	}
	if err := errors.Join(j.check(), j.sync()); err != nil {
		return e.unmend(ctx, j, err, false)
	}
	if err := e.act(ctx, j, false); err != nil {
		return e.unmend(ctx, j, err, true)
	}
	return j.forget()
}

// unmend undoes what was written, and acts on the old files again.
func (e *Engine) unmend(ctx context.Context, j *journal, why error, acted bool) error {
	e.Say("undo", j.Config)
	if err := errors.Join(j.undo(), j.sync()); err != nil {
		return errors.Join(why, err)
	}
	if acted {
		if err := e.act(ctx, j, true); err != nil {
			why = errors.Join(why, fmt.Errorf("and after going back: %w", err))
		}
	}
	return errors.Join(why, j.forget())
}

// tidyDrift removes all copies of drift except those of the last few transactions.
func (e *Engine) tidyDrift() error {
	ids, err := e.Root.ReadDir(driftDir)
	if err != nil {
		return nil //nolint:nilerr // none was kept yet
	}
	slices.Sort(ids)
	for _, id := range ids[:max(0, len(ids)-keepDrift)] {
		if err := e.Root.RemoveAll(path.Join(driftDir, id)); err != nil {
			return err
		}
	}
	return nil
}
