// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/host"
)

// nodeWord is what an API server's Node says about its readiness. What was said of the boot before is no answer: until
// the kubelet has spoken in this one the node is not ready. The kubelet names its boot. Where one of the two names is
// not known, the kubelet's time is compared with that of the boot, which was as long before now as the machine is up.
func nodeWord(n *corev1.Node, boot string, now time.Time, up time.Duration) (ready bool, why string) {
	c := conditionReady(n)
	if c == nil {
		return false, "it has no condition Ready"
	}
	if c.Status != corev1.ConditionTrue {
		return false, strings.TrimSpace(fmt.Sprintf("Ready is %s: %s: %s", c.Status, c.Reason, c.Message))
	}
	before := n.Status.NodeInfo.BootID != boot
	if boot == "" || n.Status.NodeInfo.BootID == "" {
		before = c.LastHeartbeatTime.Time.Before(now.Add(-up).Truncate(time.Second)) // whole seconds, as the kubelet has
	}
	if before {
		return false, host.NotHeard
	}
	return true, ""
}

// nodeHeard is when the node's kubelet had last spoken to the API server; the zero time where that does not say.
func nodeHeard(n *corev1.Node) time.Time {
	if c := conditionReady(n); c != nil {
		return c.LastHeartbeatTime.Time
	}
	return time.Time{}
}

// conditionReady is what the API server says of the node's kubelet, nil for nothing.
func conditionReady(n *corev1.Node) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c
		}
	}
	return nil
}
