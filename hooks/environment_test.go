// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestAHookIsToldWhatRunsUntilMoreIsKnown(t *testing.T) {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		tree map[string]string
		want string
	}{
		"the admin's file comes first": {map[string]string{"/etc/os-release": "NAME=x\nVERSION_ID=\"41\"\n",
			"/usr/lib/os-release": "VERSION_ID=40\n"}, "41"},
		"the image's":  {map[string]string{"/usr/lib/os-release": "VERSION_ID='40'\n"}, "40"},
		"no version":   {map[string]string{"/etc/os-release": "NAME=x\nOLD_VERSION_ID=3\n"}, ""},
		"no such file": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := Environment{From: "a", To: "b", Node: "n", Commit: "c", Image: "i"}
			if err := e.Running(open(t, test.tree)); err != nil {
				t.Fatal(err)
			}
			running := strings.TrimSpace(string(kernel))
			list := e.List(BeforeDrain)
			for _, want := range []string{"NODEREFIT_PHASE=before-drain", "NODEREFIT_FROM=a", "NODEREFIT_TO=b",
				"NODEREFIT_NODE=n", "NODEREFIT_FROM_KERNEL=" + running, "NODEREFIT_TO_KERNEL=" + running,
				"NODEREFIT_TO_RELEASE=" + test.want, "NODEREFIT_TO_IMAGE=i", "NODEREFIT_TO_COMMIT=c"} {
				if !slices.Contains(list, want) {
					t.Errorf("%s is not told: %q", want, list)
				}
			}
		})
	}
}
