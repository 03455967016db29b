// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"strings"
	"testing"
)

// Every program says its version in both ways that people try, and completes command lines.
func TestEveryProgramHasAVersionAndCompletion(t *testing.T) {
	programs, err := os.ReadDir("../../../cmd")
	if err != nil || len(programs) == 0 {
		t.Fatalf("found %v, %v", programs, err)
	}
	for _, program := range programs {
		name := program.Name()
		says := name
		if name == "machine-config-daemon-run" { // people type the other one's name
			says = "machine-config-daemon"
		}
		if got := run(t, "", name, "version"); got.code != 0 || got.stdout != says+" dev\n" {
			t.Errorf("%s version: exit %d: %q, %s", name, got.code, got.stdout, got.stderr)
		}
		if got := run(t, "", name, "--version"); got.code != 0 || !strings.HasSuffix(got.stdout, " version dev\n") {
			t.Errorf("%s --version: exit %d: %q, %s", name, got.code, got.stdout, got.stderr)
		}
		if got := run(t, "", name, "version", "x"); got.code != 2 {
			t.Errorf("%s version x: exit %d", name, got.code)
		}
		for _, shell := range []string{"bash", "zsh", "fish"} {
			if got := run(t, "", name, "completion", shell); got.code != 0 || !strings.Contains(got.stdout, says) {
				t.Errorf("%s completion %s: exit %d: %s", name, shell, got.code, got.stderr)
			}
		}
		if got := run(t, "", name, "manual", "x"); got.code == 0 {
			t.Errorf("%s manual: the program has what is for packagers alone", name)
		}
	}
}
