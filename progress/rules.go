// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"cmp"
	"time"

	"github.com/noderefit/noderefit/api"
)

const (
	// Bypassed is what of a RolloutPolicy an api.Bypass passes over, in words.
	Bypassed = "windows, blackouts, stages, soaks, gates, dependsOn, staging ahead and approval"
	// NotBypassed is what holds in spite of it.
	NotBypassed = "the pool's maxUnavailable, the failure budget, pauses, quarantines, etcd's health, how nodes are " +
		"drained, and that a policy which makes no sense holds its pools"
)

// Rules are what a RolloutPolicy says about a pool at a moment. The zero value says nothing: the pool goes by its own
// maxUnavailable.
type Rules struct {
	// Policy is the name of the RolloutPolicy; empty: none.
	Policy string
	// Note is what the pool is to note of that policy; nil: what it has noted already.
	Note *api.PolicyNote
	// FailureBudget is on how many nodes a configuration may fail before it is offered to no other; 0 is 1.
	FailureBudget int
	// Hold is why none of the pool's nodes may begin; nil: nothing holds them all.
	Hold *Hold
	// Holds are why single nodes may not begin, by name.
	Holds map[string]*Hold
	// Places are the nodes in the order in which they go, by name, from 0.
	Places map[string]int
	// Soaking are nodes that have arrived and use up maxUnavailable still, by name, and until when.
	Soaking map[string]time.Time
	// Gated are nodes that have arrived and use up maxUnavailable until their gates have passed, by name, and why they
	// have not; Passed are those whose gates have just passed.
	Gated  map[string]*Hold
	Passed map[string]bool
	// Unproved is what the pool waits for still when all its nodes are at the target; nil: nothing.
	Unproved *Hold
	// Fails is the target, to be quarantined as a gate was closed at its deadline; nil: it is not.
	Fails *api.Quarantine
	// Closed counts what each gate is closed for, nodes or stages, by its name.
	Closed map[string]int
	// Stage is the one at work; empty: none.
	Stage string
	// Seats are the nodes of each stage, and behind the last those of none; nil: there are no stages, or all nodes have
	// arrived. At is the place of Stage among them.
	Seats [][]*Node
	At    int
	// OnClose is what happens to those on their way while the hold is that no window is open; empty: nothing.
	OnClose api.WindowClose
	// NextWindow is when a window opens next, zero while one is open, or there is none.
	NextWindow time.Time
	// Orders are what the agents of the nodes are asked, by name.
	Orders map[string]api.Orders
	// Staging is how far the nodes are with staging the target ahead; nil: they do not.
	Staging *Staging
	// Next is when the rules may say something else although nothing has happened; zero: they will not.
	Next time.Time
}

// Hold is why nodes may not begin.
type Hold struct {
	Verdict Verdict
	// Blocking is what is waited for; nil: the time.
	Blocking *Object
	// Until is when it ends by itself; zero: that is not known.
	Until   time.Time
	Because string
	Do      string
}

// Held is why the node may not begin an update; nil: nothing of the rules holds it. A node that keeps pods away until
// it has its first configuration waits for nobody.
func (p *Pool) Held(n *Node) *Hold {
	switch {
	case n.Joining && n.Current == "":
		return nil
	case p.Rules.Hold != nil:
		return p.Rules.Hold
	}
	return p.Rules.Holds[n.Name]
}

// Withdrawn says that a node which was sent is to be taken back, as the window has closed.
func (p *Pool) Withdrawn(n *Node) bool {
	switch {
	case p.Rules.OnClose == "" || p.Rules.OnClose == api.CloseFinishes, p.Held(n) == nil, !Recallable(n),
		n.Desired != p.Target:
		return false
	case p.Rules.OnClose == api.CloseTakesBackDraining:
		return n.Drained != p.Target
	}
	return n.Cordon == nil
}

// Recallable says that the node is on its way to something else than it has, and would lose nothing if it stayed.
func Recallable(n *Node) bool {
	return n.Current != "" && n.Desired != "" && n.Current != n.Desired && n.State != api.RolledBack && !n.Rebooting
}

// Failed are the names of the nodes on which the target failed and that did not prove it since, sorted.
func (p *Pool) Failed() []string {
	var names []string
	for i := range p.Nodes {
		if n := &p.Nodes[i]; n.Failing() && n.Desired == p.Target || p.FailedOn(n) {
			names = append(names, n.Name)
		}
	}
	return names
}

// Turn compares two nodes by when they are sent.
func (p *Pool) Turn(a, b *Node) int {
	if p.Rules.Places == nil {
		return Turn(a, b)
	}
	return cmp.Compare(p.Rules.Places[a.Name], p.Rules.Places[b.Name])
}

// held makes an answer of a hold; nil of none.
func (p *poolReport) held(h *Hold) *Answer {
	if h == nil {
		return nil
	}
	a := &Answer{Verdict: h.Verdict, Blocking: h.Blocking, Because: h.Because, Do: h.Do, Until: h.Until}
	if a.Blocking == nil && p.Rules.Policy != "" {
		a.Blocking = &Object{Kind: "RolloutPolicy", Name: p.Rules.Policy}
	}
	return a
}

// heldByPolicy is a node that may not begin.
func (r *Report) heldByPolicy(n *nodeReport) *Answer {
	if n.Desired == n.pool.Target {
		return nil
	}
	hold := n.pool.Held(&n.Node)
	if hold != nil && hold.Verdict == EtcdUnhealthy {
		// The member of a node that is on its way can't but be away: that node is what is waited for.
		if a := r.waitsForTurn(n); a != nil {
			return a
		}
	}
	return n.pool.held(hold)
}

// soaks says that the node has arrived, and uses up maxUnavailable for a while still.
func (n *nodeReport) soaks() bool {
	_, soaks := n.pool.Rules.Soaking[n.Name]
	return (soaks || n.pool.Rules.Gated[n.Name] != nil) && !n.Takes(n.pool.Target)
}
