// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/noderefit/noderefit/test/lab"
)

// host makes a host, boots it and has it join.
func host(ctx context.Context, t *testing.T, c *Cluster, name string) *lab.Host {
	t.Helper()
	forget(t, c, name)
	h, err := lab.Need(t).NewHost(ctx, "", lab.Options{Name: name, Firmware: 2 * c.options.GracePeriod})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			if text, err := h.Journal(context.Background()); err == nil {
				t.Log(text[max(0, len(text)-20000):])
			}
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := h.Start(ctx); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := c.Join(ctx, h, name, map[string]string{"node-role.kubernetes.io/worker": "", "app": "hosts"}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s has joined after %v", name, time.Since(begin).Round(10*time.Millisecond))
	return h
}

func notReady(n *corev1.Node) bool { return !Ready(n) }

func TestAHostIsANodeThatIsMissedWhenItReboots(t *testing.T) {
	lab.Need(t)
	ctx, c := full(t)
	one := host(ctx, t, c, "one")
	host(ctx, t, c, "two")
	deploy(ctx, t, c, "hosts", 4)
	on := map[string]int{}
	for _, pod := range running(ctx, t, c, "hosts", 4) {
		on[pod.Spec.NodeName]++
	}
	if on["one"] == 0 || on["two"] == 0 {
		t.Errorf("pods by node: %v, want some on each", on)
	}
	if out, err := one.Output(ctx, "bash", "-c", healthz); err != nil || !strings.Contains(out, "200 OK") {
		t.Errorf("/healthz of the kubelet: %q, %v", out, err)
	}
	before, err := c.Client.CoreV1().Nodes().Get(ctx, "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	// It comes back with another OS, as after an update.
	if _, err := one.Output(ctx, "ostree", "admin", "deploy", "--os="+lab.OS, lab.RefV2); err != nil {
		t.Fatal(err)
	}
	rebooted := make(chan error, 1)
	go func() { rebooted <- one.Reboot(ctx) }()
	if err := c.WaitNode(ctx, "one", "not ready", notReady); err != nil {
		t.Fatal(err)
	}
	if err := <-rebooted; err != nil {
		t.Fatal(err)
	}
	if version, err := one.Output(ctx, "cat", "/usr/lib/testos/version"); err != nil || version != "v2\n" {
		t.Errorf("booted %q, %v", version, err)
	}
	begin := time.Now()
	if err := c.WaitReady(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	t.Logf("ready %v after the boot", time.Since(begin).Round(10*time.Millisecond))
	running(ctx, t, c, "hosts", 4)
	after, err := c.Client.CoreV1().Nodes().Get(ctx, "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := before.Status.NodeInfo, after.Status.NodeInfo; a.MachineID != b.MachineID || a.BootID == b.BootID {
		t.Errorf("before %+v, after %+v: want another boot of the same machine", a, b)
	}
	if after.Status.NodeInfo.OSImage != "Test OS" {
		t.Errorf("the OS is %q", after.Status.NodeInfo.OSImage)
	}
	two, err := c.Client.CoreV1().Nodes().Get(ctx, "two", metav1.GetOptions{})
	if err != nil || !Ready(two) {
		t.Errorf("the other node: %v, %v", two.Status.Conditions, err)
	}
}

// healthz asks as the agent does, of what a bare host has.
const healthz = `exec 3<>/dev/tcp/127.0.0.1/10248; printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3; cat <&3`

func TestAHostWithoutItsCableIsNotReadyUntilItIsBack(t *testing.T) {
	lab.Need(t)
	ctx, c := full(t)
	one := host(ctx, t, c, "one")
	one.Unplug(true)
	if err := c.WaitNode(ctx, "one", "not ready", notReady); err != nil {
		t.Fatal(err)
	}
	one.Unplug(false)
	if err := c.WaitReady(ctx, "one"); err != nil {
		t.Fatal(err)
	}
}

func TestAHostsOwnCredentialsAreANodes(t *testing.T) {
	lab.Need(t)
	ctx, c := full(t)
	one := host(ctx, t, c, "one")
	if err := c.AddNode(ctx, "other", nil); err != nil {
		t.Fatal(err)
	}
	forget(t, c, "other")
	config, err := c.certificateConfig("system:node:one", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	nodes := kubernetes.NewForConfigOrDie(config).CoreV1().Nodes()
	for name, allowed := range map[string]bool{"one": true, "other": false} {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"lab":"%s"}}}`, name)
		_, err := nodes.Patch(ctx, name, "application/merge-patch+json", patch, metav1.PatchOptions{})
		if allowed != (err == nil) || !allowed && !apierrors.IsForbidden(err) {
			t.Errorf("node one annotates %s: %v", name, err)
		}
	}

	// What an agent on the host would be given, at the place where it would be used.
	_, path, err := c.ServiceAccountConfig(ctx, "noderefit", "machine-config-daemon", "one")
	if err != nil {
		t.Fatal(err)
	}
	if err := link(path, one.HostPath("/var/lib/cluster-lab/agent.kubeconfig")); err != nil {
		t.Fatal(err)
	}
	out, err := one.Output(ctx, guestKubebox, "kubectl", "--kubeconfig=/var/lib/cluster-lab/agent.kubeconfig",
		"auth", "whoami")
	if err != nil || !strings.Contains(out, "node-name") || !strings.Contains(out, "machine-config-daemon") {
		t.Errorf("kubectl auth whoami on the host: %q, %v", out, err)
	}
}
