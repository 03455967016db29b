// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/kargs"
	"github.com/noderefit/noderefit/layout"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/reboots"
	"github.com/noderefit/noderefit/signature"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// RebootOptions are the options of the verbs that boot what they commit.
type RebootOptions struct {
	NoReboot bool
	// Method is the way to reboot, where the host can go that way; "" for a full reboot. MethodSoft restarts only the
	// userspace where that is enough.
	Method transaction.Method
	// Timeout is how long the host may take to prove healthy after the boot.
	Timeout time.Duration
}

func (o RebootOptions) soft() bool { return o.Method == transaction.MethodSoft }

// ApplyOptions are the options of apply.
type ApplyOptions struct {
	RebootOptions

	Policy *plan.Policy
	// SkipOS applies the rest of a configuration whose OS changes the host can't make.
	SkipOS     bool
	KeepStaged bool // refuse an update that would remove what others have staged
	// Strict refuses a host that drifted, instead of overwriting the drift.
	Strict bool
	// Lift takes the configuration out of quarantine first.
	Lift bool
	// Cluster means that a cluster asks for the operation: the cluster's report on the node is part of the verdict.
	Cluster bool
	// Hooks are the cluster's hooks.
	Hooks hooks.Document
	// Order is the reboot that was ordered, and that the update's carries out; the zero value: none was.
	Order RebootOrder
	// Approved is the only OS to which apply may change: the digest of the image, or the checksum of the commit. Empty:
	// any OS.
	Approved string
}

// Reboot is what an operation did about a reboot.
type Reboot string

// The values of "reboot" in the output of apply, recover and rollback.
const (
	RebootNone    Reboot = "none"
	RebootNeeded  Reboot = "needed"
	RebootStarted Reboot = "started"
)

// Result is what apply, recover and rollback print with -o json.
type Result struct {
	Plan   *plan.Plan `json:"plan,omitempty"`
	Status *Status    `json:"status"`
	Reboot Reboot     `json:"reboot"`
	// SoftReboot means that the started reboot restarts only the userspace. Way is that reboot's, nil for a full one that
	// was asked for.
	SoftReboot bool           `json:"softReboot,omitempty"`
	Way        *api.RebootWay `json:"rebootWay,omitempty"`
	// Delivered is the result of deliver.
	Delivered *Delivery `json:"delivered,omitempty"`
	// Staged is the commit of the OS that stage brought to the disk.
	Staged string `json:"staged,omitempty"`
	// Warnings are for people: drift that was overwritten, units that could not be enabled.
	Warnings []string `json:"warnings,omitempty"`
	// Acted lists the actions on services in the order in which they were done, also those of a rollback.
	Acted []Acted `json:"acted,omitempty"`
}

// Apply moves the host to cfg as one transaction. The result is never nil, and shows how far the transaction came.
func (h *Host) Apply(ctx context.Context, cfg *machineconfig.Config, o ApplyOptions) (*Result, error) {
	res := &Result{Reboot: RebootNone}
	r, err := h.store().Load()
	if err != nil {
		return h.result(ctx, res, r), err
	}
	a := &attempt{record: r, options: o, result: res, cfg: cfg}
	if o.Order.ID != "" {
		a.order = reboots.Ordered(h.root, h.bootID(), o.Order.ID, o.Order.Why)
	}
	err = h.apply(ctx, a)
	return h.result(ctx, res, r), err
}

// apply takes an attempt through the steps of apply. The files that were delivered count as part of the configuration.
func (h *Host) apply(ctx context.Context, a *attempt) error {
	a.verb, a.cfg = agent.ApplyVerb.Name, h.whole(a.cfg)
	return h.carryOut(ctx, steps, a)
}

func (h *Host) result(ctx context.Context, res *Result, r *transaction.Record) *Result {
	// A requested reboot stops this process, and the caller still needs to learn how far the operation came.
	if h.os == OSRpmOstree && h.way == "" {
		_, _ = h.road(context.WithoutCancel(ctx)) // the answer contains its error
	}
	res.Status = h.statusOf(context.WithoutCancel(ctx), r)
	for _, l := range h.left {
		res.Warnings = append(res.Warnings, "drift was not written back: "+message.OneLine(l.Err.Error()))
	}
	if h.services != nil {
		res.Acted = h.services.acted
	}
	return res
}

// recoverFirst finishes unfinished work, and withdraws a commit that has not booted when the caller asks for something
// else. It reports whether nothing is left to do.
func (h *Host) recoverFirst(ctx context.Context, a *attempt) (bool, error) {
	r, cfg, res := a.record, a.cfg, a.result
	if err := h.contradicts(r); err != nil {
		return false, err
	}
	e := h.engine()
	out, err := e.Recover(ctx, r)
	if err != nil && r.Pending != nil {
		return false, fmt.Errorf("recovering the unfinished update: %w", err)
	}
	if out.Rebooting {
		res.Reboot = RebootStarted
		return false, &Refused{Err: fmt.Errorf("the host is about to boot again: %s", out.Why)}
	}
	if p := r.Pending; p != nil && p.Road == transaction.RoadReboot && out.Do != transaction.Foreign {
		return false, h.afterReboot(ctx, r, out.Do, res)
	}
	switch out.Do {
	case transaction.Foreign:
		return false, h.takeOver(ctx, r, out.Why, res)
	case transaction.AwaitBoot:
		moved, err := e.EtcMoved(r.Pending)
		if err != nil {
			return false, err
		}
		if r.Pending.Digest == cfg.Digest && !moved {
			return true, h.rebootHeld(ctx, a)
		}
		if err := h.refuse(ctx, a); err != nil {
			return false, err
		}
		return false, e.Withdraw(ctx, r, "withdrawn in favour of "+cfg.Name+" before it had booted")
	case transaction.AwaitProof, transaction.FirstBoot:
		if r.Pending == nil {
			return false, nil
		}
		if err := h.refuse(ctx, a); err != nil {
			return false, err
		}
		if r.Committed != nil && r.Committed.Digest == cfg.Digest {
			if err := h.nodeHeld(a.options.Cluster); err != nil {
				return false, err
			}
			why := fmt.Sprintf("going back to %s was asked for before %s was proved", cfg.Name, r.Pending.Config)
			err := e.GoBack(ctx, r, why, false)
			if errors.Is(err, transaction.ErrStranded) {
				return false, nil
			}
			res.Reboot = RebootStarted
			return true, err
		}
		err := h.prove(ctx, r)
		if errors.As(err, new(*transaction.BadConfig)) {
			res.Reboot = RebootStarted
		}
		return false, err
	}
	return false, nil
}

// takeOver starts from a deployment that another tool or a person has booted. Recovery changes nothing there. But a
// person or a pool that asks for a configuration wants the host to have that configuration, on any deployment.
func (h *Host) takeOver(ctx context.Context, r *transaction.Record, why string, res *Result) error {
	res.Warnings = append(res.Warnings, why)
	if r.Pending == nil {
		return nil
	}
	return h.engine().Disown(ctx, r)
}

// refuse refuses content that failed its verdict on this host, under any name, and content without a signature that the
// host demands.
func (h *Host) refuse(_ context.Context, a *attempt) error {
	r, cfg := a.record, a.cfg
	if why := h.unsigned(a); why != "" {
		return &UnreachableError{Err: fmt.Errorf("%s can't be reached from here: %s: %s", cfg.Name, signature.Field, why)}
	}
	q := r.Quarantine(cfg.Digest)
	if q == nil || r.Committed != nil && r.Committed.Digest == cfg.Digest && !r.Committed.Unproved ||
		a.stages() && a.options.Lift { // apply lifts the quarantine
		return nil
	}
	if a.options.Lift {
		return h.engine().Lift(r, cfg.Digest)
	}
	return &UnreachableError{Err: fmt.Errorf("%s is quarantined since %s: %s; use --lift-quarantine to try it again",
		cfg.Name, q.Since.Format(time.RFC3339), q.Reason)}
}

// unsigned returns why the host's keys refuse a configuration, "" where they do not. The current and the pending
// configuration need no signature, and neither does the way back. Before a first boot Ignition has written the same
// content already.
func (h *Host) unsigned(a *attempt) string {
	c, p := a.record.Committed, a.record.Pending
	if a.unasked || c != nil && c.Digest == a.cfg.Digest || p != nil && p.Digest == a.cfg.Digest {
		return ""
	}
	return signature.Refusal(h.root, a.cfg)
}

// stay applies a configuration that the host already has. The state is Done only after a verdict; a configuration that
// was committed without a verdict gets its verdict now.
func (h *Host) stay(ctx context.Context, r *transaction.Record, cluster bool) error {
	since := r.Rebooted != nil && r.Rebooted.Baseline != nil // the host is not healthy since a reboot
	if !since && !unproved(r, r.Committed.Digest) {
		if r.State != transaction.Done || r.Reason != "" {
			h.engine().Fail(r, transaction.Done, errors.New(""))
		}
		return nil
	}
	name := r.Committed.Config
	if h.services == nil {
		return fmt.Errorf("proving %s: the host is not running; run apply on the running system", name)
	}
	baseline, err := h.baseline(ctx, cluster)
	if err != nil {
		return err
	}
	baseline.FailedUnits = nil
	if since {
		baseline = *r.Rebooted.Baseline
	}
	verdict := h.verdictLive(ctx, &transaction.Pending{Revision: *r.Committed, Baseline: baseline})
	if ctx.Err() != nil {
		return ctx.Err() // the caller stops this process: that is no verdict
	}
	judge := h.engine().Judge
	if since {
		judge = h.engine().JudgeBoot
	}
	if err := judge(r, verdict); err != nil {
		return err
	}
	if verdict != nil {
		return fmt.Errorf("%s is on the host and did not prove healthy: %w", name, verdict)
	}
	return nil
}

// unproved reports whether the host has the content of that digest without a verdict. Then that content may also have
// caused what fails now.
func unproved(r *transaction.Record, digest string) bool {
	return r.Committed != nil && r.Committed.Unproved && r.Committed.Digest == digest
}

// prepareArguments decides the kernel arguments of the new deployment, and which of them are ours. The others must be
// on the command line too, but are not ours.
func (h *Host) prepareArguments(ctx context.Context, u *update, change plan.Change, others []string) error {
	brought, err := h.broughtKargs(ctx, u)
	if err != nil {
		return err
	}
	u.request.KernelArguments = kargs.Apply(brought, change.Delete, change.Append)
	if !slices.Equal(brought, u.booted.KernelArguments) && !slices.Contains(u.Revision.Skipped, string(plan.Kargs)) {
		// The image may remove an argument that the configuration asks for, and an argument that the image brings is not
		// ours.
		del, app, ours := kargs.Own(brought, u.ownedKargs, u.cfg.KernelArguments)
		u.request.KernelArguments, u.Revision.OwnedKargs = kargs.Apply(brought, del, app), ours
		u.request.KernelArguments = append(u.request.KernelArguments, kargs.Missing(u.request.KernelArguments, others)...)
	}
	return nil
}

// prepareOS brings the new OS to the disk; in a rollback the new OS is that of the previous deployment.
func (h *Host) prepareOS(ctx context.Context, a *attempt) error {
	u, back, res := a.update, a.back, a.result
	if back != nil && u.road == transaction.RoadSwitch {
		u.request.Checksum, u.request.OriginOf = back.deployment.Checksum, back.deployment.ID
		u.Revision.Layers = back.layers
		return nil
	}
	image := a.change(plan.OSImage).To
	want, err := h.wanted(ctx, u.cfg, image, u.Revision.Layers, res.Plan)
	if err != nil {
		return err
	}
	if back != nil {
		source := want.Source
		want = &wanted{layers: back.layers}
		if want.System, err = h.deployments.Driver.Of(ctx, back.deployment.ID); err != nil {
			return err
		}
		want.Source = source
	}
	if want.Image, err = h.admit(u.cfg, want.Image); err != nil {
		return notComposed(res.Plan, plan.OSImage.Field(), err)
	}
	if err := h.admitSource(u.cfg, want.Source); err != nil {
		return notComposed(res.Plan, "baseOSExtensionsContainerImage", err)
	}
	if !a.stages() { // stage holds the lock already
		// Until the deployment is made, no other process may remove its parts from the disk.
		if u.release, err = h.lockStaging(ctx, "apply", settling); err != nil {
			return err
		}
	}
	c, err := h.compose(ctx, a, u.booted.ID, want)
	if err != nil {
		return err
	}
	u.Revision.Layers, u.want = want.layers, want
	u.request.Checksum = c.Checksum
	if c.Origin != "" {
		u.request.OriginOf, u.request.Origin = "", c.Origin
	}
	return nil
}

// withdrawer is a composer that changes the running /etc while it composes.
type withdrawer interface {
	// Withdraw removes what an interrupted composition left in the running /etc: a new deployment would inherit the
	// leftovers.
	Withdraw(ctx context.Context) error
}

// broughtKargs returns the kernel arguments that the new deployment's are made of, changed as its image demands.
func (h *Host) broughtKargs(ctx context.Context, u *update) ([]string, error) {
	bringer, is := h.composer.(argumentsBringer)
	if !is || u.request.Checksum == u.booted.Checksum {
		return u.line.Arguments, nil
	}
	added, removed, err := bringer.KernelArguments(ctx, osimage.Composed{Checksum: u.request.Checksum})
	if err != nil {
		return nil, err
	}
	added = slices.DeleteFunc(added, func(a string) bool { return slices.Contains(u.line.Arguments, a) })
	return kargs.Apply(u.line.Arguments, removed, added), nil
}

// argumentsBringer is a composer whose images bring their own kernel arguments.
type argumentsBringer interface {
	// KernelArguments returns the arguments that a commit's image adds to, and removes from, those of the booted image.
	KernelArguments(ctx context.Context, c osimage.Composed) (added, removed []string, err error)
}

// rebootHeld reboots into the committed deployment. If the node has taken pods since its drain, rebootHeld withdraws
// the commit instead.
func (h *Host) rebootHeld(ctx context.Context, a *attempt) error {
	r := a.record
	if err := h.nodeHeld(a.options.Cluster); err != nil {
		return errors.Join(err, h.engine().Withdraw(context.WithoutCancel(ctx), r, err.Error()))
	}
	if (a.options.NoReboot || h.services == nil) && r.Pending.Road == transaction.RoadSwitch {
		a.result.Warnings = append(a.result.Warnings,
			"later changes in /etc are not part of the next boot; apply again to include them")
	}
	return h.reboot(ctx, a)
}

// etc compiles the configuration against the tree of the new deployment: the vendor defaults, units, presets, users and
// policy of that tree count.
func (h *Host) etc(tree *files.Root, u *update) ([]files.Want, error) {
	v := layout.View{Host: h.root, Tree: tree}
	if h.transient {
		return layout.Booted(v, u.cfg)
	}
	c, err := layout.Make(v, u.cfg, u.old, u.made)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.cfg.Name, err)
	}
	return c.Carried()
}

func (h *Host) reboot(ctx context.Context, a *attempt) error {
	a.result.Reboot = RebootNeeded
	if a.options.NoReboot || h.services == nil {
		return h.engine().LeaveReboot(ctx, a.record)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	left := a.record.Pending.NeedsReboot()
	if err := h.takeReboot(ctx, a); err != nil {
		return err
	}
	notSoft, err := h.prepareSoftReboot(ctx, a)
	if err != nil {
		return err
	}
	deployment := a.record.Returning
	if p := a.record.Pending; p != nil {
		deployment = p.Deployment
	}
	err = h.goDown(ctx, a, deployment, notSoft)
	if reboots.NotBegun(err) {
		err = errors.Join(err, h.engine().BlockReboot(ctx, a.record, left, err.Error()))
	}
	return err
}

// goDown starts the reboot into a deployment, "" where none is known, by the method that was asked for.
func (h *Host) goDown(ctx context.Context, a *attempt, deployment, notSoft string) error {
	t := reboots.Trip{Root: h.root, System: h.services, Units: h.units, Asked: a.options.Method, NotSoft: notSoft,
		Loaded: a.record.Way.Loaded(h.bootID()),
		Target: reboots.Target{Deployment: deployment, GRUB: h.grub}, Exec: ostree.Exec,
		Record:    func(w *transaction.Way) error { return h.engine().StartBy(a.record, w) },
		AfterLoad: h.engine().KernelLoaded,
		Say:       func(what string) { h.say("reboot", what) }}
	if h.plain != nil {
		t.Target.Deployments = h.deployments
	}
	w, err := t.Start(ctx)
	if errors.As(err, new(*systemd.InhibitedError)) {
		return &Refused{Err: err}
	}
	if err != nil {
		return err
	}
	a.result.Reboot, a.result.Way = RebootStarted, reboots.ShownWay(w)
	a.result.SoftReboot = w != nil && w.Started == transaction.MethodSoft
	if a.result.Way.FellBack() {
		a.result.Warnings = append(a.result.Warnings, fmt.Sprintf("the reboot is a full one, and not %s: %s", w.Asked, w.Why))
	}
	return nil
}

// prepareSoftReboot makes a soft reboot lead to the committed deployment, where a soft reboot was planned and is still
// allowed. Otherwise it returns why not. The soft reboot is tried once: the next request gets a full reboot. So does a
// request whose soft reboot can't be prepared.
func (h *Host) prepareSoftReboot(ctx context.Context, a *attempt) (why string, err error) {
	r, p := a.record, a.record.Pending
	if p == nil || p.Road != transaction.RoadSwitch || p.SoftReboot == "" {
		if a.result.Plan != nil {
			why = a.result.Plan.FullReboot
		}
		return cmp.Or(why, "the update was committed for a full reboot"), nil
	}
	e := h.engine()
	full := func(why string) (string, error) {
		return why, errors.Join(h.deployments.ResetSoftReboot(ctx), e.BootBy(r, ""))
	}
	switch {
	case !a.options.soft():
		return full("") // a full reboot was asked for, and is not told why
	case p.SoftReboot == transaction.SoftStarted:
		return full("a soft reboot was tried before")
	}
	if err := h.deployments.PrepareSoftReboot(ctx, p.Deployment); err != nil {
		return full(message.OneLine(err.Error()))
	}
	return "", e.BootBy(r, transaction.SoftStarted)
}
