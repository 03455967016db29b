// SPDX-License-Identifier: Apache-2.0

package run

import (
	"encoding/json"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/test/lab/fakehost"
	"github.com/noderefit/noderefit/values"
)

// naming stores a rendered configuration that names a label of the node.
func (n *node) naming() string {
	n.t.Helper()
	ignition, err := json.Marshal(map[string]any{"ignition": map[string]any{"version": "3.4.0"}, "storage": map[string]any{"files": []any{
		map[string]any{"path": "/etc/rack", "mode": 420, "contents": map[string]any{"source": "data:," + n.name + "%20@%7Bword:labels/rack%7D"}},
	}}})
	if err != nil {
		n.t.Fatal(err)
	}
	mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: "50-rack",
		Annotations: map[string]string{"noderefit.dev/placeholders": "true"}},
		Spec: mcfgv1.MachineConfigSpec{Config: runtime.RawExtension{Raw: ignition}, KernelArguments: []string{"quiet"}}}
	made, _, err := machineconfig.Render("worker", &machineconfig.Documents{Configs: []*machineconfig.Document{{Object: mc, Bare: true}}}, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigs().Create(n.ctx(), made, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	return made.Name
}

// tell does what the pool controller does.
func (n *node) tell(config string, given map[string]string) string {
	n.t.Helper()
	told := api.ToldValues{Config: config, Digest: values.Digest(given), Values: given}
	n.patch(`{"metadata":{"annotations":{%q:%q,%q:%q}}}`, api.DesiredConfig, config, api.ValuesKey, api.Encode(told))
	return api.MadeName(config, told.Digest)
}

func TestANodeMakesItsOwnOfAConfigurationThatNamesValues(t *testing.T) {
	n := newNode(t)
	b := n.naming()
	first := n.tell(b, map[string]string{"labels/rack": "r1"})
	o := n.waitState(api.Done, first)
	if o.Annotations[api.CurrentConfig] != b || !strings.Contains(o.Annotations[api.MadeKey], first) || n.host.Committed() != first {
		t.Errorf("%v, the host has %s", o.Annotations, n.host.Committed())
	}
	object, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigNodes().Get(n.ctx(), n.name, metav1.GetOptions{})
	if err != nil || object.Spec.ConfigVersion.Desired != b {
		t.Errorf("%+v, %v", object, err)
	}
	// A change of a value alone is an update.
	second := n.tell(b, map[string]string{"labels/rack": "r2"})
	o = n.waitState(api.Done, second)
	if n.host.Boots() != 1 && n.host.Boots() != 2 || o.Spec.Unschedulable || o.Annotations[api.CurrentConfig] != b {
		t.Errorf("boots %d, %v", n.host.Boots(), o.Annotations)
	}
	n.restart()
	n.waitState(api.Done, second)
	// A head that starts anew, and is told the digest alone, finds the values in the host's copy.
	n.patch(`{"metadata":{"annotations":{%q:%q}}}`, api.ValuesKey,
		api.Encode(api.ToldValues{Config: b, Digest: api.ValuesOf(first)}))
	n.waitState(api.Done, first)
}

// A signature is of the pool's configuration: values need none, and nothing that stands beside the content counts.
func TestOneSignatureIsForAllValues(t *testing.T) {
	n := newNode(t)
	key := n.trusts()
	b := n.naming()
	_, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigs().Patch(n.ctx(), b, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+api.ValuesKey+`":"none"}}}`), metav1.PatchOptions{})
	n.must(err)
	n.tell(b, map[string]string{"labels/rack": "r1"})
	n.wait("refused", func(_ *corev1.Node, a api.Node) bool {
		return a.State == api.Unreconcilable && strings.Contains(a.Reason, "no signature")
	})
	n.sign(b, key)
	n.waitState(api.Done, api.MadeName(b, values.Digest(map[string]string{"labels/rack": "r1"})))
	n.waitState(api.Done, n.tell(b, map[string]string{"labels/rack": "r2"}))

	// What is no value of that name is not looked at.
	n.patch(`{"metadata":{"annotations":{%q:%q}}}`, api.ValuesKey,
		api.Encode(api.ToldValues{Config: b, Digest: "00000000", Values: map[string]string{"labels/rack": "r3"}}))
	n.wait("held", func(_ *corev1.Node, a api.Node) bool {
		return a.State == api.Degraded && strings.Contains(a.Reason, "annotation "+api.ValuesKey)
	})
}

func TestANodeWithoutAValueServesAndNamesIt(t *testing.T) {
	n := newNode(t)
	b := n.naming()
	n.desire(b)
	o := n.wait("held by the missing value", func(_ *corev1.Node, a api.Node) bool {
		return a.State == api.Degraded && strings.Contains(a.Reason, "the node has no value for labels/rack")
	})
	if o.Spec.Unschedulable || n.host.Counts()[fakehost.Stage] > 0 || n.host.Counts()[fakehost.Apply] > 0 {
		t.Errorf("unschedulable %t, %v", o.Spec.Unschedulable, n.host.Counts())
	}
	n.waitState(api.Done, n.tell(b, map[string]string{"labels/rack": "r1"}))
	// A deleted configuration is given back as the pool's, without the node's values.
	configs := n.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	if err := configs.Delete(n.ctx(), b, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.until("the configuration is back", func() bool {
		mc, err := configs.Get(n.ctx(), b, metav1.GetOptions{})
		return err == nil && mc.Annotations[api.ValuesKey] == "" && mc.Annotations[api.RestoredFrom] == n.name
	})
}
