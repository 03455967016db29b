// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
)

// keep adds to the rules which nodes of a pool people hold or skip, or have try a configuration, and which another
// manager may be draining. A node that is skipped
// and at rest takes no place of maxUnavailable, as the person who skips a dead node wants. A node that is held does:
// that person may be at work on the host. On the control plane each member of etcd counts, whatever people say.
func keep(p *progress.Pool, rules *progress.Rules, now time.Time) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		keepTrial(p, n, rules, now)
		keepBeside(p, n, rules)
		if !n.Hold.Holds(p.Target, now) || n.Hold.Config != "" && n.Updated(p.Target) {
			continue
		}
		begin(rules)
		rules.Kept[n.Name] = keptBy(n, p.Target)
		rules.Uncounted[n.Name] = n.Hold.Config != "" && rests(n) && !progress.ControlPlane(p.Name)
		lookAgain(rules, n.Hold.Until, now)
	}
}

// keepBeside keeps a node that bootc-operator may be draining. The node takes a place of maxUnavailable like any node
// that does not serve. Which cordon is bootc-operator's is on no Node, so each cordon of others counts.
func keepBeside(p *progress.Pool, n *progress.Node, rules *progress.Rules) {
	if !n.Bootc || !n.Cordoned || n.Cordon != nil || !n.Settled() || n.Updated(p.Target) {
		return
	}
	begin(rules)
	rules.Kept[n.Name] = &progress.Hold{Verdict: progress.BootcOperator,
		Blocking: &progress.Object{Kind: "BootcNode", Name: n.Name},
		Because: "bootc-operator manages the OS of node " + n.Name + ", and somebody other than the agent has cordoned the " +
			"node: bootc-operator may be draining it",
		Do: "see kubectl describe bootcnode " + n.Name + "; if the cordon is a person's: kubectl uncordon " + n.Name}
}

// begin makes the maps of a pool in which a node is kept.
func begin(rules *progress.Rules) {
	if rules.Kept == nil {
		rules.Kept, rules.Uncounted = map[string]*progress.Hold{}, map[string]bool{}
	}
}

// keepTrial keeps a node that tries a configuration.
func keepTrial(p *progress.Pool, n *progress.Node, rules *progress.Rules, now time.Time) {
	if n.Trial == nil && n.Tried == nil {
		return
	}
	lookAgain(rules, p.TrialStep(n, now).Next, now)
	if hold := p.TrialHold(n); hold != nil {
		begin(rules)
		rules.Kept[n.Name] = hold
	}
}

// noteTrials notes the trials that wait or are over, and why a node does not go back yet, after the pool has its rules.
func noteTrials(p *progress.Pool, now time.Time) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if kept := p.Rules.Kept[n.Name]; kept != nil && kept.Verdict == progress.Trying {
			p.Rules.Kept[n.Name] = p.TrialHold(n)
		}
		note := p.TrialNote(n, now)
		if note == "" {
			continue
		}
		if p.Rules.Trials == nil {
			p.Rules.Trials = map[string]string{}
		}
		p.Rules.Trials[n.Name] = note
	}
}

// rests reports whether nothing is left to do on a skipped node: the node is at rest, or went back and serves. A node
// that is not ready cannot come to rest: it has only to be told to stay, or to have failed.
func rests(n *progress.Node) bool {
	switch {
	case n.Settled():
		return true
	case n.NotReady != "":
		return n.Desired == n.Current || n.Failing()
	}
	return n.State == api.RolledBack && n.Serving()
}

// keptBy returns the hold of a node that a person holds, or skips for a target.
func keptBy(n *progress.Node, target string) *progress.Hold {
	by := cmp.Or(message.OneLine(n.Hold.By), "somebody")
	if !n.Hold.Since.IsZero() {
		by += " since " + n.Hold.Since.UTC().Format(time.RFC3339)
	}
	if !n.Hold.Until.IsZero() {
		by += " until " + n.Hold.Until.UTC().Format(time.RFC3339)
	}
	h := &progress.Hold{
		Verdict: progress.HeldByPerson, Blocking: &progress.Object{Kind: "Node", Name: n.Name}, Until: n.Hold.Until,
		Because: fmt.Sprintf("node %s is held by %s: %s", n.Name, by, message.OneLine(n.Hold.Why)),
		Do:      "to end the hold: kubectl refit release " + n.Name,
	}
	if n.Hold.Config != "" {
		h.Verdict, h.Because = progress.Skipped, fmt.Sprintf("node %s is skipped for %s by %s: %s", n.Name, target, by,
			message.OneLine(n.Hold.Why))
		h.Do = "to send the node after all: kubectl refit retry " + n.Name
	}
	return h
}

// passOver finds the nodes that the policy passes over, because their kubelet has not been ready for long enough and
// they have not begun. A node that has begun may be dead by the configuration itself: such a node counts for as long as
// it is not ready. A node whose disk is full, or whose network is away, is not dead: its agent would drain it.
func (j *judge) passOver() {
	spec := j.spec.NotReady
	if spec == nil || progress.ControlPlane(j.pool.Name) {
		return
	}
	after := time.Duration(spec.PassOverAfterSeconds) * time.Second
	for i := range j.pool.Nodes {
		n := &j.pool.Nodes[i]
		begun := n.Current == j.pool.Target || n.Desired == j.pool.Target && n.State != api.Done && n.State != ""
		if !n.Dead() || n.NotReadySince.IsZero() || begun {
			continue
		}
		end := n.NotReadySince.Add(after)
		if end.After(j.now) {
			lookAgain(&j.rules, end, j.now)
			continue
		}
		if j.rules.Absent == nil {
			j.rules.Absent = map[string]bool{}
		}
		j.rules.Absent[n.Name] = true
		if !spec.Counts {
			if j.rules.Uncounted == nil {
				j.rules.Uncounted = map[string]bool{}
			}
			j.rules.Uncounted[n.Name] = true
		}
	}
}

// absent reports whether stages go on without the node, as long as the node has not arrived.
func (j *judge) absent(n *progress.Node) bool {
	return !n.Updated(j.pool.Target) && (j.rules.Kept[n.Name] != nil || j.rules.Absent[n.Name])
}
