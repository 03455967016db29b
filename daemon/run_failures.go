// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/host"
)

// jitter spreads work that many nodes would do at the same moment.
func jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(d*2/5+1) //nolint:gosec // nothing secret
}

// fail adds an error to the earlier errors on the same way. The first error is kept: later errors are often only its
// consequence.
func fail(f *failure, p Phase, kind failureKind, reason, text string, now time.Time) *failure {
	out := &failure{phase: p, kind: kind, reason: reason, text: text, tries: 1, since: now}
	if f != nil {
		out.tries, out.since = f.tries+1, f.since
		if before(p, f.phase) {
			out.phase = f.phase // the failed phase has not been passed yet
		}
		switch {
		case f.kind == failTransient:
			if kind != failTransient {
				out.since = now
			}
		case kind == failHeld || f.kind == failHeld:
			if kind != f.kind {
				out.since = now
			} else if bare(text) == bare(f.text) {
				out.text = f.text // no news, as below
			}
		case kind == failTransient:
			out.kind, out.reason, out.text, out.phase = f.kind, f.reason, f.text, f.phase
		default:
			out.reason, out.text = f.reason, joinErrors(f.text, text)
		}
	}
	out.retry = now.Add(jitter(nextTry(out.tries)))
	if kind == failUnreconcilable && p != PhasePlan {
		// Another try may take a drain, and only a change of the host makes a difference, which the head learns of.
		out.retry = now.Add(jitter(restPace))
	}
	return out
}

const laterMark = "; later: "

// joinErrors joins the first error and the latest, where they differ. The shown text stays where a later error differs
// only in numbers: sizes, times and the like are no news, and each change of the text costs a write.
func joinErrors(shown, text string) string {
	first, later, _ := strings.Cut(shown, laterMark)
	switch bare(text) {
	case bare(first):
		return first
	case bare(later):
		return shown
	}
	return first + laterMark + text
}

func bare(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
}

// classify returns the meaning of an error for the node.
func (h *Head) classify(p Phase, err error) (failureKind, string) {
	reason := map[Phase]string{PhasePlan: reasonPlanning, PhaseStage: reasonStaging, PhaseHooks: reasonHook,
		PhaseDrain: reasonDraining, PhaseApply: reasonApplying}[p]
	if typed, is := errors.AsType[*typedError](err); is {
		return failDegraded, typed.reason
	}
	if errors.As(err, new(*hooks.Error)) {
		return failHeld, reasonHook
	}
	if errors.As(err, new(*host.DriftError)) {
		return failDegraded, reasonDrift
	}
	if _, is := errors.AsType[*host.UnreachableError](err); is {
		return failUnreconcilable, reasonUnreconcilable
	}
	if _, is := errors.AsType[*host.Refused](err); is {
		return failRefused, reasonRefused
	}
	_, asked := errors.AsType[*clusterError](err)
	if errors.Is(err, drain.ErrUncordoned) || (asked || p == PhaseDrain) && h.cluster.away(err) {
		return failTransient, reason
	}
	return failDegraded, reason
}
