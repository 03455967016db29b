// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"maps"
	"slices"
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
		Node: api.Node{Current: "A", Desired: "B", State: api.Working}, Name: "a", Labels: map[string]string{api.Zone: "z1"},
		Zone: "z1", Created: night,
		Cordoned: true, Tainted: true, NotReady: "Ready=Unknown: Kubelet stopped posting node status.", NotReadySince: night,
		Unread: "node a: annotation noderefit.dev/cordon: unexpected end of JSON input", Said: said(n.Annotations),
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

func TestANodeIsReadySinceTheLastOfItsConditionsIsWell(t *testing.T) {
	t.Parallel()
	n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(night)},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(night.Add(time.Hour))},
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(night.Add(2 * time.Hour))},
	}}}
	if got := ReadNode(n).ReadySince; !got.Equal(night.Add(time.Hour)) {
		t.Errorf("ready since %s", got)
	}
	n.Status.Conditions[1].Status = corev1.ConditionTrue
	if got := ReadNode(n).ReadySince; !got.IsZero() {
		t.Errorf("under pressure, and ready since %s", got)
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
	if n := (Node{Node: api.Node{State: api.Done}}); n.Updated("") {
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
	lift := func(config, node string, minutes int) api.Lifted {
		return api.Lifted{Config: config, Failures: []api.Failure{
			{Node: node, Since: night.Add(time.Duration(minutes) * time.Minute)},
		}}
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
			"each node's, what was seen first last, whatever its clock says", []api.Quarantine{q("C", "x", 5)}, nil,
			map[string][]api.Quarantine{"a": {q("B", "", 99999999)}, "b": {q("B", "", 2), q("C", "", 3)}},
			[]api.Quarantine{q("C", "b", 3), q("B", "b", 2), q("B", "a", 99999999), q("C", "x", 5)},
		},
		{
			"one of a node for all names of the content", []api.Quarantine{q(renderedB, "a", 5)}, nil,
			map[string][]api.Quarantine{"a": {q(renderedInfra, "", 6)}}, []api.Quarantine{q(renderedInfra, "a", 6)},
		},
		{"lifted", []api.Quarantine{q("B", "a", 0)}, []api.Lifted{lift("B", "a", 0)}, map[string][]api.Quarantine{"a": {q("B", "", 0)}}, nil},
		{
			"lifted by another pool's name", []api.Quarantine{q(renderedB, "a", 0)},
			[]api.Lifted{lift(renderedInfra, "a", 0)}, nil, nil,
		},
		{
			"lifted is what failed on another node", nil, []api.Lifted{lift("B", "a", 0)},
			map[string][]api.Quarantine{"a": {q("B", "", 0)}, "b": {q("B", "", 0)}}, []api.Quarantine{q("B", "b", 0)},
		},
		{
			"failed again, by a clock that is behind", nil, []api.Lifted{lift("B", "a", 0)},
			map[string][]api.Quarantine{"a": {q("B", "", -60)}}, []api.Quarantine{q("B", "a", -60)},
		},
		{"lifted is another one", []api.Quarantine{q("B", "a", 0)}, []api.Lifted{lift("C", "a", 0)}, nil, []api.Quarantine{q("B", "a", 0)}},
		{
			"failed again after that", []api.Quarantine{q("B", "a", 0)}, []api.Lifted{lift("B", "a", 0)},
			map[string][]api.Quarantine{"a": {q("B", "", 2)}}, []api.Quarantine{q("B", "a", 2)},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := pool("worker", nil)
			p.Annotations = map[string]string{
				api.PoolQuarantineKey: api.Encode(test.known), api.LiftedKey: api.Encode(test.lifted),
			}
			var nodes []Node
			for _, name := range slices.Sorted(maps.Keys(test.nodes)) {
				nodes = append(nodes, Node{Name: name, Node: api.Node{Quarantined: test.nodes[name]}})
			}
			got := NewPool(&p, nodes)
			if diff := cmp.Diff(test.want, got.Quarantined); diff != "" || len(got.Problems) > 0 {
				t.Errorf("(-want +got):\n%s%v", diff, got.Problems)
			}
		})
	}
}

func TestWhatFailedInOnePoolCountsInAllAndIsLiftedInAll(t *testing.T) {
	worker, infra := pool("worker", nil), pool("infra", nil)
	infra.Spec.Configuration.Name = renderedInfra
	failed := api.Quarantine{Config: renderedB, Node: "a", Since: night}
	worker.Annotations = map[string]string{api.PoolQuarantineKey: api.Encode([]api.Quarantine{failed})}
	share := func() (Pool, Pool) {
		w, i := NewPool(&worker, nil), NewPool(&infra, nil)
		Share([]*Pool{&w, &i})
		return w, i
	}
	if w, i := share(); !w.Refuses(renderedB) || i.Quarantine() == nil || len(i.Quarantined) > 0 ||
		len(i.Remembered(night)) > 0 || len(i.Elsewhere) != 1 || len(w.Elsewhere) > 0 {
		t.Errorf("worker %+v, infra %+v", w, i)
	}
	infra.Annotations = map[string]string{api.LiftedKey: api.Encode([]api.Lifted{{
		Config: renderedInfra, Failures: []api.Failure{{Node: "a", Since: night}},
	}})}
	if w, i := share(); w.Refuses(renderedB) || i.Quarantine() != nil || len(w.Remembered(night)) > 0 {
		t.Errorf("lifted: worker %+v, infra %+v", w, i)
	}
}

func TestAPoolRemembersOnlySoMuchAndAllThatItCouldComeTo(t *testing.T) {
	p := pool("worker", nil)
	p.Spec.Configuration.Name = "target"
	p.Annotations = map[string]string{
		api.HistoryKey: api.Encode([]string{"earlier"}),
		api.PoolQuarantineKey: api.Encode([]api.Quarantine{
			{Config: "target", Node: "x", Since: night}, {Config: "earlier", Node: "x", Since: night},
		}),
	}
	var nodes []Node
	for i := range quarantineLimit + 20 {
		n := Node{Name: fmt.Sprintf("n%02d", i)}
		for _, config := range []string{"target", n.Name} {
			n.Quarantined = append(n.Quarantined, api.Quarantine{Config: config, Since: night.AddDate(100, 0, 0)})
		}
		nodes = append(nodes, n)
	}
	of := func(list []api.Quarantine, config string) (nodes []string) {
		for _, q := range list {
			if q.Config == config {
				nodes = append(nodes, q.Node)
			}
		}
		return nodes
	}
	state := NewPool(&p, nodes)
	got := state.Remembered(night)
	if len(got) != 1+rememberedNodes+quarantineLimit {
		t.Errorf("%d are remembered", len(got))
	}
	if target := of(got, "target"); len(target) != rememberedNodes || target[rememberedNodes-1] != "x" || len(of(got, "earlier")) != 1 {
		t.Errorf("%+v", got)
	}
	if q := state.Quarantine(); q == nil || q.Node != "x" || len(of(state.Quarantined, "target")) != len(nodes)+1 {
		t.Errorf("the pool is stopped by %+v", q)
	}
	p.Annotations[api.PoolQuarantineKey] = api.Encode(got)
	if diff := cmp.Diff(got, read(&p, nodes).Remembered(night)); diff != "" {
		t.Errorf("nothing happened:\n%s", diff)
	}
}

func TestANodeThatProvedItTakesItsFailureBack(t *testing.T) {
	p := pool("worker", nil)
	p.Annotations = map[string]string{api.PoolQuarantineKey: api.Encode([]api.Quarantine{{Config: "B", Node: "a", Since: night}})}
	n := Node{Name: "a", Node: api.Node{Current: "B", Desired: "B", State: api.Done}}
	if got := NewPool(&p, []Node{n}).Quarantined; len(got) > 0 {
		t.Errorf("%+v", got)
	}
	n.Name = "b"
	if got := NewPool(&p, []Node{n}).Quarantined; len(got) != 1 {
		t.Errorf("another node's: %+v", got)
	}
}

func TestANodeThatRolledBackAndListsNothingStopsItsPool(t *testing.T) {
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{
		api.CurrentConfig: renderedA, api.DesiredConfig: renderedB, api.StateKey: string(api.RolledBack),
		api.Reason: "rolled back from " + renderedB + " to " + renderedA + ": somebody went back",
	}}}
	p := pool("worker", nil)
	p.Spec.Configuration.Name = renderedB
	for name, annotation := range map[string]string{"it has no list": "", "its list can't be read": "[{"} {
		o.Annotations[api.QuarantinedKey] = annotation
		o.Annotations[api.CordonKey] = annotation
		if q := read(&p, []Node{ReadNode(o)}).Quarantine(); q == nil || q.Node != "a" || !strings.Contains(q.Reason, "somebody went back") {
			t.Errorf("%s: %+v", name, q)
		}
	}
	o.Annotations[api.DesiredConfig] = renderedA // told, and not taken up
	p.Spec.Configuration.Name = renderedA
	if q := read(&p, []Node{ReadNode(o)}).Quarantine(); q != nil {
		t.Errorf("another configuration is refused: %+v", q)
	}
}

// A lift is by the time that the pool gave; it holds until the node has begun, and not for another time.
func TestALiftOfWhatANodeGaveNoTimeForHoldsOnce(t *testing.T) {
	back := Node{Name: "a", Node: api.Node{
		Current: "A", Desired: "B", State: api.RolledBack, Reason: "rolled back from B to A: somebody went back",
	}}
	p := pool("worker", nil)
	p.Spec.Configuration.Name = "B"
	p.Annotations = map[string]string{}
	look := func(n Node, minutes int) *Pool {
		state := read(&p, []Node{n})
		p.Annotations[api.PoolQuarantineKey] = api.Encode(state.Remembered(night.Add(time.Duration(minutes) * time.Minute)))
		return state
	}
	if look(back, 0); !look(back, 1).Quarantine().Since.Equal(night) {
		t.Error("the time is not kept")
	}
	p.Annotations[api.LiftedKey] = api.Encode([]api.Lifted{{Config: "B", Failures: []api.Failure{{Node: "a", Since: night}}}})
	for range 2 {
		if state := look(back, 2); state.Refuses("B") || !state.Tries(&back) {
			t.Errorf("lifted: %+v", state)
		}
	}
	working := back
	working.State = api.Working
	look(working, 3)
	if look(back, 4); !look(back, 5).Refuses("B") {
		t.Error("it came back again, and the lift of the first time holds")
	}
}

func TestWhatCantBeReadIsSaid(t *testing.T) {
	p := pool("worker", nil)
	p.Annotations = map[string]string{api.PoolQuarantineKey: "{", api.LiftedKey: "["}
	got := NewPool(&p, []Node{{Name: "a", Unread: "node a: oops"}})
	if len(got.Problems) != 2 || len(got.NodeProblems) != 1 || got.NodeProblems[0].Node != "a" {
		t.Errorf("%q, %q", got.Problems, got.NodeProblems)
	}
}

// What an agent would not write must not fill up the pool's annotations and conditions.
func TestOfANodeOnlySoMuchIsBelieved(t *testing.T) {
	long := strings.Repeat("é", 100000)
	list := []api.Quarantine{{Config: long}, {}}
	for i := range 100 {
		list = append(list, api.Quarantine{Config: fmt.Sprint(i), Reason: long})
	}
	n := ReadNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{
		api.QuarantinedKey: api.Encode(list), api.Reason: long, api.CordonKey: `{"since":"` + long + `"}`,
	}}})
	if size := len(api.Encode(n)); len(n.Quarantined) != 10 || n.Quarantined[9].Config != "99" || size > 12000 {
		t.Errorf("%d entries, %d bytes", len(n.Quarantined), size)
	}
}

// read is NewPool for a call on what it returns.
func read(pool *mcfgv1.MachineConfigPool, nodes []Node) *Pool {
	p := NewPool(pool, nodes)
	return &p
}
