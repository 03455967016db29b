// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/ostree"
)

// Staged is an update that boots on a host whose deployments can't be switched, or that has none.
type Staged struct {
	Update
	// Road is RoadStaged or RoadInPlace.
	Road Road
	// Booted is the deployment that the host runs and goes back to.
	Booted string
	// Stage makes the deployment, locked: it does not boot. Stage is nil where only files change. Then the record decides,
	// and the next boot of the same deployment applies the files.
	Stage func(ctx context.Context) (ostree.Deployment, error)
	// Release unlocks the staged deployment: it boots after the next orderly shutdown.
	Release func(ctx context.Context, id string) error
	// Reclaim are deployments that are removed before: the new kernel needs the room of theirs, or they would boot
	// instead.
	Reclaim []string
}

// etcJournal returns the journal of the changes to the booted /etc, nil on roads that have none. The first call makes
// the journal. Only now the tree exists that the journal is for, with all writes to the old /etc before the reboot.
func (e *Engine) etcJournal(ctx context.Context, r *Record) (*journal, error) {
	p := r.Pending
	if p.Road != RoadStaged {
		return nil, nil
	}
	if p.EtcTransaction != "" {
		j, err := e.journal(p.EtcTransaction)
		if err == nil && j == nil {
			err = errJournalLost
		}
		return j, err
	}
	if err := e.sweep(r); err != nil { // a journal that was interrupted before it was complete
		return nil, err
	}
	wants, drifted, err := e.Etc(ctx, r)
	if err != nil {
		return nil, err
	}
	id := newID(e.Now())
	j, err := e.stageJournal(Update{Revision: p.Revision, Wants: wants, Drifted: drifted}, RoadStaged, id)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(j.sync(), fault("etc staged")); err != nil {
		return nil, e.abandon(j, err)
	}
	p.EtcTransaction, p.Made = id, addTo(p.Made, implied(j.Steps))
	if err := errors.Join(e.store().save(r), fault("etc recorded")); err != nil {
		p.EtcTransaction = ""
		return nil, e.abandon(j, err)
	}
	return j, nil
}

// reread records that the boot under way has already read files that the journals are about to change. Then this boot
// is not to be proved, and the next boot costs no attempt. Only one boot is free, so that a host that never gets
// through this runs out of attempts all the same.
func (e *Engine) reread(r *Record, journals ...*journal) error {
	p := r.Pending
	if p.Road != RoadStaged && p.Road != RoadInPlace || p.Reread == e.BootID {
		return nil
	}
	why, err := e.early(journals, func(j *journal, st *step) (bool, error) {
		done, err := j.done(st)
		return !done, err
	})
	if err == nil && why == "" {
		why, _, err = e.unbooted(p, journals[0], false)
	}
	if err != nil || why == "" {
		return err
	}
	e.Say("recover", "one more boot: "+why)
	if p.Reread == "" {
		p.Attempts--
	}
	p.Reread = e.BootID
	return errors.Join(e.store().save(r), fault("reread"))
}

// early returns why the host must boot again after those steps that are selected, "" where it need not.
func (e *Engine) early(journals []*journal, selected func(*journal, *step) (bool, error)) (string, error) {
	for _, j := range journals {
		if j == nil {
			continue
		}
		for i := range j.Steps {
			st := &j.Steps[i]
			if st.Op == opMkdir || st.Op == opRmdir || st.LeftOut {
				continue // no program reads a directory for its own sake
			}
			at, err := e.Root.Resolve(st.Path)
			if err != nil {
				continue // another step makes room for the path, so no program has read it yet
			}
			why := rereads(at, st.After, func(unit string) string { return e.unitText(j, st, unit) })
			if why == "" {
				continue
			}
			if yes, err := selected(j, st); err != nil {
				return "", err
			} else if yes {
				return at + " is " + why, nil
			}
		}
	}
	return "", nil
}

// unitText returns all text of a unit: before and after the step, and from the OS.
func (e *Engine) unitText(j *journal, st *step, unit string) string {
	var text []byte
	at := []string{st.Path, "/etc/systemd/system/" + unit, "/usr/lib/systemd/system/" + unit}
	if st.Stage != "" {
		at = append(at, st.Dir+"/"+st.Stage)
	}
	if dir, name, err := j.kept(st); err == nil && name != "" {
		at = append(at, dir+"/"+name)
	}
	for _, name := range at {
		if n, err := e.Root.Inspect(name); err == nil && n.Type == files.Regular {
			if data, err := e.Root.Contents(name); err == nil {
				text = append(append(text, data...), '\n')
			}
		}
	}
	return string(text)
}

// takeBackHere undoes, on the deployment itself, the changes that were applied to it, and reboots, because all services
// have started with them. The record keeps PhaseUndo until that boot has come.
func (e *Engine) takeBackHere(ctx context.Context, r *Record) error {
	journals, err := e.journalsHere(r.Pending)
	if err == nil {
		err = e.undoAll(ctx, journals)
	}
	if err != nil {
		why := fmt.Sprintf("%s; and going back is not complete: %v", r.Pending.Reason, err)
		return errors.Join(err, e.fail(r, Degraded, why))
	}
	if e.Services == nil {
		return nil
	}
	return errors.Join(fault("taken back"), e.Services.Reboot(context.WithoutCancel(ctx)))
}

// journalsHere returns the journals of an update without a deployment, the last one first. A journal that was never
// complete, or has been undone, is not in the list.
func (e *Engine) journalsHere(p *Pending) ([]*journal, error) {
	var out []*journal
	for _, id := range []string{p.EtcTransaction, p.Transaction} {
		j, err := e.journal(id)
		if err != nil {
			return nil, err
		}
		if j != nil {
			out = append(out, j)
		}
	}
	return out, nil
}

// undoAll undoes journals, and then brings the boot loader's files back: the last write before a reboot.
func (e *Engine) undoAll(ctx context.Context, journals []*journal) error {
	for _, j := range journals {
		if err := errors.Join(j.undo(), j.sync()); err != nil {
			return err
		}
	}
	for _, j := range journals {
		if err := e.load(context.WithoutCancel(ctx), j, true); err != nil {
			return err
		}
	}
	return nil
}

// returnedHere finishes, in a later boot, the way back of an update without a deployment. Where that boot has already
// read a part of the update, one more boot follows.
func (e *Engine) returnedHere(ctx context.Context, r *Record, d Decision) (rebooting bool, err error) {
	p := r.Pending
	journals, err := e.journalsHere(p)
	if err != nil {
		return false, err
	}
	again, err := e.early(journals, func(j *journal, st *step) (bool, error) {
		left, err := j.undone(st)
		return !left, err
	})
	if err != nil {
		return false, err
	}
	state := RolledBack
	for _, j := range journals {
		why, refused, err := e.unbooted(p, j, true)
		if err != nil {
			return false, err
		}
		again = cmp.Or(again, why)
		if refused {
			state, d.Why = Degraded, d.Why+"; and the boot loader still boots with the kernel arguments of "+p.Config
		}
	}
	if again != "" {
		// Even where the undoing fails, the next boot counts as the one after this.
		p.BootID, p.Attempts = e.BootID, p.Attempts+1
		if err := e.store().save(r); err != nil {
			return false, err
		}
		return true, e.takeBackHere(ctx, r)
	}
	// A cut may have left files that this boot has not read, such as those of other kernels.
	if err := e.undoAll(ctx, journals); err != nil {
		return false, errors.Join(err, e.fail(r, Degraded, fmt.Sprintf("%s; and going back is not complete: %v", d.Why, err)))
	}
	if d.Quarantine {
		r.quarantine(p.Revision, d.Why, e.Now())
	}
	r.Pending = nil
	e.setState(r, state, d.Why)
	if err := errors.Join(fault("returned"), e.store().save(r), fault("rolled back")); err != nil {
		return false, err
	}
	for _, j := range journals {
		if err := errors.Join(j.forget(), e.restartBoot(ctx, j)); err != nil {
			return false, err
		}
	}
	return false, nil
}

// done reports whether a step shows on the disk.
func (j *journal) done(st *step) (bool, error) {
	switch st.Op {
	case opPut:
		waiting, err := j.staged(st)
		return !waiting, err
	case opHard:
		return j.made(st, files.Node{})
	}
	n, err := j.root.Inspect(st.Path)
	switch st.Op {
	case opMeta:
		return sameMeta(n, st.After), err
	case opMkdir:
		return n.Type == files.Directory, err
	}
	return n.Type != st.Before.Type, err
}

// undone reports whether nothing of a step shows on the disk any more. A node that another program has put in its place
// since does not belong to the step: undoing leaves that node alone.
func (j *journal) undone(st *step) (bool, error) {
	if waiting, err := j.staged(st); err != nil || waiting && st.Op == opPut {
		return true, err
	}
	if st.Keep != "" { // the pre-image is removed by the undoing
		_, name, err := j.kept(st)
		return name == "", err
	}
	n, err := j.root.Inspect(st.Path)
	if err != nil {
		return false, err
	}
	if st.Op == opMeta {
		return n.Type != st.Before.Type || sameMeta(n, st.Before), nil
	}
	if n.Type == st.Before.Type {
		return true, nil
	}
	ours, err := j.made(st, n)
	return !ours, err
}

// needs reports whether the record still needs the transaction.
func (r *Record) needs(id string) bool {
	ids := []string{}
	if r.Committed != nil {
		ids = append(ids, r.Committed.Transaction) // the way back from the committed deployment
	}
	if p := r.Pending; p != nil {
		ids = append(ids, p.Transaction, p.EtcTransaction)
	}
	return slices.Contains(ids, id)
}
