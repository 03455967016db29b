// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var daemonSets = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}

// stays reports whether a pod stays on a node that is drained. These are the static pods, the running pods of
// DaemonSets, and the pods that the policy skips. A pod whose DaemonSet is gone has to go: nothing would ever end it.
func (d *Drainer) stays(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if _, static := pod.Annotations[corev1.MirrorPodAnnotationKey]; static {
		return true, nil
	}
	if slices.ContainsFunc(d.skips, func(s labels.Selector) bool { return s.Matches(labels.Set(pod.Labels)) }) {
		return true, nil
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "DaemonSet" || owner.APIVersion != daemonSets.GroupVersion().String() {
		return false, nil
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false, nil
	}
	_, err := d.Client.Metadata.Resource(daemonSets).Namespace(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading DaemonSet %s/%s of pod %s: %w", pod.Namespace, owner.Name, pod.Name, err)
	}
	return true, nil
}
