// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/reboots"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// RebootWanted asks everything that may want a reboot of the host, and keeps the answers for the status. One process
// asks at a time, because the programs run as units of fixed names.
func (h *Host) RebootWanted(ctx context.Context) (*reboots.Answer, error) {
	release, err := h.lockFile(ctx, reboots.LockName, agent.WantedVerb.Name, "asks for reboots", agent.WantedVerb.Limit)
	if err != nil {
		return nil, err
	}
	defer release()
	r, err := h.store().Load()
	if err != nil {
		return nil, err
	}
	out := &reboots.Answer{Reasons: []api.RebootReason{}}
	said, _ := reboots.Recall(h.root, h.bootID(), r.Rebooted)
	if h.services != nil {
		if h.plain == nil {
			if err := said.AskNeeds(ctx, h.root, h.units); err != nil {
				out.Warnings = append(out.Warnings, message.OneLine(err.Error()))
			}
		}
		if said.Hook, said.Said, err = h.askWanted(ctx, r); err != nil {
			return nil, err
		}
	}
	wanted, err := h.wantsReboot(ctx, r, &said)
	if err != nil {
		return nil, err
	}
	if wanted != nil {
		out.Reasons = wanted.Reasons
	}
	out.Withheld = r.Withheld
	return out, reboots.Keep(h.root, h.bootID(), said, wanted)
}

// askWanted asks the hooks in their order. The first one that wants a reboot is the answer.
func (h *Host) askWanted(ctx context.Context, r *transaction.Record) (hook, said string, err error) {
	all, err := h.hooks(hooks.RebootWanted, hooks.Document{})
	if err != nil {
		return "", "", err
	}
	environment, err := h.hookEnvironment(ctx, hooks.RebootWanted, r, "", "", "")
	if err != nil {
		return "", "", err
	}
	return reboots.AskHooks(all, func(one hooks.Hook, hear func(line string)) error {
		return h.runHook(ctx, hooks.RebootWanted, one, environment, hear)
	})
}

// wantsReboot returns why the host wants a reboot; said are the answers of programs, nil for those that were kept.
func (h *Host) wantsReboot(ctx context.Context, r *transaction.Record,
	said *reboots.Answers) (*api.RebootWanted, error) {
	seen, err := reboots.Read(h.root, h.plain == nil)
	if err != nil {
		return nil, err
	}
	if r.Pending.NeedsReboot() {
		seen.Configuration, seen.Committed = r.Pending.Config, r.Since
	}
	kept, before := reboots.Recall(h.root, h.bootID(), r.Rebooted)
	if seen.Answers = kept; said != nil {
		seen.Answers = *said
	}
	if h.plain != nil {
		all, err := h.deployments.Status(ctx)
		if err != nil {
			return nil, err
		}
		next := reboots.Next(all, r.LeadsTo)
		if next != nil {
			// An update may have committed the deployment since the record was read.
			now, err := h.store().Load()
			if err != nil {
				return nil, err
			}
			next = reboots.Next(all, now.LeadsTo)
		}
		seen.Next = reboots.Describe(h.root, next)
	}
	return reboots.Reasons(seen, r.Withheld, before, h.now()), nil
}

// RebootOrder asks for one reboot.
type RebootOrder struct {
	// ID names the order: one that was carried out is not carried out again. A person's has none.
	ID, Why string
	// Method is as in RebootOptions, but a host that can't restart its userspace alone refuses MethodSoft. Cluster and
	// Hooks are as in ApplyOptions.
	Method  transaction.Method
	Cluster bool
	Hooks   hooks.Document
	Timeout time.Duration
}

// Reboot reboots the host once, and has the boot proved as that of an update.
func (h *Host) Reboot(ctx context.Context, o RebootOrder) (*Result, error) {
	res := &Result{Reboot: RebootNone}
	r, err := h.store().Load()
	if err == nil {
		err = h.carryOutOrder(ctx, r, o, res)
	}
	return h.result(ctx, res, r), err
}

func (h *Host) carryOutOrder(ctx context.Context, r *transaction.Record, o RebootOrder, res *Result) error {
	if h.services == nil {
		return errors.New("rebooting: this is a directory, and no host that runs")
	}
	if err := h.contradicts(r); err != nil {
		return err
	}
	out, err := h.engine().Recover(ctx, r)
	if err != nil && r.Pending != nil {
		return fmt.Errorf("recovering the unfinished update: %w", err)
	}
	was, p := r.Rebooted, r.Pending
	a := &attempt{record: r, result: res, order: reboots.Ordered(h.root, h.bootID(), o.ID, o.Why),
		options: ApplyOptions{RebootOptions: RebootOptions{Method: o.Method, Timeout: o.Timeout},
			Cluster: o.Cluster, Hooks: o.Hooks}}
	switch {
	case out.Rebooting:
		res.Reboot = RebootStarted
		return nil
	case p == nil || p.Road == transaction.RoadReboot && p.Phase == transaction.PhaseBoot:
		if p == nil && o.ID != "" && was != nil && was.ID == o.ID {
			return nil // that order is over
		}
		return h.rebootAsIs(ctx, a)
	case p.Phase == transaction.PhaseBoot:
		cfg, err := h.revision(&p.Revision)
		if err != nil {
			return err
		}
		a.cfg, a.options.SkipOS = cfg, len(p.Skipped) > 0
		return h.apply(ctx, a)
	}
	return &Refused{Err: fmt.Errorf("rebooting: %s is under way (%s); its verdict comes first", p.Config, p.Phase)}
}

// rebootAsIs reboots without a change of the configuration.
func (h *Host) rebootAsIs(ctx context.Context, a *attempt) (err error) {
	r, b := a.record, transaction.Reboot{Rebooted: *a.order,
		Timeout: cmp.Or(a.options.Timeout, api.DefaultVerdictTimeout)}
	b.Soft = a.options.soft()
	if err := h.mayReboot(ctx, r, &b); err != nil {
		if errors.As(err, new(*UnreachableError)) {
			err = errors.Join(err, h.engine().RefuseReboot(ctx, r, b.Rebooted, err))
		}
		return err
	}
	a.cfg, _ = h.revision(r.Committed)
	a.cfg = cmp.Or(a.cfg, &machineconfig.Config{})
	if err := h.otherManagers(ctx, a.cfg, true); err != nil {
		return err
	}
	if err := h.refuseInhibited(ctx, a); err != nil {
		return err
	}
	if !a.options.Cluster {
		if err := h.askBeforeDrain(ctx, r, a.cfg.Name, "", a.options.Hooks); err != nil {
			return err
		}
	}
	if err := errors.Join(h.keepHooks(a.cfg.Digest, a.options.Hooks), h.installOwn(ctx, a)); err != nil {
		return err
	}
	if b.Baseline, err = h.baseline(ctx, a.options.Cluster); err == nil {
		err = h.nodeHeld(a.options.Cluster)
	}
	if err == nil && h.plain != nil && b.Soft { // of the deployment that runs
		err = h.deployments.ResetSoftReboot(ctx)
	}
	if err != nil {
		return err
	}
	if h.plain == nil {
		b.Kernel = reboots.Newest(h.root)
	}
	return reboots.CarryOut(ctx, h.engine(), r, b, func() error {
		h.say("reboot", b.Why)
		return h.goDown(ctx, a, b.Next, "")
	})
}

// mayReboot finds out where a reboot leads, and refuses an order that can't be carried out.
func (h *Host) mayReboot(ctx context.Context, r *transaction.Record, b *transaction.Reboot) (err error) {
	var all []ostree.Deployment
	if h.plain != nil {
		if all, err = h.deployments.Status(ctx); err != nil {
			return fmt.Errorf("reading deployments: %w", err)
		}
	}
	if b.Soft {
		limited, cancel := context.WithTimeout(ctx, BusTimeout)
		defer cancel()
		_, err = systemd.SoftReboots(limited)
	}
	if b.Booted, b.Next, err = reboots.Leads(all, r.Withheld, b.Soft, err); err != nil {
		return &UnreachableError{Err: err}
	}
	return nil
}

// takeReboot records that the reboot of a committed update begins now.
func (h *Host) takeReboot(ctx context.Context, a *attempt) error {
	return h.engine().TakeReboot(a.record, a.order, func() (transaction.Baseline, error) {
		return h.baseline(ctx, a.options.Cluster)
	})
}

// afterReboot ends an ordered reboot before another operation: one that has not come is withdrawn, and one that waits
// for its verdict gets it.
func (h *Host) afterReboot(ctx context.Context, r *transaction.Record, do transaction.Todo, res *Result) error {
	if do == transaction.AwaitBoot {
		return h.engine().WithdrawReboot(ctx, r, "withdrawn in favour of another operation, before the reboot came")
	}
	err := h.prove(ctx, r)
	if bad, is := errors.AsType[*transaction.BadBoot](err); is {
		if !bad.Back {
			return nil
		}
		res.Reboot = RebootStarted
	}
	return err
}
