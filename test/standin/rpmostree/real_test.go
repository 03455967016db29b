// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTreeOfARealOneIsLookedAtBeforeAHostIsMade(t *testing.T) {
	tree := t.TempDir()
	t.Setenv("RPM_OSTREE", tree)
	_, err := Find(t.Context(), t.TempDir())
	if err == nil {
		t.Fatal("an empty tree is enough")
	}
	for _, part := range []string{tree, "usr/bin/rpm-ostree (the program)", "usr/bin/bwrap", "usr/bin/fusermount3 or usr/bin/fusermount",
		"usr/etc/selinux/config", "the user rpm-ostree"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not named: %v", part, err)
		}
	}
	for _, need := range needs {
		if err := write(filepath.Join(tree, need.paths[len(need.paths)-1]), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkReal(tree); err != nil && strings.Contains(err.Error(), "usr/") {
		t.Errorf("a whole tree lacks something: %v", err)
	}
}

func TestLibrariesThatNobodyHasAreNamed(t *testing.T) {
	program, err := exec.LookPath("ls")
	if err != nil {
		t.Fatal(err)
	}
	asked := map[string]bool{}
	missing, err := missingLibraries(t.TempDir(), program, func(path string) bool {
		asked[filepath.Base(path)] = true
		return strings.HasPrefix(filepath.Base(path), "libc.so")
	})
	if err != nil || len(missing) == 0 || slices.Contains(missing, "libc.so.6") || !asked["libc.so.6"] {
		t.Errorf("%q are missing, %v; asked for %v", missing, err, asked)
	}
	// What the tree has is enough, and its own libraries count.
	tree := t.TempDir()
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range missing {
		if err := write(filepath.Join(tree, "usr/lib", name), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if missing, err := missingLibraries(tree, program, func(path string) bool {
		return strings.HasPrefix(filepath.Base(path), "libc.so")
	}); err != nil || len(missing) > 0 {
		t.Errorf("%q are missing, %v", missing, err)
	}
}

// A real rpm-ostree takes packages as they really are. They are the same that the stand-in has.
func TestPackagesAreMadeAsRPMsToo(t *testing.T) {
	for _, tool := range tools {
		if _, err := exec.LookPath(tool.program); err != nil {
			if os.Getenv("LAB") == "require" {
				t.Fatalf("%s is missing: apt-get install %s", tool.program, tool.debian)
			}
			t.Skipf("%s is missing: apt-get install %s", tool.program, tool.debian)
		}
	}
	dir, tree := t.TempDir(), t.TempDir()
	packages := BasePackages("")
	if err := writeRPMs(t.Context(), dir, packages[:2]); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "repodata/repomd.xml")); err != nil {
		t.Error(err)
	}
	file := filepath.Join(dir, packages[1].NEVRA()+".rpm")
	for query, want := range map[string]string{"--requires": packages[1].Requires[0], "--list": "/vmlinuz"} {
		if text, err := exec.Command("rpm", "--query", query, "--package", file).Output(); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s of %s: %v %s", query, file, err, text)
		}
	}
	if err := writeRPMDatabase(t.Context(), tree, packages); err != nil {
		t.Fatal(err)
	}
	for _, at := range databaseDirs {
		text, err := exec.Command("rpm", "--dbpath", filepath.Join(tree, at), "--define", "_db_backend sqlite", "--query", "--all").Output()
		got := strings.Fields(string(text))
		slices.Sort(got)
		var want []string
		for _, p := range packages {
			want = append(want, p.NEVRA())
		}
		slices.Sort(want)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q: %v", at, got, want, err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(tree, "usr/etc/chrony.default")); err != nil || string(text) != "chrony\n" {
		t.Errorf("the tree has %q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(tree, "usr/lib/modules")); err == nil {
		t.Error("the tree has another kernel than the lab's")
	}
}
