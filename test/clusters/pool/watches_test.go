// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"path/filepath"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// kubeconfigAs is a kubeconfig file of somebody else.
func (l *lab) kubeconfigAs(user string) string {
	l.t.Helper()
	config, err := clientcmd.LoadFromFile(l.Kubeconfig)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, info := range config.AuthInfos {
		info.Impersonate = user
	}
	file := filepath.Join(l.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		l.t.Fatal(err)
	}
	return file
}

// grant has a user do everything with resources until the test ends.
func (l *lab) grant(name, user string, groups, resources []string) {
	l.t.Helper()
	meta := metav1.ObjectMeta{Name: name}
	roles, bindings := l.Client.RbacV1().ClusterRoles(), l.Client.RbacV1().ClusterRoleBindings()
	l.t.Cleanup(func() {
		for _, remove := range []func() error{
			func() error { return roles.Delete(context.Background(), name, metav1.DeleteOptions{}) },
			func() error { return bindings.Delete(context.Background(), name, metav1.DeleteOptions{}) },
		} {
			_ = remove() // names that no other test has
		}
	})
	if _, err := roles.Create(l.ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"*"}, APIGroups: groups, Resources: resources},
	}}, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
	if _, err := bindings.Create(l.ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	}, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

// A leader with a kind that it may not list decides nothing for ever, and looks alive.
func TestALeaderWhoseCachesDoNotFillNamesTheKind(t *testing.T) {
	l := newLab(t)
	const user = "lacks-pools"
	l.grant("watches-most", user, []string{"", "events.k8s.io", "noderefit.dev", "machineconfiguration.openshift.io"}, []string{
		"nodes", "pods", "events", "rolloutpolicies", "rolloutpolicies/status", "machineconfigs", "machineconfignodes",
		"controllerconfigs",
	})
	l.node("w-0", "worker", "rendered-worker-a")
	l.pool("worker", "rendered-worker-b")
	c := l.alone("--kubeconfig=" + l.kubeconfigAs(user))
	l.until("a metric names the kind", func() bool {
		return c.metric(t, `noderefit_watch_failing{kind="MachineConfigPool"}`) == "1"
	})
	if got := c.metric(t, `noderefit_watch_failing{kind="Node"}`); got != "" {
		t.Errorf("Nodes can be read, and the metric says %s", got)
	}
	if told, _, _ := l.eye.seen(); len(told["w-0"]) > 0 {
		t.Errorf("a node was told %v by a controller that has read no pool", told["w-0"])
	}
	l.grant("watches-pools", user, []string{"machineconfiguration.openshift.io"},
		[]string{"machineconfigpools", "machineconfigpools/status"})
	l.updated("worker", "rendered-worker-b")
}
