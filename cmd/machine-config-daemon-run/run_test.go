// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/agent"
)

// The program beside this one recovers and proves in the next boot: one of another release, or none, must be seen before
// it is on the host.
func TestTheProgramOfTheHostIsOfTheSameRelease(t *testing.T) {
	for name, test := range map[string]struct{ script, want string }{
		"the same":      {"echo machine-config-daemon version " + version, ""},
		"another":       {"echo machine-config-daemon version v0.0.1", "is version v0.0.1"},
		"silent":        {"true", "is version"},
		"broken":        {"exit 3", "exit status 3"},
		"of an old one": {"echo 'error: unknown flag: --version' >&2; exit 2", "exit status 2"},
		"missing":       {"", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			program := filepath.Join(dir, agent.Program)
			if test.script != "" {
				if err := os.WriteFile(program, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			at, err := hostProgram(t.Context(), filepath.Join(dir, agent.RunProgram))
			switch {
			case test.want == "" && (err != nil || at != program):
				t.Errorf("%q, %v", at, err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) ||
				!strings.Contains(err.Error(), program)):
				t.Errorf("%v, want %q with the path of the program", err, test.want)
			}
		})
	}
}
