// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"errors"
	"fmt"

	"github.com/noderefit/noderefit/ostree"
)

// Operation is an update before its decision. The methods are called in their order. A method that fails has undone its
// own work and that of the methods before it.
type Operation interface {
	// Stage writes the journal, and everything that has no effect yet.
	Stage(ctx context.Context) error
	// Materialise makes the deployment that carries the update. It does nothing on roads without a deployment.
	Materialise(ctx context.Context) error
	// Commit decides: before one rename the host is on its old side, after the rename on the new side, whatever happens.
	Commit(ctx context.Context) error
	// Effect carries the decision out where no boot is needed: it renames staged nodes, restarts services and asks for the
	// verdict. After a verdict that is no, everything is undone.
	Effect(ctx context.Context) error
}

// booting is the common part of the roads that boot.
type booting struct {
	e    *Engine
	r    *Record
	p    *Pending
	was  Record // the record before the update began
	id   string
	j    *journal
	made ostree.Deployment
}

// begin records that an update exists, so that its remains are found and removed after a cut, and stages u.
func (b *booting) begin(ctx context.Context, u Update, p *Pending) error {
	e := b.e
	b.was, b.p, b.r.Pending = *b.r, p, p
	e.setState(b.r, Working, "")
	if err := errors.Join(e.Root.MkdirAll(StateDir, 0o700), e.store().save(b.r), fault("recorded")); err != nil {
		return b.abort(ctx, err)
	}
	e.Say("stage", u.Revision.Config)
	var err error
	if b.j, err = e.begin(u, p.Road, b.id); err != nil {
		return b.abort(ctx, err)
	}
	return nil
}

// permitted asks whether the update may still go on. After a no the host is as if the update had not been asked for.
func (b *booting) permitted(ctx context.Context, u Update) error {
	err := u.permit()
	if err == nil {
		return nil
	}
	return b.e.revoke(ctx, b.r, b.j, err, func() {
		b.r.State, b.r.Reason, b.r.Since = b.was.State, b.was.Reason, b.was.Since
	})
}

func (b *booting) abort(ctx context.Context, why error) error { return b.e.abort(ctx, b.r, b.j, why) }

// Effect does nothing: the boot has the effect.
func (b *booting) Effect(context.Context) error { return nil }

// switchOperation is the switch: the deployment carries the update, and making it the default decides. The host is
// wholly on the old deployment before, and wholly on the new one from the next boot on. Nothing is left to do at the
// shutdown.
type switchOperation struct {
	booting
	s      Switch
	before []ostree.Deployment
}

// NewSwitch returns the operation that makes the deployment of s, and makes it the default.
func (e *Engine) NewSwitch(r *Record, s Switch) Operation {
	o := &switchOperation{booting: booting{e: e, r: r, id: newID(e.Now())}, s: s}
	o.s.Revision.Transaction, o.s.Revision.Deployment = o.id, ""
	return o
}

func (o *switchOperation) Stage(ctx context.Context) (err error) {
	if err := o.e.Tidy(ctx, o.r); err != nil {
		return err
	}
	if o.before, err = o.e.Deployments.Status(ctx); err != nil {
		return fmt.Errorf("reading deployments: %w", err)
	}
	p := &Pending{Revision: o.s.Revision, Phase: PhasePrepare, Road: RoadSwitch, From: o.s.Booted, BootID: o.e.BootID,
		Checksum: o.s.Request.Checksum, KernelArguments: o.s.Request.KernelArguments,
		MaxAttempts: maxAttempts, Timeout: o.s.Timeout, Baseline: o.s.Baseline}
	for _, d := range o.before {
		p.Existing = append(p.Existing, d.ID)
	}
	return o.begin(ctx, o.s.Update, p)
}

func (o *switchOperation) Materialise(ctx context.Context) (err error) {
	if o.made, err = o.e.materialise(ctx, o.p, o.j, o.s); err != nil {
		return o.abort(ctx, err)
	}
	if err := errors.Join(o.j.sync(), ctx.Err(), fault("materialised")); err != nil {
		return o.abort(ctx, err)
	}
	return nil
}

func (o *switchOperation) Commit(ctx context.Context) error {
	if err := o.permitted(ctx, o.s.Update); err != nil {
		return err
	}
	e, p := o.e, o.p
	p.Phase, p.Deployment = PhaseBoot, o.made.ID
	if o.s.SoftReboot {
		p.SoftReboot = SoftPlanned
	}
	e.setState(o.r, Working, p.waiting())
	e.Say("commit", p.Deployment)
	if err := errors.Join(e.store().save(o.r), fault("pending")); err != nil {
		return o.abort(ctx, err)
	}
	if err := e.countBoots(ctx, p, o.before); err != nil {
		return o.abort(ctx, err)
	}
	if err := e.Deployments.SetDefault(ctx, p.Deployment); err != nil {
		return o.abort(ctx, fmt.Errorf("making %s the default: %w", p.Deployment, err))
	}
	return fault("committed")
}

// stagedOperation is the staged road: the deployment that boots decides, and the files follow on the first boot. A
// staged deployment that is lost at the shutdown changes nothing. Without a deployment, on this road and in place, the
// record decides.
type stagedOperation struct {
	booting
	s Staged
}

// NewStaged returns the operation that stages s and releases it.
func (e *Engine) NewStaged(r *Record, s Staged) Operation {
	o := &stagedOperation{booting: booting{e: e, r: r, id: newID(e.Now())}, s: s}
	o.s.Revision.Transaction, o.s.Revision.Deployment = o.id, ""
	return o
}

func (o *stagedOperation) Stage(ctx context.Context) error {
	if err := o.e.Tidy(ctx, o.r); err != nil {
		return err
	}
	return o.begin(ctx, o.s.Update, &Pending{Revision: o.s.Revision, Phase: PhasePrepare, Road: o.s.Road,
		From: o.s.Booted, BootID: o.e.BootID, MaxAttempts: maxAttempts, Timeout: o.s.Timeout, Baseline: o.s.Baseline})
}

func (o *stagedOperation) Materialise(ctx context.Context) (err error) {
	o.made = ostree.Deployment{ID: o.s.Booted}
	for _, old := range o.s.Reclaim {
		if err := o.e.Deployments.Discard(ctx, old); err != nil {
			return o.abort(ctx, fmt.Errorf("discarding deployment %s: %w", old, err))
		}
	}
	if o.s.Stage != nil {
		o.e.Say("materialise", o.s.Revision.Config)
		if err := fault("materialise"); err != nil {
			return o.abort(ctx, err)
		}
		if o.made, err = o.s.Stage(ctx); err != nil {
			return o.abort(ctx, fmt.Errorf("staging the deployment: %w", err))
		}
	}
	if err := errors.Join(o.j.sync(), ctx.Err(), fault("materialised")); err != nil {
		return o.abort(ctx, err)
	}
	return nil
}

func (o *stagedOperation) Commit(ctx context.Context) error {
	if err := o.permitted(ctx, o.s.Update); err != nil {
		return err
	}
	e, p, d := o.e, o.p, o.made
	p.Phase, p.Deployment, p.Checksum, p.KernelArguments = PhaseBoot, d.ID, d.Checksum, d.KernelArguments
	p.Made = addTo(p.Made, implied(o.j.Steps))
	e.setState(o.r, Working, "waiting for the reboot")
	e.Say("commit", d.ID)
	if err := errors.Join(e.store().save(o.r), fault("pending")); err != nil {
		return o.abort(ctx, err)
	}
	if o.s.Stage != nil {
		if err := o.s.Release(ctx, d.ID); err != nil {
			return o.abort(ctx, fmt.Errorf("releasing the staged deployment %s: %w", d.ID, err))
		}
	}
	if err := e.load(ctx, o.j, false); err != nil { // the last write before the reboot
		return o.abort(ctx, err)
	}
	return fault("committed")
}

// liveOperation is an update of the running host, on the live or the tree road: the record decides.
type liveOperation struct {
	e    *Engine
	r    *Record
	u    Update
	road Road
	id   string
	j    *journal
}

// NewLive returns the operation that makes u true on the running host.
func (e *Engine) NewLive(r *Record, u Update, road Road) Operation {
	return &liveOperation{e: e, r: r, u: u, road: road, id: newID(e.Now())}
}

func (o *liveOperation) Stage(ctx context.Context) (err error) {
	if err := o.e.Tidy(ctx, o.r); err != nil {
		return err
	}
	o.e.Say("stage", o.u.Revision.Config)
	o.j, err = o.e.begin(o.u, o.road, o.id)
	return err
}

// Materialise does nothing: no deployment carries the update.
func (o *liveOperation) Materialise(context.Context) error { return nil }

func (o *liveOperation) Commit(ctx context.Context) error {
	e, r := o.e, o.r
	if err := errors.Join(o.j.sync(), ctx.Err(), fault("prepared"), o.j.unmoved(), o.u.permit()); err != nil {
		return e.abandon(o.j, err)
	}
	revision := o.u.Revision
	revision.Transaction, revision.Made = o.id, addTo(revision.Made, implied(o.j.Steps))
	r.Pending = &Pending{Revision: revision, Phase: PhaseApply, Road: o.road, From: revision.Deployment,
		BootID: e.BootID, MaxAttempts: maxAttempts, Timeout: o.u.Timeout, Baseline: o.u.Baseline,
		Verdict: o.u.Verdict, Services: o.u.Services}
	e.setState(r, Working, "")
	e.Say("commit", revision.Config)
	if err := e.store().save(r); err != nil {
		r.Pending = nil
		return e.abandon(o.j, err)
	}
	if err := fault("committed"); err != nil {
		return e.takeBack(ctx, r, o.j, err, false)
	}
	return nil
}

func (o *liveOperation) Effect(ctx context.Context) error { return o.e.finish(ctx, o.r, o.j) }
