// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// What packaging/ ships for kubeadm's clusters, from the ControllerConfig to what systemd does with it on a host.
func TestTheTemplatesOfKubeadmReachTheHost(t *testing.T) {
	ctx, f := start(t, fleet.Options{Hosts: []string{"w0"}})
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the scenario takes too long"))
	defer cancel()
	w0 := f.Node("w0")
	host := func(args ...string) string {
		t.Helper()
		text, _, _, err := w0.Exec(ctx, nil, args...)
		must(t, err)
		return strings.TrimSpace(string(text))
	}
	asksFor := filepath.Join(repository, "packaging/kustomize/templates/controllerconfig.yaml")

	// Somebody's own MachineConfig has one of the names: nothing is made, and nobody is moved.
	before, err := f.Configuration(ctx, "worker")
	must(t, err)
	_, err = f.Kubectl(ctx, "apply", "--server-side", "-f", asksFor)
	must(t, err)
	must(t, fleet.Until(ctx, "the ControllerConfig names what is in the way", func(ctx context.Context) (bool, string, error) {
		text, err := f.Kubectl(ctx, "get", "controllerconfig", api.ControllerConfig, "-o", "jsonpath={.status.conditions}")
		return strings.Contains(text, "NameTaken") && strings.Contains(text, "MachineConfig/00-worker "), text, err
	}))
	booted := w0.Boots()
	if now, err := f.Configuration(ctx, "worker"); err != nil || now != before {
		t.Errorf("the pool went from %s to %s, %v", before, now, err)
	}

	// All of the set arrives at once: one rendered configuration, one boot.
	remove(ctx, t, f, "00-worker")
	after, err := f.Render(ctx, "worker", before)
	must(t, err, f.WaitAt(ctx, after, "w0"), f.WaitPool(ctx, "worker", "updated", fleet.Updated(1)))
	sources, err := f.Kubectl(ctx, "get", "mcp", "worker", "-o", "jsonpath={.spec.configuration.source[*].name}")
	must(t, err)
	if sources != "00-worker 01-worker-container-runtime 01-worker-kubelet" {
		t.Errorf("%s is made of %s", after, sources)
	}
	if got := w0.Boots() - booted; got != 1 {
		t.Errorf("w0 booted %d times", got)
	}
	for _, c := range []struct{ want, args string }{
		{"overlay\nbr_netfilter", "cat /etc/modules-load.d/kubernetes.conf"},
		{"net.ipv4.ip_forward = 1\nnet.bridge.bridge-nf-call-iptables = 1\nnet.bridge.bridge-nf-call-ip6tables = 1",
			"cat /etc/sysctl.d/90-kubernetes.conf"},
		{"masked", "systemctl is-enabled zincati.service"},
		{"enabled", "systemctl is-enabled crio.service"},
		{"enabled", "systemctl is-enabled kubelet.service"},
		{"active", "systemctl is-active kubelet.service"},
		{"/etc/systemd/system/kubelet.service", "systemctl show --value --property=FragmentPath kubelet.service"},
	} {
		if got := host(strings.Fields(c.args)...); got != c.want {
			t.Errorf("%s: %q, want %q", c.args, got, c.want)
		}
	}
	// The drop-ins are in force: the kubelet waits for its runtime, and reads what kubeadm writes.
	for property, want := range map[string]string{
		"After": "crio.service", "EnvironmentFiles": "/var/lib/kubelet/kubeadm-flags.env",
		"Environment": "--config=/var/lib/kubelet/config.yaml",
	} {
		if got := host("systemctl", "show", "--value", "--property="+property, "kubelet.service"); !strings.Contains(got, want) {
			t.Errorf("the kubelet's %s lacks %s: %s", property, want, got)
		}
	}

	// What somebody makes of an owned MachineConfig is put back, and the node stays or comes back.
	booted = w0.Boots()
	_, err = f.Kubectl(ctx, "patch", "machineconfig", "00-worker", "--type=merge", "-p",
		`{"spec":{"config":{"storage":{"files":[]}}}}`)
	must(t, err)
	must(t, fleet.Until(ctx, "it is put back and said", func(ctx context.Context) (bool, string, error) {
		list, err := f.Client.CoreV1().Events("").List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.name=00-worker,reason=TemplateRestored"})
		if err != nil || len(list.Items) == 0 {
			return false, "no event", err
		}
		text, err := f.Kubectl(ctx, "get", "machineconfig", "00-worker", "-o", "jsonpath={.spec.config.storage.files[*].path}")
		return text == "/etc/modules-load.d/kubernetes.conf /etc/sysctl.d/90-kubernetes.conf", text, err
	}))
	must(t, f.WaitPool(ctx, "worker", "updated", fleet.Updated(1)), f.WaitAt(ctx, after, "w0"))
	if got := w0.Boots() - booted; got != 0 {
		t.Errorf("w0 booted %d times for an edit that was put back", got)
	}
}
