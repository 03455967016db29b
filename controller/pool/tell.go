// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// announce makes an event of each condition of a pool that became true or has a new text.
func (r *reconciler) announce(before, after *mcfgv1.MachineConfigPool) {
	for kind, as := range map[mcfgv1.MachineConfigPoolConditionType]struct{ level, reason string }{
		mcfgv1.MachineConfigPoolUpdating: {corev1.EventTypeNormal, "Updating"},
		mcfgv1.MachineConfigPoolUpdated:  {corev1.EventTypeNormal, "Completed"},
		api.PoolQuarantined:              {corev1.EventTypeWarning, "Quarantined"},
		progress.PoolMisconfigured:       {corev1.EventTypeWarning, "Misconfigured"},
		api.PoolHeld:                     {corev1.EventTypeNormal, "Held"},
		api.PoolBypassed:                 {corev1.EventTypeWarning, "Bypassed"},
		api.PoolApproved:                 {corev1.EventTypeNormal, "Approved"},
	} {
		if text := said(&after.Status, kind); text != "" && text != said(&before.Status, kind) {
			r.events.Eventf(after, nil, as.level, as.reason, as.reason, "%s", note(text))
		}
	}
	const failed = string(progress.RebootFailed)
	if c := find(&after.Status, api.PoolRebootsWanted); c.Reason == failed &&
		find(&before.Status, api.PoolRebootsWanted).Reason != failed {
		r.events.Eventf(after, nil, corev1.EventTypeWarning, failed, "Reboot", "%s", note(c.Message))
	}
}

// deferSelf makes one event for each configuration for which the node of this process has to wait.
func (r *reconciler) deferSelf(pool *mcfgv1.MachineConfigPool, d decision) {
	config := pool.Spec.Configuration.Name
	if !d.DefersSelf || r.deferred[pool.Name] == config {
		return
	}
	if r.deferred == nil {
		r.deferred = map[string]string{}
	}
	r.deferred[pool.Name] = config
	const reason = "DeferringOperatorNodeUpdate"
	r.events.Eventf(pool, nil, corev1.EventTypeNormal, reason, reason,
		"Deferring update of machine config controller node %s", r.self)
}

// tell makes events of what the nodes reported since the last look, and passes the world to the metrics.
func (r *reconciler) tell(w *world) {
	for _, change := range r.report.take(w) {
		r.events.Eventf(change.pool, &corev1.Node{ObjectMeta: objectName(change.node)}, corev1.EventTypeNormal,
			"AnnotationChange", change.key, "Node %s now has %s=%s", change.node, change.key, change.value)
	}
}

// noteLimit is the longest note of an event that the API takes, in bytes.
const noteLimit = 1024

// tellWithheld makes an event of a node that is taken back from a release before its boot there.
func (r *reconciler) tellWithheld(pool *mcfgv1.MachineConfigPool, n *corev1.Node, s nodeStep) {
	if s.Held != string(progress.Withheld) {
		return
	}
	text := fmt.Sprintf("Node %s is taken back from %s, which it has not booted, to %s, which it runs", s.Node, s.Before,
		s.Desired)
	if w, err := api.Decode[*api.Withheld](pool.Annotations, api.WithheldKey); err == nil && w != nil {
		text += fmt.Sprintf(": no further node goes to release %s: %s", w.Version, w.Reason)
	}
	r.events.Eventf(pool, n, corev1.EventTypeNormal, s.Held, "TakeBack", "%s", note(text))
}

func note(text string) string {
	if len(text) <= noteLimit {
		return text
	}
	return strings.ToValidUTF8(text[:noteLimit-len("…")], "") + "…"
}
