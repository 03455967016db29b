// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"cmp"
	"fmt"
	"time"

	"github.com/noderefit/noderefit/api"
)

const (
	// trialLimit is how long a node may take to prove a configuration that it tries.
	trialLimit = time.Hour
	// trialKept is how long the record of an ended trial stays on the Node.
	trialKept = 24 * time.Hour
)

// TrialStep is what a trial needs next. The zero value is that of a node without a trial.
type TrialStep struct {
	// Send is the configuration to send the node to; empty if the node is not sent.
	Send string
	// Begins is true where Send begins the trial. The record is only true once the node is sent.
	Begins bool
	// Tried is the record that the Node shall have; nil if it shall have none.
	Tried *api.Tried
	// Waits is why the trial does not begin, or the node does not go back yet; empty if nothing in the pool is in the way.
	Waits string
	// Next is when the trial goes on although nothing has happened; zero if it does not.
	Next time.Time
}

// OnTrial reports whether the node tries a configuration that is not target, or is still to be sent back from it.
func (n *Node) OnTrial(target string) bool {
	t := n.Tried
	return t != nil && (t.Ended.IsZero() || !t.Kept && n.Desired == t.Config && t.Config != target)
}

// LeavesTrial reports whether the node is on its way back from a configuration that it tried.
func (n *Node) LeavesTrial() bool {
	t := n.Tried
	return t != nil && !t.Ended.IsZero() && n.Current == t.Config && n.Desired == t.From && n.Current != n.Desired
}

// TrialStep returns what the trial of a node needs next, by the pool's rules. The pool's maxUnavailable is not asked.
func (p *Pool) TrialStep(n *Node, now time.Time) TrialStep {
	now = now.UTC().Truncate(time.Second)
	t := n.Tried
	if t == nil || !t.Ended.IsZero() && !n.OnTrial(p.Target) {
		if n.Trial == nil || t != nil && t.Ordered.Equal(n.Trial.Since) {
			return remembered(t, now)
		}
		return p.beginTrial(n, now)
	}
	if t.Ended.IsZero() {
		t = p.judgeTrial(n, *t, now)
	}
	s := TrialStep{Tried: t}
	switch {
	case t.Ended.IsZero():
		s.Next = t.Until
	case t.Kept:
	case p.Paused:
		s.Waits = "the pool is paused"
	case n.Hold.Holds(p.Target, now) && n.Hold.Config == "":
		s.Waits = "a person holds the node"
	case etcdHold(p, n) != nil:
		s.Waits = etcdHold(p, n).Because // going back must not cost etcd its quorum
	case n.Desired == t.Config:
		s.Send = t.From
	}
	return s
}

// etcdHold returns the hold of a node for the health of etcd, and nil if there is none. Another hold of the node does
// not hide it: that one may be bypassed, and does not count on the way back.
func etcdHold(p *Pool, n *Node) *Hold {
	for _, h := range p.trialHolds(n) {
		if h != nil && h.Verdict == EtcdUnhealthy {
			return h
		}
	}
	return nil
}

// trialHolds returns the holds of a policy on a node, of which each may be nil.
func (p *Pool) trialHolds(n *Node) []*Hold {
	return []*Hold{p.Rules.Etcd[n.Name], p.Rules.Hold, p.Rules.Holds[n.Name]}
}

// remembered returns the step of a trial that is over: its record goes after a while.
func remembered(t *api.Tried, now time.Time) TrialStep {
	if t == nil {
		return TrialStep{}
	}
	if end := t.Ended.Add(trialKept); end.After(now) {
		return TrialStep{Tried: t, Next: end}
	}
	return TrialStep{}
}

// beginTrial returns the step of a trial that has not begun.
func (p *Pool) beginTrial(n *Node, now time.Time) TrialStep {
	order := n.Trial
	begun := &api.Tried{
		Config: order.Config, From: order.From, By: order.By, Why: order.Why, Ordered: order.Since, Begun: now,
		Until: now.Add(trialLimit), Pool: p.Name,
	}
	never := func(because string) TrialStep {
		begun.Ended, begun.Because, begun.Until = now, because, time.Time{}
		return TrialStep{Tried: begun}
	}
	wait := func(why string) TrialStep { return TrialStep{Tried: n.Tried, Waits: why} }
	var hold *Hold
	for _, h := range p.trialHolds(n) {
		if h != nil && (!order.Bypass || !bypassable[h.Verdict]) {
			hold = cmp.Or(hold, h)
		}
	}
	switch {
	case order.Config == p.Target:
		begun.Kept = true
		return never("the pool has the configuration already")
	case order.From != p.Target:
		return never(fmt.Sprintf("the pool has %s now, and the trial is made of %s: try again", p.Target, order.From))
	case p.Refuses(order.Config) || n.FailedOn(order.Config):
		return never(order.Config + " is quarantined: it failed its verdict before")
	case p.Paused:
		return wait("the pool is paused")
	case p.GoesBack():
		return wait("the pool goes back to " + p.Previous)
	case n.Hold.Holds(p.Target, now):
		return wait("a person holds the node")
	case !n.Updated(p.Target):
		return wait("the node has not proved " + p.Target + " yet")
	case n.NotReady != "":
		return wait("the node is not ready: " + n.NotReady)
	case hold != nil:
		return wait(hold.Because)
	}
	return TrialStep{Send: order.Config, Begins: true, Tried: begun}
}

// bypassable are the holds of a RolloutPolicy that a trial passes over by its own Bypass: those that end by themselves.
var bypassable = map[Verdict]bool{
	OutsideWindow: true, WaitsForPool: true, StagingAhead: true, NeedsApproval: true, WaitsForStage: true, Soaking: true,
	GateClosed: true,
}

// judgeTrial returns the record of a trial that has begun, as of now.
func (p *Pool) judgeTrial(n *Node, t api.Tried, now time.Time) *api.Tried {
	order := n.Trial
	// After a clock was set back, a time in the future would make the trial last for as long as that.
	if t.Begun.After(now) {
		t.Begun, t.Until = now, now.Add(trialLimit)
	}
	if t.Proved.After(now) {
		t.Proved = now
	}
	if order != nil && !t.Proved.IsZero() {
		t.Until = t.Proved.Add(order.For())
	}
	end := func(because string) { t.Ended, t.Because, t.Until = now, because, time.Time{} }
	switch {
	case p.Target == t.Config:
		t.Kept = true
		end("the pool has the configuration now")
	case t.Pool != "" && t.Pool != p.Name:
		t.Kept = true
		end("the node belongs to pool " + p.Name + " now")
	case n.Desired == t.Config && n.Failing():
		end("it failed: " + cmp.Or(n.Reason, string(n.State)))
	case n.Desired != t.Config:
		end("the node was sent to " + n.Desired)
	case order == nil || !order.Since.Equal(t.Ordered):
		end("a person ended the trial")
	case t.Proved.IsZero() && n.Updated(t.Config):
		t.Proved, t.Until = now, now.Add(order.For())
	case t.Proved.IsZero() && !now.Before(t.Begun.Add(trialLimit)):
		end("the node did not prove it within " + trialLimit.String())
	case !t.Proved.IsZero() && !now.Before(t.Proved.Add(order.For())):
		end("its time is over")
	}
	return &t
}

// TrialHold returns the hold of a node that tries a configuration. Rollouts pass such a node by. The result is nil if
// the node does not try a configuration.
func (p *Pool) TrialHold(n *Node) *Hold {
	if !n.OnTrial(p.Target) {
		return nil
	}
	t := n.Tried
	h := &Hold{
		Verdict: Trying, Blocking: &Object{Kind: "Node", Name: n.Name}, Until: t.Until,
		Because: fmt.Sprintf("node %s tries %s since %s, by %s", n.Name, t.Config, t.Begun.UTC().Format(time.RFC3339),
			cmp.Or(t.By, "somebody")),
		Do: fmt.Sprintf("wait, or end the trial: kubectl refit try --node %s --end", n.Name),
	}
	if t.Why != "" {
		h.Because += " (" + t.Why + ")"
	}
	until := t.Until.UTC().Format(time.RFC3339)
	switch {
	case !t.Ended.IsZero():
		h.Because += fmt.Sprintf("; goes back to %s: %s", t.From, t.Because)
		h.Do = "wait: the node goes back when the pool's maxUnavailable allows"
		if etcd := etcdHold(p, n); etcd != nil {
			h.Because += "; waits: " + etcd.Because
			h.Do = etcd.Do
		}
		if p.Paused {
			h.Do = "kubectl refit resume " + p.Name + ": the pool is paused, and the node waits to go back"
		}
	case t.Proved.IsZero():
		h.Because += "; goes back to " + t.From + " if it has not proved the configuration by " + until
	default:
		h.Because += "; proved, and goes back to " + t.From + " at " + until
	}
	return h
}

// TrialNote returns what to say of a trial beside another answer about the node: why it has not begun, or how the last
// one ended. It is empty if there is nothing to say.
func (p *Pool) TrialNote(n *Node, now time.Time) string {
	if n.Trial == nil && n.Tried == nil || n.OnTrial(p.Target) {
		return ""
	}
	s := p.TrialStep(n, now)
	if s.Begins {
		s.Waits = fmt.Sprintf("for its turn: maxUnavailable of pool %s is %d", p.Name, p.MaxUnavailable)
	}
	if s.Waits != "" {
		return "the node is to try " + n.Trial.Config + ", and waits: " + s.Waits
	}
	if t := n.Tried; t != nil && !t.Ended.IsZero() {
		ended := t.Ended.UTC().Format(time.RFC3339)
		return fmt.Sprintf("the node tried %s until %s: %s", t.Config, ended, t.Because)
	}
	return ""
}
