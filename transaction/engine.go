// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/plan"
)

// Deployments are the operations on the OS that the switch needs.
type Deployments interface {
	Status(ctx context.Context) ([]ostree.Deployment, error)
	Materialise(ctx context.Context, r ostree.Request) (ostree.Deployment, error)
	SetDefault(ctx context.Context, id string) error
	Discard(ctx context.Context, id string) error
}

// BootCounter is the boot loader's counter of the boots of a deployment that is not proved. After too many boots the
// boot loader boots the entry after the default instead.
type BootCounter interface {
	// Limit returns the number of boots that are allowed.
	Limit() int
	// Set starts counting with the next boot, with boots left. It returns false where the boot loader can't count.
	Set(boots int) (bool, error)
	// Left returns the number of boots left, -1 once the boot loader has booted the other entry. The bool is false where
	// no boots are counted now.
	Left() (int, bool, error)
	// Clear ends the counting.
	Clear() error
}

// Services are the operations on the running system that a transaction needs.
type Services interface {
	// Reload makes systemd read its units again.
	Reload(ctx context.Context) error
	// Act carries out a Reload or Restart, and waits for its result. With gone the unit has no unit file any more, or is
	// masked; Act stops it.
	Act(ctx context.Context, a plan.Action, gone bool) error
	// Start queues the start of a unit.
	Start(ctx context.Context, unit string) error
	// Stop stops a unit, also one that waits for its start.
	Stop(ctx context.Context, unit string) error
	Reboot(ctx context.Context) error
}

// The agent's units that are installed on the host beside the binary.
const (
	RecoverUnit = plan.RecoverUnit
	ProveUnit   = plan.ProveUnit
)

// Engine carries out transactions on one host.
type Engine struct {
	Root        *files.Root
	Labels      *files.Labels
	Deployments Deployments // nil on a host without ostree
	Counter     BootCounter // nil where the boot loader has no counter, as on a host without ostree
	BootLoader  BootLoader  // nil where the boot loader is not known, and on a host with ostree
	Services    Services    // nil where root is not the root of the running system
	BootID      string      // see the function BootID
	Now         func() time.Time
	// Etc returns what the pending configuration wants in the /etc that has booted, and those paths of the wants that
	// another program changed. It is called on the first boot of the staged road.
	Etc func(ctx context.Context, r *Record) (wants []files.Want, drifted []string, err error)
	// BootEtc, where the running /etc is transient, returns what a revision wants in the /etc of a boot that began with
	// the image's, the agent's own units among it. It is nil where each deployment keeps an /etc of its own.
	BootEtc func(rev *Revision) ([]files.Want, error)
	// Unfinished returns why ostree could not make the staged deployment bootable at the last shutdown, "" where ostree
	// could.
	Unfinished func(ctx context.Context) (string, error)
	// Unheld returns why the deadline of a pending update was not held by anything, "" where the deadline was held.
	Unheld func(ctx context.Context) string
	// Prove asks for the verdict on a change without a boot. An error undoes the whole change.
	Prove func(ctx context.Context, p *Pending) error
	// Reread has others see what was written below extensions of /etc. It is nil where nothing is merged there.
	Reread func(ctx context.Context) error
	// UnloadKernel has the kernel forgotten that was loaded for a kexec. It is nil where Services is.
	UnloadKernel func(ctx context.Context) error
	// Uptime returns the time since the kernel's boot: a soft reboot does not set it back.
	Uptime func() time.Duration
	// Say tells people and the log what is being done. It may be called often.
	Say func(phase, what string)
	// Left, where set, is called for each path that stays unchanged because of other users than root. They can write there
	// and have put something in the way. Left may be called more than once for a path.
	Left func(Left)
}

// Left is a path that stays unchanged, and the reason.
type Left struct {
	Path string
	Err  error // names the path
}

// Update is the change that an engine carries out.
type Update struct {
	Revision Revision
	// Document is the configuration in the form that is kept on the host.
	Document []byte
	// Wants are paths on the host itself: all paths on the live and tree roads; on the switch those that no deployment
	// carries.
	Wants []files.Want
	// Actions follow the renames on the live road.
	Actions []plan.Action
	// Drifted paths are copied aside before they are overwritten.
	Drifted []string
	// Loader is the change of the boot loader's files, on a host without ostree; nil: none.
	Loader []byte
	// Verdict, on the live road, asks Engine.Prove after the actions. Services are the states before them of the services
	// that the actions touch.
	Verdict  bool
	Services map[string]string
	// Baseline and Timeout are for the verdict.
	Baseline Baseline
	Timeout  time.Duration
	// SoftReboot, of a Switch, means that a restart of the userspace is enough to boot the update.
	SoftReboot bool
	// Permit, where set, is asked right before the decision. Its error becomes the update's error, and the update leaves
	// nothing behind.
	Permit func() error
	// Decide, of a Mend, records that the host is to have these wants from now on. made are the directories that are
	// created only as parents of the wants. It is called once everything is staged and durable, before the first effect.
	Decide func(made []string) error
}

func (u Update) permit() error {
	if u.Permit == nil {
		return nil
	}
	return u.Permit()
}

// maxAttempts is how many times a deployment may boot without proving healthy.
const maxAttempts = 3

// BadConfig is the error of a configuration that was applied, did not prove healthy, and was rolled back.
type BadConfig struct {
	Config string
	Err    error
}

func (e *BadConfig) Error() string {
	return fmt.Sprintf("%s was rolled back and quarantined: %v", e.Config, e.Err)
}

func (e *BadConfig) Unwrap() error { return e.Err }

func (e *Engine) store() *Store { return NewStore(e.Root) }

func (e *Engine) left(paths ...Left) {
	for _, l := range paths {
		if e.Left != nil {
			e.Left(l)
		}
	}
}

// journal returns the journal with the given id, nil where the host has no such journal.
func (e *Engine) journal(id string) (*journal, error) {
	j, err := readJournal(e.Root, id)
	if j != nil {
		j.left, j.loader = e.left, e.BootLoader
		e.outlived(j)
	}
	return j, err
}

// Fail records why the host is not where it should be. The time stays that of the first report of the same reason.
func (e *Engine) Fail(r *Record, state State, err error) {
	if saveErr := e.fail(r, state, err.Error()); saveErr != nil {
		e.Say("record", saveErr.Error())
	}
}

func (e *Engine) fail(r *Record, state State, reason string) error {
	return e.note(r, state, reason, nil)
}

// note sets the state that people read. before is the state to show again once this state no longer holds.
func (e *Engine) note(r *Record, state State, reason string, before *Standing) error {
	if r.State == state && r.Reason == reason && (r.Before == nil) == (before == nil) {
		return nil
	}
	e.setState(r, state, reason)
	r.Before = before
	if err := e.Root.MkdirAll(StateDir, 0o700); err != nil {
		return err
	}
	return e.store().save(r)
}

// commitRevision makes rev the committed revision of the record.
func (e *Engine) commitRevision(r *Record, rev Revision) {
	now := e.Now().UTC().Truncate(time.Second)
	if r.Committed != nil && r.Committed.Digest != rev.Digest {
		r.Previous = r.Committed // after a mend the content is the same: not another configuration to go back to
	}
	rev.Since = now
	r.Committed, r.Pending = &rev, nil
	if r.Rebooted != nil {
		r.Rebooted.Baseline = nil // another verdict has judged the host since
	}
	e.setState(r, Done, "")
}

// keepDocument keeps the configuration under its digest; the caller syncs. A document that is already there means the
// same node. Under another name its bytes differ, and it is written again.
func (e *Engine) keepDocument(u Update) error {
	if err := e.Root.MkdirAll(configsDir, 0o700); err != nil {
		return fmt.Errorf("keeping configuration: %w", err)
	}
	name := u.Revision.Digest + ".json"
	want := files.Want{Path: path.Join(configsDir, name),
		Node: files.Node{Type: files.Regular, Mode: 0o600, Data: u.Document}}
	if d, err := e.Root.Compare(want); err == nil && len(d) == 0 {
		return nil
	}
	tmp := files.StagePrefix + name
	if err := e.Root.Remove(path.Join(configsDir, tmp)); err != nil {
		return err
	}
	if err := e.Root.Stage(configsDir, tmp, want.Node); err != nil {
		return fmt.Errorf("keeping configuration: %w", err)
	}
	return e.Root.Replace(configsDir, tmp, want.Path)
}

// stateSize returns the space in bytes that the agent's own state of a transaction takes. That is the document, the
// journal, two records, and the reserve that keeps room for the second record.
func stateSize(u Update, steps []step) uint64 {
	return uint64(len(u.Document) + 2*len(u.Loader) + 1024*len(steps) + 4*reserveSize)
}

// Check refuses an update whose wants are impossible on the host, or that the host has no room for. It writes nothing.
func (e *Engine) Check(u Update, wants []files.Want) error {
	steps, left, err := makeSteps(e.Root, "check", e.Labels, wants)
	if err != nil {
		return err
	}
	e.left(left...)
	return checkSpace(e.Root, steps, StateDir, stateSize(u, steps))
}

// Leaves returns the wants of exposed places that would stay undone, and why. The list is empty where the wants are
// impossible as a whole. It writes nothing.
func (e *Engine) Leaves(wants []files.Want) []Left {
	_, left, _ := makeSteps(e.Root, "check", e.Labels, wants)
	return left
}

// begin writes the journal and stages everything that has no effect yet.
func (e *Engine) begin(u Update, road Road, id string) (*journal, error) {
	j, err := e.stageJournal(u, road, id)
	if err != nil {
		return nil, err
	}
	if err := e.keepDocument(u); err != nil {
		return nil, e.abandon(j, err)
	}
	return j, nil
}

// stageJournal does the work of begin, except for the document.
func (e *Engine) stageJournal(u Update, road Road, id string) (*journal, error) {
	steps, left, err := makeSteps(e.Root, id, e.Labels, u.Wants)
	if err != nil {
		return nil, err
	}
	e.left(left...)
	if err := checkSpace(e.Root, steps, StateDir, stateSize(u, steps)); err != nil {
		return nil, err
	}
	j := &journal{ID: id, Config: u.Revision.Config, Digest: u.Revision.Digest, Road: road, BootID: e.BootID,
		Created: e.Now().UTC(), Actions: u.Actions, Steps: steps, Loader: u.Loader, root: e.Root, left: e.left,
		loader: e.BootLoader}
	if err := fault("begin"); err != nil {
		return nil, err
	}
	if err := j.write(); err != nil {
		return nil, e.abandon(j, err)
	}
	if err := e.keepDrifted(j, u.Drifted); err != nil {
		return nil, e.abandon(j, err)
	}
	if err := j.stage(); err != nil {
		return nil, e.abandon(j, err)
	}
	return j, nil
}

// abandon undoes a journal that was never decided, and returns the reason.
func (e *Engine) abandon(j *journal, why error) error {
	if err := j.drop(); err != nil {
		return errors.Join(why, fmt.Errorf("cleaning up: %w", err))
	}
	return why
}

// keepDrifted keeps copies of the drifted paths that this transaction replaces, where an admin finds them again. A node
// that stays, unchanged or with another mode, is not kept: its copy may be one more name of the same inode.
func (e *Engine) keepDrifted(j *journal, paths []string) error {
	replaced := map[string]bool{}
	for i := range j.Steps {
		if j.Steps[i].Keep == "" {
			continue
		}
		at, err := e.Root.Resolve(j.Steps[i].Path)
		if err != nil {
			return err
		}
		replaced[at] = true
	}
	for _, p := range paths {
		at, err := e.Root.Resolve(p)
		if err != nil {
			return err
		}
		if !replaced[at] {
			continue
		}
		exposed := e.Root.Exposed(p)
		if err := e.keepDriftedPath(j.ID, p, exposed); err != nil {
			err = fmt.Errorf("keeping drifted %s: %w", p, err)
			if !errors.Is(err, unix.EIO) && (exposed == "" || !obstructed(err)) {
				return err // a file that the disk can't read any more is no obstacle
			}
			e.left(Left{Path: p, Err: err})
		}
	}
	return nil
}

func (e *Engine) keepDriftedPath(id, p, exposed string) error {
	n, err := e.Root.Inspect(p)
	if err != nil || n.Type != files.Regular && n.Type != files.Symlink {
		return err
	}
	kept := path.Join(driftDir, id, p)
	if err := e.Root.MkdirAll(path.Dir(kept), 0o700); err != nil {
		return err
	}
	return e.Root.Preserve(p, path.Dir(kept), path.Base(kept), copied(exposed))
}

// driftDir keeps, for the last few transactions, overwritten nodes that no configuration had put there.
const (
	driftDir  = StateDir + "/drift"
	keepDrift = 20
)

// Tidy removes what is no longer needed: journals, our deployments that failed or were superseded, old drift and old
// configurations. The way back from the committed deployment stays.
func (e *Engine) Tidy(ctx context.Context, r *Record) error {
	if err := e.sweep(r); err != nil {
		return err
	}
	if err := e.discard(ctx, r); err != nil {
		return err
	}
	if err := e.tidyDrift(); err != nil {
		return err
	}
	return e.tidyConfigs(r)
}

// discard removes our deployments that are no longer of use. A deployment that a person has booted or pinned since
// stays for as long as it is booted or pinned.
func (e *Engine) discard(ctx context.Context, r *Record) error {
	if e.Deployments == nil || len(r.Discard) == 0 {
		return nil
	}
	ds, err := e.Deployments.Status(ctx)
	if err != nil {
		return fmt.Errorf("reading deployments: %w", err)
	}
	var kept []string
	for _, id := range r.Discard {
		if slices.ContainsFunc(ds, func(d ostree.Deployment) bool { return d.ID == id && (d.Booted || d.Pinned) }) {
			kept = append(kept, id)
		} else if err := e.Deployments.Discard(ctx, id); err != nil {
			return fmt.Errorf("discarding deployment %s: %w", id, err)
		}
	}
	if len(kept) == len(r.Discard) {
		return nil
	}
	r.Discard = kept
	return e.store().save(r)
}

func (e *Engine) tidyConfigs(r *Record) error {
	var keep []string
	for _, rev := range []*Revision{r.Committed, r.Previous} {
		if rev != nil {
			keep = append(keep, rev.Digest+".json")
		}
	}
	names, err := e.Root.ReadDir(configsDir)
	if err != nil {
		return nil //nolint:nilerr // none was kept yet
	}
	for _, n := range names {
		if !slices.Contains(keep, n) {
			if err := e.Root.Remove(path.Join(configsDir, n)); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish rolls a decided journal forward, acts, and settles, or undoes all of it.
func (e *Engine) finish(ctx context.Context, r *Record, j *journal) error {
	ctx = context.WithoutCancel(ctx) // decided: a cancelled context must not stop the update halfway
	e.Say("apply", j.Config)
	err := j.roll()
	if err == nil {
		err = j.check()
	}
	if err == nil {
		err = j.sync()
	}
	if err != nil {
		return e.takeBack(ctx, r, j, err, false)
	}
	if err := e.act(ctx, j, false); err != nil {
		return e.takeBack(ctx, r, j, err, true)
	}
	if r.Pending.Verdict && e.Prove != nil {
		e.Say("prove", j.Config)
		if err := e.Prove(ctx, r.Pending); err != nil {
			return e.takeBack(ctx, r, j, afterActions(err, j.Actions), true)
		}
	}
	if err := fault("settle"); err != nil {
		return e.takeBack(ctx, r, j, err, false)
	}
	return e.settle(r)
}

// settle makes the pending revision the committed one, and closes ways back that are no longer needed. The way back of
// a change without a boot closes at once, that of a deployment with the next update.
func (e *Engine) settle(r *Record) error {
	p, before := r.Pending, r.Committed
	e.Say("settle", p.Config)
	rev := p.Revision
	if !p.deploys() {
		rev.Transaction = "" // where a cut leaves its journal behind, recovery removes the journal
	}
	e.commitRevision(r, rev)
	if err := errors.Join(e.store().save(r), fault("settled")); err != nil {
		return err
	}
	var closed []string
	if before != nil && before.Transaction != "" {
		closed = append(closed, before.Transaction)
	}
	if !p.deploys() {
		closed = append(closed, p.Transaction)
	}
	if p.EtcTransaction != "" {
		closed = append(closed, p.EtcTransaction) // the way back of these files is the deployment before, or none
	}
	for _, id := range closed {
		if err := e.forgetJournal(id); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) forgetJournal(id string) error {
	j, err := e.journal(id)
	if err != nil || j == nil {
		return errors.Join(err, e.Root.RemoveAll(journalDir(id)))
	}
	return j.forget()
}

// act carries out the journal's actions, after one reload of systemd where units changed. back means that the journal
// was undone.
func (e *Engine) act(ctx context.Context, j *journal, back bool) error {
	if e.Services == nil {
		return nil
	}
	if e.Reread != nil {
		if err := e.Reread(ctx); err != nil {
			return err
		}
	}
	reload := slices.ContainsFunc(j.Steps, func(s step) bool { return isUnitPath(s.Path) })
	for _, a := range j.Actions {
		reload = reload || a.Type == plan.ActionDaemonReload
	}
	if reload {
		e.Say("act", "daemon-reload")
		if err := errors.Join(fault("daemon-reload"), e.Services.Reload(ctx)); err != nil {
			return fmt.Errorf("reloading systemd: %w", err)
		}
	}
	for _, a := range j.Actions {
		if a.Type != plan.ActionReload && a.Type != plan.ActionRestart {
			continue
		}
		e.Say("act", string(a.Type)+" "+a.Service)
		gone := unitGoes(j.Steps, a.Service, back)
		if err := errors.Join(fault("act "+a.Service), e.Services.Act(ctx, a, gone)); err != nil {
			return because(err, a)
		}
	}
	return nil
}

func isUnitPath(p string) bool {
	ok, _ := path.Match("/etc/systemd/system/*", p)
	sub, _ := path.Match("/etc/systemd/system/*/*", p)
	return ok || sub
}

// takeBack undoes a decided journal on the running host: first the files, then the same actions on the old files.
func (e *Engine) takeBack(ctx context.Context, r *Record, j *journal, why error, bad bool) error {
	ctx = context.WithoutCancel(ctx)
	r.Pending.Phase, r.Pending.Reason, r.Pending.Quarantine = PhaseUndo, why.Error(), bad
	if err := e.store().save(r); err != nil {
		// The disk still records that the journal rolls forward. An undo now would use up the old nodes that a later recovery
		// needs.
		return errors.Join(why, fmt.Errorf("and it can't be taken back yet: %w", err))
	}
	return e.undoHere(ctx, r, j, why)
}

func (e *Engine) undoHere(ctx context.Context, r *Record, j *journal, why error) error {
	e.Say("undo", j.Config)
	if err := j.undo(); err != nil {
		return errors.Join(why, err, e.fail(r, Degraded, errors.Join(why, err).Error()))
	}
	if err := j.sync(); err != nil {
		return errors.Join(why, err)
	}
	if err := e.act(ctx, j, true); err != nil {
		why = errors.Join(why, fmt.Errorf("and after going back: %w", err))
	}
	state := Degraded
	if r.Pending.Quarantine {
		state = RolledBack
		r.quarantine(r.Pending.Revision, r.Pending.Reason, e.Now())
		why = &BadConfig{Config: r.Pending.Config, Err: why}
	}
	r.Pending = nil
	e.setState(r, state, why.Error())
	if err := e.store().save(r); err != nil {
		return errors.Join(why, err)
	}
	if err := j.forget(); err != nil {
		return errors.Join(why, err)
	}
	return why
}
