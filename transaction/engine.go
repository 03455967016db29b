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

// Deployments is what the switch needs of the OS.
type Deployments interface {
	Status(ctx context.Context) ([]ostree.Deployment, error)
	Materialise(ctx context.Context, r ostree.Request) (ostree.Deployment, error)
	SetDefault(ctx context.Context, id string) error
	Discard(ctx context.Context, id string) error
}

// BootCounter is the boot loader's own: it counts the boots of a deployment that is not proved, and when there were too
// many it boots the entry after the default one instead.
type BootCounter interface {
	// Limit is how many boots there may be.
	Limit() int
	// Set has the boots from the next one on counted, with that many left; false where the boot loader can't.
	Set(boots int) (bool, error)
	// Left is how many are left, -1 once it has booted the other entry; false where nothing is counted now.
	Left() (int, bool, error)
	// Clear has nothing counted any more.
	Clear() error
}

// Services is what a transaction needs of the running system.
type Services interface {
	// Reload makes systemd read its units again.
	Reload(ctx context.Context) error
	// Act carries out a Reload or Restart, and waits for its result. Where the unit itself is gone, there being no unit
	// file of its name any more or a mask, it is stopped.
	Act(ctx context.Context, a plan.Action, gone bool) error
	// Start queues the start of a unit.
	Start(ctx context.Context, unit string) error
	Reboot(ctx context.Context) error
}

// Units that are installed on the host beside the binary.
const (
	RecoverUnit = plan.RecoverUnit
	ProveUnit   = plan.ProveUnit
)

// Engine carries out transactions on one host.
type Engine struct {
	Root        *files.Root
	Labels      *files.Labels
	Deployments Deployments // nil on a host without ostree
	Counter     BootCounter // nil where there is none, as on a host without ostree
	Services    Services    // nil where the running system is not the root's
	BootID      string      // see the function of that name
	Now         func() time.Time
	// Etc says, on the first boot of the staged road, what the pending configuration means in the /etc that has booted:
	// wants, and those of their paths that another program changed.
	Etc func(ctx context.Context, r *Record) (wants []files.Want, drifted []string, err error)
	// Unfinished says why ostree could not make bootable what was staged at the last shutdown, "" if it could.
	Unfinished func(ctx context.Context) (string, error)
	// Unheld says why nothing has held the deadline of a pending update, "" where something did.
	Unheld func(ctx context.Context) string
	// Prove is the verdict on a change without a boot; an error takes everything back.
	Prove func(ctx context.Context, p *Pending) error
	// Uptime is the time since the kernel's boot: a soft reboot does not set it back.
	Uptime func() time.Duration
	// Say tells people and the log what is being done; it may be called often.
	Say func(phase, what string)
	// Left, where set, is told of each path that stays as it is because others than root, who can write there, are in the
	// way; more than once, perhaps.
	Left func(Left)
}

// Left is a path that stays as it is, and why.
type Left struct {
	Path string
	Err  error // names the path
}

// Update is what an engine is to make true.
type Update struct {
	Revision Revision
	// Document is the configuration as it is kept on the host.
	Document []byte
	// Wants are the paths on the host itself: all of them on the live and tree roads, on the switch those that no
	// deployment carries.
	Wants []files.Want
	// Actions follow the renames on the live road.
	Actions []plan.Action
	// Drifted paths are copied aside before they are overwritten.
	Drifted []string
	// Verdict, on the live road, asks Engine.Prove after the actions; Services is how what they are about was before.
	Verdict  bool
	Services map[string]string
	// Baseline and Timeout are for the verdict.
	Baseline Baseline
	Timeout  time.Duration
	// SoftReboot, of a Switch, means that a restart of the userspace is enough to boot it.
	SoftReboot bool
	// Permit, where there is one, is asked right before the decision. Its error is the update's, of which nothing is left
	// then.
	Permit func() error
	// Decide, of a Mend, writes down that its wants are what the host is to have from now on, with the directories that
	// are made for them to stand in. It is called once everything is staged and durable, before the first effect.
	Decide func(made []string) error
}

func (u Update) permit() error {
	if u.Permit == nil {
		return nil
	}
	return u.Permit()
}

// maxAttempts is how often a deployment may boot without proving healthy.
const maxAttempts = 3

// BadConfig is the error of a configuration that was applied, did not prove healthy, and was taken back.
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

// journal returns the journal of that id, nil where there is none.
func (e *Engine) journal(id string) (*journal, error) {
	j, err := readJournal(e.Root, id)
	if j != nil {
		j.left = e.left
	}
	return j, err
}

// Fail notes in the record why the host is not where it should be. It keeps the first reason's time.
func (e *Engine) Fail(r *Record, state State, err error) {
	if saveErr := e.fail(r, state, err.Error()); saveErr != nil {
		e.Say("record", saveErr.Error())
	}
}

func (e *Engine) fail(r *Record, state State, reason string) error {
	return e.note(r, state, reason, nil)
}

// note makes people read a state; before is what they read again once it does not hold any more.
func (e *Engine) note(r *Record, state State, reason string, before *Standing) error {
	if r.State == state && r.Reason == reason && (r.Before == nil) == (before == nil) {
		return nil
	}
	r.setState(state, reason, e.Now())
	r.Before = before
	if err := e.Root.MkdirAll(StateDir, 0o700); err != nil {
		return err
	}
	return e.store().save(r)
}

// commitRevision moves the record on to rev.
func (e *Engine) commitRevision(r *Record, rev Revision) {
	now := e.Now().UTC().Truncate(time.Second)
	if r.Committed != nil && r.Committed.Digest != rev.Digest {
		r.Previous = r.Committed // what was mended is no other configuration to go back to
	}
	rev.Since = now
	r.Committed, r.Pending = &rev, nil
	r.setState(Done, "", now)
}

// keepDocument keeps the configuration under its digest; the caller syncs. What is there already is the same.
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

// stateSize is what a transaction takes of the agent's own, in bytes: the document, the journal, two records, and what
// keeps room for the second of them.
func stateSize(u Update, steps []step) uint64 {
	return uint64(len(u.Document) + 1024*len(steps) + 4*reserveSize)
}

// Check refuses an update whose wants can't be had on the host, or have no room there. It writes nothing.
func (e *Engine) Check(u Update, wants []files.Want) error {
	steps, left, err := makeSteps(e.Root, "check", e.Labels, wants)
	if err != nil {
		return err
	}
	e.left(left...)
	return checkSpace(e.Root, steps, StateDir, stateSize(u, steps))
}

// Leaves returns which wants of exposed places would stay undone, and why; none where the wants can't be had at all. It
// writes nothing.
func (e *Engine) Leaves(wants []files.Want) []Left {
	_, left, _ := makeSteps(e.Root, "check", e.Labels, wants)
	return left
}

// begin writes the journal and puts everything in place that has no effect yet.
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

// stageJournal is begin without the document.
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
		Created: e.Now().UTC(), Actions: u.Actions, Steps: steps, root: e.Root, left: e.left}
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

// abandon takes back a journal that was never decided, and returns why.
func (e *Engine) abandon(j *journal, why error) error {
	if err := j.drop(); err != nil {
		return errors.Join(why, fmt.Errorf("cleaning up: %w", err))
	}
	return why
}

// keepDrifted keeps what others wrote at managed paths and this transaction replaces, where an admin finds it again.
// What stays, as it is or with another mode, is not kept: the copy may be one more name of the same inode.
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
				return err // but for what the disk can't read any more
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

// driftDir keeps, for the last few transactions, what was overwritten though no configuration had put it there.
const (
	driftDir  = StateDir + "/drift"
	keepDrift = 20
)

// Tidy removes what nothing needs any more: journals, deployments of ours that failed or were followed by others, old
// drift and configurations. The way back from the committed deployment stays.
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

// discard removes the deployments of ours that are of no use any more. One that a person has booted or pinned since is
// theirs for as long as they want it.
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

// finish rolls a decided journal forward, acts, and settles; or takes it all back.
func (e *Engine) finish(ctx context.Context, r *Record, j *journal) error {
	ctx = context.WithoutCancel(ctx) // decided: it is finished one way or the other
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

// settle makes the pending revision the committed one, and closes ways back that are no longer needed: that of a change
// without a boot at once, that of a deployment with the next one.
func (e *Engine) settle(r *Record) error {
	p, before := r.Pending, r.Committed
	e.Say("settle", p.Config)
	e.commitRevision(r, p.Revision)
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
		closed = append(closed, p.EtcTransaction) // its way back is the deployment before, or none
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

// takeBack undoes a decided journal on the running host: files first, then the same actions on the old files.
func (e *Engine) takeBack(ctx context.Context, r *Record, j *journal, why error, bad bool) error {
	ctx = context.WithoutCancel(ctx)
	r.Pending.Phase, r.Pending.Reason, r.Pending.Quarantine = PhaseUndo, why.Error(), bad
	if err := e.store().save(r); err != nil {
		// On the disk it is still rolled forward. To undo now would use up what a later recovery undoes with.
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
	r.setState(state, why.Error(), e.Now())
	if err := e.store().save(r); err != nil {
		return errors.Join(why, err)
	}
	if err := j.forget(); err != nil {
		return errors.Join(why, err)
	}
	return why
}
