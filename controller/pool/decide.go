// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"slices"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// nodeStep is what the controller has to tell a node after a decision. It becomes one patch.
type nodeStep struct {
	Node string
	// Desired is the configuration that the node is sent to, which may be the one it has been sent to already. Before is
	// the configuration that the node was sent to before.
	Desired, Before string
	// Lift is the configuration that the node shall try again although it failed there; empty for no configuration.
	Lift          string
	SingleReplica bool
	Tainted       bool
	// Arrived is the arrival to note on the Node.
	Arrived api.Arrival
	// Awaited notes since when the node's verdict has been awaited.
	Awaited api.Awaited
	// Tried is how far a trial of the node is; nil if there is none.
	Tried *api.Tried
	// Orders are the other orders for the node's agent.
	Orders api.Orders
	// Values are what the node is told with Desired; nil: Desired names no values.
	Values *api.ToldValues
	// Answered is true where a person's order to reboot the node is over: it is taken away.
	Answered bool
	// Held is why a node that was on its way is taken back; empty if the node is not taken back.
	Held string
	// Back is the gate for which the node leaves a configuration that it had proved; empty if the node does not leave.
	Back string
}

// sends reports whether the step sends the node to another configuration.
func (s nodeStep) sends() bool { return s.Desired != s.Before }

// bounds is what a decision about one pool needs to know of the rest of the cluster.
type bounds struct {
	Now time.Time
	// Self is the node that this process runs on, which goes last.
	Self string
	// SingleReplica is true where no other node could take a drained pod.
	SingleReplica bool
	// Elsewhere is the number of nodes of other pools that use up this pool's share: the control plane's pools have one
	// share. StuckElsewhere is how many of them failed on their way to another configuration than their present target.
	Elsewhere, StuckElsewhere int
	// Told is how many of the nodes that are not sent anywhere are told something at most; 0 means all.
	Told int
}

// decision is what to do about a pool's nodes.
type decision struct {
	// Steps are in the order in which to take them. Steps that send a node come first, in the order of the nodes' turns.
	Steps []nodeStep
	// Taken is the number of nodes that go out of service by this decision. Unstuck is the number of nodes that were out
	// of service and stuck, and now go on.
	Taken, Unstuck int
	// DefersSelf is true where this process's own node would have been next, if that node did not go last.
	DefersSelf bool
	// More is true where Told left steps out.
	More bool
}

// decide returns what to tell every node of a pool. Two rules bound the decision. A node that serves is sent only while
// fewer than maxUnavailable nodes are out of service, for any cause. Other nodes are out of service anyway, because
// they are cordoned or not ready. Of these, no more than maxUnavailable are on their way at a time. When a failed zone
// comes back, it must not leave again at once.
//
// Nodes that left service for an update are sent on freely, since a change of mind must reach them. These are on their
// way, or our ledger claims their cordon. Nodes that already have the target are sent freely too. On the control plane
// a ledger is not enough, because a member of etcd counts for as long as its host runs.
//
// Where a gate was closed at its deadline, the nodes that have the target are sent back to what all nodes had before.
// The same two rules bound that. A policy's rules for when nodes may begin do not.
//
// Nodes of a pool whose object can't be read are told nothing. The controller still notes since when their verdicts
// have been awaited.
func decide(p progress.Pool, o bounds) decision {
	if p.Unread != "" {
		return decision{Steps: watched(p, o.Now)}
	}
	c := chooser{pool: p, options: o, sent: map[*progress.Node]int{}}
	c.findTrials()
	switch {
	case running(p):
		c.choose()
	case p.GoesBack() && !p.Paused:
		c.pool, c.from, c.gate = p.Backwards(), p.Target, p.Quarantine().Gate
		c.choose()
	}
	c.withdraw()
	c.sendTrials()
	c.chooseReboots()
	d := decision{Taken: c.taken, Unstuck: c.unstuck, DefersSelf: c.defersSelf}
	d.Steps, d.More = c.steps()
	return d
}

// watched returns the steps that note since when verdicts have been awaited. These steps leave everything else as it
// is.
func watched(p progress.Pool, now time.Time) []nodeStep {
	var out []nodeStep
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if awaited := n.Await(now); awaited != n.Awaited {
			out = append(out, nodeStep{
				Node: n.Name, Before: n.Desired, Desired: n.Desired, Lift: n.Lift, SingleReplica: n.SingleReplica,
				Tainted: n.Tainted, Arrived: n.Arrived, Orders: n.Orders, Awaited: awaited, Tried: n.Tried,
			})
		}
	}
	return out
}

// running reports whether the pool has a target that its nodes may go to: the pool is not paused, and the target is not
// quarantined.
func running(p progress.Pool) bool { return p.Target != "" && !p.Paused && p.Quarantine() == nil }

type chooser struct {
	pool       progress.Pool
	options    bounds
	sent       map[*progress.Node]int  // to the target, with the node's place in the order, from 1
	back       map[*progress.Node]bool // to the configuration that they have
	taken      int
	unstuck    int
	defersSelf bool
	// from is the configuration that nodes leave to go back, and gate the reason. Both are empty if no node goes back.
	from, gate string
	// trials are the steps of the nodes that try a configuration, or are to, or did.
	trials map[*progress.Node]progress.TrialStep
	// reboots are the orders to reboot of the nodes.
	reboots map[*progress.Node]*api.RebootOrder
	// drains are the two drain policies that were compared last, if compared is true. alike is true if they are equal.
	drains          [2]*api.DrainPolicy
	compared, alike bool
}

// withdraw turns back the nodes that are on their way to a configuration that failed on another node. It also turns
// back nodes that a policy does not allow to go on. A node that rolled back stays as it is, so that it keeps reporting
// the failure.
func (c *chooser) withdraw() {
	c.back = map[*progress.Node]bool{}
	for i := range c.pool.Nodes {
		n := &c.pool.Nodes[i]
		if c.tried(n) || n.LeavesTrial() {
			continue
		}
		under := n.Current != "" && n.Current != n.Desired && n.State != api.RolledBack
		if under && c.sent[n] == 0 && (c.pool.Refuses(n.Desired) || c.recalled(n) != "") {
			c.back[n] = true
		}
	}
}

// recalled returns why a person or a policy has a node taken back that is on its way, and "" if neither does. A node
// that may not go to the target does not go on to an outdated target either. It would take a place that the target's
// first nodes need.
func (c *chooser) recalled(n *progress.Node) string {
	if !progress.Recallable(n) {
		return ""
	}
	if kept := c.pool.Rules.Kept[n.Name]; kept != nil {
		return string(kept.Verdict)
	}
	if !running(c.pool) {
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

// choose picks the nodes that are sent to the target now. Where the target failed and a person lifted that, the nodes
// on which it failed prove it before any other node begins.
func (c *chooser) choose() {
	var idle, serving []*progress.Node
	retried := c.pool.Retrier() != nil
	for i := range c.pool.Nodes {
		n := &c.pool.Nodes[i]
		switch {
		case c.tried(n), !c.wants(n), n.Lacks != "":
		case c.pool.Held(n) != nil && !c.stays(n):
		case c.pool.Rules.Absent[n.Name] && leaving(n):
			// The node hears nothing, and would count as begun. It is sent on when it is ready.
		case c.free(n):
			c.send(n)
		case retried && !c.pool.Retries(n):
		case !n.Serving() && !progress.ControlPlane(c.pool.Name):
			idle = append(idle, n)
		default:
			serving = append(serving, n)
		}
	}
	c.chooseIdle(idle)
	c.chooseServing(serving)
}

// free reports whether sending the node to the target takes no further node out of service.
func (c *chooser) free(n *progress.Node) bool {
	switch {
	case c.stays(n), leaving(n):
		return true
	case progress.ControlPlane(c.pool.Name):
		return false
	}
	return n.Cordon != nil && !n.Serving() && !n.Settled()
}

// stays reports whether the node has the target, and proved it.
func (c *chooser) stays(n *progress.Node) bool { return n.Current == c.pool.Target && !c.lifts(n) }

// leaving reports whether the node is on its way from its configuration to another.
func leaving(n *progress.Node) bool { return n.Moving() && n.Desired != "" && n.Current != n.Desired }

// stuck reports whether the node failed on its way to another configuration than target, so that only the controller
// can move it.
func stuck(n *progress.Node, target string) bool { return n.Failing() && n.Desired != target }

func (c *chooser) send(n *progress.Node) { c.sent[n] = len(c.sent) + 1 }

// wants reports whether there is something to tell the node about the target. A node on which the target failed is not
// told again.
func (c *chooser) wants(n *progress.Node) bool {
	if c.from != "" && n.Current != c.from {
		return false
	}
	return (n.Desired != c.pool.Target || n.Lift != c.pool.Target && c.lifts(n)) && !c.pool.FailedOn(n)
}

// lifts reports whether the target failed on the node and a person lifted that.
func (c *chooser) lifts(n *progress.Node) bool {
	return n.FailedOn(c.pool.Target) && !c.pool.FailedOn(n)
}

// chooseIdle picks from nodes that are settled and out of service. Nodes that can act come before nodes that can't.
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

// chooseServing picks from nodes that serve, and on the control plane from all nodes, because an etcd member counts
// while its node is cordoned, too. A node that takes a share already needs no second one. Nodes that are out of service
// and stuck do not wait for one another.
func (c *chooser) chooseServing(nodes []*progress.Node) {
	if len(nodes) == 0 {
		return
	}
	now := shareOf(&c.pool)
	takes, waiting := now.taking+c.options.Elsewhere, now.stuck+c.options.StuckElsewhere
	// Of the nodes that take no share yet, only as many can go as shares are left.
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

// defers reports whether the own node waits although nodes were sent that come after it in the usual order.
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

// line returns at most many of the nodes: the nodes that are sent first, in that order. The own node comes last. The
// place of each node is looked up once.
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

// sortAll bounds when firsts sorts the whole list: where at least one in sortAll elements is asked for.
const sortAll = 8

// firsts returns at most many elements of a list: the first by an order, in that order. It changes the list.
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

// steps returns the steps of all nodes, in their order, and whether some were left out.
func (c *chooser) steps() (steps []nodeStep, more bool) {
	var others, again []nodeStep // again: the others that are to try the target again, which come last
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

// step returns what to tell the node, and whether any of that is new.
func (c *chooser) step(n *progress.Node) (nodeStep, bool) {
	s := nodeStep{
		Node: n.Name, Before: n.Desired, Desired: n.Desired, Lift: n.Lift,
		SingleReplica: c.options.SingleReplica, Tainted: c.taint(n), Arrived: c.arrival(n),
		Orders: c.orders(n, c.pool.Rules.Orders[n.Name]), Awaited: n.Await(c.options.Now), Tried: c.trials[n].Tried,
		Answered: n.RebootAnswered(),
	}
	switch {
	case c.trials[n].Send != "":
		s.Desired, s.Lift, s.Awaited = c.trials[n].Send, "", n.AwaitedStill(c.options.Now)
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
			s.Orders.Stage = nil // the next look decides whether the node may stage there
		}
	case c.pool.Refuses(n.Lift), c.pool.Rules.Kept[n.Name] != nil:
		s.Lift = "" // the configuration failed again after the lift, or a person keeps the node
	}
	if s.sends() {
		s.Values = n.ValuesFor(s.Desired)
	}
	return s, s.sends() || s.Lift != n.Lift || s.SingleReplica != n.SingleReplica || s.Tainted != n.Tainted ||
		s.Arrived != n.Arrived || s.Awaited != n.Awaited || triedText(s.Tried) != triedText(n.Tried) ||
		s.Answered || !c.same(s.Orders, n.Orders)
}

// same reports whether two orders are equal. Most nodes have the same orders, so the result for a pair of drain
// policies is kept for the next node.
func (c *chooser) same(a, b api.Orders) bool {
	one, other := a, b
	one.Drain, other.Drain = nil, nil
	if !one.Equal(other) {
		return false
	}
	pair := [2]*api.DrainPolicy{a.Drain, b.Drain}
	if pair != c.drains || !c.compared {
		c.drains, c.compared = pair, true
		c.alike = api.Orders{Drain: a.Drain}.Equal(api.Orders{Drain: b.Drain})
	}
	return c.alike
}

// arrival returns the arrival to note on the Node. When the node is sent, the note names the target. Once the node is
// there and ready, the note has the time, and later the time when the gates passed. Without a policy arrivals are not
// noted.
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

// returns reports whether the node has the target and had begun to leave it. Then the node soaks anew, and its gates
// are asked anew.
func (c *chooser) returns(n *progress.Node) bool {
	return n.Current == c.pool.Target && n.Desired != "" && n.Desired != n.Current && c.pool.Target != c.pool.Previous
}

// taint reports whether the node keeps the rollout's taint. The taint has pods avoid nodes that a rollout is still to
// reach. A node that is only sent back to where it is won't lose its pods. A node on its way keeps the taint until it
// has arrived.
func (c *chooser) taint(n *progress.Node) bool {
	switch {
	case n.Updated(c.pool.Target):
		return false
	case c.tried(n):
		return n.Tainted && n.Moving() // pods are to run on what is tried
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
