// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

func nodeHook(name, when, script string) string {
	return fmt.Sprintf(`apiVersion: noderefit.dev/v1alpha1
kind: NodeHook
metadata:
  name: %s
spec:
  when: %s
  timeoutSeconds: 30
  script: |
    #!/bin/sh
    %s
`, name, when, strings.ReplaceAll(script, "\n", "\n    "))
}

// TestHooks follows hooks of a host and of the cluster from where they are put to what people are told.
func TestHooks(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes; test/hosts/node and test/clusters/run have its parts")
	}
	ctx, f := start(t, fleet.Options{Hosts: []string{"asks"}, Kwok: []string{"room"}})
	n := f.Nodes[0]
	hooks := func(value string) {
		_, err := f.Kubectl(ctx, "annotate", "--overwrite", "mcp", "worker", api.HooksKey+value)
		must(t, err)
	}
	gate := n.HostPath("/etc/noderefit/hooks/before-drain.d/10-gate")

	t.Run("the API server refuses what makes no sense, by field", func(t *testing.T) {
		for field, document := range map[string]string{
			"spec.when":           nodeHook("bad", "Sometimes", "true"),
			"spec.script":         strings.Replace(nodeHook("bad", "BeforeDrain", "true"), "#!", "# ", 1),
			"spec.timeoutSeconds": strings.Replace(nodeHook("bad", "BeforeDrain", "true"), "30", "0", 1),
			"spec":                strings.Replace(nodeHook("bad", "BeforeDrain", "true"), "  script", "  path: /x\n  script", 1),
			"spec.path": strings.Replace(strings.Split(nodeHook("bad", "BeforeDrain", "true"), "  script")[0], "spec:",
				"spec:\n  path: ../gate", 1),
		} {
			if err := f.Apply(ctx, document); err == nil || !strings.Contains(err.Error(), field+":") {
				t.Errorf("%s: %v", field, err)
			}
		}
	})

	t.Run("a host's hook holds its node while it serves, and lets it go", func(t *testing.T) {
		must(t, errors.Join(os.MkdirAll(filepath.Dir(gate), 0o755),
			os.WriteFile(gate, []byte("#!/bin/sh\necho the backup of $NODEREFIT_NODE has not ended\nexit 3\n"), 0o755)))
		_, after := change(ctx, t, f, fleet.WorkerFile("00-worker", "second"))
		must(t, f.WaitNodeSays(ctx, n.Name, "held", func(says api.Node, o *corev1.Node) bool {
			return says.State == api.Working && strings.Contains(says.Reason, "10-gate: exit status 3") && !o.Spec.Unschedulable
		}))
		explains(ctx, t, f, n.Name, progress.HeldByHook, "10-gate says no: exit status 3")
		out, _, err := f.Refit(ctx, "explain", n.Name)
		if err != nil || !strings.Contains(out, "output:   the backup of asks has not ended") ||
			!strings.Contains(out, "blocking: Hook /etc/noderefit/hooks/before-drain.d/10-gate") {
			t.Errorf("%v: %s", err, out)
		}
		told(ctx, t, f, n.Name, "UpdateHeldByHook", "the backup of asks has not ended")
		if got := metric(ctx, t, n, "noderefit_hook_holds"); got == "" || got == "0" {
			t.Errorf("noderefit_hook_holds is %q", got)
		}
		must(t, os.WriteFile(gate, []byte("#!/bin/sh\nexit 0\n"), 0o755), f.WaitAt(ctx, after, n.Name))
		told(ctx, t, f, n.Name, "HooksAgree", "10-gate")
	})

	t.Run("a hook that is not there makes the pool misconfigured", func(t *testing.T) {
		hooks("=quota,prepared")
		explains(ctx, t, f, "pool/worker", progress.Misconfigured, "NodeHook/quota: is not there")
		must(t, f.Apply(ctx, nodeHook("quota", "BeforeDrain", "echo no quota for $NODEREFIT_NODE; exit 1")))
		explains(ctx, t, f, "pool/worker", progress.Misconfigured, "NodeHook/prepared: is not there")
		must(t, f.Apply(ctx, nodeHook("prepared", "AfterBoot", "echo $NODEREFIT_HOOK >/var/tmp/prepared; test ! -e /etc/break || { echo the playbook has failed; exit 2; }")))
		explains(ctx, t, f, "pool/worker", progress.UpToDate, "")
	})

	t.Run("a hook of the cluster holds, and a change of it is no rollout", func(t *testing.T) {
		boots := n.Boots()
		before, after := change(ctx, t, f, fleet.WorkerFile("00-worker", "third"))
		explains(ctx, t, f, n.Name, progress.HeldByHook, "NodeHook/quota says no: exit status 1")
		must(t, f.Apply(ctx, nodeHook("quota", "BeforeDrain", "exit 0")), f.WaitAt(ctx, after, n.Name))
		if before == after || n.Boots() != boots+1 {
			t.Errorf("%d boots", n.Boots()-boots)
		}
		text, err := os.ReadFile(n.HostPath("/var/tmp/prepared"))
		if err != nil || string(text) != "prepared\n" {
			t.Errorf("after the boot ran %q, %v", text, err)
		}
		if now, err := f.Configuration(ctx, "worker"); err != nil || now != after {
			t.Errorf("%s, %v", now, err)
		}
	})

	t.Run("a hook after the boot takes the node back, with its words", func(t *testing.T) {
		before, _ := change(ctx, t, f, fleet.WorkerFile("00-worker", "fourth")+"---\n"+strings.ReplaceAll(fleet.WorkerFile("break", "x"), "/etc/break.conf", "/etc/break"))
		must(t, f.WaitNodeSays(ctx, n.Name, "rolled back", func(says api.Node, _ *corev1.Node) bool {
			return says.State == api.RolledBack && says.Current == before
		}))
		explains(ctx, t, f, n.Name, progress.RolledBack,
			"after-boot hook NodeHook/prepared: exit status 2: the playbook has failed")
		remove(ctx, t, f, "break")
		must(t, f.Apply(ctx, fleet.WorkerFile("00-worker", "third")), f.WaitAt(ctx, before, n.Name))
		hooks("-")
	})
}
