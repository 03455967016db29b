// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// triesAndKeeps has a node try what breaks it, what it goes back from by itself, and what the pool gets then.
func triesAndKeeps(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	before, err := f.Configuration(ctx, "worker")
	must(t, err)
	booted := boots(f)
	try := func(name, document string, more ...string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(path, []byte(document), 0o600))
		said, code, err := f.Refit(ctx, append([]string{"try", "-f", path, "--node", "w0"}, more...)...)
		if err != nil || code != 0 {
			t.Fatalf("%v: exit code %d: %s", err, code, said)
		}
		return said
	}
	ended := func(because string) {
		t.Helper()
		must(t, f.WaitNodeSays(ctx, "w0", "back at "+before, func(says api.Node, n *corev1.Node) bool {
			return says.Tried != nil && strings.Contains(says.Tried.Because, because) && says.Current == before &&
				says.Desired == before && says.State == api.Done && !n.Spec.Unschedulable
		}))
	}
	// Since a lifted quarantine was tried again, the kubelets of these hosts do not mind. This one minds again.
	patient := f.Node("w0").HostPath("/etc/systemd/system/kubelet.service.d/60-patient.conf")
	if err := os.Remove(patient); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	// Another text makes another content: the node may have the kubelet's breakage in quarantine already.
	try("bad.yaml", strings.Replace(noKubelet, "70-no-kubelet", "71-tried", 1)+"      - path: /etc/tried\n        mode: 420\n"+
		"        contents:\n          source: data:,bad\n")
	ended("it failed")
	bad := f.Node("w0").Boots() - booted["w0"]
	if bad != 2 {
		t.Errorf("w0 has booted %d times for what failed, and back", bad)
	}
	try("short.yaml", fleet.WorkerFile("72-tried", "tried"), "--for", "1s")
	ended("its time is over")
	said := try("kept.yaml", fleet.WorkerFile("73-kept", "kept"), "--keep")
	if !strings.Contains(said, "MachineConfig 73-kept written") {
		t.Errorf("the program said: %s", said)
	}
	after, err := f.Render(ctx, "worker", before)
	must(t, err, f.WaitAt(ctx, after, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	if got := f.Node("w1").Boots() - booted["w1"]; got != 1 {
		t.Errorf("w1, which tried nothing, has booted %d times for what was kept", got)
	}
	if says, _, err := f.Says(ctx, "w0"); err != nil || says.Tried == nil || !says.Tried.Kept || says.Tried.Config != after {
		t.Errorf("the record of w0: %+v, %v", says.Tried, err)
	}
	remove(ctx, t, f, "73-kept")
	must(t, f.WaitAt(ctx, before, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
}
