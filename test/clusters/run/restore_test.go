// SPDX-License-Identifier: Apache-2.0

package run

import (
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// As docs/upgrade.md has it: after a restore of etcd a node goes where its Node says, or stays where a person writes
// that it is.
func TestAfterARestoreOfEtcdANodeGoesWhereItsNodeSays(t *testing.T) {
	c := cluster.New(t, cluster.Options{Controllers: true, Kwok: true})
	back, stays, same := settled(t, c, "restored-back"), settled(t, c, "restored-stays"), settled(t, c, "restored-same")
	backup := filepath.Join(t.TempDir(), "etcd")
	nodes := []*node{back, stays, same}
	for _, n := range nodes {
		n.kill()
	}
	if err := c.Backup(back.ctx(), backup); err != nil {
		t.Fatal(err)
	}
	b := map[*node]string{}
	for _, n := range nodes {
		n.start()
		if n == same {
			continue
		}
		b[n] = n.render([]string{"quiet"}, "b")
		n.desire(b[n])
		n.waitState(api.Done, b[n])
	}
	for _, n := range nodes {
		n.kill()
	}
	if err := c.Restore(back.ctx(), backup); err != nil {
		t.Fatal(err)
	}
	configs := c.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	for _, n := range []*node{back, stays} {
		if a, err := api.ReadNode(n.get()); err != nil || a.Desired != n.a || n.host.Committed() != b[n] {
			t.Fatalf("%s: the Node says %s, the host has %s: nothing was restored", n.name, a.Desired, n.host.Committed())
		}
		if _, err := configs.Get(n.ctx(), b[n], metav1.GetOptions{}); err == nil {
			t.Fatalf("%s is there, which came after the backup", b[n])
		}
	}
	stays.desire(b[stays])
	for _, n := range nodes {
		n.start()
	}
	same.waitState(api.Done, same.a)
	stays.until("the node gives its configuration back", func() bool {
		mc, err := configs.Get(stays.ctx(), b[stays], metav1.GetOptions{})
		return err == nil && mc.Annotations[api.RestoredFrom] == stays.name
	})
	stays.waitState(api.Done, b[stays])
	// The restored Node says that it is done from the start. The host settles before the head gives the node back.
	back.until("the host is back", func() bool { return back.host.Committed() == back.a })
	back.wait("done, and taking pods", func(o *corev1.Node, a api.Node) bool {
		return a.State == api.Done && a.Current == back.a && a.Cordon == nil && !o.Spec.Unschedulable
	})
	if got := [3]int{back.host.Boots(), stays.host.Boots(), same.host.Boots()}; got != [3]int{2, 1, 0} {
		t.Errorf("the hosts booted %v times, want twice, once and not at all", got)
	}
}
