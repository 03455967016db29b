// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// shop is a pool in the middle of a rollout: one node there, one that drains and waits for a budget, one that nobody
// hears of, and one that waits for its turn.
func (l *lab) shop() (before, after string) {
	l.t.Helper()
	before, after = l.two("shop", "/etc/motd", "old", "new")
	l.source(l.config("shop", "50-shop", "/etc/motd", "new"))
	l.pool("shop", after, before, nil)
	l.node("shop-1", "shop", after, after, api.Done, nil)
	l.report("shop-1", "shop", after, func(s *mcfgv1.MachineConfigNode) {
		s.Status.Conditions = []metav1.Condition{{
			Type: string(mcfgv1.MachineConfigNodeUpdated), Status: metav1.ConditionTrue, Reason: "Updated",
			LastTransitionTime: ago(90), Message: "updated",
		}}
	})
	l.node("shop-2", "shop", before, after, api.Working, func(n *corev1.Node) {
		n.Spec.Unschedulable = true
		cordon := api.Cordon{By: api.Daemon, Config: after, Since: ago(75).Time, Reason: "update"}
		n.Annotations[api.CordonKey] = api.Encode(cordon)
	})
	l.workload("shop", "router-1", "shop-2", "router")
	l.report("shop-2", "shop", after, func(s *mcfgv1.MachineConfigNode) {
		step(mcfgv1.MachineConfigNodeUpdateDrained, ago(74))(s)
		s.Annotations = map[string]string{api.DrainKey: api.Encode(api.Drain{
			Config: after, Since: ago(74).Time, Left: 2, Waiting: []api.WaitingPod{{
				Namespace: "shop", Name: "router-1", Since: ago(73).Time, Why: api.DrainWaitBudget, Budget: "router",
			}},
		})}
	})
	l.node("shop-3", "shop", before, before, api.Done, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: ago(71),
			Message: "Kubelet stopped posting node status.",
		}}
	})
	l.node("shop-4", "shop", before, before, api.Done, nil)
	return before, after
}

func TestARolloutReadsAtAGlance(t *testing.T) {
	l := newLab(t)
	before, after := l.shop()
	l.golden("status.txt", l.refit("status", "shop").ok(t).stdout)
	for _, name := range []string{"shop-1", "shop-2", "shop-3", "shop-4"} {
		l.golden("explain-"+name+".txt", l.refit("explain", name).ok(t).stdout)
	}
	l.golden("explain-shop.txt", l.refit("explain", "shop").ok(t).stdout)
	l.golden("diff-shop-2.txt", l.refit("diff", "shop-2").ok(t).stdout)

	var doc struct {
		Pools []struct {
			Name, Configuration, Verdict, WaitsFor string
			Machines, Updated                      int
		}
		Nodes []struct{ Name, Pool, Current, Desired, Phase, WaitsFor string }
	}
	if err := json.Unmarshal([]byte(l.refit("status", "shop", "-o", "json").ok(t).stdout), &doc); err != nil {
		t.Fatal(err)
	}
	if p := doc.Pools[0]; p.Configuration != after || p.Machines != 4 || p.Updated != 1 || p.Verdict != "Draining" {
		t.Errorf("pool: %+v", p)
	}
	if n := doc.Nodes[1]; n.Phase != "Draining" || n.Current != before || n.Desired != after ||
		n.WaitsFor != "PodDisruptionBudget shop/router" {
		t.Errorf("node: %+v", n)
	}
}

func TestWhatADrainWaitsForIsAskedAtThisMoment(t *testing.T) {
	l := newLab(t)
	before, after := l.two("live", "/etc/motd", "old", "new")
	l.pool("live", after, before, nil)
	l.node("live-1", "live", before, after, api.Working, nil)
	l.report("live-1", "live", after, func(s *mcfgv1.MachineConfigNode) {
		step(mcfgv1.MachineConfigNodeUpdateDrained, ago(74))(s)
		s.Annotations = map[string]string{api.DrainKey: api.Encode(api.Drain{
			Config: after, Since: ago(74).Time, Left: 1, Waiting: []api.WaitingPod{{
				Namespace: "live", Name: "gone", Since: ago(73).Time, Why: api.DrainWaitBudget, Budget: "lifted",
			}},
		})}
	})
	if got := l.refit("explain", "live-1").ok(t).stdout; strings.Contains(got, "lifted") {
		t.Errorf("the pod is gone, and still it says:\n%s", got)
	}
}

func TestEveryStopOfAPoolHasItsWords(t *testing.T) {
	l := newLab(t)
	condition := func(kind mcfgv1.MachineConfigPoolConditionType, message string) func(*mcfgv1.MachineConfigPool) {
		return func(p *mcfgv1.MachineConfigPool) {
			p.Status.Conditions = []mcfgv1.MachineConfigPoolCondition{{
				Type: kind, Status: corev1.ConditionTrue, Message: message, LastTransitionTime: ago(72),
			}}
		}
	}
	for name, change := range map[string]func(*mcfgv1.MachineConfigPool){
		"paused": func(p *mcfgv1.MachineConfigPool) { p.Spec.Paused = true },
		"degraded": condition(mcfgv1.MachineConfigPoolRenderDegraded, "failed to render configuration for pool degraded: "+
			"MachineConfig/50-bad: spec.kernelType: \"fast\" is not one of default, realtime, 64k-pages"),
		"pending": condition(api.PoolRenderPending,
			"not rendered until this is finished: KubeletConfig/small since 2026-03-01T12:00:00Z: "+
				"Failure is True: no such field"),
		"quarantined": func(p *mcfgv1.MachineConfigPool) {
			p.Annotations[api.PoolQuarantineKey] = api.Encode([]api.Quarantine{{
				Config: p.Spec.Configuration.Name, Node: "quarantined-1", Since: ago(72).Time,
				Reason: "kubelet.service is not healthy: connection refused",
			}})
		},
	} {
		// Content of its own, because what failed in one pool is offered to no other.
		before := l.render(name, l.config(name, "50-"+name, "/etc/motd", "old"))
		after := l.render(name, l.config(name, "50-"+name, "/etc/motd", "new-"+name))
		l.pool(name, after, before, change)
		l.node(name+"-1", name, before, before, api.Done, nil)
		l.golden("explain-"+name+".txt", l.refit("explain", "pool/"+name).ok(t).stdout)
	}
	l.golden("quarantine.txt", l.refit("quarantine", "list", "quarantined").ok(t).stdout)
}

func TestNamesAreFoundOrSaidToBeMissing(t *testing.T) {
	l := newLab(t)
	config := l.render("twin", l.config("twin", "50-twin", "/etc/motd", "a"))
	l.pool("twin", config, config, nil)
	l.node("twin", "twin", config, config, api.Done, nil)
	l.refit("explain", "twin").fails(t, 2, "node/twin or pool/twin")
	if got := l.refit("explain", "node/twin").ok(t).stdout; !strings.HasPrefix(got, "Node twin: UpToDate") {
		t.Error(got)
	}
	if got := l.refit("explain", "pool/twin").ok(t).stdout; !strings.HasPrefix(got, "MachineConfigPool twin: UpToDate") {
		t.Error(got)
	}
	l.refit("explain", "nobody").fails(t, 1, "no Node and no MachineConfigPool nobody", "twin")
	l.refit("status", "nobody").fails(t, 1, "there is no MachineConfigPool nobody")
	l.refit("pause", "nobody").fails(t, 1, "there is no MachineConfigPool nobody")
	l.refit("explain").fails(t, 2, "NODE or POOL is needed")
	l.refit("status", "-o", "yml").fails(t, 2, `unknown output format "yml": use text, json, yaml, wide, name or jsonpath`)
	l.refit("status", "--no-such-flag").fails(t, 2)
	l.refit("applaud", "twin").fails(t, 2, `unknown command "applaud"`)
	l.refit("approve", "twin").fails(t, 1, "pool twin asks for no approval")
	l.refit().fails(t, 2)
}

func TestWhoMayNotLearnsWhichRightIsMissing(t *testing.T) {
	l := newLab(t)
	l.refit("status", "--as=nobody").fails(t, 1, "not allowed", `"nobody" cannot list resource`)
	l.refit("pause", "shop", "--as=nobody").fails(t, 1, `cannot get resource "machineconfigpools"`)

	// A reader of pools and nodes alone sees what can be said by them.
	_, err := l.Client.RbacV1().ClusterRoles().Create(l.ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "some"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"", mcfgv1.GroupName}, Resources: []string{"nodes", "machineconfigpools"},
			Verbs: []string{"list"},
		}},
	}, metav1.CreateOptions{})
	l.must(err)
	_, err = l.Client.RbacV1().ClusterRoleBindings().Create(l.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "some"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "some"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "some"}},
	}, metav1.CreateOptions{})
	l.must(err)
	config := l.render("dim", l.config("dim", "50-dim", "/etc/motd", "a"))
	l.pool("dim", config, config, nil)
	l.node("dim-1", "dim", config, config, api.Done, nil)
	var r result
	for range 50 { // until the rights have come to be known
		if r = l.refit("status", "dim", "--as=some"); r.code == 0 {
			break
		}
	}
	if r.code != 0 || !strings.Contains(r.stdout, "dim-1") || strings.Count(r.stderr, "warning: ") != 4 {
		t.Fatalf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	want := `warning: the steps of nodes: not known: not allowed: User "some" cannot list resource "machineconfignodes"`
	if !strings.Contains(r.stderr, want) {
		t.Error(r.stderr)
	}
}

func TestAThousandNodesTakeSecondsAndFewRequests(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a thousand nodes")
	}
	cluster.Need(t)
	c := cluster.New(t, cluster.Options{Audit: true})
	l := &lab{c, t, t.Context(), time.Now()}
	config := l.render("worker", l.config("worker", "50-worker", "/etc/motd", "a"))
	l.pool("worker", config, config, nil)
	const nodes, makers = 1000, 8
	var wait sync.WaitGroup
	for m := range makers {
		wait.Go(func() {
			for i := m; i < nodes; i += makers {
				l.node(fmt.Sprintf("n-%04d", i), "worker", config, config, api.Done, nil)
			}
		})
	}
	wait.Wait()
	begin := time.Now()
	r := l.refit("status", "--all").ok(t)
	took := time.Since(begin)
	if got := strings.Count(r.stdout, "Updated"); got < nodes {
		t.Errorf("%d nodes are shown", got)
	}
	requests := 0
	all, err := c.Requests()
	l.must(err)
	for _, q := range all {
		// The first who asks for a kind that has no reader yet may be told to ask again.
		if strings.HasPrefix(q.UserAgent, "kubectl-refit/") && q.Response.Code != http.StatusTooManyRequests {
			requests++
		}
	}
	t.Logf("status of %d nodes: %v, %d requests", nodes, took.Round(time.Millisecond), requests)
	if requests != 6 {
		t.Errorf("%d requests, want 6 whatever the number of nodes", requests)
	}
	if limit := 20 * time.Second; took > limit {
		t.Errorf("it took %v", took)
	}
}
