// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// Apply applies manifests, as kubectl apply does.
func (f *Fleet) Apply(ctx context.Context, manifests string) error {
	file, err := os.CreateTemp(f.dir, "*.yaml")
	if err != nil {
		return err
	}
	_, err = file.WriteString(manifests)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	_, err = f.Kubectl(ctx, "apply", "-f", file.Name())
	return err
}

// WorkerFile returns a MachineConfig for workers with a file of its name in /etc. Without a policy the file needs a
// drain and a reboot.
func WorkerFile(name, text string) string {
	return WorkerFileAt(name, "/etc/"+name+".conf", 0o644, text)
}

// WorkerFileAt returns a MachineConfig for workers with one file. The text is as in a data URL.
func WorkerFileAt(name, path string, mode int, text string) string {
	return fmt.Sprintf(`apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: %s
  labels:
    machineconfiguration.openshift.io/role: worker
spec:
  config:
    ignition:
      version: 3.2.0
    storage:
      files:
      - path: %s
        mode: %d
        overwrite: true
        contents:
          source: data:,%s
`, name, path, mode, text)
}

// Pool makes or changes a pool whose nodes have the label of its role.
func (f *Fleet) Pool(ctx context.Context, name, maxUnavailable string) error {
	return f.Apply(ctx, fmt.Sprintf(`apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata:
  name: %[1]s
spec:
  machineConfigSelector:
    matchExpressions:
    - {key: machineconfiguration.openshift.io/role, operator: In, values: [worker, %[1]s]}
  nodeSelector:
    matchLabels:
      node-role.kubernetes.io/%[1]s: ""
  maxUnavailable: %[2]s
`, name, maxUnavailable))
}

// Workload makes a deployment that is spread over the nodes. As long as budgets are honoured, it always has at least
// minAvailable ready pods.
func (f *Fleet) Workload(ctx context.Context, name string, replicas, minAvailable int) error {
	spread := fmt.Sprintf("topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, "+
		"whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: %s}}}]", name)
	return f.workload(ctx, name, replicas, spread, fmt.Sprintf("minAvailable: %d", minAvailable))
}

// workload makes a deployment and a disruption budget. where selects the nodes, and budget is how many pods may go.
// Each is a field in YAML.
func (f *Fleet) workload(ctx context.Context, name string, replicas int, where, budget string) error {
	return f.Apply(ctx, fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata:
  name: %[1]s
  namespace: default
spec:
  replicas: %[2]d
  selector:
    matchLabels: {app: %[1]s}
  template:
    metadata:
      labels: {app: %[1]s}
    spec:
      terminationGracePeriodSeconds: 1
      %[3]s
      containers:
      - name: main
        image: none
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: %[1]s
  namespace: default
spec:
  %[4]s
  selector:
    matchLabels: {app: %[1]s}
`, name, replicas, where, budget))
}

// poll is the interval at which a condition is checked.
const poll = 200 * time.Millisecond

// Until waits until done returns true. last describes the present state, for the error.
func Until(ctx context.Context, what string, done func(context.Context) (ok bool, last string, err error)) error {
	var last string
	for {
		ok, now, err := done(ctx)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("waiting for %s, last seen: %s: %w", what, last, context.Cause(ctx))
		case err != nil:
			last = err.Error()
		case ok:
			return nil
		default:
			last = now
		}
		select {
		case <-ctx.Done():
		case <-time.After(poll):
		}
	}
}

// WaitPool waits until the pool meets the condition.
func (f *Fleet) WaitPool(ctx context.Context, name, what string, condition func(*mcfgv1.MachineConfigPool) bool) error {
	return Until(ctx, fmt.Sprintf("pool %s: %s", name, what), func(ctx context.Context) (bool, string, error) {
		p, err := f.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return condition(p), fmt.Sprintf("%s, %+v", p.Spec.Configuration.Name, p.Status), nil
	})
}

// Updated returns a condition: the pool is rendered, and every node has its configuration.
func Updated(nodes int) func(*mcfgv1.MachineConfigPool) bool {
	return func(p *mcfgv1.MachineConfigPool) bool {
		return p.Spec.Configuration.Name != "" && p.Status.Configuration.Name == p.Spec.Configuration.Name &&
			p.Status.ObservedGeneration == p.Generation && int(p.Status.UpdatedMachineCount) == nodes &&
			int(p.Status.ReadyMachineCount) == nodes && Condition(p, mcfgv1.MachineConfigPoolUpdated)
	}
}

// Condition reports whether a condition of a pool is True.
func Condition(p *mcfgv1.MachineConfigPool, kind mcfgv1.MachineConfigPoolConditionType) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Says returns what a node's annotations report.
func (f *Fleet) Says(ctx context.Context, name string) (api.Node, *corev1.Node, error) {
	n, err := f.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return api.Node{}, nil, err
	}
	says, err := api.ReadNode(n)
	return says, n, err
}

// WaitNodeSays waits until a node meets the condition.
func (f *Fleet) WaitNodeSays(
	ctx context.Context, name, what string, condition func(api.Node, *corev1.Node) bool,
) error {
	return Until(ctx, fmt.Sprintf("node %s: %s", name, what), func(ctx context.Context) (bool, string, error) {
		says, n, err := f.Says(ctx, name)
		if err != nil {
			return false, "", err
		}
		return condition(says, n), fmt.Sprintf("%+v, unschedulable %t", says, n.Spec.Unschedulable), nil
	})
}

// Refit runs the plugin and returns its output.
func (f *Fleet) Refit(ctx context.Context, args ...string) (string, int, error) {
	return output(ctx, filepath.Join(f.options.Bin, "kubectl-refit"),
		append([]string{"--kubeconfig", f.Kubeconfig}, args...)...)
}
