// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/bootloader"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/layout"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/provision"
	"github.com/noderefit/noderefit/transaction"
)

// attempt is one update on its way through the steps: the request, and what the steps have found so far.
type attempt struct {
	verb    string
	record  *transaction.Record
	options ApplyOptions // another verb sets those that it has
	result  *Result
	// asStaged, of stage, uses the OS that was staged for the configuration before, even if the image's name now means
	// another OS.
	asStaged bool
	// arguments, of a first boot, are kernel arguments that Ignition did not know how to set. They must be on the command
	// line, but belong neither to the configuration nor to us.
	arguments []string
	// unasked skips the hooks: a person rolls back, or the machine serves no workload yet.
	unasked bool
	// back, of a rollback, is the OS on which the configuration ran before.
	back *wayBack
	// cfg is the wanted configuration, including the delivered files; old is the host's configuration, nil where the host
	// has none.
	cfg, old *machineconfig.Config
	// noCopy is the reason why old, or the host's copy of old, can't be read.
	noCopy error
	booted ostree.Deployment
	// line is what the arguments of a new deployment are made of, and wishing who has staged them, where somebody has.
	line     ostree.CommandLine
	wishing  []string
	drift    []Drift
	made     []string // see layout.Make
	compiled *layout.Layout
	// differing are the subjects that are not on the host as wanted.
	differing map[string]bool
	update    *update
	operation transaction.Operation
	// judged means that the verdict was given. verdict is the reason of a negative verdict.
	judged  bool
	verdict error
	// unlocks means that other operations may lock the host while the verdict is under way.
	unlocks bool
	// order is the ordered reboot that the boot of the update carries out, nil where none is ordered.
	order *transaction.Rebooted
	// over means that nothing is left to do.
	over bool
}

// update is everything that is decided about a change of configuration before the host is touched.
type update struct {
	transaction.Update
	cfg, old *machineconfig.Config
	made     []string // see layout.Make
	all      []files.Want
	road     transaction.Road
	request  ostree.Request
	booted   ostree.Deployment
	release  func()             // the lock of staging, where this update holds the lock
	line     ostree.CommandLine // see readLine
	// ownedKargs are our kernel arguments in the booted deployment.
	ownedKargs []string
	reboot     bool
	// returns means that the update goes back to a deployment that is there, because no new one can be made.
	returns bool
	// deploys means that the update makes a new deployment. On the staged road, want is its OS; nil means the running OS.
	// The deployments in reclaim are removed first.
	deploys bool
	want    *wanted
	reclaim []string
	// approved is the only OS that want may be, "" for any.
	approved string
}

// end lets other operations stage again.
func (a *attempt) end() {
	if a.update != nil && a.update.release != nil {
		a.update.release()
	}
}

// stages reports whether the attempt only brings the OS to the disk. Then the current content of the image counts, and
// the lock of staging is held.
func (a *attempt) stages() bool { return a.verb == agent.StageVerb.Name }

// boots reports whether the update takes effect by a boot.
func (a *attempt) boots() bool { return slices.Contains(booting, a.update.road) }

// change returns the plan's change of that kind, the zero value where the plan has none.
func (a *attempt) change(kind plan.Kind) plan.Change {
	for _, c := range a.result.Plan.Changes {
		if c.Kind == kind {
			return c
		}
	}
	return plan.Change{}
}

func (h *Host) recoverUnfinished(ctx context.Context, a *attempt) (err error) {
	a.over, err = h.recoverFirst(ctx, a)
	return err
}

// refuseAnother replaces recovery in the verb stage. A pending update to the same content has gone further than stage
// would.
func (h *Host) refuseAnother(_ context.Context, a *attempt) error {
	if err := h.contradicts(a.record); err != nil {
		return err
	}
	if p := a.record.Pending; p != nil && p.Digest == a.cfg.Digest {
		a.over = true
		return nil
	}
	return spares(a.record, a.cfg)
}

func (h *Host) read(ctx context.Context, a *attempt) (err error) {
	h.say("plan", a.cfg.Name)
	a.old, a.noCopy = h.committed(a.record, a.cfg)
	switch {
	case a.noCopy == nil:
	case !errors.Is(a.noCopy, errNoCopy):
		return a.noCopy
	case a.old == nil:
		// The former configuration can't be read any more. That must not keep the host from the next configuration.
		a.result.Warnings = append(a.result.Warnings,
			a.noCopy.Error()+"; everything that "+a.cfg.Name+" lacks stays on the host")
	}
	if err = h.readBooted(ctx, a); err != nil {
		return err
	}
	if a.drift, err = h.drift(a.old, a.result); err != nil {
		return err
	}
	if a.options.Strict && len(a.drift) > 0 && !h.forced() {
		return &DriftError{Config: a.old.Name, Drift: a.drift}
	}
	return nil
}

// readBooted reads the booted deployment, and what the arguments of another one are made of.
func (h *Host) readBooted(ctx context.Context, a *attempt) (err error) {
	if a.booted, err = h.booted(ctx); err != nil || h.plain == nil {
		return err
	}
	all, err := h.deployments.Status(ctx)
	a.line, a.wishing = ostree.NextCommandLine(all)
	if err == nil && len(a.wishing) == 0 {
		err = h.recallLine(ctx, a)
	}
	if err != nil || len(a.wishing) == 0 {
		return err
	}
	// On the staged road rpm-ostree copies the keys of the booted deployment: new arguments of others would lose their
	// owner.
	if road, _ := h.road(ctx); road != transaction.RoadSwitch {
		a.line, a.wishing = ostree.CommandLine{Arguments: a.booted.KernelArguments, Extra: a.booted.Extra}, nil
	}
	return nil
}

// recallLine reads what another owner of kernel arguments had staged, where a composition has removed that and nobody
// has staged anything since.
func (h *Host) recallLine(ctx context.Context, a *attempt) error {
	s, err := h.staged()
	if err != nil || s == nil || s.Line == nil || s.Booted != a.booted.ID {
		return nil //nolint:nilerr // a record that can't be read recalls nothing
	}
	newer, err := h.deployments.Foreign(ctx)
	if newer == nil && err == nil {
		a.line, a.wishing = *s.Line, s.Line.Extra.Changed(a.booted.Extra)
	}
	return err
}

func (h *Host) compileWants(_ context.Context, a *attempt) (err error) {
	v := h.view()
	if a.record.Committed != nil {
		a.made = a.record.Committed.Made
	}
	if a.compiled, err = layout.Make(v, a.cfg, a.old, a.made); err == nil {
		err = a.compiled.Linkable()
	}
	if errors.As(err, new(files.Misplaced)) {
		return &UnreachableError{Err: fmt.Errorf("%s: %w", a.cfg.Name, err)}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", a.cfg.Name, err)
	}
	a.result.Warnings = append(a.result.Warnings, a.compiled.Warnings...)
	if !files.Owners() {
		a.result.Warnings = append(a.result.Warnings, "this program does not run as root: owners of files are not set")
	}
	a.differing, err = v.Differing(a.compiled.Wants)
	return err
}

func (h *Host) makePlan(ctx context.Context, a *attempt) error {
	p, err := h.plan(ctx, a)
	if err != nil {
		return err
	}
	if a.old == nil {
		unread(p, a.record, a.noCopy)
	}
	a.result.Plan = p
	return nil
}

// refuseUnreachable refuses a plan that can't be carried out, and makes an update of any other plan.
func (h *Host) refuseUnreachable(_ context.Context, a *attempt) error {
	p := a.result.Plan
	if err := Unreconcilable(p); err != nil {
		return err
	}
	u := &update{cfg: a.cfg, old: a.old, made: a.made, all: a.compiled.Wants, booted: a.booted, line: a.line,
		reboot: p.Reboot, approved: a.options.Approved}
	u.Actions, u.Timeout, u.SoftReboot = p.Actions, a.options.Timeout, p.SoftReboot
	u.Revision = transaction.Revision{Config: a.cfg.Name, Digest: a.cfg.Digest, Deployment: a.booted.ID,
		OwnedKargs: h.owned(a.record, a.booted, a.cfg, p), Skipped: p.SkippedKinds(), Made: a.compiled.Made}
	a.update = u
	if nothingChanges(h, a) {
		return nil
	}
	var err error
	if u.Document, err = a.cfg.Marshal(); err != nil {
		return fmt.Errorf("encoding %s: %w", a.cfg.Name, err)
	}
	if a.record.Committed != nil {
		u.Revision.Layers, u.ownedKargs = a.record.Committed.Layers, a.record.Committed.OwnedKargs
	}
	if h.os == OSRpmOstree && len(u.Revision.Skipped) == 0 {
		u.Revision.Layers.Wanted, _, err = h.packages(a.cfg)
		if err != nil && (!errors.As(err, new(plan.NotKnown)) || !p.Has(plan.OSImage)) {
			return err
		}
	}
	for _, d := range a.drift {
		u.Drifted = append(u.Drifted, d.paths...)
	}
	slices.Sort(u.Drifted)
	u.Drifted = slices.Compact(u.Drifted)
	return nil
}

// nothingChanges reports whether the host already has the configuration.
func nothingChanges(_ *Host, a *attempt) bool {
	return len(a.result.Plan.Changes) == 0 && len(a.differing) == 0 && a.old == a.cfg && a.noCopy == nil &&
		a.record.Committed.Config == a.cfg.Name && a.record.Committed.Deployment == a.booted.ID
}

func (h *Host) stayOn(ctx context.Context, a *attempt) error {
	a.over = true
	if a.stages() {
		return nil
	}
	err := errors.Join(h.stay(ctx, a.record, a.options.Cluster), h.unstage(ctx, ""))
	if len(a.record.Discard) > 0 {
		err = errors.Join(err, h.engine().Tidy(ctx, a.record))
	}
	return err
}

func (h *Host) chooseRoad(ctx context.Context, a *attempt) error {
	u := a.update
	if h.transient {
		if _, err := h.road(ctx); err != nil && !u.reboot {
			return fmt.Errorf("this change would be lost with the boot: %w", err)
		}
	}
	switch {
	case h.plain == nil:
		u.road, u.Wants = transaction.RoadTree, a.compiled.Wants
		if u.reboot {
			u.Actions, u.road = nil, h.usualRoad() // the reboot does all actions
		}
	case !u.reboot:
		u.road, u.Wants = transaction.RoadLive, a.compiled.Wants
	default:
		var err error
		if u.road, err = h.road(ctx); err != nil {
			var back *wayBack
			var looking error
			if errors.As(err, new(*ostree.Unsupported)) { // the way back loses later changes of /etc
				back, looking = h.existing(ctx, a)
			}
			if back == nil {
				return errors.Join(fmt.Errorf("this change needs a new deployment: %w", err), looking)
			}
			a.back, u.road, u.returns = back, transaction.RoadSwitch, true
		}
		u.request = ostree.Request{OS: u.booted.OS, Checksum: u.booted.Checksum, OriginOf: u.booted.ID,
			KernelArguments: u.booted.KernelArguments}
	}
	return nil
}

func (h *Host) refuseManagers(ctx context.Context, a *attempt) error {
	if lost := a.result.Plan.Lost; a.options.KeepStaged && len(lost) > 0 {
		return &Refused{Err: fmt.Errorf("others have staged %s: let them boot it", strings.Join(lost, ", "))}
	}
	return h.otherManagers(ctx, a.cfg, a.update.reboot)
}

func (h *Host) refuseInhibited(ctx context.Context, _ *attempt) error {
	if err := h.services.Inhibited(ctx); err != nil {
		return &Refused{Err: err}
	}
	return nil
}

// composes reports whether the new deployment has another OS than the running one.
func composes(_ *Host, a *attempt) bool {
	p := a.result.Plan
	return p.Has(plan.OSImage) || p.Has(plan.KernelType) || p.Has(plan.Extensions)
}

// judgeOS refuses an OS from which the host could not be taken back. An OS that has run here is not judged.
func (h *Host) judgeOS(ctx context.Context, a *attempt) error {
	return h.judgeCommit(ctx, a, a.update.request.Checksum)
}

// judgeCommit judges the commit of a composed OS with the kernel arguments of the update.
func (h *Host) judgeCommit(ctx context.Context, a *attempt, checksum string) error {
	if a.back != nil || checksum == a.booted.Checksum {
		return nil
	}
	return h.unfit(ctx, a, h.plain.Judge(ctx, checksum, a.update.request.KernelArguments))
}

// unfit returns the error of an OS, which is removed where it can't be had.
func (h *Host) unfit(ctx context.Context, a *attempt, err error) error {
	if err == nil {
		return nil
	}
	if ostree.ClassOf(err) == ostree.Invalid {
		err = errors.Join(err, h.letGo(ctx, a.cfg.Digest))
	}
	return notComposed(a.result.Plan, osField(a.result.Plan), err)
}

// existing returns the deployment of a configuration that has run here, where no new one can be made for it; nil where
// there is none.
func (h *Host) existing(ctx context.Context, a *attempt) (*wayBack, error) {
	for _, rev := range []*transaction.Revision{a.record.Committed, a.record.Previous} {
		if rev == nil || rev.Digest != a.cfg.Digest || rev.Deployment == a.booted.ID {
			continue
		}
		if back, err := h.wayBack(ctx, rev); back != nil || err != nil {
			return back, err
		}
	}
	return nil, nil
}

// returns reports whether the update goes back to a deployment that is there, and makes none.
func returns(_ *Host, a *attempt) bool { return a.update.returns }

// goTo makes the deployment that a configuration has run on the default, and boots it. Recovery does the rest in that
// boot, much as when a person has chosen the deployment.
func (h *Host) goTo(ctx context.Context, a *attempt) error {
	a.over = true
	if a.stages() {
		return nil
	}
	if err := h.nodeHeld(a.options.Cluster); err != nil {
		return err
	}
	if asksHooks(h, a) {
		if err := h.askHooks(ctx, a); err != nil {
			return err
		}
	}
	h.say("commit", a.back.deployment.ID)
	if err := h.engine().Return(ctx, a.record, a.back.deployment.ID); err != nil {
		return fmt.Errorf("going back to the deployment of %s: %w", a.cfg.Name, err)
	}
	a.result.Warnings = append(a.result.Warnings, "no new deployment can be made on this host; it goes back to "+
		a.back.deployment.ID+", on which "+a.cfg.Name+" has run")
	return h.reboot(ctx, a)
}

// chooseArguments decides the kernel arguments and whether a restart of the userspace is enough with these. bootc's
// images may bring arguments too.
func (h *Host) chooseArguments(ctx context.Context, a *attempt) error {
	u := a.update
	if h.plain == nil {
		return h.changeLoader(ctx, a)
	}
	if w, is := h.composer.(withdrawer); is {
		if err := w.Withdraw(ctx); err != nil {
			return err
		}
	}
	if err := h.prepareArguments(ctx, u, a.change(plan.Kargs), a.arguments); err != nil {
		return err
	}
	if u.SoftReboot && (u.request.Checksum != u.booted.Checksum ||
		!slices.Equal(u.request.KernelArguments, u.booted.KernelArguments)) {
		u.SoftReboot = false
		a.result.Plan.NeedsFullReboot("the OS or its kernel arguments change")
	}
	return nil
}

// changeLoader decides what changes in the boot loader's files, on a host without ostree.
func (h *Host) changeLoader(ctx context.Context, a *attempt) (err error) {
	c := a.change(plan.Kargs)
	if len(c.Delete)+len(c.Append) == 0 {
		return nil
	}
	a.update.Loader, err = h.loader.Prepare(ctx, bootloader.Arguments{Delete: c.Delete, Append: c.Append,
		Owned: a.update.Revision.OwnedKargs, Wanted: slices.Concat(a.cfg.KernelArguments, a.arguments),
		Managed: func(path string) bool {
			return slices.ContainsFunc(a.compiled.Wants, func(w files.Want) bool { return w.Path == path })
		}})
	if errors.As(err, new(*bootloader.Refusal)) {
		return &UnreachableError{Err: fmt.Errorf("%s: %s: %w", a.cfg.Name, plan.Kargs.Field(), err)}
	}
	return err
}

// findSpace keeps the deployments after the booted one until the new deployment is proved. If their kernels take the
// room in /boot that the new deployment needs, they are removed before. Paths that the new deployment's /etc carries
// are not written a second time beside the deployment.
func (h *Host) findSpace(ctx context.Context, a *attempt) error {
	u := a.update
	u.request.KeepRollback = true
	err := h.deployments.BootSpace(ctx, u.request.OS, u.request.Checksum)
	if full, is := errors.AsType[*ostree.NoBootSpace](err); is && len(full.Reclaimable) > 0 {
		u.request.KeepRollback, u.reclaim, err = false, full.Reclaimable, nil
	}
	if err != nil {
		return err
	}
	u.deploys = true
	if u.road == transaction.RoadStaged {
		if err := h.prepareStaged(ctx, a); err != nil {
			return err
		}
	}
	u.Wants, err = a.compiled.Beside()
	return err
}

func (h *Host) check(ctx context.Context, a *attempt) error {
	a.over = true
	h.say("check", a.cfg.Name)
	if err := h.engine().Check(a.update.Update, a.update.all); err != nil {
		return err
	}
	if !a.update.deploys {
		return ctx.Err()
	}
	a.result.Staged = a.update.request.Checksum
	return transaction.DeploymentSpace(ctx, h.root)
}

// asksHooks reports whether this apply asks the hooks. A cluster has asked them before the drain of the node.
func asksHooks(_ *Host, a *attempt) bool {
	p := a.result.Plan
	return !a.options.Cluster && !a.unasked && (p.Drain || p.Reboot)
}

func (h *Host) askHooks(ctx context.Context, a *attempt) error {
	return h.askBeforeDrain(ctx, a.record, a.cfg.Name, a.cfg.Digest, a.options.Hooks)
}

func (h *Host) keepHooksOf(_ context.Context, a *attempt) error {
	return h.keepHooks(a.update.Revision.Digest, a.options.Hooks)
}

func (h *Host) installOwn(context.Context, *attempt) error {
	if err := h.installer().Install(); err != nil {
		return fmt.Errorf("installing the recovery unit: %w", err)
	}
	return nil
}

// takeBaseline records the state that the verdict is compared with. A change of the running host has a verdict where
// the change disrupts a service, or where the content has no verdict yet.
func (h *Host) takeBaseline(ctx context.Context, a *attempt) (err error) {
	u := a.update
	if u.Baseline, err = h.baseline(ctx, a.options.Cluster); err != nil {
		return err
	}
	judge := unproved(a.record, u.Revision.Digest)
	if judge {
		u.Baseline.FailedUnits = nil
	}
	u.Permit = func() error { return h.nodeHeld(a.options.Cluster) }
	if u.Timeout == 0 {
		u.Timeout = api.DefaultVerdictTimeout
	}
	touched := plan.Services(u.Actions)
	if a.boots() || h.services == nil || u.reboot || !judge && len(touched) == 0 {
		return nil
	}
	touched = slices.DeleteFunc(touched, func(s string) bool { return transaction.UnitGoes(u.Wants, s) })
	u.Verdict = true
	u.Services, err = h.states(ctx, touched)
	return err
}

func (h *Host) stageFiles(ctx context.Context, a *attempt) error {
	e, u := h.engine(), a.update
	switch u.road {
	case transaction.RoadSwitch:
		a.operation = e.NewSwitch(a.record, transaction.Switch{Update: u.Update, Request: u.request, Booted: u.booted.ID,
			Etc: func(tree *files.Root) ([]files.Want, error) { return h.etc(tree, u) },
			Note: func(ctx context.Context, d ostree.Deployment) error {
				return h.plain.Note(ctx, d.ID, u.line.Extra.With(u.Revision.OwnedKargs), files.ReplaceRemounted)
			},
			Open: func(d ostree.Deployment) (*files.Root, error) {
				return files.OpenWritable(path.Join("/sysroot", d.Dir))
			}})
	case transaction.RoadStaged, transaction.RoadInPlace:
		a.operation = e.NewStaged(a.record, h.staging(a))
	default:
		a.operation = e.NewLive(a.record, u.Update, u.road)
	}
	return a.operation.Stage(ctx)
}

// materialise makes the deployment. One that would not boot is gone again, and refused as the OS is before a drain.
func (h *Host) materialise(ctx context.Context, a *attempt) error {
	err := a.operation.Materialise(ctx)
	if errors.As(err, new(*ostree.Unfit)) {
		return h.unfit(ctx, a, err)
	}
	return err
}

func (h *Host) commit(ctx context.Context, a *attempt) error {
	if err := provision.KeepBefore(h.root, madeWith, a.old, a.cfg); err != nil {
		return err
	}
	return a.operation.Commit(ctx)
}

func (h *Host) takeEffect(ctx context.Context, a *attempt) error { return a.operation.Effect(ctx) }

func (h *Host) rebootInto(ctx context.Context, a *attempt) error {
	if a.boots() {
		return h.rebootHeld(ctx, a)
	}
	return h.reboot(ctx, a)
}

func (h *Host) clearForce(context.Context, *attempt) error { return h.unforce() }

func (h *Host) releaseOS(ctx context.Context, _ *attempt) error { return h.unstage(ctx, "") }
