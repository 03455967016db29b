// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"errors"
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
		for _, path := range policyPaths {
			root := t.TempDir()
			if c.policy != "" {
				writePolicy(t, root, path, c.policy)
			}
			got, err := Admitted(root, image)
			if got.Verify != c.verify || (err != nil) != (c.class != "") ||
				err != nil && (ostree.ClassOf(err) != c.class || !strings.Contains(err.Error(), path)) {
				t.Errorf("%s in %s: %q, %v", c.name, path, got.Verify, err)
			}
		}
	}
	// The admin's policy counts before the distribution's.
	root := t.TempDir()
	writePolicy(t, root, policyPaths[1], `{"default":[{"type":"reject"}]}`)
	writePolicy(t, root, policyPaths[0], `{"default":[{"type":"insecureAcceptAnything"}]}`)
	if got, err := Admitted(root, image); err != nil || got.Verify != VerifyNothing {
		t.Errorf("with both: %q, %v", got.Verify, err)
	}
}

func writePolicy(t *testing.T, root, path, text string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}
