// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// gateWorld is what the gates of a walk are asked about.
type gateWorld struct {
	// first is when a question was first asked, by what it is about.
	first map[string]time.Time
	// unasked: the controller has just started, and has asked nobody.
	unasked bool
	// failed: a gate had the configuration taken back.
	failed bool
}

func (w *walk) makeGates() {
	w.gates = gateWorld{first: map[string]time.Time{}}
	for i := range w.policy.Spec.Stages {
		if w.one(2) {
			w.policy.Spec.Stages[i].Gates = []api.Gate{w.gate()}
		}
	}
	if w.one(4) {
		w.policy.Spec.Gates = []api.Gate{w.gate()}
	}
}

func (w *walk) gate() api.Gate {
	return api.Gate{
		Name: "g", Job: &api.JobGate{Namespace: "n", CronJob: "j"}, DeadlineSeconds: 60 * (1 + w.chance.Int32N(40)),
		OnDeadline: []api.OnDeadline{"", api.DeadlineSkips, api.DeadlineRollsBack}[w.chance.IntN(3)],
	}
}

// luck is how a gate behaves, the same whoever asks.
func (w *walk) luck(about string, of uint32) uint32 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%d %s %d", w.seed, about, of)
	return h.Sum32() % of
}

// opens is when a gate opens after it was first asked; false: never.
func (w *walk) opens(about string) (time.Duration, bool) {
	return time.Duration(w.luck(about, 25)) * time.Minute, w.luck(about, 6) > 0
}

// closes is that a gate which opened closes again for a while.
func (w *walk) closes(about string) (from, until time.Time, does bool) {
	after, ever := w.opens(about)
	from = w.gates.first[about].Add(after + time.Duration(1+w.luck(about, 9))*time.Minute)
	return from, from.Add(7 * time.Minute), ever && w.luck(about, 4) == 0
}

func (w *walk) answer(q rollout.Question) rollout.Answer {
	about := q.About()
	first, asked := w.gates.first[about]
	if !asked {
		w.gates.first[about], first = w.now, w.now
	}
	if w.gates.unasked {
		return rollout.Answer{}
	}
	a := rollout.Answer{Passed: w.isOpen(about), Message: "no", At: w.now, Since: first}
	if from, _, does := w.closes(about); does && !w.now.Before(from) {
		a.Closed = from
	}
	return a
}

// isOpen says whether the gate passes now.
func (w *walk) isOpen(about string) bool {
	after, ever := w.opens(about)
	first, asked := w.gates.first[about]
	from, until, does := w.closes(about)
	closed := does && !w.now.Before(from) && w.now.Before(until)
	return ever && asked && !w.now.Before(first.Add(after)) && !closed && !w.gates.unasked
}

// overdue says whether the deadline of a gate can have passed, of something that soaked at the earliest at a time.
func (w *walk) overdue(g api.Gate, soaked time.Time) bool {
	return !w.now.Before(soaked.Add(time.Duration(g.DeadlineSeconds) * time.Second))
}

// pastGates is an error where nodes are sent past the gates of a stage: so many are at the target, or going there.
func (w *walk) pastGates(going int) error {
	ready := slices.SortedFunc(func(yield func(time.Time) bool) {
		for _, since := range w.ready {
			if !yield(since) {
				return
			}
		}
	}, time.Time.Compare)
	before := 0
	for i, size := range w.cumulated {
		if going <= size || len(ready) == 0 {
			return nil
		}
		// Which nodes are the stage's is not asked: it has soaked no earlier than as many as it has.
		last := ready[min(max(size-before-len(w.failed), 1), len(ready))-1]
		before = size
		for _, g := range w.policy.Spec.Stages[i].Gates {
			skipped := g.OnDeadline == api.DeadlineSkips && w.overdue(g, last.Add(w.soaks[i]))
			if name := w.policy.Spec.Stages[i].Name; !w.isOpen("stage "+name) && !skipped {
				return fmt.Errorf("%d nodes are sent although the gate of stage %s is closed", going, name)
			}
		}
	}
	return nil
}

// gated says that a node has arrived and takes its place still, as its gate is closed.
func (w *walk) gated(n progress.Node) bool {
	if n.Current != "B" || n.State != api.Done || !n.Arrived.Passed.IsZero() || n.Desired != "B" || w.gates.failed ||
		w.joined[n.Name] {
		return false
	}
	soaked := n.Arrived.Since.Add(time.Duration(w.policy.Spec.MinReadySeconds) * time.Second)
	for _, g := range w.policy.Spec.Gates {
		skipped := g.OnDeadline == api.DeadlineSkips && !n.Arrived.Since.IsZero() && w.overdue(g, soaked)
		if !w.isOpen("node "+n.Name) && !skipped {
			return true
		}
	}
	return false
}

// remember has the pool remember that a gate failed it, unless the controller dies before.
func (w *walk) remember(p progress.Pool) error {
	q := p.Rules.Fails
	if q == nil || !w.calm && w.one(4) {
		return nil
	}
	if w.gates.unasked {
		return fmt.Errorf("%s is taken back although no gate was asked", q.Config)
	}
	w.gates.failed = true
	w.tell("taken back: gate %s", q.Reason)
	w.object.Annotations = map[string]string{api.PoolQuarantineKey: api.Encode(p.Remembered(w.now))}
	return nil
}

// stopped says that the rollout has come to the end that its gates have for it: all is as it was before, or a gate holds
// it that never opens.
func (w *walk) stopped(p progress.Pool) bool {
	if w.gates.failed {
		return !slices.ContainsFunc(w.nodes, func(n progress.Node) bool { return n.Current == "B" })
	}
	if h := holds(p); h == nil || h.Verdict != progress.GateFailed {
		return false
	}
	for about := range w.gates.first {
		if _, ever := w.opens(about); !ever {
			return true
		}
	}
	return false
}
