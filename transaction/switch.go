// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/ostree"
)

// Switch is an update that boots.
type Switch struct {
	Update
	// Request is the deployment to make.
	Request ostree.Request
	// Booted is the deployment that the host runs and goes back to.
	Booted string
	// Etc returns what the new deployment's tree must hold, given that tree. The paths are those of the host.
	Etc func(tree *files.Root) ([]files.Want, error)
	// Note, where set, notes in the new deployment's boot entry whose its kernel arguments are.
	Note func(ctx context.Context, d ostree.Deployment) error
	// Open opens a deployment's tree for writing.
	Open func(d ostree.Deployment) (*files.Root, error)
}

// mergeTries is how many times at most the new /etc is made, where the running /etc is written to meanwhile.
const mergeTries = 3

func (p *Pending) waiting() string {
	if p.SoftReboot != "" {
		return "waiting for the soft reboot"
	}
	return "waiting for the reboot"
}

// BootBy records how the committed deployment is going to be booted, before that boot is started.
func (e *Engine) BootBy(r *Record, how SoftReboot) error {
	e.bootBy(r, how)
	return e.store().save(r)
}

func (e *Engine) bootBy(r *Record, how SoftReboot) {
	r.Pending.SoftReboot = how
	if o := r.Rebooted; o != nil && o.Ended.IsZero() {
		o.Soft = how == SoftStarted
	}
	if r.Pending.Road != RoadReboot { // whose state names the order
		e.setState(r, Working, r.Pending.waiting())
	}
}

// materialise makes the deployment and writes the configuration into its /etc. It does so again where the running /etc
// changed meanwhile.
func (e *Engine) materialise(ctx context.Context, p *Pending, j *journal, s Switch) (ostree.Deployment, error) {
	for try := 1; ; try++ {
		stamps, err := e.stamps()
		if err != nil {
			return ostree.Deployment{}, err
		}
		e.Say("materialise", s.Revision.Config)
		if err := fault("materialise"); err != nil {
			return ostree.Deployment{}, err
		}
		d, err := e.Deployments.Materialise(ctx, s.Request)
		if err != nil {
			return d, fmt.Errorf("materialising the deployment: %w", err)
		}
		if err := fault("deployed"); err != nil {
			return d, err
		}
		if s.Note != nil {
			if err := errors.Join(s.Note(ctx, d), fault("noted")); err != nil {
				return d, err
			}
		}
		made, err := e.writeEtc(d, j.ID, s)
		if err != nil {
			return d, err
		}
		p.Made = addTo(addTo(s.Revision.Made, implied(j.Steps)), made)
		p.Etc = digestOf(stamps)
		moved, err := e.moved(stamps)
		if err != nil || moved == "" {
			return d, err
		}
		if try == mergeTries {
			if dir := e.Root.Exposed(moved); dir != "" {
				e.left(Left{moved, fmt.Errorf("merging %s: it keeps changing, below %s that users other than root can write to",
					moved, dir)})
				return d, nil
			}
			return d, fmt.Errorf("merging /etc: the running system keeps changing, last %s", moved)
		}
		e.Say("materialise", "again: "+moved+" changed meanwhile")
		if err := e.Deployments.Discard(ctx, d.ID); err != nil {
			return d, err
		}
	}
}

// EtcMoved reports whether the running /etc was written to since the pending deployment's /etc was merged from it.
func (e *Engine) EtcMoved(p *Pending) (bool, error) {
	if p.Road != RoadSwitch {
		return false, nil // ostree merges /etc at the shutdown
	}
	stamps, err := e.stamps()
	return err == nil && digestOf(stamps) != p.Etc, err
}

// stamps returns what tells whether the running /etc was written to: nothing, where no deployment is merged from it.
func (e *Engine) stamps() (map[string]string, error) {
	if e.BootEtc != nil {
		return nil, nil
	}
	return e.Root.Stamps("/etc")
}

func digestOf(stamps map[string]string) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(stamps)) {
		_, _ = fmt.Fprintf(h, "%q %q\n", name, stamps[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// moved returns a path of the running /etc that has changed, "" where no path has. A path that only root can change is
// preferred.
func (e *Engine) moved(before map[string]string) (string, error) {
	after, err := e.stamps()
	if err != nil {
		return "", err
	}
	found := ""
	for _, p := range slices.Sorted(maps.Keys(merged(before, after))) {
		if before[p] == after[p] {
			continue
		}
		if e.Root.Exposed(p) == "" {
			return p, nil
		}
		found = cmp.Or(found, p)
	}
	return found, nil
}

func merged(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// writeEtc writes the configuration's wants into the new deployment, which is not in use yet: no pre-images, one
// syncfs. It returns the directories that it made only as parents.
func (e *Engine) writeEtc(d ostree.Deployment, id string, s Switch) ([]string, error) {
	tree, err := s.Open(d)
	if err != nil {
		return nil, fmt.Errorf("opening deployment %s: %w", d.ID, err)
	}
	defer func() { _ = tree.Close() }()
	wants, err := s.Etc(tree)
	if err != nil {
		return nil, err
	}
	steps, left, err := makeSteps(tree, id, e.Labels, wants)
	if err != nil {
		return nil, err
	}
	e.left(left...)
	if err := checkSpace(tree, steps, "", 0); err != nil {
		return nil, err
	}
	if e.BootEtc != nil {
		return implied(steps), nil // the boot writes them, in its own /etc
	}
	j := &journal{ID: id, Steps: steps, root: tree, left: e.left}
	if err := j.writeEtc(); err != nil {
		return nil, err
	}
	return implied(steps), errors.Join(tree.SyncFS("/etc"), fault("etc written"))
}

// writeEtc does the steps in an /etc that nothing needs back as it was: no pre-images.
func (j *journal) writeEtc() error {
	for i := range j.Steps {
		st := &j.Steps[i]
		if err := fault("etc " + st.Path); err != nil {
			return err
		}
		st.Keep = ""
		if err := j.exposed(st, j.writeStep(st)); err != nil {
			return fmt.Errorf("writing %s: %w", st.Path, err)
		}
	}
	return j.check()
}

// writeStep does a step in the /etc of a deployment that is not running, or in a transient one.
func (j *journal) writeStep(st *step) error {
	// All other files there are hard links into the repository, shared with other deployments.
	if at, err := j.root.Resolve(st.Path); err != nil || !strings.HasPrefix(at, "/etc/") {
		return errors.Join(err, fmt.Errorf("%s is not in the deployment's own /etc", st.subject()))
	}
	if st.Op == opPut {
		n := st.After
		n.Data = st.data
		if err := j.root.Stage(st.Dir, st.Stage, n); err != nil {
			return err
		}
	}
	return j.rollStep(st)
}

// abort undoes the work of Switch so far. The old deployment is still the default, or becomes the default again.
func (e *Engine) abort(ctx context.Context, r *Record, j *journal, why error) error {
	return e.revoke(ctx, r, j, why, func() { e.setState(r, Degraded, why.Error()) })
}

// revoke does the work of abort, with say to set the state in the record.
func (e *Engine) revoke(ctx context.Context, r *Record, j *journal, why error, say func()) error {
	ctx = context.WithoutCancel(ctx)
	e.Say("abort", why.Error())
	e.noReboot(ctx, r)
	if err := e.unload(ctx, j); err != nil {
		return errors.Join(why, e.stuck(ctx, r, why.Error(), err))
	}
	if j != nil {
		why = e.abandon(j, why)
	}
	if err := e.unmake(ctx, r.Pending); err != nil {
		return errors.Join(why, e.stuck(ctx, r, why.Error(), err))
	}
	r.Pending = nil
	say()
	return errors.Join(why, e.store().save(r))
}

// unmake removes the deployments that the pending update made, and no others.
func (e *Engine) unmake(ctx context.Context, p *Pending) error {
	if e.Deployments == nil {
		return nil
	}
	now, err := e.Deployments.Status(ctx)
	if err != nil {
		return fmt.Errorf("reading deployments: %w", err)
	}
	ours := func(d ostree.Deployment) bool {
		return !d.Booted && (d.ID == p.Deployment || p.Deployment == "" && d.Checksum == p.Checksum && !d.Default &&
			!d.Staged && slices.Equal(d.KernelArguments, p.KernelArguments) && !slices.Contains(p.Existing, d.ID))
	}
	if slices.ContainsFunc(now, func(d ostree.Deployment) bool { return ours(d) && d.Default }) {
		err = e.leave(ctx, p)
	} else {
		err = e.uncount(p)
	}
	if err != nil {
		return err
	}
	for _, d := range now {
		if !ours(d) {
			continue
		}
		if err := errors.Join(fault("discard"), e.Deployments.Discard(ctx, d.ID)); err != nil {
			return fmt.Errorf("discarding deployment %s: %w", d.ID, err)
		}
	}
	return nil
}

// pendingJournal returns the journal of the pending update, nil where it has none.
func (e *Engine) pendingJournal(p *Pending) (*journal, error) {
	return e.journal(p.Transaction)
}
