// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"slices"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/values"
)

// valued returns a node with the label values.noderefit.dev/rack, which is at rest on a configuration with that value or
// another one.
func valued(name, rack, current string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{
		api.CurrentConfig: api.Rendered(current), api.DesiredConfig: api.Rendered(current), api.StateKey: string(api.Done),
	}}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	if digest := api.ValuesOf(current); digest != "" {
		n.Annotations[api.MadeKey] = api.Encode(api.Made{Config: current})
		n.Annotations[api.ValuesKey] = api.Encode(api.ToldValues{Config: api.Rendered(current), Digest: digest})
	}
	if rack != "" {
		n.Labels[api.ValuePrefix+"rack"] = rack
	}
	return n
}

// with is the name of B with a value.
func with(rack string) string {
	return api.MadeName("B", values.Digest(map[string]string{"labels/rack": rack}))
}

func failedWith(n *corev1.Node, config string) *corev1.Node {
	n.Annotations[api.DesiredConfig] = "B"
	n.Annotations[api.ValuesKey] = api.Encode(api.ToldValues{Config: "B", Digest: api.ValuesOf(config)})
	n.Annotations[api.StateKey] = string(api.RolledBack)
	n.Annotations[api.Reason] = api.ReasonRolledBack + config + " to A: the kubelet does not come up"
	n.Annotations[api.QuarantinedKey] = api.Encode([]api.Quarantine{{Config: config, Reason: "the kubelet does not come up"}})
	return n
}

func naming(nodes ...*corev1.Node) Pool {
	pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker", Annotations: map[string]string{
		api.NamedValuesKey: api.Encode(api.NamedValues{Config: "B", Values: []string{"word:labels/rack"}}),
	}}}
	pool.Spec.Configuration.Name = "B"
	var read []Node
	for _, n := range nodes {
		read = append(read, ReadNode(n))
	}
	return NewPool(pool, read)
}

func TestANodeIsAtItsTargetWithItsPresentValuesAlone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		node  *corev1.Node
		phase Phase
		lacks string
	}{
		"its values":          {valued("a", "r1", with("r1")), PhaseUpdated, ""},
		"the values before":   {valued("a", "r2", with("r1")), PhaseWaiting, ""},
		"no values told":      {valued("a", "r1", "B"), PhaseWaiting, ""},
		"a machine that came": {valued("a", "r1", "B+none"), PhaseWaiting, ""},
		"another target":      {valued("a", "r1", "A"), PhaseWaiting, ""},
		"a value is missing":  {valued("a", "", with("r1")), PhaseWaiting, "the node has no value for labels/rack"},
		"a hostile value":     {valued("a", "..", with("r1")), PhaseWaiting, "the value of labels/rack is not of the type word"},
	} {
		p := naming(test.node)
		if got := p.Nodes[0].Phase(p.Target); got != test.phase || p.Nodes[0].Lacks != test.lacks {
			t.Errorf("%s: %s, %q", name, got, p.Nodes[0].Lacks)
		}
		if (test.lacks != "") != (len(p.NodeProblems) > 0) {
			t.Errorf("%s: %v", name, p.NodeProblems)
		}
	}
}

func TestAConfigurationNamesEntriesOfNodeValues(t *testing.T) {
	t.Parallel()
	pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker", Annotations: map[string]string{
		api.NamedValuesKey: api.Encode(api.NamedValues{Config: "B", Values: []string{"prefix:values/address"}}),
	}}}
	pool.Spec.Configuration.Name = "B"
	for name, test := range map[string]struct{ says, value, lacks string }{
		"in force":      {`{"values":{"address":"10.0.0.7/24"}}`, "10.0.0.7/24", ""},
		"another key":   {`{"values":{"gateway":"10.0.0.1"}}`, "", "the node has no value for values/address"},
		"no object":     {"", "", "the node has no value for values/address"},
		"of no meaning": {"{", "", "the node has no value for values/address"},
		"another type":  {`{"values":{"address":"here"}}`, "", "the value of values/address is not of the type prefix"},
		"refused": {`{"refused":"the schema of pool worker refuses NodeValues/a"}`, "",
			"the schema of pool worker refuses NodeValues/a"},
	} {
		n := valued("a", "", "A")
		if test.says != "" {
			n.Annotations[api.EntriesKey] = test.says
		}
		p := NewPool(pool, []Node{ReadNode(n)})
		if got := p.Nodes[0]; got.Told.Values["values/address"] != test.value || got.Lacks != test.lacks {
			t.Errorf("%s: told %v, lacks %q", name, got.Told, got.Lacks)
		}
	}
	// What a configuration does not name holds no node.
	n := valued("a", "r1", with("r1"))
	n.Annotations[api.EntriesKey] = `{"refused":"no"}`
	if p := naming(n); p.Nodes[0].Lacks != "" {
		t.Errorf("lacks %q", p.Nodes[0].Lacks)
	}
}

func TestBadValuesOfANodeDoNotCondemnTheContent(t *testing.T) {
	t.Parallel()
	bad, good := with("bad"), with("r2")
	for name, test := range map[string]struct {
		nodes               []*corev1.Node
		quarantined, values bool
	}{
		"nobody proved the content":     {[]*corev1.Node{failedWith(valued("a", "bad", "A"), bad), valued("b", "r2", "A")}, true, false},
		"another node proved it":        {[]*corev1.Node{failedWith(valued("a", "bad", "A"), bad), valued("b", "r2", good)}, false, true},
		"this node did, before":         {[]*corev1.Node{failedWith(valued("a", "bad", with("r1")), bad), valued("b", "r2", "A")}, false, true},
		"the node's values were mended": {[]*corev1.Node{failedWith(valued("a", "r1", "A"), bad), valued("b", "r2", good)}, false, false},
		"a failure of another content":  {[]*corev1.Node{failedWith(valued("a", "r1", "A"), "C+0"), valued("b", "r2", good)}, false, false},
	} {
		p := naming(test.nodes...)
		if got := p.Quarantine() != nil; got != test.quarantined || p.Nodes[0].BadValues != test.values {
			t.Errorf("%s: quarantined %t, values %t", name, got, p.Nodes[0].BadValues)
		}
		if p.Nodes[0].BadValues && (!p.FailedOn(&p.Nodes[0]) || p.Takes(&p.Nodes[0])) {
			t.Errorf("%s: the node is offered the same again, or holds the others up", name)
		}
	}
}

func TestOfWhatTheHostHasTheNodeIsToldTheDigest(t *testing.T) {
	t.Parallel()
	p := naming(valued("a", "r2", with("r1")))
	n := &p.Nodes[0]
	if told := n.ValuesFor("B"); told == nil || told.Values["labels/rack"] != "r2" || api.MadeName("B", told.Digest) != with("r2") {
		t.Errorf("%v", told)
	}
	if told := n.ValuesFor(with("r1")); told == nil || told.Values != nil || api.MadeName("B", told.Digest) != with("r1") {
		t.Errorf("%v", told)
	}
	if told := n.ValuesFor("A"); told != nil {
		t.Errorf("%v", told)
	}
}

func TestWhyANodeWithoutItsValuesIsLeft(t *testing.T) {
	t.Parallel()
	object := pool("worker", map[string]string{"role": "worker"})
	object.Annotations = map[string]string{
		api.NamedValuesKey: api.Encode(api.NamedValues{Config: "B", Values: []string{"word:labels/rack"}}),
	}
	object.Spec.Configuration.Name = "B"
	node := valued("a", "", "A")
	node.Labels["role"] = "worker"
	r := NewReport(View{Pools: []mcfgv1.MachineConfigPool{object}, Nodes: []corev1.Node{*node}})
	a, _ := r.ExplainNode("a")
	if a.Verdict != Misconfigured || !strings.Contains(a.Because, "labels/rack") || !strings.Contains(a.Do, api.ValuePrefix) {
		t.Errorf("%+v", a)
	}
}

func TestAPlanListsNodesByWhatTheyWouldMake(t *testing.T) {
	t.Parallel()
	p := naming(valued("a", "r1", "A"), valued("b", "r1", "A"), valued("c", "r2", "A"), valued("d", "", "A"))
	want := []string{"node d would be left as it is: the node has no value for labels/rack",
		`values labels/rack="r1": a, b`, `values labels/rack="r2": c`}
	if got := p.Makes(`["word:labels/rack"]`); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := p.Makes(""); got != nil {
		t.Errorf("of a configuration that names none: %q", got)
	}
	if got := p.Makes(`["interface:host/interfaces/52:54:00:12:34:56"]`); !slices.Equal(got, []string{"values of the host alone: a, b, c, d"}) {
		t.Errorf("%q", got)
	}
}
