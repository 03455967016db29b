// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// TestDrift follows what somebody changes on a real host from the host to where people look, and back.
func TestDrift(t *testing.T) {
	ctx, f := start(t, fleet.Options{Hosts: []string{"drifts"}, Kwok: []string{"room"}})
	n := f.Nodes[0]
	const managed = "/etc/00-worker.conf"
	write := func(text string) { must(t, os.WriteFile(n.HostPath(managed), []byte(text), 0o644)) }
	read := func() string {
		data, err := os.ReadFile(n.HostPath(managed))
		must(t, err)
		return string(data)
	}
	// The first comparison follows the first update within seconds.
	must(t, fleet.Until(ctx, "the host is compared", func(ctx context.Context) (bool, string, error) {
		out, err := n.Output(ctx, "journalctl", "-t", "machine-config-daemon", "-u", "machine-config-daemon-verify", "-o", "cat",
			"--no-pager")
		return err == nil, out, err
	}))

	t.Run("is told within seconds and taken back", func(t *testing.T) {
		began := time.Now()
		write("by hand")
		must(t, f.WaitNodeSays(ctx, n.Name, "drifted", func(says api.Node, _ *corev1.Node) bool { return says.Drift != nil }))
		t.Logf("told after %s", time.Since(began))
		says, _, err := f.Says(ctx, n.Name)
		must(t, err)
		if says.State != api.Done || says.Drift.Names(3) != "file "+managed+" (contents)" {
			t.Errorf("%+v", says)
		}
		explains(ctx, t, f, n.Name, progress.Drifted, managed)
		explains(ctx, t, f, "pool/worker", progress.Drifted, managed)
		if out, code, err := f.Refit(ctx, "status"); err != nil || code != 0 || !strings.Contains(out, "DRIFTED NODE") ||
			!strings.Contains(out, managed) {
			t.Errorf("status: %d, %v: %s", code, err, out)
		}
		told(ctx, t, f, n.Name, "ConfigDriftDetected", managed)
		if got := metric(ctx, t, n, "mcd_config_drift"); got == "0" || got == "" {
			t.Errorf("mcd_config_drift is %q", got)
		}
		// Another agent knows since when.
		before := metric(ctx, t, n, "mcd_config_drift")
		must(t, n.KillAgent(ctx))
		must(t, fleet.Until(ctx, "the metric is there again", func(ctx context.Context) (bool, string, error) {
			now := metric(ctx, t, n, "mcd_config_drift")
			return now == before, now, nil
		}))
		began = time.Now()
		write("first")
		must(t, f.WaitNodeSays(ctx, n.Name, "as it should be", func(says api.Node, _ *corev1.Node) bool {
			return says.Drift == nil
		}))
		t.Logf("taken back after %s", time.Since(began))
		told(ctx, t, f, n.Name, "ConfigDriftResolved", managed)
		explains(ctx, t, f, n.Name, progress.UpToDate, "")
	})

	t.Run("is written back where the pool says so", func(t *testing.T) {
		_, err := f.Kubectl(ctx, "annotate", "mcp", "worker", api.DriftPolicyKey+"=repair")
		must(t, err)
		boots := n.Boots()
		began := time.Now()
		write("by hand again")
		must(t, fleet.Until(ctx, "it is written back", func(context.Context) (bool, string, error) {
			return read() == "first", read(), nil
		}))
		t.Logf("written back after %s", time.Since(began))
		told(ctx, t, f, n.Name, "ConfigDriftRepaired", managed)
		must(t, f.WaitNodeSays(ctx, n.Name, "as it should be", func(says api.Node, _ *corev1.Node) bool {
			return says.Drift == nil
		}))
		kept := false
		copies, _ := filepath.Glob(n.HostPath("/var/lib/machine-config-daemon/drift/") + "/*" + managed)
		for _, c := range copies {
			data, err := os.ReadFile(c)
			kept = kept || err == nil && string(data) == "by hand again"
		}
		if !kept {
			t.Errorf("no copy was kept: %v", copies)
		}
		if n.Boots() != boots {
			t.Error("it rebooted")
		}
		_, err = f.Kubectl(ctx, "annotate", "mcp", "worker", api.DriftPolicyKey+"-")
		must(t, err)
	})

	t.Run("is no obstacle unless the pool says so", func(t *testing.T) {
		_, err := f.Kubectl(ctx, "annotate", "mcp", "worker", api.DriftPolicyKey+"=updates: strict")
		must(t, err)
		write("mine")
		must(t, f.WaitNodeSays(ctx, n.Name, "drifted", func(says api.Node, _ *corev1.Node) bool { return says.Drift != nil }))
		_, after := change(ctx, t, f, fleet.WorkerFile("00-worker", "second"))
		must(t, f.WaitNodeSays(ctx, n.Name, "waiting", func(says api.Node, o *corev1.Node) bool {
			return says.State == api.Degraded && strings.Contains(says.Reason, managed) && !o.Spec.Unschedulable
		}))
		explains(ctx, t, f, n.Name, progress.Degraded, managed)
		write("first")
		must(t, f.WaitAt(ctx, after, n.Name))
		_, err = f.Kubectl(ctx, "annotate", "mcp", "worker", api.DriftPolicyKey+"-")
		must(t, err)
		write("mine")
		must(t, f.WaitNodeSays(ctx, n.Name, "drifted", func(says api.Node, _ *corev1.Node) bool { return says.Drift != nil }))
		_, after = change(ctx, t, f, fleet.WorkerFile("00-worker", "third"))
		must(t, f.WaitAt(ctx, after, n.Name))
		told(ctx, t, f, n.Name, "UpdateOverwritesDrift", managed)
		if read() != "third" {
			t.Errorf("%s has %q", managed, read())
		}
	})
}

// explains asks the plugin about a node or a pool.
func explains(ctx context.Context, t *testing.T, f *fleet.Fleet, name string, want progress.Verdict, says string) {
	t.Helper()
	err := fleet.Until(ctx, "explain "+name+" says "+string(want), func(ctx context.Context) (bool, string, error) {
		out, _, err := f.Refit(ctx, "explain", name, "-o", "json")
		var a progress.Answer
		if err == nil {
			err = json.Unmarshal([]byte(out), &a)
		}
		return err == nil && a.Verdict == want && strings.Contains(a.Because, says), out, err
	})
	must(t, err)
}

// told waits for an event about a node.
func told(ctx context.Context, t *testing.T, f *fleet.Fleet, node, reason, says string) {
	t.Helper()
	err := fleet.Until(ctx, "event "+reason, func(ctx context.Context) (bool, string, error) {
		list, err := f.Client.CoreV1().Events("default").List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.name=" + node + ",reason=" + reason})
		if err != nil {
			return false, "", err
		}
		for _, e := range list.Items {
			if strings.Contains(e.Message, says) {
				return true, "", nil
			}
		}
		return false, "", nil
	})
	must(t, err)
}

// metric is a value of the agent on the host.
func metric(ctx context.Context, t *testing.T, n *fleet.Node, name string) string {
	t.Helper()
	out, err := n.Output(ctx, "bash", "-c",
		`exec 3<>/dev/tcp/127.0.0.1/8797; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; sed '1,/^\r$/d' <&3`)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(out) {
		if value, is := strings.CutPrefix(line, name+" "); is {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
