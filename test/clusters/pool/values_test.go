// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/values"
)

const nodeValuesPath = "/apis/noderefit.dev/v1alpha1/nodevalues"

const valuedConfig = "rendered-worker-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

// withRack is the name of what a node with that value makes of valuedConfig.
func withRack(rack string) string {
	return api.MadeName(valuedConfig, values.Digest(map[string]string{"labels/rack": rack}))
}

func (l *lab) rack(node, rack string) {
	l.t.Helper()
	l.mustPatchNode(node, fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, api.ValuePrefix+"rack", rack))
}

func (l *lab) proves(node, config string) {
	l.t.Helper()
	l.until("node "+node+" proves "+config, func() bool {
		n := l.stand(node)
		return n.Current == config && n.Desired == config && n.State == api.Done && n.Serving()
	})
}

func TestValuesOfANodeRollItOutAndBlameItAlone(t *testing.T) {
	l := newLab(t)
	for i := range 3 {
		l.node(fmt.Sprintf("v-%d", i), "worker", "rendered-worker-a", func(n *corev1.Node) {
			if i < 2 {
				n.Labels[api.ValuePrefix+"rack"] = fmt.Sprintf("r%d", i)
			}
		})
	}
	l.pool("worker", valuedConfig, func(p *mcfgv1.MachineConfigPool) {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, api.NamedValuesKey,
			api.Encode(api.NamedValues{Config: valuedConfig, Values: []string{"word:labels/rack"}}))
	})
	l.alone()

	// Two nodes get their own, and a third, which has no value, is left and named.
	l.proves("v-0", withRack("r0"))
	l.proves("v-1", withRack("r1"))
	l.until("the pool names the node and the key", func() bool {
		said := l.condition("worker", progress.PoolMisconfigured)
		return strings.Contains(said, "node v-2 ") && strings.Contains(said, "labels/rack")
	})
	if n := l.stand("v-2"); n.Desired != "rendered-worker-a" || !n.Serving() {
		t.Errorf("the node without a value was sent to %s, serving %t", n.Desired, n.Serving())
	}
	l.rack("v-2", "r2")
	l.proves("v-2", withRack("r2"))
	l.updated("worker", valuedConfig)

	// A change of a value is a rollout of that node. One that fails condemns neither the content nor the others.
	l.agents.ends(withRack("bad"), api.RolledBack)
	l.rack("v-1", "bad")
	l.until("v-1 goes back", func() bool { return l.stand("v-1").State == api.RolledBack })
	l.rack("v-0", "r7")
	l.proves("v-0", withRack("r7"))
	if said := l.condition("worker", api.PoolQuarantined); !strings.HasPrefix(said, "False") {
		t.Errorf("quarantined: %s", said)
	}
	if n := l.stand("v-1"); n.Current != withRack("r1") || n.Desired != withRack("bad") {
		t.Errorf("v-1 has %s and was told %s", n.Current, n.Desired)
	}
	l.rack("v-1", "r8")
	l.proves("v-1", withRack("r8"))
	l.updated("worker", valuedConfig)
}

// entries makes or replaces the NodeValues of a node, and returns what the API server says.
func (l *lab) entries(node, values string) error {
	l.t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"noderefit.dev/v1alpha1","kind":"NodeValues","metadata":{"name":%q},
		"spec":{"values":%s}}`, node, values)
	return l.Client.CoreV1().RESTClient().Patch(types.ApplyPatchType).AbsPath(nodeValuesPath, node).
		Param("fieldManager", "people").Param("force", "true").Body([]byte(body)).Do(l.ctx).Error()
}

func (l *lab) judged(node string) string {
	l.t.Helper()
	data, err := l.Client.CoreV1().RESTClient().Get().AbsPath(nodeValuesPath, node).DoRaw(l.ctx)
	o := &api.NodeValues{}
	if err == nil {
		err = json.Unmarshal(data, o)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	for _, c := range o.Status.Conditions {
		if c.Type == api.ValuesReady && o.Status.ObservedGeneration == o.Generation {
			return string(c.Status) + " " + c.Reason + " " + c.Message
		}
	}
	return ""
}

// withAddress is the name of what a node with that entry makes of valuedConfig.
func withAddress(address string) string {
	return api.MadeName(valuedConfig, values.Digest(map[string]string{"values/address": address}))
}

func TestNodeValuesThatThePoolsSchemaAllowsReachTheirNode(t *testing.T) {
	l := newLab(t)
	for _, name := range []string{"w-0", "w-1"} {
		l.node(name, "worker", "rendered-worker-a")
	}
	l.pool("worker", valuedConfig, func(p *mcfgv1.MachineConfigPool) {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, api.NamedValuesKey,
			api.Encode(api.NamedValues{Config: valuedConfig, Values: []string{"prefix:values/address"}}))
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, api.ValuesSchemaKey,
			"required: [address]\nproperties: {address: {pattern: '^10[.]'}}\n")
	})
	l.alone("--controllers=pool,nodevalues")

	// The definition refuses what is no value at all.
	for _, values := range []string{`{"address":""}`, `{"address":"a\nb"}`, `{"address":7}`, "null"} {
		if err := l.entries("w-0", values); err == nil || apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", values, err)
		}
	}
	// The schema refuses what is none for this pool: the node serves on what it has, and the reason has a name.
	for node, values := range map[string]string{"w-0": `{"address":"192.168.0.1/24"}`, "w-1": `{"address":"10.0.0.1/24"}`} {
		if err := l.entries(node, values); err != nil {
			t.Fatal(err)
		}
	}
	l.proves("w-1", withAddress("10.0.0.1/24"))
	l.until("the object and the pool say what is wrong", func() bool {
		said := l.condition("worker", progress.PoolMisconfigured)
		return strings.HasPrefix(l.judged("w-0"), "False RefusedBySchema") &&
			strings.Contains(said, "the schema of pool worker refuses NodeValues/w-0: spec.values.address")
	})
	if n := l.stand("w-0"); n.Desired != "rendered-worker-a" || !n.Serving() {
		t.Errorf("the node without allowed values was sent to %s, serving %t", n.Desired, n.Serving())
	}
	if err := l.entries("w-0", `{"address":"10.0.0.7/24"}`); err != nil {
		t.Fatal(err)
	}
	l.proves("w-0", withAddress("10.0.0.7/24"))
	l.updated("worker", valuedConfig)
	if said := l.judged("w-0"); !strings.HasPrefix(said, "True InForce") {
		t.Error(said)
	}
	// A change is a rollout of that node, and without the object the node stays what it is.
	if err := l.entries("w-0", `{"address":"10.0.0.8/24"}`); err != nil {
		t.Fatal(err)
	}
	l.proves("w-0", withAddress("10.0.0.8/24"))
	if err := l.Client.CoreV1().RESTClient().Delete().AbsPath(nodeValuesPath, "w-0").Do(l.ctx).Error(); err != nil {
		t.Fatal(err)
	}
	l.until("the pool names the missing key", func() bool {
		return strings.Contains(l.condition("worker", progress.PoolMisconfigured), "no value for values/address")
	})
	if n := l.stand("w-0"); n.Current != withAddress("10.0.0.8/24") || !n.Serving() {
		t.Errorf("without its object the node has %s, serving %t", n.Current, n.Serving())
	}
}
