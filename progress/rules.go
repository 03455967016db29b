// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"cmp"
	"time"

	"github.com/noderefit/noderefit/api"
)

const (
	// Bypassed names the rules of a RolloutPolicy that an api.Bypass passes over.
	Bypassed = "windows, blackouts, stages, soaks, gates, dependsOn, staging ahead and approval"
	// NotBypassed names the rules that hold in spite of an api.Bypass.
	NotBypassed = "the pool's maxUnavailable, the failure budget, pauses, quarantines, etcd's health, how nodes are " +
		"drained, and that an invalid policy holds its pools"
)

// Rules are the rules of a RolloutPolicy for a pool at a moment. With the zero value only the pool's own maxUnavailable
// counts.
type Rules struct {
	// Policy is the name of the RolloutPolicy; empty if the pool has none.
	Policy string
	// Note is the note about that policy that the pool has to keep; nil if the pool has noted the policy already.
	Note *api.PolicyNote
	// FailureBudget is the number of nodes on which a configuration may fail before no other node is offered it; 0 means
	// 1.
	FailureBudget int
	// Hold is why none of the pool's nodes may begin; nil if nothing holds them all.
	Hold *Hold
	// Kept are nodes that a person holds or skips, by name. Stages go on without these nodes.
	Kept map[string]*Hold
	// Trials are notes about trials that have not begun or are over, by the node's name.
	Trials map[string]string
	// Absent are nodes that are not ready and that the policy passes over, by name. Stages go on without these nodes.
	Absent map[string]bool
	// Uncounted are nodes that take no place of MaxUnavailable although they are out of service, by name.
	Uncounted map[string]bool
	// Holds are why single nodes may not begin, by the node's name.
	Holds map[string]*Hold
	// Etcd are the holds for the health of etcd alone, by the node's name. They count whatever else holds the node, also
	// for a node that has the target and is to try another configuration.
	Etcd map[string]*Hold
	// Places are the nodes' places in the order in which they go, by name, from 0.
	Places map[string]int
	// Soaking are nodes that have arrived and still use up maxUnavailable, by name, with the time at which that ends.
	Soaking map[string]time.Time
	// Gated are nodes that have arrived and use up maxUnavailable until their gates have passed, by name, with the reason.
	// Passed are nodes whose gates have just passed.
	Gated  map[string]*Hold
	Passed map[string]bool
	// Unproved is what the pool still waits for when all its nodes are at the target; nil if it waits for nothing.
	Unproved *Hold
	// Fails is the quarantine of the target for a gate that was closed at its deadline; nil if no gate was.
	Fails *api.Quarantine
	// Closed is the number of nodes or stages that each gate is closed for, by the gate's name.
	Closed map[string]int
	// Stage is the stage at work; empty if no stage is.
	Stage string
	// Seats are the nodes of each stage, and last the nodes of no stage. Seats is nil without stages, or when all nodes
	// have arrived. At is the index of Stage in Seats.
	Seats [][]*Node
	At    int
	// OnClose is what happens to nodes on their way while no window is open; empty if nothing does.
	OnClose api.WindowClose
	// NextWindow is when the next window opens. It is zero while a window is open, and where none will open.
	NextWindow time.Time
	// Orders are the orders for the agents of the nodes, by the node's name.
	Orders map[string]api.Orders
	// Staging is how far the nodes are with staging the target ahead; nil if they do not stage ahead.
	Staging *Staging
	// RebootMode is what the policy says of reboots; empty without a policy. Reboots are the rules for them, and nil while
	// none is asked for.
	RebootMode api.RebootMode
	Reboots    *Reboots
	// Next is when the rules may change although nothing has happened; zero if they will not.
	Next time.Time
}

// Hold is why nodes may not begin.
type Hold struct {
	Verdict Verdict
	// Blocking is the object that is waited for; nil if only time is.
	Blocking *Object
	// Until is when the hold ends by itself; zero if that is not known.
	Until   time.Time
	Because string
	Do      string
}

// Held returns why the node may not begin an update, and nil if no rule holds it. A node that keeps pods away until it
// has its first configuration is held by people alone.
func (p *Pool) Held(n *Node) *Hold {
	switch kept := p.Rules.Kept[n.Name]; {
	case kept != nil:
		return kept
	case n.Joining && n.Current == "":
		return nil
	case p.Rules.Hold != nil:
		return p.Rules.Hold
	}
	return p.Rules.Holds[n.Name]
}

// Withdrawn reports whether a node that was sent is to be taken back, because the window has closed. A configuration
// that is committed and waits for a person's reboot stays, unless its release is withheld.
func (p *Pool) Withdrawn(n *Node) bool {
	hold := p.Held(n)
	switch {
	case hold == nil, !Recallable(n), n.Desired != p.Target:
		return false
	case n.Committed():
		return hold.Verdict == Withheld && n.OnlyCommitted()
	case p.Rules.OnClose == "" || p.Rules.OnClose == api.CloseFinishes:
		return false
	case p.Rules.OnClose == api.CloseTakesBackDraining:
		return n.Drained != p.Target
	}
	return n.Cordon == nil
}

// Recallable reports whether the node is on its way to another configuration, and would lose nothing if it stayed.
func Recallable(n *Node) bool {
	return n.Current != "" && n.Desired != "" && n.Current != n.Desired && n.State != api.RolledBack && !n.Rebooting
}

// Failed returns the names of the nodes on which the target failed and that have not proved it since, sorted.
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

// held returns the answer for a hold, and nil if the hold is nil.
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

// heldByPolicy answers for a node that may not begin.
func (r *Report) heldByPolicy(n *nodeReport) *Answer {
	if n.Desired == n.pool.Target {
		return nil
	}
	hold := n.pool.Held(&n.Node)
	if hold != nil && hold.Verdict == EtcdUnhealthy {
		// The etcd member of a node on its way is down by necessity: the answer names that node.
		if a := r.waitsForTurn(n); a != nil {
			return a
		}
	}
	return n.pool.held(hold)
}

// kept answers for a node that a person holds, or has skipped for the target, or that tries a configuration. What a
// node on its way to the latter waits for is the better answer.
func (r *Report) kept(n *nodeReport) *Answer {
	hold := n.pool.Rules.Kept[n.Name]
	if hold == nil || n.Desired == n.pool.Target || hold.Verdict == Trying && n.Moving() {
		return nil
	}
	a := n.pool.held(hold)
	if n.NotReady != "" {
		a.Because += "; the node is not ready: " + n.NotReady
	}
	return a
}

// soaks reports whether the node has arrived, and still uses up maxUnavailable for a while.
func (n *nodeReport) soaks() bool {
	_, soaks := n.pool.Rules.Soaking[n.Name]
	return (soaks || n.pool.Rules.Gated[n.Name] != nil) && !n.Takes(n.pool.Target)
}
