// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"slices"
	"time"

	"github.com/noderefit/noderefit/api"
)

// gateFailed returns the quarantine of the target that a gate of this pool's policy caused, without a failed verdict.
// gateFailed returns nil if no gate did.
func (p *Pool) gateFailed() *api.Quarantine {
	at := slices.IndexFunc(p.Quarantined, func(q api.Quarantine) bool {
		return q.Gate != "" && api.SameContent(q.Config, p.Target)
	})
	if at < 0 {
		return nil
	}
	return &p.Quarantined[at]
}

// GoesBack reports whether nodes that have the target go back to what all nodes had before, because a gate was closed
// at its deadline.
func (p *Pool) GoesBack() bool {
	return p.gateFailed() != nil && p.Previous != "" && !api.SameContent(p.Previous, p.Target) && !p.Refuses(p.Previous)
}

// Backwards returns the same pool as if the previous configuration were its target. No policy holds that up, because
// going back is a repair.
func (p *Pool) Backwards() Pool {
	back := *p
	back.Target, back.Rendering, back.Bypass = p.Previous, false, nil
	holds := map[string]*Hold{}
	for name, h := range p.Rules.Holds {
		if h.Verdict == EtcdUnhealthy {
			holds[name] = h // going back must not cost etcd its quorum
		}
	}
	back.Rules = Rules{
		Policy: p.Rules.Policy, FailureBudget: p.Rules.FailureBudget, Orders: p.Rules.Orders, Holds: holds,
		Kept: p.Rules.Kept, Trials: p.Rules.Trials, Absent: p.Rules.Absent, Uncounted: p.Rules.Uncounted,
	}
	return back
}

// LiftedAt returns when a person last lifted a failure of the configuration; zero if no lift is known.
func (p *Pool) LiftedAt(config string) time.Time {
	var last time.Time
	for _, l := range p.lifted {
		if api.SameContent(l.Config, config) && l.Since.After(last) {
			last = l.Since
		}
	}
	return last
}

// WhyRefused returns a sentence on why a configuration is offered to no node.
func WhyRefused(q *api.Quarantine) string {
	if q.Gate != "" {
		return fmt.Sprintf("%s is offered to no node: gate %s %s", q.Config, q.Gate, q.Reason)
	}
	return fmt.Sprintf("%s failed on node %s and is offered to no other node: %s", q.Config, q.Node, q.Reason)
}

// goesBack answers for a node that has a target whose gate has failed, until the node's turn to go back comes.
func (r *Report) goesBack(n *nodeReport) *Answer {
	if !n.Updated(n.pool.Target) || !n.pool.GoesBack() || n.pool.Rules.Kept[n.Name] != nil {
		return nil
	}
	q := n.pool.gateFailed()
	a := &Answer{
		Verdict: GoingBack, Blocking: &Object{Kind: "MachineConfig", Name: q.Config}, Since: q.Since,
		Because: fmt.Sprintf("the node goes back to %s when its turn comes: gate %s %s", n.pool.Previous, q.Gate, q.Reason),
		Do:      "wait, or, when the cause is gone: kubectl refit quarantine lift " + n.pool.Name,
	}
	if n.pool.Paused {
		a.Do = "kubectl refit resume " + n.pool.Name + ": the node goes back then"
	}
	return a
}

// gated answers for a node that has arrived and whose gates are closed.
func (r *Report) gated(n *nodeReport) *Answer {
	h := n.pool.Rules.Gated[n.Name]
	if h == nil || !n.Updated(n.pool.Target) || h.Verdict != GateClosed && h.Verdict != GateFailed {
		return nil
	}
	return n.pool.held(h)
}

// back returns a text about a node that is on its way back after a failed gate; empty for any other node.
func (p *poolReport) back(n *nodeReport) string {
	q := p.gateFailed()
	if q == nil || n.Current != p.Target || n.Desired != p.Previous {
		return ""
	}
	return fmt.Sprintf("; the node goes back: gate %s %s", q.Gate, q.Reason)
}

// backText returns a text with the number of nodes that are still to go back; empty if no node is.
func (p *poolReport) backText() string {
	left := 0
	for _, n := range p.Nodes {
		left += rank(n.Current == p.Target)
	}
	if left == 0 || !p.GoesBack() {
		return ""
	}
	return fmt.Sprintf("; %s still to go back to %s", number(left, "node"), p.Previous)
}
