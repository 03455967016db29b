// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/message"
)

// Rebooted is an ordered reboot, and what became of it.
type Rebooted struct {
	// ID names the order, "" for a person's on the host.
	ID    string    `json:"id,omitempty"`
	Why   string    `json:"why,omitempty"`
	Begun time.Time `json:"begun"`
	// Ended is when the verdict came. Failed is why the verdict was no, or why the order could not be carried out.
	Ended     time.Time `json:"ended,omitzero"`
	Failed    string    `json:"failed,omitempty"`
	TakenBack bool      `json:"takenBack,omitempty"`
	// Soft means that only the userspace is restarted.
	Soft bool `json:"soft,omitempty"`
	// Kernel is the newest kernel that was installed. Wanted is since when programs of the host had said that they want a
	// reboot, by api.RebootKind: the same answer right after the boot is no new want. Boot is the boot in which the order
	// ended. Each answer of a later boot is new.
	Kernel string               `json:"kernel,omitempty"`
	Wanted map[string]time.Time `json:"wanted,omitempty"`
	Boot   string               `json:"boot,omitempty"`
	// Baseline, after a no, is for the next verdict. It is nil once the host was found healthy.
	Baseline *Baseline `json:"baseline,omitempty"`
	// Before is the state of a host that had rolled back, which a reboot does not change.
	Before *Standing `json:"before,omitempty"`
}

// Reboot is a boot without a change of the configuration.
type Reboot struct {
	Rebooted

	// Booted is the deployment that runs, and Next the one that is known to boot next; both are "" without ostree.
	Booted, Next string
	Timeout      time.Duration
	Baseline     Baseline
}

// BadBoot is the error of a boot after which the host did not prove healthy.
type BadBoot struct {
	Err error
	// Back means that the host goes back to the deployment before.
	Back bool
}

func (e *BadBoot) Error() string {
	return "the host did not prove healthy after its reboot: " + e.Err.Error()
}
func (e *BadBoot) Unwrap() error { return e.Err }

// BeginReboot records that a reboot is about to begin. The next boot, of any deployment, is to be proved.
func (e *Engine) BeginReboot(ctx context.Context, r *Record, o Reboot) error {
	if was := r.Pending; was != nil { // an earlier order, whose boots may be counted
		if err := e.uncount(was); err != nil {
			return cmp.Or(e.RefuseReboot(ctx, r, o.Rebooted, err), err)
		}
	}
	p := &Pending{Phase: PhaseBoot, Road: RoadReboot, From: o.Booted, BootID: e.BootID, MaxAttempts: maxAttempts,
		Timeout: o.Timeout, Baseline: o.Baseline}
	if r.Committed != nil {
		p.Revision = *r.Committed
	}
	p.Deployment, p.Transaction = o.Next, "" // the journal stays that of the committed revision
	if o.Soft {
		p.SoftReboot = SoftStarted
	}
	r.order(o.Rebooted, e.Now())
	if was := r.Rebooted.Baseline; was != nil {
		p.Baseline = *was
	}
	r.Pending = p
	e.setState(r, Working, "rebooting: "+o.Why)
	if err := errors.Join(e.Root.MkdirAll(StateDir, 0o700), e.store().save(r), fault("reboot recorded")); err != nil {
		return err
	}
	if err := e.countReboot(ctx, p); err != nil {
		return errors.Join(err, e.WithdrawReboot(ctx, r, err.Error()))
	}
	return nil
}

// order notes that an order begins. A verdict that is due since an earlier order stays due.
func (r *Record) order(o Rebooted, now time.Time) {
	o.Begun = now.UTC().Truncate(time.Second)
	if was := r.Rebooted; was != nil {
		o.Baseline = was.Baseline
		if was.Ended.IsZero() {
			o.Before = was.Before
		}
	}
	if r.State == RolledBack {
		was := r.Standing
		o.Before = &was
	}
	r.Rebooted = &o
}

// RefuseReboot records that an order can't be carried out. An earlier order that has not come to its boot ends, too.
func (e *Engine) RefuseReboot(ctx context.Context, r *Record, o Rebooted, why error) error {
	r.order(o, e.Now())
	if r.Pending != nil {
		return e.WithdrawReboot(ctx, r, why.Error())
	}
	r.Rebooted.failed(why.Error())
	r.Rebooted.ends(e.BootID, r.State, "", r.Rebooted.Begun)
	return errors.Join(e.Root.MkdirAll(StateDir, 0o700), e.store().save(r))
}

// WithdrawReboot forgets a reboot that has not come, or whose verdict is not needed any more. The order ends also where
// the boot loader goes on counting, which the error says.
func (e *Engine) WithdrawReboot(ctx context.Context, r *Record, why string) error {
	e.noReboot(ctx, r)
	err := e.uncount(r.Pending)
	r.Rebooted.failed(why)
	e.over(r, "")
	return errors.Join(err, e.store().save(r))
}

// over ends a reboot after which the host has what it had before.
func (e *Engine) over(r *Record, reason string) {
	r.Pending = nil
	e.setState(r, Done, reason)
	if o := r.Rebooted; o != nil && o.Before != nil {
		r.Standing, o.Before = *o.Before, nil
	}
}

// failed notes why an order that has not ended ends without its reboot.
func (o *Rebooted) failed(why string) {
	if o != nil && o.Ended.IsZero() {
		o.Failed = message.OneLine(why)
	}
}

// decideReboot decides about an ordered reboot. The deployment that boots is proved. Where that is the deployment
// before, and the other one is still the default, the host goes back: each boot would try the other one again.
func decideReboot(p *Pending, s situation) Decision {
	fellBack := p.deploys() && s.Booted == p.From && s.Default == p.Deployment
	other := *p
	other.Config = p.Deployment
	switch {
	case p.Phase == PhaseBoot && (s.BootID == p.BootID || p.SoftReboot == "" && sameKernel(s.BootID, p.BootID)):
		return Decision{Do: AwaitBoot, Why: "the ordered reboot is still to come"}
	case p.Phase == PhaseBoot && !fellBack:
		return Decision{Do: FirstBoot, Why: "first boot after the ordered reboot"}
	case s.Booted != p.From && s.Booted != p.Deployment:
		return Decision{Do: Foreign, Why: fmt.Sprintf("booted deployment %s is neither %s, from which the host was "+
			"rebooted, nor %s; %s", s.Booted, p.From, p.Deployment, elsewhere)}
	case p.Phase == PhaseUndo && s.Booted == p.Deployment:
		return Decision{Do: GoBack, Why: p.Reason}
	case p.Phase == PhaseUndo:
		return Decision{Do: Returned, Why: p.Reason}
	case s.Booted != p.Deployment:
		return Decision{Do: Returned, Why: other.unproved(s)}
	case s.BootID != p.BootID && p.Attempts >= p.MaxAttempts:
		return Decision{Do: GoBack, Why: fmt.Sprintf("the host was booted %d times and never proved healthy", p.Attempts)}
	case s.BootID != p.BootID:
		return Decision{Do: FirstBoot, Why: fmt.Sprintf("boot %d after the ordered reboot, which is not proved yet",
			p.Attempts+1)}
	case s.Uptime > p.Deadline:
		return Decision{Do: GoBack, Why: fmt.Sprintf("the host did not prove healthy within %s after its reboot", p.Timeout)}
	}
	return Decision{Do: AwaitProof, Why: "the host is being proved after its reboot"}
}

// settleReboot ends an ordered reboot after which the host is healthy.
func (e *Engine) settleReboot(r *Record) error {
	p, o := r.Pending, r.Rebooted
	for _, step := range []func() error{
		func() error { return fault("settle") }, func() error { return e.uncount(p) },
		func() error { return fault("uncounted") },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	e.Say("settle", "the host is healthy after its reboot")
	if c := r.Committed; c != nil {
		c.Deployment, c.Unproved = p.Deployment, false
	}
	if release, err := e.Root.ReadFile("/proc/sys/kernel/osrelease"); err == nil && o != nil && p.SoftReboot == "" {
		if runs := strings.TrimSpace(string(release)); o.Kernel != "" && runs != o.Kernel {
			r.withhold(Withheld{Kind: "Kernel", Subject: o.Kernel, Why: "the reboot led to " + runs + " again"}, e.Now())
		}
	}
	if o != nil {
		o.Baseline = nil
	}
	e.over(r, "")
	return errors.Join(e.store().save(r), fault("settled"))
}

// withheldShown is how much is withheld at most: the oldest goes first.
const withheldShown = 10

func (r *Record) withhold(w Withheld, now time.Time) {
	w.Since = now.UTC().Truncate(time.Second)
	r.Withheld = slices.DeleteFunc(r.Withheld, func(o Withheld) bool { return o.Kind == w.Kind && o.Subject == w.Subject })
	r.Withheld = append(r.Withheld, w)
	r.Withheld = r.Withheld[max(0, len(r.Withheld)-withheldShown):]
}

// unhealthy keeps the host where it is after a no: there is no other deployment to go back to.
func (e *Engine) unhealthy(r *Record, why string) error {
	p := r.Pending
	err := e.uncount(p)
	if c := r.Committed; c != nil {
		c.Deployment = p.Deployment
	}
	if r.Rebooted == nil {
		r.Rebooted = &Rebooted{Begun: e.Now().UTC().Truncate(time.Second)}
	}
	baseline := p.Baseline
	r.Rebooted.Baseline, r.Pending = &baseline, nil
	e.setState(r, Degraded, "the host is not healthy since its reboot, and has nothing to go back to: "+why)
	e.Say("prove", r.Reason)
	return errors.Join(err, fault("unhealthy"), e.store().save(r))
}

// strands reports whether an ordered reboot has nothing to go back to.
func (e *Engine) strands(ctx context.Context, p *Pending) (bool, error) {
	if p.Road != RoadReboot || !p.deploys() {
		return p.Road == RoadReboot, nil
	}
	return e.gone(ctx, p.From)
}

// tookBack ends an ordered reboot whose deployment was given up. That deployment belongs to another program, and stays.
func (e *Engine) tookBack(r *Record, why string) error {
	p := r.Pending
	checksum, _, _ := strings.Cut(path.Base(p.Deployment), ".")
	r.withhold(Withheld{Kind: "Deployment", Subject: checksum, Why: why}, e.Now())
	if o := r.Rebooted; o != nil {
		o.Failed, o.TakenBack = why, true
	}
	e.over(r, fmt.Sprintf("deployment %s did not prove healthy, and the host went back from it: %s", p.Deployment, why))
	return errors.Join(fault("returned"), e.store().save(r), fault("rolled back"))
}

// ends notes the end of an ordered reboot, once nothing is pending.
func (o *Rebooted) ends(boot string, state State, reason string, now time.Time) {
	if o == nil || !o.Ended.IsZero() {
		return
	}
	o.Boot, o.Ended = boot, now
	if state != Done && o.Failed == "" {
		o.Failed, o.TakenBack = reason, state == RolledBack
	}
}

// JudgeBoot applies a verdict to a host that was not healthy after its reboot.
func (e *Engine) JudgeBoot(r *Record, verdict error) error {
	if verdict != nil {
		e.setState(r, Degraded, fmt.Sprintf("the host is not healthy since its reboot: %v", verdict))
	} else {
		r.Rebooted.Baseline = nil
		e.setState(r, Done, "")
	}
	return e.store().save(r)
}

// NeedsReboot reports whether an update is committed, and its reboot is left to people.
func (p *Pending) NeedsReboot() bool { return p != nil && p.Phase == PhaseBoot && p.NoReboot }

// LeaveReboot leaves the reboot of a committed update, or the way back to a deployment, to people.
func (e *Engine) LeaveReboot(ctx context.Context, r *Record) error {
	if p := r.Pending; p != nil && p.Phase != PhaseBoot {
		return nil
	}
	if changed := e.noReboot(ctx, r); !e.toPeople(r) && !changed {
		return nil
	}
	return errors.Join(e.store().save(r), fault("left to people"))
}

// toPeople leaves the reboot of a pending update to people, and reports whether the reboot was not left to them before.
func (e *Engine) toPeople(r *Record) bool {
	p := r.Pending
	if p == nil || p.NoReboot {
		return false
	}
	if p.NoReboot = true; r.Way.Loaded(e.BootID) == "" {
		r.Way = nil
	}
	e.setState(r, Working, needsReboot+p.Config+" is committed, and its reboot is left to people")
	return true
}

// BlockReboot records why the reboot of a committed update does not begin. The reboot stays due, and a soft reboot was
// not tried. left means that the reboot was left to people before. A person's order is over then, and the reboot is
// left to people again. An order of the agent stays, and the agent gives the order again.
func (e *Engine) BlockReboot(ctx context.Context, r *Record, left bool, why string) error {
	e.noReboot(ctx, r)
	if p := r.Pending; p != nil && p.SoftReboot == SoftStarted {
		e.bootBy(r, SoftPlanned)
	}
	if o := r.Rebooted; left && (o == nil || !o.Ended.IsZero() || o.ID == "") && e.toPeople(r) {
		o.ends(e.BootID, Degraded, why, e.Now())
	}
	return e.store().save(r)
}

// needsReboot begins the reason of a host whose reboot is left to people.
const needsReboot = "NeedsReboot: "

// TakeReboot records, right before the reboot of a committed update, the order that it carries out, where there is one.
// Where the reboot was left to people until now, baseline is the state of the host now.
func (e *Engine) TakeReboot(r *Record, order *Rebooted, baseline func() (Baseline, error)) error {
	p := r.Pending
	if p == nil || order == nil && !p.NoReboot {
		return nil
	}
	if p.NoReboot {
		now, err := baseline()
		if err != nil {
			return err
		}
		p.NoReboot, p.Baseline = false, now
		e.setState(r, Working, p.waiting())
	}
	if order != nil {
		r.order(*order, e.Now())
	}
	return e.store().save(r)
}
