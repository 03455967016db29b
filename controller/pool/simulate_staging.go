// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// What happens besides where nodes stage ahead.
const (
	eventStagedAhead = "staged"
	eventApproved    = "approved"
)

// ahead is what nodes stage in a simulated rollout, and what is approved.
type ahead struct {
	due     map[string]time.Time // when a node that stages has
	approve time.Time            // when what waits is approved; zero: nothing waits
}

// order has a node begin to stage, or let go of it.
func (s *simulation) order(n *progress.Node, orders api.Orders) {
	n.Orders = orders
	switch {
	case orders.Stage == nil:
		delete(s.ahead.due, n.Name)
		n.Staged = nil
	case n.Desired == orders.Stage.Config || n.Staged.Is(orders.Stage.Config):
		delete(s.ahead.due, n.Name)
	case s.ahead.due[n.Name].IsZero():
		s.ahead.due[n.Name] = s.now.Add(s.Staging)
	}
}

// asks notes that something waits for an approval.
func (s *simulation) asks(p progress.Pool) {
	h := p.Rules.Hold
	switch {
	case h == nil || h.Verdict != progress.NeedsApproval || s.Approve < 0:
		s.ahead.approve = time.Time{}
	case s.ahead.approve.IsZero():
		s.ahead.approve = s.now.Add(s.Approve)
	}
}

// soonest is the first time after which a node has staged or something is approved, or next where that is before.
func (s *simulation) soonest(next time.Time) time.Time {
	sooner := func(at time.Time) {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for _, at := range s.ahead.due {
		sooner(at)
	}
	sooner(s.ahead.approve)
	return next
}

// stages is what of that has come.
func (s *simulation) stages() {
	for _, n := range s.come(s.ahead.due) {
		s.few = nil // it may go now
		n.Staged = &api.Staged{Config: n.Orders.Stage.Config, Since: s.now}
		s.say(eventStagedAhead, n.Name, "")
	}
	if at := s.ahead.approve; !at.IsZero() && !at.After(s.now) {
		s.few = nil
		s.Pool = s.Pool.DeepCopy()
		s.Pool.Annotations = map[string]string{api.ApprovedKey: api.Encode(api.Approval{
			Config: s.Pool.Spec.Configuration.Name, By: "simulate", Since: s.now,
		})}
		s.say(eventApproved, "", "")
	}
}
