// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

var closed = &progress.Hold{Verdict: progress.OutsideWindow, Because: "no window is open"}

func TestDecideByThePoolsRules(t *testing.T) {
	t.Parallel()
	runTable(t, "send-by-rules.txt")
}

func TestANodeSaysWhenItArrived(t *testing.T) {
	t.Parallel()
	runTable(t, "arrived.txt")
}

func TestAPoolSaysThatItIsHeld(t *testing.T) {
	t.Parallel()
	runTable(t, "held.txt")
}

func TestAPolicysStatusSaysWhereItsPoolsStand(t *testing.T) {
	t.Parallel()
	p := setup{nodes: []string{"a A>B Degraded", "b A Done"}}.state(t)
	p.Rules = progress.Rules{Policy: "careful", Stage: "canary", Hold: closed, FailureBudget: 3}
	object := &api.RolloutPolicy{ObjectMeta: metav1.ObjectMeta{Name: "careful", Generation: 7}}
	opens := t0.Add(time.Hour)
	got := policyStatus(object, rollout.Finding{
		Policy: "careful", Reason: api.RolloutInForce, NextWindow: opens, Pools: []*progress.Pool{&p},
	}, t0)
	want := []api.RolloutPolicyPool{{
		Name: "worker", Stage: "canary", Held: "OutsideWindow", Message: "no window is open", Failed: 1,
		FailedNodes: []string{"a"}, FailureBudget: 3,
	}}
	if diff := cmp.Diff(want, got.Pools); diff != "" {
		t.Errorf("pools (-want +got):\n%s", diff)
	}
	if got.ObservedGeneration != 7 || !got.NextWindow.Time.Equal(opens) || got.Conditions[0].Status != metav1.ConditionTrue {
		t.Errorf("status: %+v", got)
	}
}

func TestAPolicysStatusNamesTheNodesThatFailedAndNotWithoutEnd(t *testing.T) {
	t.Parallel()
	for count, want := range map[int]int{0: 0, 7: 7, 150: failedLimit} {
		p := progress.Pool{Name: "worker", Target: "B"}
		for i := range count {
			p.Nodes = append(p.Nodes, progress.Node{
				Name: fmt.Sprintf("n-%03d", i), Node: api.Node{Current: "A", Desired: "B", State: api.Degraded},
			})
		}
		if got := policyPool(&p); len(got.FailedNodes) != want || int(got.Failed) != count {
			t.Errorf("of %d: %d are named, %d counted", count, len(got.FailedNodes), got.Failed)
		}
	}
}

// fleet is so many nodes at A.
func fleet(count int) []progress.Node {
	out := make([]progress.Node, count)
	for i := range out {
		out[i] = progress.Node{
			Name: fmt.Sprintf("n-%04d", i), Node: api.Node{Current: "A", Desired: "A", State: api.Done},
		}
	}
	return out
}

func TestASimulatedRolloutKeepsToItsPolicy(t *testing.T) {
	t.Parallel()
	one, tenth := intstr.FromInt32(1), intstr.FromString("10%")
	log := Simulate(Fleet{
		Pool: setup{maxUnavailable: "5"}.object(), Nodes: fleet(20), Start: t0, Update: 5 * time.Minute, Limit: 48 * time.Hour,
		Policies: []api.RolloutPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: api.RolloutPolicySpec{
			Pools: []string{"worker"},
			Stages: []api.RolloutStage{
				{Name: "canary", Nodes: &one, SoakSeconds: 3600}, {Name: "tenth", Nodes: &tenth, SoakSeconds: 600},
			},
		}}},
	})
	var lines []string
	for _, e := range log {
		if e.What == eventSent || e.What == eventArrived {
			continue
		}
		lines = append(lines, strings.TrimSpace(e.At.Sub(t0).String()+" "+e.Stage+" "+e.What))
	}
	want := []string{
		"0s canary stage", "5m0s canary held", "1h5m0s tenth stage", "1h10m0s tenth held", "1h20m0s rest stage",
		"1h40m0s  finished",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("timeline (-want +got):\n%s", diff)
	}
}

// documented is the policy that docs/rollout-policies.md begins with, for the pool worker alone.
func documented(t testing.TB) api.RolloutPolicy {
	t.Helper()
	page, err := os.ReadFile("../../docs/rollout-policies.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	p := api.RolloutPolicy{}
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil || len(p.Spec.Stages) == 0 {
		t.Fatalf("reading the first policy: %v", err)
	}
	p.Spec.DependsOn = nil
	return p
}

// The largest cluster that Kubernetes supports, by all that the documented policy asks for.
func BenchmarkSimulate(b *testing.B) {
	benchmarkSimulate(b, "5%", []api.RolloutPolicy{documented(b)})
}

// The same, one node at a time.
func BenchmarkSimulateOne(b *testing.B) {
	b.Run("policy", func(b *testing.B) { benchmarkSimulate(b, "1", []api.RolloutPolicy{documented(b)}) })
	b.Run("none", func(b *testing.B) { benchmarkSimulate(b, "1", nil) })
}

func benchmarkSimulate(b *testing.B, most string, policies []api.RolloutPolicy) {
	object, nodes := setup{maxUnavailable: most}.object(), fleet(5000)
	name := "rendered-worker-0123456789abcdef0123456789abcde"
	object.Spec.Configuration.Name = name + "1"
	for i := range nodes {
		nodes[i].Current, nodes[i].Desired, nodes[i].Zone = name+"0", name+"0", fmt.Sprintf("zone-%d", i%3)
	}
	used, looked := processor(b), 0
	for b.Loop() {
		s := newSimulation(Fleet{
			Pool: object, Nodes: nodes, Start: t0, Update: 5 * time.Minute,
			Staging: 2 * time.Minute, Approve: time.Hour, Limit: 100_000 * time.Hour, Policies: policies,
		})
		for s.turn() {
		}
		if looked = s.looked; s.log[len(s.log)-1].What != Finished {
			b.Fatal("it did not finish")
		}
	}
	b.ReportMetric(float64(processor(b)-used)/float64(b.N)/1e6, "cpu-ms/op")
	b.ReportMetric(float64(looked)/float64(len(nodes)), "looks-per-node/op")
}
