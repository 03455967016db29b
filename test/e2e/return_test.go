// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/fleet"
)

// noKubelet makes the kubelet of a lab host refuse to start (see test/cluster).
const noKubelet = `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 70-no-kubelet
  labels:
    machineconfiguration.openshift.io/role: worker
spec:
  config:
    ignition:
      version: 3.2.0
    storage:
      files:
      - path: /etc/kubernetes/kubelet.conf
        mode: 420
        overwrite: true
        contents:
          source: data:,fail%0A
`

func badConfiguration(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	booted := boots(f)
	before, bad := change(ctx, t, f, noKubelet)
	must(t, f.WaitPool(ctx, "worker", "stopped", func(p *mcfgv1.MachineConfigPool) bool {
		return fleet.Condition(p, mcfgv1.MachineConfigPoolDegraded) && fleet.Condition(p, api.PoolQuarantined)
	}))
	// Which of the two was first is the pool's affair; the other one must not have been touched.
	first, other := "w0", "w1"
	if f.Node("w1").Boots() > booted["w1"] {
		first, other = other, first
	}
	must(t, f.WaitNodeSays(ctx, first, "rolled back, and serving", func(says api.Node, n *corev1.Node) bool {
		return says.State == api.RolledBack && says.Current == before && !n.Spec.Unschedulable &&
			len(says.Quarantined) == 1 && says.Quarantined[0].Config == bad
	}))
	if says, _, err := f.Says(ctx, other); err != nil || says.Desired != before || f.Node(other).Boots() != booted[other] {
		t.Errorf("%s was touched: %+v, %v", other, says, err)
	}
	for _, subject := range []string{"worker", first} {
		text, _, err := f.Refit(ctx, "explain", subject)
		if err != nil || !strings.Contains(text, first) || !strings.Contains(text, "kubelet") {
			t.Errorf("explain %s: %v: %s", subject, err, text)
		}
	}
	remove(ctx, t, f, "70-no-kubelet")
	must(t, f.WaitAt(ctx, before, both(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	// The same content again is not offered, by whatever way it comes.
	must(t, f.Apply(ctx, noKubelet))
	must(t, f.WaitPool(ctx, "worker", "quarantined", func(p *mcfgv1.MachineConfigPool) bool {
		return p.Spec.Configuration.Name == bad && fleet.Condition(p, api.PoolQuarantined)
	}))
	for _, name := range both(f) {
		if says, _, err := f.Says(ctx, name); err != nil || says.Desired != before {
			t.Errorf("%s: %+v, %v", name, says, err)
		}
	}
	remove(ctx, t, f, "70-no-kubelet")
	must(t, f.WaitAt(ctx, before, both(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
}

// infra is the seeds' MachineConfig for infra nodes.
const infra = `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  labels:
    machineconfiguration.openshift.io/role: infra
  name: 50-infra
spec:
  config:
    ignition:
      version: 2.2.0
    storage:
      files:
      - contents:
          source: data:,test
        filesystem: root
        mode: 0644
        path: /etc/testinfra
`

func movesToInfra(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	must(t, f.Pool(ctx, "infra", "1"), f.Apply(ctx, infra))
	there, err := f.Render(ctx, "infra", "")
	must(t, err)
	_, err = f.Kubectl(ctx, "label", "node", "w1", "node-role.kubernetes.io/worker-", "node-role.kubernetes.io/infra=")
	must(t, err, f.WaitAt(ctx, there, "w1"))
	text, err := f.Node("w1").Output(ctx, "cat", "/etc/testinfra")
	must(t, err)
	if text != "test" {
		t.Errorf("/etc/testinfra has %q", text)
	}
	must(t, f.WaitPool(ctx, "infra", "updated", fleet.Updated(1)), f.WaitPool(ctx, "worker", "updated", fleet.Updated(1)))
	_, err = f.Kubectl(ctx, "label", "node", "w1", "node-role.kubernetes.io/worker=", "node-role.kubernetes.io/infra-")
	must(t, err)
	back, err := f.Configuration(ctx, "worker")
	must(t, err, f.WaitAt(ctx, back, "w1"), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	if _, _, exit, err := f.Node("w1").Exec(ctx, nil, "test", "-e", "/etc/testinfra"); err != nil || exit == 0 {
		t.Errorf("/etc/testinfra is still there: %d, %v", exit, err)
	}
}

func agentKilled(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	booted := boots(f)
	_, after := change(ctx, t, f, motd("60-blocked", "tenth"))
	rolling, stop := context.WithCancel(ctx)
	defer stop()
	kills := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for rolling.Err() == nil {
			for _, n := range f.Nodes {
				if n.KillAgent(rolling) == nil {
					kills++
				}
			}
			select {
			case <-rolling.Done():
			case <-time.After(2500 * time.Millisecond): // the unit waits two seconds, so half a second of work at a time
			}
		}
	}()
	must(t, f.WaitNodeSays(ctx, "w0", "at "+after, func(says api.Node, _ *corev1.Node) bool { return says.Current == after }))
	stop()
	<-done
	must(t, f.WaitAt(ctx, after, both(f)...))
	bootedOnce(t, f, booted, both(f)...)
	t.Logf("killed %d times", kills)
}

// outage is how long the API server is away: some times what a phase takes here.
const outage = 8 * time.Second

func withoutAPI(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	booted := boots(f)
	_, after := change(ctx, t, f, motd("60-blocked", "eleventh"))
	for _, phase := range []struct {
		name    string
		reached func(says api.Node, n *corev1.Node) bool
	}{
		{"targeted", func(says api.Node, _ *corev1.Node) bool { return says.Desired == after }},
		{"cordoned", func(says api.Node, n *corev1.Node) bool {
			return says.Current == after || n.Spec.Unschedulable || says.Rebooting
		}},
		{"rebooting", func(says api.Node, _ *corev1.Node) bool { return says.Rebooting || says.Current == after }},
	} {
		must(t, f.WaitNodeSays(ctx, "w0", phase.name, phase.reached))
		f.StopAPI()
		time.Sleep(outage) //nolint:forbidigo // the API server is away for so long
		must(t, f.StartAPI(ctx))
	}
	must(t, f.WaitAt(ctx, after, both(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	bootedOnce(t, f, booted, both(f)...)
}

func leaderChanges(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	booted := boots(f)
	_, err := f.StartController(ctx)
	must(t, err)
	_, after := change(ctx, t, f, motd("60-blocked", "twelfth"))
	must(t, f.WaitNodeSays(ctx, "w0", "targeted", func(says api.Node, _ *corev1.Node) bool { return says.Desired == after }))
	f.Controllers()[0].Kill()
	must(t, f.WaitAt(ctx, after, both(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	bootedOnce(t, f, booted, both(f)...)
}

func deletedMidway(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	_, after := change(ctx, t, f, motd("60-blocked", "thirteenth"))
	must(t, f.WaitNodeSays(ctx, "w0", "cordoned", func(_ api.Node, n *corev1.Node) bool { return n.Spec.Unschedulable }))
	_, err := f.Kubectl(ctx, "delete", "node", "w0")
	must(t, err)
	must(t, f.WaitNodeSays(ctx, "w1", "at "+after, func(says api.Node, _ *corev1.Node) bool { return says.Current == after }))
	must(t, f.Rejoin(ctx, f.Node("w0")))
	must(t, f.WaitAt(ctx, after, both(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
}

// liftedAgain comes after badConfiguration, whose quarantine it lifts.
func liftedAgain(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	booted := boots(f)
	_, bad := change(ctx, t, f, noKubelet)
	must(t, f.WaitPool(ctx, "worker", "quarantined", func(p *mcfgv1.MachineConfigPool) bool {
		return p.Spec.Configuration.Name == bad && fleet.Condition(p, api.PoolQuarantined)
	}))
	// The cause goes away: the kubelet of these hosts no longer minds.
	for _, n := range f.Nodes {
		at := n.HostPath("/etc/systemd/system/kubelet.service.d/60-patient.conf")
		must(t, os.WriteFile(at, []byte("[Service]\nExecStartPre=\n"), 0o644))
	}
	text, exit, err := f.Refit(ctx, "quarantine", "lift", "worker")
	must(t, err)
	if exit != 0 {
		t.Fatal(text)
	}
	must(t, f.WaitAt(ctx, bad, both(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	bootedOnce(t, f, booted, both(f)...)
	for _, name := range both(f) {
		if says, _, err := f.Says(ctx, name); err != nil || says.Lift != "" || len(says.Quarantined) != 0 {
			t.Errorf("%s: %+v, %v", name, says, err)
		}
	}
	remove(ctx, t, f, "70-no-kubelet")
	back, err := f.Render(ctx, "worker", bad)
	must(t, err, f.WaitAt(ctx, back, both(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
}
