// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

var t0 = time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)

// node is written "name current>desired state", and what is said of it after that: the words are in testdata/README.md.
// Where > is missing it was told what it has; - is nothing.
func node(t *testing.T, text string) progress.Node {
	t.Helper()
	words := strings.Fields(text)
	n := progress.Node{Name: words[0], Created: t0}
	n.Current, n.Desired, _ = strings.Cut(words[1], ">")
	if !strings.Contains(words[1], ">") {
		n.Desired = n.Current
	}
	n.State = api.State(words[2])
	if words[2] == "-" {
		n.State = ""
	}
	if n.Current == "-" {
		n.Current = ""
	}
	if n.Desired == "-" {
		n.Desired = ""
	}
	for _, word := range words[3:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "cordoned":
			if n.Cordoned = true; value == "agent" {
				n.Cordon = &api.Cordon{By: api.Daemon}
			}
		case "sent":
			n.Arrived = api.Arrival{Config: n.Desired}
		case "came-back":
			n.Reason = "rolled back from " + value + " to " + n.Current + ": somebody went back"
		case "drifted":
			n.Drift = &api.Drift{Items: []api.DriftItem{{Kind: "file", Name: "/etc/motd", What: []string{"contents"}, Since: t0}}}
		case "notready":
			n.NotReady = "Ready=Unknown: Kubelet stopped posting node status."
		case "tainted":
			n.Tainted = true
		case "single":
			n.SingleReplica = true
		case "zone":
			n.Zone = value
		case "age":
			hours, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			n.Created = t0.Add(-time.Duration(hours) * time.Hour)
		case "lift":
			n.Lift = value
		case "failed":
			n.Quarantined = append(n.Quarantined, api.Quarantine{Config: value, Reason: "kubelet is down", Since: t0})
		default:
			t.Fatalf("what is %q?", word)
		}
	}
	return n
}

type setup struct {
	pool           string // worker where empty
	target         string // empty: B; "-": the pool has no target
	paused         bool
	maxUnavailable string
	annotations    map[string]string
	nodes          []string
	options        bounds
}

func (s setup) object() *mcfgv1.MachineConfigPool {
	object := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: s.pool, Annotations: s.annotations}}
	object.Spec.Paused = s.paused
	object.Spec.Configuration.Name = s.target
	if s.pool == "" {
		object.Name = api.PoolWorker
	}
	switch s.target {
	case "":
		object.Spec.Configuration.Name = "B"
	case "-":
		object.Spec.Configuration.Name = ""
	}
	if s.maxUnavailable != "" {
		v := intstr.Parse(s.maxUnavailable)
		object.Spec.MaxUnavailable = &v
	}
	return object
}

func (s setup) state(t *testing.T) progress.Pool {
	t.Helper()
	var nodes []progress.Node
	for _, text := range s.nodes {
		nodes = append(nodes, node(t, text))
	}
	return progress.NewPool(s.object(), nodes)
}

func TestWhoIsSentWhere(t *testing.T) {
	t.Parallel()
	runTable(t, "send.txt")
}

func TestNodesAreToldInTheOrderInWhichTheyGo(t *testing.T) {
	p := setup{maxUnavailable: "3", nodes: []string{"a A Done", "b A Done zone=z2", "c A Done zone=z1", "d A Done"}}.state(t)
	var got []string
	for _, s := range decide(p, bounds{}).Steps {
		got = append(got, s.Node)
	}
	if diff := cmp.Diff([]string{"c", "b", "a", "d"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAFailureAfterALiftWithdrawsTheLift(t *testing.T) {
	p := setup{nodes: []string{"a A>B RolledBack failed=B lift=B"}}.state(t)
	d := decide(p, bounds{})
	if len(d.Steps) != 1 || d.Steps[0].Lift != "" || d.Steps[0].sends() {
		t.Errorf("got %+v", d.Steps)
	}
}

func TestALiftIsForgottenWhenTheNodeIsSentElsewhere(t *testing.T) {
	p := setup{target: "C", nodes: []string{"a B Done lift=B"}}.state(t)
	d := decide(p, bounds{})
	if len(d.Steps) != 1 || d.Steps[0].Lift != "" || d.Steps[0].Desired != "C" {
		t.Errorf("got %+v", d.Steps)
	}
}

func TestTheOwnNodeIsSaidToWaitOnlyWhereItWouldHaveBeenNext(t *testing.T) {
	t.Parallel()
	runTable(t, "own-node.txt")
}

func TestTheTaintIsWhereARolloutIsStillToCome(t *testing.T) {
	t.Parallel()
	runTable(t, "taint.txt")
}

func TestTheOnlyNodeIsToldSoAndToldWhenItIsNot(t *testing.T) {
	t.Parallel()
	runTable(t, "only-node.txt")
}

// Every pair of nodes in every state, under every rule that must never break.
func TestWhateverStateTwoNodesAreIn(t *testing.T) {
	var all []progress.Node
	for _, current := range []string{"", "A", "B", "X"} {
		for _, desired := range []string{"", "A", "B", "X"} {
			for _, state := range []api.State{"", api.Done, api.Working, api.Degraded, api.RolledBack} {
				for out := range 4 {
					n := progress.Node{Node: api.Node{Current: current, Desired: desired, State: state}, Cordoned: out&1 != 0}
					if out&2 != 0 {
						n.NotReady = "it is off"
					}
					all = append(all, n)
				}
			}
		}
	}
	for i, a := range all {
		for _, b := range all[i:] {
			for _, limit := range []int32{1, 2} {
				a.Name, b.Name = "a", "b"
				checkRules(t, progress.NewPool(ofTwo(limit), []progress.Node{a, b}))
				if t.Failed() {
					t.Fatalf("of %+v and %+v with maxUnavailable %d", a, b, limit)
				}
			}
		}
	}
}

func ofTwo(limit int32) *mcfgv1.MachineConfigPool {
	object := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: api.PoolWorker}}
	object.Spec.Configuration.Name = "B"
	object.Spec.MaxUnavailable = new(intstr.FromInt32(limit))
	return object
}

func checkRules(t *testing.T, p progress.Pool) {
	t.Helper()
	sent := map[string]bool{}
	after := slices.Clone(p.Nodes)
	d := decide(p, bounds{})
	for _, s := range d.Steps {
		i := slices.IndexFunc(after, func(n progress.Node) bool { return n.Name == s.Node })
		after[i].Desired, after[i].Tainted, after[i].Lift = s.Desired, s.Tainted, s.Lift
		if s.sends() {
			sent[s.Node] = true
			if s.Desired != p.Target {
				t.Errorf("%s is sent to %s, which is not the target", s.Node, s.Desired)
			}
		}
	}
	away, calledBack := 0, false
	for i, n := range p.Nodes {
		asked := n.Desired != p.Target
		calledBack = calledBack || sent[n.Name] && n.Current == p.Target
		if asked && (leaving(&n) || n.Current == p.Target) && !sent[n.Name] {
			t.Errorf("%s is stuck, and not sent on", n.Name)
		}
		if n.Takes(p.Target) || sent[n.Name] && n.Current != p.Target {
			away++
		}
		if sent[n.Name] && n.Current != p.Target && n.Serving() && !leaving(&n) && away > p.MaxUnavailable {
			t.Errorf("%s serves, and is sent although %d nodes are out of service", n.Name, away)
		}
		if !after[i].Updated(p.Target) && !sent[n.Name] && asked && len(p.Taking()) == 0 && len(sent) == 0 {
			t.Errorf("%s could go, and nobody is sent", n.Name)
		}
	}
	for _, s := range decide(progress.NewPool(ofTwo(int32(p.MaxUnavailable)), after), bounds{}).Steps {
		// Where one was called back before it had begun, the next may go.
		if sent[s.Node] || s.sends() && !calledBack {
			t.Errorf("%s is told twice: %+v", s.Node, s)
		}
	}
}

func TestNodesOfAPoolThatCanNotBeReadAreToldNothingAndWatchedStill(t *testing.T) {
	object := setup{}.object()
	object.Annotations = map[string]string{api.UnreadableKey: "spec.maxUnavailable can't be read: x"}
	waits := progress.Node{Name: "n"}
	waits.Current, waits.Desired, waits.State, waits.Drained, waits.Tainted = "A", "C", api.Working, "C", true
	waits.SingleReplica, waits.Arrived, waits.Lift = true, api.Arrival{Config: "C"}, "C"
	overdue := api.Awaited{Config: "C", Since: t0}
	for name, c := range map[string]struct {
		awaited api.Awaited
		change  func(*progress.Node)
		now     time.Time
		want    *api.Awaited
	}{
		"it begins to be waited for": {now: t0, want: &api.Awaited{Config: "C", Since: t0}},
		"it is waited for":           {awaited: overdue, now: t0.Add(time.Minute)},
		"its time is over": {
			awaited: overdue, now: t0.Add(time.Hour), want: &api.Awaited{Config: "C", Since: t0, Overdue: t0.Add(time.Hour)},
		},
		"it has arrived": {
			awaited: overdue, now: t0.Add(time.Hour), want: &api.Awaited{},
			change: func(n *progress.Node) { n.Current, n.State = "C", api.Done },
		},
		"nothing is waited for": {now: t0, change: func(n *progress.Node) { n.Current, n.Desired, n.State = "A", "A", api.Done }},
	} {
		t.Run(name, func(t *testing.T) {
			n := waits
			n.Awaited = c.awaited
			if c.change != nil {
				c.change(&n)
			}
			steps := decide(progress.NewPool(object, []progress.Node{n}), bounds{Now: c.now}).Steps
			if c.want == nil {
				if len(steps) != 0 {
					t.Errorf("it is told %+v", steps)
				}
				return
			}
			want := nodeStep{
				Node: "n", Desired: n.Desired, Before: n.Desired, Lift: "C", SingleReplica: true, Tainted: true,
				Arrived: n.Arrived, Awaited: *c.want,
			}
			if len(steps) != 1 || steps[0] != want {
				t.Errorf("it is told %+v, want %+v", steps, want)
			}
		})
	}
}

func TestTheWorldIsLookedAtAgainWhenAVerdictIsOverdueAndNotForWhatIsPast(t *testing.T) {
	p := progress.Pool{Nodes: make([]progress.Node, 2)}
	for i, since := range []time.Time{t0, t0.Add(time.Minute)} {
		n := &p.Nodes[i]
		n.Current, n.Desired, n.State, n.Drained = "A", "C", api.Working, "C"
		n.Awaited = api.Awaited{Config: "C", Since: since}
	}
	first, second := p.Nodes[0].VerdictDue(), p.Nodes[1].VerdictDue()
	for _, c := range []struct{ now, want time.Time }{
		{t0, first}, {first, second}, {first.Add(time.Second), second}, {second, time.Time{}}, {second.Add(time.Hour), time.Time{}},
	} {
		w := &world{now: c.now}
		w.wakeForVerdicts(&p)
		if !w.next.Equal(c.want) {
			t.Errorf("at %s the next look is at %s, want %s", c.now, w.next, c.want)
		}
	}
}
