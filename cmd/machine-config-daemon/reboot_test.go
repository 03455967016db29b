// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/cli"
)

func TestOneWayToRebootIsGiven(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"reboot --soft --reboot-method=kexec":                         "--soft and --reboot-method=kexec exclude each other",
		"reboot --soft --reboot-method=full":                          "--soft and --reboot-method=full exclude each other",
		"reboot --reboot-method=soft":                                 "ordered by --soft",
		"reboot --verdict-timeout=0s":                                 "no time for a verdict",
		"rollback --soft-reboot=auto --reboot-method=kexec":           "--soft-reboot=auto and --reboot-method=kexec exclude each other",
		"apply --config=none --soft-reboot=auto --reboot-method=full": "--soft-reboot=auto and --reboot-method=full exclude each other",
	} {
		program := root()
		program.SetArgs(append(strings.Fields(line), "--root="+t.TempDir()))
		program.SetOut(io.Discard)
		program.SetErr(io.Discard)
		err := program.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("%s: %v", line, err)
		}
	}
}
