// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

func TestAPoolWhosePolicyWentWithItsDefinitionStaysAsItIs(t *testing.T) {
	t.Parallel()
	const why = "the definition is missing"
	spec := api.RolloutPolicySpec{FailureBudget: number("2"), Drain: &api.DrainPolicy{TimeoutSeconds: 60}}
	there := policyOf(spec)
	there.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
	noted := func(name string) *progress.Pool {
		p := poolThatFailed(t, "worker", []api.Quarantine{{Config: "B", Node: "b", Since: now}}, "a A>B Working", "b A Done")
		p.Previous = "A"
		follow([]api.RolloutPolicy{there}, p)
		if n := p.Rules.Note; n == nil || n.Name != "careful" || !n.Created.Equal(now.Add(-time.Hour)) ||
			n.FailureBudget.IntValue() != 2 {
			t.Fatalf("the note of the policy that is there: %+v", n)
		}
		p.Nodes[0].Orders = p.Rules.Orders["a"]
		p.Noted = p.Rules.Note
		p.Noted.Name = name
		p.Rules = progress.Rules{}
		return p
	}
	for name, c := range map[string]struct {
		noted    string // empty: nothing is
		policies []api.RolloutPolicy
		lost     func(*progress.Pool) string
		held     bool
		says     string
	}{
		"lost":                             {"careful", nil, LostAs(why), true, why},
		"people deleted it":                {"careful", nil, LostAs(""), false, ""},
		"the simulator":                    {"careful", nil, nil, false, ""},
		"it had none":                      {"", nil, LostAs(why), false, ""},
		"it is there, for another pool":    {"careful", []api.RolloutPolicy{policyOf(api.RolloutPolicySpec{}, "x")}, LostAs(why), false, ""},
		"another one is there for it":      {"gone", []api.RolloutPolicy{there}, LostAs(why), false, ""},
		"the controller says that it is":   {"careful", nil, LostAsReported, true, "as the controller says"},
		"the controller says other things": {"", nil, LostAsReported, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := noted(c.noted)
			if c.noted == "" {
				p.Noted = nil
			}
			p.Reported = &progress.Hold{Verdict: progress.PolicyUnusable, Because: "as the controller says"}
			book := NewBook(c.policies, Unasked)
			book.Lose(c.lost)
			progress.Share([]*progress.Pool{p})
			book.Follow([]*progress.Pool{p}, now, "")
			r := p.Rules
			if (r.Hold != nil) != c.held {
				t.Fatalf("hold: %+v", r.Hold)
			}
			if !c.held {
				return
			}
			if r.Hold.Verdict != progress.PolicyUnusable || !strings.Contains(r.Hold.Because, c.says) ||
				!strings.Contains(r.Hold.Do, "kubectl annotate mcp worker noderefit.dev/rollout-policy-") {
				t.Errorf("hold: %+v", r.Hold)
			}
			if r.Policy != "careful" || r.Note != nil || r.Unproved != r.Hold || p.Complete() {
				t.Errorf("rules: %+v", r)
			}
			if r.Orders["a"].Drain == nil || len(r.Orders) != 1 {
				t.Errorf("orders: %+v", r.Orders)
			}
			if q := p.Quarantine(); q != nil {
				t.Errorf("a failure that the policy forgives is not: %+v", q)
			}
			if len(book.Findings([]*progress.Pool{p})) > 0 {
				t.Error("something is said of a policy that is not there")
			}
		})
	}
	// Any other reason is not about a policy that went.
	p := noted("careful")
	p.Reported = &progress.Hold{Verdict: progress.OutsideWindow}
	NewBook(nil, Unasked).FollowReported([]*progress.Pool{p}, now, "")
	if p.Rules.Hold != nil {
		t.Errorf("outside a window: %+v", p.Rules.Hold)
	}
}
