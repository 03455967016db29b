// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/transaction"
)

// nodeWord returns the readiness of a Node as the API server has it. A report of the boot before does not count: until
// the kubelet has reported in this boot, the node is not ready. The kubelet reports the ID of its boot. Where one of
// the two IDs is not known, the time of the kubelet's report is compared with the time of the boot. The machine's
// uptime gives the time of the boot.
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
		before = c.LastHeartbeatTime.Time.Before(now.Add(-up).Truncate(time.Second)) // whole seconds, like the kubelet
	}
	if before {
		return false, transaction.NotHeard
	}
	return true, ""
}

// nodeHeard returns when the node's kubelet has last spoken to the API server; the zero time where that is not known.
func nodeHeard(n *corev1.Node) time.Time {
	if c := conditionReady(n); c != nil {
		return c.LastHeartbeatTime.Time
	}
	return time.Time{}
}

// conditionReady returns the Node's condition about its kubelet, nil where the Node has no such condition.
func conditionReady(n *corev1.Node) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c
		}
	}
	return nil
}
