// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// valued is a Node that serves, with a label that is a value, and with what its host has and was told.
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

func naming() *mcfgv1.MachineConfigPool {
	pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker", Annotations: map[string]string{
		api.NamedValuesKey: api.Encode(api.NamedValues{Config: "B", Values: []string{"word:labels/rack"}}),
	}}}
	pool.Spec.Configuration.Name = "B"
	return pool
}

// named is the name of what a node with a value makes of B.
func named(rack string) string {
	p := progress.NewPool(naming(), []progress.Node{progress.ReadNode(valued("x", rack, "A"))})
	return api.MadeName("B", p.Nodes[0].Told.Digest)
}

// valuesPatches returns the patches of a decision about a pool whose configuration B names a label, by node.
func valuesPatches(nodes ...*corev1.Node) map[string]string {
	var read []progress.Node
	objects := map[string]*corev1.Node{}
	for _, n := range nodes {
		read = append(read, progress.ReadNode(n))
		objects[n.Name] = n
	}
	out := map[string]string{}
	for _, s := range decide(progress.NewPool(naming(), read), bounds{Now: t0}).Steps {
		if s.sends() {
			out[s.Node] = string(nodePatch(objects[s.Node], s))
		}
	}
	return out
}

func TestANodeIsToldItsValuesWithTheConfigurationThatNamesThem(t *testing.T) {
	t.Parallel()
	patches := valuesPatches(valued("a", "r1", "A"))
	for _, want := range []string{`"value":"B"`, `"/metadata/annotations/noderefit.dev~1values"`, `labels/rack\":\"r1\"`} {
		if !strings.Contains(patches["a"], want) {
			t.Errorf("%s has no %s", patches["a"], want)
		}
	}
}

func TestAChangeOfAValueIsARolloutOfItsNode(t *testing.T) {
	t.Parallel()
	patches := valuesPatches(valued("a", "r1", named("r1")), valued("b", "r9", named("r2")), valued("c", "r8", named("r3")))
	if len(patches) != 1 || !strings.Contains(patches["b"], `\"r9\"`) { // one of two, as maxUnavailable has it
		t.Errorf("%v", patches)
	}
}

func TestANodeWithoutAValueIsLeftAndTheOthersGoOn(t *testing.T) {
	t.Parallel()
	for _, rack := range []string{"", "..", "a b"} {
		patches := valuesPatches(valued("a", rack, "A"), valued("b", "r2", "A"))
		if len(patches) != 1 || patches["b"] == "" {
			t.Errorf("%q: %v", rack, patches)
		}
	}
}

func TestOldValuesGoWithTheConfigurationThatNamedThem(t *testing.T) {
	t.Parallel()
	n := valued("a", "r1", named("r1"))
	patch := string(nodePatch(n, nodeStep{Node: "a", Before: "B", Desired: "C"}))
	if !strings.Contains(patch, `{"op":"remove","path":"/metadata/annotations/noderefit.dev~1values"`) {
		t.Error(patch)
	}
	back := string(nodePatch(n, nodeStep{Node: "a", Before: "C", Desired: named("r1"), Values: &api.ToldValues{Config: "B", Digest: "x"}}))
	if !strings.Contains(back, `desiredConfig","value":"B"}`) {
		t.Error(back)
	}
}

func TestTheCacheKeepsWhatValuesComeFrom(t *testing.T) {
	t.Parallel()
	n := valued("a", "r1", "A")
	n.Annotations[api.ValuePrefix+"gateway"], n.Annotations["example.com/x"] = "10.0.0.1", "y"
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.7"}}
	_, _ = strip(n)
	if n.Annotations[api.ValuePrefix+"gateway"] == "" || n.Annotations["example.com/x"] != "" || len(n.Status.Addresses) != 1 {
		t.Errorf("%v, %v", n.Annotations, n.Status.Addresses)
	}
}
