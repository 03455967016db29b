// SPDX-License-Identifier: Apache-2.0

package progress

import (
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

var night = time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)

func TestANodeIsReadAsItIs(t *testing.T) {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "a", CreationTimestamp: metav1.NewTime(night),
			Labels:      map[string]string{api.Zone: "z1"},
			Annotations: map[string]string{api.CurrentConfig: "A", api.DesiredConfig: "B", api.StateKey: "Working", api.CordonKey: "{"},
		},
		Spec: corev1.NodeSpec{
			Unschedulable: true,
			Taints:        []corev1.Taint{{Key: api.UpdateInProgressTaint, Effect: corev1.TaintEffectPreferNoSchedule}},
		},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue},
			{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "Kubelet stopped posting node status.", LastTransitionTime: metav1.NewTime(night)},
		}},
	}
	want := Node{
		Node: api.Node{Current: "A", Desired: "B", State: api.Working}, Name: "a", Zone: "z1", Created: night,
		Cordoned: true, Tainted: true, NotReady: "Ready=Unknown: Kubelet stopped posting node status.", NotReadySince: night,
		Unread: "node a: annotation noderefit.dev/cordon: unexpected end of JSON input",
	}
	if diff := cmp.Diff(want, ReadNode(n)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhichConditionsMakeANodeNotReady(t *testing.T) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	for _, test := range []struct {
		conditions []corev1.NodeCondition
		want       string
	}{
		{nil, "it has never reported its state"},
		{[]corev1.NodeCondition{ready}, ""},
		{[]corev1.NodeCondition{ready, {Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}}, ""},
		{[]corev1.NodeCondition{ready, {Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}}, "DiskPressure=True"},
		{[]corev1.NodeCondition{ready, {Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue}}, "NetworkUnavailable=True"},
		{[]corev1.NodeCondition{ready, {Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse}}, ""},
	} {
		if got, _ := notReady(test.conditions); got != test.want {
			t.Errorf("%+v: got %q, want %q", test.conditions, got, test.want)
		}
	}
}

func TestWhereANodeStands(t *testing.T) {
	for _, test := range []struct {
		node               Node
		phase              Phase
		unavailable, takes bool
	}{
		{Node{Node: api.Node{Current: "B", Desired: "B", State: api.Done}}, PhaseUpdated, false, false},
		{Node{Node: api.Node{Current: "A", Desired: "A", State: api.Done}}, PhaseWaiting, false, false},
		{Node{}, PhaseWaiting, false, false},
		{Node{Node: api.Node{Current: "A", Desired: "B", State: api.Done}}, PhaseUpdating, true, true},
		{Node{Node: api.Node{Current: "A", Desired: "B", State: api.Working}}, PhaseUpdating, true, true},
		{Node{Node: api.Node{Desired: "B"}}, PhaseUpdating, true, true},
		{Node{Node: api.Node{Current: "B", Desired: "B", State: api.Working}}, PhaseUpdating, true, true},
		{Node{Node: api.Node{Current: "A", Desired: "B", State: api.Degraded}}, PhaseDegraded, false, true},
		{Node{Node: api.Node{Current: "A", Desired: "X", State: api.Degraded}}, PhaseDegraded, false, false},
		{Node{Node: api.Node{Current: "A", Desired: "X", State: api.Degraded}, Cordoned: true}, PhaseDegraded, true, true},
		{Node{Node: api.Node{Current: "A", Desired: "B", State: api.Unreconcilable}}, PhaseDegraded, false, true},
		{Node{Node: api.Node{Current: "A", Desired: "B", State: api.RolledBack}}, PhaseRolledBack, false, true},
		{Node{Node: api.Node{Current: "B", Desired: "B", State: api.Done}, NotReady: "off"}, PhaseUpdated, true, true},
		{Node{Node: api.Node{Current: "B", Desired: "B", State: api.Done}, Cordoned: true}, PhaseUpdated, true, true},
	} {
		n := test.node
		if n.Phase("B") != test.phase || n.Unavailable() != test.unavailable || n.Takes("B") != test.takes {
			t.Errorf("%+v: %s, unavailable %v, takes a share %v; want %s, %v, %v", n,
				n.Phase("B"), n.Unavailable(), n.Takes("B"), test.phase, test.unavailable, test.takes)
		}
	}
	if (Node{Node: api.Node{State: api.Done}}).Updated("") {
		t.Error("a node is updated to a configuration that is not there")
	}
}

func TestHowManyNodesMayBeAway(t *testing.T) {
	for _, test := range []struct {
		value string
		nodes int
		want  int
		fails bool
	}{
		{"", 10, 1, false},
		{"3", 10, 3, false},
		{"30", 10, 30, false},
		{"0", 10, 1, false},
		{"0%", 10, 1, false},
		{"33%", 10, 3, false},
		{"39%", 10, 3, false},
		{"33%", 2, 1, false},
		{"100%", 7, 7, false},
		{"10%", 0, 1, false},
		{"-1", 10, 1, true},
		{"-10%", 10, 1, true},
		{"half", 10, 1, true},
		{"10 %", 10, 1, true},
		{"1.5%", 10, 1, true},
	} {
		var value *intstr.IntOrString
		if test.value != "" {
			value = new(intstr.Parse(test.value))
		}
		got, err := MaxUnavailable(value, test.nodes)
		if got != test.want || (err != nil) != test.fails {
			t.Errorf("%q of %d: got %d, %v; want %d", test.value, test.nodes, got, err, test.want)
		}
		if err != nil && !strings.Contains(err.Error(), test.value) {
			t.Errorf("%q: the error does not name the value: %v", test.value, err)
		}
	}
}

func pool(name string, selector map[string]string) mcfgv1.MachineConfigPool {
	p := mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if selector != nil {
		p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: selector}
	}
	return p
}

func TestWhichPoolANodeBelongsTo(t *testing.T) {
	role := func(roles ...string) map[string]string {
		out := map[string]string{}
		for _, r := range roles {
			out[api.NodeRole+r] = ""
		}
		return out
	}
	broken := pool("storage", nil)
	broken.Spec.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}}
	m := NewMembership([]mcfgv1.MachineConfigPool{
		pool("worker", role("worker")), pool("master", role("master")), pool("infra", role("infra")), pool("gpu", role("gpu")),
		pool("arbiter", role("arbiter")), pool("nothing", nil), pool("empty", map[string]string{}), broken,
	})
	for _, test := range []struct {
		name     string
		labels   map[string]string
		desired  string
		want     string
		conflict string
	}{
		{"worker", role("worker"), "", "worker", ""},
		{"nobody's", role("router"), "", "", ""},
		{"infra", role("infra"), "", "infra", ""},
		{"infra beats worker", role("infra", "worker"), "rendered-worker-1", "infra", ""},
		{"master beats worker", role("master", "worker"), "", "master", ""},
		{"master beats infra", role("master", "infra"), "", "master", ""},
		{"master beats any number", role("master", "infra", "gpu"), "", "master", ""},
		{"arbiter beats worker", role("arbiter", "worker", "infra"), "", "arbiter", ""},
		{"master beats arbiter", role("arbiter", "master"), "", "master", ""},
		{
			"two custom pools", role("infra", "gpu", "worker"), "", "",
			"node n belongs to 2 custom pools (gpu, infra): it is left alone until only one selects it",
		},
		{"windows", map[string]string{api.NodeRole + "worker": "", corev1.LabelOSStable: "windows"}, "", "", ""},
		{"whose pool can't be read stays where it is", role("worker"), "rendered-storage-123", "", ""},
		{"whose pool only sounds like it", role("worker"), "rendered-storage-fast-123", "worker", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: test.labels}}
			n.Annotations = map[string]string{api.DesiredConfig: test.desired}
			got, conflict := m.Of(n)
			said := ""
			if conflict != nil {
				said = conflict.String()
			}
			if got != test.want || said != test.conflict {
				t.Errorf("got %q, %q", got, said)
			}
		})
	}
	if p := m.Problem("storage"); !strings.Contains(p, `"Is" is not a valid label selector operator`) {
		t.Errorf("the pool whose selector can't be read says %q", p)
	}
}

func TestWhatIsQuarantined(t *testing.T) {
	q := func(config, node string, minutes int) api.Quarantine {
		return api.Quarantine{Config: config, Node: node, Reason: "r", Since: night.Add(time.Duration(minutes) * time.Minute)}
	}
	lift := func(config string, minutes int) api.Lifted {
		return api.Lifted{Config: config, At: night.Add(time.Duration(minutes) * time.Minute)}
	}
	for _, test := range []struct {
		name   string
		known  []api.Quarantine
		lifted []api.Lifted
		nodes  map[string][]api.Quarantine
		want   []api.Quarantine
	}{
		{"nothing", nil, nil, nil, nil},
		{"what is known", []api.Quarantine{q("B", "a", 0)}, nil, nil, []api.Quarantine{q("B", "a", 0)}},
		{
			"what a node reports, under its name", nil, nil,
			map[string][]api.Quarantine{"a": {q("B", "", 0)}}, []api.Quarantine{q("B", "a", 0)},
		},
		{
			"the first report of each, the latest first", []api.Quarantine{q("C", "x", 5)}, nil,
			map[string][]api.Quarantine{"a": {q("B", "", 1)}, "b": {q("B", "", 2), q("C", "", 3)}},
			[]api.Quarantine{q("C", "b", 3), q("B", "a", 1)},
		},
		{"lifted", []api.Quarantine{q("B", "a", 0)}, []api.Lifted{lift("B", 0)}, map[string][]api.Quarantine{"a": {q("B", "", 0)}}, nil},
		{"lifted is another one", []api.Quarantine{q("B", "a", 0)}, []api.Lifted{lift("C", 9)}, nil, []api.Quarantine{q("B", "a", 0)}},
		{
			"failed again after that", []api.Quarantine{q("B", "a", 0)}, []api.Lifted{lift("B", 1)},
			map[string][]api.Quarantine{"a": {q("B", "", 2)}}, []api.Quarantine{q("B", "a", 2)},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := pool("worker", nil)
			p.Annotations = map[string]string{
				api.PoolQuarantineKey: api.Encode(test.known), api.LiftedKey: api.Encode(test.lifted),
			}
			var nodes []Node
			for name, list := range test.nodes {
				nodes = append(nodes, Node{Name: name, Node: api.Node{Quarantined: list}})
			}
			got := NewPool(&p, nodes)
			if diff := cmp.Diff(test.want, got.Quarantined); diff != "" || len(got.Problems) > 0 {
				t.Errorf("(-want +got):\n%s%v", diff, got.Problems)
			}
		})
	}
}

func TestAPoolRemembersOnlySoMuch(t *testing.T) {
	p := pool("worker", nil)
	var n Node
	for i := range QuarantineLimit + 3 {
		n.Quarantined = append(n.Quarantined, api.Quarantine{Config: string(rune('a' + i)), Since: night.Add(time.Duration(i))})
	}
	got := NewPool(&p, []Node{n}).Quarantined
	if len(got) != QuarantineLimit || got[0].Config != string(rune('a'+QuarantineLimit+2)) {
		t.Errorf("%d, first %s", len(got), got[0].Config)
	}
}

func TestWhatCantBeReadIsSaid(t *testing.T) {
	p := pool("worker", nil)
	p.Annotations = map[string]string{api.PoolQuarantineKey: "{", api.LiftedKey: "["}
	got := NewPool(&p, []Node{{Name: "a", Unread: "node a: oops"}})
	if len(got.Problems) != 2 {
		t.Errorf("%q", got.Problems)
	}
}
