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

// node is written "name current>desired state", and what is said of it after that: cordoned, notready, tainted, zone=z,
// age=n (hours), lift=c, failed=c (quarantined there at t0), single, ours (cordoned by our ledger), came-back=c (it says). Where > is missing it was told what it has.
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
			n.Cordoned = true
		case "ours":
			n.Cordoned, n.Cordon = true, &api.Cordon{By: api.Daemon}
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
	target         string // B where empty
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
	if s.target == "" {
		object.Spec.Configuration.Name = "B"
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

// sends are the nodes that a decision sends somewhere or lets try again, as "name>config", by name.
func sends(p progress.Pool, d decision) []string {
	var out []string
	for _, s := range d.Steps {
		i := slices.IndexFunc(p.Nodes, func(n progress.Node) bool { return n.Name == s.Node })
		if s.sends() || s.Lift != p.Nodes[i].Lift {
			text := s.Node + ">" + s.Desired
			if s.Lift != "" {
				text += " lift"
			}
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return out
}

// The same content in two pools.
const (
	renderedWorker = "rendered-worker-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	renderedInfra  = "rendered-infra-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func TestWhoIsSentWhere(t *testing.T) {
	quarantined := map[string]string{api.PoolQuarantineKey: api.Encode([]api.Quarantine{
		{Config: "B", Node: "gone", Reason: "kubelet is down", Since: t0},
	})}
	lifted := map[string]string{api.LiftedKey: api.Encode([]api.Lifted{{
		Config: "B", Failures: []api.Failure{{Node: "a", Since: t0}, {Node: "b", Since: t0}, {Node: "gone", Since: t0}},
	}})}
	liftedBefore := map[string]string{api.LiftedKey: api.Encode([]api.Lifted{{
		Config: "B", Failures: []api.Failure{{Node: "b", Since: t0.Add(-time.Second)}, {Node: "c", Since: t0}},
	}})}
	for _, test := range []struct {
		name string
		setup
		want []string
	}{
		// How many.
		{"one at a time by default", setup{nodes: []string{"a A Done", "b A Done", "c A Done"}}, []string{"a>B"}},
		{"nobody while one is away", setup{nodes: []string{"a A>B Working", "b A Done"}}, nil},
		{"nobody while one boots", setup{nodes: []string{"a A>B Working notready cordoned", "b A Done"}}, nil},
		{"nobody while one was told and has not begun", setup{nodes: []string{"a A>B Done", "b A Done"}}, nil},
		{"the next when it has arrived", setup{nodes: []string{"a B Done", "b A Done", "c A Done"}}, []string{"b>B"}},
		{"nobody while one that arrived is still cordoned", setup{nodes: []string{"a B Done cordoned", "b A Done"}}, nil},
		{"nobody while one that arrived is not ready", setup{nodes: []string{"a B Done notready", "b A Done"}}, nil},
		{"a number", setup{maxUnavailable: "2", nodes: []string{"a A Done", "b A Done", "c A Done"}}, []string{"a>B", "b>B"}},
		{"the rest of a number", setup{maxUnavailable: "2", nodes: []string{"a A>B Working", "b A Done", "c A Done"}}, []string{"b>B"}},
		{"a percentage, rounded down", setup{maxUnavailable: "50%", nodes: []string{"a A Done", "b A Done", "c A Done"}}, []string{"a>B"}},
		{"a percentage of less than a node is one", setup{maxUnavailable: "33%", nodes: []string{"a A Done", "b A Done"}}, []string{"a>B"}},
		{"none is one", setup{maxUnavailable: "0", nodes: []string{"a A Done", "b A Done"}}, []string{"a>B"}},
		{"nonsense is one", setup{maxUnavailable: "lots", nodes: []string{"a A Done", "b A Done"}}, []string{"a>B"}},
		{"less than none is one", setup{maxUnavailable: "-3", nodes: []string{"a A Done", "b A Done"}}, []string{"a>B"}},
		{"more than there are", setup{maxUnavailable: "9", nodes: []string{"a A Done", "b A Done"}}, []string{"a>B", "b>B"}},
		{"a node that failed counts against going on", setup{nodes: []string{"a A>B Degraded", "b A Done"}}, nil},
		{"and no more than that", setup{maxUnavailable: "2", nodes: []string{"a A>B Degraded", "b A Done", "c A Done"}}, []string{"b>B"}},
		{"a failed and cordoned node counts once", setup{maxUnavailable: "2", nodes: []string{"a A>B Degraded cordoned", "b A Done"}}, []string{"b>B"}},
		{"nobody is sent twice", setup{nodes: []string{"a A>B Working"}}, nil},
		{"nobody is sent where he is", setup{nodes: []string{"a B Done", "b B Done"}}, nil},

		// Who first.
		{"zones by name, none last", setup{maxUnavailable: "2", nodes: []string{"a A Done", "b A Done zone=z2", "c A Done zone=z1"}}, []string{"b>B", "c>B"}},
		{"the oldest of a zone", setup{nodes: []string{"a A Done zone=z", "b A Done zone=z age=2", "c A Done zone=z age=1"}}, []string{"b>B"}},
		{"a failed node before the others", setup{nodes: []string{"a A Done zone=a", "b A>X RolledBack zone=b"}}, []string{"b>B"}},
		{"nodes without an agent last", setup{nodes: []string{"a - - age=9", "b A Done"}}, []string{"b>B"}},
		{"a node that nobody configured", setup{nodes: []string{"a - -"}}, []string{"a>B"}},
		{"the own node last", setup{options: bounds{Self: "a"}, nodes: []string{"a A Done zone=a", "b A Done zone=b"}}, []string{"b>B"}},
		{"the own node in the end", setup{options: bounds{Self: "a"}, nodes: []string{"a A Done", "b B Done"}}, []string{"a>B"}},
		{"a node from another pool", setup{nodes: []string{"a W Done", "b B Done"}}, []string{"a>B"}},

		// A change of mind reaches everybody (W1).
		{"revert: degraded and cordoned", setup{nodes: []string{"a B>X Degraded cordoned", "b B Done"}}, []string{"a>B"}},
		{"revert: degraded and serving, another is dead", setup{nodes: []string{"a B>X Degraded", "b B Done notready"}}, []string{"a>B"}},
		{"revert: all at once", setup{nodes: []string{"a B>X Degraded", "b B>X Working cordoned", "c B>X RolledBack", "d B>X Unreconcilable"}}, []string{"a>B", "b>B", "c>B", "d>B"}},
		{"revert: mid-drain", setup{nodes: []string{"a B>X Working cordoned", "b B Done"}}, []string{"a>B"}},
		{"revert: not ready", setup{nodes: []string{"a B>X Working notready", "b B Done"}}, []string{"a>B"}},
		{"change: mid-drain to something else", setup{nodes: []string{"a A>X Working cordoned", "b A Done"}}, []string{"a>B"}},
		{"change: degraded and cordoned", setup{nodes: []string{"a A>X Degraded cordoned", "b A Done"}}, []string{"a>B"}},
		{"change: degraded and not ready", setup{nodes: []string{"a A>X Degraded notready", "b A Done"}}, []string{"a>B"}},
		{"change: degraded on what it has, serving", setup{nodes: []string{"a A Degraded", "b A Done"}}, []string{"a>B"}},
		{"change: told, not begun", setup{nodes: []string{"a A>X Done", "b A Done"}}, []string{"a>B"}},
		{"change: a failed node that serves waits for one that is dead", setup{nodes: []string{"a A>X Degraded", "b X Done notready"}}, []string{"b>B"}},
		{"change: degraded, cordoned by us, beside others", setup{nodes: []string{"a A>X Degraded ours", "b A>X Degraded ours notready", "c A>B Working"}}, []string{"a>B", "b>B"}},
		{"change: degraded and cordoned by a person, no more than may be", setup{nodes: []string{"a A>X Degraded cordoned", "b A>X Degraded cordoned", "c A Done"}}, []string{"a>B"}},
		{"change: degraded and cordoned by a person, beside one under way", setup{nodes: []string{"a A>X Degraded cordoned", "c A>B Working"}}, nil},
		{"change: at work where they are, they serve", setup{nodes: []string{"a A Working", "b A Working"}}, nil},
		{"change: at work where it is", setup{nodes: []string{"a A Working", "b A Done"}}, []string{"a>B"}},
		{"change: at work where it is, and not ready", setup{nodes: []string{"a A Working notready", "b A Done"}}, []string{"a>B"}},
		{"change: turned round by us, on its way home", setup{nodes: []string{"a A Working ours", "b A>X Working ours"}}, []string{"a>B", "b>B"}},
		{"change: more are under way than may be", setup{nodes: []string{"a A>X Working", "b A>X Working", "c A Done"}}, []string{"a>B", "b>B"}},

		// Nodes that are out of service anyway.
		{"cordoned by somebody: first, as nobody misses it", setup{nodes: []string{"a A Done", "b A Done cordoned"}}, []string{"b>B"}},
		{"cordoned by somebody: one of two", setup{nodes: []string{"a A Done cordoned", "b A Done cordoned"}}, []string{"a>B"}},
		{"cordoned by somebody: not beside one that is under way", setup{nodes: []string{"a A Done cordoned", "b A>B Working"}}, nil},
		{"not ready: after the cordoned", setup{nodes: []string{"a A Done notready", "b A Done cordoned"}}, []string{"b>B"}},
		{"not ready: told what to do when it is back", setup{nodes: []string{"a A Done notready", "b A Done"}}, []string{"a>B"}},
		{"a dark zone does not come back to leave at once", setup{maxUnavailable: "2", nodes: []string{"a A Done notready", "b A Done notready", "c A Done notready", "d A Done"}}, []string{"a>B", "b>B"}},
		{"nor does one whose nodes all failed", setup{maxUnavailable: "2", nodes: []string{"a A>X Degraded notready", "b A>X Degraded notready", "c A>X Degraded notready", "d A Done"}}, []string{"a>B", "b>B"}},
		{"a dead node takes a share, and no more", setup{maxUnavailable: "2", nodes: []string{"a A>B Working notready", "b A Done", "c A Done"}}, []string{"b>B"}},

		// Stopped.
		{"paused", setup{paused: true, nodes: []string{"a A Done", "b A>X Degraded cordoned"}}, nil},
		{"no configuration yet", setup{target: "-none", annotations: map[string]string{api.PoolQuarantineKey: api.Encode([]api.Quarantine{{Config: "-none", Since: t0}})}, nodes: []string{"a A Done"}}, nil},
		{"quarantined: nobody", setup{annotations: quarantined, nodes: []string{"a A Done", "b A Done cordoned", "c A Done notready"}}, nil},
		{"quarantined: those on their way turn round", setup{annotations: quarantined, nodes: []string{"a A>B Working", "b A>B Working cordoned notready", "c A>B Done", "d A>B Degraded cordoned"}}, []string{"a>A", "b>A", "c>A", "d>A"}},
		{"quarantined: also in a paused pool", setup{paused: true, annotations: quarantined, nodes: []string{"a A>B Working"}}, []string{"a>A"}},
		{"quarantined: the node that found out goes on saying so", setup{nodes: []string{"a A>B RolledBack failed=B", "b A Done"}}, nil},
		{"quarantined: where it works it stays", setup{annotations: quarantined, nodes: []string{"a B Done", "b A Done"}}, nil},
		{"quarantined: other ways are left alone", setup{annotations: quarantined, nodes: []string{"a A>X Working"}}, nil},
		{"quarantined: nowhere to turn", setup{annotations: quarantined, nodes: []string{"a ->B Working"}}, nil},
		{"quarantined: changed content goes on", setup{target: "C", annotations: quarantined, nodes: []string{"a A>B RolledBack failed=B", "b A Done"}}, []string{"a>C"}},
		{"quarantined: changed content, and one that still tries the old one", setup{target: "C", annotations: quarantined, nodes: []string{"a A>C Working", "b A>B Degraded"}}, []string{"b>A"}},
		{"quarantined: reverted", setup{target: "A", annotations: quarantined, nodes: []string{"a A>B RolledBack failed=B", "b A>B Working cordoned", "c A Done"}}, []string{"a>A", "b>A"}},
		{"quarantined on a node of the pool", setup{maxUnavailable: "2", nodes: []string{"a A>B RolledBack failed=B", "b A>B Working", "c A Done"}}, []string{"b>A"}},

		// Lifted.
		{"lifted: the failed node tries again, before the others", setup{annotations: lifted, nodes: []string{"a A Done", "b A>B RolledBack failed=B"}}, []string{"b>B lift"}},
		{"lifted: told once", setup{annotations: lifted, nodes: []string{"a A Done", "b A>B RolledBack failed=B lift=B"}}, nil},
		{"lifted: alone, whatever may be away", setup{maxUnavailable: "3", annotations: lifted, nodes: []string{"c A Done", "b A>B RolledBack failed=B", "d A Done cordoned"}}, []string{"b>B lift"}},
		{"lifted: alone until it is proved", setup{maxUnavailable: "3", annotations: lifted, nodes: []string{"c A Done", "b A>B Working"}}, nil},
		{"lifted: then the others", setup{maxUnavailable: "3", annotations: lifted, nodes: []string{"c A Done", "b B Done"}}, []string{"c>B"}},
		{"lifted: the node that knew is gone", setup{annotations: lifted, nodes: []string{"c A Done"}}, []string{"c>B"}},
		{"lifted: a change of mind reaches others all the same", setup{annotations: lifted, nodes: []string{"c B>X Degraded", "b A>B RolledBack failed=B"}}, []string{"b>B lift", "c>B"}},
		{"lifted: not while another is away", setup{annotations: lifted, nodes: []string{"d A Done notready", "b A>B RolledBack failed=B"}}, nil},
		{"lifted: a node that was turned round", setup{annotations: lifted, nodes: []string{"a A Done failed=B"}}, []string{"a>B lift"}},

		// Content, under whatever pool's name.
		{"quarantined under another pool's name", setup{target: renderedInfra, nodes: []string{"a A Done failed=" + renderedWorker, "b A Done"}}, nil},
		{"quarantined under another pool's name: turned round", setup{target: renderedInfra, maxUnavailable: "2", nodes: []string{"a A Done failed=" + renderedWorker, "b A>" + renderedInfra + " Working"}}, []string{"b>A"}},
		{"lifted under another pool's name", setup{target: renderedInfra, annotations: map[string]string{api.LiftedKey: api.Encode([]api.Lifted{{Config: renderedInfra, Failures: []api.Failure{{Node: "a", Since: t0}}}})}, nodes: []string{"a A Done failed=" + renderedWorker, "b A Done"}}, []string{"a>" + renderedInfra + " lift"}},

		// Rolled back, and nothing is listed.
		{"unlisted: the pool stops", setup{maxUnavailable: "3", nodes: []string{"a A>B RolledBack came-back=B", "b A Done", "c A>B Working"}}, []string{"c>A"}},
		{"unlisted: other content goes on, to it first", setup{target: "C", nodes: []string{"a A>B RolledBack came-back=B", "b A Done"}}, []string{"a>C"}},
		{"unlisted: it was just sent elsewhere", setup{target: "C", maxUnavailable: "2", nodes: []string{"a A>C RolledBack came-back=B", "b A Done"}}, []string{"b>C"}},
		{"unlisted: lifted by the time that the pool gave it", setup{maxUnavailable: "3", annotations: map[string]string{
			api.PoolQuarantineKey: api.Encode([]api.Quarantine{{Config: "B", Node: "a", Since: t0}}), api.LiftedKey: lifted[api.LiftedKey],
		}, nodes: []string{"a A>B RolledBack came-back=B", "c A Done"}}, []string{"a>B lift"}},
		{"lifted before it failed: in force", setup{annotations: liftedBefore, nodes: []string{"a A Done", "b A>B RolledBack failed=B"}}, nil},

		// The control plane.
		{"control plane: one, whatever is said", setup{pool: "master", maxUnavailable: "3", nodes: []string{"a A Done", "b A Done", "c A Done"}}, []string{"a>B"}},
		{"control plane: not beside a member of another pool", setup{pool: "arbiter", options: bounds{Elsewhere: 1}, nodes: []string{"a A Done"}}, nil},
		{"control plane: a cordoned member is a member", setup{pool: "master", nodes: []string{"a A Done cordoned", "b A Done notready"}}, nil},
		{"control plane: the cordoned one if all others are there", setup{pool: "master", nodes: []string{"a A Done cordoned", "b A Done"}}, []string{"a>B"}},
		{"control plane: the dead one if all others are there", setup{pool: "master", nodes: []string{"a A Done notready", "b A Done"}}, []string{"a>B"}},
		{"control plane: degraded and cordoned, one at a time", setup{pool: "master", nodes: []string{"a A>X Degraded ours", "b A>X Degraded ours", "c A Done"}}, []string{"a>B"}},
		{"control plane: degraded, not beside one under way", setup{pool: "master", nodes: []string{"a A>B Working ours", "b A>X Degraded ours"}}, nil},
		{"control plane: degraded, not beside one that is dead", setup{pool: "master", nodes: []string{"a A Done notready", "b A>X Degraded ours"}}, nil},
		{"control plane: degraded, the one that serves waits for the one that does not", setup{pool: "master", nodes: []string{"a A>X Degraded", "b A>X Degraded ours"}}, []string{"b>B"}},
		{"control plane: degraded, not beside a member of another pool", setup{pool: "master", options: bounds{Elsewhere: 1}, nodes: []string{"b A>X Degraded ours"}}, nil},
		{"control plane: degraded, and so is a member of another pool", setup{pool: "master", options: bounds{Elsewhere: 1, StuckElsewhere: 1}, nodes: []string{"b A>X Degraded ours"}}, []string{"b>B"}},
		{"control plane: back to where they are, all", setup{pool: "master", nodes: []string{"a B>X Degraded ours", "b B>X Degraded ours"}}, []string{"a>B", "b>B"}},
		{"control plane: at work where they are", setup{pool: "master", nodes: []string{"a A Working", "b A Working"}}, nil},
		{"control plane: a change of mind reaches it", setup{pool: "master", nodes: []string{"a A>X Working cordoned notready", "b A Done"}}, []string{"a>B"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := test.state(t)
			if diff := cmp.Diff(test.want, sends(p, decide(p, test.options))); diff != "" {
				t.Errorf("sent (-want +got):\n%s", diff)
			}
		})
	}
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
	for _, test := range []struct {
		name  string
		nodes []string
		want  bool
	}{
		{"it would have been", []string{"a A Done zone=a", "b A Done zone=b"}, true},
		{"others were before it anyway", []string{"a A Done zone=z", "b A Done zone=b"}, false},
		{"nobody is sent", []string{"a A Done zone=a", "b A>B Working"}, false},
		{"it is sent", []string{"a A Done zone=a", "b B Done"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := decide(setup{nodes: test.nodes}.state(t), bounds{Self: "a"}).DefersSelf; got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestTheTaintIsWhereARolloutIsStillToCome(t *testing.T) {
	for _, test := range []struct {
		name  string
		setup setup
		want  bool
	}{
		{"waiting", setup{nodes: []string{"a A Done", "b A>B Working"}}, true},
		{"sent", setup{nodes: []string{"a A Done"}}, true},
		{"under way", setup{nodes: []string{"a A>B Working tainted"}}, true},
		{"arrived", setup{nodes: []string{"a B Done tainted"}}, false},
		{"never touched", setup{nodes: []string{"a B Done"}}, false},
		{"reverted at rest: not worth it", setup{nodes: []string{"a B>X RolledBack"}}, false},
		{"reverted under way: until it is there", setup{nodes: []string{"a B>X Working tainted"}}, true},
		{"degraded", setup{nodes: []string{"a A>B Degraded tainted"}}, true},
		{"paused, waiting", setup{paused: true, nodes: []string{"a A Done tainted"}}, false},
		{"paused, under way", setup{paused: true, nodes: []string{"a A>B Working tainted"}}, true},
		{"stopped, waiting", setup{nodes: []string{"a A Done tainted", "b A>B RolledBack failed=B"}}, false},
		{"stopped, rolled back", setup{nodes: []string{"a A>B RolledBack failed=B tainted"}}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := test.setup.state(t)
			got := p.Nodes[0].Tainted
			for _, s := range decide(p, bounds{}).Steps {
				if s.Node == "a" {
					got = s.Tainted
				}
			}
			if got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestTheOnlyNodeIsToldSoAndToldWhenItIsNot(t *testing.T) {
	for _, test := range []struct {
		node   string
		single bool
		steps  int
	}{
		{"a B Done", true, 1}, {"a B Done single", true, 0}, {"a B Done single", false, 1}, {"a B Done", false, 0},
	} {
		d := decide(setup{nodes: []string{test.node}}.state(t), bounds{SingleReplica: test.single})
		if len(d.Steps) != test.steps || len(d.Steps) > 0 && d.Steps[0].SingleReplica != test.single {
			t.Errorf("%s, single %v: got %+v", test.node, test.single, d.Steps)
		}
	}
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
