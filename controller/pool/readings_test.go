// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// A look after another one knows what a controller would that has just started.
func TestALookThatRemembersTheOneBeforeSeesWhatOneFromScratchSees(t *testing.T) {
	t.Parallel()
	selecting := func(label string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{label: ""}}
	}
	pools := []*mcfgv1.MachineConfigPool{
		{ObjectMeta: metav1.ObjectMeta{Name: "infra"}}, {ObjectMeta: metav1.ObjectMeta{Name: "worker"}},
	}
	pools[0].Spec.NodeSelector, pools[1].Spec.NodeSelector = selecting("infra"), selecting(api.NodeRole+"worker")
	policies := []api.RolloutPolicy{documented(t)}
	policies[0].ResourceVersion = "1"
	nodes := map[string]*corev1.Node{}
	version := 0
	put := func(name string, change func(*corev1.Node)) {
		n := readyNode(name)
		if known := nodes[name]; known != nil {
			n = known.DeepCopy()
		}
		change(n)
		version++
		n.ResourceVersion = fmt.Sprint(version)
		nodes[name] = n
	}
	for _, name := range []string{"c", "a", "d", "b"} {
		put(name, func(*corev1.Node) {})
	}
	orders := api.Encode(api.Orders{Drain: &api.DrainPolicy{TimeoutSeconds: 60}})
	read := readings{}
	var before []progress.Node
	var copied []progress.Node
	for _, step := range []struct {
		name   string
		change func()
		same   bool // the nodes of pool worker
	}{
		{"at first", func() {}, false},
		{"nothing", func() {}, true},
		{"a node of another pool", func() { put("x", func(n *corev1.Node) { n.Labels = map[string]string{"infra": ""} }) }, true},
		{"it goes", func() { delete(nodes, "x") }, true},
		{"a node arrives", func() { put("b", func(n *corev1.Node) { n.Annotations[api.CurrentConfig] = "B" }) }, false},
		{"two have orders", func() {
			for _, name := range []string{"a", "c"} {
				put(name, func(n *corev1.Node) { n.Annotations[api.OrdersKey] = orders })
			}
		}, false},
		{"one joins", func() { put("aa", func(*corev1.Node) {}) }, false},
		{"one goes", func() { delete(nodes, "d") }, false},
		{"one is replaced by another", func() { delete(nodes, "c"); put("cc", func(*corev1.Node) {}) }, false},
		{"a pool selects others", func() { pools[0].Spec.NodeSelector = selecting(api.NodeRole + "worker") }, false},
		{"a policy changes", func() {
			policies = []api.RolloutPolicy{*policies[0].DeepCopy()}
			policies[0].ResourceVersion, policies[0].Spec.Pools = "2", []string{"infra"}
		}, false},
	} {
		step.change()
		look := func(r *readings) *world {
			return assemble(pools, r.sorted(nodes), r, policies, nil, rollout.Unasked, "", t0)
		}
		got, want := look(&read), look(&readings{})
		for i := range want.pools {
			if diff := cmp.Diff(want.pools[i].state, got.pools[i].state, cmp.AllowUnexported(progress.Pool{}, progress.Node{}, api.Drift{}), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("%s (-from scratch +got):\n%s", step.name, diff)
			}
		}
		if diff := cmp.Diff(copied, before, cmp.AllowUnexported(progress.Node{})); diff != "" {
			t.Fatalf("%s: what was handed out before is another (-was +is):\n%s", step.name, diff)
		}
		now := got.pools[1].state.Nodes
		if same := len(now) > 0 && len(before) > 0 && &now[0] == &before[0]; same != step.same {
			t.Errorf("%s: the list of nodes is the same: %v", step.name, same)
		}
		before, copied = now, slices.Clone(now)
	}
}

// A cache lists its objects in any order.
func TestPoliciesInAnotherOrderAreNoChange(t *testing.T) {
	t.Parallel()
	one, other := documented(t), documented(t)
	one.Name, one.UID, one.ResourceVersion = "one", "1", "7"
	other.Name, other.UID, other.ResourceVersion = "other", "2", "8"
	read := readings{}
	look := func(list ...api.RolloutPolicy) *rollout.Book { return read.policies(list, rollout.Unasked) }
	book := look(one, other)
	if look(other, one) != book {
		t.Error("policies in another order are read again")
	}
	other.ResourceVersion = "9"
	if look(other, one) == book {
		t.Error("a policy that has changed is not read again")
	}
}

func TestADecisionTellsNoMoreThanIsAsked(t *testing.T) {
	t.Parallel()
	for told, want := range map[int]struct {
		steps int
		more  bool
	}{0: {30, false}, 5: {6, true}, 29: {30, false}, 28: {29, true}, 100: {30, false}} {
		p := progress.NewPool(setup{}.object(), fleet(30)) // one goes, the others are tainted
		d := decide(p, bounds{Now: t0, Told: told})
		if len(d.Steps) != want.steps || d.More != want.more || !d.Steps[0].sends() {
			t.Errorf("at most %d: %d steps, more: %v", told, len(d.Steps), d.More)
		}
		all := decide(p, bounds{Now: t0}).Steps
		if diff := cmp.Diff(all[:want.steps], d.Steps); diff != "" {
			t.Errorf("at most %d: these are not the first of all (-want +got):\n%s", told, diff)
		}
	}
}
