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
	failed   *progress.Hold // a gate past its deadline
	bypassed bool
	// back are the nodes that go back to what the whole pool had, by name.
	back map[string]bool
	// missing is that the nodes of a stage are not there, which holds the pool; nil: they are.
	missing *progress.Hold
	// shut is that no window is open, and maybe none will be; nil: one is.
	shut *progress.Hold
}

// rule finds what the policy lets a pool do, but for what other pools have to do with it. Where the pool's stage has a
// maxUnavailable, the pool gets it.
func (j *judge) rule() {
	p, pool := j.policy, j.pool
	// One that makes no sense otherwise still says what it forgives: nobody is turned round because of a slip. The pool's
	// own questions about failures are answered by that.
	j.rules = progress.Rules{
		Policy: j.name, Note: p.note(), FailureBudget: share(p.spec.FailureBudget, pool.Machines, false, 1),
	}
	pool.Rules = j.rules
	if p.problem != nil {
		j.rules.Hold = &progress.Hold{
			Verdict: progress.PolicyUnusable,
			Because: "the pool's RolloutPolicy makes no sense: " + message.OneLine(p.problem.Error()),
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
}

// lookAgain notes a time at which the rules change by themselves.
func (j *judge) lookAgain(at time.Time) {
	if at.After(j.now) && (j.rules.Next.IsZero() || at.Before(j.rules.Next)) {
		j.rules.Next = at
	}
}

// order is the pool's nodes in the order in which they take the places of stages: those that are at the target, as they
// came, and those on their way there, so that a stage keeps its nodes; then those that are least likely to hurt: a node
// on which something failed before comes last, and this process's own after all; then those that joined with the
// target, which prove nothing about nodes that are changed.
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

// standing is what decides about the place of a node before its turn does, what counts most first.
type standing struct {
	came  int
	ended time.Time
	// later are what has a node go after others, a bit each.
	later int
}

func (j *judge) standing(n *progress.Node) standing {
	s := standing{came: j.came(n), ended: j.ended(n)}
	for _, last := range [...]bool{n.Name == j.self, !j.pool.Tries(n), failedBefore(n), !n.Serving()} {
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

// ended is when the target was proved on a node, or failed, and in a far future where neither is seen yet. A node that
// a rollout sent before there was a policy takes no seat from those that came after.
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

// came ranks a node for a place of a stage: there or on its way, not sent yet, and joined with the target.
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

// seats are the nodes of each stage, the rest behind the last.
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

// stage finds the stage at work and holds the nodes of those behind it. A node that has to try the target again, since
// somebody took back that it failed there, goes before all stages: everybody waits for it.
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
		// Nodes of all stages go with a bypass, and go back: by the pool's own number.
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
			if !n.Updated(j.pool.Target) && !j.pool.Tries(n) && !j.back[n.Name] {
				j.rules.Holds[n.Name] = hold
			}
		}
	}
}

// passed is nil where the nodes of a stage have arrived, as far as the failure budget does not forgive it, and soaked.
// Else it is why those of later stages wait. A stage in which none arrived has proved nothing.
func (j *judge) passed(at int, nodes []*progress.Node) *progress.Hold {
	s := j.stages[at]
	var arrived []*progress.Node
	var ready time.Time
	for _, n := range nodes {
		switch {
		case n.Updated(j.pool.Target) && n.NotReady == "":
			arrived = append(arrived, n)
			since, waits := j.readySince(n)
			if waits {
				return j.comesFirst(s, n, "has not been seen ready there yet")
			}
			if hold := j.rules.Gated[n.Name]; hold != nil {
				return hold
			}
			if since.After(ready) {
				ready = since
			}
		case j.pool.FailedOn(n) && n.State == api.RolledBack && j.rules.FailureBudget > 1:
		case n.Updated(j.pool.Target):
			return j.comesFirst(s, n, "is not ready: "+n.NotReady)
		case n.Failing() && n.Desired == j.pool.Target:
			return j.comesFirst(s, n, "failed: "+cmp.Or(n.Reason, string(n.State)))
		default:
			return j.comesFirst(s, n, "is not updated yet")
		}
	}
	if len(nodes) > 0 && len(arrived) == 0 {
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

func (j *judge) orBypass() string {
	return fmt.Sprintf("; in an emergency: kubectl refit bypass %s --why TEXT", j.pool.Name)
}

// readySince is since when a node that is at the target is ready there. One that no rollout sent has been there for
// long enough. One that arrived and was not noted yet is waited for.
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

// soak finds the nodes that have arrived and use up maxUnavailable still.
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
			// Until it is seen ready there no time ends that.
			j.rules.Soaking[n.Name] = j.now.Add(time.Duration(j.spec.MinReadySeconds) * time.Second)
		case !since.IsZero() && end.After(j.now):
			j.rules.Soaking[n.Name] = end
			j.lookAgain(end)
		}
	}
}

// hold finds what of the pool itself keeps all its nodes from beginning: what needs a person comes first.
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

// depend adds that other pools come first, once these have their rules. What is waited for longest comes before the
// window, and what needs a person before both.
func (j *judge) depend() {
	if j.problem != nil || j.bypassed {
		return
	}
	h, first := j.rules.Hold, j.dependency()
	if first != nil && (h == nil || h.Verdict == progress.OutsideWindow || first.Verdict == progress.PolicyUnusable) {
		j.rules.Hold = first
	}
}

func (j *judge) closed(m moment) *progress.Hold {
	what := "no window is open"
	if m.black {
		what = strings.TrimSpace("blackout "+m.blackout) + " is in force"
	}
	if m.until.IsZero() {
		return &progress.Hold{ // nobody should wait for that
			Verdict: progress.PolicyUnusable, Blocking: policyObject(j.name),
			Because: what + ", and by spec.windows none will ever open again",
			Do:      "add a window (kubectl edit rolloutpolicy " + j.name + ")" + j.orBypass(),
		}
	}
	return &progress.Hold{
		Verdict: progress.OutsideWindow, Blocking: policyObject(j.name), Until: m.until,
		Because: fmt.Sprintf("%s; the next one opens at %s", what, m.until.UTC().Format(time.RFC3339)),
		Do:      "wait" + j.orBypass(),
	}
}

// dependency is a pool that has to be updated first. One of which a new configuration is being made is not.
func (j *judge) dependency() *progress.Hold {
	for _, name := range slices.Sorted(slices.Values(j.spec.DependsOn)) {
		other := j.all[name]
		blocking := &progress.Object{Kind: "MachineConfigPool", Name: name}
		switch {
		case other == nil:
			return &progress.Hold{
				Verdict: progress.PolicyUnusable, Blocking: policyObject(j.name),
				Because: fmt.Sprintf("spec.dependsOn names pool %s, which is not there", name),
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

// incomplete is what keeps a pool from being complete.
func incomplete(p *progress.Pool) string {
	text := fmt.Sprintf("%d of its %d nodes are updated", p.Updated, p.Machines)
	switch {
	case p.Target == "":
		return "it has no configuration yet"
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

// spent is that the configuration failed on as many nodes as may be, where the policy says how many; nil: it did not.
// A configuration that came back is quarantined at that: this is about nodes that can't get there.
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
		Do: fmt.Sprintf("mend what kubectl refit explain node/%s says, or change or revert the MachineConfigs of pool %s; "+
			"all of them are in the status of RolloutPolicy %s", failed[0], j.pool.Name, j.name),
	}
}

// some names the first of many.
func some(names []string) string {
	const most = 5
	if rest := len(names) - most; rest > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), rest)
	}
	return strings.Join(names, ", ")
}
