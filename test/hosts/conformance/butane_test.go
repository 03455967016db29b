// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"path/filepath"
	"strings"
	"testing"
)

// Ignition's JSON is not for people: what reads a MachineConfig from a file reads Butane too.
func TestEveryCommandThatReadsAConfigurationReadsButane(t *testing.T) {
	const butane = "variant: openshift\nversion: 4.14.0\nmetadata:\n  name: %\n" +
		"  labels: {machineconfiguration.openshift.io/role: worker}\nstorage:\n  files:\n" +
		"  - path: /etc/%.conf\n    mode: 0644\n    contents: {inline: \"%\\n\"}\n"
	named := func(name string) string { return strings.ReplaceAll(butane, "%", name) }
	for _, test := range []struct {
		command string
		args    []string
		code    int
		says    string // on standard output
	}{
		{"plan --desired", []string{"machine-config-daemon", "plan", "--root", "host", "--desired", "a.bu"}, 0, "/etc/a.conf"},
		{"plan --current", []string{"machine-config-daemon", "plan", "--current", "a.bu", "--desired", "b.bu"}, 0, "/etc/b.conf"},
		{"stage", []string{"machine-config-daemon", "stage", "--root", "host", "--config", "a.bu", "-o", "json"}, 0, "/etc/a.conf"},
		{"apply", []string{"machine-config-daemon", "apply", "--root", "host", "--config", "a.bu", "-o", "json"}, 0, "/etc/a.conf"},
		{"verify --config", []string{"machine-config-daemon", "verify", "--root", "host", "--config", "b.bu"}, 4, "/etc/b.conf"},
		{"render FILE", []string{"machine-config-controller", "render", "--pool", "worker", "a.bu"}, 0, "/etc/a.conf"},
		{"render DIR", []string{"machine-config-controller", "render", "--pool", "worker", "documents"}, 0, "/etc/c.conf"},
		{"render --base", []string{"machine-config-controller", "render", "--pool", "worker", "--base", "b.bu", "a.bu"}, 0,
			"/etc/b.conf"},
	} {
		t.Run(test.command, func(t *testing.T) {
			dir := write(t, map[string]string{"a.bu": named("a"), "b.bu": named("b"), "documents/c.bu": named("c"),
				"host/etc/os-release": "ID=test\n", "host/var/.keep": ""})
			r := run(t, dir, test.args[0], test.args[1:]...)
			if r.code != test.code || !strings.Contains(r.stdout, test.says) {
				t.Errorf("exit code %d: %s%s", r.code, r.stdout, r.stderr)
			}
		})
	}
}

func TestTheAnsibleExampleRenders(t *testing.T) {
	example, err := filepath.Abs("../../../docs/examples/ansible")
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, t.TempDir(), "machine-config-controller", "render", "--pool", "worker", example).ok(t)
	for _, path := range []string{"/etc/noderefit/ansible.env", "/etc/noderefit/hooks/after-boot.d/50-ansible-pull",
		"/etc/noderefit/hooks/after-boot.d/50-ansible-pull.timeout", "/etc/noderefit/hooks/before-drain.d/50-ansible-check"} {
		if !strings.Contains(r.stdout, "path: "+path+"\n") {
			t.Errorf("no %s in what it renders to", path)
		}
	}
}
