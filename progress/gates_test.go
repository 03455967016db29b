// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/api"
)

// explained is the answer about a node, or about pool worker where no node is named.
func (w *world) explained(t *testing.T, node string) Answer {
	t.Helper()
	r := NewReport(w.View)
	a, ok := r.ExplainPool("worker")
	if node != "" {
		a, ok = r.ExplainNode(node)
	}
	if !ok {
		t.Fatalf("there is no %s", node)
	}
	return a
}

func (w *world) says(t *testing.T, node string, verdict Verdict, words ...string) {
	t.Helper()
	a := w.explained(t, node)
	if a.Verdict != verdict {
		t.Errorf("%s: %+v, want %s", node, a, verdict)
	}
	for _, word := range words {
		if !strings.Contains(a.Because, word) {
			t.Errorf("%s: %s\nwants %q", node, a.Because, word)
		}
	}
}

func TestANodeWhoseGateIsClosedSaysSoAndTheNextWaitsForIt(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.at(w.a, renderedB, renderedB, api.Done, "")
	closed := &Hold{Verdict: GateClosed, Because: "gate smoke of node a is closed: 3 tests failed", Do: "wait"}
	w.Follow = func(pools []*Pool) {
		pools[0].Rules = Rules{Policy: "careful", Gated: map[string]*Hold{"a": closed}}
	}
	w.says(t, "a", GateClosed, "3 tests failed")
	w.says(t, "b", WaitsForTurn, "a (arrived, gate smoke of node a is closed: 3 tests failed)")
	w.says(t, "", WaitsForTurn, "gate smoke of node a")
}

func TestAPoolIsNotDoneBeforeItsLastGatesHavePassed(t *testing.T) {
	t.Parallel()
	w := newWorld()
	for i := range w.Nodes {
		w.at(&w.Nodes[i], renderedB, renderedB, api.Done, "")
	}
	verdict := GateClosed
	w.Follow = func(pools []*Pool) {
		pools[0].Rules = Rules{Policy: "careful", Unproved: &Hold{Verdict: verdict, Because: "gate smoke is closed"}}
	}
	w.says(t, "", GateClosed, "all 3 nodes have "+renderedB, "gate smoke is closed")
	if done, ended := NewReport(w.View).Ended("worker"); done || ended {
		t.Errorf("done %t, ended %t", done, ended)
	}
	verdict = GateFailed
	if done, ended := NewReport(w.View).Ended("worker"); done || !ended {
		t.Errorf("past its deadline: done %t, ended %t", done, ended)
	}
}

func TestWhoGoesBackSaysForWhichGate(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.pool.Annotations = map[string]string{api.PoolQuarantineKey: api.Encode([]api.Quarantine{
		{Config: renderedB, Gate: "smoke", Reason: "of stage canary was closed at its deadline: 3 tests failed", Since: began},
	})}
	w.at(w.a, renderedB, renderedA, api.Working, "")
	w.at(w.b, renderedB, renderedB, api.Done, "")
	const why = "gate smoke of stage canary was closed at its deadline: 3 tests failed"
	w.says(t, "a", Updating, "the node goes back: "+why)
	w.says(t, "b", GoingBack, "the node goes back to "+renderedA, why)
	w.says(t, "c", Quarantined, renderedB+" is offered to no node: "+why)
	w.says(t, "", Quarantined, why, "2 nodes still to go back to "+renderedA)
	w.at(w.a, renderedA, renderedA, api.Done, "")
	if _, ended := NewReport(w.View).Ended("worker"); ended {
		t.Error("it has ended, and b is still to go back")
	}
	w.pool.Spec.Paused = true
	if a := w.explained(t, "b"); a.Verdict != GoingBack || !strings.Contains(a.Do, "resume") {
		t.Errorf("paused: %+v", a)
	}
	w.pool.Spec.Paused = false
	w.at(w.b, renderedA, renderedA, api.Done, "")
	w.says(t, "", Quarantined, why)
	if done, ended := NewReport(w.View).Ended("worker"); done || !ended {
		t.Errorf("all are back: done %t, ended %t", done, ended)
	}
}
