// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
)

const (
	renderedA = "rendered-worker-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	renderedB = "rendered-worker-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	// renderedInfra has the content of renderedB.
	renderedInfra = "rendered-infra-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world is a pool worker that goes from renderedA to renderedB, and the nodes a, b and c, which are at renderedA.
type world struct {
	View

	pool    *mcfgv1.MachineConfigPool
	a, b, c *corev1.Node
}

func newWorld() *world {
	w := &world{View: View{
		Pools: []mcfgv1.MachineConfigPool{{
			ObjectMeta: metav1.ObjectMeta{Name: "worker"},
			Spec: mcfgv1.MachineConfigPoolSpec{
				NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "worker"}},
			},
		}},
		States:  map[string]*mcfgv1.MachineConfigNode{},
		Daemons: map[string]Daemon{},
	}}
	for i, name := range []string{"a", "b", "c"} {
		w.Nodes = append(w.Nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: map[string]string{"role": "worker"}, Annotations: map[string]string{},
				CreationTimestamp: metav1.NewTime(began.Add(time.Duration(i) * time.Minute)),
			},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
			}},
		})
		w.States[name] = &mcfgv1.MachineConfigNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		w.Daemons[name] = Daemon{Namespace: api.Namespace, Pod: "daemon-" + name}
	}
	w.pool, w.a, w.b, w.c = &w.Pools[0], &w.Nodes[0], &w.Nodes[1], &w.Nodes[2]
	for i := range w.Nodes {
		w.at(&w.Nodes[i], renderedA, renderedA, api.Done, "")
	}
	w.pool.Spec.Configuration.Name = renderedB
	w.pool.Status.Configuration.Name = renderedA
	return w
}

// at makes a node, and its daemon, say where it is.
func (w *world) at(n *corev1.Node, current, desired string, state api.State, reason string) {
	n.Annotations[api.CurrentConfig] = current
	n.Annotations[api.DesiredConfig] = desired
	n.Annotations[api.StateKey] = string(state)
	n.Annotations[api.Reason] = reason
	if s := w.States[n.Name]; s != nil {
		s.Spec.ConfigVersion.Desired = desired
	}
}

// moving sends a node to renderedB, and has it do a step.
func (w *world) moving(n *corev1.Node, step mcfgv1.StateProgress) {
	w.at(n, renderedA, renderedB, api.Working, "")
	w.set(n, step, metav1.ConditionUnknown)
}

func (w *world) set(n *corev1.Node, of mcfgv1.StateProgress, status metav1.ConditionStatus) {
	s := w.States[n.Name]
	s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{
		Type: string(of), Status: status, LastTransitionTime: metav1.NewTime(began),
		Message: "reboot, because of file /etc/a",
	})
}

func (w *world) draining(n *corev1.Node, left int, waiting ...api.WaitingPod) {
	w.moving(n, mcfgv1.MachineConfigNodeUpdateDrained)
	w.States[n.Name].Annotations = map[string]string{
		api.DrainKey: api.Encode(api.Drain{Config: renderedB, Since: began, Left: left, Waiting: waiting}),
	}
}

func (w *world) poolCondition(kind mcfgv1.MachineConfigPoolConditionType, message string) {
	w.pool.Status.Conditions = append(w.pool.Status.Conditions, mcfgv1.MachineConfigPoolCondition{
		Type: kind, Status: corev1.ConditionTrue, Message: message, LastTransitionTime: metav1.NewTime(began),
	})
}

// unwritten leaves the pool without any MachineConfigs, as a new cluster's are.
func (w *world) unwritten() {
	w.poolCondition(api.PoolRenderPending, "no document matches (a=b)")
	w.pool.Status.Conditions[0].Reason = api.NoMachineConfigs
	w.pool.Spec.Configuration.Name = ""
}

func notReadyNow(n *corev1.Node) {
	n.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "Kubelet stopped posting node status.",
		LastTransitionTime: metav1.NewTime(began),
	}}
}

func quarantineOn(n *corev1.Node) {
	q := api.Quarantine{Config: renderedB, Reason: "kubelet is not healthy", Since: began}
	n.Annotations[api.QuarantinedKey] = api.Encode([]api.Quarantine{q})
}

var router = api.WaitingPod{
	Namespace: "shop", Name: "router-1", Since: began.Add(time.Minute), Why: api.DrainWaitBudget, Budget: "router",
	Placement: "0 of 4 nodes could take it: 1 is cordoned, 3 do not match its node selector",
}

// explanation is what a case expects; since is minutes after began, -1 where nobody knows.
type explanation struct {
	verdict  Verdict
	blocking string
	since    int
	says     []string // in because
	do       string   // in do; empty: nothing is to be done
}

func check(t *testing.T, a Answer, subject string, want explanation) {
	t.Helper()
	blocking := ""
	if a.Blocking != nil {
		blocking = a.Blocking.String()
	}
	since := time.Time{}
	if want.since >= 0 {
		since = began.Add(time.Duration(want.since) * time.Minute)
	}
	if a.Subject.String() != subject || a.Verdict != want.verdict || blocking != want.blocking || !a.Since.Equal(since) {
		t.Errorf("%s: %s, blocked by %q, since %s; want %s, %q, %s", a.Subject, a.Verdict, blocking, a.Since,
			want.verdict, want.blocking, since)
	}
	for _, words := range want.says {
		if !strings.Contains(a.Because, words) {
			t.Errorf("because %q lacks %q", a.Because, words)
		}
		if strings.Count(a.Because, words) > 1 {
			t.Errorf("because %q says %q more than once", a.Because, words)
		}
	}
	if !strings.Contains(a.Do, want.do) || (want.do == "") != (a.Do == "") {
		t.Errorf("do %q, want %q", a.Do, want.do)
	}
	if strings.Contains(a.Because+a.Do, "%!") {
		t.Errorf("badly formatted: %q, %q", a.Because, a.Do)
	}
}

func TestTheOneThingThatKeepsANodeIsNamed(t *testing.T) {
	const never = -1
	tests := map[string]struct {
		change func(*world)
		node   string
		want   explanation
	}{
		"up to date": {func(w *world) {
			w.at(w.a, renderedB, renderedB, api.Done, "")
			w.set(w.a, mcfgv1.MachineConfigNodeUpdated, metav1.ConditionTrue)
		}, "a", explanation{UpToDate, "", 0, []string{renderedB}, ""}},
		"no pool": {func(w *world) { w.a.Labels = nil }, "a",
			explanation{NoPool, "", never, []string{"no MachineConfigPool selects"}, "labels of a pool"}},
		"two custom pools": {func(w *world) {
			for _, name := range []string{"infra", "storage"} {
				p := w.pool.DeepCopy()
				p.Name = name
				w.Pools = append(w.Pools, *p)
			}
		}, "a", explanation{SeveralPools, "MachineConfigPool storage", never, []string{"infra, storage"},
			"remove from node a"}},
		"a pool whose selector is malformed": {func(w *world) {
			w.pool.Spec.NodeSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "x", Operator: "Near"}}
		}, "a", explanation{Misconfigured, "MachineConfigPool worker", never, []string{"spec.nodeSelector"}, "correct"}},
		"paused": {func(w *world) { w.pool.Spec.Paused = true }, "a",
			explanation{Paused, "MachineConfigPool worker", never, []string{"paused; will not update to " + renderedB},
				"kubectl refit resume worker"}},
		"not rendered": {func(w *world) { w.pool.Spec.Configuration.Name = "" }, "a",
			explanation{NotRendered, "Deployment " + api.Namespace + "/machine-config-controller", never,
				[]string{"no configuration was rendered"}, "machineConfigSelector"}},
		"render degraded": {func(w *world) {
			w.poolCondition(mcfgv1.MachineConfigPoolRenderDegraded,
				"failed to render configuration for pool worker: MachineConfig/50-bad: spec.kernelType: no such")
		}, "a", explanation{RenderDegraded, "MachineConfig 50-bad", 0, []string{"spec.kernelType"}, "correct or delete"}},
		"render pending": {func(w *world) {
			w.poolCondition(api.PoolRenderPending,
				"not rendered until this is finished: KubeletConfig/small since 12:00: Failure")
		}, "a", explanation{RenderPending, "KubeletConfig small", 0, []string{"Failure"}, "see the status"}},
		"a part that was refused holds nothing up": {func(w *world) {
			w.poolCondition(api.PoolRenderPending, "rendered without this: KubeletConfig/small since 12:00: Accepted is False")
			w.pool.Status.Conditions[0].Reason = api.PartRefused
			w.pool.Spec.Paused = true
		}, "a", explanation{Paused, "MachineConfigPool worker", never, []string{"paused"}, "kubectl refit resume worker"}},
		"no MachineConfigs yet": {(*world).unwritten, "a", explanation{RenderPending, "MachineConfigPool worker", 0, []string{"never had any", "a=b"},
			"create a MachineConfig"}},
		"up to date with what is no longer wanted": {func(w *world) {
			w.at(w.a, renderedB, renderedB, api.Done, "")
			w.poolCondition(api.PoolRenderPending, "ContainerRuntimeConfig/x")
		}, "a", explanation{RenderPending, "ContainerRuntimeConfig x", 0, nil, "see the status"}},
		"waits for its turn": {func(w *world) { w.moving(w.a, mcfgv1.MachineConfigNodeUpdateFilesAndOS) }, "c",
			explanation{WaitsForTurn, "Node a", 0,
				[]string{"1 node of pool worker may be out of service", "a (applying)", "1 node before it"},
				"kubectl refit explain node/a"}},
		"waits for somebody else's cordon": {func(w *world) { w.b.Spec.Unschedulable = true }, "a",
			explanation{WaitsForTurn, "Node b", never, []string{"b (cordoned by somebody else)"}, "wait"}},
		"waits for many": {func(w *world) {
			w.pool.Spec.MaxUnavailable = new(intstr.FromInt32(2))
			w.moving(w.a, mcfgv1.MachineConfigNodeUpdateDrained)
			notReadyNow(w.b)
		}, "c", explanation{WaitsForTurn, "Node a", 0, []string{"2 nodes", "a (draining), b (not ready)"}, "wait"}},
		"its turn, and the controller is silent": {func(*world) {}, "a",
			explanation{NotOffered, "Deployment " + api.Namespace + "/machine-config-controller", never,
				[]string{"the node's turn"}, "deployment"}},
		"staging": {func(w *world) { w.moving(w.a, mcfgv1.MachineConfigNodeUpdatePrepared) }, "a",
			explanation{Updating, "", 0, []string{"from " + renderedA, "staging", "/etc/a"}, ""}},
		"proving": {func(w *world) { w.moving(w.a, mcfgv1.MachineConfigNodeResumed) }, "a",
			explanation{Updating, "", 0, []string{"proving"}, ""}},
		"held up for a moment": {func(w *world) {
			w.moving(w.a, mcfgv1.MachineConfigNodeUpdatePrepared)
			w.a.Annotations[api.Reason] = "zincati is at work"
		}, "a", explanation{Updating, "", 0, []string{"zincati is at work"}, ""}},
		"long pull": {func(w *world) {
			w.moving(w.a, mcfgv1.MachineConfigNodeUpdatePrepared)
			said := w.States["a"].Status.Conditions
			said[len(said)-1].Message += "; layer 7"
			w.a.Annotations[api.Reason] = "layer 7"
		}, "a", explanation{Updating, "", 0, []string{"layer 7"}, ""}},
		"drain held by a budget": {func(w *world) { w.draining(w.a, 3, router) }, "a",
			explanation{Draining, "PodDisruptionBudget shop/router", 1, []string{
				"pod shop/router-1 is held by PodDisruptionBudget router, which allows 0 disruptions now",
				"0 of 4 nodes could take it", "2 more pods",
			}, "describe pdb router"}},
		"drain waits for a pod that ends slowly": {func(w *world) {
			w.draining(w.a, 1, api.WaitingPod{Namespace: "shop", Name: "db", Since: began, Why: api.DrainWaitTerminating})
		}, "a", explanation{Draining, "Pod shop/db", 0, []string{"is terminating"}, "finalizers"}},
		"drain refused by a webhook": {func(w *world) {
			w.draining(w.a, 1, api.WaitingPod{Namespace: "shop", Name: "db", Since: began, Why: api.DrainWaitRefused,
				Message: `admission webhook "guard" denied the request`})
		}, "a", explanation{Draining, "Pod shop/db", 0, []string{`webhook "guard"`}, "webhook"}},
		"drain that can't evict": {func(w *world) {
			w.draining(w.a, 1, api.WaitingPod{Namespace: "shop", Name: "db", Since: began, Why: api.DrainWaitError})
		}, "a", explanation{Draining, "Pod shop/db", 0, []string{"could not be evicted"}, "tries again"}},
		"drain under way": {func(w *world) { w.draining(w.a, 12) }, "a",
			explanation{Updating, "", 0, []string{"12 pods left"}, ""}},
		"drain of an earlier update": {func(w *world) {
			w.draining(w.a, 1, router)
			w.at(w.a, renderedA, renderedA, api.Working, "")
		}, "a", explanation{Updating, "", 0, nil, ""}},
		"rebooting": {func(w *world) {
			w.moving(w.a, mcfgv1.MachineConfigNodeUpdateRebooted)
			w.a.Annotations[api.PostConfigAction] = api.PostConfigActionRebooting
		}, "a", explanation{Rebooting, "", 0, []string{"reboots into " + renderedB}, "wait"}},
		"gone since it was to reboot": {func(w *world) {
			w.moving(w.a, mcfgv1.MachineConfigNodeUpdateRebooted)
			notReadyNow(w.a)
		}, "a", explanation{Rebooting, "Node a", 0, []string{"has not reported since"}, "console"}},
		"not ready": {func(w *world) { notReadyNow(w.a) }, "a",
			explanation{NotReady, "Node a", 0, []string{"Kubelet stopped posting"}, "kubectl describe node a"}},
		"up to date and not ready": {func(w *world) {
			w.at(w.a, renderedB, renderedB, api.Done, "")
			notReadyNow(w.a)
		}, "a", explanation{NotReady, "Node a", 0, nil, "kubectl describe node a"}},
		"cordoned by somebody else": {func(w *world) {
			w.at(w.a, renderedB, renderedB, api.Done, "")
			w.a.Spec.Unschedulable = true
		}, "a", explanation{Cordoned, "Node a", never, []string{"somebody else"}, "kubectl uncordon a"}},
		"about to be uncordoned": {func(w *world) {
			w.at(w.a, renderedB, renderedB, api.Done, "")
			w.a.Spec.Unschedulable = true
			w.a.Annotations[api.CordonKey] = api.Encode(api.Cordon{By: api.Daemon, Reason: "update", Since: began})
		}, "a", explanation{Updating, "", 0, []string{"still cordoned by machine-config-daemon"}, ""}},
		"desired configuration is gone": {func(w *world) {
			w.moving(w.a, mcfgv1.MachineConfigNodeUpdatePrepared)
			w.Missing = map[string]bool{renderedB: true}
		}, "a", explanation{ConfigMissing, "MachineConfig " + renderedB, never, []string{"not in the cluster"}, "render"}},
		"no daemon pod": {func(w *world) { delete(w.Daemons, "a") }, "a",
			explanation{NoDaemon, "DaemonSet " + api.Namespace + "/machine-config-daemon", never,
				[]string{"no pod of the daemon"}, "describe daemonset"}},
		"daemon pod that does not start": {func(w *world) {
			w.Daemons["a"] = Daemon{Namespace: api.Namespace, Pod: "daemon-a", Trouble: "ImagePullBackOff", Since: began}
		}, "a", explanation{NoDaemon, "Pod " + api.Namespace + "/daemon-a", 0, []string{"ImagePullBackOff"}, "describe pod"}},
		"daemon that never spoke": {func(w *world) { delete(w.States, "a") }, "a",
			explanation{NotTakenUp, "Pod " + api.Namespace + "/daemon-a", never, []string{"has not reported yet"},
				"logs daemon-a"}},
		"daemon that has nothing to report yet": {func(w *world) {
			w.unwritten()
			delete(w.States, "a")
			w.a.Annotations = nil
		}, "a", explanation{RenderPending, "MachineConfigPool worker", 0, []string{"never had any"}, "create a MachineConfig"}},
		"daemon that has nothing to report before its turn": {func(w *world) {
			w.moving(w.b, mcfgv1.MachineConfigNodeUpdateFilesAndOS)
			delete(w.States, "a")
			w.a.Annotations = nil
		}, "a", explanation{WaitsForTurn, "Node b", 0, []string{"b (applying)"}, "kubectl refit explain node/b"}},
		"daemon that has not noticed": {func(w *world) {
			w.moving(w.a, mcfgv1.MachineConfigNodeUpdatePrepared)
			w.States["a"].Spec.ConfigVersion.Desired = renderedA
		}, "a", explanation{NotTakenUp, "Pod " + api.Namespace + "/daemon-a", never,
			[]string{"its agent still reports"}, "logs"}},
		// watch knows no pods: it shows nobody who is to blame for that moment.
		"host service that never spoke": {func(w *world) {
			w.Daemons = nil
			delete(w.States, "a")
		}, "a", explanation{NotTakenUp, "", never, []string{"has not reported yet"}, "journalctl"}},
		"rolled back": {func(w *world) {
			w.at(w.a, renderedA, renderedB, api.RolledBack, "rolled back")
			quarantineOn(w.a)
		}, "a", explanation{RolledBack, "MachineConfig " + renderedB, 0,
			[]string{"went back to " + renderedA, "kubelet is not healthy"}, "quarantine lift worker"}},
		"rolled back, and pointed elsewhere": {func(w *world) {
			w.at(w.a, renderedA, "rendered-worker-cc", api.RolledBack, "rolled back")
		}, "a", explanation{RolledBack, "MachineConfig rendered-worker-cc", never, nil,
			"nothing: the pool controller sends the node"}},
		"quarantined on another node": {func(w *world) {
			w.at(w.a, renderedA, renderedB, api.RolledBack, "rolled back")
			quarantineOn(w.a)
		}, "b", explanation{Quarantined, "MachineConfig " + renderedB, 0,
			[]string{"failed on node a", "kubelet is not healthy"}, "quarantine lift worker"}},
		"unreconcilable": {func(w *world) {
			w.at(w.a, renderedA, renderedB, api.Unreconcilable, "storage.disks: differ")
		}, "a", explanation{Unreconcilable, "MachineConfig " + renderedB, never, []string{"storage.disks"},
			"remove the named fields"}},
		"degraded": {func(w *world) {
			w.at(w.a, renderedA, renderedB, api.Degraded, "no space on /boot")
			w.set(w.a, mcfgv1.MachineConfigNodeNodeDegraded, metav1.ConditionTrue)
		}, "a", explanation{Degraded, "Node a", 0, []string{"no space on /boot"}, "correct"}},
		"degraded for want of a configuration": {func(w *world) {
			w.at(w.a, renderedA, renderedB, api.Degraded, "not found")
			w.Missing = map[string]bool{renderedB: true}
		}, "a", explanation{ConfigMissing, "MachineConfig " + renderedB, never, nil, "render"}},
		"annotation that can't be read": {func(w *world) { w.a.Annotations[api.CordonKey] = "{" }, "a",
			explanation{Misconfigured, "Node a", never, []string{api.CordonKey}, "take that annotation away"}},
		"annotation of another node that can't be read": {func(w *world) {
			w.a.Annotations[api.CordonKey] = "{"
			w.moving(w.b, mcfgv1.MachineConfigNodeUpdateRebooted)
		}, "c", explanation{WaitsForTurn, "Node b", 0, nil, "explain node/b"}},
		"others try first what failed there": {func(w *world) {
			w.pool.Spec.MaxUnavailable = new(intstr.FromInt32(3))
			w.pool.Annotations = map[string]string{api.LiftedKey: api.Encode([]api.Lifted{{
				Config: renderedB, Failures: []api.Failure{{Node: "a", Since: began}},
			}})}
			w.moving(w.a, mcfgv1.MachineConfigNodeUpdateRebooted)
			quarantineOn(w.a)
		}, "b", explanation{WaitsForTurn, "Node a", never, []string{"failed on node a, was lifted"}, "explain node/a"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			test.change(w)
			a, ok := NewReport(w.View).ExplainNode(test.node)
			if !ok {
				t.Fatal("no such node")
			}
			check(t, a, "Node "+test.node, test.want)
		})
	}
}

func TestAPoolSaysWhatItsWorstNodeSaysUnlessItIsStoppedItself(t *testing.T) {
	const never = -1
	tests := map[string]struct {
		change      func(*world)
		want        explanation
		done, ended bool
	}{
		"all are there": {func(w *world) {
			for i := range w.Nodes {
				w.at(&w.Nodes[i], renderedB, renderedB, api.Done, "")
			}
		}, explanation{UpToDate, "", never, []string{"all 3 nodes"}, ""}, true, true},
		"a drain that waits before a node that is staging": {func(w *world) {
			w.pool.Spec.MaxUnavailable = new(intstr.FromInt32(2))
			w.moving(w.a, mcfgv1.MachineConfigNodeUpdatePrepared)
			w.draining(w.b, 1, router)
		}, explanation{Draining, "PodDisruptionBudget shop/router", 1, []string{"0 of 3 nodes updated; node b:"}, "pdb"},
			false, false},
		"one is under way": {func(w *world) { w.moving(w.b, mcfgv1.MachineConfigNodeResumed) },
			explanation{Updating, "", 0, []string{"0 of 3 nodes updated; node b:"}, ""}, false, false},
		"a node that failed": {func(w *world) { w.at(w.c, renderedA, renderedB, api.Degraded, "no space") },
			explanation{Degraded, "Node c", never, []string{"no space"}, "correct"}, false, true},
		"quarantined": {func(w *world) {
			w.at(w.a, renderedA, renderedB, api.RolledBack, "")
			quarantineOn(w.a)
		}, explanation{Quarantined, "MachineConfig " + renderedB, 0, []string{"failed on node a"}, "lift"}, false, true},
		"quarantined, and one is still on its way back": {func(w *world) {
			w.at(w.a, renderedA, renderedB, api.RolledBack, "")
			quarantineOn(w.a)
			w.at(w.b, renderedA, renderedA, api.Working, "")
		}, explanation{Quarantined, "MachineConfig " + renderedB, 0, nil, "lift"}, false, false},
		"paused": {func(w *world) { w.pool.Spec.Paused = true },
			explanation{Paused, "MachineConfigPool worker", never, nil, "resume"}, false, true},
		"paused with nothing to do": {func(w *world) {
			w.pool.Spec.Paused = true
			w.pool.Spec.Configuration.Name = renderedA
		}, explanation{UpToDate, "", never, nil, ""}, true, true},
		"somebody's cordon at the end": {func(w *world) {
			w.pool.Spec.Configuration.Name = renderedA
			w.b.Spec.Unschedulable = true
		}, explanation{Cordoned, "Node b", never, []string{"3 of 3 nodes updated"}, "uncordon b"}, false, false},
		"render degraded although all nodes are there": {func(w *world) {
			w.pool.Spec.Configuration.Name = renderedA
			w.poolCondition(mcfgv1.MachineConfigPoolRenderDegraded, "MachineConfig/50-bad: no")
		}, explanation{RenderDegraded, "MachineConfig 50-bad", 0, nil, "correct"}, false, true},
		"a bad maxUnavailable": {func(w *world) { w.pool.Spec.MaxUnavailable = new(intstr.FromString("many")) },
			explanation{Misconfigured, "MachineConfigPool worker", never, []string{"maxUnavailable"}, "correct"}, false, true},
		"an annotation that can't be read, and nothing else": {func(w *world) {
			w.pool.Spec.Configuration.Name = renderedA
			w.b.Annotations[api.CordonKey] = "{"
		}, explanation{Misconfigured, "Node b", never, []string{api.CordonKey}, "take"}, false, true},
		"an annotation that can't be read in a pool that is stopped": {func(w *world) {
			w.at(w.a, renderedA, renderedB, api.RolledBack, "")
			quarantineOn(w.a)
			w.b.Annotations[api.CordonKey] = "{"
		}, explanation{Quarantined, "MachineConfig " + renderedB, 0, []string{"failed on node a"}, "lift"}, false, true},
		"an annotation that can't be read in a pool that is paused": {func(w *world) {
			w.pool.Spec.Paused = true
			w.b.Annotations[api.CordonKey] = "{"
		}, explanation{Paused, "MachineConfigPool worker", never, nil, "resume"}, false, true},
		"no nodes": {func(w *world) { w.Nodes = nil }, explanation{NoNodes, "", never, nil, "label"}, true, true},
		"no nodes, and no MachineConfigs yet": {func(w *world) {
			w.Nodes = nil
			w.unwritten()
		}, explanation{NoNodes, "", never, nil, "label"}, true, true},
		"no MachineConfigs yet": {(*world).unwritten,
			explanation{RenderPending, "MachineConfigPool worker", 0, []string{"never had any"}, "create a MachineConfig"}, false, false},
		"nothing but a conflict": {func(w *world) {
			w.Pools = append(w.Pools, *w.pool.DeepCopy())
			w.Pools[0].Name, w.Pools[1].Name = "worker2", "worker"
			third := w.pool.DeepCopy()
			third.Name = "worker3"
			w.Pools = append(w.Pools, *third)
		}, explanation{NoNodes, "", never, nil, "label"}, true, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			test.change(w)
			r := NewReport(w.View)
			a, ok := r.ExplainPool("worker")
			if !ok {
				t.Fatal("no such pool")
			}
			check(t, a, "MachineConfigPool worker", test.want)
			if done, ended := r.Ended("worker"); done != test.done || ended != test.ended {
				t.Errorf("done %t, ended %t; want %t, %t", done, ended, test.done, test.ended)
			}
		})
	}
}

func TestAPoolWhoseNodesAllBelongToOthersAsWellSaysWhose(t *testing.T) {
	w := newWorld()
	for _, name := range []string{"infra", "storage"} {
		p := w.pool.DeepCopy()
		p.Name = name
		w.Pools = append(w.Pools, *p)
	}
	a, _ := NewReport(w.View).ExplainPool("infra")
	check(t, a, "MachineConfigPool infra",
		explanation{SeveralPools, "MachineConfigPool storage", -1, []string{"infra, storage"}, "remove from node a"})
}

func TestAPoolThatSharesANodeWithAnotherIsNotUpToDate(t *testing.T) {
	w := newWorld()
	w.pool.Name = "infra"
	w.pool.Spec.Configuration.Name = renderedA
	storage := w.pool.DeepCopy()
	storage.Name, storage.Spec.NodeSelector.MatchLabels = "storage", map[string]string{"disks": "many"}
	w.Pools = append(w.Pools, *storage)
	w.c.Labels["disks"] = "many"
	r := NewReport(w.View)
	a, _ := r.ExplainPool("infra")
	check(t, a, "MachineConfigPool infra",
		explanation{SeveralPools, "MachineConfigPool storage", -1, []string{"infra, storage"}, "remove from node c"})
	if done, ended := r.Ended("infra"); done || !ended {
		t.Errorf("done %t, ended %t", done, ended)
	}
	if a, _ := r.ExplainNode("a"); a.Verdict != UpToDate {
		t.Errorf("node a: %+v", a)
	}
}

func TestTheControlPlanesPoolsShareOneTurn(t *testing.T) {
	w := newWorld()
	arbiter := w.pool.DeepCopy()
	arbiter.Name = api.PoolArbiter
	arbiter.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": "arbiter"}}
	w.pool.Name = api.PoolMaster
	w.Pools = append(w.Pools, *arbiter)
	w.c.Labels["role"] = "arbiter"
	w.moving(w.c, mcfgv1.MachineConfigNodeUpdateRebooted)
	a, _ := NewReport(w.View).ExplainNode("a")
	check(t, a, "Node a", explanation{WaitsForTurn, "Node c", 0, []string{"c (rebooting)"}, "explain node/c"})
}

func TestEveryAnswerThatIsNotFineSaysWhatToDo(t *testing.T) {
	for _, state := range []api.State{api.Degraded, api.Unreconcilable, api.RolledBack} {
		for _, reason := range []string{"", "why"} {
			w := newWorld()
			w.at(w.a, renderedA, renderedB, state, reason)
			a, _ := NewReport(w.View).ExplainNode("a")
			if a.Fine() || a.Do == "" || a.Because == "" || a.Blocking == nil {
				t.Errorf("%s %q: %+v", state, reason, a)
			}
		}
	}
}

func TestARefreshedDrainKeepsSinceWhenAndDropsWhatABudgetLetsGo(t *testing.T) {
	other := api.WaitingPod{Namespace: "shop", Name: "db", Since: began, Why: api.DrainWaitTerminating}
	now := router
	now.Since, now.Allowed, now.Placement = began.Add(time.Hour), 1, "1 of 4 nodes could take it"
	reported := api.Drain{Config: renderedB, Since: began, Left: 3, Waiting: []api.WaitingPod{router, other}}

	got := Refresh(reported, api.Drain{Left: 2, Waiting: []api.WaitingPod{now}})
	want := now
	want.Since = router.Since
	whole := api.Drain{Config: renderedB, Since: began, Left: 2, Waiting: []api.WaitingPod{want, other}}
	if diff := cmp.Diff(whole, got); diff != "" {
		t.Error(diff)
	}
	got = Refresh(reported, api.Drain{Left: 1})
	if diff := cmp.Diff([]api.WaitingPod{other}, got.Waiting); diff != "" {
		t.Error(diff)
	}
	if got = Refresh(reported, api.Drain{}); got.Left != 0 || len(got.Waiting) != 0 {
		t.Errorf("a drain that is over: %+v", got)
	}
}

func BenchmarkExplainAThousandNodes(b *testing.B) {
	w := newWorld()
	for i := range 997 {
		n := w.a.DeepCopy()
		n.Name = fmt.Sprintf("n%03d", i)
		w.Nodes = append(w.Nodes, *n)
	}
	w.States, w.Daemons = nil, nil
	w.pool.Spec.MaxUnavailable = new(intstr.FromString("10%"))
	for i := range 100 {
		w.Nodes[i].Annotations[api.DesiredConfig] = renderedB
	}
	for b.Loop() {
		r := NewReport(w.View)
		for i := range w.Nodes {
			r.ExplainNode(w.Nodes[i].Name)
		}
		r.ExplainPool("worker")
	}
}

func TestAWebhookThatKeepsTheControllerFromWritingIsNamed(t *testing.T) {
	pool := mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"w": ""}}
	pool.Spec.Configuration.Name = "rendered-worker-b"
	pool.Status.Conditions = []mcfgv1.MachineConfigPoolCondition{{
		Type: api.PoolWritesRefused, Status: corev1.ConditionTrue, Message: "writes have failed since 2026-03-01T12:00:00Z: telling " +
			`node n: Internal error occurred: failed calling webhook "w.example.com": context deadline exceeded`,
	}}
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"w": ""}}}
	node.Annotations = map[string]string{
		api.CurrentConfig: "rendered-worker-a", api.DesiredConfig: "rendered-worker-a", api.StateKey: string(api.Done),
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	r := NewReport(View{Pools: []mcfgv1.MachineConfigPool{pool}, Nodes: []corev1.Node{node}})
	ofPool, _ := r.ExplainPool("worker")
	ofNode, _ := r.ExplainNode("n")
	for _, a := range []Answer{ofPool, ofNode} {
		if a.Verdict != NotOffered || a.Blocking == nil || a.Blocking.String() != "Webhook w.example.com" ||
			!strings.Contains(a.Because, "telling node n") {
			t.Errorf("explained as %+v, blocked by %v", a, a.Blocking)
		}
	}
}
