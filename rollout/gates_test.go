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

// aGate is a gate that is asked by others, with its deadline and what comes then.
func aGate(deadline time.Duration, on api.OnDeadline) []api.Gate {
	return []api.Gate{{
		Name: "smoke", Job: &api.JobGate{Namespace: "tests", CronJob: "smoke"},
		DeadlineSeconds: int32(deadline / time.Second), OnDeadline: on,
	}}
}

// no is an answer that was given a time ago, and yes one that passes.
func no(ago time.Duration) Answers {
	return func(Question) Answer {
		return Answer{Message: "3 tests failed", At: now.Add(-ago), Since: now.Add(-ago)}
	}
}

func yes(Question) Answer { return Answer{Passed: true, At: now, Since: now} }

// judged is a pool on its way from A to B under a policy, by answers.
func judged(t *testing.T, spec api.RolloutPolicySpec, answers Answers, nodes ...string) (*progress.Pool, *Book) {
	t.Helper()
	p := pool(t, "worker", nodes...)
	p.Previous = "A"
	pools := []*progress.Pool{p}
	progress.Share(pools)
	book := NewBook([]api.RolloutPolicy{policyOf(spec)}, answers)
	book.Follow(pools, now, "")
	return p, book
}

func TestAStageWaitsForItsGates(t *testing.T) {
	t.Parallel()
	stages := func(g []api.Gate) api.RolloutPolicySpec {
		return api.RolloutPolicySpec{Stages: []api.RolloutStage{{Name: "canary", Nodes: number("1"), Gates: g}}}
	}
	for name, c := range map[string]struct {
		gates   []api.Gate
		answers Answers
		nodes   []string
		verdict progress.Verdict // of node a
		says    string
		fails   bool
		next    time.Duration
	}{
		"nobody has asked yet": {
			gates: aGate(0, ""), answers: Unasked, nodes: []string{"a A Done", "b B Done arrived=1m"},
			verdict: progress.GateClosed, says: "gate smoke of stage canary is closed: it has not been asked yet",
		},
		"the answer is no": {
			gates: aGate(0, ""), answers: no(0), nodes: []string{"a A Done", "b B Done arrived=1h"},
			verdict: progress.GateClosed, says: "3 tests failed",
		},
		"the answer is yes": {
			gates: aGate(time.Minute, api.DeadlineRollsBack), answers: yes, nodes: []string{"a A Done", "b B Done arrived=1h"},
		},
		"before its deadline": {
			gates: aGate(time.Hour, api.DeadlineRollsBack), answers: no(0), nodes: []string{"a A Done", "b B Done arrived=20m"},
			verdict: progress.GateClosed, says: "at 2026-03-02T12:40:00Z the nodes go back", next: 40 * time.Minute,
		},
		"held at its deadline": {
			gates: aGate(time.Hour, ""), answers: no(0), nodes: []string{"a A Done", "b B Done arrived=1h"},
			verdict: progress.GateFailed, says: "its deadline was at 2026-03-02T12:00:00Z",
		},
		"skipped at its deadline": {
			gates: aGate(time.Hour, api.DeadlineSkips), answers: no(0), nodes: []string{"a A Done", "b B Done arrived=1h"},
		},
		"not skipped before somebody asked": {
			gates: aGate(time.Hour, api.DeadlineSkips), answers: Unasked, nodes: []string{"a A Done", "b B Done arrived=1h"},
			verdict: progress.GateClosed, says: "it has not been asked yet",
		},
		"taken back at its deadline": {
			gates: aGate(time.Hour, api.DeadlineRollsBack), answers: no(0), nodes: []string{"a A Done", "b B Done arrived=1h"},
			verdict: progress.GateFailed, says: "3 tests failed", fails: true,
		},
		"not taken back before somebody asked": {
			gates: aGate(time.Hour, api.DeadlineRollsBack), answers: Unasked, nodes: []string{"a A Done", "b B Done arrived=2h"},
			verdict: progress.GateClosed, says: "it has not been asked yet",
		},
		"one that was first asked late has its time from then": {
			gates: aGate(time.Hour, api.DeadlineRollsBack),
			answers: func(Question) Answer {
				return Answer{Message: "no", At: now, Since: now, First: now.Add(-10 * time.Minute)}
			},
			nodes:   []string{"a A Done", "b B Done arrived=5h"},
			verdict: progress.GateClosed, says: "at 2026-03-02T12:50:00Z the nodes go back", next: 50 * time.Minute,
		},
		"one that closed again has its time anew": {
			gates: aGate(time.Hour, api.DeadlineRollsBack),
			answers: func(Question) Answer {
				return Answer{Message: "no more", At: now, Since: now, Closed: now.Add(-10 * time.Minute)}
			},
			nodes:   []string{"a A Done", "b B Done arrived=5h"},
			verdict: progress.GateClosed, says: "at 2026-03-02T12:50:00Z the nodes go back", next: 50 * time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := judged(t, stages(c.gates), c.answers, c.nodes...)
			n := p.Nodes[0]
			h := p.Held(&n)
			switch {
			case c.verdict == "" && h != nil:
				t.Fatalf("held: %+v", h)
			case c.verdict == "":
			case h == nil || h.Verdict != c.verdict || !strings.Contains(h.Because, c.says) || h.Do == "":
				t.Fatalf("got %+v, want %s: %s", h, c.verdict, c.says)
			}
			if fails := p.Rules.Fails != nil; fails != c.fails {
				t.Errorf("taken back: %v", p.Rules.Fails)
			}
			if c.next != 0 && !p.Rules.Next.Equal(now.Add(c.next)) {
				t.Errorf("looked at again at %s", p.Rules.Next)
			}
		})
	}
}

func TestQuestionsAreOpenOnceTheirSubjectHasSoaked(t *testing.T) {
	t.Parallel()
	spec := api.RolloutPolicySpec{
		MinReadySeconds: 60, Gates: aGate(0, ""),
		Stages: []api.RolloutStage{{Name: "canary", Nodes: number("1"), SoakSeconds: 600, Gates: aGate(0, "")}},
	}
	for name, c := range map[string]struct {
		node string
		want string
	}{
		"it soaks":              {"b B Done arrived=30s", ""},
		"the node has soaked":   {"b B Done arrived=2m", "node b"},
		"no rollout sent it":    {"b B Done previous=A", "stage canary"},
		"it has not come there": {"b A>B Working", ""},
	} {
		_, book := judged(t, spec, Unasked, "a A Done", c.node)
		var got []string
		for _, ask := range book.Asked() {
			got = append(got, ask.About())
			if ask.Gate != "smoke" || ask.Config != "B" || ask.Pool != "worker" || ask.Policy != "careful" ||
				strings.Join(ask.Nodes, " ") != "b" {
				t.Errorf("%s: asked %+v", name, ask)
			}
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: asked about %v, want %s", name, got, c.want)
		}
	}
}

func TestANodeTakesItsPlaceUntilItsGatesPass(t *testing.T) {
	t.Parallel()
	spec := api.RolloutPolicySpec{Gates: aGate(time.Hour, "")}
	p, _ := judged(t, spec, no(0), "a A Done", "b B Done arrived=1m")
	if !p.Takes(&p.Nodes[1]) || p.Rules.Passed["b"] || p.Rules.Hold != nil {
		t.Errorf("before its deadline: %+v", p.Rules)
	}
	p, _ = judged(t, spec, yes, "a A Done", "b B Done arrived=1m")
	if p.Takes(&p.Nodes[1]) || !p.Rules.Passed["b"] {
		t.Errorf("passed: %+v", p.Rules)
	}
	p, _ = judged(t, spec, no(0), "a A Done", "b B Done arrived=2h")
	if h := p.Rules.Hold; h == nil || h.Verdict != progress.GateFailed || !strings.Contains(h.Because, "of node b") {
		t.Errorf("past its deadline: %+v", h)
	}
	// What passed is on the Node: it is asked no more, by whatever process.
	p = pool(t, "worker", "a A Done", "b B Done arrived=2h")
	p.Previous, p.Nodes[1].Arrived.Passed = "A", now.Add(-time.Hour)
	book := NewBook([]api.RolloutPolicy{policyOf(spec)}, no(0))
	book.Follow([]*progress.Pool{p}, now, "")
	if p.Takes(&p.Nodes[1]) || len(book.Asked()) > 0 || p.Rules.Hold != nil {
		t.Errorf("passed before: %+v, asked %v", p.Rules, book.Asked())
	}
}

func TestARolloutIsOverWhenTheGatesOfItsLastStageHavePassed(t *testing.T) {
	t.Parallel()
	spec := api.RolloutPolicySpec{Stages: []api.RolloutStage{{Name: "all", Gates: aGate(time.Hour, api.DeadlineRollsBack)}}}
	p, _ := judged(t, spec, no(0), "a B Done arrived=1m", "b B Done arrived=1m")
	if h := p.Rules.Unproved; p.Complete() || h == nil || h.Verdict != progress.GateClosed {
		t.Errorf("complete %v: %+v", p.Complete(), h)
	}
	p, _ = judged(t, spec, yes, "a B Done arrived=1m", "b B Done arrived=1m")
	if !p.Complete() {
		t.Errorf("not complete: %+v", p.Rules.Unproved)
	}
	p, _ = judged(t, spec, no(0), "a B Done arrived=3h", "b B Done arrived=2h")
	if p.Rules.Fails == nil || p.Rules.Fails.Config != "B" || p.Rules.Fails.Gate != "smoke" {
		t.Errorf("at the deadline: %+v", p.Rules.Fails)
	}
	// A pool that has had it as a whole is not asked about it again.
	p = pool(t, "worker", "a B Done arrived=3h", "b B Done arrived=2h")
	p.Previous = "B"
	book := NewBook([]api.RolloutPolicy{policyOf(spec)}, no(0))
	book.Follow([]*progress.Pool{p}, now, "")
	if !p.Complete() || len(book.Asked()) > 0 {
		t.Errorf("asked %v: %+v", book.Asked(), p.Rules)
	}
}

func TestAPoolWaitsForTheGatesOfAnother(t *testing.T) {
	t.Parallel()
	first := policyOf(api.RolloutPolicySpec{Stages: []api.RolloutStage{{Name: "all", Gates: aGate(0, "")}}}, "z")
	second := policyOf(api.RolloutPolicySpec{DependsOn: []string{"z"}}, "a")
	second.Name = "second"
	a, z := pool(t, "a", "n A Done"), pool(t, "z", "m B Done arrived=1m")
	z.Previous = "A"
	book := NewBook([]api.RolloutPolicy{first, second}, no(0))
	book.Follow([]*progress.Pool{a, z}, now, "")
	if h := a.Rules.Hold; h == nil || h.Verdict != progress.WaitsForPool {
		t.Errorf("pool a: %+v", h)
	}
}

func TestReportedAnswersAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	spec := api.RolloutPolicySpec{Stages: []api.RolloutStage{{Name: "canary", Nodes: number("1"), Gates: aGate(0, "")}}}
	_, book := judged(t, spec, no(0), "a A Done", "b B Done arrived=1m")
	ask := book.Asked()[0]
	object := policyOf(spec)
	answer := Answer{Message: "no", Since: now, Closed: now}
	object.Status.Gates = []api.RolloutGate{ask.Report(answer)}
	got := Reported([]api.RolloutPolicy{object})(ask.Question)
	if got.Message != "no" || !got.At.Equal(now) || !got.Since.Equal(now) || !got.Closed.Equal(now) || got.Passed {
		t.Errorf("got %+v", got)
	}
	other := ask.Question
	other.Arrived = "2026-03-02T00:00:00Z"
	if got := Reported([]api.RolloutPolicy{object})(other); !got.At.IsZero() {
		t.Errorf("of what arrived at another time: %+v", got)
	}
}

func TestAGateThatMakesNoSenseIsNamed(t *testing.T) {
	t.Parallel()
	cel := func(expression string) api.Gate {
		return api.Gate{Name: "g", CEL: &api.CELGate{APIVersion: "v1", Kind: "Pod", Expression: expression}}
	}
	named := cel("object.status.ready && node.metadata.name != ''")
	named.CEL.Name = "x"
	wrong := cel("true")
	wrong.CEL.LabelSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "x"}}}
	for name, c := range map[string]struct {
		gate    api.Gate
		ofStage bool
		says    string
	}{
		"a list of pods":             {gate: cel("objects.all(p, p.status.phase == 'Running') && node.metadata.name != ''")},
		"the nodes of a stage":       {gate: cel("nodes.size() > 0 && quantity('1Gi').isGreaterThan(quantity('1Mi'))"), ofStage: true},
		"one object":                 {gate: named},
		"no such variable":           {gate: cel("object.x"), says: "gates[0].cel.expression: "},
		"nodes are a stage's":        {gate: cel("nodes.size() > 0"), says: "undeclared reference to 'nodes'"},
		"node is a node's":           {gate: cel("node.x"), ofStage: true, says: "undeclared reference to 'node'"},
		"not true or false":          {gate: cel("objects.size()"), says: "it has to be true or false, and is a int"},
		"no syntax":                  {gate: cel("objects.all("), says: "Syntax error"},
		"a selector that there isnt": {gate: wrong, says: "gates[0].cel.labelSelector: "},
		"an address that is none": {
			gate: api.Gate{Name: "g", Prometheus: &api.PrometheusGate{URL: "prometheus:9090"}}, says: "gates[0].prometheus.url: ",
		},
		"of no kind": {gate: api.Gate{Name: "g"}, says: "exactly one of"},
	} {
		err := checkGates("gates", []api.Gate{c.gate}, c.ofStage)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

func TestAnExpressionIsHeldToItsCost(t *testing.T) {
	t.Parallel()
	e, err := Compile(&api.CELGate{
		Expression: "objects.all(a, objects.all(b, objects.all(c, objects.all(d, a + b + c + d >= 0))))",
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	var many []any
	for i := range 200 {
		many = append(many, i)
	}
	if _, err := e.Holds(t.Context(), many, []any{}); err == nil || !strings.Contains(err.Error(), "cost limit") {
		t.Errorf("got %v", err)
	}
	if holds, err := e.Holds(t.Context(), many[:2], []any{}); err != nil || !holds {
		t.Errorf("of few: %v, %v", holds, err)
	}
}
