// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"slices"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// shortlist is the nodes that the next decisions are about. A node at rest that is to be told nothing only counts. Once
// it has arrived, no decision is about it. While it waits, no decision before its turn is about it. Such nodes are left
// out, and a decision costs only as much as there is to decide. The result of the decision is the same.
//
// With stages, this holds while nothing unusual happens. In the usual case a node of the stage at work goes to the
// target and arrives, and its soak and gates pass. Each seat then stays with its stage. After anything unusual,
// decisions are about the whole pool again.
type shortlist struct {
	// nodes are the nodes that decisions are about, as indices in the fleet, sorted.
	nodes []int
	// waiting are nodes at rest that are left out and may go, as indices in the order of their turns.
	waiting []int
	// next are the nodes that were taken from waiting and have not gone.
	next map[int]bool
	left progress.Left
	// most is how many nodes the whole pool may have out of service, and mostNow how many the stage at work may.
	most, mostNow int
	// stage is the stage at work, and at its index.
	stage string
	at    int
	// seated are the nodes of the stage at work; nil without stages.
	seated map[int]bool
}

// leaveOut makes the shortlist after a decision that changed no node, or leaves out of it the nodes that have arrived
// since.
func (s *simulation) leaveOut(p *progress.Pool, d decision) {
	fresh := s.few == nil
	if s.whole || fresh && !s.steady(p) {
		return
	}
	seats := s.seats(p)
	if fresh {
		s.few = s.newShortlist(p, seats)
	}
	f := s.few
	told := make(map[string]bool, len(d.Steps))
	for _, step := range d.Steps {
		told[step.Node] = true
	}
	stay, held := s.latest(p, seats), false
	f.nodes = slices.DeleteFunc(f.nodes, func(i int) bool {
		n := &s.Nodes[i]
		switch {
		case told[n.Name] || !s.rests(n):
			return false
		case n.Current == p.Target:
			if stay[i] || !past(p, n) {
				return false
			}
			f.left.Arrived++
		case !fresh || !readyToGo(p, n) || seats[i] < f.at:
			return false
		case seats[i] > f.at && !held:
			held = true // the hold of the first node by name is reported for all of them
			return false
		default:
			f.left.Waiting++
			if seats[i] == f.at {
				f.waiting = append(f.waiting, i)
			}
		}
		f.reseat(seats[i], 1)
		return true
	})
	if fresh {
		slices.SortFunc(f.waiting, func(a, b int) int { return progress.Turn(&s.Nodes[a], &s.Nodes[b]) })
	}
}

// newShortlist returns a shortlist of all nodes.
func (s *simulation) newShortlist(p *progress.Pool, seats map[int]int) *shortlist {
	f := &shortlist{next: map[int]bool{}, most: s.most, mostNow: p.MaxUnavailable, stage: p.Rules.Stage, at: p.Rules.At}
	f.nodes = make([]int, len(s.Nodes))
	for i := range f.nodes {
		f.nodes[i] = i
	}
	if p.Rules.Seats == nil {
		return f
	}
	f.left.Seats, f.seated = make([]int, len(p.Rules.Seats)), map[int]bool{}
	for i, seat := range seats {
		if seat == f.at {
			f.seated[i] = true
		}
	}
	return f
}

// seats returns the stages of the nodes that a decision was about, by their indices in the fleet. The result is nil
// without stages.
func (s *simulation) seats(p *progress.Pool) map[int]int {
	if p.Rules.Seats == nil {
		return nil
	}
	out := make(map[int]int, len(p.Nodes))
	for seat, nodes := range p.Rules.Seats {
		for _, n := range nodes {
			out[s.at[n.Name]] = seat
		}
	}
	return out
}

// reseat counts nodes of a stage that are left out. A negative count is of nodes that come back.
func (f *shortlist) reseat(stage, count int) {
	if f.left.Seats != nil {
		f.left.Seats[stage] += count
	}
}

// steady reports whether the pool goes on as now unless something unusual happens.
func (s *simulation) steady(p *progress.Pool) bool {
	r := &p.Rules
	switch {
	case p.Paused, p.Target == "", len(r.Kept)+len(r.Absent) > 0, len(p.Lifts)+len(p.Elsewhere) > 0, p.Quarantine() != nil,
		s.Pool.Annotations[api.PoolQuarantineKey] != "":
		return false
	case r.Policy == "":
		return true
	case p.Target == p.Previous, p.Bypass != nil, s.Update < time.Second,
		r.Hold != nil && r.Hold.Verdict == progress.PolicyUnusable,
		r.Staging != nil && r.Staging.Required && r.Staging.Approval == nil:
		return false
	case r.Stage == "":
		return p.Updated < p.Machines
	}
	// A node that has the target, without a noted arrival, gives its seat to nodes with one.
	return !slices.ContainsFunc(p.Nodes, func(n progress.Node) bool {
		return n.Updated(p.Target) && !noted(p, &n) && n.Previous != ""
	})
}

// noted reports whether the time of the node's arrival is known.
func noted(p *progress.Pool, n *progress.Node) bool {
	return n.Arrived.Config == p.Target && !n.Arrived.Since.IsZero()
}

// rests reports whether a node is at rest, so that a decision may only count it. The own node never is, because it goes
// last.
func (s *simulation) rests(n *progress.Node) bool {
	return n.State == api.Done && n.Settled() && n.Serving() && n.Cordon == nil && n.Lift == "" &&
		n.Name != s.Self && len(n.Quarantined) == 0
}

// past reports whether the soak and the gates of a node that has arrived are over.
func past(p *progress.Pool, n *progress.Node) bool {
	if p.Rules.Policy == "" {
		return true
	}
	_, soaks := p.Rules.Soaking[n.Name]
	joined := n.Arrived.Config != p.Target && n.Previous == ""
	return !soaks && p.Rules.Gated[n.Name] == nil && (noted(p, n) || joined)
}

// readyToGo reports whether a node has staged what it has to stage before it goes.
func readyToGo(p *progress.Pool, n *progress.Node) bool {
	o := n.Orders.Stage
	return p.Rules.Staging == nil ||
		o != nil && api.SameContent(o.Config, p.Target) && n.Staged.Is(p.Target) && n.Staged.Digest == ""
}

// latest returns, for each stage, the node that became ready last. The stage soaks from that time.
func (s *simulation) latest(p *progress.Pool, seats map[int]int) map[int]bool {
	if p.Rules.Seats == nil {
		return nil
	}
	last := make([]int, len(p.Rules.Seats))
	ready := make([]time.Time, len(p.Rules.Seats))
	for _, i := range s.few.nodes {
		n, seat := &s.Nodes[i], seats[i]
		if seat == len(last)-1 || !n.Updated(p.Target) || n.NotReady != "" {
			continue
		}
		since := time.Unix(0, 0)
		if noted(p, n) {
			since = n.Arrived.Since
			if n.ReadySince.After(since) {
				since = n.ReadySince
			}
		}
		if ready[seat].IsZero() || since.After(ready[seat]) {
			last[seat], ready[seat] = i, since
		}
	}
	out := map[int]bool{}
	for seat, i := range last {
		if !ready[seat].IsZero() {
			out[i] = true
		}
	}
	return out
}

// pick returns the nodes of the shortlist, after it has added the waiting nodes whose turn may have come.
func (s *simulation) pick() []progress.Node {
	f := s.few
	more := min(len(f.waiting), max(0, f.mostNow-len(f.next)))
	for _, i := range f.waiting[:more] {
		f.next[i] = true
		f.left.Waiting--
		f.reseat(f.at, -1)
	}
	f.nodes = append(f.nodes, f.waiting[:more]...)
	f.waiting = f.waiting[more:]
	slices.Sort(f.nodes)
	out := make([]progress.Node, 0, len(f.nodes))
	for _, i := range f.nodes {
		out = append(out, s.Nodes[i])
	}
	return out
}

// moves notes that a node goes or arrives. usual is false where the node does not do what nodes mostly do.
func (s *simulation) moves(n *progress.Node, usual bool) {
	f := s.few
	if f == nil {
		return
	}
	i := s.at[n.Name]
	delete(f.next, i)
	if f.seated != nil && (!usual || !f.seated[i]) {
		s.few = nil
	}
}

// look returns the pool as the next decision needs it.
func (s *simulation) look() progress.Pool {
	nodes := s.Nodes
	if s.few != nil {
		nodes = s.pick()
	}
	s.looked += len(nodes)
	p := progress.NewPool(s.Pool, nodes)
	if f := s.few; f != nil {
		p.LeaveOut(f.left, f.most)
	} else {
		s.most = p.MaxUnavailable
	}
	pools := []*progress.Pool{&p}
	progress.Share(pools)
	s.book.Follow(pools, s.now, s.Self)
	if f := s.few; f != nil && (f.stage != p.Rules.Stage || f.at != p.Rules.At) {
		s.few = nil // the next stage has other nodes
		return s.look()
	}
	return p
}
