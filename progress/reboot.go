// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/api"
)

// Reboots are the rules for the reboots of a pool's nodes at a moment.
type Reboots struct {
	// Asks are why nodes are to reboot, by the node's name. Nodes that only want a reboot are not among them.
	Asks map[string]*RebootAsk
	// Holds are why nodes that are to reboot may not begin, by the node's name.
	Holds map[string]*Hold
	// Failed are the nodes whose ordered reboot failed and stops the rollout, sorted.
	Failed []string
	// Stage is the stage at work; empty if no stage is.
	Stage string
	// Places are the places of nodes in the order in which they go, by name.
	Places map[string]int
	// MaxUnavailable is how many nodes may be out of service. Occupied are the nodes that rebooted and still use up
	// MaxUnavailable, because they soak or their gates are closed.
	MaxUnavailable int
	Occupied       []string
	// Drain is how nodes are drained, and Method how they reboot; nil and empty if no policy says so.
	Drain  *api.DrainPolicy
	Method api.RebootMethod
	// TakesBack reports whether nodes that have not begun are taken back when a window closes.
	TakesBack bool
}

// RebootAsk is why a node is to reboot.
type RebootAsk struct {
	Order api.RebootOrder
	Since time.Time
	// Alone is true for a person's order for this one node, which is part of no rollout.
	Alone bool
	// Bypass is true where windows do not count.
	Bypass bool
}

// RebootOrdered returns the order to reboot that the node has, and nil if it has none, or if the order is over.
func (n *Node) RebootOrdered() *api.RebootOrder {
	if o := n.Orders.Reboot; o != nil && !n.carriedOut(o.ID) {
		return o
	}
	return nil
}

// carriedOut reports whether the order is over, whether the boot was healthy or not.
func (n *Node) carriedOut(id string) bool {
	r := n.Rebooted
	return r != nil && r.ID == id && (!r.Ended.IsZero() || r.Failed != "")
}

// RebootBegun reports whether the agent has begun to carry out the order that the node has.
func (n *Node) RebootBegun() bool {
	o := n.RebootOrdered()
	return o != nil && (n.Rebooted != nil && n.Rebooted.ID == o.ID || n.Cordon != nil || n.Rebooting)
}

// RebootedSince reports whether the node was rebooted by an order that began at a time or later, and was healthy.
func (n *Node) RebootedSince(t time.Time) bool {
	r := n.Rebooted
	return r != nil && r.Failed == "" && !r.Ended.IsZero() && !r.Begun.Before(t)
}

// Committed reports whether a configuration is committed on the host, and waits for a reboot that is left to people.
func (n *Node) Committed() bool {
	return n.Desired != "" && n.Current != n.Desired && !n.State.Bad() && n.reason(api.RebootConfiguration) != nil
}

// NeedsReboot reports whether the node serves until a person has its committed configuration booted.
func (n *Node) NeedsReboot() bool { return n.Committed() && n.RebootOrdered() == nil && !n.Rebooting }

// OnlyCommitted reports whether the node could still be taken back from its committed configuration without a reboot:
// no boot of that configuration has begun.
func (n *Node) OnlyCommitted() bool {
	return n.Committed() && n.Cordon == nil && !n.Rebooting && !n.RebootBegun()
}

func (n *Node) reason(kind api.RebootKind) *api.RebootReason {
	if n.RebootWanted == nil {
		return nil
	}
	for i := range n.RebootWanted.Reasons {
		if r := &n.RebootWanted.Reasons[i]; r.Kind == kind {
			return r
		}
	}
	return nil
}

// wantsReboot returns since when the host wants a reboot, and false if it wants none.
func (n *Node) wantsReboot() (time.Time, bool) {
	if n.RebootWanted == nil {
		return time.Time{}, false
	}
	var first time.Time
	for _, r := range n.RebootWanted.Reasons {
		if first.IsZero() || r.Since.Before(first) {
			first = r.Since
		}
	}
	return first, true
}

// rebootReasons returns in words why the host wants a reboot, with the packages that asked; empty if it wants none.
func (n *Node) rebootReasons() string {
	if n.RebootWanted == nil {
		return ""
	}
	return reasonsText(n.RebootWanted.Reasons)
}

func reasonsText(reasons []api.RebootReason) string {
	texts := make([]string, 0, len(reasons))
	for _, r := range reasons {
		texts = append(texts, r.Text())
	}
	return strings.Join(texts, "; ")
}

// orderID names an order by what asks for it. So each controller gives the same order for the same cause.
func orderID(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// AskReboot returns why the node is to reboot in a mode of the pool's policy, and nil if nothing asks for that. A
// person's order for the node comes first, then a person's order for the pool, then what the host wants. An order that
// began after a cause has answered the cause.
func (p *Pool) AskReboot(n *Node, mode api.RebootMode) *RebootAsk {
	if r := n.Reboot; r != nil && !n.answered(n.requestID(r), r) {
		return &RebootAsk{Order: requested(n.requestID(r), r), Since: r.Since, Alone: true, Bypass: r.Bypass}
	}
	if r := p.Reboot; r != nil && !p.answeredBy(n) {
		return &RebootAsk{Order: requested(p.requestID(n), r), Since: r.Since, Bypass: r.Bypass}
	}
	if n.RebootWanted == nil {
		return nil
	}
	var reasons []api.RebootReason
	parts := []string{"wanted", n.Name}
	var first time.Time
	for _, r := range n.RebootWanted.Reasons {
		// A configuration that was left to people when it was committed is rolled where that is no longer so.
		rolls := mode == api.RebootsRoll || r.Kind == api.RebootConfiguration && mode != api.RebootsManual
		if !rolls || n.rebootedFor(r.Since) {
			continue
		}
		reasons = append(reasons, r)
		parts = append(parts, string(r.Kind), r.Since.UTC().Format(time.RFC3339))
		if first.IsZero() || r.Since.Before(first) {
			first = r.Since
		}
	}
	id := orderID(parts...)
	if len(reasons) == 0 || n.carriedOut(id) {
		return nil
	}
	return &RebootAsk{Order: api.RebootOrder{ID: id, Why: api.ShortReason(reasonsText(reasons))}, Since: first}
}

func requested(id string, r *api.RebootRequest) api.RebootOrder {
	return api.RebootOrder{ID: id, Why: r.Why, By: r.By, Soft: r.Soft}
}

func (n *Node) requestID(r *api.RebootRequest) string {
	return orderID("node", n.Name, r.Since.UTC().Format(time.RFC3339))
}

func (p *Pool) requestID(n *Node) string {
	return orderID("pool", p.Name, n.Name, p.Reboot.Since.UTC().Format(time.RFC3339))
}

// rebootedFor reports whether an order that began after a want of the host has answered the want. A restart of the
// userspace answers none: it brings no kernel, and what programs of the host want is a boot.
func (n *Node) rebootedFor(since time.Time) bool {
	r := n.Rebooted
	return r != nil && !r.Soft && !r.Begun.Before(since)
}

// answered reports whether a person's order is over: it was carried out, or a later one was that did as much, and the
// boot was healthy.
func (n *Node) answered(id string, order *api.RebootRequest) bool {
	return n.carriedOut(id) || n.RebootedSince(order.Since) && (order.Soft || !n.Rebooted.Soft)
}

// RebootAnswered reports whether a person's order for the node is over.
func (n *Node) RebootAnswered() bool {
	return n.Reboot != nil && n.answered(n.requestID(n.Reboot), n.Reboot)
}

// answeredBy reports whether the order for the pool is over on the node. A node that is younger than the order has
// booted since.
func (p *Pool) answeredBy(n *Node) bool {
	return n.Created.After(p.Reboot.Since) || n.answered(p.requestID(n), p.Reboot)
}

// RebootAnswered reports whether a person's order for the pool is over on each of its nodes.
func (p *Pool) RebootAnswered() bool {
	return p.Reboot != nil && !slices.ContainsFunc(p.Nodes, func(n Node) bool { return !p.answeredBy(&n) })
}

// RebootFailure returns why the latest ordered reboot of the node failed, and since when that is known. The text is
// empty if it did not fail.
func (n *Node) RebootFailure() (string, time.Time) {
	if n.RebootOrdered() != nil && n.Overdue() {
		return n.OverdueText(), n.Awaited.Since
	}
	r := n.Rebooted
	if r == nil || r.Failed == "" {
		return "", time.Time{}
	}
	text := r.Failed
	if r.TakenBack {
		text += "; the host went back to the deployment before"
	}
	return text, cmp.Or(r.Ended, r.Begun)
}

// resting reports whether the node has neither a configuration to go to nor a reboot to make.
func (n *nodeReport) resting() bool { return n.Settled() && n.RebootOrdered() == nil }

// rebootFailed answers for a node whose ordered reboot failed.
func (r *Report) rebootFailed(n *nodeReport) *Answer {
	text, since := n.RebootFailure()
	if text == "" {
		return nil
	}
	a := &Answer{
		Verdict: RebootFailed, Blocking: &Object{Kind: "Node", Name: n.Name}, Since: since,
		Because: "the reboot that was ordered failed: " + text,
		Do: fmt.Sprintf("repair the host, and have it reboot again: kubectl refit retry %s. No other node of pool %s is "+
			"rebooted until then", n.Name, n.pool.Name),
	}
	if o := n.Reboot; o != nil && !n.RebootAnswered() {
		a.Because += "; it is to be tried again, by " + o.By + n.rebootWaits()
		a.Do = "wait"
	}
	return a
}

// rebootOrdered answers for a node that was ordered to reboot.
func (r *Report) rebootOrdered(n *nodeReport) *Answer {
	o := n.RebootOrdered()
	if o == nil || n.Failing() {
		return nil
	}
	why := o.Why
	if o.By != "" {
		why = "by " + o.By + ": " + why
	}
	a := &Answer{Verdict: Updating, Because: "the node is to reboot, " + why}
	if b := n.Rebooted; b != nil && b.ID == o.ID {
		a.Since = b.Begun
	}
	switch {
	case n.Rebooting || n.NotReady != "" && n.RebootBegun():
		a.Verdict = Rebooting
		a.Because = "the node reboots, and has not reported since; " + why
		a.Do = "wait: a host that does not prove healthy in time says so"
		if n.NotReady != "" {
			a.Blocking = &Object{Kind: "Node", Name: n.Name}
		}
	case n.NotReady != "":
		return nil
	case n.DrainHeld != nil:
		return r.drainHeld(n)
	case n.drain != nil && n.drain.Left > 0:
		return r.draining(n)
	case n.stop != nil:
		return r.heldByHook(n)
	case n.RebootBegun():
		a.Because += "; " + strings.ToLower(cmp.Or(n.step.Name, "the agent works on it"))
	default:
		a.Because += "; its agent has not begun"
	}
	if n.Reason != "" {
		a.Because += "; " + n.Reason
	}
	return a
}

// needsReboot answers for a node that serves until a person has its configuration booted.
func (r *Report) needsReboot(n *nodeReport) *Answer {
	if !n.NeedsReboot() || n.NotReady != "" || n.pool.Rules.Kept[n.Name] != nil {
		return nil
	}
	reason := n.reason(api.RebootConfiguration)
	a := &Answer{
		Verdict: NeedsReboot, Blocking: &Object{Kind: "Node", Name: n.Name}, Since: reason.Since,
		Because: fmt.Sprintf("%s is committed on the host, and the node serves until it reboots: "+
			"reboots are left to people (reboots: Manual)", n.Desired),
		Do: fmt.Sprintf("kubectl refit reboot %s --why TEXT, or reboot the host", n.Name),
	}
	if waits := n.rebootWaits(); waits != "" {
		a.Because += waits
		if hold := n.pool.Rules.Reboots.Holds[n.Name]; hold != nil {
			a.Until, a.Do = hold.Until, hold.Do
		}
	}
	return a
}

// rebootWanted answers for a node that has its configuration, and whose host wants a reboot or was ordered one.
func (r *Report) rebootWanted(n *nodeReport) *Answer {
	since, wants := n.wantsReboot()
	waits := n.rebootWaits()
	if !n.Updated(n.pool.Target) || !wants && waits == "" {
		return nil
	}
	a := &Answer{Verdict: RebootWanted, Since: since}
	if wants {
		a.Because = fmt.Sprintf("the node has %s; its host wants a reboot: %s", n.Current, n.rebootReasons())
	} else {
		a.Because = "the node has " + n.Current
	}
	if wants && n.rebootedFor(since) {
		a.Because += "; it was rebooted at " + n.Rebooted.Begun.UTC().Format(time.RFC3339) + " and wants one all the same"
	}
	hold := (*Hold)(nil)
	if re := n.pool.Rules.Reboots; re != nil {
		hold = re.Holds[n.Name]
	}
	switch {
	case hold != nil:
		a.Because += waits
		a.Blocking, a.Until, a.Do = hold.Blocking, hold.Until, hold.Do
	case waits != "":
		a.Because += waits
		a.Do = "wait"
	case n.pool.Rules.RebootMode == api.RebootsNever:
		a.Do = fmt.Sprintf("reboot the host when that suits; RolloutPolicy %s has reboots: Never", n.pool.Rules.Policy)
	default:
		a.Do = fmt.Sprintf("kubectl refit reboot %s --why TEXT; to have that done in turn: reboots: Roll in a RolloutPolicy",
			n.Name)
	}
	return a
}

// rebootWaits returns what a node that is to reboot waits for, to end a sentence. It is empty if nothing asks for a
// reboot of the node.
func (n *nodeReport) rebootWaits() string {
	r := n.pool.Rules.Reboots
	if r == nil || r.Asks[n.Name] == nil {
		return ""
	}
	ask := r.Asks[n.Name]
	text := "; it is to reboot"
	if ask.Order.By != "" {
		text += ", by " + ask.Order.By + " since " + ask.Since.UTC().Format(time.RFC3339) + " (" + ask.Order.Why + ")"
	}
	if hold := r.Holds[n.Name]; hold != nil {
		return text + ", and waits: " + hold.Because
	}
	return text + ", and waits for its turn"
}

// RebootTexts returns for each node that wants a reboot, or whose ordered reboot failed, a sentence that names it. A
// failure comes first.
func (p *Pool) RebootTexts() (failed, wanted []string) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if text, _ := n.RebootFailure(); text != "" {
			failed = append(failed, fmt.Sprintf("the reboot of node %s failed: %s", n.Name, text))
		}
		since, wants := n.wantsReboot()
		if !wants {
			continue
		}
		text := fmt.Sprintf("node %s since %s: %s", n.Name, since.UTC().Format(time.RFC3339), n.rebootReasons())
		if r := p.Rules.Reboots; r != nil && r.Holds[n.Name] != nil {
			text += "; waits: " + r.Holds[n.Name].Because
		}
		wanted = append(wanted, text)
	}
	return failed, wanted
}

// firstReboot answers for a pool whose nodes have its configuration, and of which some want a reboot. It returns nil if
// none does.
func (r *Report) firstReboot(p *poolReport) *Answer {
	var first *nodeReport
	var answer *Answer
	count := 0
	for i := range p.Nodes {
		n := r.nodes[p.Nodes[i].Name]
		if a := r.rebootFailed(n); a != nil {
			a.Because = "node " + n.Name + ": " + a.Because
			return a
		}
		a := r.rebootWanted(n)
		if a == nil {
			continue
		}
		if count++; first == nil || earlier(a.Since, answer.Since) < 0 {
			first, answer = n, a
		}
	}
	if first == nil {
		return nil
	}
	answer.Because = fmt.Sprintf("all %s have %s; %d of them want a reboot, or are to reboot; node %s: %s",
		number(p.Machines, "node"), p.Target, count, first.Name, answer.Because)
	return answer
}
