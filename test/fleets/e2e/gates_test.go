// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// canaryStages begins the stages of a policy: the canary goes first, and the gate smoke opens when the canary has the
// label smoke=passed.
const canaryStages = `  stages:
  - name: canary
    nodeSelector:
      matchLabels: {canary: "true"}
    gates:
    - name: smoke
      cel:
        apiVersion: v1
        kind: Node
        labelSelector:
          matchLabels: {canary: "true"}
        expression: objects.size() == 1 && objects.all(n, n.metadata.?labels[?'smoke'].orValue('') == 'passed')
`

// gatedPolicy takes the rollout back where the gate of the canary does not open.
const gatedPolicy = `apiVersion: noderefit.dev/v1alpha1
kind: RolloutPolicy
metadata:
  name: gated
spec:
  pools: [worker]
` + canaryStages + `      deadlineSeconds: 15
      onDeadline: RollBack
`

// wished brings a check that says no and is only wanted.
var wished = fleet.WorkerFileAt("60-wished", "/etc/greenboot/check/wanted.d/10-wish.sh", 0o755,
	"%23!%2Fbin%2Fsh%0Aecho%20would%20be%20nice%3B%20exit%201%0A")

func gateFailed(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	_, err := f.Kubectl(ctx, "label", "node", "w0", "canary=true")
	must(t, err, f.Apply(ctx, gatedPolicy))
	booted := boots(f)
	before, bad := change(ctx, t, f, wished)
	// What is only wanted doesn't take the canary back, and it says what it heard.
	must(t, f.WaitNodeSays(ctx, "w0", "arrived", func(says api.Node, n *corev1.Node) bool {
		checks, err := api.Decode[*api.Checks](n.Annotations, api.ChecksKey)
		return says.Current == bad && err == nil && checks != nil && checks.Config == bad &&
			strings.Contains(checks.Said["10-wish.sh"], "would be nice")
	}))
	must(t, f.WaitPool(ctx, "worker", "stopped", func(p *mcfgv1.MachineConfigPool) bool {
		return fleet.Condition(p, api.PoolQuarantined)
	}))
	must(t, f.WaitAt(ctx, before, names(f)...))
	if got := f.Node("w1").Boots() - booted["w1"]; got != 0 {
		t.Errorf("w1 has booted %d times", got)
	}
	for _, subject := range []string{"worker", "w0", "w1"} {
		text, _, err := f.Refit(ctx, "explain", subject)
		if err != nil || !strings.Contains(text, "gate smoke of stage canary was closed at its deadline") {
			t.Errorf("explain %s: %v: %s", subject, err, text)
		}
	}
	remove(ctx, t, f, "60-wished")
	must(t, f.WaitAt(ctx, before, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	_, err = f.Kubectl(ctx, "delete", "rolloutpolicy", "gated")
	must(t, err)
	_, err = f.Kubectl(ctx, "label", "node", "w0", "canary-")
	must(t, err)
}
