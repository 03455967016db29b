// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/noderefit/noderefit/api"
)

// heldPod is a pod that a budget may hold.
type heldPod struct {
	pod     *corev1.Pod
	budgets int   // budgets that cover the pod
	allowed int32 // disruptions that the budget allows
	here    int   // pods of this node that count against it
}

// holds returns the pods of one namespace that would have to wait for a budget. The budget allows no disruption, or
// fewer than it has pods on this node, so that their replacements have to get ready first.
func holds(budgets []policyv1.PodDisruptionBudget, pods []*corev1.Pod) []heldPod {
	here := map[string]int{} // by budget
	covering := make([][]*policyv1.PodDisruptionBudget, len(pods))
	for i, p := range pods {
		covering[i] = covers(budgets, p)
		for _, b := range covering[i] {
			if counts(b, p) {
				here[b.Name]++
			}
		}
	}
	var out []heldPod
	for i, p := range pods {
		for _, b := range covering[i] {
			h := heldPod{pod: p, budgets: len(covering[i]), allowed: b.Status.DisruptionsAllowed, here: here[b.Name]}
			if counts(b, p) && (h.budgets > 1 || int(h.allowed) < h.here) {
				out = append(out, h)
				break
			}
		}
	}
	return out
}

// warnings returns the holds that will probably keep a drain waiting: pods that a budget refuses now, and pods without
// a node for their replacement.
func warnings(held []heldPod, explanations []explained, now time.Time) []api.WaitingPod {
	var out []api.WaitingPod
	for i, h := range held {
		x := explanations[i]
		w := api.WaitingPod{
			Namespace: h.pod.Namespace, Name: h.pod.Name, Since: now, Why: api.DrainWaitBudget,
			Budget: x.budgets, Allowed: x.allowed, Placement: x.placement,
		}
		switch {
		case h.budgets > 1:
			w.Message = "more than one disruption budget covers it, which evictions do not support"
		case h.allowed == 0:
		case x.fit > 0:
			continue
		default:
			w.Message = fmt.Sprintf("%d pods that count against it are on this node, more than it allows to go", h.here)
		}
		w.Message = joined(w.Message, x.replacement)
		if out = append(out, w); len(out) == reportLimit {
			break
		}
	}
	return out
}

func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// Sentence returns one sentence about a pod for which a drain waits.
func Sentence(w api.WaitingPod) string {
	text := fmt.Sprintf("pod %s/%s", w.Namespace, w.Name)
	switch w.Why {
	case api.DrainWaitBudget:
		text += fmt.Sprintf(" is held by PodDisruptionBudget %s, which allows %s now", w.Budget,
			count(int(w.Allowed), "disruption"))
	case api.DrainWaitTerminating:
		text += " is terminating"
	case api.DrainWaitRefused:
		text += " was refused eviction"
	case api.DrainWaitComesBack:
		text += " comes back to the cordoned node"
	default:
		text += " could not be evicted"
	}
	if w.Placement != "" {
		text += "; " + w.Placement
	}
	if w.Message != "" {
		text += " (" + w.Message + ")"
	}
	return text
}
