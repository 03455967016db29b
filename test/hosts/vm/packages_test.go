// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/transaction"
)

// packages is a Debian as it is installed. entries is one with a boot loader that reads an entry of each kernel.
var (
	packages = Options{Loader: GRUB, Packages: true}
	entries  = Options{Loader: SystemdBoot, Packages: true}
)

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

// TestSystemdBootHasTheArgumentsOfAnUpdate makes an update on a host whose kernel arguments are in boot loader entries.
func TestSystemdBootHasTheArgumentsOfAnUpdate(t *testing.T) {
	ctx := context.Background()
	h := newHost(ctx, t, "entries", entries)
	for question, want := range map[string]string{
		`bootctl status --no-pager | grep -o "Product: systemd-boot "`: "Product: systemd-boot",
		"findmnt --noheadings --output=FSTYPE /efi":                    "vfat",
		"ls " + entriesDir + " | wc -l":                                "1",
	} {
		if got := mustOutput(ctx, t, h.Machine, "sh", "-c", question); got != want {
			t.Fatalf("%s: %q", question, got)
		}
	}
	const options = "sed -n 's/^options  *//p' " + entriesDir + "/*.conf"
	before := mustOutput(ctx, t, h.Machine, "sh", "-c", options)
	_, took := h.updateBy(ctx, "one", softDocument("one", `"one=1"`, ""))
	t.Logf("from the reboot until the verdict: %v", took)
	h.on(ctx, "one", transaction.Done)
	after := mustOutput(ctx, t, h.Machine, "sh", "-c", options)
	if after != before+" one=1" {
		t.Errorf("the entry has %q, had %q", after, before)
	}
	// systemd-boot says first where the initramfs is.
	line := h.cmdline(ctx)
	if initrd, rest, _ := strings.Cut(strings.TrimSpace(line), " "); !strings.HasPrefix(initrd, `initrd=\`) || rest != after {
		t.Errorf("the command line is %q, and the entry has %q", line, after)
	}
}

// TestUpdateOfAHostOfEntriesComesBack goes back on such a host. kernel-install makes the entry anew before.
func TestUpdateOfAHostOfEntriesComesBack(t *testing.T) {
	ctx := context.Background()
	h, s := updated(ctx, t, entries)
	// As a new kernel does; what it makes is what is there.
	mustOutput(ctx, t, h.Machine, "sh", "-c", `kernel-install add "$(uname -r)" "/boot/vmlinuz-$(uname -r)"`)
	comesBack(ctx, t, h, s)
}

// TestPowerCutsOverAnUpdateOfPackages cuts the power of hosts without ostree. The arguments that they boot with, GRUB's
// configuration and the files are all of a, or all of b.
func TestPowerCutsOverAnUpdateOfPackages(t *testing.T) {
	if testing.Short() {
		t.Skip("an image and a scene of their own take minutes")
	}
	s := set(t, packages)
	t.Parallel()
	cuts := number(t, "VM_CUTS", shortRun)
	s.cuts(t, int(cuts), cuts > shortRun)
}

// TestPowerCutsOverAnUpdateOfEntries cuts the power of hosts whose entries are on vfat, which has no journal. VM_CUTS is
// four times the number of cuts.
func TestPowerCutsOverAnUpdateOfEntries(t *testing.T) {
	if testing.Short() {
		t.Skip("an image and a scene of their own take minutes")
	}
	s := set(t, entries)
	t.Parallel()
	cuts := number(t, "VM_CUTS", shortRun)
	s.cuts(t, int(max(1, cuts/4)), cuts > shortRun)
}
