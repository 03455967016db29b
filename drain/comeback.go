// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Some pods belong to their node although no DaemonSet of Kubernetes' own makes them: their controller brings them
// back wherever the cordon stands, and evicting them for ever would be all that comes of it. They are known by what
// they do: once a pod of a controller has gone, the next one here is a comeback of the first order, one that comes
// after that one of the second, and so on. Pods that come at once all have the same order, so that a node that took
// pods for a moment is still drained of all of them.
const (
	// comebacksTolerated is how many orders of comebacks are evicted of pods that tolerate the cordon, which is how they
	// came; comebacksPlaced of others, which somebody has put there, or which came while the node was not cordoned.
	comebacksTolerated = 1
	comebacksPlaced    = 3
	// comebackWait is how long the first comeback is left alone; each later one three times as long.
	comebackWait = 10 * time.Second
)

// lineage is what a pod and its replacement have in common.
func lineage(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return string(owner.UID)
	}
	return pod.Namespace + "/" + pod.Name
}

// stays says that the pod has come back often enough to be the node's own.
func (t *target) stays() bool {
	limit := comebacksPlaced
	if tolerates(t.pod, &cordonTaint) {
		limit = comebacksTolerated
	}
	return t.comeback > limit
}

// how a pod comes back.
func (t *target) how() string {
	if tolerates(t.pod, &cordonTaint) {
		return "it tolerates the cordon and comes back"
	}
	return "it is put onto the cordoned node and comes back"
}

func comebackDelay(order int) time.Duration {
	wait := comebackWait
	for range order - 1 {
		wait *= 3
	}
	return wait
}
