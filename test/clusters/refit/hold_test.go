// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// holdOf is the order that a Node records.
func (l *lab) holdOf(node string) *api.NodeHold {
	l.t.Helper()
	n, err := l.Client.CoreV1().Nodes().Get(context.Background(), node, metav1.GetOptions{})
	l.must(err)
	hold, err := api.Decode[*api.NodeHold](n.Annotations, api.HoldKey)
	l.must(err)
	return hold
}

func TestANodeIsHeldSkippedAndReleasedOnRecord(t *testing.T) {
	l := newLab(t)
	old, now := l.two("held", "/etc/held", "1", "2")
	l.pool("held", now, old, nil)
	l.node("held-1", "held", old, old, api.Done, nil)
	l.node("held-2", "held", now, now, api.Done, nil)
	l.node("held-3", "held", old, old, api.Done, func(n *corev1.Node) { n.Annotations[api.HoldKey] = "ann works on it" })

	said := l.refit("hold", "held-1", "--why", "a trace is running").ok(t).stdout
	l.golden("hold.txt", said+l.refit("explain", "held-1").ok(t).stdout)
	l.refit("release", "held-1").ok(t)
	l.refit("hold", "held-1", "--why", "a trace is running", "--for", "4h").ok(t)
	first := l.holdOf("held-1")
	if first.By == "" || first.Why != "a trace is running" || first.Since.IsZero() || first.Until.Sub(first.Since).Hours() != 4 {
		t.Errorf("the record: %+v", first)
	}
	l.refit("hold", "held-1", "--why", "another").fails(t, 1, "held-1 is held already by", "a trace is running", "release held-1")
	l.refit("skip", "held-1", "--why", "another").fails(t, 1, "held-1 is held already by")
	l.refit("retry", "held-1").fails(t, 1, "held-1 is held by", "release held-1 comes first")
	if got := l.holdOf("held-1"); *got != *first {
		t.Errorf("the record changed: %+v", got)
	}
	l.refit("release", "held-1").ok(t)
	if got := l.holdOf("held-1"); got != nil {
		t.Errorf("still there: %+v", got)
	}
	if got := l.refit("release", "held-1").ok(t).stdout; !strings.Contains(got, "neither held nor skipped") {
		t.Error(got)
	}

	l.refit("skip", "held-1", "--why", "its disk is dead").ok(t)
	if got := l.holdOf("held-1"); got.Config != now || !got.Until.IsZero() {
		t.Errorf("the record: %+v", got)
	}
	l.refit("skip", "held-1", "--why", "again").fails(t, 1, "skipped already for "+now, "its disk is dead")
	if got := l.refit("explain", "held-1").ok(t).stdout; !strings.Contains(got, "Skipped") || !strings.Contains(got, "its disk is dead") {
		t.Error(got)
	}
	l.refit("retry", "held-1").ok(t)
	if got := l.holdOf("held-1"); got != nil {
		t.Errorf("still there: %+v", got)
	}

	// A node that has the configuration can be held for what comes, and says so.
	l.refit("skip", "held-2", "--why", "no").fails(t, 1, "held-2 has "+now+" already")
	l.refit("hold", "held-2", "--why", "the cage is locked").ok(t)
	if got := l.refit("explain", "held-2").ok(t).stdout; !strings.Contains(got, "UpToDate") || !strings.Contains(got, "the cage is locked") {
		t.Error(got)
	}
	// An order that cannot be read holds.
	if got := l.refit("explain", "held-3").ok(t).stdout; !strings.Contains(got, "HeldByPerson") || !strings.Contains(got, "cannot be read") {
		t.Error(got)
	}
}

func TestOrdersForNodesThatCanNotBeGivenAreRefused(t *testing.T) {
	l := newLab(t)
	now := l.render("orders", l.config("orders", "50-one", "/etc/orders", "1"))
	l.pool("orders", now, now, nil)
	l.node("orders-1", "orders", now, now, api.Done, nil)
	l.node("orders-2", "stray", now, now, api.Done, nil)
	for _, verb := range []string{"hold", "skip"} {
		l.refit(verb, "orders-1").fails(t, 2, "--why", "reason is needed")
		l.refit(verb, "--why", "x").fails(t, 2, "NODE is needed")
		l.refit(verb, "orders-9", "--why", "x").fails(t, 1, "orders-9")
		l.refit(verb, "orders-1", "--why", strings.Repeat("x", 501)).fails(t, 2, "--why")
		l.refit(verb, "orders-1", "--why", "x", "--as=nobody").fails(t, 1, "not allowed")
	}
	l.refit("hold", "orders-1", "--why", "x", "--for", "-4h").fails(t, 2, "--for")
	l.refit("hold", "orders-1", "--why", "x", "--for", "soon").fails(t, 2, "--for")
	l.refit("skip", "orders-2", "--why", "x").fails(t, 1, "orders-2 belongs to no MachineConfigPool")
	l.refit("retry", "orders-1").fails(t, 1, "nothing is there to try again", "orders-1")
	if hold := l.holdOf("orders-1"); hold != nil {
		t.Errorf("%+v", hold)
	}
}

func TestARetryOfOneNodeLeavesTheFailuresOfOthers(t *testing.T) {
	l := newLab(t)
	old, bad := l.two("again", "/etc/again", "1", "2")
	failed := func(node string) api.Quarantine {
		return api.Quarantine{Config: bad, Node: node, Reason: "kubelet is down", Since: ago(1).Time}
	}
	l.pool("again", bad, old, nil)
	for _, name := range []string{"again-1", "again-2"} {
		l.node(name, "again", old, bad, api.RolledBack, func(n *corev1.Node) {
			n.Annotations[api.QuarantinedKey] = api.Encode([]api.Quarantine{failed("")})
		})
	}
	l.refit("retry", "again-1").fails(t, 1, "failed on node again-2", "quarantine lift again is for the whole pool")
	if lifted := l.lifted("again"); len(lifted) != 0 {
		t.Errorf("%+v", lifted)
	}
}
