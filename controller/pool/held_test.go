// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// A pool that waits for an approval goes as planned, although somebody is needed for it.
func TestAPoolThatIsHeldIsStalledOnlyWhereSomethingWentWrong(t *testing.T) {
	t.Parallel()
	for verdict, stalled := range map[progress.Verdict]corev1.ConditionStatus{
		progress.NeedsApproval: corev1.ConditionFalse, progress.EtcdUnhealthy: corev1.ConditionFalse,
		progress.OutsideWindow: corev1.ConditionFalse, progress.GateClosed: corev1.ConditionFalse,
		progress.FailureBudget: corev1.ConditionTrue, progress.GateFailed: corev1.ConditionTrue,
		progress.PolicyUnusable: corev1.ConditionTrue,
	} {
		p := progress.Pool{Name: "worker", Target: "b", Nodes: []progress.Node{{Name: "a", Node: api.Node{
			Current: "a", Desired: "a", State: api.Done,
		}}}, Counts: progress.Counts{Machines: 1}}
		p.Rules = progress.Rules{Policy: "careful", Hold: &progress.Hold{Verdict: verdict, Because: "so it is"}}
		for _, c := range conditions(p, &mcfgv1.MachineConfigPoolStatus{}) {
			if string(c.Type) == api.Stalled && c.Status != stalled {
				t.Errorf("held by %s it is Stalled=%s", verdict, c.Status)
			}
			if string(c.Type) == api.Reconciling && (c.Status == corev1.ConditionTrue) != (stalled == corev1.ConditionFalse) {
				t.Errorf("held by %s it is Reconciling=%s", verdict, c.Status)
			}
		}
	}
}
