// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// yard is a pool whose agents are played: each works through its order in a few steps.
type yard struct {
	t        *testing.T
	object   *mcfgv1.MachineConfigPool
	nodes    []progress.Node
	policies []api.RolloutPolicy
	fails    map[string]bool
	now      time.Time
	// log has what happened, one word for each. boots counts the boots of each node.
	log   []string
	boots map[string]int
}

func newYard(t *testing.T, nodes int, spec *api.RolloutPolicySpec) *yard {
	t.Helper()
	y := &yard{t: t, object: &mcfgv1.MachineConfigPool{}, now: t0, fails: map[string]bool{}, boots: map[string]int{}}
	y.object.Name, y.object.Annotations = "worker", map[string]string{}
	y.object.Spec.Configuration.Name, y.object.Status.Configuration.Name = "B", "B"
	for i := range nodes {
		y.nodes = append(y.nodes, progress.Node{Name: fmt.Sprintf("n%02d", i), Node: api.Node{
			Current: "B", Desired: "B", State: api.Done,
		}})
	}
	if spec != nil {
		spec.Pools = []string{"worker"}
		y.policies = []api.RolloutPolicy{{ObjectMeta: objectName("careful"), Spec: *spec}}
	}
	return y
}

func (y *yard) want(names ...string) {
	for i := range y.nodes {
		if n := &y.nodes[i]; slices.Contains(names, n.Name) {
			n.RebootWanted = &api.RebootWanted{Reasons: []api.RebootReason{
				{Kind: api.RebootPackages, Message: "packages ask", Packages: []string{"libc6"}, Since: y.now},
			}}
		}
	}
}

func (y *yard) pool() progress.Pool {
	p := progress.NewPool(y.object, slices.Clone(y.nodes))
	// Each look is that of a controller that has just started: nothing is remembered.
	rollout.NewBook(y.policies, rollout.Passing).Follow([]*progress.Pool{&p}, y.now, "")
	return p
}

// look has a controller decide, and checks what holds always.
func (y *yard) look() progress.Pool {
	y.t.Helper()
	p := y.pool()
	d := decide(p, bounds{Now: y.now})
	if again := decide(y.pool(), bounds{Now: y.now}); fmt.Sprintf("%+v", steps(d)) != fmt.Sprintf("%+v", steps(again)) {
		y.t.Errorf("another controller decides otherwise:\n%+v\n%+v", steps(d), steps(again))
	}
	for _, s := range d.Steps {
		i := slices.IndexFunc(y.nodes, func(n progress.Node) bool { return n.Name == s.Node })
		n := &y.nodes[i]
		if o := s.Orders.Reboot; o != nil && (n.Orders.Reboot == nil || n.Orders.Reboot.ID != o.ID) {
			y.log = append(y.log, "order "+n.Name)
		}
		if s.Answered {
			n.Reboot = nil
			y.log = append(y.log, "answered "+n.Name)
		}
		if s.sends() {
			y.log = append(y.log, "send "+n.Name)
			n.State, n.Cordoned, n.Cordon = api.Working, true, &api.Cordon{By: api.Daemon}
		}
		n.Orders, n.Desired, n.Lift, n.Arrived, n.Awaited = s.Orders, s.Desired, s.Lift, s.Arrived, s.Awaited
	}
	out := 0
	for i := range y.nodes {
		out += rank(y.nodes[i].Unavailable())
	}
	if out > p.MaxUnavailable {
		y.t.Errorf("%d nodes are out of service: %s", out, strings.Join(y.log, ", "))
	}
	if p.RebootAnswered() {
		delete(y.object.Annotations, api.RebootKey)
		y.log = append(y.log, "pool answered")
	}
	return p
}

func steps(d decision) []string {
	var out []string
	for _, s := range d.Steps {
		out = append(out, s.Node+" "+s.Desired+" "+ordersText(s.Orders))
	}
	return out
}

// work has each agent take one step, and the time pass.
func (y *yard) work() {
	y.now = y.now.Add(time.Minute)
	for i := range y.nodes {
		n := &y.nodes[i]
		o := n.RebootOrdered()
		switch {
		case n.Current != n.Desired && n.Orders.ManualReboots && o == nil:
			n.RebootWanted = &api.RebootWanted{Reasons: []api.RebootReason{{Kind: api.RebootConfiguration, Since: y.now}}}
			n.Cordoned, n.Cordon = false, nil // such a node serves
		case n.Current != n.Desired && o == nil:
			y.boot(n)
		case o == nil:
		case n.Rebooted == nil || n.Rebooted.ID != o.ID:
			n.State, n.Cordoned, n.Cordon = api.Working, true, &api.Cordon{By: api.Daemon}
			n.Rebooted = &api.Rebooted{ID: o.ID, Why: o.Why, Begun: y.now}
		case !n.Rebooting:
			n.Rebooting = true
		default:
			y.boot(n)
			n.Rebooted.Ended = y.now
			if y.fails[n.Name] {
				n.Rebooted.Failed = "the kubelet is down"
			}
		}
	}
}

func (y *yard) boot(n *progress.Node) {
	y.boots[n.Name]++
	y.log = append(y.log, "boot "+n.Name)
	n.Current, n.State, n.Cordoned, n.Cordon, n.Rebooting, n.RebootWanted = n.Desired, api.Done, false, nil, false, nil
}

// run goes on until nothing happens any more for a while.
func (y *yard) run() {
	y.t.Helper()
	for quiet := 0; quiet < 15; {
		before := len(y.log)
		y.look()
		y.work()
		if quiet++; len(y.log) > before {
			quiet = 0
		}
		if len(y.log) > 1000 {
			y.t.Fatalf("that has no end: %q", y.log[:50])
		}
	}
}

func (y *yard) happened(want string) {
	y.t.Helper()
	if got := strings.Join(y.log, ", "); got != want {
		y.t.Errorf("happened:\n%s\nwant:\n%s", got, want)
	}
}

func TestWantedRebootsAreRolledOneAfterTheOther(t *testing.T) {
	y := newYard(t, 4, &api.RolloutPolicySpec{Reboots: api.RebootsRoll})
	y.want("n01", "n02", "n03")
	y.run()
	y.happened("order n01, boot n01, order n02, boot n02, order n03, boot n03")
	for i := range y.nodes {
		if n := &y.nodes[i]; n.Orders.Reboot != nil {
			t.Errorf("node %s keeps the order %+v", n.Name, n.Orders.Reboot)
		}
	}
}

func TestWantedRebootsAreOnlyShownWithoutRoll(t *testing.T) {
	for _, mode := range []api.RebootMode{"", api.RebootsReport, api.RebootsNever, api.RebootsManual} {
		y := newYard(t, 2, &api.RolloutPolicySpec{Reboots: mode})
		y.want("n00", "n01")
		y.run()
		y.happened("")
		if c := rebootsCondition(y.pool()); c.Status != "True" || !strings.Contains(c.Message, "node n00 since 2026-03-01T03:00:00Z: "+
			"packages ask (libc6)") {
			t.Errorf("%s: %+v", mode, c)
		}
	}
}

func TestTheFirstRebootThatFailsStopsTheOthers(t *testing.T) {
	y := newYard(t, 3, &api.RolloutPolicySpec{Reboots: api.RebootsRoll})
	y.want("n00", "n01", "n02")
	y.fails["n01"] = true
	y.run()
	y.happened("order n00, boot n00, order n01, boot n01")
	c := rebootsCondition(y.pool())
	if c.Reason != string(progress.RebootFailed) || !strings.HasPrefix(c.Message, "the reboot of node n01 failed: the kubelet is down") {
		t.Errorf("%+v", c)
	}
	// A person repairs the host and has it tried again; the third follows.
	y.log, y.fails = nil, nil
	y.nodes[1].Reboot = &api.RebootRequest{By: "ann", Why: "repaired", Since: y.now}
	y.run()
	y.happened("order n01, boot n01, answered n01, order n02, boot n02")
}

func TestAPersonsOrderIsCarriedOutOnce(t *testing.T) {
	y := newYard(t, 3, nil)
	y.nodes[1].Reboot = &api.RebootRequest{By: "ann", Why: "a hung mount", Since: y.now}
	y.run()
	y.happened("order n01, boot n01, answered n01")

	y = newYard(t, 3, nil)
	y.object.Annotations[api.RebootKey] = api.Encode(api.RebootRequest{By: "ann", Why: "CVE", Since: y.now})
	y.want("n01") // one boot answers both
	y.run()
	y.happened("order n00, boot n00, order n01, boot n01, order n02, boot n02, pool answered")
}

func TestAnOrderThatWasNotBegunGoesWithItsCause(t *testing.T) {
	y := newYard(t, 2, nil)
	y.nodes[0].Reboot = &api.RebootRequest{By: "ann", Why: "a hung mount", Since: y.now}
	y.look()
	if y.nodes[0].Orders.Reboot == nil {
		t.Fatal("there is no order")
	}
	y.nodes[0].Reboot = nil
	y.look()
	if y.nodes[0].Orders.Reboot != nil {
		t.Errorf("the order stays: %+v", y.nodes[0].Orders.Reboot)
	}
	y.nodes[0].Reboot = &api.RebootRequest{By: "ann", Why: "a hung mount", Since: y.now}
	y.look()
	y.work()
	y.nodes[0].Reboot = nil // too late
	y.run()
	y.happened("order n00, order n00, boot n00")
}

func TestAConfigurationComesBeforeAWantedReboot(t *testing.T) {
	y := newYard(t, 3, &api.RolloutPolicySpec{Reboots: api.RebootsRoll})
	y.object.Spec.Configuration.Name = "C"
	y.want("n00", "n01", "n02")
	y.run()
	y.happened("send n00, boot n00, send n01, boot n01, send n02, boot n02")
}

func TestManualRebootsAreLeftToPeople(t *testing.T) {
	y := newYard(t, 3, &api.RolloutPolicySpec{Reboots: api.RebootsManual})
	y.run() // the orders come before the configuration
	y.object.Spec.Configuration.Name = "C"
	y.run()
	y.happened("send n00, send n01, send n02")
	p := y.pool()
	if p.Updated != 0 || p.Unavailable != 0 || p.Complete() {
		t.Errorf("%+v", p.Counts)
	}
	y.log = nil
	y.object.Annotations[api.RebootKey] = api.Encode(api.RebootRequest{By: "ann", Why: "our night", Since: y.now})
	y.run()
	y.happened("order n00, boot n00, order n01, boot n01, order n02, boot n02, pool answered")
	if p := y.pool(); !p.Complete() {
		t.Errorf("%+v", p.Counts)
	}
}

// A release is withheld while some nodes have it: a node that has only committed it goes back to what it runs, its
// person's order included, and stays there. A node whose reboot has begun goes on.
func TestAWithheldReleaseIsTakenBackWhereItIsOnlyCommitted(t *testing.T) {
	y := newYard(t, 4, &api.RolloutPolicySpec{Reboots: api.RebootsManual})
	y.object.Spec.MaxUnavailable = new(intstr.FromInt32(3))
	y.run() // the orders come before the configuration
	y.object.Spec.Configuration.Name = "C"
	y.run()
	orders := func(names ...string) {
		for i := range y.nodes {
			if n := &y.nodes[i]; slices.Contains(names, n.Name) {
				n.Reboot = &api.RebootRequest{By: "ann", Why: "now", Since: y.now}
			}
		}
	}
	orders("n00")
	y.run()
	orders("n01", "n02")
	y.look()
	y.nodes[1].Cordoned, y.nodes[1].Cordon = true, &api.Cordon{By: api.Daemon} // n01 is being drained
	y.log = nil
	y.object.Annotations[api.WithheldKey] = api.Encode(api.Withheld{Stream: "os", Version: "42", Reason: "withdrawn", Since: y.now})
	y.look()
	y.happened("send n02, send n03")
	for i, desired := range []string{"C", "C", "B", "B"} {
		if n := &y.nodes[i]; n.Desired != desired || (n.RebootOrdered() != nil) != (i == 1) {
			t.Errorf("%s is to have %s, reboot %+v", n.Name, n.Desired, n.RebootOrdered())
		}
	}
	p := y.pool()
	if hold := p.Held(&p.Nodes[3]); hold == nil || hold.Verdict != progress.Withheld || !strings.Contains(hold.Because, "42") {
		t.Errorf("%+v", hold)
	}
}

func TestARebootThatDoesNotEndStopsTheOthers(t *testing.T) {
	y := newYard(t, 2, &api.RolloutPolicySpec{Reboots: api.RebootsRoll})
	y.object.Spec.MaxUnavailable = new(intstr.FromInt32(2))
	y.want("n00")
	y.look()
	y.work()
	y.nodes[0].NotReady, y.nodes[0].Rebooting = "Ready=Unknown", true
	y.look()
	y.want("n01")
	y.now = y.now.Add(time.Hour)
	y.nodes[1].RebootWanted.Reasons[0].Since = t0
	y.look()
	p := y.look()
	if hold := p.Rules.Reboots.Holds["n01"]; hold == nil || hold.Verdict != progress.RebootFailed ||
		!strings.Contains(hold.Because, "node n00 failed: the node has not come back from its reboot within") {
		t.Errorf("%+v", hold)
	}
}

func TestTheSimulatorShowsWantedReboots(t *testing.T) {
	y := newYard(t, 3, &api.RolloutPolicySpec{
		Reboots: api.RebootsRoll, Stages: []api.RolloutStage{{Name: "canary", Nodes: new(intstr.FromInt32(1)), SoakSeconds: 600}},
	})
	y.want("n00", "n02")
	var got []string
	for _, e := range Simulate(Fleet{
		Pool: y.object, Nodes: y.nodes, Policies: y.policies, Start: t0, Update: 5 * time.Minute, Limit: time.Hour,
	}) {
		got = append(got, strings.TrimSpace(e.At.Format("15:04 ")+e.What+" "+e.Node))
	}
	want := "03:00 reboots n00, 03:05 rebooted n00, 03:15 reboots n02, 03:20 rebooted n02, 03:20 finished"
	if strings.Join(got, ", ") != want {
		t.Errorf("%s\nwant %s", strings.Join(got, ", "), want)
	}
}

// Random wants, orders and failures: no more nodes are away than may be, each want is answered by one boot, and nothing
// reboots after a failure.
func TestRandomRebootsKeepTheRules(t *testing.T) {
	for seed := range uint64(150) {
		random := rand.New(rand.NewPCG(seed, 18))
		spec := &api.RolloutPolicySpec{Reboots: api.RebootsRoll}
		if random.IntN(2) == 0 {
			spec.Stages = []api.RolloutStage{{Name: "canary", Nodes: new(intstr.FromInt32(1)), SoakSeconds: int32(random.IntN(300))}}
		}
		if random.IntN(3) == 0 {
			spec.MinReadySeconds = int32(random.IntN(200))
		}
		y := newYard(t, 2+random.IntN(8), spec)
		y.object.Spec.MaxUnavailable = new(intstr.FromInt32(1 + random.Int32N(3)))
		wants := map[string]int{}
		fails := -1
		if random.IntN(3) == 0 {
			fails = random.IntN(len(y.nodes))
			y.fails[y.nodes[fails].Name] = true
		}
		for range 3 {
			for i := range y.nodes {
				if n := &y.nodes[i]; random.IntN(3) == 0 && n.RebootWanted == nil && n.RebootOrdered() == nil {
					y.want(n.Name)
					wants[n.Name]++
				}
			}
			for range random.IntN(20) {
				y.look()
				y.work()
			}
		}
		y.run()
		failed := fails >= 0 && y.boots[y.nodes[fails].Name] > 0
		for i := range y.nodes {
			n := &y.nodes[i]
			if y.boots[n.Name] > wants[n.Name] || !failed && n.RebootWanted != nil {
				t.Errorf("seed %d: node %s wanted %d reboots and had %d: %q", seed, n.Name, wants[n.Name], y.boots[n.Name], y.log)
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
