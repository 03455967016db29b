// SPDX-License-Identifier: Apache-2.0

package run

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/fakehost"
)

// besideNode returns a node with the label by which bootc-operator manages its OS.
func besideNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	n.patch(`{"metadata":{"labels":{%q:""}}}`, api.BootcManaged)
	return n
}

func TestANodeOfABootcNodePoolLeavesItsOSAlone(t *testing.T) {
	n := besideNode(t)
	// The arguments are a part of the OS. Of what is left, the file reboots.
	n.host.Change(func(s *fakehost.Script) { s.Foreign = []string{"quay.io/os@sha256:1, staged by bootc"} })
	b := n.render([]string{"quiet"}, "b")
	n.desire(b)
	n.wait("waits for the reboot of bootc-operator", func(o *corev1.Node, a api.Node) bool {
		return a.State == api.Working && strings.Contains(a.Reason, "quay.io/os@sha256:1") && !o.Spec.Unschedulable
	})
	n.restartAndLook()
	if c := n.host.Counts(); c[fakehost.Stage] != 0 || c[fakehost.Apply] != 0 || n.host.Boots() != 0 {
		t.Errorf("operations %v, %d boots while bootc-operator has staged an OS", c, n.host.Boots())
	}
	if answer := progress.ReadNode(n.get()); !answer.Unavailable() {
		t.Errorf("a node that waits is available for the rollout: %+v", answer.Node)
	}

	// bootc-operator drains the node, has it booted, and uncordons it.
	n.patch(`{"spec":{"unschedulable":true}}`)
	n.host.Change(func(s *fakehost.Script) { s.Foreign = nil })
	n.desire(n.a)
	n.waitState(api.Done, n.a)
	n.desire(b)
	n.wait("waits for the cordon to end", func(_ *corev1.Node, a api.Node) bool {
		return a.State == api.Working && strings.Contains(a.Reason, "until the node is uncordoned")
	})
	if c := n.host.Counts(); c[fakehost.Stage] != 0 || c[fakehost.Apply] != 0 {
		t.Errorf("operations %v while bootc-operator may drain", c)
	}
	n.patch(`{"spec":{"unschedulable":null}}`)
	n.waitState(api.Done, b)
	if n.host.Boots() != 1 {
		t.Errorf("%d boots", n.host.Boots())
	}

	// Kernel arguments alone are nothing to do, and a live change goes on whatever is staged.
	n.host.Change(func(s *fakehost.Script) { s.Foreign = []string{"quay.io/os@sha256:2"} })
	c := n.render([]string{"quiet", "debug"}, "b")
	n.desire(c)
	n.waitState(api.Done, c)
	if n.host.Boots() != 1 {
		t.Errorf("%d boots after a change of the OS part alone", n.host.Boots())
	}

	// The label goes, and with it the other manager.
	n.patch(`{"metadata":{"labels":{%q:null}}}`, api.BootcManaged)
	d := n.render([]string{"quiet", "debug", "nosmt"}, "b")
	n.desire(d)
	n.waitState(api.Done, d)
	if n.host.Boots() != 2 {
		t.Errorf("%d boots after the node has left the BootcNodePool", n.host.Boots())
	}
}

func TestANodeOfABootcNodePoolStagesNoOSAhead(t *testing.T) {
	n := besideNode(t)
	n.host.Change(func(s *fakehost.Script) { s.Foreign, s.OS = []string{"quay.io/os@sha256:1"}, osX })
	b := n.render([]string{"quiet"}, "b")
	n.order(&api.StageOrder{Config: b})
	n.wait("has staged ahead, without an OS", func(_ *corev1.Node, a api.Node) bool {
		return a.Staged != nil && a.Staged.Error == "" && a.Staged.Digest == ""
	})
	if c := n.host.Counts(); c[fakehost.Pull] != 0 || c[fakehost.Unstage] != 0 {
		t.Errorf("operations %v", c)
	}
}
