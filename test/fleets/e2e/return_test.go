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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// noKubelet makes the kubelet of a lab host refuse to start (see test/lab/cluster).
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
	must(t, f.WaitAt(ctx, before, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	// The same content again is not offered, by whatever way it comes.
	must(t, f.Apply(ctx, noKubelet))
	must(t, f.WaitPool(ctx, "worker", "quarantined", func(p *mcfgv1.MachineConfigPool) bool {
		return p.Spec.Configuration.Name == bad && fleet.Condition(p, api.PoolQuarantined)
	}))
	for _, name := range names(f) {
		if says, _, err := f.Says(ctx, name); err != nil || says.Desired != before {
			t.Errorf("%s: %+v, %v", name, says, err)
		}
	}
	remove(ctx, t, f, "70-no-kubelet")
	must(t, f.WaitAt(ctx, before, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
}

func movesToInfra(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	must(t, f.Pool(ctx, "infra", "1"))
	without, err := f.Render(ctx, "infra", "")
	must(t, err, f.Apply(ctx, published(t)["50-infra"]))
	there, err := f.Render(ctx, "infra", without)
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
	_, after := change(ctx, t, f, fleet.WorkerFile("60-blocked", "tenth"))
	rolling, stop := context.WithCancel(ctx)
	defer stop()
	kills := map[string]int{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The unit waits for one second, so the agent works for one and a half at first. It gets longer each time: on a
		// machine that is busy with something else it may not even have started by then.
		for pause := 2500 * time.Millisecond; rolling.Err() == nil; pause += pause / 10 {
			for _, n := range f.Nodes {
				if n.KillAgent(rolling) == nil {
					kills[n.Name]++
				}
			}
			select {
			case <-rolling.Done():
			case <-time.After(pause):
			}
		}
	}()
	must(t, f.WaitNodeSays(ctx, "w0", "at "+after, func(says api.Node, _ *corev1.Node) bool { return says.Current == after }))
	stop()
	<-done
	must(t, f.WaitAt(ctx, after, names(f)...))
	bootedOnce(t, f, booted, names(f)...)
	t.Logf("killed how often: %v", kills)
	if kills["w0"] < 2 {
		t.Error("that is hardly all the time")
	}
}

// outage is how long the API server is away: some times what a phase takes here.
const outage = 8 * time.Second

func withoutAPI(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	booted := boots(f)
	_, after := change(ctx, t, f, fleet.WorkerFile("60-blocked", "eleventh"))
	// Whether the Node ever says that it reboots depends on when the API server is back; the host knows it.
	boots := func() bool { return f.Node("w0").Boots() > booted["w0"] }
	for _, phase := range []struct {
		name    string
		reached func(says api.Node, n *corev1.Node) bool
	}{
		{"targeted", func(says api.Node, _ *corev1.Node) bool { return says.Desired == after }},
		{"cordoned", func(_ api.Node, n *corev1.Node) bool { return n.Spec.Unschedulable || boots() }},
		{"booting", func(api.Node, *corev1.Node) bool { return boots() }},
	} {
		must(t, f.WaitNodeSays(ctx, "w0", phase.name, phase.reached))
		f.StopAPI()
		time.Sleep(outage) //nolint:forbidigo // the API server is away for so long
		must(t, f.StartAPI(ctx))
	}
	must(t, f.WaitAt(ctx, after, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	bootedOnce(t, f, booted, names(f)...)
}

func leaderChanges(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	booted, nodes := boots(f), f.WatchNodes(ctx, "worker")
	_, err := f.StartController(ctx)
	must(t, err)
	first, err := leader(ctx, f)
	must(t, err)
	// The drain of w0 lasts until the second one leads, so that it finds the rollout in the middle.
	before, after := blocked(ctx, t, f, fleet.WorkerFile("60-blocked", "twelfth"))
	rendered, err := renderedConfigs(ctx, f)
	must(t, err)
	f.Controllers()[0].Kill()
	must(t, fleet.Until(ctx, "another leader", func(ctx context.Context) (bool, string, error) {
		now, err := leader(ctx, f)
		return now != "" && now != first, now, err
	}))
	// It looks at the pool: its maxUnavailable is taken by a node that somebody else has told.
	must(t, f.Pool(ctx, "worker", "\"50%\""), f.WaitPool(ctx, "worker", "observed", func(p *mcfgv1.MachineConfigPool) bool {
		return p.Status.ObservedGeneration == p.Generation
	}))
	for name, want := range map[string]string{"w0": after, "w1": before} {
		if says, _, err := f.Says(ctx, name); err != nil || says.Desired != want {
			t.Errorf("%s is to have %s, not %s: %v", name, says.Desired, want, err)
		}
	}
	must(t, f.Unpin(ctx, "guarded"), f.WaitAt(ctx, after, names(f)...), f.Pool(ctx, "worker", "1"),
		f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	bootedOnce(t, f, booted, names(f)...)
	if least := nodes.Least(); least != 1 {
		t.Errorf("%d nodes served at one time, the pool wants 1", least)
	}
	if now, err := renderedConfigs(ctx, f); err != nil || now != rendered {
		t.Errorf("rendered are %s, before it was %s: %v", now, rendered, err)
	}
}

// leader is who holds the controllers' lease.
func leader(ctx context.Context, f *fleet.Fleet) (string, error) {
	lease, err := f.Client.CoordinationV1().Leases(api.Namespace).Get(ctx, api.Controller, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return "", err
	}
	return *lease.Spec.HolderIdentity, nil
}

// renderedConfigs are the rendered configurations of the cluster, each with the time at which it was made.
func renderedConfigs(ctx context.Context, f *fleet.Fleet) (string, error) {
	all, err := f.MachineConfigs.MachineconfigurationV1().MachineConfigs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	var names []string
	for _, c := range all.Items {
		if strings.HasPrefix(c.Name, "rendered-") {
			names = append(names, c.Name+" "+c.CreationTimestamp.String())
		}
	}
	return strings.Join(names, ", "), nil
}

func deletedMidway(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	booted := boots(f)
	before, after := blocked(ctx, t, f, fleet.WorkerFile("60-blocked", "thirteenth"))
	_, err := f.Kubectl(ctx, "delete", "node", "w0")
	must(t, err, f.Unpin(ctx, "guarded"))
	must(t, f.WaitAt(ctx, after, "w1"))
	// Nobody asks for anything of a host without a Node.
	if f.Node("w0").Boots() != booted["w0"] {
		t.Error("w0 has booted without a Node")
	}
	text, err := f.Node("w0").Output(ctx, "machine-config-daemon", "status", "-o", "json")
	if err != nil || !strings.Contains(text, `"committed": "`+before+`"`) {
		t.Errorf("w0 without a Node: %s, %v", text, err)
	}
	must(t, f.Rejoin(ctx, f.Node("w0")))
	must(t, f.WaitAt(ctx, after, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	bootedOnce(t, f, booted, names(f)...)
	for _, n := range f.Nodes {
		text, err := n.Output(ctx, "cat", "/etc/60-blocked.conf")
		if err != nil || text != "thirteenth" {
			t.Errorf("%s has %q: %v", n.Name, text, err)
		}
	}
}

// liftedAgain lifts the quarantine that badConfiguration has left; without one, a node fails now.
func liftedAgain(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	_, bad := change(ctx, t, f, noKubelet)
	must(t, f.WaitPool(ctx, "worker", "quarantined", func(p *mcfgv1.MachineConfigPool) bool {
		return p.Spec.Configuration.Name == bad && fleet.Condition(p, api.PoolQuarantined)
	}))
	first, other := "w0", "w1"
	says, _, err := f.Says(ctx, first)
	must(t, err)
	if len(says.Quarantined) == 0 {
		first, other = other, first
	}
	booted := boots(f)
	// The cause goes away: the kubelet of these hosts no longer minds.
	for _, n := range f.Nodes {
		at := n.HostPath("/etc/systemd/system/kubelet.service.d/60-patient.conf")
		must(t, os.WriteFile(at, []byte("[Service]\nExecStartPre=\n"), 0o644))
	}
	// Both might go at a time, and yet only the one that failed does.
	must(t, f.Pool(ctx, "worker", "2"))
	text, exit, err := f.Refit(ctx, "quarantine", "lift", "worker")
	must(t, err)
	if exit != 0 {
		t.Fatal(text)
	}
	must(t, f.WaitNodeSays(ctx, first, "at "+bad, func(says api.Node, _ *corev1.Node) bool { return says.Current == bad }))
	if f.Node(other).Boots() != booted[other] {
		t.Errorf("%s has tried it too, before %s on which it had failed was there", other, first)
	}
	must(t, f.WaitAt(ctx, bad, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	bootedOnce(t, f, booted, names(f)...)
	for _, name := range names(f) {
		if says, _, err := f.Says(ctx, name); err != nil || says.Lift != "" || len(says.Quarantined) != 0 {
			t.Errorf("%s: %+v, %v", name, says, err)
		}
	}
	must(t, f.Pool(ctx, "worker", "1"))
	remove(ctx, t, f, "70-no-kubelet")
	back, err := f.Render(ctx, "worker", bad)
	must(t, err, f.WaitAt(ctx, back, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
}
