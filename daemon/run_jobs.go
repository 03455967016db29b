// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/plan"
)

// job is the one long operation that is running.
type job struct {
	phase  Phase
	config string
	began  time.Time
	cancel context.CancelCauseFunc
	policy *api.DrainPolicy // the policy when the job began
	forced int              // deleted pods that were announced
	// approved is the only OS that the job may go to; empty: any.
	approved string
	// latest is the latest report of a drain, where the loop has not taken it over yet.
	latest atomic.Pointer[api.Drain]
}

// jobEnd is the result of a job.
type jobEnd struct {
	job *job
	err error
	// The facts that the job found out.
	request  hands.Request
	plan     *plan.Plan
	forecast *api.Drain
	result   *host.Result
	drift    *host.Verification
	repaired []string
	staged   *api.Staged
}

// start begins the operation of a phase, if the phase has one and none is running.
func (h *Head) start(ctx context.Context, v *situation, p phase) {
	switch {
	case h.job != nil || h.running[choreDeliver]:
		// Work that compares or changes the host meanwhile would meet a half-finished delivery.
	case atRest(p.name):
		if p.name == PhaseDone {
			h.way.request, h.way.plan = hands.Request{}, nil // a document may be large; it is read again before use
			h.way.failure = nil
		}
		h.do(ctx, v, whileIdle)
	case !p.job || p.name == PhaseApply && v.now.Sub(h.spoke) > wordFresh:
		// The phase has no operation, or the host must get the report on the node before the update.
	default:
		h.startOnTheWay(ctx, v, p.name)
	}
}

func (h *Head) unstageDue(v *situation) time.Time {
	return v.from(v.leftover(), h.way.unstageAt)
}

func (h *Head) unstage(ctx context.Context, v *situation) {
	h.run(ctx, phaseUnstage, v.node.Desired,
		func(ctx context.Context, _ *jobEnd) error { return h.o.Hands.Unstage(ctx) })
}

// startOnTheWay begins the operation of a phase on the way to the desired configuration. The operation runs beside the
// loop, so it gets copies of what it needs from the loop.
func (h *Head) startOnTheWay(ctx context.Context, v *situation, p Phase) {
	desired, w := v.node.Desired, h.way
	if o := v.node.Orders.Stage; o != nil && !v.node.Bootc && api.SameContent(o.Config, api.Rendered(desired)) {
		going := *o
		going.MinFreeMebibytes = 0 // a full disk is no reason to drop an OS that is on it already
		w.request.Order = &going
	}
	watch := h.cluster.watch(desired)
	waits := p == PhaseHooks || p == PhaseApply && h.o.Asker != nil && !v.pending() && v.plan.Reboot
	if p == PhaseHooks {
		h.way.askedWith = h.cluster.hooksText(desired)
	}
	request := h.drainRequest(v)
	if p == PhaseApply {
		h.tellHold(ctx, true, "") // a report about an earlier update may still count
	}
	reboots := v.reboots()
	w.request.NoReboot, w.request.Reboot, w.request.Method = v.manual, v.due(), v.node.Orders.RebootMethod
	var do func(context.Context, *jobEnd) error
	switch p {
	case PhasePlan:
		if signatures := h.cluster.signatures(desired); signatures != h.way.signatures {
			h.way.signatures, h.way.request.Config = signatures, nil // the host reads them in the document
		}
		do = h.planning(v)
	case PhaseStage:
		do = func(ctx context.Context, e *jobEnd) error { return h.stage(ctx, w, v.drains(), request.Policy, e) }
	case PhaseHooks:
		do = func(ctx context.Context, _ *jobEnd) error {
			doc, err := h.hooks(ctx, watch, desired, waits)
			if err != nil {
				return err
			}
			return h.o.Asker.Ask(ctx, hands.Request{Name: desired, Document: doc})
		}
	case PhaseDrain:
		do = func(ctx context.Context, e *jobEnd) error {
			return h.o.Drainer.Run(ctx, request, func(d api.Drain) {
				e.job.latest.Store(&d)
				h.ring()
			})
		}
	default:
		do = func(ctx context.Context, e *jobEnd) (err error) {
			r := w.request
			if r.Document, err = h.hooks(ctx, watch, desired, waits); err != nil {
				return err
			}
			if reboots {
				r.Name, r.Config, r.Policy = desired, nil, nil
				e.result, err = h.o.Rebooter.Reboot(ctx, r)
				return err
			}
			e.result, err = h.o.Hands.Apply(ctx, r)
			return err
		}
	}
	h.run(ctx, p, desired, do)
	h.job.policy = v.node.Orders.Drain
	if o := w.request.Order; o != nil {
		h.job.approved = o.Digest
	}
}

// planning returns the operation that reads the desired configuration and makes the plan, after a comparison for drift.
func (h *Head) planning(v *situation) func(context.Context, *jobEnd) error {
	desired := v.node.Desired
	r := hands.Request{Name: desired, Config: h.way.request.Config, Lift: v.lifted(), Beside: v.node.Bootc,
		Method: v.node.Orders.RebootMethod}
	told := v.node.Values
	compare := !v.pending() && v.host.Config.Committed != "" && h.o.Verifier != nil
	missing := h.cluster.config(desired) == gone
	var policy *configWatch
	if leaves(v) {
		policy = h.cluster.watch(desired)
	}
	return func(ctx context.Context, e *jobEnd) error {
		if missing {
			if err := h.restoreDesired(ctx, &r); err != nil {
				return err
			}
		}
		if compare {
			if err := h.preflight(ctx, &r, policy, e); err != nil {
				return err
			}
		}
		return h.plan(ctx, r, told, e)
	}
}

func (h *Head) run(ctx context.Context, p Phase, config string, do func(context.Context, *jobEnd) error) {
	ctx, cancel := context.WithCancelCause(ctx)
	h.job = &job{phase: p, config: config, began: time.Now(), cancel: cancel}
	e := jobEnd{job: h.job}
	go func() {
		e.err = do(ctx, &e)
		h.ended <- end{string(p), func() { h.finish(e) }}
	}()
}

// plan finds out the way to a configuration. The content of a name never changes, so the document is
// read once; its signatures may.
func (h *Head) plan(ctx context.Context, r hands.Request, told api.ToldValues, e *jobEnd) (err error) {
	if r.Config == nil {
		if r.Config, err = h.cluster.document(ctx, r.Name); err != nil {
			return err
		}
		if r.Config, err = h.withValues(ctx, r.Name, r.Config, told); err != nil {
			return err
		}
	}
	e.request = r
	if e.request.Policy, err = h.cluster.policy(ctx); err != nil {
		return err
	}
	if e.plan, err = h.o.Hands.Plan(ctx, e.request); err != nil {
		return err
	}
	return host.Unreconcilable(e.plan)
}

// stage brings to the host everything that can be there before the node stops serving. It also forecasts the drain, so
// that people get the warning as early as possible.
func (h *Head) stage(ctx context.Context, w way, drains bool, policy *api.DrainPolicy, e *jobEnd) error {
	if err := h.stageApproved(ctx, w.request, e); err != nil {
		return err
	}
	if !drains {
		return nil
	}
	forecast, err := h.o.Drainer.Forecast(ctx, policy)
	if err != nil {
		h.log.Warn("forecasting the drain", zap.Error(err))
		return nil
	}
	if len(forecast.Waiting) == 0 {
		return nil // no reason for a warning
	}
	forecast.Config, forecast.Since = w.to, time.Now().UTC().Truncate(time.Second)
	e.forecast = &forecast
	return nil
}

// waiting returns what the drain for the desired configuration waits for, or would wait for; nil: nothing known. Until
// there is a newer report, that of an earlier head counts.
func (h *Head) waiting() *api.Drain {
	if h.drain == nil || h.drain.Config != h.way.to {
		return nil
	}
	return h.drain
}

// draining takes over the report of a running drain.
func (h *Head) draining(d api.Drain) {
	if last := h.drain; last != nil && last.Config == d.Config && last.Since.Before(d.Since) {
		d.Since = last.Since
	}
	if last := h.drain; last == nil || !last.Since.Equal(d.Since) || h.complainAt.IsZero() {
		h.complainAt = d.Since.Add(drainLong)
	}
	h.forced(&d)
	h.drain = &d
	h.metrics.drain(&d)
	h.overdue(time.Now())
	if f := h.way.failure; f != nil && f.phase == PhaseDrain {
		f.kind = failTransient // the tries still count if this one fails too
	}
}

// finish takes over the result of an operation.
func (h *Head) finish(e jobEnd) {
	now := time.Now()
	h.hear(e.job)
	e.job.cancel(nil)
	h.job = nil
	h.passed(e.job.phase, e.job.config, now.Sub(e.job.began), outcomeOf(e.err), e.err)
	if e.job.phase == PhaseHooks {
		h.metrics.hookRuns.WithLabelValues(outcomeOf(e.err)).Inc()
	}
	h.announceServices(e.result)
	switch {
	case e.job.phase == phaseVerify:
		h.verified(e, now)
		return
	case e.job.phase == phaseRepair:
		h.mended(e, now)
		return
	case e.drift != nil:
		h.found(e.drift, now, now.Sub(e.job.began))
	}
	if e.job.phase != PhasePlan {
		// The host has to be read again.
		h.askAt, h.read, h.late = time.Time{}, false, h.running[choreRead]
	}
	if e.job.phase == PhaseDrain {
		h.metrics.drain(nil)
	}
	if e.job.phase == phaseAhead {
		h.aheadEnded(e, now)
		h.way.unstageAt = time.Time{} // there may be another OS to remove
		return
	}
	if e.staged != nil {
		h.sawStaged(e.staged)
	}
	if e.job.phase == phaseUnstage {
		if e.job.config == h.way.to {
			h.way.unstageAt = now.Add(jitter(unstagePace))
		}
		return // an unstage is no part of the way
	}
	h.wentOn(e, now)
}

// wentOn takes over the result of an operation on the way to a configuration, where that is still the desired one.
func (h *Head) wentOn(e jobEnd, now time.Time) {
	if errors.Is(e.err, context.Canceled) || e.job.config != h.way.to {
		if h.drain != nil && h.drain.Config == e.job.config {
			h.drain = nil
		}
		return
	}
	if e.request.Config != nil {
		h.way.request = e.request
	}
	timeout, held := errors.AsType[*drain.TimeoutError](e.err)
	switch {
	case held:
		h.holdDrain(timeout, e.job.policy, now)
	case e.err != nil:
		h.failed(e, now)
	default:
		h.succeeded(e, now)
	}
}

// failed records why the way is not passable now, and which facts have to be found out again.
func (h *Head) failed(e jobEnd, now time.Time) {
	h.unapproved(&e)
	kind, reason := h.classify(e.job.phase, e.err)
	h.heldBy(e.err, now)
	at, text := e.job.phase, message.OneLine(e.err.Error())
	if drifted, is := errors.AsType[*host.DriftError](e.err); is {
		at, text = PhasePlan, driftReason(drifted) // a node that waits for a person may as well serve
	}
	h.way.failure = fail(h.way.failure, at, kind, reason, text, now)
	if kind == failHeld {
		h.way.asked = false
	} else if kind != failTransient {
		h.way.plan = nil // the plan may be the cause
	}
}

// succeeded records what is known about the way from now on.
func (h *Head) succeeded(e jobEnd, now time.Time) {
	if f := h.way.failure; f != nil && !before(e.job.phase, f.phase) {
		h.way.failure = nil
	}
	switch e.job.phase {
	case PhasePlan:
		h.way.plan = e.plan
		h.warnOverwrite(e)
		h.warnPlan(e.plan)
	case PhaseStage:
		h.way.staged = true
		if h.waiting() == nil {
			h.drain = e.forecast
			h.warn(e.forecast)
		}
	case PhaseHooks:
		h.agreed()
	case PhaseDrain:
		h.way.drained, h.drain, h.open = now, nil, false
	case PhaseApply:
		if e.result != nil && e.result.Reboot == host.RebootStarted {
			h.way.rebooting = now
		}
	}
}

// warn announces before the first eviction what the drain will wait for.
func (h *Head) warn(forecast *api.Drain) {
	if forecast != nil && len(forecast.Waiting) > 0 {
		h.cluster.announce(corev1.EventTypeWarning, "DrainWillWait",
			"The drain for "+forecast.Config+" will wait: "+waits(forecast))
	}
}

// complainDue returns when the next warning about a drain is due that waits for longer than it should. The drain
// continues to wait.
func (h *Head) complainDue() time.Time {
	d := h.drainWaits()
	if d == nil {
		return time.Time{}
	}
	return later(h.complainAt, d.Since.Add(drainLong))
}

func (h *Head) complain(now time.Time) {
	h.complainAt = now.Add(drainAgain)
	d := h.waiting()
	h.cluster.announce(corev1.EventTypeWarning, "FailedToDrain",
		fmt.Sprintf("The drain for %s waits since %s: %s", d.Config, d.Since.Format(time.RFC3339), waits(d)))
}

// heldText is the text about a long wait. Each change of the text is a write, so changes are rare.
type heldText struct {
	since time.Time // when the wait began
	text  string
	due   time.Time // when the text may change
}

// next returns the text at now about a wait since a time, the zero time for no wait.
func (t *heldText) next(since time.Time, says func() string, now time.Time) string {
	switch {
	case since.IsZero():
		*t = heldText{}
	case !t.since.Equal(since):
		*t = heldText{since: since, due: since.Add(heldShown)}
	}
	if !t.due.IsZero() && !now.Before(t.due) {
		t.text, t.due = says(), now.Add(heldShown)
	}
	return t.text
}

// holds returns what the update waits for: an OS that is being pulled, or pods that a drain waits for.
func (h *Head) holds() (since time.Time, says func() string) {
	if h.job != nil && h.job.phase == PhaseStage {
		if p := h.host.Pulling; p != nil && h.job.config == h.way.to {
			since, _ = time.Parse(time.RFC3339, p.Since) // a time that can't be read is not reported
			return since, func() string { return "the OS is pulled since " + p.Since + ": " + p.Says }
		}
		return time.Time{}, nil
	}
	if d := h.waiting(); d != nil && (len(d.Waiting) > 0 || drain.StepText(d) != "") {
		return d.Since, func() string { return "the drain waits: " + waits(d) }
	}
	return time.Time{}, nil
}

// quiet reports whether a drain has only just begun, and waits only for the end of pods. Most drains have to wait for
// that: a report and its removal would be two writes about a wait that is soon over.
func quiet(d *api.Drain, now time.Time) bool {
	return d != nil && now.Sub(d.Since) < drainQuiet &&
		!slices.ContainsFunc(d.Waiting, func(w api.WaitingPod) bool { return w.Why != api.DrainWaitTerminating })
}

// restoreDesired restores a desired configuration that was deleted, where the host has a copy: the host is on its way
// to it, or comes from it.
func (h *Head) restoreDesired(ctx context.Context, r *hands.Request) error {
	document, err := h.o.Senses.Config(ctx, r.Name)
	if err != nil {
		return errMissing(r.Name)
	}
	if _, err := h.cluster.restore(ctx, r.Name, document); err != nil {
		return &clusterError{fmt.Errorf("restoring MachineConfig %s: %w", r.Name, err)}
	}
	r.Config = document
	return nil
}

func (h *Head) restoreDue(v *situation) time.Time {
	return v.from(v.host != nil && v.exists && h.cluster.config(v.rendered()) == gone, h.restoreAt)
}

// restore restores a deleted configuration that this node is on.
func (h *Head) restore(ctx context.Context, v *situation) work {
	name := v.rendered()
	return func() func() {
		e := h.restored(ctx, name)
		return func() { h.finishRestore(e) }
	}
}

func (h *Head) restored(ctx context.Context, name string) restoreEnd {
	document, err := h.o.Senses.Config(ctx, name)
	if err != nil {
		return restoreEnd{err: fmt.Errorf("restoring MachineConfig %s: reading the host's copy: %w", name, err)}
	}
	created, err := h.cluster.restore(ctx, name, document)
	if err != nil {
		return restoreEnd{err: fmt.Errorf("restoring MachineConfig %s: %w", name, err)}
	}
	return restoreEnd{name: name, created: created}
}

// restoreEnd is the result of restoring a configuration. Another node may have been quicker.
type restoreEnd struct {
	name    string
	created bool
	err     error
}

func (h *Head) finishRestore(e restoreEnd) {
	h.restoreAt = time.Now().Add(jitter(restorePace))
	h.wrote(&h.restores, "restoring", e.err)
	if !e.created {
		return
	}
	h.log.Info("restored a deleted configuration", zap.String("config", e.name))
	h.cluster.announce(corev1.EventTypeWarning, "ConfigRestored",
		"MachineConfig "+e.name+" was deleted while this node has the configuration: the agent created the "+
			"object again, from the host's copy")
}
