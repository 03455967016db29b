// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"os"
	"os/exec"
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
