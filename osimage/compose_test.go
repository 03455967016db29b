// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/ostree"
)

func TestSystemRunsAnImageByWhateverNameItHas(t *testing.T) {
	commit := strings.Repeat("1", 64)
	tagged := System{Image: "quay.io/x/os:9", Reported: digestA}
	layered := System{Image: "fedora:stable", Packages: []string{"usbguard"}, Reported: commit}
	for _, c := range []struct {
		name   string
		system System
		image  string
		want   bool
	}{
		{"its tag", tagged, "quay.io/x/os:9", true},
		{"its digest", tagged, "quay.io/x/os@" + digestA, true},
		{"its digest at another registry", tagged, "mirror.example/x/os@" + digestA, true},
		{"another digest", tagged, "quay.io/x/os@" + digestB, false},
		{"another tag", tagged, "quay.io/x/os:10", false},
		{"with its signature", tagged, "ostree-image-signed:docker://quay.io/x/os:9", true},
		{"its ref", layered, "fedora:stable", true},
		{"its commit below packages", layered, commit, true},
		{"its commit of a remote", layered, "fedora:" + commit, true},
		{"another ref", layered, "fedora:testing", false},
		{"no image at all", layered, "ostree-image-singed:x", false},
	} {
		if got := c.system.Runs(c.image); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

func TestImageIsAdmittedByTheHostsPolicy(t *testing.T) {
	root := t.TempDir()
	policy := filepath.Join(root, PolicyPath)
	if err := os.MkdirAll(filepath.Dir(policy), 0o755); err != nil {
		t.Fatal(err)
	}
	const image = "quay.io/x/os:9"
	for _, c := range []struct {
		name, policy string
		verify       Verification
		class        ostree.Class
	}{
		{"no policy", "", VerifyNothing, ""},
		{"anything", `{"default":[{"type":"insecureAcceptAnything"}]}`, VerifyNothing, ""},
		{"signatures", `{"default":[{"type":"reject"}],"transports":{"docker":{"quay.io/x":[{"type":"signedBy",
			"keyType":"GPGKeys","keyPath":"/etc/pki/key"}]}}}`, VerifyPolicy, ""},
		{"nothing", `{"default":[{"type":"reject"}]}`, "", ostree.Invalid},
		{"garbage", `{`, "", ostree.NeedsAdmin},
	} {
		if c.policy != "" {
			if err := os.WriteFile(policy, []byte(c.policy), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := Admitted(root, image)
		if got.Verify != c.verify || (err != nil) != (c.class != "") || err != nil && ostree.ClassOf(err) != c.class {
			t.Errorf("%s: %q, %v", c.name, got.Verify, err)
		}
	}
}
