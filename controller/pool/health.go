// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// The reasons of the condition Reconciling that are not names of other conditions.
const (
	reasonNotRendered = "NotRendered"
	reasonPaused      = "Paused"
)

// health returns the two conditions that kstatus reads, and with it Flux, Argo CD and kubectl's relatives. Stalled is
// true where a person has to change something. Reconciling is true where the pool is not yet what its objects ask for.
// Both are never true together, since readers take the first that they find.
func health(p progress.Pool, s *mcfgv1.MachineConfigPoolStatus, troubles ...mcfgv1.MachineConfigPoolCondition,
) (reconciling, stalled mcfgv1.MachineConfigPoolCondition) {
	reconciling = mcfgv1.MachineConfigPoolCondition{Type: api.Reconciling, Status: corev1.ConditionFalse}
	stalled = mcfgv1.MachineConfigPoolCondition{Type: api.Stalled, Status: corev1.ConditionFalse}
	pending := find(s, api.PoolRenderPending)
	troubles = append(troubles, find(s, mcfgv1.MachineConfigPoolRenderDegraded),
		condition(mcfgv1.MachineConfigPoolNodeDegraded, stuckText(p)))
	if pending.Reason == api.PartRefused {
		troubles = append(troubles, pending)
	}
	for _, t := range troubles {
		// A trouble is over as soon as a change is about to be rendered. A reader must not take the end of the last attempt
		// for the end of this attempt.
		if t.Status == corev1.ConditionTrue && pending.Reason != api.Rendering {
			stalled.Status, stalled.Reason = corev1.ConditionTrue, string(t.Type)
			stalled.Message = cmp.Or(t.Message, t.Reason)
			return reconciling, stalled
		}
	}
	if reconciling.Reason, reconciling.Message = unreached(p, s, pending); reconciling.Reason != "" {
		reconciling.Status = corev1.ConditionTrue
	}
	return reconciling, stalled
}

// stuckText names the nodes that fail at the pool's target. A node that fails at another configuration is still to be
// told, and goes first.
func stuckText(p progress.Pool) string {
	return listFailing(p.Nodes, func(n *progress.Node) bool { return n.Desired == p.Target })
}

// unreached returns why the pool is not yet what its objects ask for. The reason is "" if the pool is.
func unreached(p progress.Pool, s *mcfgv1.MachineConfigPoolStatus, pending mcfgv1.MachineConfigPoolCondition,
) (reason, message string) {
	rendered := find(s, mcfgv1.MachineConfigPoolRenderDegraded)
	switch {
	case pending.Status == corev1.ConditionTrue:
		return api.PoolRenderPending, cmp.Or(pending.Message, pending.Reason)
	case p.Target == "":
		return reasonNotRendered, "the pool has no configuration yet"
	case rendered.Reason == api.RenderPinned:
		return api.RenderPinned, rendered.Message
	case p.Complete():
		return "", ""
	case p.Paused:
		return reasonPaused, fmt.Sprintf("%s; the pool is paused", arrived(p))
	}
	if h := holds(p); h != nil {
		return api.PoolHeld, fmt.Sprintf("%s; %s", arrived(p), h.Because)
	}
	return string(mcfgv1.MachineConfigPoolUpdating), fmt.Sprintf("%s; kubectl refit explain %s names the cause",
		arrived(p), p.Name)
}

// arrived returns how far the pool is, and which nodes are on their way.
func arrived(p progress.Pool) string {
	text := fmt.Sprintf("%d of %d nodes are updated with %s", p.Updated, p.Machines, p.Target)
	var under []string
	for i := range p.Nodes {
		if n := &p.Nodes[i]; n.Moving() {
			under = append(under, n.Name)
		}
	}
	if len(under) > 0 {
		text += ", on the way: " + strings.Join(few(under, "%d more"), ", ")
	}
	return text
}

// find returns a condition of the status. The result is empty if the status does not have the condition.
func find(s *mcfgv1.MachineConfigPoolStatus, kind mcfgv1.MachineConfigPoolConditionType,
) mcfgv1.MachineConfigPoolCondition {
	for _, c := range s.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return mcfgv1.MachineConfigPoolCondition{}
}

// observed returns the generation of the pool that both controllers have looked at, render and this one. The render
// controller notes its generation in an annotation. A pool without that annotation does not wait for the render
// controller.
func observed(pool *mcfgv1.MachineConfigPool) int64 {
	text, rendered := pool.Annotations[api.RenderedGeneration]
	if !rendered {
		return pool.Generation
	}
	generation, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return pool.Status.ObservedGeneration // until the render controller has corrected the annotation
	}
	return min(generation, pool.Generation)
}
