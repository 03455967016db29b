// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
)

func TestCatalogueOfAnAdminThatCanNotBeReadIsSaidAndHoldsNothingUp(t *testing.T) {
	for _, c := range []struct{ name, file, says string }{
		{"none", "", ""},
		{"one that adds", "systems:\n- ids: [rhel]\n  extensions: {usbguard: [usbguard-lab]}\n", ""},
		{"one that is broken", "systems: {", plan.CataloguePath},
	} {
		dir := t.TempDir()
		write := func(path, text string) {
			t.Helper()
			at := filepath.Join(dir, path)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		write("/usr/lib/os-release", "ID=rhel\nVERSION_ID=9.6\n")
		if c.file != "" {
			write(plan.CataloguePath, c.file)
		}
		root, err := files.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = root.Close() })
		var said []string
		h := &Host{root: root, say: func(_, what string) { said = append(said, what) }}
		want := []string{"usbguard"}
		if strings.Contains(c.file, "usbguard-lab") {
			want = []string{"usbguard-lab"}
		}
		for range 2 {
			got, _, err := h.packages(&machineconfig.Config{Extensions: []string{"usbguard"}})
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %v %v", c.name, got, err)
			}
		}
		if c.says == "" && len(said) > 0 || c.says != "" && (len(said) != 1 || !strings.Contains(said[0], c.says)) {
			t.Errorf("%s: it said %q", c.name, said)
		}
	}
}

func TestConfigurationWithoutPackagesAsksForNoCatalogue(t *testing.T) {
	root, err := files.Open(t.TempDir()) // the directory has no os-release
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	h := &Host{root: root}
	if install, remove, err := h.packages(&machineconfig.Config{OSImageURL: "quay.example/os:1"}); err != nil ||
		len(install)+len(remove) > 0 {
		t.Errorf("%v %v %v", install, remove, err)
	}
}
