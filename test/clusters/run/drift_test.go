// SPDX-License-Identifier: Apache-2.0

package run

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab/fakehost"
)

func changed(path string) host.Drift {
	return host.Drift{Kind: "file", Path: path, What: "contents", Expected: "sha256:secret1", Found: "sha256:secret2"}
}

// policy gives a rendered configuration the drift policy that the render controller carries there.
func (n *node) policy(config, text string) {
	n.t.Helper()
	value := "null"
	if text != "" {
		value = api.Encode(text)
	}
	patch := []byte(`{"metadata":{"annotations":{"` + api.DriftPolicyKey + `":` + value + `}}}`)
	_, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigs().Patch(n.ctx(), config, types.MergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
}

// watching waits until the head has compared the host and watches it.
func (n *node) watching() {
	n.t.Helper()
	n.until("the host is watched", func() bool { return len(n.host.Watched()) > 0 })
}

// eventsOf are the messages of the node's events with a reason.
func (n *node) eventsOf(reason string) []string {
	list, err := n.Client.CoreV1().Events("default").List(n.ctx(), metav1.ListOptions{
		FieldSelector: "involvedObject.name=" + n.name + ",reason=" + reason})
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range list.Items {
		for range max(1, e.Count) {
			out = append(out, e.Message)
		}
	}
	return out
}

func TestDriftIsToldWithinSecondsAndTakenBack(t *testing.T) {
	n := newNode(t)
	n.watching()
	began := time.Now()
	n.host.Drift(changed("/etc/test.conf"))
	o := n.wait("drifted", func(_ *corev1.Node, a api.Node) bool { return a.Drift != nil })
	t.Logf("told after %s", time.Since(began))
	says, _ := api.ReadNode(o)
	if says.State != api.Done || says.Drift.Config != n.a || says.Drift.Names(5) != "file /etc/test.conf (contents)" {
		t.Errorf("state %s, %+v", says.State, says.Drift)
	}
	if strings.Contains(o.Annotations[api.DriftKey], "secret") {
		t.Errorf("more than names: %s", o.Annotations[api.DriftKey])
	}
	n.until("an event says so", func() bool { return len(n.eventsOf("ConfigDriftDetected")) == 1 })
	since := says.Drift.Since()

	// A head that starts says the same, and nothing twice. Upstream's metric forgets here.
	n.restart()
	n.watching()
	n.host.Drift(changed("/etc/test.conf"), changed("/etc/more.conf"))
	o = n.wait("drifted more", func(_ *corev1.Node, a api.Node) bool { return a.Drift.Count() == 2 })
	if says, _ = api.ReadNode(o); !says.Drift.Since().Equal(since) || says.State != api.Done {
		t.Errorf("since %s, was %s", says.Drift.Since(), since)
	}
	n.until("the second event", func() bool { return len(n.eventsOf("ConfigDriftDetected")) == 2 })

	began = time.Now()
	n.host.Drift()
	n.wait("as it should be", func(o *corev1.Node, a api.Node) bool {
		return a.Drift == nil && o.Annotations[api.DriftKey] == ""
	})
	t.Logf("taken back after %s", time.Since(began))
	n.until("an event says so too", func() bool { return len(n.eventsOf("ConfigDriftResolved")) == 1 })
	if c := n.host.Counts(); c[fakehost.Apply] != 0 || c[fakehost.Repair] != 0 {
		t.Errorf("something was done about it: %v", c)
	}
}

func TestStormOfChangesIsNoStormOfWrites(t *testing.T) {
	n := newNode(t)
	n.watching()
	n.until("nothing is under way", func() bool { return n.host.Counts()[fakehost.Verify] >= 1 })
	looks, began := n.host.Counts()[fakehost.Verify], len(n.requests())
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		n.host.Drift(changed("/etc/test.conf"))
		n.host.Drift()
	}
	if now := n.host.Counts()[fakehost.Verify]; now-looks > 6 {
		t.Errorf("%d comparisons in 8 seconds", now-looks)
	}
	patches := 0
	for _, r := range n.requests()[began:] {
		if r.Verb == "patch" && r.Object.Resource == "nodes" {
			patches++
		}
	}
	if patches > 6 {
		t.Errorf("%d patches of the Node", patches)
	}
}

func TestDriftIsWrittenBackWhereThePolicySaysSo(t *testing.T) {
	n := newNode(t)
	n.watching()
	n.policy(n.a, `{"exceptions":[{"path":"/etc/test.conf","policy":"repair"}]}`)
	n.host.Drift(changed("/etc/test.conf"), changed("/etc/mine.conf"))
	n.wait("left with what is only reported", func(_ *corev1.Node, a api.Node) bool {
		return a.Drift.Count() == 1 && a.Drift.Items[0].Name == "/etc/mine.conf"
	})
	n.until("an event says what was written back", func() bool {
		said := n.eventsOf("ConfigDriftRepaired")
		return len(said) == 1 && strings.Contains(said[0], "file /etc/test.conf;")
	})

	// Somebody keeps changing it: it is not fought over, and named.
	n.host.Drift(changed("/etc/test.conf"))
	o := n.wait("changed again", func(_ *corev1.Node, a api.Node) bool {
		return a.Drift.Count() == 1 && a.Drift.Items[0].Name == "/etc/test.conf" && a.Drift.Items[0].Repairs == 1
	})
	says, _ := api.ReadNode(o)
	if wait := time.Until(says.Drift.Items[0].Again); wait < 40*time.Second || wait > time.Minute {
		t.Errorf("written back again in %s", wait)
	}
	n.until("an event names it", func() bool {
		said := n.eventsOf("ConfigDriftComesBack")
		return len(said) == 1 && strings.Contains(said[0], "file /etc/test.conf was written back once and is changed again")
	})
	if c := n.host.Counts(); c[fakehost.Repair] != 1 || c[fakehost.Apply] != 0 {
		t.Errorf("%v", c)
	}
}

func TestNothingIsWrittenBackWhileSomebodyHoldsTheNode(t *testing.T) {
	n := newNode(t)
	n.watching()
	n.policy(n.a, `{"policy":"repair"}`)
	n.patch(`{"spec":{"unschedulable":true}}`)
	n.wait("cordoned", func(o *corev1.Node, _ api.Node) bool { return o.Spec.Unschedulable })
	n.host.Drift(changed("/etc/test.conf"))
	n.wait("drifted", func(_ *corev1.Node, a api.Node) bool { return a.Drift != nil })
	time.Sleep(2 * time.Second) //nolint:forbidigo // that nothing happens has no condition to wait for
	if c := n.host.Counts(); c[fakehost.Repair] != 0 {
		t.Fatalf("%v", c)
	}
	// The policy and the Node come by two watches, in any order. What is found later shows that the policy has come.
	n.policy(n.a, `{"policy":"repair","paused":true}`)
	n.host.Drift(changed("/etc/test.conf"), changed("/etc/later.conf"))
	n.wait("drifted further", func(_ *corev1.Node, a api.Node) bool { return a.Drift.Count() == 2 })
	n.patch(`{"spec":{"unschedulable":null}}`)
	time.Sleep(2 * time.Second) //nolint:forbidigo // as above
	if c := n.host.Counts(); c[fakehost.Repair] != 0 {
		t.Fatalf("while the pool is paused: %v", c)
	}
	n.policy(n.a, `{"policy":"repair"}`)
	n.wait("as it should be", func(_ *corev1.Node, a api.Node) bool { return a.Drift == nil })

	// A person on the host has the last word.
	n.patch(`{"spec":{"unschedulable":true}}`)
	n.policy(n.a, "")
	n.host.Change(func(s *fakehost.Script) { s.Forced = true })
	n.host.Drift(changed("/etc/other.conf"))
	n.until("it was forced", func() bool { return n.host.Counts()[fakehost.Repair] == 2 })
	n.wait("as it should be again", func(_ *corev1.Node, a api.Node) bool { return a.Drift == nil })
}

func TestUpdateOverwritesDriftAndSaysSo(t *testing.T) {
	n := newNode(t)
	n.watching()
	n.host.Drift(changed("/etc/test.conf"))
	n.wait("drifted", func(_ *corev1.Node, a api.Node) bool { return a.Drift != nil })
	b := n.render(nil, "b")
	n.desire(b)
	n.waitState(api.Done, b)
	n.wait("as it should be", func(_ *corev1.Node, a api.Node) bool { return a.Drift == nil })
	n.until("an event says so", func() bool {
		said := n.eventsOf("UpdateOverwritesDrift")
		return len(said) == 1 && strings.Contains(said[0], "file /etc/test.conf (contents)") && strings.Contains(said[0], b)
	})
}

func TestStrictUpdateWaitsUntilDriftIsUndone(t *testing.T) {
	n := newNode(t)
	n.watching()
	n.host.Drift(changed("/etc/test.conf"))
	n.wait("drifted", func(_ *corev1.Node, a api.Node) bool { return a.Drift != nil })
	b := n.render([]string{"quiet"}, "b")
	n.policy(b, `{"updates":"strict"}`)
	n.desire(b)
	o := n.wait("waiting", func(_ *corev1.Node, a api.Node) bool {
		return a.State == api.Degraded && strings.Contains(a.Reason, "file /etc/test.conf (contents)")
	})
	if o.Spec.Unschedulable || n.host.Counts()[fakehost.Stage] != 0 {
		t.Errorf("it is out of service, or something was begun: %v", n.host.Counts())
	}
	n.until("it says so", func() bool { return n.mcn("NodeDegraded").Reason == "ConfigDrift" })
	n.until("so does an event", func() bool { return len(n.eventsOf("PreflightConfigDriftCheckFailed")) > 0 })

	// The way back needs nobody's leave.
	n.desire(n.a)
	n.waitState(api.Done, n.a)
	n.desire(b)
	n.wait("waiting again", func(_ *corev1.Node, a api.Node) bool { return a.State == api.Degraded })
	began := time.Now()
	n.host.Drift()
	n.waitState(api.Done, b)
	t.Logf("at the end after %s", time.Since(began))
	if n.host.Boots() != 1 {
		t.Errorf("%d boots", n.host.Boots())
	}
}

func TestStrictUpdateGoesOnWhenThePolicyDoes(t *testing.T) {
	n := newNode(t)
	n.watching()
	n.host.Drift(changed("/etc/test.conf"))
	b := n.render(nil, "b")
	n.policy(b, "not a policy: [")
	n.desire(b)
	n.wait("waiting", func(_ *corev1.Node, a api.Node) bool {
		return a.State == api.Degraded && strings.Contains(a.Reason, api.DriftPolicyKey)
	})
	n.policy(b, "")
	n.waitState(api.Done, b)
}

func TestForceFileOverridesAStrictPolicy(t *testing.T) {
	n := newNode(t)
	n.watching()
	b := n.render(nil, "b")
	n.policy(b, `{"updates":"strict"}`)
	n.patch(`{"spec":{"unschedulable":true}}`)
	n.host.Drift(changed("/etc/test.conf"))
	n.wait("drifted", func(_ *corev1.Node, a api.Node) bool { return a.Drift != nil })
	n.desire(b)
	n.wait("waiting", func(_ *corev1.Node, a api.Node) bool { return a.State == api.Degraded })
	n.host.Change(func(s *fakehost.Script) { s.Forced = true })
	n.host.Touch()
	n.waitState(api.Done, b)
}
