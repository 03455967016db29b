// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What ostree can do is not asked here: what it has done counts.
func TestADeploymentThatWouldNotBootIsRefused(t *testing.T) {
	for _, c := range []struct {
		name, own string
		image     bool
		arguments []string
		says      string
	}{
		{name: "nothing said"},
		{name: "maybe", own: "[composefs]\nenabled=maybe\n"},
		{"composefs", "[composefs]\nenabled=yes\n", true, nil, ""},
		{"composefs without the image", "[composefs]\nenabled=yes\n", false, nil,
			"composefs.enabled=yes in the image's /usr/lib/ostree/prepare-root.conf: the host's ostree has made no .ostree.cfs for " +
				"the deployment, so the deployment would not boot"},
		{"taken back", "[composefs]\nenabled=yes\n", false, asked("0"), ""},
		{"an argument", "", false, asked("1"), "the kernel argument ostree.prepare-root.composefs=1: the host's ostree has made no"},
		{"an argument, with the image", "", true, asked("1"), ""},
		{"verity", "[composefs]\nenabled=verity\n", true, nil, "/.ostree.cfs is not protected by fs-verity"},
		{"signed by an argument", "", true, asked("signed"), "/.ostree.cfs is not protected by fs-verity"},
	} {
		root, d := t.TempDir(), Deployment{ID: "testos/" + one + ".0", Dir: "/ostree/deploy/testos/deploy/" + one + ".0"}
		files := map[string]string{"/usr/bin/true": "x"}
		if c.own != "" {
			files[ownRootConfig] = c.own
		}
		if c.image {
			files[composefsImage] = "image"
		}
		for name, text := range files {
			at := filepath.Join(root, d.Dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		err := NewPlain(nil, root).CheckRoot(d, c.arguments)
		if (err == nil) != (c.says == "") || err != nil && (!strings.Contains(err.Error(), c.says) || ClassOf(err) != Invalid ||
			!errors.As(err, new(*Unfit))) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
		if err != nil && strings.Contains(err.Error(), root) {
			t.Errorf("%s: %v names a path that is not the host's", c.name, err)
		}
	}
}
