// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

func TestWhichNodesComeBack(t *testing.T) {
	t.Parallel()
	const a, b, older = "rendered-worker-0000000000000000000000000000000a",
		"rendered-worker-0000000000000000000000000000000b", "rendered-worker-0000000000000000000000000000000c"
	pin := api.Encode(api.Pin{Config: a, From: b})
	for name, c := range map[string]struct {
		node   api.Node
		target string // a, where nothing is said
		pin    string
		comes  bool
	}{
		"it had the target":                       {node: api.Node{Current: b, Previous: a}, comes: true},
		"a rollout sent it":                       {node: api.Node{Current: b, Arrived: api.Arrival{Config: b}}, comes: true},
		"the same on its way":                     {node: api.Node{Current: b, Arrived: api.Arrival{Config: a}}, comes: true},
		"it joined with what was rolled back":     {node: api.Node{Current: b}, pin: pin, comes: true},
		"nobody knows":                            {node: api.Node{Current: b}},
		"it joined with something else":           {node: api.Node{Current: older}, pin: pin},
		"it is there":                             {node: api.Node{Current: a, Previous: a}},
		"it has nothing yet":                      {node: api.Node{Previous: a}},
		"it has what the pool had before":         {node: api.Node{Current: older, Arrived: api.Arrival{Config: older}}},
		"it was in the pool, and comes from afar": {node: api.Node{Current: "rendered-infra-0000000000000000000000000000000b", Previous: a}},
		"the pool goes on":                        {node: api.Node{Current: a, Previous: older}, target: b},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			object := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker", Annotations: map[string]string{
				api.HistoryKey: api.Encode([]string{older}),
			}}}
			if c.pin != "" {
				object.Annotations[api.PinKey] = c.pin
			}
			object.Spec.Configuration.Name, object.Status.Configuration.Name = a, a
			if c.target != "" {
				object.Spec.Configuration.Name = c.target
			}
			p := NewPool(object, nil)
			if got := p.ComesBack(&Node{Node: c.node}); got != c.comes {
				t.Errorf("comes back: %v", got)
			}
		})
	}
}
