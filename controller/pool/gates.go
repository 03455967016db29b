// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// Gates ask the questions of policies' gates beside the decisions, which wait for no answer.
type Gates interface {
	// Ask replaces what is asked. Before are the answers that somebody before this process had.
	Ask(open []rollout.Ask, before rollout.Answers)
	// Answer is what is known of a question: nothing, before this process has asked it.
	Answer(q rollout.Question) rollout.Answer
	// Changed says that an answer is another one.
	Changed() <-chan event.GenericEvent
}

// reportedGates is how many questions a policy's status has.
const reportedGates = 100

func (r *reconciler) answers() rollout.Answers {
	if r.gates == nil {
		return rollout.Unasked
	}
	return r.gates.Answer
}

// ask has the questions asked that are open now.
func (r *reconciler) ask(w *world, policies []api.RolloutPolicy) {
	if r.gates != nil {
		r.gates.Ask(w.asked, rollout.Reported(policies))
	}
}

// openGates are the questions of a policy for its status, the first of many: those that were answered, by this process
// or one before it, whose word stands until it was asked again.
func (w *world) openGates(policy string, answers, before rollout.Answers) []api.RolloutGate {
	var out []api.RolloutGate
	for _, ask := range w.asked {
		a := answers(ask.Question)
		if a.At.IsZero() {
			a = before(ask.Question)
		}
		if ask.Policy == policy && !a.At.IsZero() {
			out = append(out, ask.Report(a))
		}
	}
	// Those that hold something up come first.
	slices.SortStableFunc(out, func(a, b api.RolloutGate) int { return rank(a.Passed) - rank(b.Passed) })
	return out[:min(len(out), reportedGates)]
}

// gated is why nothing begins although no node is held: nodes that have arrived take all places, since their gates are
// closed; nil: that is not so.
func gated(p progress.Pool) *progress.Hold {
	if len(p.Rules.Gated) == 0 {
		return nil
	}
	taking := p.Taking()
	if len(taking) < p.MaxUnavailable {
		return nil
	}
	var first *progress.Hold
	for _, n := range taking {
		hold := p.Rules.Gated[n.Name]
		if hold == nil || hold.Verdict != progress.GateClosed && hold.Verdict != progress.GateFailed {
			return nil
		}
		first = cmp.Or(first, hold)
	}
	return first
}
