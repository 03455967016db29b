// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

const (
	cfgA = "rendered-worker-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	cfgB = "rendered-worker-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	cfgC = "rendered-worker-cccccccccccccccccccccccccccccccc"
)

var then = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// hostAt returns a host with a record.
func hostAt(committed, pending string, phase transaction.Phase, state transaction.State) *host.Status {
	s := &host.Status{State: state, Phase: string(phase)}
	s.Config.Committed, s.Config.Pending = committed, pending
	return s
}

func rebootPlan() *plan.Plan {
	return &plan.Plan{Current: cfgA, Desired: cfgB, Drain: true, Reboot: true,
		Changes: []plan.Change{{Kind: plan.Kargs, Append: []string{"quiet"}}},
		Actions: []plan.Action{{Type: plan.ActionDrain, Because: "kernelArguments"}, {Type: plan.ActionReboot, Because: "kernelArguments"}}}
}

func livePlan() *plan.Plan {
	return &plan.Plan{Current: cfgA, Desired: cfgB, Changes: []plan.Change{{Kind: plan.File, Path: "/etc/a", Op: plan.Add}},
		Actions: []plan.Action{{Type: plan.ActionRestart, Service: "crio.service", Because: "/etc/a"}}}
}

// stages are situations, one for each phase, and changes are events that may happen in any of them.
var stages = map[Phase]func() *situation{
	PhaseAbsent:       func() *situation { return &situation{now: then} },
	PhaseObserve:      func() *situation { v := updating(); v.host = nil; return v },
	PhaseUnconfigured: func() *situation { v := updating(); v.node = api.Node{}; return v },
	PhaseReturn: func() *situation {
		v := updating()
		v.host = hostAt(cfgA, cfgB, transaction.PhaseUndo, transaction.Working)
		return v
	},
	PhaseRolledBack: func() *situation {
		v := updating()
		v.host = hostAt(cfgA, "", "", transaction.RolledBack)
		v.host.Quarantined = []transaction.Quarantined{{Config: cfgB, Reason: "kubelet", Since: then}}
		return v
	},
	PhaseProve: func() *situation {
		v := updating()
		v.host = hostAt(cfgA, cfgB, transaction.PhaseProve, transaction.Working)
		return v
	},
	PhaseSettle: func() *situation {
		v := updating()
		v.host, v.ready = hostAt(cfgB, "", "", transaction.Done), false
		return v.cordoned()
	},
	PhaseDone: func() *situation {
		v := updating()
		v.host = hostAt(cfgB, "", "", transaction.Done)
		return v
	},
	PhaseWait: func() *situation {
		v := updating()
		v.other = &job{phase: PhaseApply, config: cfgC, began: then}
		return v
	},
	PhaseBackoff: func() *situation {
		v := updating()
		v.failure = &failure{phase: PhaseStage, kind: failDegraded, reason: reasonStaging, text: "no space", since: then, retry: then.Add(time.Second)}
		return v
	},
	PhasePlan: updating,
	PhaseHold: func() *situation {
		v := updating()
		v.host, v.plan = hostAt(cfgB, "", "", transaction.Degraded), rebootPlan()
		v.node.Current, v.node.State = cfgB, api.Done
		return v
	},
	PhaseStage:  func() *situation { v := updating(); v.plan = rebootPlan(); return v },
	PhaseHooks:  func() *situation { v := updating(); v.plan, v.staged = rebootPlan(), true; return v },
	PhaseCordon: func() *situation { v := updating(); v.plan, v.staged, v.asked = rebootPlan(), true, true; return v },
	PhaseDrain:  func() *situation { v := updating(); v.plan, v.staged = rebootPlan(), true; return v.cordoned() },
	PhaseReboot: func() *situation {
		v := updating()
		v.plan, v.staged, v.rebooting = rebootPlan(), true, then
		v.host = hostAt(cfgA, cfgB, transaction.PhaseBoot, transaction.Working)
		return v.cordoned()
	},
	PhaseApply: func() *situation {
		v := updating()
		v.plan, v.staged, v.drained = rebootPlan(), true, then
		return v.cordoned()
	},
}

func stuck(s *host.Status) *host.Status {
	if s != nil {
		s.Stuck = true
	}
	return s
}

// updating returns a node that was just told to go from A to B.
func updating() *situation {
	return &situation{now: then, exists: true, ready: true, hold: drain.Free, hostSince: then, verdict: 10 * time.Minute,
		host: hostAt(cfgA, "", "", transaction.Done), node: api.Node{Current: cfgA, Desired: cfgB, State: api.Working}}
}

func (v *situation) cordoned() *situation {
	v.hold, v.node.Cordon = drain.Ours, &api.Cordon{By: api.Daemon, Config: cfgB}
	return v
}

func TestEveryPhaseHasItsSituation(t *testing.T) {
	for _, p := range phases {
		stage := stages[p.name]
		if stage == nil {
			t.Errorf("%s: no situation", p.name)
			continue
		}
		if got := decide(stage()); got.name != p.name {
			t.Errorf("%s: decided %s", p.name, got.name)
		}
	}
}

func TestDecide(t *testing.T) {
	// The events that may come in any phase, and the phase that follows in each.
	events := []struct {
		name   string
		change func(*situation)
		want   map[Phase]Phase // where the phase changes
	}{
		{"nothing on the host moves the update on", func(v *situation) { v.host = stuck(v.host) },
			moves{PhaseProve: PhasePlan}},
		{"the Node is deleted", func(v *situation) { v.exists = false }, all(PhaseAbsent)},
		{"nothing is desired any more", func(v *situation) { v.node.Desired = "" },
			all(PhaseUnconfigured).but(PhaseAbsent, PhaseObserve, PhaseWait)},
		{"A is desired again", func(v *situation) {
			v.node.Desired, v.plan, v.staged, v.failure = cfgA, nil, false, nil
			v.rebooting, v.drained = time.Time{}, time.Time{}
		},
			all(PhaseDone).but(PhaseAbsent, PhaseObserve, PhaseReturn, PhaseWait).
				with(PhasePlan, PhaseRolledBack, PhaseProve, PhaseReboot, PhaseSettle, PhaseDone, PhaseHold)},
		{"C is desired", func(v *situation) {
			v.node.Desired, v.plan, v.staged, v.failure = cfgC, nil, false, nil
			v.rebooting, v.drained = time.Time{}, time.Time{}
		},
			all(PhasePlan).but(PhaseAbsent, PhaseObserve, PhaseReturn, PhaseWait)},
		{"somebody uncordons", func(v *situation) {
			if v.hold == drain.Ours {
				v.hold, v.drained = drain.Lost, time.Time{}
			}
		}, moves{PhaseDrain: PhaseCordon, PhaseApply: PhaseCordon, PhaseSettle: PhaseDone}},
		{"the ledger still names what was desired before", func(v *situation) {
			if v.hold == drain.Ours {
				v.node.Cordon = &api.Cordon{By: api.Daemon, Config: cfgC}
			}
		}, moves{PhaseDrain: PhaseHooks, PhaseApply: PhaseHooks}},
		{"the hooks say yes", func(v *situation) { v.asked = true }, moves{PhaseHooks: PhaseCordon}},
		{"the node is ready", func(v *situation) { v.ready = true }, moves{PhaseSettle: PhaseDone}},
		{"a minute passes", func(v *situation) { v.now = v.now.Add(time.Minute) }, moves{PhaseBackoff: PhasePlan, PhaseApply: PhaseDrain}},
		{"an hour passes", func(v *situation) { v.now = v.now.Add(time.Hour) },
			moves{PhaseBackoff: PhasePlan, PhaseApply: PhaseDrain, PhaseReboot: PhaseDrain, PhaseReturn: PhasePlan, PhaseProve: PhasePlan}},
		{"an apply runs", func(v *situation) { v.applying = true }, moves{PhaseDrain: PhaseApply, PhaseHooks: PhaseCordon}},
		{"the host proved B", func(v *situation) {
			if v.host != nil {
				v.host = hostAt(cfgB, "", "", transaction.Done)
			}
		}, all(PhaseDone).but(PhaseAbsent, PhaseObserve, PhaseUnconfigured, PhaseSettle, PhaseWait)},
		{"B is lifted, whose failure was seen", func(v *situation) {
			v.node.Lift = cfgB
			v.node.Quarantined = []api.Quarantine{{Config: cfgB, Since: then}}
		}, moves{PhaseRolledBack: PhasePlan}},
		{"B was lifted and failed again", func(v *situation) {
			v.node.Lift = cfgB
			v.node.Quarantined = []api.Quarantine{{Config: cfgB, Since: then.Add(-time.Hour)}}
		}, nil},
	}
	for _, e := range events {
		for from, stage := range stages {
			v := stage()
			e.change(v)
			want := from
			if to, moves := e.want[from]; moves {
				want = to
			}
			if got := decide(v).name; got != want {
				t.Errorf("%s in phase %s: decided %s, want %s", e.name, from, got, want)
			}
		}
	}
}

// moves names, for each phase, the phase that follows.
type moves map[Phase]Phase

func all(to Phase) moves {
	m := moves{}
	for p := range stages {
		m[p] = to
	}
	return m
}

func (m moves) but(stay ...Phase) moves {
	for _, p := range stay {
		m[p] = p
	}
	return m
}

func (m moves) with(to Phase, from ...Phase) moves {
	for _, p := range from {
		m[p] = to
	}
	return m
}

func TestWaysThatNeedLess(t *testing.T) {
	cases := []struct {
		name string
		v    func(*situation)
		want Phase
	}{
		{"live changes are not drained for", func(v *situation) { v.plan, v.staged = livePlan(), true }, PhaseApply},
		{"where nothing changes there is nothing to stage", func(v *situation) { v.plan = &plan.Plan{} }, PhaseApply},
		{"a single node has nowhere to drain to", func(v *situation) { v.plan, v.staged, v.node.SingleReplica = rebootPlan(), true, true; v.asked = true }, PhaseApply},
		{"and is asked for all the same", func(v *situation) { v.plan, v.staged, v.node.SingleReplica = rebootPlan(), true, true }, PhaseHooks},
		{"somebody else's cordon is as good", func(v *situation) { v.plan, v.staged, v.hold = rebootPlan(), true, drain.Theirs; v.asked = true }, PhaseDrain},
		{"what was begun is taken up, not staged again", func(v *situation) {
			v.plan, v.host = rebootPlan(), hostAt(cfgA, cfgB, transaction.PhasePrepare, transaction.Working)
		}, PhaseCordon},
		{"leaving a configuration under verdict takes a drain", func(v *situation) {
			v.plan, v.host = &plan.Plan{}, hostAt(cfgB, cfgC, transaction.PhaseProve, transaction.Working)
		}, PhaseCordon},
		{"a host that was never configured", func(v *situation) { v.host, v.node.Current = hostAt("", "", "", ""), "" }, PhasePlan},
		{"a failed try of another configuration is mended", func(v *situation) {
			v.node.Current, v.node.State, v.host = cfgB, api.Degraded, hostAt(cfgB, "", "", transaction.Degraded)
		}, PhasePlan},
		{"somebody went back on the host", func(v *situation) {
			v.host = hostAt(cfgA, "", "", transaction.RolledBack)
			v.host.Config.Previous, v.node.Current = cfgB, cfgB
		}, PhaseRolledBack},
		{"the same, and it was said already", func(v *situation) {
			v.host = hostAt(cfgA, "", "", transaction.RolledBack)
			v.host.Config.Previous, v.node.Reason = cfgB, v.whyRolledBack()
		}, PhaseRolledBack},
		{"back from C, and told to go on to the one before", func(v *situation) {
			v.node.Desired = cfgC
			v.host = hostAt(cfgA, "", "", transaction.RolledBack)
			v.host.Config.Previous, v.host.Quarantined = cfgB, []transaction.Quarantined{{Config: cfgC, Since: then}}
			v.node.Reason, v.node.Desired = v.whyRolledBack(), cfgB
		}, PhasePlan},
		{"the same content under another pool's name", func(v *situation) {
			v.host.Quarantined = []transaction.Quarantined{{Config: "rendered-infra-x", Digest: strings.Repeat("b", 64)}}
		}, PhaseRolledBack},
	}
	for _, c := range cases {
		v := updating()
		c.v(v)
		if got := decide(v).name; got != c.want {
			t.Errorf("%s: decided %s, want %s", c.name, got, c.want)
		}
	}
}

func TestPhasesArePrinted(t *testing.T) {
	var out bytes.Buffer
	if err := WritePhases(&out); err != nil {
		t.Fatal(err)
	}
	for _, p := range phases {
		if !strings.Contains(out.String(), string(p.name)) || p.when == "" {
			t.Errorf("%s is missing in\n%s", p.name, &out)
		}
	}
	t.Logf("\n%s", &out)
	for _, p := range road {
		if !slices.ContainsFunc(phases, func(row phase) bool { return row.name == p }) {
			t.Errorf("%s is on the road and no phase", p)
		}
	}
}

func TestPausesBetweenTries(t *testing.T) {
	for tries, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 6: 32 * time.Second, 7: time.Minute, 100: time.Minute} {
		if got := nextTry(tries); got != want {
			t.Errorf("after %d tries: %s, want %s", tries, got, want)
		}
	}
}

func TestFirstErrorIsKept(t *testing.T) {
	f := fail(nil, PhaseApply, failDegraded, reasonApplying, "unit a failed after 3 s", then)
	f = fail(f, PhaseApply, failDegraded, reasonApplying, "unit a failed after 5 s", then)
	if f.text != "unit a failed after 3 s" || f.tries != 2 {
		t.Errorf("the same again: %q after %d tries", f.text, f.tries)
	}
	f = fail(f, PhaseStage, failDegraded, reasonStaging, "content mismatch", then)
	if f.text != "unit a failed after 3 s; later: content mismatch" || f.reason != reasonApplying || f.phase != PhaseApply {
		t.Errorf("a consequence hides its cause: %+v", f)
	}
	f = fail(f, PhasePlan, failTransient, "", "connection refused", then)
	if f.kind != failDegraded || strings.Contains(f.text, "refused") {
		t.Errorf("an outage is shown as the node's failure: %+v", f)
	}
	f = fail(f, PhaseStage, failDegraded, reasonStaging, "no space", then)
	if f.text != "unit a failed after 3 s; later: no space" {
		t.Errorf("texts pile up: %q", f.text)
	}
}

func TestOthersAtWorkAreNoFailureForAWhile(t *testing.T) {
	f := fail(nil, PhaseApply, failRefused, reasonRefused, "zincati is at work", then)
	if f.bad(then.Add(time.Minute)) || !f.bad(then.Add(refusedFor)) {
		t.Error("a refusal has to count from refusedFor on")
	}
}

func TestWhatIsStagedForAnotherConfigurationIsLeftOver(t *testing.T) {
	b := strings.Repeat("b", 64)
	v := updating()
	for _, c := range []struct {
		staged, desired string
		want            bool
	}{{"", cfgA, false}, {b, cfgB, false}, {b, cfgA, true}, {"unknown", cfgA, true}} {
		v.host.Staged, v.node.Desired = c.staged, c.desired
		if got := v.leftover(); got != c.want {
			t.Errorf("%q is staged and %s desired: left over %t", c.staged, c.desired, got)
		}
	}
}
