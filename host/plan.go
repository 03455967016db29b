// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/kargs"
	"github.com/noderefit/noderefit/layout"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/signature"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

func subjectOfChange(c plan.Change) string {
	return layout.Subject(string(c.Kind), c.Path+c.Name+c.User)
}

// plan makes the plan of an attempt against the real state of the host, as far as the attempt has read it.
func (h *Host) plan(ctx context.Context, a *attempt) (*plan.Plan, error) {
	old, cfg, booted, r, o := a.old, a.cfg, a.booted, a.record, a.options
	opts := plan.Options{Policy: o.Policy, SkipOS: o.SkipOS, NoOS: h.plain == nil, SoftReboot: o.soft(),
		Committed: old, Directory: h.services == nil}
	if h.composefs != "" {
		opts.WithoutOS = func(kind plan.Kind) string { return h.composefs.Refusal(kind.Field()) }
	}
	if h.loader != nil {
		opts.WithoutOS = func(kind plan.Kind) string { return h.loader.Refusal(kind.Field()) }
	}
	if h.setsArguments() {
		opts.Kargs = &plan.HostKargs{CommandLine: booted.KernelArguments}
		if r.Committed != nil {
			opts.Kargs.Owned = r.Committed.OwnedKargs
		}
	}
	var ours transaction.Layers
	if r.Committed != nil {
		ours = r.Committed.Layers
	}
	var err error
	if opts.OS, err = h.effective(ctx, old, cfg, ours); err != nil {
		return nil, err
	}
	if opts.OS == nil && r.Committed != nil && len(r.Committed.Skipped) > 0 {
		opts.OS = &plan.OS{}
	}
	current, desired := observed(old, a.drift), cfg
	if a.differing != nil {
		opts.Satisfied = func(c plan.Change) bool { return !c.Kind.OS() && !a.differing[subjectOfChange(c)] }
	}
	if current != nil && cfg.OSImageURL == "" && a.back != nil {
		from, to := *current, *cfg
		from.OSImageURL, to.OSImageURL = booted.Checksum, a.back.deployment.Checksum
		current, desired = &from, &to
		if opts.OS != nil {
			opts.OS.ImageURL = booted.Checksum
		}
	}
	if len(a.arguments) > 0 {
		more := *desired
		more.KernelArguments = slices.Concat(more.KernelArguments, a.arguments)
		desired = &more
	}
	p, err := plan.Make(current, desired, opts)
	if err != nil {
		return nil, err
	}
	if p.Reboot && len(a.wishing) > 0 {
		p.Warnings = append(p.Warnings, fmt.Sprintf("kernel arguments of %s are staged for the next boot; this update keeps "+
			"them: %s", strings.Join(a.wishing, ", "), kargs.Join(a.line.Arguments)))
	}
	if h.plain != nil && a.back == nil {
		err = h.needsMore(p, cfg)
	}
	if p.SoftReboot {
		if err := h.softReboots(ctx); err != nil {
			p.NeedsFullReboot("the host: " + message.OneLine(err.Error()))
		}
	}
	if p.Reboot && h.plain != nil && err == nil && len(a.wishing) == 0 {
		p.Lost, err = h.loses(ctx, r)
	}
	if err == nil && a.compiled != nil && (old != cfg || len(a.differing) > 0) {
		err = misplaced(p, h.places(a.compiled))
	}
	return p, err
}

// places returns a files.Misplaced where a configuration has paths that this host can't have.
func (h *Host) places(c *layout.Layout) error {
	if h.plain != nil || h.composefs != "" {
		if err := c.Writable(); err != nil {
			return err
		}
	}
	if h.transient {
		return transaction.WrittenInTime(h.root, c.Wants)
	}
	return nil
}

// misplaced adds to a plan what an error refuses for its path. It returns an error that is about
// something else.
func misplaced(p *plan.Plan, err error) error {
	wrong, is := errors.AsType[files.Misplaced](err)
	for _, m := range wrong {
		p.Unreconcilable = append(p.Unreconcilable, plan.Unreconcilable{Field: m.Want.Field(),
			Reason: m.Want.Path + " " + m.Reason})
	}
	if is {
		return nil
	}
	return err
}

// loses returns what an update that boots removes of others, in words for people.
func (h *Host) loses(ctx context.Context, r *transaction.Record) ([]string, error) {
	d, err := h.deployments.Foreign(ctx)
	if err != nil || d == nil || r.Pending != nil && r.Pending.Deployment == d.ID {
		return nil, err
	}
	return []string{h.deployments.Describe(ctx, *d)}, nil
}

// softReboots returns the reason why the host can't restart its userspace alone, nil where the host can.
func (h *Host) softReboots(ctx context.Context) error {
	if h.plain == nil || h.services == nil {
		return errors.New("only a booted ostree host can do a soft reboot")
	}
	if err := h.plain.Supported(ctx); err != nil {
		return err // a soft reboot needs a deployment that exists before the shutdown
	}
	limited, cancel := context.WithTimeout(ctx, BusTimeout)
	defer cancel()
	if _, err := systemd.SoftReboots(limited); err != nil {
		return err
	}
	return h.plain.SoftReboots(ctx)
}

// needsMore refuses what the host's OS manager can't do, and otherwise adds the package names of this host to the plan.
func (h *Host) needsMore(p *plan.Plan, cfg *machineconfig.Config) error {
	at := slices.IndexFunc(p.Changes, func(c plan.Change) bool { return c.Kind == plan.KernelType })
	extensions := slices.IndexFunc(p.Changes, func(c plan.Change) bool { return c.Kind == plan.Extensions })
	if at < 0 && extensions < 0 {
		return nil
	}
	if h.os == OSRpmOstree {
		c, platform, err := h.catalogue()
		if err != nil {
			return err
		}
		_, _, err = c.Packages(platform, cfg.KernelType, cfg.Extensions)
		if unknown, is := errors.AsType[plan.NotKnown](err); is {
			// The packages of another release are known once its image is on the disk.
			if !p.Has(plan.OSImage) || !c.Ever(platform, cfg.KernelType, cfg.Extensions) {
				p.Unreconcilable = append(p.Unreconcilable, unknown...)
			}
			err = nil
		}
		p.NamePackages(c, platform)
		return err
	}
	reason := "packages can't be layered on plain ostree deployments"
	if h.os == OSBootc {
		reason = "bootc can't layer packages; use an image that was built with them"
	}
	for _, i := range []int{at, extensions} {
		if i >= 0 {
			p.Unreconcilable = append(p.Unreconcilable, plan.Unreconcilable{Field: p.Changes[i].Kind.Field(), Reason: reason})
		}
	}
	return nil
}

// PlanOptions are the options of plan.
type PlanOptions struct {
	Policy *plan.Policy
	// SoftReboot plans a restart of only the userspace where that is enough and the host is able to do so.
	SoftReboot bool
	SkipOS     bool // leave out OS changes

	unasked bool // of an attempt
}

// Plan returns what Apply would do, and changes nothing.
func (h *Host) Plan(ctx context.Context, cfg *machineconfig.Config, o PlanOptions) (*plan.Plan, error) {
	r, err := h.store().Load()
	if err != nil {
		return nil, err
	}
	a := &attempt{record: r, cfg: h.whole(cfg), unasked: o.unasked,
		options: ApplyOptions{Policy: o.Policy, SkipOS: o.SkipOS}}
	if o.SoftReboot {
		a.options.Method = transaction.MethodSoft
	}
	a.old, a.noCopy = h.committed(r, a.cfg)
	if a.noCopy != nil && !errors.Is(a.noCopy, errNoCopy) {
		return nil, a.noCopy
	}
	if err = h.readBooted(ctx, a); err != nil {
		return nil, err
	}
	if a.drift, err = h.drift(a.old, &Result{}); err != nil {
		a.drift = nil // apply would refuse such a host
	}
	var left []plan.Left
	// A host that apply would refuse still has a plan.
	compiled, unfit := layout.Make(h.view(), a.cfg, a.old, nil)
	if unfit == nil {
		a.compiled = compiled
		if a.differing, err = h.view().Differing(compiled.Wants); err != nil {
			return nil, err
		}
		left = h.leaves(compiled.Wants)
	}
	p, err := h.plan(ctx, a)
	if err == nil {
		p.Left = left
		unread(p, r, a.noCopy)
		p.Refuse(signature.Field, h.unsigned(a))
		if len(p.Unreconcilable) == 0 {
			_ = misplaced(p, unfit) // what else apply would refuse is not in the plan
		}
	}
	return p, err
}

// leaves returns the wants that would stay undone, and why. On most hosts no want has a path where that can happen.
func (h *Host) leaves(wants []files.Want) []plan.Left {
	if !slices.ContainsFunc(wants, func(w files.Want) bool { return h.root.Exposed(w.Path) != "" }) {
		return nil
	}
	var out []plan.Left
	for _, l := range h.engine().Leaves(wants) {
		out = append(out, plan.Left{Path: l.Path, Reason: message.OneLine(l.Err.Error())})
	}
	return out
}

// Unreconcilable returns the error of a plan that must not be carried out, nil for any other plan.
func Unreconcilable(p *plan.Plan) error {
	if len(p.Unreconcilable) == 0 {
		return nil
	}
	var all []string
	for _, u := range p.Unreconcilable {
		all = append(all, u.Field+": "+u.Reason)
	}
	return &UnreachableError{Err: fmt.Errorf("%s can't be reached from here: %s", p.Desired, strings.Join(all, "; "))}
}

// owned returns the kernel arguments that are ours once the plan is carried out.
func (h *Host) owned(r *transaction.Record, booted ostree.Deployment, cfg *machineconfig.Config,
	p *plan.Plan) []string {
	if !h.setsArguments() {
		return nil
	}
	var owned []string
	if r.Committed != nil {
		owned = r.Committed.OwnedKargs
	}
	if slices.ContainsFunc(p.Skipped, func(c plan.Change) bool { return c.Kind == plan.Kargs }) {
		return owned
	}
	_, _, now := kargs.Own(booted.KernelArguments, owned, cfg.KernelArguments)
	return now
}

// observed returns the old configuration as the host has it now. Drift then counts as a difference like any other, and
// takes the actions of its policy.
func observed(old *machineconfig.Config, drift []Drift) *machineconfig.Config {
	drifted := map[string][]string{}
	for _, d := range drift {
		drifted[d.key()] = append(drifted[d.key()], d.What)
	}
	return layout.Drifted(old, drifted)
}
