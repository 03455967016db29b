// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
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

func TestASimulationThatLeavesNodesOutSaysWhatOneOfTheWholePoolSays(t *testing.T) {
	finished, less := 0, 0
	for seed := range uint64(400) {
		f := mixed(seed)
		short, whole := newSimulation(f), newSimulation(f)
		whole.whole = true
		for short.turn() {
		}
		for whole.turn() {
		}
		if diff := diff.Diff(whole.log, short.log); diff != "" {
			t.Fatalf("seed %d (-whole +short):\n%s", seed, diff)
		}
		if diff := diff.Diff(whole.Nodes, short.Nodes); diff != "" {
			t.Fatalf("seed %d: in the end (-whole +short):\n%s", seed, diff)
		}
		finished += rank(whole.log[len(whole.log)-1].What == Finished)
		less += rank(short.looked < whole.looked)
	}
	t.Logf("of 400 rollouts %d finished, %d looked at fewer nodes", finished, less)
	if finished < 100 || less < 200 {
		t.Error("too few rollouts show anything")
	}
}

func TestASimulatedDecisionCostsWhatChanges(t *testing.T) {
	for _, size := range []int{100, 1000, 5000} {
		object := setup{maxUnavailable: "1"}.object()
		object.Spec.Configuration.Name = "B"
		s := newSimulation(Fleet{Pool: object, Nodes: fleet(size), Start: t0, Update: time.Minute, Limit: 1000 * time.Hour})
		for s.turn() {
		}
		if end := s.log[len(s.log)-1]; end.What != Finished {
			t.Fatalf("%d nodes: %+v", size, end)
		}
		// At first all are looked at, and told what a rollout tells all; then the one that goes and the one after it.
		if most := 10 * size; s.looked > most {
			t.Errorf("%d nodes one at a time: decisions were about %d nodes, want at most %d", size, s.looked, most)
		}
	}
}
