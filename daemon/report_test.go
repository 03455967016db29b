// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"maps"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

// said applies a report to annotations.
func said(have map[string]string, r *nodeReport) map[string]string {
	out := map[string]string{}
	maps.Copy(out, have)
	for k, v := range r.missing(have) {
		if v == nil {
			delete(out, k)
		} else {
			out[k] = *v
		}
	}
	return out
}

func TestWhatTheNodeSaysInEachPhase(t *testing.T) {
	cases := map[Phase]struct {
		state   api.State
		reason  string // part of it
		current string
		cordon  cordoning
		action  bool // post-config-action
	}{
		// The node was on its way, and has no target any more.
		PhaseUnconfigured: {api.Done, "", cfgA, dropCordon, false},

		PhaseReturn:      {api.Working, "going back", cfgA, keepCordon, false},
		PhaseRolledBack:  {api.RolledBack, cfgB + " to " + cfgA + ": kubelet", cfgA, dropCordon, false},
		PhaseProve:       {api.Working, "", cfgA, keepCordon, false},
		PhaseWait:        {api.Working, "apply of " + cfgC + ", which can't be interrupted, since 2026-11-21T12", cfgA, keepCordon, false},
		PhaseNeedsReboot: {api.Working, "NeedsReboot: " + cfgB, cfgA, dropCordon, false},
		PhaseSettle:      {api.Working, "ready", cfgB, keepCordon, false},
		PhaseDone:        {api.Done, "", cfgB, dropCordon, false},
		PhaseBackoff:     {api.Degraded, "no space", cfgA, dropCordon, false},
		PhaseHold:        {api.Degraded, "not as it was left", cfgB, keepCordon, false},
		PhaseBeside:      {api.Working, "bootc-operator, which has staged quay.io/os:43", cfgA, dropCordon, false},
		PhaseStage:       {api.Working, "", cfgA, keepCordon, false},
		PhaseHooks:       {api.Working, "", cfgA, keepCordon, false},
		PhaseCordon:      {api.Working, "", cfgA, takeCordon, false},
		PhaseDrain:       {api.Working, "", cfgA, keepCordon, false},
		PhaseApply:       {api.Working, "", cfgA, keepCordon, false},
		PhaseReboot:      {api.Working, "", cfgA, keepCordon, true},
	}
	for p, stage := range stages {
		v := stage()
		if p == PhaseUnconfigured {
			v.node.State = api.Working
		}
		r := reportNode(v, p)
		want, speaks := cases[p]
		if r == nil {
			if speaks {
				t.Errorf("%s: says nothing", p)
			}
			continue
		}
		if !speaks {
			t.Errorf("%s: says %v", p, r.annotations)
			continue
		}
		got := said(map[string]string{api.PostConfigAction: api.PostConfigActionRebooting}, r)
		if got[api.StateKey] != string(want.state) || !strings.Contains(got[api.Reason], want.reason) ||
			want.reason == "" && got[api.Reason] != "" || got[api.CurrentConfig] != want.current || r.cordon != want.cordon ||
			(got[api.PostConfigAction] != "") != want.action {
			t.Errorf("%s: says %v, cordon %d; want %+v", p, got, r.cordon, want)
		}
		if again := r.missing(got); len(again) > 0 {
			t.Errorf("%s: says it twice: %v", p, again)
		}
	}
}

// An apply may take minutes before the host decides on a deployment.
func TestRebootIsSaidOnceTheHostHasDecidedOnIt(t *testing.T) {
	const drained = "drain-" + cfgB
	cases := []struct {
		name   string
		phase  Phase
		change func(*situation)
		reboot bool
		drain  string // lastAppliedDrain
	}{
		{"it makes the deployment", PhaseApply, func(v *situation) {
			v.host, v.applying = hostAt(cfgA, cfgB, transaction.PhasePrepare, transaction.Working), true
		}, false, ""},
		{"it has decided on it", PhaseApply, func(v *situation) {
			v.host, v.applying = hostAt(cfgA, cfgB, transaction.PhaseBoot, transaction.Working), true
		}, true, drained},
		{"it reboots", PhaseReboot, func(*situation) {}, true, drained},
		{"it has rebooted before we could say so", PhaseProve, func(v *situation) { v.cordoned() }, false, drained},
		{"it has booted into what nobody drained it for", PhaseProve, func(*situation) {}, false, ""},
		{"no reboot is needed", PhaseApply, func(v *situation) {
			v.plan = &plan.Plan{Drain: true, Actions: []plan.Action{{Type: plan.ActionDrain}}}
		}, false, drained},
		{"it goes back from what it was to prove", PhaseApply, func(v *situation) {
			v.host, v.applying = hostAt(cfgB, cfgC, transaction.PhaseProve, transaction.Working), true
		}, false, drained},
	}
	for _, c := range cases {
		v := stages[c.phase]()
		c.change(v)
		if got := decide(v).name; got != c.phase {
			t.Errorf("%s: phase %s, want %s", c.name, got, c.phase)
		}
		got := said(nil, reportNode(v, c.phase))
		if (got[api.PostConfigAction] != "") != c.reboot || got[api.LastAppliedDrain] != c.drain {
			t.Errorf("%s: action %q, drain %q", c.name, got[api.PostConfigAction], got[api.LastAppliedDrain])
		}
	}
}

func TestCordonIsGivenBackWhenNothingIsGoingToHappen(t *testing.T) {
	cases := []struct {
		name   string
		change func(*situation)
		want   cordoning
	}{
		{"staging fails", func(*situation) {}, dropCordon},
		{"the node is not ready", func(v *situation) { v.ready = false }, keepCordon},
		{"the API server is away", func(v *situation) { v.failure.kind = failTransient }, keepCordon},
		{"the next try needs the drain that was done", func(v *situation) { v.failure.phase = PhaseApply }, keepCordon},
	}
	for _, c := range cases {
		v := stages[PhaseBackoff]().cordoned()
		c.change(v)
		if got := reportNode(v, PhaseBackoff).cordon; got != c.want {
			t.Errorf("%s: cordon %d, want %d", c.name, got, c.want)
		}
	}
}

func TestNodeThatNothingIsDesiredOf(t *testing.T) {
	never := stages[PhaseUnconfigured]()
	never.node = api.Node{}
	// A machine that firstboot has completed is at rest on its configuration, so that its pool grants the next update.
	joins := said(nil, reportNode(never, PhaseUnconfigured))
	if joins[api.CurrentConfig] != cfgA || joins[api.StateKey] != string(api.Done) {
		t.Errorf("a node that joins with a configuration says %v", joins)
	}
	if _, is := joins[api.OSKey]; is {
		t.Errorf("a host that does not report its OS: %v", joins)
	}
	never.host.OS = host.OSOstree
	if os := said(nil, reportNode(never, PhaseUnconfigured))[api.OSKey]; os != "ostree" {
		t.Errorf("the OS is managed by %q", os)
	}
	never.host.Config.Committed = ""
	if r := reportNode(never, PhaseUnconfigured); r != nil {
		t.Errorf("a host without a configuration says %v", r.annotations)
	}
	rebooting := stages[PhaseReboot]().cordoned()
	rebooting.node.Desired = ""
	if r := reportNode(rebooting, PhaseUnconfigured); r.cordon != keepCordon || r.annotations[api.StateKey] != nil {
		t.Errorf("in the middle of a reboot: cordon %d, says %v", r.cordon, r.annotations)
	}
}

func TestOnlyANodeThatIsDoneLosesItsStartupTaint(t *testing.T) {
	for p, stage := range stages {
		if r := reportNode(stage(), p); r != nil && r.configured != (p == PhaseDone) {
			t.Errorf("%s: the taint goes: %v", p, r.configured)
		}
	}
}

// After the drain, a node that a person uncordons may still go down, and must not fill up until then.
func TestCordonIsTakenAgainAsLongAsTheHostMayGoDown(t *testing.T) {
	for p, want := range map[Phase]cordoning{PhaseReturn: takeCordon, PhaseProve: takeCordon, PhaseReboot: takeCordon,
		PhaseDrain: keepCordon, PhaseDone: dropCordon, PhaseRolledBack: dropCordon} {
		v := stages[p]().cordoned()
		v.hold, v.node.Cordon.Reason = drain.Lost, "update to B"
		r := reportNode(v, p)
		if r.cordon != want {
			t.Errorf("%s: cordon %d, want %d", p, r.cordon, want)
		}
		if r.cordon == takeCordon && (r.entry.Config != cfgB || r.entry.Reason != "update to B" || !r.entry.Since.Equal(then)) {
			t.Errorf("%s: the ledger says %+v", p, r.entry)
		}
	}
}

func TestLiftIsUsedUp(t *testing.T) {
	cases := []struct {
		name   string
		change func(*situation)
		want   bool // the lift stays
	}{
		{"not acted on yet", func(v *situation) { v.node.Quarantined = []api.Quarantine{{Config: cfgB, Since: then}} }, true},
		{"it failed again", func(v *situation) {
			v.node.Quarantined = []api.Quarantine{{Config: cfgB, Since: then.Add(-time.Hour)}}
		}, false},
		{"the host let it go", func(v *situation) { v.host.Quarantined, v.host.State = nil, transaction.Working }, false},
		{"it is about something else", func(v *situation) { v.node.Lift = cfgC }, false},
	}
	for _, c := range cases {
		v := stages[PhaseRolledBack]()
		v.node.Lift = cfgB
		c.change(v)
		_, stays := said(map[string]string{api.Lift: v.node.Lift}, reportNode(v, liftPhase(v)))[api.Lift]
		if stays != c.want {
			t.Errorf("%s: lift stays %t, want %t", c.name, stays, c.want)
		}
	}
}

// liftPhase returns a phase with a report, for a situation with a lift.
func liftPhase(v *situation) Phase {
	if v.rolledBack() && !v.lifted() {
		return PhaseRolledBack
	}
	v.plan = rebootPlan()
	return PhaseApply
}

func TestTheWayOfARebootIsOnTheNodeAndInItsConditions(t *testing.T) {
	v := stages[PhaseProve]()
	v.host.RebootWay = &api.RebootWay{Asked: api.RebootKexec, Started: api.RebootFull, Took: api.RebootFull, Why: "no kexec"}
	got := said(nil, reportNode(v, PhaseProve))
	if got[api.RebootWayKey] != `{"asked":"Kexec","started":"Full","took":"Full","why":"no kexec"}` {
		t.Errorf("%q", got[api.RebootWayKey])
	}
	for _, c := range conditions(v, PhaseProve, nil, nil) {
		const way = "; the latest reboot: Full, and not Kexec: no kexec"
		if is := c.Type == string(mcfgv1.MachineConfigNodeUpdateRebooted); strings.HasSuffix(c.Message, way) != is {
			t.Errorf("%s: %s", c.Type, c.Message)
		}
	}
	v.host.RebootWay = nil
	if again := said(got, reportNode(v, PhaseProve)); again[api.RebootWayKey] != "" {
		t.Errorf("a full reboot that was asked for: %q", again[api.RebootWayKey])
	}
}

func TestQuarantineOnANodeStaysSmall(t *testing.T) {
	var host []transaction.Quarantined
	for i := range 40 {
		host = append(host, transaction.Quarantined{Config: cfgB, Reason: strings.Repeat("é", 2000), Since: then.Add(time.Duration(i) * time.Hour)})
	}
	got := quarantines(host)
	if len(got) != quarantinesShown || !got[len(got)-1].Since.Equal(host[39].Since) || len(api.Encode(got)) > 8000 {
		t.Errorf("%d entries in %d bytes, the last of %s", len(got), len(api.Encode(got)), got[len(got)-1].Since)
	}
}

func TestConditionsFollowAnUpdate(t *testing.T) {
	// T true, F false, U unknown: Updated, UpdatePrepared, UpdateExecuted, Cordoned, Drained, AppliedFilesAndOS,
	// UpdatePostActionComplete, RebootedNode, Resumed, UpdateComplete, Uncordoned, NodeDegraded.
	want := map[Phase]string{
		PhaseStage:      "FUFFFFFFFFFF",
		PhaseDrain:      "FTUTUFFFFFFF",
		PhaseApply:      "FTUTTUFFFFFF",
		PhaseReboot:     "FTUTTTUUFFFF",
		PhaseProve:      "FTTTTTTTUUFF",
		PhaseSettle:     "FTTTTTTTTTUF",
		PhaseDone:       "TFFFFFFFFFFF",
		PhaseRolledBack: "FFFFFFFFFFFT",
		PhaseHold:       "FFFFFFFFFFFT",
		PhaseBackoff:    "FUFFFFFFFFFT",
	}
	var had []metav1.Condition
	for _, p := range []Phase{PhaseStage, PhaseDrain, PhaseApply, PhaseReboot, PhaseProve, PhaseSettle, PhaseDone, PhaseRolledBack, PhaseHold, PhaseBackoff} {
		v := stages[p]().cordoned()
		if p == PhaseBackoff {
			v.plan = rebootPlan()
		}
		had = conditions(v, p, nil, had)
		got := ""
		for _, c := range had {
			got += map[metav1.ConditionStatus]string{"True": "T", "False": "F", "Unknown": "U"}[c.Status]
			if c.Reason == "" || c.LastTransitionTime.IsZero() {
				t.Errorf("%s: condition %s has no reason or no time", p, c.Type)
			}
		}
		if got != want[p] {
			t.Errorf("%s: conditions %s, want %s", p, got, want[p])
		}
		if updated := had[0]; p != PhaseHold && p != PhaseRolledBack &&
			updated.Message != "Action during update to "+cfgB+": reboot, because of kernelArguments" {
			t.Errorf("%s: message %q", p, updated.Message)
		}
	}
}

func TestConditionKeepsItsTimeAndLaterHeadsItsAction(t *testing.T) {
	had := conditions(stages[PhaseReboot](), PhaseReboot, nil, nil)
	v := stages[PhaseProve]().cordoned() // after the boot: the plan is gone
	v.now = then.Add(time.Hour)
	now := conditions(v, PhaseProve, nil, had)
	for i, c := range now {
		if moved := c.Status != had[i].Status; moved == c.LastTransitionTime.Equal(&had[i].LastTransitionTime) {
			t.Errorf("condition %s: %s to %s, time %s", c.Type, had[i].Status, c.Status, c.LastTransitionTime)
		}
		if c.Type != string(mcfgv1.MachineConfigNodeNodeDegraded) && !strings.Contains(c.Message, "reboot, because of") {
			t.Errorf("condition %s forgot the action: %q", c.Type, c.Message)
		}
	}
}

func TestDrainThatWaitsIsNamed(t *testing.T) {
	waiting := &api.Drain{Config: cfgB, Left: 3, Waiting: []api.WaitingPod{{Namespace: "web", Name: "router-1", Why: api.DrainWaitBudget, Budget: "router"}}}
	for _, c := range conditions(stages[PhaseDrain](), PhaseDrain, waiting, nil) {
		if c.Type != string(mcfgv1.MachineConfigNodeUpdateDrained) {
			continue
		}
		if c.Reason != api.DrainWaitBudget || !strings.Contains(c.Message, "pod web/router-1 is held by PodDisruptionBudget router") {
			t.Errorf("%s: %s", c.Reason, c.Message)
		}
	}
}

func TestHoldOutlivesTheHead(t *testing.T) {
	v := stages[PhaseHold]()
	text := said(nil, reportNode(v, PhaseHold))
	v.node.State, v.node.Reason = api.State(text[api.StateKey]), text[api.Reason]
	if got := decide(v).name; got != PhaseHold {
		t.Errorf("after it was said: %s", got)
	}
	v.hold = drain.Ours // no state of that kind is repaired by rebooting a node that serves
	if got := decide(v).name; got != PhaseHold {
		t.Errorf("with a cordon: %s", got)
	}
}

func TestHoldOutlivesAHostThatCouldNotBeRead(t *testing.T) {
	v := stages[PhaseHold]()
	v.host, v.failure = nil, fail(nil, PhaseObserve, failDegraded, reasonObserving, blindReason+": no bus", then)
	text := said(nil, reportNode(v, PhaseObserve))
	v = stages[PhaseHold]()
	v.node.State, v.node.Reason = api.State(text[api.StateKey]), text[api.Reason]
	if got := decide(v).name; v.node.State != api.Degraded || got != PhaseHold {
		t.Errorf("%s once it can be read again: %s", v.node.State, got)
	}
}

// The duration of updates is computed from this time: it must not move during an update, nor belong to another update.
func TestAnUpdateBeginsOnceAndIsAboutWhatIsDesired(t *testing.T) {
	earlier := api.Update{Config: cfgB, Since: then.Add(-time.Hour)}
	cases := []struct {
		name  string
		said  string // the desired configuration when the object was last written
		had   api.Update
		phase Phase
		want  api.Update
	}{
		{"it is told where to go", cfgA, api.Update{}, PhaseStage, api.Update{Config: cfgB, Since: then}},
		{"instead of elsewhere", cfgC, api.Update{Config: cfgC, Since: then}, PhaseDrain, api.Update{Config: cfgB, Since: then}},
		{"it is on its way, after a reboot too", cfgB, earlier, PhaseProve, earlier},
		{"and could not say so yet", cfgA, earlier, PhaseApply, earlier},
		{"it is there", cfgB, earlier, PhaseDone, earlier},
		{"it was there before anybody told it", "", api.Update{}, PhaseDone, api.Update{}},
		{"it is back without having gone", cfgC, api.Update{Config: cfgC, Since: then}, PhaseDone, api.Update{}},
		{"who had its place did not say when it began", cfgB, api.Update{}, PhaseDrain, api.Update{}},
	}
	for _, c := range cases {
		m := machineConfigNode{said: objectReport{desired: c.said}, update: c.had}
		if m.begin(stages[c.phase](), c.phase); m.update != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, m.update, c.want)
		}
	}
}

func TestWhatCheckScriptsSaidIsOnTheNodeWhileItIsKnown(t *testing.T) {
	v := updating()
	v.host.Checks = &api.Checks{Config: cfgB, Said: map[string]string{"10-wish": "exit status 1: would be nice"}}
	r := reportNode(v, PhaseDone)
	if got := r.annotations[api.ChecksKey]; got == nil || *got != api.Encode(v.host.Checks) {
		t.Errorf("the Node says %v", got)
	}
	v.host.Checks = nil
	if r := reportNode(v, PhaseDone); !r.drops(api.ChecksKey) {
		t.Error("what is no longer known stays on the Node")
	}
}
