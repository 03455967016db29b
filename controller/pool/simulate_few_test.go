// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// mixed is a made-up fleet without a policy, some nodes of which are not as the others.
func mixed(seed uint64) Fleet {
	chance := rand.New(rand.NewPCG(seed, 7))
	object := setup{}.object()
	object.Spec.Configuration.Name, object.Status.Configuration.Name = "B", "A"
	most := intstr.FromInt32(1 + chance.Int32N(4))
	if chance.IntN(3) == 0 {
		most = intstr.FromString(fmt.Sprintf("%d%%", 1+chance.IntN(40)))
	}
	object.Spec.MaxUnavailable = &most
	if chance.IntN(6) == 0 {
		object.Name = api.PoolMaster
	}
	if chance.IntN(8) == 0 {
		object.Annotations = map[string]string{api.LiftedKey: api.Encode([]api.Lifted{{Config: "B",
			Failures: []api.Failure{{Node: "n-03"}}}})}
	}
	f := Fleet{Pool: object, Nodes: fleet(2 + chance.IntN(40)), Start: t0, Update: 5 * time.Minute,
		Limit: 30 * 24 * time.Hour, Fails: map[string]bool{}}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		n.Zone, n.Created = fmt.Sprintf("z%d", chance.IntN(3)), t0.Add(-time.Duration(chance.IntN(50))*time.Hour)
		switch chance.IntN(25) {
		case 0:
			n.Cordoned = true
		case 1:
			n.NotReady = "KubeletDown"
		case 2:
			n.State, n.Reason = api.Degraded, "it can't"
		case 3:
			n.Node = api.Node{}
		case 4:
			n.Current, n.Desired = "B", "B"
		case 5:
			n.Desired, n.State = "C", api.Working
		case 6:
			n.Desired, n.State, n.Reason = "C", api.Degraded, "it can't"
		case 7:
			n.Tainted = true
		case 8:
			n.Desired = ""
		case 9:
			f.Self = n.Name
		case 10:
			f.Fails[n.Name] = seed%3 == 0
		case 11:
			n.Cordoned, n.Cordon = true, &api.Cordon{By: api.Daemon, Config: "B"}
		}
	}
	return f
}

// governed gives a made-up fleet a made-up policy, some of whose stages and nodes are about labels.
func governed(f Fleet, seed uint64) Fleet {
	chance := rand.New(rand.NewPCG(seed, 8))
	one := func(in int) bool { return chance.IntN(in) == 0 }
	some := func() *intstr.IntOrString {
		v := intstr.FromInt32(1 + chance.Int32N(6))
		if one(2) {
			v = intstr.FromString(fmt.Sprintf("%d%%", 1+chance.IntN(60)))
		}
		return &v
	}
	spec := api.RolloutPolicySpec{Pools: []string{f.Pool.Name}, MinReadySeconds: 60 * chance.Int32N(4)}
	gates := []api.Gate{{Name: "g", Job: &api.JobGate{Namespace: "n", CronJob: "j"}, DeadlineSeconds: 60}}
	for i := range chance.IntN(4) {
		s := api.RolloutStage{Name: fmt.Sprintf("s%d", i), SoakSeconds: 300 * chance.Int32N(4)}
		if one(4) {
			s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"group": fmt.Sprint(chance.IntN(3))}}
		}
		if s.NodeSelector == nil || one(2) {
			s.Nodes = some()
		}
		if one(2) {
			s.MaxUnavailable = some()
		}
		if one(3) {
			s.Gates = gates
		}
		spec.Stages = append(spec.Stages, s)
	}
	if one(3) {
		spec.Gates = gates
	}
	if one(2) {
		spec.FailureBudget = some()
	}
	if one(2) {
		spec.Drain = &api.DrainPolicy{TimeoutSeconds: 60}
	}
	if one(3) {
		spec.Windows = &api.RolloutWindows{Open: []api.Window{{Cron: "0 22 * * *", DurationMinutes: 30 + chance.Int32N(60)}},
			OnClose: []api.WindowClose{"", api.CloseTakesBackDraining, api.CloseFinishes}[chance.IntN(3)]}
	}
	if one(3) {
		spec.Staging = &api.RolloutStaging{MaxConcurrent: some()}
		f.Staging = time.Duration(1+chance.IntN(9)) * time.Minute
	}
	if one(4) {
		spec.Approval, f.Approve = &api.RolloutApproval{}, time.Hour
	}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		n.Labels = map[string]string{"group": fmt.Sprint(chance.IntN(4))}
		n.Joining = n.Current == "" // no stage holds it
		if n.Current == "B" && one(3) {
			n.Previous = "A"
		}
		if one(40) {
			f.Fails[n.Name] = true
		}
	}
	f.Policies = []api.RolloutPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "random"}, Spec: spec}}
	return f
}

func TestASimulationThatLeavesNodesOutSaysWhatOneOfTheWholePoolSays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		seeds, finish, less int
		fleet               func(seed uint64) Fleet
	}{
		"without a policy":   {walks / 25, 4, 2, mixed},
		"by a policy":        {walks / 25, 8, 2, func(seed uint64) Fleet { return governed(mixed(seed), seed) }},
		"by a policy, alike": {walks / 25, 2, 2, func(seed uint64) Fleet { return alike(governed(mixed(seed), seed), seed) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			finished, less := 0, 0
			for seed := range uint64(c.seeds) {
				f := c.fleet(seed)
				short, whole := newSimulation(f), newSimulation(f)
				whole.whole = true
				for short.turn() {
				}
				for whole.turn() {
				}
				if diff := diff.Diff(whole.log, short.log); diff != "" {
					t.Fatalf("seed %d (-whole +short):\n%s\n%s", seed, diff, api.Encode(f.Policies))
				}
				if diff := diff.Diff(whole.Nodes, short.Nodes, diff.AllowUnexported(progress.Node{})); diff != "" {
					t.Fatalf("seed %d: in the end (-whole +short):\n%s\n%s", seed, diff, api.Encode(f.Policies))
				}
				finished += rank(whole.log[len(whole.log)-1].What == Finished)
				less += rank(short.looked < whole.looked)
			}
			t.Logf("of %d rollouts %d finished, %d looked at fewer nodes", c.seeds, finished, less)
			enough := c.seeds >= 100 // the race detector has time for a few, of which any number may be short
			if enough && (finished < c.seeds/c.finish || less < c.seeds/c.less) {
				t.Error("too few rollouts show anything")
			}
		})
	}
}

// alike has all nodes of a made-up fleet as they are in a healthy cluster, and fail nowhere but in a quarter of these.
func alike(f Fleet, seed uint64) Fleet {
	f.Pool.Annotations, f.Self = nil, ""
	if seed%4 > 0 {
		f.Fails = nil
	}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		f.Nodes[i] = progress.Node{Name: n.Name, Zone: n.Zone, Labels: n.Labels, Created: n.Created,
			Node: api.Node{Current: "A", Desired: "A", State: api.Done}}
	}
	return f
}

func TestASimulatedDecisionCostsWhatChanges(t *testing.T) {
	t.Parallel()
	// At first all are looked at, and told what a rollout tells all; then those that go and those after them.
	for name, c := range map[string]struct {
		policies []api.RolloutPolicy
		most     int // nodes that decisions are about, for each node of the pool
	}{
		"without a policy": {nil, 10},
		"by a policy":      {[]api.RolloutPolicy{documented(t)}, 60},
	} {
		for _, size := range []int{100, 1000, 5000} {
			object := setup{maxUnavailable: "1"}.object()
			s := newSimulation(Fleet{Pool: object, Nodes: fleet(size), Start: t0, Update: time.Minute, Staging: time.Minute,
				Approve: time.Minute, Limit: 100_000 * time.Hour, Policies: c.policies})
			for s.turn() {
			}
			if end := s.log[len(s.log)-1]; end.What != Finished {
				t.Fatalf("%s, %d nodes: %+v", name, size, end)
			}
			t.Logf("%s, %d nodes one at a time: decisions were about %d", name, size, s.looked)
			if most := c.most * size; s.looked > most {
				t.Errorf("%s, %d nodes one at a time: decisions were about %d nodes, want at most %d", name, size, s.looked, most)
			}
		}
	}
}

func TestASimulationDoesNotLookAgainAndAgainAtANodeThatIsNotReady(t *testing.T) {
	t.Parallel()
	f := Fleet{Pool: setup{maxUnavailable: "2"}.object(), Nodes: fleet(3), Start: t0, Update: 5 * time.Minute,
		Limit: 30 * 24 * time.Hour, Policies: []api.RolloutPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: api.RolloutPolicySpec{Pools: []string{"worker"}, MinReadySeconds: 60}}}}
	f.Nodes[1].NotReady = "KubeletDown"
	s, decisions := newSimulation(f), 1
	for s.turn() {
		decisions++
	}
	if end := s.log[len(s.log)-1]; end.What != Stuck || !strings.Contains(end.Because, "n-0001 is not ready") || decisions > 20 {
		t.Errorf("%d decisions, and then %+v", decisions, end)
	}
}
