// SPDX-License-Identifier: Apache-2.0

package nodevalues

import (
	"fmt"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// world is what the controller sees.
type world struct {
	objects []api.NodeValues
	nodes   []corev1.Node
	pools   []mcfgv1.MachineConfigPool
}

// decision is what Nodes and NodeValues are to say, by their names.
type decision struct {
	// entries are the annotation of each Node; empty: it has none.
	entries map[string]string
	ready   map[string]metav1.Condition
}

// mostBytes is the most that the values of an object may take in a Node's annotation. The API server takes 256 KiB of
// all annotations of a Node together. The pool controller's annotation has the values once more, and others need room.
const mostBytes = 64 << 10

// decide gives each node the values of its object, where its pool's schema allows them. Values that a schema refuses
// are not in force, and neither are the former ones: the node is told why it has none.
func decide(w world, read func(text string) (*schema, error)) decision {
	members := progress.NewMembership(w.pools)
	schemas := map[string]string{}
	for i := range w.pools {
		if text := w.pools[i].Annotations[api.ValuesSchemaKey]; text != "" {
			schemas[w.pools[i].Name] = text
		}
	}
	out := decision{entries: map[string]string{}, ready: map[string]metav1.Condition{}}
	pools := map[string]string{}
	for i := range w.nodes {
		n := &w.nodes[i]
		out.entries[n.Name] = ""
		pools[n.Name], _ = members.Of(n)
	}
	for i := range w.objects {
		o := &w.objects[i]
		says := metav1.Condition{Type: api.ValuesReady, Status: metav1.ConditionFalse, ObservedGeneration: o.Generation}
		pool, there := pools[o.Name]
		if !there {
			says.Reason, says.Message = api.ValuesWithoutNode, "there is no Node "+o.Name+": the name has to be that of a Node"
			out.ready[o.Name] = says
			continue
		}
		is := api.Entries{Values: texts(o.Spec.Values)}
		says.Status, says.Reason, says.Message = metav1.ConditionTrue, api.ValuesInForce, "the node has these values"
		if text := schemas[pool]; text != "" {
			schema, err := read(text)
			if err != nil {
				says.Status, says.Reason = metav1.ConditionFalse, api.ValuesBadSchema
				says.Message = fmt.Sprintf("MachineConfigPool/%s: annotation %s: %v", pool, api.ValuesSchemaKey, err)
				is = api.Entries{Refused: api.ShortReason(says.Message)}
			} else if faults := schema.refuses(is.Values); faults != "" {
				says.Status, says.Reason = metav1.ConditionFalse, api.ValuesRefused
				says.Message = fmt.Sprintf("the schema of pool %s refuses them: %s", pool, faults)
				is = api.Entries{Refused: api.ShortReason(fmt.Sprintf("the schema of pool %s refuses NodeValues/%s: %s",
					pool, o.Name, faults))}
			}
		}
		text := api.Encode(is)
		if len(text) > mostBytes {
			says.Status, says.Reason = metav1.ConditionFalse, api.ValuesTooLarge
			says.Message = fmt.Sprintf("NodeValues/%s: spec.values takes %d bytes as JSON, and a Node takes at most %d; "+
				"shorten the values, or take some away", o.Name, len(text), mostBytes)
			text = api.Encode(api.Entries{Refused: api.ShortReason(says.Message)})
		}
		says.Message = api.ShortReason(says.Message)
		out.ready[o.Name], out.entries[o.Name] = says, text
	}
	return out
}

func texts(of map[string]api.NodeValue) map[string]string {
	out := make(map[string]string, len(of))
	for key, value := range of {
		out[key] = string(value)
	}
	return out
}
