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

// Reasons of the condition Reconciling, beside those that are names of other conditions.
const (
	reasonNotRendered = "NotRendered"
	reasonPaused      = "Paused"
)

// health is what kstatus reads, and by it Flux, Argo CD and kubectl's relatives: Stalled where somebody has to change
// something, Reconciling where the pool is not yet what its objects ask for, neither where it is. Never both, since
// readers take the first that they come upon.
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
		// What was wrong is over as soon as something else is asked for: who watches for that must not take the end of
		// the last attempt for the end of this one.
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

// stuckText names the nodes that fail at what the pool wants of them now. One that fails at something else is still to
// be told, and goes first.
func stuckText(p progress.Pool) string {
	return listFailing(p.Nodes, func(n *progress.Node) bool { return n.Desired == p.Target })
}

// unreached says why the pool is not yet what its objects ask for; reason "": it is.
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
	return string(mcfgv1.MachineConfigPoolUpdating), fmt.Sprintf("%s; kubectl refit explain %s says what it waits for",
		arrived(p), p.Name)
}

// arrived says how far the pool is, and who is on the way.
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

// find is a condition as it stands, empty where it is not there.
func find(s *mcfgv1.MachineConfigPoolStatus, kind mcfgv1.MachineConfigPoolConditionType,
) mcfgv1.MachineConfigPoolCondition {
	for _, c := range s.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return mcfgv1.MachineConfigPoolCondition{}
}

// observed is the generation that everybody has looked at who has a say in what the pool's configuration is: the render
// controller notes in an annotation how far it is. Where it never was, nobody waits for it.
func observed(pool *mcfgv1.MachineConfigPool) int64 {
	text, rendered := pool.Annotations[api.RenderedGeneration]
	if !rendered {
		return pool.Generation
	}
	generation, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return pool.Status.ObservedGeneration // until the render controller has put it right
	}
	return min(generation, pool.Generation)
}
