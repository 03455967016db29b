// SPDX-License-Identifier: Apache-2.0

// Command rpm-ostree stands in for the program of that name on hosts of the host lab, on real ostree deployments.
//
// It is the client and, as rpm-ostree start-daemon, the service: D-Bus names, transactions, texts, exit codes and JSON
// are those of rpm-ostree 2026.2 as far as our driver, or another one that works the same way, can tell. Packages and
// container images come from directories (package catalogue), faults from files (package fault). What is not here:
// initramfs and initramfs-etc, apply-live, modules, signatures and policy.json, previews, --jsonpath, the check of a
// revision's branch and age, the older D-Bus methods that UpdateDeployment took the place of, and a machine that is not
// booted from ostree. Options for what is not here are refused. Where the original's words are not known the code says
// so (guess).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// exitUnchanged is the exit code of "nothing new" where that was asked for.
const exitUnchanged = 77

// errUnchanged ends a command with exitUnchanged and no word.
var errUnchanged = errors.New("unchanged")

func main() {
	err := command(os.Stdout).ExecuteContext(context.Background())
	switch {
	case errors.Is(err, errUnchanged):
		os.Exit(exitUnchanged)
	case err != nil:
		fmt.Fprintln(os.Stderr, "error: "+err.Error())
		os.Exit(1)
	}
}
