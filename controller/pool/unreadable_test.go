// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

func TestNodesOfAPoolThatCanNotBeReadAreLeftAlone(t *testing.T) {
	object := func(problem string) *mcfgv1.MachineConfigPool {
		p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "infra"}}
		if problem != "" {
			p.Annotations = map[string]string{api.UnreadableKey: problem}
		}
		p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"infra": ""}}
		p.Spec.Configuration.Name = "rendered-infra-b"
		return p
	}
	worker := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	worker.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"worker": ""}}
	worker.Spec.Configuration.Name = "rendered-worker-b"
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n", Labels: map[string]string{"infra": "", "worker": ""}, Annotations: map[string]string{
			api.CurrentConfig: "rendered-infra-a", api.DesiredConfig: "rendered-infra-a", api.StateKey: string(api.Done),
		},
	}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, c := range []struct {
		problem string
		sent    bool
		says    string
	}{
		{"", true, ""},
		{"spec.maxUnavailable can't be read: x", false, "spec.maxUnavailable can't be read: x"},
		{"spec.nodeSelector.matchLabels can't be read: x", false, "spec.nodeSelector.matchLabels can't be read: x"},
		{"spec can't be read: x", false, "spec can't be read: x"},
		{"status.certExpirys[0].expiry can't be read: x", true, ""},
	} {
		infra := object(c.problem)
		if c.problem != "" && !strings.HasPrefix(c.problem, "spec.max") && !strings.HasPrefix(c.problem, "status") {
			infra.Spec.NodeSelector = nil // as what can't be read is
		}
		w := assemble([]*mcfgv1.MachineConfigPool{infra, worker}, []*corev1.Node{node}, &readings{}, nil, nil, rollout.Unasked,
			"", time.Unix(1, 0))
		sent := ""
		for i := range w.pools {
			for _, s := range decide(w.pools[i].state, w.options(i)).Steps {
				sent += s.Desired
			}
		}
		want := map[bool]string{true: "rendered-infra-b", false: ""}[c.sent]
		if sent != want {
			t.Errorf("%q: the node was sent to %q", c.problem, sent)
		}
		state := w.pools[0].state
		s := status(infra, state, time.Unix(2, 0))
		degraded := find(&s, mcfgv1.MachineConfigPoolDegraded)
		if (c.says != "") != (degraded.Status == corev1.ConditionTrue) || !strings.Contains(degraded.Message, c.says) {
			t.Errorf("%q: the pool says %s %q", c.problem, degraded.Status, degraded.Message)
		}
		answer, _ := progress.NewReport(progress.View{
			Pools: []mcfgv1.MachineConfigPool{*infra, *worker}, Nodes: []corev1.Node{*node},
		}).ExplainPool("infra")
		if c.says != "" && !strings.Contains(answer.Because, c.says) {
			t.Errorf("%q: explained as %+v", c.problem, answer)
		}
	}
}
