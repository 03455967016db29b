// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"slices"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// nodeStep is all that the controller has to say to a node, after a decision: one patch.
type nodeStep struct {
	Node string
	// Desired is where the node is sent, which may be where it is sent already; Before is what it was told before.
	Desired, Before string
	// Lift is the configuration that it shall try again although it failed there; empty: none.
	Lift          string
	SingleReplica bool
	Tainted       bool
	// Arrived is what the Node is to say of its arrival.
	Arrived api.Arrival
	// Awaited is since when its verdict is waited for.
	Awaited api.Awaited
	// Orders are what its agent is asked beside that.
	Orders api.Orders
	// Held is why a node that was on its way is taken back; empty: it is not.
	Held string
	// Back is the gate for which the node leaves a configuration that it had proved; empty: it does not.
	Back string
}

// sends says that the step gives the node another configuration to go to.
func (s nodeStep) sends() bool { return s.Desired != s.Before }

// bounds are what a decision about one pool needs to know of the rest of the cluster.
type bounds struct {
	// Now is the time of the decision.
	Now time.Time
	// Self is the node that this process runs on; it goes last.
	Self string
	// SingleReplica: nothing could take a drained pod.
	SingleReplica bool
	// Elsewhere counts the nodes of other pools that use up this pool's share: the control plane's pools have one.
	// StuckElsewhere are those among them that failed on their way to something else than they are to have now.
	Elsewhere, StuckElsewhere int
	// Told is how many nodes that are sent nowhere are told something at most; 0: all.
	Told int
}

// decision is what is to be done about a pool's nodes.
type decision struct {
	// Steps in the order in which they are to be taken: those that send a node somewhere come first, in their order.
	Steps []nodeStep
	// Taken counts the nodes that go out of service by this decision, Unstuck those that were, stuck, and go on.
	Taken, Unstuck int
	// DefersSelf: this process's own node would have been next, had it not to be last.
	DefersSelf bool
	// More: Told left steps out.
	More bool
}

// decide says what every node of a pool is to be told. Two things bound it. A node that serves is sent only while fewer
// than maxUnavailable nodes are out of service, whatever the cause. And of the nodes that are out of service anyway,
// because they are cordoned or not ready, no more than maxUnavailable are on their way at a time: when a failed zone
// comes back, it must not leave again at once. Nodes that left service for an update, as they are on their way or our
// ledger says so, are sent on freely, since a change of mind must reach them; so are those that are to stay where they
// are. On the control plane a ledger is not enough, as a member of etcd counts for as long as its host runs.
//
// Where a gate was closed at its deadline, the nodes that have the target are sent back to what all had before, by the
// same rules, whatever a policy says about when nodes may begin.
//
// Nodes of a pool whose object can't be read are told nothing. Since when their verdicts are waited for is noted still.
func decide(p progress.Pool, o bounds) decision {
	if p.Unread != "" {
		return decision{Steps: watched(p, o.Now)}
	}
	c := chooser{pool: p, options: o, sent: map[*progress.Node]int{}}
	switch {
	case running(p):
		c.choose()
	case p.GoesBack() && !p.Paused:
		c.pool, c.from, c.gate = p.Backwards(), p.Target, p.Quarantine().Gate
		c.choose()
	}
	c.withdraw()
	d := decision{Taken: c.taken, Unstuck: c.unstuck, DefersSelf: c.defersSelf}
	d.Steps, d.More = c.steps()
	return d
}

// watched are the steps that note since when verdicts are waited for, and leave everything else as it is.
func watched(p progress.Pool, now time.Time) []nodeStep {
	var out []nodeStep
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if awaited := n.Await(now); awaited != n.Awaited {
			out = append(out, nodeStep{
				Node: n.Name, Before: n.Desired, Desired: n.Desired, Lift: n.Lift, SingleReplica: n.SingleReplica,
				Tainted: n.Tainted, Arrived: n.Arrived, Orders: n.Orders, Awaited: awaited,
			})
		}
	}
	return out
}

// running says that the pool's nodes are on their way to its target, or would be if they were not there.
func running(p progress.Pool) bool { return p.Target != "" && !p.Paused && p.Quarantine() == nil }

type chooser struct {
	pool       progress.Pool
	options    bounds
	sent       map[*progress.Node]int  // to the target: as the how manieth, from 1
	back       map[*progress.Node]bool // to where they are
	taken      int
	unstuck    int
	defersSelf bool
	// from is what nodes have that go back, and gate the one for which they do; empty: none does.
	from, gate string
	// drains are the drain policies that were compared last, once compared, and alike whether they are the same.
	drains          [2]*api.DrainPolicy
	compared, alike bool
}

// withdraw turns round the nodes that are on their way to a configuration that failed on another one. The node that
// rolled back stays as it is, so that it goes on saying so. A policy has those turned round, too, that may not go on.
func (c *chooser) withdraw() {
	c.back = map[*progress.Node]bool{}
	for i := range c.pool.Nodes {
		n := &c.pool.Nodes[i]
		under := n.Current != "" && n.Current != n.Desired && n.State != api.RolledBack
		if under && c.sent[n] == 0 && (c.pool.Refuses(n.Desired) || c.recalled(n) != "") {
			c.back[n] = true
		}
	}
}

// recalled says why a policy has a node that is on its way taken back; empty: none has. A node that may not go to the
// target does not go on to what nobody wants any more: it would take a place that the target's first nodes need.
func (c *chooser) recalled(n *progress.Node) string {
	if !running(c.pool) || !progress.Recallable(n) {
		return ""
	}
	hold := c.pool.Held(n)
	switch {
	case hold == nil:
		return ""
	case n.Desired != c.pool.Target, c.pool.Withdrawn(n):
		return string(hold.Verdict)
	}
	return ""
}

// choose picks the nodes that are sent to the target now. Where it failed and that was taken back, the nodes on which
// it failed prove it before any other begins.
func (c *chooser) choose() {
	var idle, serving []*progress.Node
	trial := c.pool.Trial() != nil
	for i := range c.pool.Nodes {
		n := &c.pool.Nodes[i]
		switch {
		case !c.wants(n):
		case c.pool.Held(n) != nil && !c.stays(n):
		case c.free(n):
			c.send(n)
		case trial && !c.pool.Tries(n):
		case !n.Serving() && !progress.ControlPlane(c.pool.Name):
			idle = append(idle, n)
		default:
			serving = append(serving, n)
		}
	}
	c.chooseIdle(idle)
	c.chooseServing(serving)
}

// free says that sending the node to the target takes nothing from anybody.
func (c *chooser) free(n *progress.Node) bool {
	switch {
	case c.stays(n), leaving(n):
		return true
	case progress.ControlPlane(c.pool.Name):
		return false
	}
	return n.Cordon != nil && !n.Serving() && !n.Settled()
}

// stays says that the target is what the node has, and proved.
func (c *chooser) stays(n *progress.Node) bool { return n.Current == c.pool.Target && !c.lifts(n) }

// leaving says that the node is on its way from what it has to something else.
func leaving(n *progress.Node) bool { return n.Moving() && n.Desired != "" && n.Current != n.Desired }

// stuck says that the node failed on its way to something else than target, so that it waits for nobody but us.
func stuck(n *progress.Node, target string) bool { return n.Failing() && n.Desired != target }

func (c *chooser) send(n *progress.Node) { c.sent[n] = len(c.sent) + 1 }

// wants says that the node is to be told something about the target that it was not told yet. Where it failed, it is
// not told again.
func (c *chooser) wants(n *progress.Node) bool {
	if c.from != "" && n.Current != c.from {
		return false
	}
	return (n.Desired != c.pool.Target || n.Lift != c.pool.Target && c.lifts(n)) && !c.pool.FailedOn(n)
}

// lifts says that the target failed on the node, and that somebody took that back.
func (c *chooser) lifts(n *progress.Node) bool {
	return n.FailedOn(c.pool.Target) && !c.pool.FailedOn(n)
}

// chooseIdle picks from nodes that are settled and out of service. Those that can act come before those that can't.
func (c *chooser) chooseIdle(nodes []*progress.Node) {
	if len(nodes) == 0 {
		return
	}
	under := 0
	for i := range c.pool.Nodes {
		n := &c.pool.Nodes[i]
		_, soaks := c.pool.Rules.Soaking[n.Name]
		goes := leaving(n) || n.Desired == c.pool.Target && (n.Moving() || n.Failing())
		if goes || soaks || c.pool.Rules.Gated[n.Name] != nil {
			under++
		}
	}
	var able, away []*progress.Node
	for _, n := range nodes {
		if n.NotReady == "" {
			able = append(able, n)
		} else {
			away = append(away, n)
		}
	}
	room := max(0, c.pool.MaxUnavailable-under)
	first := c.line(able, room)
	for _, n := range append(first, c.line(away, room-len(first))...) {
		c.send(n)
	}
}

// chooseServing picks from nodes that serve, and for the control plane from all: an etcd member counts while it is
// cordoned, too. A node that takes a share already needs no second one. Of nodes that are out of service and stuck, one
// does not wait for the other.
func (c *chooser) chooseServing(nodes []*progress.Node) {
	if len(nodes) == 0 {
		return
	}
	now := shareOf(&c.pool)
	takes, waiting := now.taking+c.options.Elsewhere, now.stuck+c.options.StuckElsewhere
	// Of those that take no share yet, only so many can go as there are shares.
	shares := max(0, c.pool.MaxUnavailable-takes)
	var taking, others []*progress.Node
	for _, n := range nodes {
		if c.pool.Takes(n) {
			taking = append(taking, n)
		} else if shares > 0 {
			others = append(others, n)
		}
	}
	mayGo := append(c.line(others, shares), taking...)
	for _, n := range c.line(mayGo, len(mayGo)) {
		own, frees := rank(c.pool.Takes(n)), 0
		beside := takes - own
		if own == 1 && stuck(n, c.pool.Target) {
			frees = 1
			beside -= waiting - 1
		}
		if beside >= c.pool.MaxUnavailable {
			continue
		}
		c.send(n)
		takes += 1 - own
		waiting -= frees
		c.taken += 1 - own
		c.unstuck += frees
	}
	c.defersSelf = c.defers(nodes)
}

// defers says that the own node waits although others were sent that come behind it in the usual order.
func (c *chooser) defers(nodes []*progress.Node) bool {
	if c.options.Self == "" {
		return false
	}
	at := slices.IndexFunc(nodes, func(n *progress.Node) bool { return n.Name == c.options.Self })
	if at < 0 || c.sent[nodes[at]] > 0 {
		return false
	}
	return slices.ContainsFunc(nodes, func(n *progress.Node) bool {
		return c.sent[n] > 0 && c.pool.Turn(nodes[at], n) < 0
	})
}

// line returns the nodes that are sent first, so many, in that order; the own node is the last of all. The places are
// looked up once for each.
func (c *chooser) line(nodes []*progress.Node, many int) []*progress.Node {
	type placed struct {
		node  *progress.Node
		self  bool
		place int
	}
	turn := func(a, b placed) int {
		switch {
		case a.self != b.self:
			return rank(a.self) - rank(b.self)
		case c.pool.Rules.Places != nil:
			return cmp.Compare(a.place, b.place)
		}
		return c.pool.Turn(a.node, b.node)
	}
	line := make([]placed, 0, len(nodes))
	if many > 0 {
		for _, n := range nodes {
			line = append(line, placed{n, n.Name == c.options.Self, c.pool.Rules.Places[n.Name]})
		}
	}
	out := make([]*progress.Node, 0, min(many, len(line)))
	for _, p := range firsts(line, many, turn) {
		out = append(out, p.node)
	}
	return out
}

// sortAll is the part of a list of which the first are asked for so that it is sorted as a whole.
const sortAll = 8

// firsts returns the first of a list by an order, so many, in that order. It changes the list.
func firsts[T any](list []T, many int, order func(a, b T) int) []T {
	if many >= len(list)/sortAll {
		slices.SortFunc(list, order)
		return list[:min(many, len(list))]
	}
	first := make([]T, 0, many+1)
	for _, one := range list {
		if len(first) == many && order(first[many-1], one) <= 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(first, one, order)
		first = slices.Insert(first, at, one)
		first = first[:min(len(first), many)]
	}
	return first
}

// steps are those of all nodes, in their order, and whether any were left out.
func (c *chooser) steps() (steps []nodeStep, more bool) {
	var others, again []nodeStep // of the others those that are to try the target again come last
	sent := map[string]int{}
	for i := range c.pool.Nodes {
		n := &c.pool.Nodes[i]
		s, changed := c.step(n)
		switch at := c.sent[n]; {
		case !changed:
			continue
		case s.sends():
			steps = append(steps, s)
			sent[s.Node] = at
		case at > 0:
			again = append(again, s)
			sent[s.Node] = at
		case c.options.Told > 0 && len(others) == c.options.Told:
			more = true
		default:
			others = append(others, s)
		}
	}
	turn := func(a, b nodeStep) int { return sent[a.Node] - sent[b.Node] }
	slices.SortStableFunc(steps, turn)
	slices.SortStableFunc(again, turn)
	others = append(others, again...)
	if most := c.options.Told; most > 0 && len(others) > most {
		others, more = others[:most], true
	}
	return append(steps, others...), more
}

// step is what the node is to be told, and whether that is anything new.
func (c *chooser) step(n *progress.Node) (nodeStep, bool) {
	s := nodeStep{
		Node: n.Name, Before: n.Desired, Desired: n.Desired, Lift: n.Lift,
		SingleReplica: c.options.SingleReplica, Tainted: c.taint(n), Arrived: c.arrival(n),
		Orders: c.pool.Rules.Orders[n.Name], Awaited: n.Await(c.options.Now),
	}
	switch {
	case c.sent[n] > 0:
		s.Desired, s.Lift = c.pool.Target, ""
		if c.lifts(n) {
			s.Lift = c.pool.Target
		}
		s.Back, s.Awaited = c.gate, n.AwaitedStill(c.options.Now)
		if ahead := c.pool.Rules.Staging; ahead != nil && s.Orders.Stage == nil && n.Current != c.pool.Target {
			s.Orders.Stage = ahead.Order
		}
	case c.back[n]:
		s.Desired, s.Lift, s.Held, s.Awaited = n.Current, "", c.recalled(n), n.AwaitedStill(c.options.Now)
		if !n.Staged.Is(c.pool.Target) {
			s.Orders.Stage = nil // whether it may stage there is for the next look
		}
	case c.pool.Refuses(n.Lift):
		s.Lift = "" // it failed again after that
	}
	return s, s.sends() || s.Lift != n.Lift || s.SingleReplica != n.SingleReplica || s.Tainted != n.Tainted ||
		s.Arrived != n.Arrived || s.Awaited != n.Awaited || !c.same(s.Orders, n.Orders)
}

// same reports whether two orders are. Most nodes have the same ones, so drain policies are compared once.
func (c *chooser) same(a, b api.Orders) bool {
	if !(api.Orders{Stage: a.Stage}).Equal(api.Orders{Stage: b.Stage}) {
		return false
	}
	pair := [2]*api.DrainPolicy{a.Drain, b.Drain}
	if pair != c.drains || !c.compared {
		c.drains, c.compared = pair, true
		c.alike = api.Orders{Drain: a.Drain}.Equal(api.Orders{Drain: b.Drain})
	}
	return c.alike
}

// arrival is what the Node is to say of when it arrived: that it was sent, from that on, and since when it is there and
// ready, once it is. Without a policy nobody asks.
func (c *chooser) arrival(n *progress.Node) api.Arrival {
	switch {
	case c.pool.Rules.Policy == "":
	case c.sent[n] > 0 && (n.Current != c.pool.Target || c.returns(n)):
		return api.Arrival{Config: c.pool.Target}
	case n.Arrived.Config == c.pool.Target && n.Arrived.Since.IsZero() && n.Updated(c.pool.Target) && n.NotReady == "":
		return api.Arrival{Config: c.pool.Target, Since: c.options.Now.UTC().Truncate(time.Second)}
	case n.Arrived.Config == c.pool.Target && n.Arrived.Passed.IsZero() && c.pool.Rules.Passed[n.Name]:
		passed := n.Arrived
		passed.Passed = c.options.Now.UTC().Truncate(time.Second)
		return passed
	}
	return n.Arrived
}

// returns says that the node has the target and had begun to leave it: it soaks and is asked about anew.
func (c *chooser) returns(n *progress.Node) bool {
	return n.Current == c.pool.Target && n.Desired != "" && n.Desired != n.Current && c.pool.Target != c.pool.Previous
}

// taint says whether pods had better go elsewhere: not to a node that a rollout is still to reach. One that is only
// sent back to where it is won't lose them, and one that is under way keeps the taint until it has arrived.
func (c *chooser) taint(n *progress.Node) bool {
	switch {
	case n.Updated(c.pool.Target):
		return false
	case c.from != "":
		return n.Current == c.from || n.Tainted && n.Moving()
	case running(c.pool):
		return n.Tainted || n.Current != c.pool.Target
	default:
		return n.Tainted && n.Moving()
	}
}

func rank(b bool) int {
	if b {
		return 1
	}
	return 0
}
