// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// The further events of a rollout in which nodes stage ahead.
const (
	eventStagedAhead = "staged"
	eventApproved    = "approved"
)

// ahead is what nodes stage ahead in a simulated rollout, and the approval.
type ahead struct {
	due     map[string]time.Time // by name, when a node has finished staging
	approve time.Time            // when the approval comes; zero if the pool waits for none
}

// order gives a node its orders: the node begins to stage, or releases what it has staged.
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

// asks notes when an approval will come that the pool waits for.
func (s *simulation) asks(p progress.Pool) {
	h := p.Rules.Hold
	switch {
	case h == nil || h.Verdict != progress.NeedsApproval || s.Approve < 0:
		s.ahead.approve = time.Time{}
	case s.ahead.approve.IsZero():
		s.ahead.approve = s.now.Add(s.Approve)
	}
}

// soonest returns the first time at which a node has staged or an approval comes, or next if that is earlier.
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

// stages notes which nodes have staged by now, and the approval if it has come.
func (s *simulation) stages() {
	for _, n := range s.come(s.ahead.due) {
		s.few = nil // the node may go now
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
