// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// policyDefinition is the name of the definition of RolloutPolicies.
const policyDefinition = "rolloutpolicies.noderefit.dev"

// policies returns the cluster's RolloutPolicies, and an empty list if the cluster does not have the kind. When a
// definition is deleted, its objects go too, which tells nothing of what people want. Until the objects are back, the
// last known policies hold, and no pool is released. Policies that this process has not seen are known by the notes on
// pools only.
func (r *reconciler) policies(ctx context.Context, pools []*mcfgv1.MachineConfigPool) (
	list []api.RolloutPolicy, until time.Time, err error,
) {
	if r.governed {
		var there api.RolloutPolicyList
		if err := r.client.List(ctx, &there); err != nil {
			return nil, until, fmt.Errorf("listing RolloutPolicies: %w", err)
		}
		list = there.Items
	}
	r.read.lost = ""
	gone := missing(r.known, list)
	if made := madeOf(gone, missingNotes(pools, append(gone, list...))); len(made) > 0 {
		var why string
		if why, until = r.away(ctx, earliest(made)); why != "" {
			list = append(list, gone...)
			r.read.lost = "the rules of the pool's RolloutPolicy are not known: " + why
		}
	} else {
		r.defined.Back()
	}
	r.known = list
	return clonePolicies(list), until, nil
}

// away returns why policies are missing that were there at the time made, although people did not delete them. until is
// when to ask again. why is empty if people deleted the policies.
func (r *reconciler) away(ctx context.Context, made time.Time) (why string, until time.Time) {
	soon := r.now().Add(longestSleep)
	why, until, err := r.defined.Away(ctx, policyDefinition, made)
	switch {
	case err != nil:
		// The last known policies hold then, too: pools go on, and no pool is released.
		log.FromContext(ctx).Error(err, "the definition of RolloutPolicies can't be asked for")
		if apierrors.IsForbidden(err) {
			return err.Error() + "; apply the roles of this release", soon
		}
		return err.Error() + "; the controller asks again", soon
	case why == "" && !r.governed:
		return "the cluster has CustomResourceDefinition/" + policyDefinition + " only since the controller started: " +
			"restart the controller if it does not restart by itself", soon
	}
	return why, until
}

// missing returns the policies that were known and are gone.
func missing(known, now []api.RolloutPolicy) []api.RolloutPolicy {
	var out []api.RolloutPolicy
	for i := range known {
		if !hasPolicy(now, known[i].Name) {
			out = append(out, known[i])
		}
	}
	return out
}

// missingNotes returns the pools' notes of policies that are not known.
func missingNotes(pools []*mcfgv1.MachineConfigPool, known []api.RolloutPolicy) []*api.PolicyNote {
	var out []*api.PolicyNote
	for _, p := range pools {
		if note := progress.Noted(p); note != nil && !hasPolicy(known, note.Name) {
			out = append(out, note)
		}
	}
	return out
}

func hasPolicy(list []api.RolloutPolicy, name string) bool {
	return slices.ContainsFunc(list, func(p api.RolloutPolicy) bool { return p.Name == name })
}

// madeOf returns the times at which policies were made. A time is zero where a note does not have it.
func madeOf(policies []api.RolloutPolicy, notes []*api.PolicyNote) []time.Time {
	var out []time.Time
	for i := range policies {
		out = append(out, policies[i].CreationTimestamp.Time)
	}
	for _, note := range notes {
		out = append(out, note.Created)
	}
	return out
}

// earliest returns the first of some times. The result is zero if no time is known.
func earliest(times []time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

func clonePolicies(list []api.RolloutPolicy) []api.RolloutPolicy {
	out := make([]api.RolloutPolicy, 0, len(list))
	for i := range list {
		out = append(out, *list[i].DeepCopy())
	}
	return out
}

// writePolicies writes the status of each policy, where it has changed.
func (r *reconciler) writePolicies(ctx context.Context, w *world, policies []api.RolloutPolicy) []error {
	var errs []error
	for _, f := range w.findings {
		at := slices.IndexFunc(policies, func(p api.RolloutPolicy) bool { return p.Name == f.Policy })
		before := &policies[at]
		after := before.DeepCopy()
		after.Status = policyStatus(before, f, w.now)
		after.Status.Gates = w.openGates(f.Policy, r.answers(), rollout.Reported(policies))
		if equality.Semantic.DeepEqual(before.Status, after.Status) && !api.UnreadableStatus(before) {
			continue
		}
		// The status is about the spec that was read. If the spec has changed since, the next look reports.
		if err := r.client.Status().Update(ctx, after); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("RolloutPolicy %s: reporting: %w", f.Policy, err))
		}
	}
	return errs
}

// policyStatus returns the status that a policy should have.
func policyStatus(p *api.RolloutPolicy, f rollout.Finding, now time.Time) api.RolloutPolicyStatus {
	s := *p.Status.DeepCopy()
	s.ObservedGeneration, s.NextWindow, s.Pools = p.Generation, nil, nil
	if !f.NextWindow.IsZero() {
		at := metav1.NewTime(f.NextWindow)
		s.NextWindow = &at
	}
	for _, pool := range f.Pools {
		s.Pools = append(s.Pools, policyPool(pool))
	}
	ready := metav1.Condition{
		Type: api.RolloutReady, Status: metav1.ConditionTrue, Reason: f.Reason, Message: f.Message,
		ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	}
	if f.Reason != api.RolloutInForce {
		ready.Status = metav1.ConditionFalse
	}
	meta.SetStatusCondition(&s.Conditions, ready)
	return s
}

// failedLimit is how many failed nodes a policy's status names.
const failedLimit = 100

func policyPool(p *progress.Pool) api.RolloutPolicyPool {
	failed := p.Failed()
	out := api.RolloutPolicyPool{
		Name: p.Name, Stage: p.Rules.Stage, Failed: int32(len(failed)), FailedNodes: failed[:min(len(failed), failedLimit)],
		FailureBudget: int32(p.Rules.FailureBudget),
	}
	if h := holds(*p); h != nil {
		out.Held, out.Message = string(h.Verdict), h.Because
	}
	return out
}

// holds returns why the pool's policy, or a person, holds all nodes that have not arrived. A person's hold is named if
// nothing else holds a node. The result is nil if a node may begin, or
// no node has to.
func holds(p progress.Pool) *progress.Hold {
	switch {
	case p.Target == "":
		return nil
	case p.Updated == p.Machines && p.Machines > 0:
		return p.Rules.Unproved
	}
	if h := p.Rules.Hold; h != nil {
		return h
	}
	if h := gated(p); h != nil {
		return h
	}
	var first, kept *progress.Hold
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Desired == p.Target {
			if n.Moving() {
				return nil // the stage is at work
			}
			continue
		}
		h := p.Held(n)
		switch {
		case h == nil:
			return nil
		case p.Rules.Kept[n.Name] != nil:
			kept = cmp.Or(kept, h)
		default:
			first = cmp.Or(first, h)
		}
	}
	return cmp.Or(first, kept)
}

// bypassText returns which person bypasses the pool's policy, and why. The text is empty if the policy is not bypassed.
func bypassText(p progress.Pool) string {
	b := p.Bypass
	if b == nil || p.Rules.Policy == "" || !api.SameContent(b.Config, p.Target) {
		return ""
	}
	return fmt.Sprintf("%s goes through without the %s of RolloutPolicy %s, by %s since %s: %s",
		p.Target, progress.Bypassed, p.Rules.Policy, b.By, b.Since.UTC().Format(time.RFC3339), b.Why)
}

// heldCondition returns the condition PoolHeld. Its reason is a progress.Verdict.
func heldCondition(p progress.Pool) mcfgv1.MachineConfigPoolCondition {
	c := mcfgv1.MachineConfigPoolCondition{Type: api.PoolHeld, Status: corev1.ConditionFalse}
	if h := holds(p); h != nil {
		c.Status, c.Reason = corev1.ConditionTrue, string(h.Verdict)
		c.Message = h.Because
		if h.Verdict != progress.HeldByPerson && h.Verdict != progress.Skipped && h.Verdict != progress.Trying {
			c.Message += "; RolloutPolicy " + p.Rules.Policy
		}
	}
	return c
}
