// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

func TestAStageWaitsForItsGates(t *testing.T) {
	t.Parallel()
	runTable(t, "gates-stage.txt")
}

func TestQuestionsAreOpenOnceTheirSubjectHasSoaked(t *testing.T) {
	t.Parallel()
	runTable(t, "gates-asked.txt")
}

func TestANodeTakesItsPlaceUntilItsGatesPass(t *testing.T) {
	t.Parallel()
	runTable(t, "gates-node.txt")
}

func TestARolloutIsOverWhenTheGatesOfItsLastStageHavePassed(t *testing.T) {
	t.Parallel()
	runTable(t, "gates-end.txt")
}

func TestAPoolWaitsForTheGatesOfAnother(t *testing.T) {
	t.Parallel()
	runTable(t, "gates-pools.txt")
}

func TestReportedAnswersAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	object := policyOf(api.RolloutPolicySpec{Gates: []api.Gate{{Name: "smoke", Annotation: &api.AnnotationGate{Key: "a/b"}}}})
	pools := []*progress.Pool{pool(t, "worker", "a A Done", "b B Done arrived=1m")}
	book := NewBook([]api.RolloutPolicy{object}, Unasked)
	book.Follow(pools, now, "")
	ask := book.Asked()[0]
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
	runTable(t, "gates-wrong.txt")
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
