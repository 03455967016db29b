// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

func (l *lab) phase(node, target string, want progress.Phase) {
	l.t.Helper()
	l.until(fmt.Sprintf("%s is %s", node, want), func() bool { return l.stand(node).Phase(target) == want })
}

func TestAPausedPoolTellsNobodyAndSaysSo(t *testing.T) {
	l := newLab(t)
	l.node("p-1", "worker", "rendered-worker-a")
	l.pool("worker", "rendered-worker-a", func(p *mcfgv1.MachineConfigPool) { p.Spec.Paused = true })
	l.alone()
	l.target("worker", "rendered-worker-b")
	l.until("the pool says that it is paused", func() bool {
		return l.condition("worker", mcfgv1.MachineConfigPoolUpdating) ==
			"False Pool is paused; will not update to rendered-worker-b"
	})
	if told, _, _ := l.eye.seen(); len(told) != 0 {
		t.Errorf("nodes were told: %v", told)
	}
	if l.stand("p-1").Tainted {
		t.Error("a node is tainted for a rollout that is paused")
	}
	l.change("worker", `{"spec":{"paused":false}}`)
	l.updated("worker", "rendered-worker-b")
}

// What OpenShift's own controller does not do: a node that a bad configuration left degraded and cordoned heals when the
// configuration is taken back, and no human touches it.
func TestTakingABadConfigurationBackHealsWhateverItLeft(t *testing.T) {
	for _, outcome := range []api.State{api.Degraded, api.Unreconcilable} {
		t.Run(string(outcome), func(t *testing.T) {
			l := newLab(t)
			for i := range 3 {
				l.node(fmt.Sprintf("w-%d", i), "worker", "rendered-worker-a")
			}
			l.agents.ends("rendered-worker-bad", outcome)
			l.pool("worker", "rendered-worker-a")
			l.alone()
			l.updated("worker", "rendered-worker-a")
			l.target("worker", "rendered-worker-bad")
			l.phase("w-0", "rendered-worker-bad", progress.PhaseDegraded)
			l.until("the pool names the node and its reason", func() bool {
				return l.condition("worker", mcfgv1.MachineConfigPoolNodeDegraded) == `True Node w-0 is reporting: "it won't"` &&
					l.condition("worker", mcfgv1.MachineConfigPoolDegraded) == `True Node w-0 is reporting: "it won't"`
			})
			if n := l.stand("w-0"); !n.Cordoned {
				t.Fatal("the bad configuration did not leave the node cordoned: the test shows nothing")
			}

			l.target("worker", "rendered-worker-a")
			l.updated("worker", "rendered-worker-a")
			if n := l.stand("w-0"); n.Cordoned || n.Failing() {
				t.Errorf("the node did not heal: %+v", n)
			}
			l.until("the pool is no longer degraded", func() bool {
				return l.condition("worker", mcfgv1.MachineConfigPoolDegraded) == "False"
			})
		})
	}
}

func TestABadConfigurationThatIsMendedReachesTheNodeThatItLeft(t *testing.T) {
	l := newLab(t)
	for i := range 3 {
		l.node(fmt.Sprintf("m-%d", i), "worker", "rendered-worker-a")
	}
	l.agents.ends("rendered-worker-bad", api.Degraded)
	l.pool("worker", "rendered-worker-bad")
	l.alone()
	l.phase("m-0", "rendered-worker-bad", progress.PhaseDegraded)
	l.target("worker", "rendered-worker-good")
	l.updated("worker", "rendered-worker-good")
	_, order, most := l.eye.seen()
	if diff := cmp.Diff([]string{"m-0", "m-0", "m-1", "m-2"}, order); diff != "" || most != 1 {
		t.Errorf("%d out of service, in the order (-want +got):\n%s", most, diff)
	}
}

func TestANewTargetReachesNodesThatAreOnTheirWay(t *testing.T) {
	l := newLab(t)
	for i := range 4 {
		l.node(fmt.Sprintf("d-%d", i), "worker", "rendered-worker-a")
	}
	l.agents.hold("d-0", true)
	l.agents.hold("d-1", true)
	l.pool("worker", "rendered-worker-b", maxUnavailable("2"))
	l.alone()
	for _, name := range []string{"d-0", "d-1"} {
		l.until(name+" is in its drain", func() bool { return l.stand(name).Cordoned })
	}
	begin := time.Now()
	l.target("worker", "rendered-worker-c")
	for _, name := range []string{"d-0", "d-1"} {
		l.until(name+" is sent to the new target", func() bool { return l.stand(name).Desired == "rendered-worker-c" })
	}
	t.Logf("two nodes in their drain were sent elsewhere %v after the change", time.Since(begin).Round(time.Millisecond))
	if told, _, _ := l.eye.seen(); len(told["d-2"])+len(told["d-3"]) != 0 {
		t.Error("nodes were sent beyond maxUnavailable")
	}
	// And back, in the middle of it.
	l.target("worker", "rendered-worker-a")
	l.updated("worker", "rendered-worker-a")
	told, _, most := l.eye.seen()
	if diff := cmp.Diff([]string{"rendered-worker-b", "rendered-worker-c", "rendered-worker-a"}, told["d-0"]); diff != "" || most != 2 {
		t.Errorf("%d out of service; d-0 was told (-want +got):\n%s", most, diff)
	}
	if told["d-2"] != nil || told["d-3"] != nil {
		t.Errorf("nodes that never left were told something: %v", told)
	}
}

func TestARevertInTheMiddleOfARolloutTurnsItRound(t *testing.T) {
	l := newLab(t)
	for i := range 4 {
		l.node(fmt.Sprintf("r-%d", i), "worker", "rendered-worker-a")
	}
	l.agents.hold("r-2", true)
	l.pool("worker", "rendered-worker-b")
	l.alone()
	l.until("half have arrived and one is in its drain", func() bool { return l.stand("r-2").Cordoned })
	l.target("worker", "rendered-worker-a")
	l.agents.hold("r-2", false)
	l.updated("worker", "rendered-worker-a")
	told, _, most := l.eye.seen()
	want := map[string][]string{
		"r-0": {"rendered-worker-b", "rendered-worker-a"}, "r-1": {"rendered-worker-b", "rendered-worker-a"},
		"r-2": {"rendered-worker-b", "rendered-worker-a"},
	}
	if diff := cmp.Diff(want, told); diff != "" || most != 1 {
		t.Errorf("%d out of service; told (-want +got):\n%s", most, diff)
	}
}

func TestACordonOfSomebodyElseIsNoObstacleAndStays(t *testing.T) {
	l := newLab(t)
	l.node("c-0", "worker", "rendered-worker-a")
	l.node("c-1", "worker", "rendered-worker-a", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	l.pool("worker", "rendered-worker-b")
	l.alone()
	l.phase("c-1", "rendered-worker-b", progress.PhaseUpdated)
	if n := l.stand("c-1"); !n.Cordoned {
		t.Error("the cordon is gone")
	}
	if n := l.stand("c-0"); n.Desired != "rendered-worker-a" {
		t.Error("a node that serves was sent although another is out of service")
	}
	l.mustPatchNode("c-1", `{"spec":{"unschedulable":null}}`)
	l.updated("worker", "rendered-worker-b")
}

func TestANodeThatIsNotReadyIsToldWhatToDoWhenItIsBack(t *testing.T) {
	l := newLab(t)
	// Nobody plays this one: it never becomes ready, until the test says so.
	n := cluster.KwokNode("n-0", map[string]string{api.NodeRole + "worker": ""})
	delete(n.Labels, "kwok.x-k8s.io/node")
	n.Annotations = map[string]string{
		api.CurrentConfig: "rendered-worker-a", api.DesiredConfig: "rendered-worker-bad", api.StateKey: string(api.Working),
	}
	if _, err := l.Client.CoreV1().Nodes().Create(l.ctx, n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.node("n-1", "worker", "rendered-worker-a")
	l.pool("worker", "rendered-worker-b")
	l.alone()
	l.until("it is sent on", func() bool { return l.stand("n-0").Desired == "rendered-worker-b" })
	if n := l.stand("n-1"); n.Desired != "rendered-worker-a" {
		t.Error("a node that serves was sent although another is out of service")
	}
	l.mustPatchNode("n-0", `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, "status")
	l.updated("worker", "rendered-worker-b")
}

func TestANodeThatIsDeletedMidUpdateFreesItsPlace(t *testing.T) {
	l := newLab(t)
	for i := range 3 {
		l.node(fmt.Sprintf("x-%d", i), "worker", "rendered-worker-a")
	}
	l.agents.hold("x-0", true)
	l.pool("worker", "rendered-worker-b")
	l.alone()
	l.until("the first is in its drain", func() bool { return l.stand("x-0").Cordoned })
	if err := l.Client.CoreV1().Nodes().Delete(l.ctx, "x-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.updated("worker", "rendered-worker-b")
	if got := l.getPool("worker").Status.MachineCount; got != 2 {
		t.Errorf("the pool counts %d nodes", got)
	}
	// It comes back as it was installed, and is not forgotten.
	l.agents.hold("x-0", false)
	l.node("x-0", "worker", "rendered-worker-a")
	l.until("it is counted again", func() bool { return l.getPool("worker").Status.MachineCount == 3 })
	l.updated("worker", "rendered-worker-b")
}

func TestTheOnlyNodeOfAClusterIsToldSo(t *testing.T) {
	l := newLab(t)
	l.node("s-0", "worker", "rendered-worker-a")
	l.pool("worker", "rendered-worker-b")
	l.alone()
	l.updated("worker", "rendered-worker-b")
	if !l.stand("s-0").SingleReplica {
		t.Error("it does not know")
	}
	l.change("worker", `{"metadata":{"annotations":{"`+api.DrainSingleNode+`":"true"}}}`)
	l.until("it is to be drained all the same", func() bool { return !l.stand("s-0").SingleReplica })
	l.change("worker", `{"metadata":{"annotations":{"`+api.DrainSingleNode+`":null}}}`)
	l.until("it is not", func() bool { return l.stand("s-0").SingleReplica })
	l.node("s-1", "worker", "rendered-worker-b")
	l.until("it is no longer the only one", func() bool { return !l.stand("s-0").SingleReplica })
}

func TestTheControlPlaneGoesOneNodeAtATimeWhateverItsPoolsSay(t *testing.T) {
	l := newLab(t)
	for i := range 3 {
		l.node(fmt.Sprintf("cp-%d", i), "master", "rendered-master-a")
	}
	l.node("cp-arbiter", "arbiter", "rendered-arbiter-a")
	l.pool("master", "rendered-master-b", maxUnavailable("3"))
	l.pool("arbiter", "rendered-arbiter-b")
	l.alone()
	l.updated("master", "rendered-master-b")
	l.updated("arbiter", "rendered-arbiter-b")
	if told, _, most := l.eye.seen(); most != 1 || len(told) != 4 {
		t.Errorf("%d were out of service at one time; told: %v", most, told)
	}
}

// The infra pool as people make it: a label, a pool, and the worker label taken away or not.
func TestANodeMovesFromWorkerToInfraAndBack(t *testing.T) {
	l := newLab(t)
	for i := range 3 {
		l.node(fmt.Sprintf("i-%d", i), "worker", "rendered-worker-a")
	}
	l.pool("worker", "rendered-worker-a")
	l.pool("infra", "rendered-infra-a")
	l.alone()
	l.updated("worker", "rendered-worker-a")
	if _, err := l.Kubectl(l.ctx, "label", "node", "i-0", "i-1", api.NodeRole+"infra="); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Kubectl(l.ctx, "label", "node", "i-0", api.NodeRole+"worker-"); err != nil {
		t.Fatal(err)
	}
	l.until("both are in the infra pool, updated", func() bool {
		p, w := l.getPool("infra").Status, l.getPool("worker").Status
		return p.UpdatedMachineCount == 2 && p.MachineCount == 2 && w.MachineCount == 1 && w.UpdatedMachineCount == 1
	})
	if _, _, most := l.eye.seen(); most != 1 {
		t.Errorf("%d were out of service at one time", most)
	}

	// A third role is one too many: the node stays as it is, and both pools say so.
	l.pool("gpu", "rendered-gpu-a")
	if _, err := l.Kubectl(l.ctx, "label", "node", "i-1", api.NodeRole+"gpu="); err != nil {
		t.Fatal(err)
	}
	const says = "True node i-1 belongs to 2 custom pools (gpu, infra): the node is left alone until only one pool selects it"
	for _, pool := range []string{"gpu", "infra"} {
		l.until(pool+" names the conflict", func() bool {
			return l.condition(pool, progress.PoolMisconfigured) == says &&
				l.condition(pool, mcfgv1.MachineConfigPoolDegraded) == says
		})
	}
	if got := l.stand("i-1").Desired; got != "rendered-infra-a" {
		t.Errorf("the node that two pools claim was sent to %s", got)
	}
	l.until("there is an event of it", func() bool {
		events, err := l.Client.CoreV1().Events("default").List(l.ctx, metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "gpu" && e.Reason == "Misconfigured"
		})
	})
	if _, err := l.Kubectl(l.ctx, "label", "node", "i-1", api.NodeRole+"gpu-", api.NodeRole+"infra-"); err != nil {
		t.Fatal(err)
	}
	l.until("it is a worker again", func() bool {
		w := l.getPool("worker").Status
		return w.MachineCount == 2 && w.UpdatedMachineCount == 2 && l.stand("i-1").Desired == "rendered-worker-a"
	})
	for _, pool := range []string{"gpu", "infra"} {
		l.until(pool+" has nothing to complain of", func() bool {
			return l.condition(pool, mcfgv1.MachineConfigPoolDegraded) == "False"
		})
	}
}

func TestAMaxUnavailableThatSaysNothingIsNamedAndIsOne(t *testing.T) {
	l := newLab(t)
	for i := range 3 {
		l.node(fmt.Sprintf("u-%d", i), "worker", "rendered-worker-a")
	}
	l.pool("worker", "rendered-worker-b", maxUnavailable("lots"))
	l.alone()
	l.updated("worker", "rendered-worker-b")
	want := `True spec.maxUnavailable: "lots" is neither a number of nodes nor a percentage: 1 is used`
	if got := l.condition("worker", progress.PoolMisconfigured); got != want {
		t.Errorf("the pool says %q", got)
	}
	if _, _, most := l.eye.seen(); most != 1 {
		t.Errorf("%d were out of service at one time", most)
	}
}
