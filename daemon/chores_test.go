// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/transaction"
)

var update = flag.Bool("update", false, "write the tables of the code below testdata and into docs/architecture.md")

const page = "../docs/architecture.md"

// row returns the chore of a name.
func row(t *testing.T, name string) *chore {
	t.Helper()
	i := slices.IndexFunc(chores, func(c chore) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no chore %q", name)
	}
	return &chores[i]
}

// runs returns how a chore runs, in words.
func (c *chore) runs() string {
	switch {
	case c.while == whileIdle:
		return "as the operation"
	case c.beside != nil:
		return "beside the loop"
	case c.now != nil:
		return "in the loop"
	}
	return "in the loop, each turn"
}

// People read the page to understand the head: its table is this one.
func TestTheChoresAreThoseOfTheDocs(t *testing.T) {
	want := "| chore | does | while | runs |\n|---|---|---|---|\n"
	for _, c := range chores {
		want += fmt.Sprintf("| %s | %s | %s | %s |\n", c.name, c.does, c.while, c.runs())
	}
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- chores: go test ./daemon -run Chores -update -->\n", "\n<!-- end of chores -->"
	before, rest, ok := strings.Cut(string(data), begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the chores", page)
	}
	if got == want {
		return
	}
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s is not as the table is; go test ./daemon -run Chores -update writes it:\n%s", page, want)
}

func TestEveryChoreHasItsOwnNameAndOneWayToRun(t *testing.T) {
	names := map[string]bool{}
	for _, c := range chores {
		if c.name == "" || c.does == "" || c.due == nil || names[c.name] || c.now != nil && c.beside != nil {
			t.Errorf("chore %q says nothing, is there twice, or runs in two ways", c.name)
		}
		names[c.name] = true
	}
}

// choreHead returns a head at rest that has everything that chores need, and its situation.
func choreHead(t *testing.T) (*Head, *situation) {
	t.Helper()
	h, _ := quietHead(t)
	policyOf(t, h, cfgA, api.DriftRepair)
	h.o.Hands, h.o.Verifier, h.o.Deliverer = &hands.Client{}, &hands.Client{}, &hands.Client{}
	h.way, h.phase, h.read = way{from: cfgA, to: cfgA}, PhaseDone, true
	h.askAt, h.verifyAt = then.Add(restPace), then.Add(verifyPace)
	return h, at(PhaseDone, cfgA, then)
}

func TestWhenChoresAreDue(t *testing.T) {
	drifted := []api.DriftItem{{Kind: "file", Name: "/a"}}
	applying := &job{phase: PhaseApply, config: cfgA}
	draining := func(h *Head, d api.Drain) {
		d.Config, h.drain, h.job = cfgA, &d, &job{phase: PhaseDrain, config: cfgA}
	}
	deliver := func(h *Head, is deliveryState) {
		h.delivery = is
		h.delivery.seen = &mcfgv1.ControllerConfig{}
	}
	const never, soon = time.Duration(-1), time.Minute
	for name, c := range map[string]struct {
		chore string
		set   func(*Head, *situation)
		want  time.Duration // from now; never: not at all
	}{
		"the host was read":           {choreRead, func(*Head, *situation) {}, restPace},
		"its record has changed":      {choreRead, func(h *Head, _ *situation) { h.askAt = time.Time{} }, 0},
		"it is being read":            {choreRead, func(h *Head, _ *situation) { h.running[choreRead] = true }, never},
		"its configuration is there":  {"restore", func(*Head, *situation) {}, never},
		"nothing asks for the Node":   {"readiness", func(*Head, *situation) {}, never},
		"an apply asks for the Node":  {"readiness", func(h *Head, _ *situation) { h.job = applying }, 0},
		"it has asked":                {"readiness", func(h *Head, _ *situation) { h.job, h.tellAt = applying, then.Add(soon) }, soon},
		"there is news of the Node":   {"readiness", func(h *Head, v *situation) { h.job, h.tellAt, v.ready = applying, then.Add(soon), true }, 0},
		"a verdict asks for the Node": {"readiness", func(_ *Head, v *situation) { v.host = hostAt(cfgA, cfgB, transaction.PhaseProve, "") }, 0},
		"no drain":                    {"complain", func(*Head, *situation) {}, never},
		"a drain":                     {"complain", func(h *Head, _ *situation) { draining(h, api.Drain{Since: then}) }, drainLong},
		"a drain without a limit":     {"announce a limit", func(h *Head, _ *situation) { draining(h, api.Drain{}) }, never},
		"a drain with a limit":        {"announce a limit", func(h *Head, _ *situation) { draining(h, api.Drain{Limit: then.Add(soon)}) }, soon},
		"its limit was announced": {"announce a limit", func(h *Head, _ *situation) {
			draining(h, api.Drain{Limit: then.Add(soon)})
			h.lateSaid = then.Add(soon)
		}, never},
		"it ends at its limit": {"announce a limit", func(h *Head, _ *situation) {
			draining(h, api.Drain{Limit: then.Add(soon), OnTimeout: api.DrainHolds})
		}, never},
		"no ControllerConfig": {choreDeliver, func(*Head, *situation) {}, never},
		"a ControllerConfig":  {choreDeliver, func(h *Head, _ *situation) { deliver(h, deliveryState{sum: []byte{1}}) }, 0},
		"it is delivered":     {choreDeliver, func(h *Head, _ *situation) { deliver(h, deliveryState{sum: []byte{1}, tried: []byte{1}, done: true}) }, never},
		"its delivery failed": {choreDeliver, func(h *Head, _ *situation) {
			deliver(h, deliveryState{sum: []byte{1}, tried: []byte{1}, retry: then.Add(soon)})
		}, soon},
		"it has changed since": {choreDeliver, func(h *Head, _ *situation) {
			deliver(h, deliveryState{sum: []byte{2}, tried: []byte{1}, retry: then.Add(soon)})
		}, 0},
		"an update is under way": {choreDeliver, func(h *Head, v *situation) { deliver(h, deliveryState{sum: []byte{1}}); v.host.Config.Pending = cfgB }, never},
		"nothing is ordered":     {"ahead", func(*Head, *situation) {}, never},
		"something is ordered":   {"ahead", func(_ *Head, v *situation) { v.node.Orders.Stage = &api.StageOrder{Config: cfgB} }, 0},
		"ordered on hold":        {"ahead", func(h *Head, v *situation) { h.phase, v.node.Orders.Stage = PhaseHold, &api.StageOrder{Config: cfgB} }, never},
		"it could not be staged": {"ahead", func(_ *Head, v *situation) {
			v.node.Orders.Stage, v.aheadRetry = &api.StageOrder{Config: cfgB}, then.Add(soon)
		}, soon},
		"nothing is left over":    {"unstage", func(*Head, *situation) {}, never},
		"an OS is left over":      {"unstage", func(_ *Head, v *situation) { v.host.Staged = digestB }, 0},
		"it could not be removed": {"unstage", func(h *Head, v *situation) { v.host.Staged, h.way.unstageAt = digestB, then.Add(soon) }, soon},
		"compared":                {"verify", func(*Head, *situation) {}, verifyPace},
		"another configuration": {"verify", func(h *Head, _ *situation) {
			h.o.Monitor, h.drift.known, h.drift.config = &hands.Client{}, true, cfgB
		}, 0},
		"another configuration, which was compared in vain": {"verify", func(h *Head, v *situation) {
			h.o.Monitor, h.drift.known, h.drift.config = &hands.Client{}, true, cfgB
			h.compared = v.host.Config.Committed
		}, verifyPace},
		"nothing is committed":    {"verify", func(_ *Head, v *situation) { v.host.Config.Committed = "" }, never},
		"on its way":              {"verify", func(h *Head, _ *situation) { h.phase = PhaseStage }, never},
		"while it is delivered":   {"verify", func(h *Head, _ *situation) { h.running[choreDeliver] = true }, never},
		"while it is repaired":    {"verify", func(h *Head, _ *situation) { h.job = &job{phase: phaseRepair} }, never},
		"nothing has drifted":     {"repair", func(*Head, *situation) {}, never},
		"a file has drifted":      {"repair", func(h *Head, _ *situation) { h.drift.known, h.drift.items = true, drifted }, 0},
		"a person holds the node": {"repair", func(h *Head, v *situation) { h.drift.known, h.drift.items, v.hold = true, drifted, drain.Theirs }, never},
		"a force file":            {"repair", func(h *Head, v *situation) { h.drift.known, h.drift.forced, v.hold = true, true, drain.Theirs }, 0},
		"a repair was refused": {"repair", func(h *Head, _ *situation) {
			h.drift.known, h.drift.items, h.drift.after = true, drifted, then.Add(soon)
		}, soon},
		"all is written":    {"report", func(*Head, *situation) {}, never},
		"a write failed":    {"report", func(h *Head, _ *situation) { h.nodeWrites.next, h.objectWrites.next = then.Add(2*soon), then.Add(soon) }, soon},
		"a text may change": {"report", func(h *Head, _ *situation) { h.held.due = then.Add(soon) }, soon},
	} {
		h, v := choreHead(t)
		c.set(h, v)
		before := fmt.Sprintf("%+v %+v %+v", *h, *v, *v.host)
		due := row(t, c.chore).dueAt(h, v)
		if got := due.Sub(then); due.IsZero() != (c.want == never) || c.want != never && got != c.want {
			t.Errorf("%s, %s: due in %s, want %s", c.chore, name, got, c.want)
		}
		if after := fmt.Sprintf("%+v %+v %+v", *h, *v, *v.host); after != before {
			t.Errorf("%s, %s: the look changes the head:\n%s\n%s", c.chore, name, before, after)
		}
	}
}

// The loop goes on while a chore runs, and the chore is not begun a second time.
func TestAChoreThatRunsIsNotBegunAgain(t *testing.T) {
	h, v := choreHead(t)
	begun, ended := 0, 0
	c := chore{name: "count", due: func(_ *Head, v *situation) time.Time { return v.now },
		beside: func(*Head, context.Context, *situation) work {
			begun++
			return func() func() { return func() { ended++ } }
		}}
	for i := range 3 {
		c.begin(t.Context(), h, v)
		c.begin(t.Context(), h, v)
		if begun != i+1 || ended != i {
			t.Fatalf("begun %d times, ended %d times", begun, ended)
		}
		h.take(<-h.ended)
	}
}

// The loop may end while everything runs that can run at once: no end waits for it, and the operation is waited for.
func TestThereIsRoomForTheEndsOfAllThatRunsAtOnce(t *testing.T) {
	h, _ := quietHead(t)
	var ends []string
	for _, c := range chores {
		if c.beside != nil {
			ends = append(ends, c.name)
		}
	}
	for _, of := range append(ends, string(PhaseDrain)) {
		select {
		case h.ended <- end{of: of}:
		default:
			t.Fatalf("no room for the end of %q", of)
		}
	}
	h.job = &job{phase: PhaseDrain, cancel: func(error) {}}
	if h.leave(); len(h.ended) != 0 {
		t.Errorf("the loop has ended before the operation: %d ends are left", len(h.ended))
	}
}

// lateDrainer deletes two pods that refuse to go, and ends before the loop has heard of them.
type lateDrainer struct{ Drainer }

func (lateDrainer) Run(_ context.Context, r drain.Request, report func(api.Drain)) error {
	report(api.Drain{Config: r.Config, Since: then, Forced: []string{"web/a"}})
	report(api.Drain{Config: r.Config, Since: then, Forced: []string{"web/a", "web/b"}})
	return errors.New("no")
}

func TestTheLastReportOfADrainIsNotMissed(t *testing.T) {
	h, events := quietHead(t)
	h.o.Drainer, h.way = lateDrainer{}, way{from: cfgA, to: cfgB}
	h.start(t.Context(), stages[PhaseDrain](), phase{name: PhaseDrain, job: true})
	h.take(<-h.ended)
	if len(events.Events) != 2 {
		t.Fatalf("%d events", len(events.Events))
	}
	for _, pod := range []string{"web/a", "web/b"} {
		if got := <-events.Events; !strings.Contains(got, "DrainForced") || !strings.Contains(got, pod) {
			t.Errorf("event %q, want one about %s", got, pod)
		}
	}
}

// A ControllerConfig may change while the one before is written.
func TestCertificatesThatChangeDuringADeliveryAreDelivered(t *testing.T) {
	h, v := choreHead(t)
	s := &h.delivery
	see := func(data string) {
		cc := &mcfgv1.ControllerConfig{}
		cc.Spec.KubeAPIServerServingCAData = []byte(data)
		if err := s.see(cc); err != nil {
			t.Fatal(err)
		}
	}
	see("one")
	h.deliver(t.Context(), v)
	see("two")
	s.ended("1", &host.Delivery{}, nil, then)
	if due := h.deliverDue(v); !due.Equal(v.now) {
		t.Errorf("the second one is due at %s", due)
	}
	h.deliver(t.Context(), v)
	s.ended("2", &host.Delivery{}, nil, then)
	if due := h.deliverDue(v); !due.IsZero() {
		t.Errorf("both are delivered, and it is due at %s", due)
	}
}
