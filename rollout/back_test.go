// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// taken is a pool of which B was taken back in the middle of its rollout: it shall have A again, as it had as a whole.
// The word previous=X is what the node had before.
func taken(t *testing.T, name string, nodes ...string) *progress.Pool {
	t.Helper()
	object := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
		api.HistoryKey: api.Encode([]string{"older"}), api.PinKey: api.Encode(api.Pin{Config: "A", From: "B"}),
	}}}
	object.Spec.Configuration.Name, object.Status.Configuration.Name = "A", "A"
	var list []progress.Node
	for _, text := range nodes {
		list = append(list, node(t, text))
	}
	p := progress.NewPool(object, list)
	return &p
}

func TestTheWayBackWaitsForNothingThatAPolicySaysOfWhen(t *testing.T) {
	t.Parallel()
	other := pool(t, "lab", "x A Done")
	for name, spec := range map[string]api.RolloutPolicySpec{
		"a window": {Windows: &api.RolloutWindows{Open: []api.Window{{Cron: "0 22 * * *", DurationMinutes: 60}}}},
		"a blackout": {Windows: &api.RolloutWindows{
			Blackouts: []api.Window{{From: "2026-03-01", Until: "2026-03-03"}},
		}},
		"no window ever": {Windows: &api.RolloutWindows{Open: []api.Window{{From: "2026-01-01", Until: "2026-01-02"}}}},
		"a stage":        {Stages: []api.RolloutStage{{Name: "canary", Nodes: number("1"), SoakSeconds: 600}}},
		"a stage without nodes": {Stages: []api.RolloutStage{{Name: "canary", SoakSeconds: 600,
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "canry"}}}}},
		"staging ahead": {Staging: &api.RolloutStaging{}},
		"approval":      {Approval: &api.RolloutApproval{}},
		"another pool":  {DependsOn: []string{"lab"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := taken(t, "worker", "a A Done previous=older arrived=1m", "b B Done previous=A", "c B>A Working previous=A",
				"d C Done previous=B arrived=1m", "joined B Done", "away older Done previous=oldest")
			follow([]api.RolloutPolicy{policyOf(spec)}, p, other)
			for _, n := range p.Nodes {
				h := p.Held(&n)
				switch n.Name {
				case "b", "c", "d", "joined":
					if h != nil || p.Rules.Orders[n.Name].Stage != nil && n.Name != "c" {
						t.Errorf("%s does not go back: %+v", n.Name, h)
					}
				case "away":
					if h == nil {
						t.Error("a node that was away does not go by the policy")
					}
				}
			}
			if p.Rules.Hold != nil {
				t.Errorf("the pool is held: %+v", p.Rules.Hold)
			}
		})
	}
}

func TestTheWayBackKeepsToWhatIsBroken(t *testing.T) {
	t.Parallel()
	p := taken(t, "worker", "a B>A Degraded previous=A", "b B Done previous=A")
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{FailureBudget: number("1")})}, p)
	if h := p.Held(&p.Nodes[1]); h == nil || h.Verdict != progress.FailureBudget {
		t.Errorf("the budget is spent: %+v", h)
	}
	p = taken(t, "worker", "b B Done previous=A")
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{}), policyOf(api.RolloutPolicySpec{})}, p)
	if h := p.Held(&p.Nodes[0]); h == nil || h.Verdict != progress.PolicyUnusable {
		t.Errorf("two policies: %+v", h)
	}
	stages := []api.RolloutStage{{Name: "canary", Nodes: number("1"), SoakSeconds: 600, MaxUnavailable: number("3")}}
	master := taken(t, api.PoolMaster, "a B Done previous=A", "b B Done previous=A", "c B Done previous=A")
	master.Etcd = &progress.Etcd{Trouble: "it is not reached"}
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{Stages: stages}, api.PoolMaster)}, master)
	for _, n := range master.Nodes {
		if h := master.Held(&n); h == nil || h.Verdict != progress.EtcdUnhealthy {
			t.Errorf("etcd is not healthy: %+v", h)
		}
	}
	p = taken(t, "worker", "a B Done previous=A", "b B Done previous=A", "c A Done arrived=1m")
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{Stages: stages, MinReadySeconds: 600})}, p)
	if p.MaxUnavailable != 1 || len(p.Rules.Soaking) > 0 {
		t.Errorf("%d at a time, soaking: %v", p.MaxUnavailable, p.Rules.Soaking)
	}
}
