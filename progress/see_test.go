// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAPodThatDoesNotWorkSaysWhyAndSinceWhen(t *testing.T) {
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ready := func(status corev1.ConditionStatus) []corev1.PodCondition {
		return []corev1.PodCondition{{
			Type: corev1.PodReady, Status: status, Message: "containers with unready status: [daemon]",
			LastTransitionTime: metav1.NewTime(since),
		}}
	}
	for name, test := range map[string]struct {
		status corev1.PodStatus
		want   string
	}{
		"works": {corev1.PodStatus{Phase: corev1.PodRunning, Conditions: ready(corev1.ConditionTrue)}, ""},
		"not ready": {corev1.PodStatus{Phase: corev1.PodRunning, Conditions: ready(corev1.ConditionFalse)},
			"containers with unready status: [daemon]"},
		"never started": {corev1.PodStatus{Phase: corev1.PodPending}, "the pod is Pending"},
		"no image": {corev1.PodStatus{
			Phase: corev1.PodPending, Conditions: ready(corev1.ConditionFalse),
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "daemon", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}},
			}},
		}, "container daemon: ImagePullBackOff"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := trouble(&corev1.Pod{Status: test.status})
			if got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}
