// SPDX-License-Identifier: Apache-2.0

package schemas

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// Commands that need neither a host nor a cluster. What the others print is checked where there are hosts and clusters.
func TestWhatProgramsPrintIsAsItsSchemaSays(t *testing.T) {
	lab.Sources(t)
	t.Parallel()
	dir, root := t.TempDir(), t.TempDir()
	for _, d := range []string{"etc", "usr/etc", "var/lib", "run", "proc", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(dir, "config.json")
	const text = `{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/motd","contents":{"source":"data:,hello"}}]}}`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	built := map[string]string{}
	for _, c := range []struct{ kind, command string }{
		{"HostPlan", "machine-config-daemon plan --desired " + config},
		{"HostResult", "machine-config-daemon stage --config " + config},
		{"HostResult", "machine-config-daemon apply --config " + config},
		{"HostResult", "machine-config-daemon repair"},
		{"HostResult", "machine-config-daemon recover"},
		{"HostStatus", "machine-config-daemon status"},
		{"HostVerification", "machine-config-daemon verify --paths"},
		{"HostHooks", "machine-config-daemon hooks"},
		{"HostRebootWanted", "machine-config-daemon wants-reboot"},
		{"TimelineEntry", "machine-config-controller simulate --nodes 3"},
		{"Versions", "kubectl-refit version --client"},
	} {
		args := append(strings.Fields(c.command), "-o", "json")
		name := args[0]
		if name == "machine-config-daemon" {
			args = append(args, "--root", root)
		}
		if built[name] == "" {
			path, err := programs.Build(t.Context(), dir, "cmd/"+name)
			if err != nil {
				t.Fatal(err)
			}
			built[name] = path
		}
		out, err := exec.CommandContext(t.Context(), built[name], args[1:]...).Output()
		if err := errors.Join(err, Check(out)); err != nil || !strings.Contains(string(out), `"kind": "`+c.kind+`"`) {
			t.Errorf("%s prints no %s: %v\n%s", c.command, c.kind, err, out)
		}
	}
}

func TestProgramsHaveNoGeneratorOfSchemas(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"/cmd/...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, not := range []string{"github.com/invopop/", module + "/test/"} {
		if strings.Contains(string(out), not) {
			t.Errorf("a program imports %s", not)
		}
	}
}
