// SPDX-License-Identifier: Apache-2.0

package hands

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/noderefit/noderefit/files"
)

func TestOnlyAHostWithRpmOstreeIsAskedToRegisterTheAgent(t *testing.T) {
	for _, c := range []struct {
		what  string
		files []string
		asks  bool
	}{
		{what: "a host without ostree"},
		{what: "a host that boots packages", files: []string{"usr/bin/rpm-ostree"}},
		{what: "a host of bootc alone", files: []string{"run/ostree-booted"}},
		{what: "a host of rpm-ostree", files: []string{"run/ostree-booted", "usr/bin/rpm-ostree"}, asks: true},
	} {
		dir := t.TempDir()
		for _, name := range c.files {
			at := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		root, err := files.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		// No systemd answers below dir: Register gets an error where it runs a unit.
		err = (&Client{root: root, mount: dir}).Register(t.Context())
		if (err != nil) != c.asks {
			t.Errorf("%s: %v", c.what, err)
		}
		_ = root.Close()
	}
}
