// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/test/lab/fleet"
)

// kubeletBase brings the kubelet's whole configuration, as the templates of a platform do.
var kubeletBase = fleet.WorkerFileAt("01-worker-kubelet", "/etc/kubernetes/kubelet.conf", 0o644,
	"%7B%22kind%22:%22KubeletConfiguration%22,%22apiVersion%22:%22kubelet.config.k8s.io%2Fv1beta1%22,%22maxPods%22:250%7D")

// restartKubelet says that a changed configuration of the kubelet takes its restart and no more.
const restartKubelet = `apiVersion: operator.openshift.io/v1
kind: MachineConfiguration
metadata:
  name: cluster
spec:
  logLevel: Normal
  operatorLogLevel: Normal
  managementState: Managed
  nodeDisruptionPolicy:
    files:
    - path: /etc/kubernetes/kubelet.conf
      actions:
      - type: Restart
        restart:
          serviceName: kubelet.service
`

func kubeletConfig(config string) string {
	return fmt.Sprintf(`apiVersion: machineconfiguration.openshift.io/v1
kind: KubeletConfig
metadata:
  name: small
spec:
  machineConfigPoolSelector:
    matchLabels:
      kubelet: small
  kubeletConfig: %s
`, config)
}

// From the object to the host: what a KubeletConfig says is in the kubelet's file there, and the host was rebooted or
// the kubelet restarted for it, as the policy has it.
func TestAKubeletConfigReachesTheKubelet(t *testing.T) {
	ctx, f := start(t, fleet.Options{Hosts: []string{"w0"}})
	ctx, cancel := context.WithTimeoutCause(ctx, 2*patience, errors.New("the scenario takes too long"))
	defer cancel()
	w0 := f.Node("w0")
	host := func(args ...string) string {
		t.Helper()
		text, err := w0.Output(ctx, args...)
		must(t, err)
		return text
	}
	// has waits until the host's file has these words, and the node is settled there.
	has := func(words ...string) {
		t.Helper()
		what := fmt.Sprintf("kubelet.conf on w0 has %q", words)
		must(t, fleet.Until(ctx, what, func(ctx context.Context) (bool, string, error) {
			config, err := f.Configuration(ctx, "worker")
			if err != nil {
				return false, "", err
			}
			says, _, err := f.Says(ctx, "w0")
			if err != nil || says.Current != config || says.Desired != config {
				return false, fmt.Sprintf("%+v, and the pool is at %s", says, config), err
			}
			text := host("cat", "/etc/kubernetes/kubelet.conf")
			for _, word := range words {
				if !strings.Contains(text, word) {
					return false, text, nil
				}
			}
			return true, text, nil
		}))
	}
	_, err := f.Kubectl(ctx, "label", "mcp", "worker", "kubelet=small")
	must(t, err)
	change(ctx, t, f, kubeletBase)
	has(`"maxPods":250`)

	before := w0.Boots()
	change(ctx, t, f, kubeletConfig(`{maxPods: 100, protectKernelDefaults: false}`))
	has(`"maxPods": 100`, `"protectKernelDefaults": false`)
	if got := w0.Boots() - before; got != 1 {
		t.Errorf("w0 booted %d times without a policy", got)
	}

	must(t, f.Apply(ctx, restartKubelet))
	before = w0.Boots()
	run := host("systemctl", "show", "--property=InvocationID", "kubelet.service")
	change(ctx, t, f, kubeletConfig(`{maxPods: 90, protectKernelDefaults: false}`))
	has(`"maxPods": 90`)
	if got := w0.Boots() - before; got != 0 {
		t.Errorf("w0 booted %d times although the policy says Restart", got)
	}
	if now := host("systemctl", "show", "--property=InvocationID", "kubelet.service"); now == run {
		t.Errorf("the kubelet was not restarted: %s", now)
	}

	// A wrong one says so where people look, the node keeps what it had, and everything else goes on.
	must(t, f.Apply(ctx, kubeletConfig(`{maxPodz: 80}`)))
	must(t, fleet.Until(ctx, "the KubeletConfig says what is wrong", func(ctx context.Context) (bool, string, error) {
		k, err := f.MachineConfigs.MachineconfigurationV1().KubeletConfigs().Get(ctx, "small", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		last := k.Status.Conditions[len(k.Status.Conditions)-1]
		return k.Status.ObservedGeneration == k.Generation && last.Status == corev1.ConditionFalse &&
			strings.Contains(last.Message, `unknown field "maxPodz"`), last.Message, nil
	}))
	change(ctx, t, f, fleet.WorkerFile("50-beside", "beside"))
	has(`"maxPods": 90`)
	if text := host("cat", "/etc/50-beside.conf"); text != "beside" {
		t.Errorf("what has nothing to do with it is %q", text)
	}
	must(t, fleet.Until(ctx, "explain names it", func(ctx context.Context) (bool, string, error) {
		text, _, err := f.Refit(ctx, "explain", "worker")
		return strings.Contains(text, "KubeletConfig small") && strings.Contains(text, "maxPodz"), text, err
	}))

	_, err = f.Kubectl(ctx, "delete", "kubeletconfig", "small")
	must(t, err)
	has(`"maxPods":250`)
	names, err := f.Kubectl(ctx, "get", "mc", "-o", "name")
	must(t, err)
	if strings.Contains(names, "generated-kubelet") {
		t.Errorf("left behind: %s", names)
	}
}
