// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// rebootOf is the order that a Node or a pool records.
func (l *lab) rebootOf(annotations map[string]string) *api.RebootRequest {
	l.t.Helper()
	order, err := api.RequestedReboot(annotations)
	l.must(err)
	return order
}

func TestARebootIsOrderedAndTakenBackOnRecord(t *testing.T) {
	l := newLab(t)
	now := l.render("boots", l.config("boots", "50-boots", "/etc/boots", "1"))
	l.pool("boots", now, now, nil)
	wanted := api.Encode(api.RebootWanted{Reasons: []api.RebootReason{{
		Kind: api.RebootPackages, Message: "/run/reboot-required: System restart required", Packages: []string{"libc6"},
		Since: time.Now().Add(-time.Hour),
	}}})
	l.node("boots-1", "boots", now, now, api.Done, func(n *corev1.Node) { n.Annotations[api.RebootWantedKey] = wanted })
	l.node("boots-2", "boots", now, now, api.Done, func(n *corev1.Node) {
		n.Annotations[api.HoldKey] = api.Encode(api.NodeHold{By: "ann", Why: "mine"})
	})
	l.node("boots-3", "boots", now, now, api.Done, func(n *corev1.Node) {
		n.Annotations[api.RebootedKey] = api.Encode(api.Rebooted{ID: "one", Begun: l.began, Ended: l.began, Failed: "kubelet is down"})
	})
	l.node("boots-4", "boots", now, now, api.Done, func(n *corev1.Node) {
		n.Annotations[api.OrdersKey] = api.Encode(api.Orders{Reboot: &api.RebootOrder{ID: "two", Why: "a CVE"}})
		n.Annotations[api.RebootedKey] = api.Encode(api.Rebooted{ID: "two", Begun: l.began})
	})
	annotations := func(node string) map[string]string {
		n, err := l.Client.CoreV1().Nodes().Get(context.Background(), node, metav1.GetOptions{})
		l.must(err)
		return n.Annotations
	}

	shown := l.refit("explain", "boots-1").ok(t).stdout
	said := l.refit("reboot", "boots-1", "--why", "the BMC was replaced").ok(t).stdout
	l.golden("reboot.txt", shown+said+l.refit("explain", "boots-1").ok(t).stdout)
	order := l.rebootOf(annotations("boots-1"))
	if order == nil || order.By == "" || order.Why != "the BMC was replaced" || order.Since.IsZero() || order.Soft || order.Bypass {
		t.Fatalf("the record: %+v", order)
	}
	l.refit("reboot", "boots-1", "--why", "another").fails(t, 1, "boots-1 is to reboot already, by "+order.By,
		"the BMC was replaced", "kubectl refit reboot boots-1 --cancel")
	if got := l.rebootOf(annotations("boots-1")); *got != *order {
		t.Errorf("the record changed: %+v", got)
	}
	l.refit("reboot", "boots-1", "--cancel").ok(t)
	if got := l.rebootOf(annotations("boots-1")); got != nil {
		t.Errorf("still there: %+v", got)
	}
	l.refit("reboot", "boots-2", "--why", "x").fails(t, 1, "boots-2 is held by ann: kubectl refit release boots-2 comes first")
	l.refit("retry", "boots-3").ok(t)
	if got := l.rebootOf(annotations("boots-3")); got == nil || got.Why != "the reboot failed, and is tried again" {
		t.Errorf("the record: %+v", got)
	}
	l.refit("reboot", "boots-4", "--why", "x").fails(t, 1, "boots-4 was ordered to reboot already (a CVE), and has not come back")
	l.refit("reboot", "boots-4", "--cancel").fails(t, 1, "too late: node boots-4 has begun to reboot")

	l.golden("reboot-pool.txt", l.refit("reboot", "pool/boots", "--why", "CVE-2026-1234").ok(t).stdout)
	first := l.rebootOf(l.readPool("boots").Annotations)
	l.refit("reboot", "boots", "--why", "x").fails(t, 1, "boots is to reboot already, by "+first.By, "CVE-2026-1234", "--cancel")
	l.golden("reboot-cancel.txt", l.refit("reboot", "pool/boots", "--cancel").ok(t).stdout)
	if got := l.rebootOf(l.readPool("boots").Annotations); got != nil {
		t.Errorf("still there: %+v", got)
	}
}
