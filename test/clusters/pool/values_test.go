// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/values"
)

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
