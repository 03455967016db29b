// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	if diff := cmp.Diff(want, ReadNode(n), cmpopts.IgnoreUnexported(Node{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhichConditionsMakeANodeNotReady(t *testing.T) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	for _, test := range []struct {
		conditions []corev1.NodeCondition
		want       string
	}{
		{nil, "the node has never reported its state"},
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
	runTable(t, "stands.txt")
}

func TestHowManyNodesMayBeAway(t *testing.T) {
	runTable(t, "away.txt")
}

func pool(name string, selector map[string]string) mcfgv1.MachineConfigPool {
	p := mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if selector != nil {
		p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: selector}
	}
	return p
}

func TestWhichPoolANodeBelongsTo(t *testing.T) {
	runTable(t, "belongs.txt")
}

func TestWhatIsQuarantined(t *testing.T) {
	runTable(t, "quarantined.txt")
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
		if state := look(back, 2); state.Refuses("B") || !state.Retries(&back) {
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
