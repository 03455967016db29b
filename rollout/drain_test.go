// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

func TestOrdersAreForNodesThatAreNotThere(t *testing.T) {
	t.Parallel()
	spec := api.RolloutPolicySpec{Drain: &api.DrainPolicy{TimeoutSeconds: 60, OnTimeout: api.DrainForces}}
	p := pool(t, "worker", "a A Done", "b A>B Working", "c B Done")
	follow([]api.RolloutPolicy{policyOf(spec)}, p)
	if len(p.Rules.Orders) != 2 || p.Rules.Orders["a"].Drain != p.Rules.Orders["b"].Drain ||
		p.Rules.Orders["a"].Drain.OnTimeout != api.DrainForces {
		t.Errorf("%+v", p.Rules.Orders)
	}

	// What nodes are told already stands while nobody knows what to tell them.
	p.Nodes[1].Orders = p.Rules.Orders["b"]
	for name, policies := range map[string][]api.RolloutPolicy{
		"two policies": {policyOf(spec), policyOf(spec)},
		"no sense": {policyOf(api.RolloutPolicySpec{Drain: &api.DrainPolicy{
			SkipPodSelectors: []metav1.LabelSelector{{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}}},
		}})},
	} {
		follow(policies, p)
		if len(p.Rules.Orders) != 1 || p.Rules.Orders["b"].Drain == nil || p.Rules.Hold == nil {
			t.Errorf("%s: %+v, %+v", name, p.Rules.Orders, p.Rules.Hold)
		}
	}
}

func TestNodesAreToldHowToReboot(t *testing.T) {
	t.Parallel()
	spec := api.RolloutPolicySpec{RebootMethod: api.RebootKexec}
	p := pool(t, "worker", "a A Done", "b A>B Working", "c B Done")
	follow([]api.RolloutPolicy{policyOf(spec)}, p)
	want := api.Orders{RebootMethod: api.RebootKexec}
	if len(p.Rules.Orders) != 2 || p.Rules.Orders["a"] != want || p.Rules.Orders["b"] != want {
		t.Errorf("%+v", p.Rules.Orders)
	}
	object := policyOf(api.RolloutPolicySpec{RebootMethod: "kexec"})
	if err := Check(&object); err == nil || !strings.Contains(err.Error(), `spec.rebootMethod: "kexec" is not one of`) {
		t.Error(err)
	}
}

func TestABadDrainPolicyIsNamedByItsField(t *testing.T) {
	t.Parallel()
	for says, p := range map[string]*api.DrainPolicy{
		"spec.drain.skipPodSelectors[1]: the selector matches every pod": {SkipPodSelectors: []metav1.LabelSelector{
			{MatchLabels: map[string]string{"a": "b"}}, {},
		}},
		`spec.drain.skipPodSelectors[0]: "Is" is not a valid label selector operator`: {SkipPodSelectors: []metav1.LabelSelector{
			{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}},
		}},
		`spec.drain.onTimeout: "Perhaps" is not one of`: {OnTimeout: "Perhaps"},
	} {
		object := policyOf(api.RolloutPolicySpec{Drain: p})
		if err := Check(&object); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}
