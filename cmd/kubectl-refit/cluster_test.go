// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

func TestARefusalNamesTheRightAndNothingElseIsTouched(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "",
		errors.New(`User "a" cannot list resource "nodes"`))
	for want, err := range map[string]error{
		`not allowed: User "a" cannot list resource "nodes"`: fmt.Errorf("listing Nodes: %w", forbidden),
		"reading: broken": errors.New("reading: broken"),
	} {
		if got := describe(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestConfigurationsAreShortenedToWhatTellsThemApart(t *testing.T) {
	const a, b = "rendered-infra-792f1ed3c005f6a004d0190df0c81f65", "rendered-infra-9326d5578077829d10d369f6b6890dcf"
	for _, test := range []struct{ current, desired, want string }{
		{a, a, "792f1ed3"}, {a, "", "792f1ed3"}, {a, b, "792f1ed3 -> 9326d557"}, {"", b, "- -> 9326d557"}, {"", "", "-"},
	} {
		if got := way(nodeRow{Current: test.current, Desired: test.desired}); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
