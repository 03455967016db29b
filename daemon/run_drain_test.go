// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/transaction"
)

var holding = &api.DrainPolicy{TimeoutSeconds: 60, OnTimeout: api.DrainHolds}

// heldHead returns a head on its way to B whose drain has just been suspended.
func heldHead() (*Head, *situation) {
	h := &Head{way: way{from: cfgA, to: cfgB, asked: true}}
	v := updating()
	v.node.Orders.Drain = holding
	h.giveBack(&api.DrainHold{Config: cfgB, Since: then, Until: then.Add(time.Hour), Why: "pods", Policy: holding})
	return h, v
}

func TestAHeldDrainShowsAsLongAsItIsHeld(t *testing.T) {
	h, v := heldHead()
	v = v.cordoned()
	h.followHold(v)
	v.plan, v.staged, v.failure = rebootPlan(), true, h.way.failure
	if p := decide(v).name; p != PhaseBackoff {
		t.Fatalf("it is at %s", p)
	}
	r := reportNode(v, PhaseBackoff)
	text := said(nil, r)
	hold, err := api.Decode[*api.DrainHold](text, api.DrainHeldKey)
	if err != nil || hold == nil || !hold.Until.Equal(then.Add(time.Hour)) || r.cordon != dropCordon ||
		text[api.StateKey] != string(api.Working) || !strings.Contains(text[api.Reason], "tried again at") {
		t.Errorf("it says %v, cordon %d", text, r.cordon)
	}
	if h.way.asked {
		t.Error("hooks are not asked again")
	}
	if c := said(text, reportNode(v, PhaseDrain)); c[api.DrainHeldKey] != "" {
		t.Error("it is said still when the drain has begun again")
	}
}

func TestWhatEndsAHold(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Head, *situation)
		ends   bool
	}{
		"nothing":                    {func(*Head, *situation) {}, false},
		"its time is over":           {func(_ *Head, v *situation) { v.now = then.Add(time.Hour) }, true},
		"the clock was set back":     {func(_ *Head, v *situation) { v.now = then.Add(-24 * time.Hour) }, true},
		"another policy":             {func(_ *Head, v *situation) { v.node.Orders.Drain = &api.DrainPolicy{TimeoutSeconds: 90} }, true},
		"no policy":                  {func(_ *Head, v *situation) { v.node.Orders.Drain = nil }, true},
		"it is not shown yet":        {func(h *Head, v *situation) { h.heldSaid, v.node.DrainHeld = false, nil }, false},
		"somebody takes it away":     {func(h *Head, v *situation) { h.heldSaid, v.node.DrainHeld = true, nil }, true},
		"something else is to be":    {func(h *Head, _ *situation) { h.way = way{from: cfgA, to: cfgC} }, true},
		"somebody applies by hand":   {func(_ *Head, v *situation) { v.host.Config.Pending = cfgB }, true},
		"something else has gone on": {func(h *Head, _ *situation) { h.way.failure = nil }, true},
	} {
		h, v := heldHead()
		v.node.DrainHeld = h.drainHold
		h.followHold(v)
		c.change(h, v)
		h.followHold(v)
		if ends := h.drainHold == nil && h.way.failure == nil && v.drainHold == nil; ends != c.ends {
			t.Errorf("%s: it ends: %t, %+v", name, ends, h.way.failure)
		}
		// The Node shows the hold for a moment longer, which does not begin the hold again.
		if h.followHold(v); c.ends && h.drainHold != nil {
			t.Errorf("%s: it begins anew", name)
		}
	}
}

func TestAnotherHeadTakesAHoldUp(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Head, *situation)
		takes  bool
	}{
		"as it is":               {func(*Head, *situation) {}, true},
		"its time is over":       {func(_ *Head, v *situation) { v.now = then.Add(2 * time.Hour) }, false},
		"another policy":         {func(_ *Head, v *situation) { v.node.Orders.Drain = nil }, false},
		"for something else":     {func(h *Head, _ *situation) { h.way.to = cfgC }, false},
		"the host is on its way": {func(_ *Head, v *situation) { v.host.Config.Pending = cfgB }, false},
	} {
		h, v := &Head{way: way{from: cfgA, to: cfgB, asked: true}}, updating()
		v.node.Orders.Drain = holding
		v.node.DrainHeld = &api.DrainHold{Config: cfgB, Since: then, Until: then.Add(time.Hour), Policy: holding}
		c.change(h, v)
		h.followHold(v)
		if takes := v.drainHold != nil && h.way.failure != nil; takes != c.takes {
			t.Errorf("%s: %t", name, takes)
		}
	}
}

func TestAHostBetweenTwoDeploymentsIsNotGivenBackByItsDrain(t *testing.T) {
	for name, c := range map[string]struct {
		policy  *api.DrainPolicy
		pending string
		want    api.DrainTimeout
	}{
		"at rest":          {holding, "", api.DrainHolds},
		"waits for a boot": {holding, cfgC, api.DrainRetries},
		"forced":           {&api.DrainPolicy{TimeoutSeconds: 60, OnTimeout: api.DrainForces}, cfgC, api.DrainForces},
		"no policy":        {nil, cfgC, ""},
	} {
		h, v := &Head{way: way{from: cfgA, to: cfgB}}, updating().cordoned()
		v.node.Orders.Drain, v.host.Config.Pending = c.policy, c.pending
		got := h.drainRequest(v).Policy
		if c.want == "" {
			if got != nil {
				t.Errorf("%s: %+v", name, got)
			}
			continue
		}
		if got.OnTimeout != c.want || got.TimeoutSeconds != c.policy.TimeoutSeconds {
			t.Errorf("%s: %+v, want %s", name, got, c.want)
		}
	}
	if holding.OnTimeout != api.DrainHolds {
		t.Error("what was ordered is changed")
	}
}

// idleDrainer drains until it is told to stop.
type idleDrainer struct{ Drainer }

func (idleDrainer) Run(ctx context.Context, _ drain.Request, _ func(api.Drain)) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestADrainThatIsNotHeldBetweenDeploymentsIsNotBegunAnew(t *testing.T) {
	h, _ := quietHead(t)
	h.o.Drainer, h.way = idleDrainer{}, way{from: cfgA, to: cfgB}
	v := stages[PhaseDrain]()
	v.node.Orders.Drain, v.host = holding, hostAt(cfgA, cfgC, transaction.PhaseProve, transaction.Working)
	ctx, stop := context.WithCancel(t.Context())
	defer func() { stop(); <-h.ended }()
	h.start(ctx, v, phase{name: PhaseDrain, job: true})
	if h.overtaken(v) {
		t.Errorf("it goes by %+v, and is to go by %+v", h.job.policy, v.node.Orders.Drain)
	}
	v.node.Orders.Drain = &api.DrainPolicy{TimeoutSeconds: 90, OnTimeout: api.DrainHolds}
	if !h.overtaken(v) {
		t.Error("another policy is not taken up")
	}
}

func TestANodeLeavesLoadBalancersOnceAndOnlyBeforeItsDrain(t *testing.T) {
	excluding := &api.DrainPolicy{ExcludeFromLoadBalancersSeconds: 30}
	for name, c := range map[string]struct {
		change func(*situation)
		want   Phase
		asks   bool
	}{
		"with the cordon":           {func(v *situation) { v.hold, v.node.Cordon = drain.Free, nil }, PhaseCordon, true},
		"cordoned by somebody else": {func(v *situation) { v.hold, v.node.Cordon = drain.Theirs, nil }, PhaseCordon, true},
		"cordoned before":           {func(*situation) {}, PhaseCordon, true},
		"it has":                    {func(v *situation) { v.node.Excluded = &api.Exclusion{} }, PhaseDrain, false},
		"somebody else had it":      {func(v *situation) { v.excluded = true }, PhaseDrain, false},
		"no policy":                 {func(v *situation) { v.node.Orders.Drain = nil }, PhaseDrain, false},
		"drained":                   {func(v *situation) { v.drained = v.now }, PhaseApply, false},
	} {
		v := stages[PhaseDrain]()
		v.node.Orders.Drain, v.asked = excluding, true
		c.change(v)
		p := decide(v).name
		_, asks := said(nil, reportNode(v, p))[api.ExcludedKey]
		if p != c.want || asks != c.asks {
			t.Errorf("%s: %s, asks %t", name, p, asks)
		}
	}
}

func TestWhatADrainWaitsForBesidePodsIsNamed(t *testing.T) {
	for says, d := range map[string]*api.Drain{
		"load balancers have until": {Config: cfgB, Phase: api.DrainExcludes, Limit: then},
		"PersistentVolume pv-1": {Config: cfgB, Phase: api.DrainDetaches,
			Volumes: []api.WaitingVolume{{Attachment: "csi-1", Volume: "pv-1"}}},
	} {
		for _, c := range conditions(stages[PhaseDrain](), PhaseDrain, d, nil) {
			if c.Type == string(mcfgv1.MachineConfigNodeUpdateDrained) &&
				(c.Reason != string(d.Phase) || !strings.Contains(c.Message, says)) {
				t.Errorf("%s: %s", c.Reason, c.Message)
			}
		}
		if !strings.Contains(waits(d), says) {
			t.Errorf("it waits for %q", waits(d))
		}
	}
}

func TestDrainMetrics(t *testing.T) {
	m := NewMetrics()
	m.drain(&api.Drain{Volumes: make([]api.WaitingVolume, 2)})
	m.drainHeld(&api.DrainHold{Until: time.Unix(1000, 0)})
	text := scrape(t, m, "/metrics")
	for _, line := range []string{"noderefit_drain_waiting_volumes 2", "noderefit_drain_held_until 1000",
		"noderefit_drain_forced_pods_total 0"} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	m.drain(nil)
	m.drainHeld(nil)
	if text := scrape(t, m, "/metrics"); !strings.Contains(text, "\nnoderefit_drain_waiting_volumes 0\n") ||
		!strings.Contains(text, "\nnoderefit_drain_held_until 0\n") {
		t.Error("it does not go back")
	}
}
