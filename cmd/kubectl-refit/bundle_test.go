// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/bundle"
	"github.com/noderefit/noderefit/cli"
)

// The second bundle save would otherwise take the first bundle for MachineConfigs.
func TestABundleAndTheFilesThatItIsMadeOfLieApart(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	if err := os.Mkdir("machineconfigs", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, from, want string }{
		{"bundle", ".", "bundle lies within ."},
		{".", ".", ". lies within ."},
		{filepath.Join(here, "machineconfigs", "a", "b"), "machineconfigs", "b lies within machineconfigs"},
		{"bundle", "-", "the standard input"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), []string{"bundle", "save", c.dir, "--registry", "127.0.0.1:1/x", "-f", c.from}, &stdout, &stderr)
		if code != cli.ExitUsage || !strings.Contains(stderr.String(), "flag -f: ") || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("bundle save %s -f %s exits with %d: %s", c.dir, c.from, code, stderr.String())
		}
	}
	for _, dir := range []string{"bundle", "machineconfigs-bundle", filepath.Dir(here)} {
		if err := apart(dir, "machineconfigs"); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestARegistryThatIsNoneIsAUsageError(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"load", "mirrors"} {
		for _, registry := range []string{"", "mirror", "https://registry.of.yours", "registry.of.yours/Upper"} {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), []string{"bundle", command, t.TempDir(), "--registry", registry}, &stdout, &stderr)
			if code != cli.ExitUsage || !strings.Contains(stderr.String(), "flag --registry: ") {
				t.Errorf("bundle %s --registry %q exits with %d: %s", command, registry, code, stderr.String())
			}
		}
	}
}

// kubectl refuses to apply nothing.
func TestALoadedBundleNamesTheMirrorsThatThereAre(t *testing.T) {
	t.Parallel()
	sum := "sha256:" + strings.Repeat("0", 64)
	list := &bundle.List{Images: []bundle.Image{{Name: "registry.example/x/machine-config-daemon:v1", Digest: sum}}}
	for _, some := range []bool{false, true} {
		if some {
			list.Images = append(list.Images, bundle.Image{Name: "quay.io/os/node@" + sum, Digest: sum})
		}
		var out bytes.Buffer
		if err := loadedText(&out, list, "b", "registry.of.yours"); err != nil ||
			!strings.Contains(out.String(), "install --registry registry.of.yours/x\n") ||
			strings.Contains(out.String(), "bundle mirrors b") != some {
			t.Errorf("%s%v", out.String(), err)
		}
	}
}
