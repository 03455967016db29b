// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"fmt"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// One node goes first and soaks for an hour. The others wait until then.
func ExampleBook_Follow() {
	first := intstr.FromInt32(1)
	policy := api.RolloutPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "careful"},
		Spec: api.RolloutPolicySpec{Pools: []string{"worker"},
			Stages: []api.RolloutStage{{Name: "canary", Nodes: &first, SoakSeconds: 3600}}},
	}
	now := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	arrived := now.Add(-20 * time.Minute)
	object := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	object.Spec.Configuration.Name = "rendered-worker-b"
	pool := progress.NewPool(object, []progress.Node{
		{Name: "node-1", ReadySince: arrived, Node: api.Node{Current: "rendered-worker-b", Desired: "rendered-worker-b",
			State: api.Done, Arrived: api.Arrival{Config: "rendered-worker-b", Since: arrived}}},
		{Name: "node-2", Node: api.Node{Current: "rendered-worker-a", Desired: "rendered-worker-a", State: api.Done}},
	})

	book := rollout.NewBook([]api.RolloutPolicy{policy}, rollout.Unasked)
	book.Follow([]*progress.Pool{&pool}, now, "")
	for _, n := range pool.Nodes {
		if hold := pool.Held(&n); hold != nil {
			fmt.Println(n.Name, hold.Verdict, hold.Because)
		}
	}
	// Output:
	// node-2 Soaking stage canary has arrived and soaks until 2026-03-02T12:40:00Z
}
