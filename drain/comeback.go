// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Some pods belong to their node although no DaemonSet of Kubernetes makes them. Their controller brings them back in
// spite of the cordon, so their eviction would never end. Such pods are recognised by their behaviour. When a pod of a
// controller has gone, the next pod of that controller on the node is a comeback of the first order. The pod after that
// one is of the second order, and so on. Pods that come at once all have the same order. So a node that took pods for a
// moment is still drained of all of them.
const (
	// comebacksTolerated is how many orders of comebacks are evicted of pods that tolerate the cordon, and so come back by
	// themselves. comebacksPlaced is the number for other pods: they were placed on the node by hand, or came while the
	// node was not cordoned.
	comebacksTolerated = 1
	comebacksPlaced    = 3
	// comebackWait is how long the first comeback is left alone. Each later one is left alone three times as long.
	comebackWait = 10 * time.Second
)

// lineage returns a key that a pod and its replacement have in common.
func lineage(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return string(owner.UID)
	}
	return pod.Namespace + "/" + pod.Name
}

// stays reports whether the pod has come back so often that it counts as the node's own.
func (t *target) stays() bool {
	limit := comebacksPlaced
	if tolerates(t.pod, &cordonTaint) {
		limit = comebacksTolerated
	}
	return t.comeback > limit
}

// how describes how a pod comes back.
func (t *target) how() string {
	if tolerates(t.pod, &cordonTaint) {
		return "the pod tolerates the cordon and comes back"
	}
	return "the pod is put onto the cordoned node and comes back"
}

func comebackDelay(order int) time.Duration {
	wait := comebackWait
	for range order - 1 {
		wait *= 3
	}
	return wait
}
