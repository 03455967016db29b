// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// noKubelet is a configuration with which no kubelet comes up, and so no pod of the agent's.
const noKubelet = `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 70-no-kubelet
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  config:
    ignition: {version: 3.2.0}
    storage:
      files:
      - {path: /etc/kubernetes/kubelet.conf, mode: 420, overwrite: true, contents: {source: "data:,fail%0A"}}
`

// givenUp has a host return by itself: after the boot nothing of ours runs there but what the agent has left on the host.
func givenUp(ctx context.Context, t *testing.T, s *scene) {
	_, err := s.Kubectl(ctx, "-n", api.Namespace, "patch", "daemonset", api.Daemon, "--type=json",
		`--patch=[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--verdict-timeout=20s"}]`)
	must(t, err)
	_, err = s.Kubectl(ctx, "-n", api.Namespace, "rollout", "status", "daemonset/"+api.Daemon)
	must(t, err)
	before, err := s.Configuration(ctx, "worker")
	must(t, err)
	booted := s.boots()
	bad := s.change(ctx, t, noKubelet)
	must(t, s.WaitPool(ctx, "worker", "stopped", func(p *mcfgv1.MachineConfigPool) bool {
		return fleet.Condition(p, mcfgv1.MachineConfigPoolDegraded) && fleet.Condition(p, api.PoolQuarantined)
	}))
	var touched []string
	for name, was := range booted {
		if s.Node(name).Boots() > was {
			touched = append(touched, name)
		}
	}
	if len(touched) != 1 {
		t.Fatalf("these have booted: %v", touched)
	}
	must(t, s.WaitNodeSays(ctx, touched[0], "rolled back, and serving", func(says api.Node, n *corev1.Node) bool {
		return says.State == api.RolledBack && says.Current == before && !n.Spec.Unschedulable &&
			len(says.Quarantined) == 1 && says.Quarantined[0].Config == bad
	}))
	if got := s.Node(touched[0]).Boots() - booted[touched[0]]; got != 2 {
		t.Errorf("%s has booted %d times, not there and back", touched[0], got)
	}
	_, err = s.Kubectl(ctx, "delete", "machineconfig", "70-no-kubelet")
	must(t, err, s.WaitAt(ctx, before, s.all()...),
		s.WaitPool(ctx, "worker", "updated", fleet.Updated(len(s.Nodes))))
}
