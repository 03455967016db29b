// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
)

// keptOn is a world whose rules keep a node.
func keptOn(w *world, name string, until time.Time) *world {
	w.Follow = func(pools []*Pool) {
		for _, p := range pools {
			p.Rules.Kept = map[string]*Hold{name: {
				Verdict: HeldByPerson, Because: "node " + name + " is held by ann", Do: "release it", Until: until,
			}}
		}
	}
	return w
}

func TestARolloutThatGoesBackLeavesAHeldNode(t *testing.T) {
	w := keptOn(newWorld(), "a", time.Time{})
	reached[GoingBack](w)
	r := NewReport(w.View)
	p, _ := r.Pool("worker")
	if !p.GoesBack() {
		t.Fatal("the pool does not go back")
	}
	if back := p.Backwards(); back.Held(&p.Nodes[0]) == nil {
		t.Error("the held node is sent back")
	}
	if a, _ := r.ExplainNode("a"); a.Verdict != UpToDate || !strings.Contains(a.Because, "held by ann") {
		t.Errorf("%+v", a)
	}
}

func TestNoRolloutWaitsForTheTrialOfAHeldNode(t *testing.T) {
	for _, name := range []string{"a", "b"} {
		w := keptOn(newWorld(), name, time.Time{})
		failed := api.Failure{Node: "a", Since: began}
		w.pool.Annotations = map[string]string{
			api.LiftedKey: api.Encode([]api.Lifted{{Config: renderedB, Failures: []api.Failure{failed}}}),
		}
		p, _ := NewReport(w.View).Pool("worker")
		if !p.Retries(&p.Nodes[0]) {
			t.Fatal("node a does not try the target")
		}
		if waits := p.Retrier() != nil; waits == (name == "a") {
			t.Errorf("%s is held: the pool waits for the trial: %t", name, waits)
		}
	}
}

func TestAHeldNodeThatFailedSaysWhoHoldsIt(t *testing.T) {
	w := keptOn(newWorld(), "a", time.Time{})
	w.at(w.a, renderedA, "rendered-worker-older", api.RolledBack, "kubelet is down")
	if a, _ := NewReport(w.View).ExplainNode("a"); a.Verdict != RolledBack || a.Do != "release it" {
		t.Errorf("%+v", a)
	}
}

// A hold of a person ends no watch of a rollout, if the hold ends by itself.
func TestAHoldWithAnEndIsWaitedFor(t *testing.T) {
	for _, until := range []time.Time{{}, began.Add(time.Hour)} {
		w := keptOn(newWorld(), "a", until)
		w.at(w.b, renderedB, renderedB, api.Done, "")
		w.at(w.c, renderedB, renderedB, api.Done, "")
		if done, ended := NewReport(w.View).Ended("worker"); done || ended != until.IsZero() {
			t.Errorf("until %v: done %t, ended %t", until, done, ended)
		}
	}
}

func TestAHoldThatCanNotBeReadIsNamedWithTheError(t *testing.T) {
	for _, text := range []string{"{", `{"config":"` + strings.Repeat("x", 300) + `"}`} {
		w := newWorld()
		w.a.Annotations[api.HoldKey] = text
		n := ReadNode(w.a)
		if n.Hold == nil || !n.Hold.Holds(renderedB, began) || !strings.Contains(n.Hold.Why, api.HoldKey) ||
			!strings.Contains(n.Unread, api.HoldKey) {
			t.Errorf("%.20s: %+v, %s", text, n.Hold, n.Unread)
		}
	}
}
