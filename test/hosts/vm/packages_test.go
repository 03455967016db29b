// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"strings"
	"testing"
)

// packages is a Debian as it is installed.
var packages = Options{Loader: GRUB, Packages: true}

// TestUpdateOfAHostOfPackagesComesBack goes back on a host without ostree: there recovery changes the files in the boot,
// and the kernel arguments are in what grub-mkconfig makes.
func TestUpdateOfAHostOfPackagesComesBack(t *testing.T) {
	ctx := context.Background()
	h, s := updated(ctx, t, packages)
	if line := mustOutput(ctx, t, h.Machine, "cat", "/proc/cmdline"); !strings.HasPrefix(line, "BOOT_IMAGE=/boot/vmlinuz-") ||
		!strings.Contains(line, " root=UUID=") {
		t.Errorf("the command line is %q", line)
	}
	mustOutput(ctx, t, h.Machine, "update-grub") // as a new kernel does; what it makes is what is there
	comesBack(ctx, t, h, s)
}

// shortPackages is how many of the cuts of a short run are on hosts of packages.
const shortPackages = 3

// TestPowerCutsOverAnUpdateOfPackages cuts the power of hosts without ostree. The arguments that they boot with, GRUB's
// configuration and the files are all of a, or all of b.
func TestPowerCutsOverAnUpdateOfPackages(t *testing.T) {
	s := set(t, packages)
	t.Parallel()
	cuts := number(t, "VM_CUTS", shortPackages)
	s.cuts(t, int(cuts), cuts > shortRun)
}
