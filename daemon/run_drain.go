// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
)

// drainRequest is what is asked of the drainer now.
func (h *Head) drainRequest(v *situation) drain.Request {
	r := drain.Request{Config: v.node.Desired, Policy: v.drainPolicy(), Last: h.waiting()}
	if v.node.Cordon != nil {
		r.Cordoned = v.node.Cordon.Since
	}
	if v.node.Excluded != nil {
		r.Excluded = v.node.Excluded.Since
	}
	return r
}

// drainPolicy is what the drain goes by. A host between two deployments is not given back, as nobody knows yet whether
// the one that it is on will do: its drain goes on where it would be held.
func (v *situation) drainPolicy() *api.DrainPolicy {
	p := v.node.Orders.Drain
	if p == nil || p.OnTimeout != api.DrainHolds || v.host == nil || !v.pending() {
		return p
	}
	stays := *p
	stays.OnTimeout, stays.HoldSeconds = api.DrainRetries, 0
	return &stays
}

// overtaken says that a drain runs by a policy that is not the one by now.
func (h *Head) overtaken(v *situation) bool {
	return h.job.phase == PhaseDrain && !same(h.job.policy, v.node.Orders.Drain)
}

// excludes says that the node is to go out of the load balancers, and that this was not taken care of.
func (v *situation) excludes() bool {
	return v.node.Orders.Drain.Excludes() && v.node.Excluded == nil && !v.excluded && v.drained.IsZero() && !v.pending() &&
		!v.applying
}

// holdDrain gives the node back for a while, as its drain has reached a limit at which the policy says so.
func (h *Head) holdDrain(timeout *drain.TimeoutError, policy *api.DrainPolicy, now time.Time) {
	since := now.UTC().Truncate(time.Second)
	hold := &api.DrainHold{Config: h.way.to, Since: since, Until: since.Add(policy.HoldFor()),
		Why: api.ShortReason(timeout.Error()), Policy: policy}
	h.drain, h.way.drained = nil, time.Time{}
	h.heldSaid = false
	h.giveBack(hold)
	if node := h.cluster.current(); node != nil {
		h.cluster.event(node, corev1.EventTypeWarning, "DrainHeld", fmt.Sprintf(
			"The drain for %s is given up until %s, and the node serves: %s", hold.Config, hold.Until.Format(time.RFC3339),
			hold.Why))
	}
}

// giveBack has the node serve for as long as a hold lasts. The hooks are asked again after it.
func (h *Head) giveBack(hold *api.DrainHold) {
	h.drainHold, h.way.asked = hold, false
	h.way.failure = &failure{phase: PhaseHooks, kind: failHeld, reason: reasonDrainHeld, tries: 1, since: hold.Since,
		text:  fmt.Sprintf("the drain is tried again at %s: %s", hold.Until.UTC().Format(time.RFC3339), hold.Why),
		retry: hold.Until}
}

// followHold ends a hold when its time is over, when another policy is in force, when somebody takes its annotation
// away or has the host go on by hand, and takes up one that a head before this one has begun.
func (h *Head) followHold(v *situation) {
	said := v.node.DrainHeld
	if f := h.way.failure; f != nil && f.reason == reasonDrainHeld && h.drainHold != nil {
		h.heldSaid = h.heldSaid || said != nil
		if !h.drainHold.Lasts(v.now) || h.heldSaid && said == nil || v.pending() ||
			!same(h.drainHold.Policy, v.node.Orders.Drain) {
			h.way.failure, h.drainHold, h.heldSaid = nil, nil, false
		}
	} else {
		h.drainHold = nil
		if f == nil && said != nil && said.Config == h.way.to && said.Lasts(v.now) && !v.pending() &&
			h.job == nil && !h.overHold(said) && same(said.Policy, v.node.Orders.Drain) {
			h.giveBack(said)
			h.heldSaid = true
		}
	}
	if h.drainHold != nil {
		h.lastHold = h.drainHold
	}
	v.drainHold = h.drainHold
}

// overHold says that this head has ended the hold already, and the Node still shows it.
func (h *Head) overHold(said *api.DrainHold) bool {
	return h.lastHold != nil && h.lastHold.Config == said.Config && h.lastHold.Since.Equal(said.Since)
}

// same says that two policies ask for the same, however they were written down.
func same(a, b *api.DrainPolicy) bool { return equality.Semantic.DeepEqual(a, b) }

// lastReport takes what a drain that is over has said before: that it was forced is not to be missed.
func (h *Head) lastReport(j *job) {
	if j.phase != PhaseDrain {
		return
	}
	select {
	case d := <-h.drains:
		if d.Config == j.config {
			h.draining(d)
		}
	default:
	}
}

// forced tells people of each pod that a drain has deleted although it refused to go.
func (h *Head) forced(d *api.Drain) {
	node := h.cluster.current()
	for ; h.job != nil && h.job.forced < len(d.Forced); h.job.forced++ {
		name := d.Forced[h.job.forced]
		h.metrics.drainForced.Inc()
		if node != nil {
			h.cluster.event(node, corev1.EventTypeWarning, "DrainForced", fmt.Sprintf(
				"Deleted pod %s, which refused to go: its RolloutPolicy says so of drains that have reached their limit", name))
		}
	}
}

// overdue tells people once that a phase of the drain has reached its limit, where it is not given up at that.
func (h *Head) overdue(now time.Time) {
	d, node := h.waiting(), h.cluster.current()
	if d == nil || node == nil || d.Limit.IsZero() || now.Before(d.Limit) || d.Phase == api.DrainExcludes ||
		d.OnTimeout == api.DrainHolds || h.lateSaid.Equal(d.Limit) || h.job == nil || h.job.phase != PhaseDrain {
		return
	}
	h.lateSaid = d.Limit
	next := "it goes on trying"
	switch {
	case d.OnTimeout == api.DrainForces && d.Phase == api.DrainDetaches:
		next = "it goes on without waiting for them"
	case d.OnTimeout == api.DrainForces:
		next = "what refuses to go is deleted"
	}
	h.cluster.event(node, corev1.EventTypeWarning, "DrainTimedOut", fmt.Sprintf(
		"The drain for %s has reached the limit of its phase %s at %s, and %s: %s", d.Config, d.Phase,
		d.Limit.Format(time.RFC3339), next, waits(d)))
}

// waits says what a drain waits for.
func waits(d *api.Drain) string {
	const shown = 3
	var texts []string
	if step := drain.StepText(d); step != "" {
		texts = append(texts, step)
	}
	for _, w := range d.Waiting[:min(shown, len(d.Waiting))] {
		texts = append(texts, drain.Sentence(w))
	}
	if more := len(d.Waiting) - shown; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}
