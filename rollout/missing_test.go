// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

func TestAStageWhoseNodesAreNotThereHoldsWhatItWouldProve(t *testing.T) {
	t.Parallel()
	typo := &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "canry"}}
	gate := []api.Gate{{Name: "ok", Annotation: &api.AnnotationGate{Key: "example.com/ok"}}}
	const text = "stage canary has no node in pool worker: none matches its nodeSelector, tier=canry"
	for name, c := range map[string]struct {
		stage    api.RolloutStage
		nodes    []string
		bypassed bool
		held     bool
		reason   string // of the policy, and whether it says which stage
		says     bool
	}{
		"it soaks":          {api.RolloutStage{SoakSeconds: 60, NodeSelector: typo}, []string{"a A Done label=tier:canary"}, false, true, api.RolloutNoNodes, true},
		"it has gates":      {api.RolloutStage{Gates: gate, NodeSelector: typo}, []string{"a A Done"}, false, true, api.RolloutNoNodes, true},
		"an emergency":      {api.RolloutStage{SoakSeconds: 60, NodeSelector: typo}, []string{"a A Done"}, true, false, api.RolloutNoNodes, true},
		"it proves nothing": {api.RolloutStage{NodeSelector: typo}, []string{"a A Done"}, false, false, api.RolloutInForce, true},
		"it has one":        {api.RolloutStage{SoakSeconds: 60, NodeSelector: typo}, []string{"a A Done label=tier:canry"}, false, false, api.RolloutInForce, false},
		"any node will do":  {api.RolloutStage{SoakSeconds: 60}, []string{"a A Done"}, false, false, api.RolloutInForce, false},
		"an empty pool":     {api.RolloutStage{SoakSeconds: 60, NodeSelector: typo}, nil, false, false, api.RolloutInForce, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.stage.Name = "canary"
			p := pool(t, "worker", c.nodes...)
			if c.bypassed {
				p.Bypass = &api.Bypass{Config: "B", By: "ann", Why: "CVE"}
			}
			other := pool(t, "lab", "x A Done label=tier:canry")
			book := NewBook([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{Stages: []api.RolloutStage{c.stage}},
				"worker", "lab")}, Unasked)
			pools := []*progress.Pool{p, other}
			progress.Share(pools)
			book.Follow(pools, now, "")
			h := p.Rules.Hold
			if (h != nil) != c.held || c.held && (h.Verdict != progress.PolicyUnusable || h.Because != text) {
				t.Errorf("held: %+v", h)
			}
			if other.Rules.Hold != nil {
				t.Errorf("the other pool is held as well: %+v", other.Rules.Hold)
			}
			f := book.Findings(pools)[0]
			if f.Reason != c.reason || strings.Contains(f.Message, text) != c.says {
				t.Errorf("the policy says %s: %s", f.Reason, f.Message)
			}
		})
	}
}

func TestNoStageIsCalledAsTheOneBehindAll(t *testing.T) {
	t.Parallel()
	p := policyOf(api.RolloutPolicySpec{Stages: []api.RolloutStage{{Name: "canary"}, {Name: "rest"}}})
	if err := Check(&p); err == nil || !strings.Contains(err.Error(), "spec.stages[1].name") {
		t.Errorf("got %v", err)
	}
}
