// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// manualPolicy leaves reboots to people, who have a window for them.
const manualPolicy = `apiVersion: noderefit.dev/v1alpha1
kind: RolloutPolicy
metadata:
  name: by-hand
spec:
  pools: [worker]
  reboots: Manual
  rebootWindows:
    open:
    - {from: %s, until: %s}
`

// bootedByPeople has w0 run a pod that no drain gets past. So the commit disrupts nothing, and the reboot comes after a
// drain.
func bootedByPeople(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	must(t, f.Apply(ctx, window(manualPolicy, time.Now().Add(24*time.Hour))), f.Pinned(ctx, "guarded", "w0"))
	for _, name := range names(f) {
		must(t, f.WaitNodeSays(ctx, name, "told that people boot it", func(says api.Node, _ *corev1.Node) bool {
			return says.Orders.ManualReboots
		}))
	}
	booted := boots(f)
	before, after := change(ctx, t, f, fleet.WorkerFile("60-blocked", "fourth"))
	for _, name := range names(f) {
		explains(ctx, t, f, name, progress.NeedsReboot, after+" is committed on the host")
	}
	text, exit, err := f.Refit(ctx, "reboot", "worker", "--why", "our night")
	must(t, err)
	if exit != 0 {
		t.Fatal(text)
	}
	for _, name := range names(f) {
		explains(ctx, t, f, name, progress.NeedsReboot, "no window is open")
		if says, n, err := f.Says(ctx, name); err != nil || says.Current != before || says.Cordon != nil || n.Spec.Unschedulable {
			t.Errorf("%s does not serve: %+v, %v", name, says, err)
		}
	}
	must(t, rebootsOf(f, booted, nil))

	must(t, f.Apply(ctx, window(manualPolicy, time.Now().Add(-time.Minute))),
		f.WaitNodeSays(ctx, "w0", "cordoned for its reboot", func(says api.Node, n *corev1.Node) bool {
			return says.Cordon != nil && n.Spec.Unschedulable
		}), waitsForBudget(ctx, f))
	if f.Node("w0").Boots() != booted["w0"] {
		t.Fatal("w0 has booted with a pod on it")
	}
	must(t, f.Unpin(ctx, "guarded"), f.WaitAt(ctx, after, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	bootedOnce(t, f, booted, names(f)...)
	_, err = f.Kubectl(ctx, "delete", "rolloutpolicy", "by-hand")
	must(t, err)
}
