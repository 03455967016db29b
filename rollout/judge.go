// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
)

// judge finds the rules of one pool.
type judge struct {
	*policy

	pool  *progress.Pool
	all   map[string]*progress.Pool
	now   time.Time
	self  string
	rules progress.Rules

	answers  Answers
	asked    []Ask
	failed   *progress.Hold // the hold of a gate past its deadline
	bypassed bool
	// back are the nodes that go back to what the whole pool had, by name.
	back map[string]bool
	// missing holds the pool because a stage has no nodes; nil if no such stage exists.
	missing *progress.Hold
	// shut holds the pool because no window is open, and perhaps none will be; nil if one is open.
	shut *progress.Hold
}

// rule finds what the policy lets a pool do, apart from dependencies on other pools. If the pool's stage has a
// maxUnavailable, the pool gets it.
func (j *judge) rule() {
	p, pool := j.policy, j.pool
	// A policy that makes no sense otherwise still sets the failure budget, so that a typing error turns no node round.
	// The pool's own questions about failures are answered by that budget.
	j.rules = progress.Rules{
		Policy: j.name, Note: p.note(), FailureBudget: share(p.spec.FailureBudget, pool.Machines, false, 1),
	}
	keep(pool, &j.rules, j.now)
	j.passOver()
	pool.Rules = j.rules
	if p.problem != nil {
		j.rules.Hold = &progress.Hold{
			Verdict: progress.PolicyUnusable,
			Because: "the pool's RolloutPolicy is not valid: " + message.OneLine(p.problem.Error()),
			Do:      "correct it (kubectl edit rolloutpolicy " + p.name + ")",
		}
		j.rules.Orders = kept(pool)
		return
	}
	j.bypassed = pool.Bypass != nil && api.SameContent(pool.Bypass.Config, pool.Target)
	places := j.order()
	j.findBack()
	j.findMissing()
	if !j.bypassed && len(j.back) == 0 {
		j.soak()
		j.gateNodes()
	}
	j.stage(places)
	j.hold()
	j.etcd()
	j.drain()
	j.stageAhead(places)
	j.waitForPins(places)
}

// lookAgain notes a time at which the rules change by themselves.
func (j *judge) lookAgain(at time.Time) {
	lookAgain(&j.rules, at, j.now)
}

func lookAgain(r *progress.Rules, at, now time.Time) {
	if at.After(now) && (r.Next.IsZero() || at.Before(r.Next)) {
		r.Next = at
	}
}

// order returns the pool's nodes in the order in which they take the seats of stages:
//
//   - Nodes at the target, in the order of their arrival, and nodes on their way there. So a stage keeps its nodes.
//   - Nodes that are least likely to do harm. A node on which something failed before comes late, and the node of
//     this process later. Nodes that the rollout goes on without come last.
//   - Nodes that joined with the target. They prove nothing about nodes that are changed.
func (j *judge) order() []*progress.Node {
	of := j.pool.Nodes
	ranks := make([]standing, len(of))
	for i := range of {
		ranks[i] = j.standing(&of[i])
	}
	nodes := j.sorted(func(a, b int) int {
		if order := ranks[a].compare(&ranks[b]); order != 0 {
			return order
		}
		return progress.Turn(&of[a], &of[b])
	})
	j.rules.Places = make(map[string]int, len(nodes))
	for i, n := range nodes {
		j.rules.Places[n.Name] = i
	}
	return nodes
}

// standing is what decides about the place of a node before progress.Turn does. What counts most comes first.
type standing struct {
	came  int
	ended time.Time
	// later has one bit for each reason to go after other nodes.
	later int
}

func (j *judge) standing(n *progress.Node) standing {
	s := standing{came: j.came(n), ended: j.ended(n)}
	for _, last := range [...]bool{j.absent(n), n.Name == j.self, !j.pool.Retries(n), failedBefore(n), !n.Serving()} {
		s.later <<= 1
		if last {
			s.later++
		}
	}
	return s
}

func (s *standing) compare(other *standing) int {
	if s.came != other.came {
		return cmp.Compare(s.came, other.came)
	}
	if order := s.ended.Compare(other.ended); order != 0 {
		return order
	}
	return cmp.Compare(s.later, other.later)
}

// ended returns when the target was proved on a node, or failed there. If neither is known yet, it returns a time in
// the far future. A node that was sent before the pool had a policy takes no seat from nodes that were sent later.
func (j *judge) ended(n *progress.Node) time.Time {
	never := j.now.Add(366 * 24 * time.Hour)
	if n.Updated(j.pool.Target) {
		since, waits := j.readySince(n)
		if waits {
			return never.Add(-time.Second)
		}
		if since.IsZero() {
			return never.Add(-2 * time.Second)
		}
		return n.Arrived.Since
	}
	for _, q := range n.Quarantined {
		if n.State == api.RolledBack && api.SameContent(q.Config, j.pool.Target) {
			return q.Since
		}
	}
	return never
}

// came ranks a node for a seat in a stage. Nodes at the target or on their way come first, then nodes not sent yet,
// then nodes that joined with the target.
func (j *judge) came(n *progress.Node) int {
	switch {
	case n.Desired != j.pool.Target:
		return 1
	case j.pool.Target != j.pool.Previous && n.Updated(j.pool.Target) && n.Arrived.Config != j.pool.Target &&
		n.Previous == "":
		return 2
	}
	return 0
}

func failedBefore(n *progress.Node) bool { return n.Failing() || len(n.Quarantined) > 0 }

// seats returns the nodes of each stage, and last the nodes of no stage.
func (j *judge) seats(nodes []*progress.Node) [][]*progress.Node {
	out := make([][]*progress.Node, len(j.stages)+1)
	room := make([]int, len(j.stages))
	for i, s := range j.stages {
		all := j.pool.Machines
		room[i] = max(0, share(s.spec.Nodes, all, true, all)-j.pool.Left.Seated(i))
	}
	for _, n := range nodes {
		at := slices.IndexFunc(j.stages, func(s stage) bool { return s.selector.Matches(labels.Set(n.Labels)) })
		for at >= 0 && at < len(j.stages) && (room[at] == 0 || !j.stages[at].selector.Matches(labels.Set(n.Labels))) {
			at++
		}
		if at < 0 {
			at = len(j.stages)
		}
		if at < len(j.stages) {
			room[at]--
		}
		out[at] = append(out[at], n)
	}
	return out
}

// stage finds the stage at work and holds the nodes of later stages. A node goes before all stages if it has to try the
// target again, since a person lifted its failure. All other nodes wait for it.
func (j *judge) stage(nodes []*progress.Node) {
	if j.pool.Updated == j.pool.Machines {
		if !j.bypassed {
			j.unproved(nodes)
		}
		return
	}
	if len(j.stages) == 0 {
		return
	}
	seats := j.seats(nodes)
	at := 0
	var hold *progress.Hold
	for ; at < len(j.stages); at++ {
		if hold = j.passed(at, seats[at]); hold != nil {
			break
		}
	}
	if at < len(j.stages) {
		j.rules.Stage = j.stages[at].name
		// With a bypass, and when nodes go back, nodes of all stages go by the pool's own maxUnavailable.
		if !progress.ControlPlane(j.pool.Name) && !j.bypassed && len(j.back) == 0 && j.pool.Quarantine() == nil {
			j.pool.MaxUnavailable = share(j.stages[at].spec.MaxUnavailable, j.pool.Machines, false, j.pool.MaxUnavailable)
		}
	} else {
		j.rules.Stage = restStage
	}
	j.rules.Seats, j.rules.At = seats, at
	if hold == nil || j.bypassed {
		return
	}
	j.rules.Holds = map[string]*progress.Hold{}
	for _, later := range seats[at+1:] {
		for _, n := range later {
			if !n.Updated(j.pool.Target) && !j.pool.Retries(n) && !j.back[n.Name] {
				j.rules.Holds[n.Name] = hold
			}
		}
	}
}

// passed returns nil if the nodes of a stage have arrived and soaked, except for failures that the failure budget
// allows. Otherwise it returns why later stages wait. A stage in which no node arrived has proved nothing.
func (j *judge) passed(at int, nodes []*progress.Node) *progress.Hold {
	s := j.stages[at]
	var arrived []*progress.Node
	var ready time.Time
	absent := 0
	for _, n := range nodes {
		switch {
		case n.Updated(j.pool.Target) && n.NotReady == "":
			arrived = append(arrived, n)
			since, waits := j.readySince(n)
			if waits {
				return j.comesFirst(s, n, "has not been ready since")
			}
			if hold := j.rules.Gated[n.Name]; hold != nil {
				return hold
			}
			if since.After(ready) {
				ready = since
			}
		case j.pool.FailedOn(n) && n.State == api.RolledBack && j.rules.FailureBudget > 1:
		case j.absent(n):
			absent++
		case n.Updated(j.pool.Target):
			return j.comesFirst(s, n, "is not ready: "+n.NotReady)
		case n.Failing() && n.Desired == j.pool.Target:
			return j.comesFirst(s, n, "failed: "+cmp.Or(n.Reason, string(n.State)))
		default:
			return j.comesFirst(s, n, j.notYet())
		}
	}
	switch {
	case len(nodes) == 0 || len(arrived) > 0:
	case absent > 0:
		hold := j.comesFirst(s, nodes[0], "did not prove the configuration, nor did any other node of the stage")
		hold.Do = "have one node of the stage prove it: kubectl refit explain node/" + nodes[0].Name + j.orBypass()
		return hold
	default:
		return j.comesFirst(s, nodes[0], "failed, as all nodes of the stage did")
	}
	end := ready.Add(time.Duration(s.spec.SoakSeconds) * time.Second)
	if !ready.IsZero() && end.After(j.now) {
		return j.soaking("stage "+s.name, end)
	}
	if ready.IsZero() {
		end = ready
	}
	if j.bypassed || len(arrived) == 0 || !j.asks() {
		return nil
	}
	return j.gates(Question{Stage: s.name}, s.spec.Gates, arrived, end)
}

func (j *judge) soaking(what string, end time.Time) *progress.Hold {
	j.lookAgain(end)
	return &progress.Hold{
		Verdict: progress.Soaking, Blocking: policyObject(j.name), Until: end,
		Because: fmt.Sprintf("%s has arrived and soaks until %s", what, end.UTC().Format(time.RFC3339)),
		Do:      "wait" + j.orBypass(),
	}
}

func (j *judge) comesFirst(s stage, n *progress.Node, why string) *progress.Hold {
	hold := j.waits(n, why)
	hold.Because = fmt.Sprintf("stage %s comes first: %s", s.name, hold.Because)
	return hold
}

func (j *judge) waits(n *progress.Node, why string) *progress.Hold {
	return &progress.Hold{
		Verdict: progress.WaitsForStage, Blocking: &progress.Object{Kind: "Node", Name: n.Name},
		Because: fmt.Sprintf("node %s %s", n.Name, why),
		Do:      "wait, or see kubectl refit explain node/" + n.Name,
	}
}

// notYet is what a node has not done that a stage waits for.
func (j *judge) notYet() string {
	if j.pool.Target == rebooted {
		return "has not rebooted yet"
	}
	return "is not updated yet"
}

// orBypass is what to do where waiting is no option. A rollout of reboots has people order single reboots instead.
func (j *judge) orBypass() string {
	if j.pool.Target == rebooted {
		return "; in an emergency: kubectl refit reboot NODE --why TEXT"
	}
	return fmt.Sprintf("; in an emergency: kubectl refit bypass %s --why TEXT", j.pool.Name)
}

// readySince returns since when a node at the target is ready there. A node that no rollout sent has been there for
// long enough. A node that arrived and was not noted yet is waited for.
func (j *judge) readySince(n *progress.Node) (since time.Time, waits bool) {
	if n.Arrived.Config != j.pool.Target {
		return time.Time{}, false
	}
	if n.Arrived.Since.IsZero() {
		return time.Time{}, true
	}
	if n.ReadySince.After(n.Arrived.Since) {
		return n.ReadySince, false
	}
	return n.Arrived.Since, false
}

// soak finds the nodes that have arrived and still use up maxUnavailable.
func (j *judge) soak() {
	if j.spec.MinReadySeconds == 0 {
		return
	}
	j.rules.Soaking = map[string]time.Time{}
	for i := range j.pool.Nodes {
		n := &j.pool.Nodes[i]
		if !n.Updated(j.pool.Target) {
			continue
		}
		since, waits := j.readySince(n)
		end := since.Add(time.Duration(j.spec.MinReadySeconds) * time.Second)
		switch {
		case waits:
			// No time ends the soak until the node is seen ready at the target.
			j.rules.Soaking[n.Name] = j.now.Add(time.Duration(j.spec.MinReadySeconds) * time.Second)
		case !since.IsZero() && end.After(j.now):
			j.rules.Soaking[n.Name] = end
			j.lookAgain(end)
		}
	}
}

// hold finds what in the pool itself keeps all its nodes from beginning. Holds that need a person come first.
func (j *judge) hold() {
	if j.calendar != nil {
		m := j.calendar.at(j.now)
		j.lookAgain(m.until)
		if !m.open {
			j.rules.NextWindow = m.until
			if !j.bypassed {
				j.shut, j.rules.OnClose = j.closed(m), j.calendar.onClose
			}
		}
	}
	j.rules.Hold = cmp.Or(j.spent(), j.failed, j.missing, j.shut)
}

// depend adds a hold for pools that come first, after these have their rules. Such a hold replaces a hold for a window.
// A dependency that makes no sense replaces any hold, since it needs a person.
func (j *judge) depend() {
	if j.problem != nil || j.bypassed {
		return
	}
	h, first := j.rules.Hold, j.dependency()
	if first != nil && (h == nil || h.Verdict == progress.OutsideWindow || first.Verdict == progress.PolicyUnusable) {
		j.rules.Hold = first
	}
}

// windowTime is the layout of the times of windows. Readers see times that end with Z in their own time zone. People
// have written windows in the time zone of the policy, so these times have an offset, also in UTC.
const windowTime = "2006-01-02T15:04:05-07:00"

func (j *judge) closed(m moment) *progress.Hold {
	what := "no window is open"
	if m.black {
		what = strings.TrimSpace("blackout "+m.blackout) + " is in force"
	}
	if m.until.IsZero() {
		return &progress.Hold{ // waiting for that would be useless
			Verdict: progress.PolicyUnusable, Blocking: policyObject(j.name),
			Because: what + ", and spec.windows opens none ever again",
			Do:      "add a window (kubectl edit rolloutpolicy " + j.name + ")" + j.orBypass(),
		}
	}
	return &progress.Hold{
		Verdict: progress.OutsideWindow, Blocking: policyObject(j.name), Until: m.until,
		Because: fmt.Sprintf("%s; the next one opens at %s", what, m.until.In(j.calendar.zone).Format(windowTime)),
		Do:      "wait" + j.orBypass(),
	}
}

// dependency returns a hold for a pool that has to be updated first. A pool whose new configuration is being rendered
// is not updated.
func (j *judge) dependency() *progress.Hold {
	for _, name := range slices.Sorted(slices.Values(j.spec.DependsOn)) {
		other := j.all[name]
		blocking := &progress.Object{Kind: "MachineConfigPool", Name: name}
		switch {
		case other == nil:
			return &progress.Hold{
				Verdict: progress.PolicyUnusable, Blocking: policyObject(j.name),
				Because: fmt.Sprintf("spec.dependsOn names pool %s, which does not exist", name),
				Do:      "correct it (kubectl edit rolloutpolicy " + j.name + ")",
			}
		case other.Rendering:
			return &progress.Hold{
				Verdict: progress.WaitsForPool, Blocking: blocking,
				Because: fmt.Sprintf("pool %s comes first, and its configuration is about to change", name),
				Do:      "wait, or see kubectl refit explain pool/" + name,
			}
		case !other.Complete():
			return &progress.Hold{
				Verdict: progress.WaitsForPool, Blocking: blocking,
				Because: fmt.Sprintf("pool %s comes first: %s", name, incomplete(other)),
				Do:      "wait, or see kubectl refit explain pool/" + name,
			}
		}
	}
	return nil
}

// incomplete returns what keeps a pool from being complete.
func incomplete(p *progress.Pool) string {
	text := fmt.Sprintf("%d of its %d nodes are updated", p.Updated, p.Machines)
	switch {
	case p.Target == "":
		return "the pool has no configuration yet"
	case p.Updated < p.Machines:
	case p.Rules.Unproved != nil:
		return text + ", and " + p.Rules.Unproved.Because
	default:
		for _, n := range p.Nodes {
			if n.NotReady != "" || n.Unavailable() {
				return text + ", and node " + n.Name + " does not serve"
			}
		}
	}
	return text
}

// spent returns a hold if the configuration failed on as many nodes as the policy's failure budget allows. spent
// returns nil if not, or if the policy has no budget. A configuration that rolled back so often is quarantined; spent
// is about nodes that can't get there.
func (j *judge) spent() *progress.Hold {
	if j.spec.FailureBudget == nil {
		return nil
	}
	failed := j.pool.Failed()
	if len(failed) < j.rules.FailureBudget {
		return nil
	}
	return &progress.Hold{
		Verdict: progress.FailureBudget, Blocking: &progress.Object{Kind: "Node", Name: failed[0]},
		Because: fmt.Sprintf("%s failed on %d of at most %d nodes: %s", j.pool.Target, len(failed), j.rules.FailureBudget,
			some(failed)),
		Do: fmt.Sprintf("correct what kubectl refit explain node/%s names, or change or revert the MachineConfigs of pool "+
			"%s; the status of RolloutPolicy %s lists all failed nodes", failed[0], j.pool.Name, j.name),
	}
}

// some returns the first of many names, and the number of the others.
func some(names []string) string {
	const most = 5
	if rest := len(names) - most; rest > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), rest)
	}
	return strings.Join(names, ", ")
}
