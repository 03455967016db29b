// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tree makes a small tree whose times lie in the past, so that anything new has another time.
func tree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"etc/d", "var/lib/agent"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"etc/a", "etc/d/b", "var/lib/agent/boot.json"} {
		if err := os.WriteFile(filepath.Join(root, file), []byte("one"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a", filepath.Join(root, "etc/l")); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Hour)
	for _, path := range []string{"etc/a", "etc/d/b", "etc/d", "etc"} {
		if err := os.Chtimes(filepath.Join(root, path), past, past); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestDiffNamesWhatChanged(t *testing.T) {
	shell := func(do func(path string) error) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			t.Helper()
			if err := do(filepath.Join(root, "etc/a")); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		change func(*testing.T, string)
		depth  Depth
		want   []string // beginnings of lines
	}{
		"nothing": {func(*testing.T, string) {}, Untouched, nil},
		"reading": {shell(func(p string) error { _, err := os.ReadFile(p); return err }), Untouched, nil},
		"contents": {shell(func(p string) error { return os.WriteFile(p, []byte("two"), 0) }), Content,
			[]string{"etc/a: contents"}},
		"mode": {shell(func(p string) error { return unix.Chmod(p, 0o4755) }), Times,
			[]string{"etc/a: mode 04755, was 0644"}},
		"owner": {shell(func(p string) error { return os.Chown(p, 7, 8) }), Times,
			[]string{"etc/a: owner 7:8, was 0:0"}},
		"time": {shell(func(p string) error { return os.Chtimes(p, time.Now(), time.Now()) }), Times,
			[]string{"etc/a: mtime"}},
		"time is not content": {shell(func(p string) error { return os.Chtimes(p, time.Now(), time.Now()) }), Content, nil},
		"xattr": {shell(func(p string) error { return unix.Lsetxattr(p, "user.x", []byte("1"), 0) }), Times,
			[]string{`etc/a: xattrs map["user.x":"1"], was map[]`}},
		"target": {shell(func(p string) error {
			return os.Rename(p, filepath.Join(filepath.Dir(p), "b"))
		}), Content, []string{"etc/a: gone", "etc/b: new, file 0644 0:0 3 bytes"}},
		"a new directory entry is told by its parent": {shell(func(p string) error {
			return os.WriteFile(filepath.Join(filepath.Dir(p), "d/c"), nil, 0o600)
		}), Times, []string{"etc/d: mtime", "etc/d/c: new"}},
		"type": {shell(func(p string) error {
			if err := os.Remove(p); err != nil {
				return err
			}
			return os.Symlink("d", p)
		}), Content, []string{"etc/a: type link, was file", "etc/a: mode", "etc/a: size", "etc/a: contents", "etc/a: target d"}},
		"a hard link": {shell(func(p string) error { return os.Link(p, filepath.Join(filepath.Dir(p), "d/c")) }), Times,
			[]string{"etc/a: links 2, was 1", "etc/d: mtime", "etc/d/c: new"}},
		"the same again": {shell(func(p string) error { return os.Chmod(p, 0o644) }), Times, nil},
		"the same again is touching": {shell(func(p string) error { return os.Chmod(p, 0o644) }), Untouched,
			[]string{"etc/a: ctime"}},
		"what is skipped": {func(t *testing.T, root string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(root, "var/lib/agent/boot.json"), []byte("two"), 0); err != nil {
				t.Fatal(err)
			}
		}, Untouched, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t)
			before, err := Take(root, "var/lib/agent")
			if err != nil {
				t.Fatal(err)
			}
			test.change(t, root)
			after, err := Take(root, "var/lib/agent")
			if err != nil {
				t.Fatal(err)
			}
			got := Diff(before, after, test.depth)
			if !slices.EqualFunc(got, test.want, strings.HasPrefix) {
				t.Errorf("got\n%s\nshould be\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

func TestWithoutDropsAPathAndAllBelow(t *testing.T) {
	all, err := Take(tree(t))
	if err != nil {
		t.Fatal(err)
	}
	less := all.Without("etc/d", "var/lib")
	for path, want := range map[string]bool{".": true, "etc/a": true, "etc/l": true, "etc/d": false, "etc/d/b": false,
		"var": true, "var/lib": false, "var/lib/agent/boot.json": false} {
		if _, is := less[path]; is != want {
			t.Errorf("%s: %v", path, is)
		}
		if _, is := all[path]; !is {
			t.Errorf("%s went from the original", path)
		}
	}
}
