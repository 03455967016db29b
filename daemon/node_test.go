// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNodeIsReadyOnlyByAWordFromThisBoot(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	node := func(status corev1.ConditionStatus, ago time.Duration) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
			{Type: corev1.NodeReady, Status: status, Reason: "KubeletNotReady", Message: "no CNI",
				LastHeartbeatTime: metav1.NewTime(now.Add(-ago))}}}}
	}
	of := func(boot string, n *corev1.Node) *corev1.Node {
		n.Status.NodeInfo.BootID = boot
		return n
	}
	for _, c := range []struct {
		what  string
		node  *corev1.Node
		ready bool
		why   string
	}{
		{"ready since the boot", node(corev1.ConditionTrue, 30*time.Second), true, ""},
		{"ready before the boot", node(corev1.ConditionTrue, 2*time.Minute), false, "since the boot"},
		{"not ready", node(corev1.ConditionFalse, 0), false, "no CNI"},
		{"unknown", node(corev1.ConditionUnknown, 0), false, "Unknown"},
		{"new", &corev1.Node{}, false, "no condition"},
		// Where the kubelet names the boot, no clock decides: the host's clock may have been wrong, or set since.
		{"reported, and the clock was set forward since", of("now", node(corev1.ConditionTrue, 365*24*time.Hour)), true, ""},
		{"reported before the boot, and the clock is behind", of("before", node(corev1.ConditionTrue, -time.Hour)), false,
			"since the boot"},
		{"reported, not ready", of("now", node(corev1.ConditionFalse, 0)), false, "no CNI"},
	} {
		ready, why := nodeWord(c.node, "now", now, time.Minute)
		if ready != c.ready || !strings.Contains(why, c.why) {
			t.Errorf("%s: %t %q", c.what, ready, why)
		}
	}
}
