// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/ostree"
)

// Outcome is what recovery found and did.
type Outcome struct {
	Decision
	// Rebooting means that the machine is shutting down for a reboot.
	Rebooting bool
}

// Recover reads the boot record and finishes or undoes an interrupted update. On a host without an interrupted update,
// it reads two small files and returns.
func (e *Engine) Recover(ctx context.Context, r *Record) (Outcome, error) {
	o, err := e.recover(ctx, r)
	if err != nil || o.Rebooting || e.BootEtc == nil || ctx.Err() != nil {
		return o, err // while nothing is decided nothing is written: the next try could decide for another revision
	}
	return o, e.rewriteEtc(ctx, r, o.Do)
}

func (e *Engine) recover(ctx context.Context, r *Record) (Outcome, error) {
	s, err := e.situation(ctx, r)
	if err != nil {
		return Outcome{}, err
	}
	o := Outcome{Decision: decide(r, s)}
	if o.Do != Nothing {
		e.Say("recover", string(o.Do)+": "+o.Why)
	}
	if o.Do != BootFully { // else the reboot is still to lead to the update
		e.arrived(r)
	}
	switch o.Do {
	case Nothing:
		return o, errors.Join(e.asBefore(r), e.stays(ctx, r, s), e.sweep(r))
	case Abort:
		return o, e.recoverAbort(ctx, r, o.Decision)
	case RollForward:
		return o, e.recoverForward(ctx, r)
	case UndoHere:
		return o, e.recoverUndo(ctx, r)
	case FirstBoot, AwaitProof:
		var err error
		if o.Do == FirstBoot {
			err = e.firstBoot(ctx, r, s)
		} else {
			err = e.complete(ctx, r) // the first run may have been interrupted
		}
		o.Rebooting = err == nil && r.Pending != nil && (r.Pending.Phase == PhaseUndo || r.Pending.Reread == e.BootID)
		return o, err
	case BootFully:
		if e.Services == nil {
			return o, nil
		}
		err := e.Services.Reboot(ctx)
		o.Rebooting = err == nil
		return o, err
	case GoBack:
		if e.Unheld != nil && r.Pending.Phase == PhaseProve && r.Pending.BootID == e.BootID {
			if unheld := e.Unheld(ctx); unheld != "" {
				o.Why += "; " + unheld
			}
		}
		err := e.GoBack(ctx, r, o.Why, o.Quarantine)
		o.Rebooting = err == nil && r.Pending != nil
		return o, err
	case Returned:
		if p := r.Pending; p.deploys() {
			return o, e.returned(ctx, r, o.Decision)
		}
		var err error
		o.Rebooting, err = e.returnedHere(ctx, r, o.Decision)
		return o, err
	case WentBack:
		return o, e.wentBack(ctx, r, o.Decision)
	case Foreign:
		before := r.Before
		if before == nil {
			now := r.Standing
			before = &now
		}
		return o, e.note(r, Degraded, o.Why, before)
	}
	return o, nil
}

// asBefore restores the state from before something else changed the OS, where the host is on the committed deployment
// again.
func (e *Engine) asBefore(r *Record) error {
	if r.Before == nil {
		return nil
	}
	r.Standing, r.Before = *r.Before, nil
	return e.store().save(r)
}

// stays forgets a return once it is over, or where it came to nothing because the default was not changed. Then no
// reboot is to come, and no kernel is to be loaded for one.
func (e *Engine) stays(ctx context.Context, r *Record, s situation) error {
	if r.Returning != "" && r.Returning == s.Default && r.Returning != s.Booted {
		return nil
	}
	if !e.noReboot(ctx, r) && r.Returning == "" {
		return nil
	}
	r.Returning = ""
	return e.store().save(r)
}

// Return makes the deployment id, which is there already, the default. The next boot is of it, and is then known to be
// the update's.
func (e *Engine) Return(ctx context.Context, r *Record, id string) error {
	r.Returning = id
	if err := e.store().save(r); err != nil {
		return err
	}
	return e.Deployments.SetDefault(ctx, id)
}

func (e *Engine) situation(ctx context.Context, r *Record) (situation, error) {
	s := situation{BootID: e.BootID, Uptime: e.Uptime()}
	if e.Deployments == nil {
		if r.Pending != nil {
			s.Booted = r.Pending.From // a host whose OS was left out: the record is all that is known
		} else if r.Committed != nil {
			s.Booted = r.Committed.Deployment
		}
		return s, nil
	}
	ds, err := e.Deployments.Status(ctx)
	if err != nil {
		return s, fmt.Errorf("reading deployments: %w", err)
	}
	for _, d := range ds {
		if d.Booted {
			s.Booted = d.ID
		}
		if d.Default {
			s.Default = d.ID
		}
		if !d.Staged {
			s.Bootable = append(s.Bootable, d.ID)
		} else if !d.Locked {
			s.Staged = d.ID
		}
	}
	if p := r.Pending; p != nil && p.Road == RoadStaged && p.deploys() && p.Phase == PhaseBoot && p.BootID != s.BootID &&
		s.Booted == p.From && !slices.Contains(s.Bootable, p.Deployment) && e.Unfinished != nil {
		if s.Unfinished, err = e.Unfinished(ctx); err != nil {
			e.Say("recover", err.Error())
		}
	}
	if p := r.Pending; p == nil || !e.counts(p) || s.Booted != p.From {
		return s, nil
	}
	if left, counts, err := e.Counter.Left(); err != nil {
		e.Say("recover", err.Error()) // the way back does not depend on its reason
	} else if counts && left < 0 {
		s.GaveUp = e.Counter.Limit()
	}
	return s, nil
}

// sweep removes journals that nothing refers to: their transaction was interrupted before its decision, or ended long
// ago.
func (e *Engine) sweep(r *Record) error {
	if err := e.Root.Remove(path.Join(StateDir, files.StagePrefix+path.Base(RecordPath))); err != nil {
		return err // a record whose write was interrupted
	}
	ids, err := e.Root.ReadDir(journalsDir)
	if err != nil {
		return nil //nolint:nilerr // there has been no transaction yet
	}
	for _, id := range ids {
		if r.needs(id) {
			continue
		}
		j, err := e.journal(id)
		if err != nil {
			return err
		}
		if j == nil {
			err = e.Root.RemoveAll(journalDir(id))
		} else {
			err = j.drop()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) recoverAbort(ctx context.Context, r *Record, d Decision) error {
	e.noReboot(ctx, r)
	j, err := e.pendingJournal(r.Pending)
	if err != nil {
		return err
	}
	if err := e.unload(ctx, j); err != nil { // while the record says boot, recovery would write them again
		return e.stuck(ctx, r, d.Why, err)
	}
	if err := e.unmake(ctx, r.Pending); err != nil {
		return e.stuck(ctx, r, d.Why, err)
	}
	r.Pending = nil
	r.Rebooted.failed(d.Why)
	state := Done
	if d.Failed {
		state = Degraded
	}
	e.setState(r, state, d.Why)
	// Where the record alone decides, it must not point to a journal that is gone.
	if err := errors.Join(e.store().save(r), fault("withdrawn")); err != nil {
		return err
	}
	if j != nil {
		if err := j.drop(); err != nil {
			return err
		}
	}
	return errors.Join(e.sweep(r), e.tidyConfigs(r))
}

// stuck records that the remains of a pending update could not be removed. The record keeps its phase: the next
// recovery tries again.
func (e *Engine) stuck(ctx context.Context, r *Record, why string, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return errors.Join(err, e.fail(r, Degraded,
		fmt.Sprintf("%s; and removing the files and deployments made for the update failed: %v", why, err)))
}

// errJournalLost is the error of a record that names a decision whose journal is gone.
var errJournalLost = errors.New("the journal of the pending transaction is missing")

// journalLost continues without the journal. How far the change was is unknown, but the committed configuration can be
// applied again, and so can any other.
func (e *Engine) journalLost(r *Record) error {
	why := fmt.Sprintf("recovering %s: %v; its changes count as drift now", r.Pending.Config, errJournalLost)
	r.Pending = nil
	e.setState(r, Degraded, why)
	return e.store().save(r)
}

func (e *Engine) recoverForward(ctx context.Context, r *Record) error {
	j, err := e.pendingJournal(r.Pending)
	if err != nil {
		return err
	}
	if j == nil {
		return e.journalLost(r)
	}
	if j.BootID == e.BootID {
		return e.finish(ctx, r, j)
	}
	j.Actions = nil // the services start after the cut, with the files that are there now
	if !r.Pending.Verdict && e.BootEtc == nil {
		return errors.Join(e.finish(ctx, r, j), e.restartBoot(ctx, j))
	}
	return e.firstBoot(ctx, r, situation{BootID: e.BootID, Uptime: e.Uptime()})
}

// restartBoot makes a boot that is under way see units that recovery changed.
func (e *Engine) restartBoot(ctx context.Context, j *journal) error {
	if e.Services == nil || j.BootID == e.BootID ||
		!slices.ContainsFunc(j.Steps, func(s step) bool { return isUnitPath(s.Path) }) {
		return nil
	}
	return errors.Join(e.Services.Reload(ctx), e.Services.Start(ctx, "default.target"))
}

func (e *Engine) recoverUndo(ctx context.Context, r *Record) error {
	j, err := e.pendingJournal(r.Pending)
	if err != nil {
		return err
	}
	if j == nil {
		j = &journal{ID: "none", root: e.Root}
	}
	if j.BootID != e.BootID {
		j.Actions = nil
	}
	why := errors.New(r.Pending.Reason)
	err = e.undoHere(ctx, r, j, why)
	if r.Pending != nil {
		return err
	}
	return e.restartBoot(ctx, j) // the reason of the failed update is in the record; going back worked
}

// firstBoot completes the new deployment with everything that the deployment does not carry, and starts the clock.
func (e *Engine) firstBoot(ctx context.Context, r *Record, s situation) error {
	p := r.Pending
	p.Phase, p.BootID, p.Attempts = PhaseProve, s.BootID, p.Attempts+1
	p.Deadline = s.Uptime + p.Timeout
	if p.Road == RoadReboot {
		if s.Booted == p.From {
			if err := e.uncount(p); err != nil { // the counted deployment has not become bootable
				return err
			}
		}
		p.Deployment = s.Booted
	}
	e.setState(r, Working, "proving "+p.Config)
	if err := errors.Join(fault("first boot"), e.store().save(r), fault("clock")); err != nil {
		return err
	}
	return errors.Join(e.complete(ctx, r), fault("prove"))
}

// complete rolls the journal of a booted deployment forward. Where this fails, the host goes back.
func (e *Engine) complete(ctx context.Context, r *Record) error {
	if r.Pending.Road == RoadReboot {
		return e.writeBootEtc(ctx, &r.Pending.Revision)
	}
	j, err := e.pendingJournal(r.Pending)
	if err != nil {
		return e.GoBack(ctx, r, err.Error(), true)
	}
	if j == nil {
		return e.GoBack(ctx, r, errJournalLost.Error(), true)
	}
	err = e.writeBootEtc(ctx, &r.Pending.Revision)
	if err != nil {
		return e.GoBack(ctx, r, err.Error(), true)
	}
	etc, err := e.etcJournal(ctx, r)
	if err == nil {
		err = e.reread(r, j, etc)
	}
	if err == nil {
		err = e.roll(j, etc)
	}
	if err == nil {
		if err = e.load(ctx, j, false); stopped(ctx, err) {
			return err // the next boot goes on
		}
	}
	if err != nil {
		return e.GoBack(ctx, r, err.Error(), true)
	}
	if r.Pending.Reread == e.BootID && r.Pending.Reread != "" && e.Services != nil {
		return errors.Join(fault("again"), e.Services.Reboot(context.WithoutCancel(ctx)))
	}
	if etc == nil {
		return e.restartBoot(ctx, j)
	}
	etc.BootID = j.BootID // the boot in which the update was decided
	return e.restartBoot(ctx, etc)
}

// roll applies the journals that are not nil, and makes the result durable.
func (e *Engine) roll(journals ...*journal) error {
	for _, j := range journals {
		if j == nil {
			continue
		}
		if err := j.roll(); err != nil {
			return err
		}
		if err := j.check(); err != nil {
			return err
		}
		if err := j.sync(); err != nil {
			return err
		}
	}
	return nil
}

// Settle makes the proved deployment current. The deployment before stays bootable, and the way back to it stays open,
// until the next update.
func (e *Engine) Settle(r *Record) error {
	p := r.Pending
	if p.Road == RoadReboot {
		return e.settleReboot(r)
	}
	if p.From != p.Deployment && r.Committed == nil {
		// The machine's own first deployment has no configuration, but the host can go back to it.
		r.Committed = &Revision{Deployment: p.From, Since: e.Now().UTC()}
	}
	prev := r.Previous
	if prev != nil && prev.Deployment != "" && prev.Deployment != p.From && prev.Deployment != p.Deployment {
		r.Discard = append(r.Discard, prev.Deployment)
	}
	// After a cut from here on, the next boot is proved once more. The boot loader must not be able to refuse it.
	if err := fault("settle"); err != nil {
		return err
	}
	if err := e.uncount(p); err != nil {
		return err
	}
	if err := fault("uncounted"); err != nil {
		return err
	}
	return e.settle(r)
}

// GoBack gives the pending deployment up and boots the deployment before. The reason is written to the disk first, so
// that a cut at any point leads to the same end.
func (e *Engine) GoBack(ctx context.Context, r *Record, why string, quarantine bool) error {
	p := r.Pending
	if stays, err := e.strands(ctx, p); err != nil || stays {
		if err == nil {
			err = e.unhealthy(r, why)
		}
		return err
	}
	p.Phase, p.Reason, p.Quarantine = PhaseUndo, why, quarantine
	if p.filesBoot() {
		p.BootID, p.Attempts = e.BootID, 0 // from here on the boots of the way back are counted
	}
	e.setState(r, Working, "going back: "+why)
	e.Say("go back", why)
	if err := errors.Join(fault("give up"), e.store().save(r), fault("given up")); err != nil {
		return err
	}
	if p.filesBoot() {
		return e.takeBackHere(ctx, r)
	}
	if !p.deploys() {
		j, err := e.pendingJournal(p)
		if err != nil {
			return err
		}
		if j == nil {
			return e.journalLost(r)
		}
		j.Actions = nil // all services have started since the change, and start again
		if err := e.undoHere(ctx, r, j, errors.New(why)); r.Pending != nil {
			return err
		}
		return e.Services.Reboot(ctx)
	}
	if gone, err := e.gone(ctx, p.From); err != nil {
		return err
	} else if gone {
		return e.stranded(r, why)
	}
	if err := e.leave(ctx, p); err != nil {
		if ostree.ClassOf(err) == ostree.Retryable {
			return err
		}
		return errors.Join(err,
			e.fail(r, Degraded, fmt.Sprintf("%s; and %s can't be made the default: %v", why, p.From, err)))
	}
	if err := fault("default is the old one"); err != nil {
		return err
	}
	if e.Services == nil {
		return nil
	}
	return e.Services.Reboot(ctx)
}

// ErrStranded is the error of going back to a deployment that has been removed.
var ErrStranded = errors.New("the deployment to go back to is gone")

// stranded keeps the host where it is, unproved. The next update starts from there.
func (e *Engine) stranded(r *Record, why string) error {
	p := r.Pending
	if err := e.uncount(p); err != nil {
		return err
	}
	rev := p.Revision
	rev.Unproved = true
	e.commitRevision(r, rev)
	if p.Quarantine {
		r.quarantine(rev, why, e.Now())
	}
	e.setState(r, Degraded, fmt.Sprintf("%s; and %v: %s. The host stays on %s", why, ErrStranded, p.From, p.Config))
	return errors.Join(ErrStranded, e.store().save(r))
}

// Judge applies the verdict to a committed revision that has none. A no quarantines the revision: the host has no
// deployment to go back to.
func (e *Engine) Judge(r *Record, verdict error) error {
	c := r.Committed
	if verdict != nil {
		r.quarantine(*c, verdict.Error(), e.Now())
		e.setState(r, Degraded, fmt.Sprintf("the host stays on %s, which did not prove healthy: %v", c.Config, verdict))
		return e.store().save(r)
	}
	c.Unproved = false
	e.setState(r, Done, "")
	return e.store().save(r)
}

func (e *Engine) gone(ctx context.Context, id string) (bool, error) {
	ds, err := e.Deployments.Status(ctx)
	if err != nil {
		return false, fmt.Errorf("reading deployments: %w", err)
	}
	return !slices.ContainsFunc(ds, func(d ostree.Deployment) bool { return d.ID == id }), nil
}

// Disown forgets a pending update whose deployments are not the booted one, because another configuration is asked for.
// It undoes the effects of the journal. The next update starts from the host as it is then.
func (e *Engine) Disown(ctx context.Context, r *Record) error {
	const why = "something else changed the OS before the verdict"
	if r.Pending.Road == RoadReboot {
		if err := e.stay(ctx, r.Pending); err != nil {
			return err
		}
		return e.WithdrawReboot(ctx, r, why)
	}
	e.noReboot(ctx, r)
	j, err := e.pendingJournal(r.Pending)
	if err != nil {
		return err
	}
	if err := e.stay(ctx, r.Pending); err != nil {
		return err
	}
	if j != nil {
		undo := j.drop
		if p := r.Pending.Phase; p != PhasePrepare && p != PhaseBoot {
			undo = func() error { return errors.Join(j.undo(), j.sync()) }
		}
		if err := undo(); err != nil {
			return err
		}
	}
	if d := r.Pending.Deployment; d != "" && r.Pending.deploys() {
		r.Discard = append(r.Discard, d)
	}
	r.Rebooted.failed(why)
	r.Pending = nil
	return e.store().save(r)
}

// returned finishes a return to the deployment before the pending one.
func (e *Engine) returned(ctx context.Context, r *Record, d Decision) error {
	p := r.Pending
	if p.Phase != PhaseUndo {
		// The default and the boot loader's counter are about to change. Both distinguish this boot from one that no agent
		// watches.
		p.Phase, p.Reason, p.Quarantine = PhaseUndo, d.Why, d.Quarantine
		e.setState(r, Working, "going back: "+d.Why)
		if err := errors.Join(fault("return"), e.store().save(r), fault("returning")); err != nil {
			return err
		}
	}
	j, err := e.pendingJournal(p)
	if err != nil {
		return err
	}
	if j != nil {
		if err := errors.Join(j.undo(), j.sync()); err != nil {
			return errors.Join(err, e.fail(r, Degraded, fmt.Sprintf("%s; and going back is not complete: %v", d.Why, err)))
		}
	}
	if err := e.recounted(e.counts(p), func() error { return e.defaultIs(ctx, p.From) }); err != nil {
		return err
	}
	if p.Road == RoadReboot {
		return e.tookBack(r, d.Why)
	}
	if d.Quarantine {
		r.quarantine(p.Revision, d.Why, e.Now())
	}
	r.Discard = append(r.Discard, p.Deployment)
	r.Pending = nil
	e.setState(r, RolledBack, d.Why)
	if err := errors.Join(fault("returned"), e.store().save(r), fault("rolled back")); err != nil {
		return err
	}
	if p.EtcTransaction != "" { // its other files are removed with the deployment that was left
		if err := e.Root.RemoveAll(journalDir(p.EtcTransaction)); err != nil {
			return err
		}
	}
	if j == nil {
		return nil
	}
	return errors.Join(j.forget(), e.restartBoot(ctx, j))
}

// wentBack follows a person who booted the previous deployment after the update had been proved.
func (e *Engine) wentBack(ctx context.Context, r *Record, d Decision) error {
	c := r.Committed
	state := RolledBack
	j, err := e.journal(c.Transaction)
	if err != nil {
		return err
	}
	if j == nil {
		// Only the step to the committed deployment can be undone, and only once.
		state = Degraded
		d.Why += "; files outside the deployments could not be restored: apply " +
			cmp.Or(r.Previous.Config, "a configuration") + " to repair them"
	} else if err := errors.Join(j.undo(), j.sync()); err != nil {
		return err
	}
	if err := e.recounted(e.Counter != nil, func() error { return e.defaultIs(ctx, r.Previous.Deployment) }); err != nil {
		return err
	}
	r.Committed, r.Previous = r.Previous, c
	r.Committed.Transaction, r.Returning = "", ""
	if r.Committed.Digest == "" {
		r.Committed.Config = ""
	}
	e.setState(r, state, d.Why)
	if err := e.store().save(r); err != nil {
		return err
	}
	if j == nil {
		return nil
	}
	return errors.Join(j.forget(), e.restartBoot(ctx, j))
}

// defaultIs makes sure that the deployment id is the boot loader's default.
func (e *Engine) defaultIs(ctx context.Context, id string) error {
	ds, err := e.Deployments.Status(ctx)
	if err != nil {
		return fmt.Errorf("reading deployments: %w", err)
	}
	i := slices.IndexFunc(ds, func(d ostree.Deployment) bool { return d.ID == id })
	if i < 0 || ds[i].Default {
		return nil
	}
	if err := errors.Join(fault("default"), e.Deployments.SetDefault(ctx, id)); err != nil {
		return fmt.Errorf("making %s the default: %w", id, err)
	}
	return nil
}

// Withdraw undoes a committed update that has not booted yet.
func (e *Engine) Withdraw(ctx context.Context, r *Record, why string) error {
	if r.Pending.Road == RoadSwitch {
		if err := e.leave(ctx, r.Pending); err != nil {
			return err
		}
	}
	return e.recoverAbort(ctx, r, Decision{Do: Abort, Why: why}) // a staged deployment was not the default yet
}

// Lift takes content out of quarantine.
func (e *Engine) Lift(r *Record, digest string) error {
	r.Quarantined = slices.DeleteFunc(r.Quarantined, func(q Quarantined) bool { return q.Digest == digest })
	return e.store().save(r)
}

// Progress is the part of a running transaction that status shows.
type Progress struct {
	ID    string `json:"id"`
	Road  Road   `json:"road"`
	Phase Phase  `json:"phase"`
	// Done is how many of Steps are applied. On the switch only paths that no deployment carries count.
	Done  int `json:"done"`
	Steps int `json:"steps"`
	// SoftReboot means that a restart of the userspace boots the update, or has booted it.
	SoftReboot bool `json:"softReboot,omitempty"`
}

// Progress returns how far the pending transaction is, nil where no transaction is pending.
func (s *Store) Progress(r *Record) (*Progress, error) {
	p := r.Pending
	if p == nil {
		return nil, nil
	}
	out := &Progress{ID: p.Transaction, Road: p.Road, Phase: p.Phase, SoftReboot: p.SoftReboot != ""}
	j, err := readJournal(s.root, p.Transaction)
	if err != nil || j == nil {
		return out, err
	}
	etc, err := readJournal(s.root, p.EtcTransaction)
	if err != nil {
		return out, err
	}
	for _, j := range []*journal{j, etc} {
		if j == nil {
			continue
		}
		out.Steps += len(j.Steps)
		for i := range j.Steps {
			waiting, err := j.staged(&j.Steps[i])
			if err != nil {
				return out, err
			}
			if !waiting && p.Phase != PhasePrepare && p.Phase != PhaseBoot {
				out.Done++
			}
		}
	}
	return out, nil
}
