// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"slices"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// shortlist is the nodes that the next decisions are about. Where no policy selects the pool and nothing has failed, a
// node at rest only counts: once it has arrived no decision is about it, and while it waits none before its turn. So
// the others are left out, and a decision costs as much as there is to decide. What it comes to is the same.
type shortlist struct {
	// nodes are places in the fleet, in its order.
	nodes []int
	// waiting are places of nodes at rest in the order of their turns, as far as they are left out.
	waiting []int
	// arrived counts those that are left out as they are at the target.
	arrived int
	// most is the pool's maxUnavailable.
	most int
}

// leaveOut finds the few after a decision about the whole pool that sent no node anywhere.
func (s *simulation) leaveOut(p *progress.Pool) {
	if s.whole || s.few != nil || p.Rules.Policy != "" || p.Paused || p.Target == "" ||
		len(p.Quarantined)+len(p.Elsewhere)+len(p.Lifts) > 0 {
		return
	}
	f := &shortlist{most: p.MaxUnavailable}
	for i := range s.Nodes {
		switch n := &s.Nodes[i]; {
		case s.rests(n) && n.Current == p.Target:
			f.arrived++
		case s.rests(n):
			f.waiting = append(f.waiting, i)
		default:
			f.nodes = append(f.nodes, i)
		}
	}
	slices.SortFunc(f.waiting, func(a, b int) int { return progress.Turn(&s.Nodes[a], &s.Nodes[b]) })
	s.few = f
}

// rests reports whether a node is as those are that a decision only counts. The own node is not: it goes last of all.
func (s *simulation) rests(n *progress.Node) bool {
	target := s.Pool.Spec.Configuration.Name
	return n.State == api.Done && n.Settled() && n.Serving() && n.Cordon == nil && n.Lift == "" &&
		n.Name != s.Self && len(n.Quarantined) == 0 && n.Tainted == (n.Current != target)
}

// pick returns the few, after those that have arrived since went, and those came whose turn it may be.
func (s *simulation) pick() []progress.Node {
	f, target, waits := s.few, s.Pool.Spec.Configuration.Name, 0
	f.nodes = slices.DeleteFunc(f.nodes, func(i int) bool {
		n := &s.Nodes[i]
		arrived := n.Current == target && s.rests(n)
		f.arrived += rank(arrived)
		waits += rank(n.Current != target && s.rests(n))
		return arrived
	})
	more := min(len(f.waiting), max(0, f.most-waits))
	f.nodes = append(f.nodes, f.waiting[:more]...)
	f.waiting = f.waiting[more:]
	slices.Sort(f.nodes)
	out := make([]progress.Node, 0, len(f.nodes))
	for _, i := range f.nodes {
		out = append(out, s.Nodes[i])
	}
	return out
}

// look is the pool as the next decision needs it.
func (s *simulation) look() progress.Pool {
	nodes := s.Nodes
	if s.few != nil {
		nodes = s.pick()
	}
	s.looked += len(nodes)
	p := progress.NewPool(s.Pool, nodes)
	if f := s.few; f != nil {
		p.MaxUnavailable, p.Machines = f.most, len(s.Nodes)
		p.Updated += f.arrived
		p.Ready += f.arrived
	}
	pools := []*progress.Pool{&p}
	progress.Share(pools)
	s.book.Follow(pools, s.now, s.Self)
	return p
}
