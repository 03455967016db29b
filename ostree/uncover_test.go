// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestMountsAreCountedWhereTheyStack asks the kernel, in the test's own mount namespace.
func TestMountsAreCountedWhereTheyStack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	at := t.TempDir()
	out, err := exec.Command("unshare", "--mount", "sh", "-ec", `for i in 1 2 3; do mount -t tmpfs x "$0"; done
mkdir "$0/below"; mount -t tmpfs x "$0/below"; cat /proc/self/mountinfo`, at).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for mount, want := range map[string]int{at: 3, at + "/below": 1, at + "/none": 0} {
		if got := mountedAt(string(out), mount); got != want {
			t.Errorf("%d mounts at %s, want %d", got, mount, want)
		}
	}
}

// Only the mount of systemd-confext is taken off, and only where it is the uppermost one: an /etc below is the host's.
func TestTheExtensionsOfEtcAreToldFromAnotherEtc(t *testing.T) {
	const (
		deployment = "35 30 8:1 /ostree/deploy/x/etc /etc rw - ext4 /dev/sda1 rw\n"
		transient  = "36 30 0:40 / /etc rw - overlay overlay rw,upperdir=/run/ostree/transient-etc/upper\n"
		extension  = "37 35 0:41 / /etc ro,nosuid - overlay confext ro,lowerdir=/run/systemd/confext/meta\n"
		elsewhere  = "38 35 0:41 / /srv/etc ro - overlay confext ro\n"
	)
	for text, want := range map[string]bool{"": false, deployment: false, deployment + extension: true, extension: true,
		transient + extension: true, transient: false, extension + deployment: false, elsewhere: false} {
		at := filepath.Join(t.TempDir(), "mountinfo")
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := extended(at); got != want {
			t.Errorf("%t for %q", got, text)
		}
	}
	if extended(filepath.Join(t.TempDir(), "none")) {
		t.Error("a file that is not there has a mount")
	}
}
