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

// Gates asks the questions of policies' gates. Decisions do not wait for the answers.
type Gates interface {
	// Ask replaces the open questions. before has the answers that an earlier process got.
	Ask(open []rollout.Ask, before rollout.Answers)
	// Answer returns the known answer to a question. The answer is empty until this process has asked the question.
	Answer(q rollout.Question) rollout.Answer
	// Changed returns the channel that has an event when an answer has changed.
	Changed() <-chan event.GenericEvent
}

// reportedGates is how many questions a policy's status lists at most.
const reportedGates = 100

func (r *reconciler) answers() rollout.Answers {
	if r.gates == nil {
		return rollout.Unasked
	}
	return r.gates.Answer
}

// ask has the open questions asked.
func (r *reconciler) ask(w *world, policies []api.RolloutPolicy) {
	if r.gates != nil {
		r.gates.Ask(w.asked, rollout.Reported(policies))
	}
}

// openGates returns a policy's answered questions for its status, at most reportedGates of them. The answer of an
// earlier process counts until this process has asked the question again.
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
	// Gates that hold something up come first.
	slices.SortStableFunc(out, func(a, b api.RolloutGate) int { return rank(a.Passed) - rank(b.Passed) })
	return out[:min(len(out), reportedGates)]
}

// gated returns a hold where no node begins, although no node is held. Nodes that have arrived take all places then,
// since their gates are closed. The result is nil if that is not so.
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
