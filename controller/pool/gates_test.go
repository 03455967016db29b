// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// failedAt is a pool on its way from A to B that a gate failed, with its nodes as "name current>desired".
func failedAt(previous string, nodes ...string) progress.Pool {
	object := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker", Annotations: map[string]string{
		api.PoolQuarantineKey: api.Encode([]api.Quarantine{{Config: "B", Gate: "smoke", Reason: "of stage x", Since: t0}}),
	}}}
	object.Spec.Configuration.Name, object.Status.Configuration.Name = "B", previous
	var list []progress.Node
	for _, text := range nodes {
		name, way, _ := strings.Cut(text, " ")
		current, desired, _ := strings.Cut(way, ">")
		n := progress.Node{Name: name, Node: api.Node{Current: current, Desired: desired, State: api.Done}}
		if current != desired {
			n.State, n.Cordoned = api.Working, true
			n.Cordon = &api.Cordon{By: api.Daemon, Config: desired, Since: t0}
		}
		list = append(list, n)
	}
	return progress.NewPool(object, list)
}

func TestNodesGoBackWithinTheBudgetWhenAGateWasClosedAtItsDeadline(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		previous string
		nodes    []string
		change   func(*progress.Pool)
		want     string
	}{
		"one at a time":                 {"A", []string{"a B>B", "b B>B", "c A>A"}, nil, "a>A"},
		"who is on the way turns round": {"A", []string{"a A>B", "b A>A"}, nil, "a>A"},
		"the next waits for that":       {"A", []string{"a B>A", "b B>B"}, nil, ""},
		"all at once where that may be": {"A", []string{"a B>B", "b B>B"}, func(p *progress.Pool) { p.MaxUnavailable = 2 }, "a>A b>A"},
		"not while it is paused":        {"A", []string{"a B>B"}, func(p *progress.Pool) { p.Paused = true }, ""},
		"not to what it had already":    {"B", []string{"a B>B"}, nil, ""},
		"not where there was nothing":   {"", []string{"a B>B"}, nil, ""},
		"others stay where they are":    {"A", []string{"a C>C", "b A>A"}, nil, ""},
		"no window and no stage holds it": {"A", []string{"a B>B"}, func(p *progress.Pool) {
			p.Rules = progress.Rules{Policy: "p", Hold: &progress.Hold{Verdict: progress.OutsideWindow}}
		}, "a>A"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := failedAt(c.previous, c.nodes...)
			if c.change != nil {
				c.change(&p)
			}
			var got []string
			for _, s := range decide(p, bounds{Now: t0.Add(time.Hour)}).Steps {
				if s.sends() {
					got = append(got, s.Node+">"+s.Desired)
					if n := p.Nodes[0]; n.Current == "B" && s.Back != "smoke" {
						t.Errorf("the step does not say why: %+v", s)
					}
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("sent %v, want %s", got, c.want)
			}
			if p.Complete() {
				t.Error("what a gate failed counts as complete")
			}
		})
	}
}

func TestAGateThatFailedAPoolIsRememberedUntilItIsLifted(t *testing.T) {
	t.Parallel()
	p := failedAt("A", "a B>B")
	p.Rules.FailureBudget = 5
	if q := p.Quarantine(); q == nil || q.Gate != "smoke" {
		t.Errorf("a failure budget forgives a gate: %+v", q)
	}
	if kept := p.Remembered(t0); len(kept) != 1 || kept[0].Gate != "smoke" {
		t.Errorf("kept: %+v", kept)
	}
	// It fails again after it was lifted.
	object := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker", Annotations: map[string]string{
		api.PoolQuarantineKey: api.Encode(p.Remembered(t0)),
		api.LiftedKey: api.Encode([]api.Lifted{{
			Config: "B", Failures: []api.Failure{{Since: t0}}, Since: t0.Add(time.Minute),
		}}),
	}}}
	object.Spec.Configuration.Name = "B"
	p = progress.NewPool(object, p.Nodes)
	if q := p.Quarantine(); q != nil {
		t.Errorf("lifted, and it stands: %+v", q)
	}
	if at := p.LiftedAt("B"); !at.Equal(t0.Add(time.Minute)) {
		t.Errorf("lifted at %s", at)
	}
	p.Rules.Fails = &api.Quarantine{Config: "B", Gate: "smoke", Since: t0.Add(time.Hour)}
	if kept := p.Remembered(t0); len(kept) != 1 || !kept[0].Since.Equal(t0.Add(time.Hour)) {
		t.Errorf("kept after it failed again: %+v", kept)
	}
}
