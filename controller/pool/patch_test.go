// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
)

func TestAPatchSaysWhatItWasDecidedUpon(t *testing.T) {
	other := corev1.Taint{Key: "gpu", Value: "x", Effect: corev1.TaintEffectNoSchedule}
	ours := corev1.Taint{Key: api.UpdateInProgressTaint, Effect: corev1.TaintEffectPreferNoSchedule}
	const desired = `/metadata/annotations/machineconfiguration.openshift.io~1desiredConfig`
	const lift = `/metadata/annotations/noderefit.dev~1lift`
	const topology = `/metadata/annotations/machineconfiguration.openshift.io~1controlPlaneTopology`
	for _, test := range []struct {
		name        string
		annotations map[string]string
		taints      []corev1.Taint
		step        nodeStep
		want        string
	}{
		{
			"a node that nobody ever annotated", nil, nil, nodeStep{Desired: "B", Tainted: true},
			`[{"op":"test","path":"/metadata/annotations","value":null},{"op":"add","path":"/metadata/annotations","value":{}},` +
				`{"op":"test","path":"` + desired + `","value":null},{"op":"add","path":"` + desired + `","value":"B"},` +
				`{"op":"test","path":"/spec/taints","value":null},` +
				`{"op":"add","path":"/spec/taints","value":[{"key":"UpdateInProgress","effect":"PreferNoSchedule"}]}]`,
		},
		{
			"sent on, the taint is there", map[string]string{api.DesiredConfig: "A"},
			[]corev1.Taint{ours}, nodeStep{Before: "A", Desired: "B", Tainted: true},
			`[{"op":"test","path":"` + desired + `","value":"A"},{"op":"add","path":"` + desired + `","value":"B"}]`,
		},
		{
			"with a lift", map[string]string{api.DesiredConfig: "B"}, []corev1.Taint{ours},
			nodeStep{Before: "B", Desired: "B", Lift: "B", Tainted: true},
			`[{"op":"test","path":"` + desired + `","value":"B"},` +
				`{"op":"test","path":"` + lift + `","value":null},{"op":"add","path":"` + lift + `","value":"B"}]`,
		},
		{
			"an old lift goes", map[string]string{api.DesiredConfig: "B", api.Lift: "B"}, nil,
			nodeStep{Before: "B", Desired: "C"},
			`[{"op":"test","path":"` + desired + `","value":"B"},{"op":"add","path":"` + desired + `","value":"C"},` +
				`{"op":"test","path":"` + lift + `","value":"B"},{"op":"remove","path":"` + lift + `","value":null}]`,
		},
		{
			"the only node", map[string]string{api.DesiredConfig: "B"}, nil,
			nodeStep{Before: "B", Desired: "B", SingleReplica: true},
			`[{"op":"test","path":"` + desired + `","value":"B"},` +
				`{"op":"test","path":"` + topology + `","value":null},{"op":"add","path":"` + topology + `","value":"SingleReplica"}]`,
		},
		{
			"the last taint goes", map[string]string{api.DesiredConfig: "B"}, []corev1.Taint{ours},
			nodeStep{Before: "B", Desired: "B"},
			`[{"op":"test","path":"` + desired + `","value":"B"},` +
				`{"op":"test","path":"/spec/taints/0","value":{"key":"UpdateInProgress","effect":"PreferNoSchedule"}},` +
				`{"op":"remove","path":"/spec/taints/0","value":null}]`,
		},
		{
			"a taint beside others", map[string]string{api.DesiredConfig: "B"}, []corev1.Taint{other},
			nodeStep{Before: "B", Desired: "B", Tainted: true},
			`[{"op":"test","path":"` + desired + `","value":"B"},` +
				`{"op":"add","path":"/spec/taints/-","value":{"key":"UpdateInProgress","effect":"PreferNoSchedule"}}]`,
		},
		{
			"other taints stay", map[string]string{api.DesiredConfig: "B"}, []corev1.Taint{other, ours},
			nodeStep{Before: "B", Desired: "B"},
			`[{"op":"test","path":"` + desired + `","value":"B"},` +
				`{"op":"test","path":"/spec/taints/1","value":{"key":"UpdateInProgress","effect":"PreferNoSchedule"}},` +
				`{"op":"remove","path":"/spec/taints/1","value":null}]`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := &corev1.Node{Spec: corev1.NodeSpec{Taints: test.taints}}
			n.Annotations = test.annotations
			got := nodePatch(n, test.step)
			if !json.Valid(got) || string(got) != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}
