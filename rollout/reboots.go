// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// rebooted stands in the place of a configuration where a rollout is one of reboots: nodes go from pending to rebooted.
const (
	rebooted = "reboot"
	pending  = "pending"
)

// noPolicy is what counts for the reboots of a pool without a policy: people's orders, and no rule but the pool's own.
func noPolicy() *policy { return &policy{spec: &api.RolloutPolicySpec{}} }

// readReboots reads what the policy says of reboots.
func (p *policy) readReboots() error {
	spec := p.spec
	var errs []error
	switch spec.Reboots {
	case "", api.RebootsReport, api.RebootsRoll, api.RebootsNever, api.RebootsManual:
	default:
		errs = append(errs, fmt.Errorf("spec.reboots: %q is not one of Report, Roll, Never and Manual", spec.Reboots))
	}
	if m := spec.RebootMethod; m != "" && !slices.Contains(api.RebootMethods, m) {
		errs = append(errs, fmt.Errorf("spec.rebootMethod: %q is not one of Full, Soft, Kexec and Command", m))
	}
	if spec.Reboots == api.RebootsNever && spec.RebootWindows != nil {
		errs = append(errs, errors.New("spec.rebootWindows: has no use with reboots Never"))
	}
	times, err := readCalendar(spec.RebootWindows)
	if err != nil {
		errs = append(errs, errors.New(strings.ReplaceAll(err.Error(), "spec.windows", "spec.rebootWindows")))
	}
	p.rebootTimes = cmp.Or(times, p.calendar)
	return errors.Join(errs...)
}

// reboots is the rollout of reboots of one pool: its nodes in the place of those of a configuration.
type reboots struct {
	*judge

	real *progress.Pool
	mode api.RebootMode
	asks map[string]*progress.RebootAsk
	// begun is when the first of the causes came that the rollout is about. Reboots before that prove nothing.
	begun  time.Time
	failed []string
	// whole holds all nodes that are part of the rollout, and nobody holds those that a person has rebooted alone.
	whole *progress.Hold
}

// followReboots sets the pool's rules for reboots. real is the judge of the pool's configuration; nil if the pool has
// no policy, or more than one.
func (b *Book) followReboots(p *progress.Pool, real *judge, by map[string]*progress.Pool, now time.Time, self string) {
	mode := api.RebootsReport
	if real != nil {
		mode = cmp.Or(real.spec.Reboots, api.RebootsReport)
		p.Rules.RebootMode = mode
	}
	leaveToPeople(p, mode, real == nil || real.problem != nil)
	asks, busy := map[string]*progress.RebootAsk{}, false
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if ask := p.AskReboot(n, mode); ask != nil {
			asks[n.Name] = ask
		}
		busy = busy || n.RebootOrdered() != nil
	}
	if len(asks) == 0 && !busy {
		return
	}
	how := noPolicy()
	if real != nil {
		how = real.policy
	}
	like := *how // the order of the nodes that the policy remembers is that of a configuration's rollout
	like.last = nil
	r := &reboots{real: p, mode: mode, asks: asks}
	r.judge = &judge{policy: &like, pool: r.pool(), all: by, now: now, self: self, answers: b.answers}
	r.rule(real)
	b.asked = append(b.asked, r.asked...)
	p.Rules.Reboots = r.result()
	lookAgain(&p.Rules, r.rules.Next, now)
}

// leaveToPeople orders agents to commit configurations without a reboot, where the policy says so. A node whose
// configuration is committed already keeps the order when the policy changes: it reboots in its turn.
func leaveToPeople(p *progress.Pool, mode api.RebootMode, kept bool) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Committed() || mode == api.RebootsManual && !kept {
			if p.Rules.Orders == nil {
				p.Rules.Orders = make(map[string]api.Orders, len(p.Nodes))
			}
			o := p.Rules.Orders[n.Name]
			o.ManualReboots = true
			p.Rules.Orders[n.Name] = o
		}
	}
}

// pool returns the pool as a rollout of reboots sees it. It has the nodes that are to reboot, those that do, those that
// failed, and those that have proved the reboot since the rollout began. Shares are of all nodes of the real pool.
func (r *reboots) pool() *progress.Pool {
	real := r.real
	for _, name := range sortedKeys(r.asks) {
		ask := r.asks[name]
		if !ask.Alone && real.Rules.Kept[name] == nil && (r.begun.IsZero() || ask.Since.Before(r.begun)) {
			r.begun = ask.Since
		}
	}
	out := &progress.Pool{
		Name: real.Name, Target: rebooted, MaxUnavailable: real.MaxUnavailable, Labels: real.Labels, Etcd: real.Etcd,
		Left: real.Left,
	}
	out.Machines, out.Updated = real.Machines, real.Machines
	for i := range real.Nodes {
		n := real.Nodes[i]
		ordered := n.RebootOrdered() != nil
		text, since := n.RebootFailure()
		stops := text != "" && (ordered || r.asks[n.Name] != nil || !r.begun.IsZero() && r.begun.Before(since))
		if stops {
			r.failed = append(r.failed, n.Name)
		}
		proved := !r.begun.IsZero() && n.RebootedSince(r.begun) && r.asks[n.Name] == nil
		// The agent's own words are about configurations.
		n.Current, n.Desired, n.State, n.Previous = pending, pending, api.Done, ""
		n.Quarantined, n.Arrived, n.Joining, n.Reason = nil, api.Arrival{}, false, ""
		n.Awaited, n.Orders, n.RebootWanted, n.Rebooting = api.Awaited{}, api.Orders{}, nil, false
		switch {
		case ordered:
			n.Desired, n.State = rebooted, api.Working
		case r.asks[n.Name] != nil:
		case stops:
			n.Desired, n.State, n.Reason = rebooted, api.Degraded, text
		case proved:
			n.Current, n.Desired = rebooted, rebooted
			n.Arrived = api.Arrival{Config: rebooted, Since: n.Rebooted.Ended}
		default:
			continue
		}
		if n.Current != rebooted {
			out.Updated--
		}
		out.Nodes = append(out.Nodes, n)
	}
	return out
}

// rule finds what holds the rollout of reboots.
func (r *reboots) rule(real *judge) {
	j, pool := r.judge, r.judge.pool
	j.rules = progress.Rules{
		Policy: j.name, FailureBudget: 1, Absent: r.real.Rules.Absent, Uncounted: r.real.Rules.Uncounted,
		Kept: map[string]*progress.Hold{},
	}
	for name, hold := range r.real.Rules.Kept {
		if hold.Verdict != progress.Skipped { // that is about one configuration
			j.rules.Kept[name] = hold
		}
	}
	j.back = map[string]bool{}
	pool.Rules = j.rules
	places := j.order()
	j.soak()
	j.gateNodes()
	j.stage(places)
	j.etcd()
	if r.rebootTimes != nil {
		m := r.rebootTimes.at(j.now)
		j.lookAgain(m.until)
		if !m.open {
			j.calendar = r.rebootTimes
			j.shut = j.closed(m)
			j.shut.Do = "wait; in an emergency: kubectl refit reboot NODE --why TEXT --bypass"
		}
	}
	r.whole = cmp.Or(r.unusable(real), r.stopped(), j.failed, r.comesFirst())
	if r.whole == nil && j.problem == nil {
		r.whole = j.dependency()
	}
}

// unusable returns the hold of a policy that makes no sense. Windows of configurations that never open are another
// matter.
func (r *reboots) unusable(real *judge) *progress.Hold {
	h := r.real.Rules.Hold
	if h == nil || h.Verdict != progress.PolicyUnusable || real != nil && h == real.shut {
		return nil
	}
	return h
}

// stopped returns the hold for a reboot that failed. No other node is rebooted until a person has seen to that.
func (r *reboots) stopped() *progress.Hold {
	if len(r.failed) == 0 {
		return nil
	}
	first := r.failed[0]
	at := slices.IndexFunc(r.real.Nodes, func(n progress.Node) bool { return n.Name == first })
	text, _ := r.real.Nodes[at].RebootFailure()
	return &progress.Hold{
		Verdict: progress.RebootFailed, Blocking: &progress.Object{Kind: "Node", Name: first},
		Because: fmt.Sprintf("the reboot of node %s failed: %s", first, text),
		Do: fmt.Sprintf("repair the host, and have it reboot again: kubectl refit retry %s; the other nodes follow then",
			first),
	}
}

// comesFirst returns a hold while the pool's configuration is rolled out. A configuration may reboot the nodes anyway.
func (r *reboots) comesFirst() *progress.Hold {
	p := r.real
	if p.Target == "" || p.Quarantine() != nil || p.Rules.Hold != nil || p.Paused {
		return nil
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Updated(p.Target) || n.Committed() || p.Rules.Kept[n.Name] != nil || p.Rules.Absent[n.Name] || p.FailedOn(n) {
			continue
		}
		return &progress.Hold{
			Verdict: progress.WaitsForTurn, Blocking: &progress.Object{Kind: "MachineConfigPool", Name: p.Name},
			Because: fmt.Sprintf("configuration %s comes first, and node %s does not have it yet", p.Target, n.Name),
			Do:      "wait, or see kubectl refit explain pool/" + p.Name,
		}
	}
	return nil
}

// hold returns why a node that is to reboot may not begin, and nil if it may.
func (r *reboots) hold(n *progress.Node, ask *progress.RebootAsk) *progress.Hold {
	p := r.real
	at := func(v progress.Verdict, because, do string) *progress.Hold {
		return &progress.Hold{
			Verdict: v, Blocking: &progress.Object{Kind: "Node", Name: n.Name}, Because: because, Do: do,
		}
	}
	own := r.rules.Holds[n.Name]
	switch {
	case r.rules.Kept[n.Name] != nil:
		return r.rules.Kept[n.Name]
	case p.Paused:
		return &progress.Hold{
			Verdict: progress.Paused, Blocking: &progress.Object{Kind: "MachineConfigPool", Name: p.Name},
			Because: "pool " + p.Name + " is paused", Do: "kubectl refit resume " + p.Name,
		}
	case r.mode == api.RebootsNever && !ask.Bypass:
		return &progress.Hold{
			Verdict: progress.RebootWanted, Blocking: policyObject(r.name),
			Because: "RolloutPolicy " + r.name + " has reboots: Never",
			Do:      "kubectl refit reboot " + n.Name + " --why TEXT --bypass, or change spec.reboots of the policy",
		}
	case r.whole != nil && !ask.Alone && (r.whole.Verdict != progress.WaitsForTurn || !n.Committed()):
		return r.whole
	case r.shut != nil && !ask.Bypass:
		return r.shut
	case own != nil && (!ask.Alone || own.Verdict == progress.EtcdUnhealthy):
		return own
	case n.NotReady != "":
		return at(progress.NotReady, "node "+n.Name+" is not ready: "+n.NotReady, "wait, or repair the node")
	case n.Failing():
		return at(progress.Degraded, fmt.Sprintf("node %s is %s: %s", n.Name, n.State, n.Reason),
			"see kubectl refit explain node/"+n.Name)
	case !n.Settled() && !n.Committed():
		return at(progress.WaitsForTurn, "node "+n.Name+" is on its way to "+n.Desired,
			"wait, or see kubectl refit explain node/"+n.Name)
	}
	return nil
}

// result returns the rules for reboots.
func (r *reboots) result() *progress.Reboots {
	out := &progress.Reboots{
		Asks: r.asks, Holds: map[string]*progress.Hold{}, Failed: r.failed, Stage: r.rules.Stage, Places: r.rules.Places,
		MaxUnavailable: r.judge.pool.MaxUnavailable, Drain: r.spec.Drain, Method: r.spec.RebootMethod,
		TakesBack: r.rebootTimes != nil && r.rebootTimes.onClose != api.CloseFinishes,
	}
	for i := range r.real.Nodes {
		n := &r.real.Nodes[i]
		if ask := r.asks[n.Name]; ask != nil {
			if hold := r.hold(n, ask); hold != nil {
				out.Holds[n.Name] = hold
			}
		}
		_, soaks := r.rules.Soaking[n.Name]
		if soaks || r.rules.Gated[n.Name] != nil {
			out.Occupied = append(out.Occupied, n.Name)
		}
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
