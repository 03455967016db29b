// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/fakehost"
)

// hang has writes of the node's own objects hang, and waits until they do.
func (n *node) hang() (end func()) {
	n.t.Helper()
	ends := []func(){
		n.Hang(n.t, "", "v1", fmt.Sprintf("request.name == %q", n.name), "nodes", "nodes/status"),
		n.Hang(n.t, "machineconfiguration.openshift.io", "v1", fmt.Sprintf("request.name == %q", n.name),
			"machineconfignodes", "machineconfignodes/status"),
	}
	n.until("writes of the Node hang", func() bool {
		_, err := n.Client.CoreV1().Nodes().Patch(n.ctx(), n.name, types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"x"}}}`),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && !apierrors.IsNotFound(err) && strings.Contains(err.Error(), "hangs.example.com")
	})
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

// A webhook whose server hangs refuses what the agent says and asks of its Node. What began on the host goes on, nothing
// begins twice, and the API server is not hammered.
func TestAWebhookThatHangsHoldsUpWhatTheAgentSaysAndLosesNothing(t *testing.T) {
	n := settled(t, suite.Cluster(t), "says-nothing")
	b := n.render([]string{"quiet"}, "b")
	applied := n.keeps(fakehost.Apply)
	n.desire(b)
	n.until("it applies", func() bool { return n.host.Counts()[fakehost.Apply] == 1 })
	end := n.hang()
	applied()
	n.until("the host has booted", func() bool { return n.host.Boots() == 1 })
	before, since := len(n.requests()), time.Now()
	n.until("some time is over", func() bool { return time.Since(since) > 8*time.Second })
	if more := len(n.requests()) - before; more > 40 {
		t.Errorf("%d requests in %s", more, time.Since(since))
	}
	if a, err := api.ReadNode(n.get()); err != nil || a.Current == b {
		t.Errorf("the Node has what can not have been written: %+v, %v", a, err)
	}
	end()
	n.wait("back in service", func(o *corev1.Node, a api.Node) bool {
		return a.State == api.Done && a.Current == b && !o.Spec.Unschedulable && a.Cordon == nil
	})
	if c := n.host.Counts(); n.host.Boots() != 1 || c[fakehost.Apply] != 1 || c[fakehost.Stage] != 1 {
		t.Errorf("%d boots, operations %v", n.host.Boots(), c)
	}
}

// The node serves until the cordon can be written: nothing is drained or applied on a node that takes new pods.
func TestAWebhookThatHangsAtTheCordonKeepsTheNodeInService(t *testing.T) {
	n := settled(t, suite.Cluster(t), "is-not-cordoned")
	n.pod("web", nil)
	b := n.render([]string{"quiet"}, "b")
	staged := n.keeps(fakehost.Stage)
	n.desire(b)
	end := n.hang()
	n.until("it stages", func() bool { return n.host.Counts()[fakehost.Stage] > 0 })
	staged()
	since := time.Now()
	n.until("some time is over", func() bool { return time.Since(since) > 8*time.Second })
	pod, err := n.Client.CoreV1().Pods("default").Get(n.ctx(), n.name+"-web", metav1.GetOptions{})
	if c := n.host.Counts(); err != nil || pod.DeletionTimestamp != nil || c[fakehost.Apply] != 0 {
		t.Errorf("the node was drained or changed: %v, %v, %v", err, pod.DeletionTimestamp, c)
	}
	end()
	n.waitState(api.Done, b)
}
