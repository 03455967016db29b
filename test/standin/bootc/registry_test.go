// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/lab"
)

// repository is the name that images of a repository have in the registry.
func (s *scene) repository(name string) string { return s.registry.Repository(name) }

// push makes an image of a ref in the registry and returns its digest.
func (s *scene) push(ref, version, image string) string {
	s.Helper()
	digest, err := s.registry.Push(s.ctx, ref, version, image)
	if err != nil {
		s.Fatal(err)
	}
	return digest
}

func TestWhatARealBootcLacksIsNamed(t *testing.T) {
	base := lab.Need(t)
	t.Setenv("BOOTC", "/nowhere/bootc")
	t.Setenv("PATH", "/nowhere")
	lacks := strings.Join(lacking(base), "; ")
	for part, want := range map[string]bool{"/nowhere/bootc": true, "docker-registry": true,
		"podman on the lab's hosts": !base.Has("/usr/bin/podman")} {
		if strings.Contains(lacks, part) != want {
			t.Errorf("that there is %q is not %t: %s", part, want, lacks)
		}
	}
	if base.Has("/usr/bin/nothing") || !base.Has("/usr/bin/ostree") {
		t.Error("the tree of a host is not looked at")
	}
}
