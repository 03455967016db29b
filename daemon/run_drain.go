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

// drainRequest returns the current request for the drainer.
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

// drainPolicy returns the policy of the drain. A node whose host is between two deployments is not given back, because
// its current deployment may still fail the verdict. The drain of such a node continues where the policy would suspend
// it.
func (v *situation) drainPolicy() *api.DrainPolicy {
	p := v.node.Orders.Drain
	if p == nil || p.OnTimeout != api.DrainHolds || v.host == nil || !v.pending() {
		return p
	}
	stays := *p
	stays.OnTimeout, stays.HoldSeconds = api.DrainRetries, 0
	return &stays
}

// overtaken reports whether a drain runs by a policy that has changed since.
func (h *Head) overtaken(v *situation) bool {
	return h.job.phase == PhaseDrain && !same(h.job.policy, v.node.Orders.Drain)
}

// excludes reports whether the node is to leave the load balancers, and has not been told to yet.
func (v *situation) excludes() bool {
	return v.node.Orders.Drain.Excludes() && v.node.Excluded == nil && !v.excluded && v.drained.IsZero() && !v.pending() &&
		!v.applying
}

// holdDrain gives the node back for a while, because its drain has reached a limit at which the policy demands that.
func (h *Head) holdDrain(timeout *drain.TimeoutError, policy *api.DrainPolicy, now time.Time) {
	since := now.UTC().Truncate(time.Second)
	hold := &api.DrainHold{Config: h.way.to, Since: since, Until: since.Add(policy.HoldFor()),
		Why: api.ShortReason(timeout.Error()), Policy: policy}
	h.drain, h.way.drained = nil, time.Time{}
	h.heldSaid = false
	h.giveBack(hold)
	h.cluster.announce(corev1.EventTypeWarning, "DrainHeld", fmt.Sprintf(
		"The drain for %s is given up until %s, and the node serves: %s", hold.Config, hold.Until.Format(time.RFC3339),
		hold.Why))
}

// giveBack lets the node serve for the time of a hold. The hooks are asked again after it.
func (h *Head) giveBack(hold *api.DrainHold) {
	h.drainHold, h.way.asked = hold, false
	h.way.failure = &failure{phase: PhaseHooks, kind: failHeld, reason: reasonDrainHeld, tries: 1, since: hold.Since,
		text:  fmt.Sprintf("the drain is tried again at %s: %s", hold.Until.UTC().Format(time.RFC3339), hold.Why),
		retry: hold.Until}
}

// followHold ends a hold when its time is over or another policy is in force. It also ends a hold when a person removes
// its annotation or lets the host continue by hand. followHold continues a hold that an earlier head has begun.
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

// overHold reports whether this head has already ended the hold that the Node still shows.
func (h *Head) overHold(said *api.DrainHold) bool {
	return h.lastHold != nil && h.lastHold.Config == said.Config && h.lastHold.Since.Equal(said.Since)
}

// same reports whether two policies ask for the same, however they are written.
func same(a, b *api.DrainPolicy) bool { return equality.Semantic.DeepEqual(a, b) }

// hear takes over the latest report of a drain, also after the end of the drain: forced deletions must not be missed.
func (h *Head) hear(j *job) {
	if d := j.latest.Swap(nil); d != nil {
		h.draining(*d)
	}
}

// drainWaits returns what the running drain waits for; nil: no drain runs, or nothing is known.
func (h *Head) drainWaits() *api.Drain {
	if h.job == nil || h.job.phase != PhaseDrain || h.cluster.current() == nil {
		return nil
	}
	return h.waiting()
}

// forced announces each pod that a drain has deleted although the pod refused to go.
func (h *Head) forced(d *api.Drain) {
	for ; h.job != nil && h.job.forced < len(d.Forced); h.job.forced++ {
		name := d.Forced[h.job.forced]
		h.metrics.drainForced.Inc()
		h.cluster.announce(corev1.EventTypeWarning, "DrainForced", fmt.Sprintf(
			"Deleted pod %s, which refused eviction: the RolloutPolicy demands so after the limit of a drain", name))
	}
}

// drainLimit returns the limit of the drain's phase, where the drain continues after that, and this was not announced.
func (h *Head) drainLimit() time.Time {
	d := h.drainWaits()
	if d == nil || d.Phase == api.DrainExcludes || d.OnTimeout == api.DrainHolds || h.lateSaid.Equal(d.Limit) {
		return time.Time{}
	}
	return d.Limit
}

// overdue announces once that a phase of the drain has reached its limit.
func (h *Head) overdue(now time.Time) {
	if !isDue(h.drainLimit(), now) {
		return
	}
	d := h.waiting()
	h.lateSaid = d.Limit
	next := "the drain continues"
	switch {
	case d.OnTimeout == api.DrainForces && d.Phase == api.DrainDetaches:
		next = "the update continues without waiting for the volumes"
	case d.OnTimeout == api.DrainForces:
		next = "pods that refuse eviction are deleted"
	}
	h.cluster.announce(corev1.EventTypeWarning, "DrainTimedOut", fmt.Sprintf(
		"The drain for %s has reached the limit of its phase %s at %s, and %s: %s", d.Config, d.Phase,
		d.Limit.Format(time.RFC3339), next, waits(d)))
}

// waits describes what a drain waits for.
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
