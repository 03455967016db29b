// SPDX-License-Identifier: Apache-2.0

package nodevalues

import (
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

const addresses = `
type: object
required: [address]
additionalProperties: false
properties:
  address: {pattern: '^10\.'}
  gateway: {format: ipv4}
`

// clusterOf is a cluster with the node web-1 in the pool worker, and with NodeValues.
func clusterOf(schema string, objects ...api.NodeValues) world {
	pool := mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker", Annotations: map[string]string{}}}
	pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"worker": ""}}
	if schema != "" {
		pool.Annotations[api.ValuesSchemaKey] = schema
	}
	return world{
		objects: objects, pools: []mcfgv1.MachineConfigPool{pool},
		nodes: []corev1.Node{
			{ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{"worker": ""}}},
			{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		},
	}
}

func valuesOf(name string, pairs ...string) api.NodeValues {
	o := api.NodeValues{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 3}}
	o.Spec.Values = map[string]api.NodeValue{}
	for i := 0; i+1 < len(pairs); i += 2 {
		o.Spec.Values[pairs[i]] = api.NodeValue(pairs[i+1])
	}
	return o
}

func TestANodeIsGivenTheValuesThatItsPoolsSchemaAllows(t *testing.T) {
	t.Parallel()
	const secret = "192.168.7.7"
	for _, c := range []struct {
		name, schema string
		object       api.NodeValues
		node         string // whose Node is looked at
		reason       string
		says         []string
		entries      string // a part of what the Node says, "" where it says nothing
	}{
		{"no schema", "", valuesOf("web-1", "address", "10.0.0.7"), "web-1", api.ValuesInForce, nil,
			`{"values":{"address":"10.0.0.7"}}`},
		{"allowed", addresses, valuesOf("web-1", "address", "10.0.0.7", "gateway", "10.0.0.1"), "web-1", api.ValuesInForce,
			nil, `"gateway":"10.0.0.1"`},
		{"a schema as JSON", `{"required":["address"]}`, valuesOf("web-1", "address", "x"), "web-1", api.ValuesInForce, nil,
			`{"values":{"address":"x"}}`},
		{"a node of no pool", addresses, valuesOf("other", "any", "thing"), "other", api.ValuesInForce, nil, `"any"`},
		{"no values", "", valuesOf("web-1"), "web-1", api.ValuesInForce, nil, `{}`},
		{"one that is lacking", addresses, valuesOf("web-1", "gateway", "10.0.0.1"), "web-1", api.ValuesRefused,
			[]string{"pool worker", "spec.values lacks address"}, `{"refused":"the schema of pool worker refuses NodeValues/web-1: `},
		{"one that does not fit", addresses, valuesOf("web-1", "address", secret), "web-1", api.ValuesRefused,
			[]string{"spec.values.address does not fit pattern"}, `"refused"`},
		{"one of the wrong format", addresses, valuesOf("web-1", "address", "10.0.0.7", "gateway", "there"), "web-1",
			api.ValuesRefused, []string{"spec.values.gateway does not fit format"}, `"refused"`},
		{"some too many", addresses, valuesOf("web-1", "address", "10.0.0.7", "z", "1", "b", "2"), "web-1",
			api.ValuesRefused, []string{"spec.values may not have b, z"}, `"refused"`},
		{"several faults", addresses, valuesOf("web-1", "address", secret, "gateway", "x"), "web-1",
			api.ValuesRefused, []string{"spec.values.address", "; spec.values.gateway"}, `"refused"`},
		{"no YAML", "a: b: c", valuesOf("web-1", "address", "10.0.0.7"), "web-1", api.ValuesBadSchema,
			[]string{"MachineConfigPool/worker: annotation noderefit.dev/values-schema"}, `"refused"`},
		{"no object", "[]", valuesOf("web-1", "address", "10.0.0.7"), "web-1", api.ValuesBadSchema,
			[]string{"a schema is an object"}, `"refused"`},
		{"no schema at all", "type: 7", valuesOf("web-1", "address", "10.0.0.7"), "web-1", api.ValuesBadSchema,
			[]string{"annotation noderefit.dev/values-schema"}, `"refused"`},
		{"a schema of a file", "$ref: file:///etc/passwd", valuesOf("web-1", "address", "10.0.0.7"), "web-1",
			api.ValuesBadSchema, []string{"file:///etc/passwd is another document"}, `"refused"`},
		{"all that a Node takes", "", valuesOf("web-1", "a", strings.Repeat("x", mostBytes-len(`{"values":{"a":""}}`))), "web-1",
			api.ValuesInForce, nil, `"xxx`},
		{"more than a Node takes", "", valuesOf("web-1", "a", strings.Repeat("x", mostBytes)), "web-1", api.ValuesTooLarge,
			[]string{"NodeValues/web-1", "65555 bytes", "at most 65536"}, `"refused"`},
		{"no node", "", valuesOf("web-9", "address", "10.0.0.7"), "web-1", api.ValuesWithoutNode,
			[]string{"no Node web-9"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := decide(clusterOf(c.schema, c.object), newSchema)
			is := d.ready[c.object.Name]
			if is.Reason != c.reason || (is.Status == metav1.ConditionTrue) != (c.reason == api.ValuesInForce) ||
				is.ObservedGeneration != 3 || is.Type != api.ValuesReady {
				t.Errorf("the condition is %+v", is)
			}
			for _, part := range c.says {
				if !strings.Contains(is.Message, part) {
					t.Errorf("the message %q has no %q", is.Message, part)
				}
			}
			if strings.Contains(is.Message+d.entries[c.node], secret) || strings.Contains(is.Message, "\n") {
				t.Errorf("a refused value is told, or the message has several lines: %q, %q", is.Message, d.entries[c.node])
			}
			if got := d.entries[c.node]; !strings.Contains(got, c.entries) || (got == "") != (c.entries == "") {
				t.Errorf("the Node says %q, want %q in it", got, c.entries)
			}
			again := decide(clusterOf(c.schema, c.object), newSchema)
			if again.ready[c.object.Name] != is || again.entries[c.node] != d.entries[c.node] {
				t.Errorf("a second look says %+v, %q", again.ready[c.object.Name], again.entries[c.node])
			}
		})
	}
}

func TestANodeWhoseObjectIsGoneHasNoValues(t *testing.T) {
	t.Parallel()
	w := clusterOf("")
	w.nodes[0].Annotations = map[string]string{api.EntriesKey: `{"values":{"a":"b"}}`}
	if got, known := decide(w, newSchema).entries["web-1"]; got != "" || !known {
		t.Errorf("the Node says %q, known %t", got, known)
	}
}
