// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
)

// operation is one operation of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// nodePatch returns the JSON patch that takes a step. The patch tests the values that the decision rests on, so it
// fails where the node was told something else meanwhile. The kubelet's own writes to the Node do not make the patch
// fail.
func nodePatch(n *corev1.Node, s nodeStep) []byte {
	var ops []operation
	if n.Annotations == nil {
		ops = append(ops, operation{"test", "/metadata/annotations", nil},
			operation{"add", "/metadata/annotations", map[string]string{}})
	}
	// The decision rests on where the node was sent before, even if the node is not sent anywhere now.
	ops = append(ops, operation{"test", annotationPath(api.DesiredConfig), old(n, api.DesiredConfig)})
	if s.sends() {
		ops = append(ops, operation{"add", annotationPath(api.DesiredConfig), api.Rendered(s.Desired)})
		ops = append(ops, annotationOps(n, api.ValuesKey, valuesText(s.Values))...)
	}
	ops = append(ops, annotationOps(n, api.Lift, s.Lift)...)
	if s.Arrived != (api.Arrival{}) {
		ops = append(ops, annotationOps(n, api.ArrivedKey, api.Encode(s.Arrived))...)
	}
	ops = append(ops, annotationOps(n, api.TriedKey, triedText(s.Tried))...)
	ops = append(ops, annotationOps(n, api.AwaitedKey, awaitedText(s.Awaited))...)
	ops = append(ops, annotationOps(n, api.OrdersKey, ordersText(s.Orders))...)
	if s.Answered {
		ops = append(ops, annotationOps(n, api.RebootKey, "")...)
	}
	if topology := n.Annotations[api.ControlPlaneTopology]; s.SingleReplica != (topology == api.TopologySingleReplica) {
		want := api.TopologyHighlyAvailable
		if s.SingleReplica {
			want = api.TopologySingleReplica
		}
		ops = append(ops, annotationOps(n, api.ControlPlaneTopology, want)...)
	}
	ops = append(ops, taintOps(n.Spec.Taints, s.Tainted)...)
	data, err := json.Marshal(ops)
	if err != nil {
		panic(err) // strings and taints only
	}
	return data
}

func triedText(t *api.Tried) string {
	if t == nil {
		return ""
	}
	return api.Encode(t)
}

func valuesText(v *api.ToldValues) string {
	if v == nil {
		return ""
	}
	return api.Encode(v)
}

func awaitedText(a api.Awaited) string {
	if a == (api.Awaited{}) {
		return ""
	}
	return api.Encode(a)
}

func ordersText(o api.Orders) string {
	if o == (api.Orders{}) {
		return ""
	}
	return api.Encode(o)
}

// annotationOps returns the operations that set an annotation, or remove it where want is empty.
func annotationOps(n *corev1.Node, key, want string) []operation {
	have, there := n.Annotations[key]
	test := operation{"test", annotationPath(key), old(n, key)}
	switch {
	case want == have:
		return nil
	case want != "":
		return []operation{test, {"add", annotationPath(key), want}}
	case there:
		return []operation{test, {"remove", annotationPath(key), nil}}
	}
	return nil
}

// taintOps returns the operations that add or remove the taint of a rollout. They leave the other taints alone, which
// come and go with each cordon.
func taintOps(taints []corev1.Taint, want bool) []operation {
	const path = "/spec/taints"
	ours := corev1.Taint{Key: api.UpdateInProgressTaint, Effect: corev1.TaintEffectPreferNoSchedule}
	at := slices.IndexFunc(taints, func(t corev1.Taint) bool { return t.Key == ours.Key && t.Effect == ours.Effect })
	switch {
	case at >= 0 == want:
		return nil
	case want && len(taints) == 0:
		return []operation{{"test", path, nil}, {"add", path, []corev1.Taint{ours}}}
	case want:
		return []operation{{"add", path + "/-", ours}}
	}
	one := fmt.Sprintf("%s/%d", path, at)
	return []operation{{"test", one, taints[at]}, {"remove", one, nil}}
}

func annotationPath(key string) string {
	return "/metadata/annotations/" + escaped(key)
}

// escaped returns a key as part of a JSON pointer (RFC 6901).
func escaped(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }

// old returns an annotation's value for a test, and nil if the Node does not have the annotation.
func old(n *corev1.Node, key string) any {
	if v, there := n.Annotations[key]; there {
		return v
	}
	return nil
}
