// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
)

// host is a tree with what the steps of these tests find.
func host(t *testing.T, entries map[string]string) *files.Root {
	t.Helper()
	dir := t.TempDir()
	for name, text := range entries {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch target, isLink := strings.CutPrefix(text, "-> "); {
		case isLink:
			err = os.Symlink(target, at)
		case text == "/":
			err = os.MkdirAll(at, 0o755)
		default:
			err = os.WriteFile(at, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := files.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func file(name, text string) files.Want {
	return files.Want{Path: name, Kind: "file", Node: files.Node{Type: files.Regular, Mode: 0o644,
		UID: os.Getuid(), GID: os.Getgid(), Data: []byte(text)}}
}

func gone(name string) files.Want {
	return files.Want{Path: name, Kind: "file", Node: files.Node{Type: files.Absent}}
}

func dir(name string) files.Want {
	return files.Want{Path: name, Kind: "directory", Node: files.Node{Type: files.Directory, Mode: 0o755,
		UID: os.Getuid(), GID: os.Getgid()}}
}

func staged(t *testing.T, root *files.Root, wants ...files.Want) *journal {
	t.Helper()
	steps, _, err := makeSteps(root, "t", nil, wants)
	if err != nil {
		t.Fatal(err)
	}
	j := &journal{ID: "t", Steps: steps, root: root, Created: time.Now()}
	if err := errors.Join(j.write(), j.stage()); err != nil {
		t.Fatal(err)
	}
	return j
}

// tree is every path below the root with what is in it, without the journal's own directory.
func tree(t *testing.T, root *files.Root) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root.Path(), func(at string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(at, root.Path())
		if name == StateDir {
			return filepath.SkipDir
		}
		switch {
		case d.IsDir():
			out[name] = "/"
		case d.Type()&os.ModeSymlink != 0:
			target, err := os.Readlink(at)
			out[name] = "-> " + target
			return err
		default:
			data, err := os.ReadFile(at)
			out[name] = string(data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	delete(out, "")
	delete(out, "/var")
	delete(out, "/var/lib")
	return out
}

func TestStepsMakeTheWantsAndUndoTakesThemBack(t *testing.T) {
	before := map[string]string{"/etc/changed": "old", "/etc/gone": "x", "/etc/link": "-> changed", "/etc/was-file": "f",
		"/etc/was-dir/inside": "i", "/etc/emptied/only": "o", "/etc/same": "same"}
	root := host(t, before)
	original := tree(t, root)
	link := files.Want{Path: "/etc/link", Kind: "link", Node: files.Node{Type: files.Symlink, Target: "same", UID: os.Getuid(), GID: os.Getgid()}}
	hard := files.Want{Path: "/etc/hard", Kind: "link", HardTo: "/etc/changed"}
	j := staged(t, root, file("/etc/changed", "new"), gone("/etc/gone"), link, hard, dir("/etc/was-file"),
		file("/etc/was-file/below", "b"), gone("/etc/was-dir/inside"), file("/etc/was-dir", "now a file"),
		gone("/etc/emptied/only"), gone("/etc/emptied"), file("/etc/deep/er/new", "n"), file("/etc/same", "same"))
	if got := tree(t, root); len(got) <= len(original) {
		t.Error("nothing was staged")
	}
	want := map[string]string{"/etc": "/", "/etc/changed": "new", "/etc/hard": "new", "/etc/link": "-> same", "/etc/was-file": "/",
		"/etc/was-file/below": "b", "/etc/was-dir": "now a file", "/etc/deep": "/", "/etc/deep/er": "/", "/etc/deep/er/new": "n",
		"/etc/same": "same"}
	for range 2 { // rolling forward again is harmless
		if err := errors.Join(j.roll(), j.check()); err != nil {
			t.Fatal(err)
		}
		equal(t, tree(t, root), want)
	}
	for range 2 { // and so is undoing
		if err := j.undo(); err != nil {
			t.Fatal(err)
		}
		equal(t, tree(t, root), original)
	}
}

func equal(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s: got %q, want %q", name, got[name], text)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is there", name)
		}
	}
}

func TestUndoGivesBackTheSameInodeWithItsTimes(t *testing.T) {
	root := host(t, map[string]string{"/etc/f": "old"})
	at := filepath.Join(root.Path(), "/etc/f")
	past := time.Date(2001, 2, 3, 4, 5, 6, 7000, time.UTC)
	if err := os.Chtimes(at, past, past); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(at)
	if err != nil {
		t.Fatal(err)
	}
	parent, err := os.Stat(filepath.Dir(at))
	if err != nil {
		t.Fatal(err)
	}
	j := staged(t, root, file("/etc/f", "new"))
	if err := errors.Join(j.roll(), j.undo()); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(at)
	if err != nil || !os.SameFile(before, after) || !after.ModTime().Equal(past) {
		t.Errorf("not the same file: %v, %v", after, err)
	}
	if p, err := os.Stat(filepath.Dir(at)); err != nil || !p.ModTime().Equal(parent.ModTime()) {
		t.Errorf("the directory's time changed: %v, %v", p.ModTime(), err)
	}
}

func TestModeAloneTouchesNoBytes(t *testing.T) {
	root := host(t, map[string]string{"/etc/f": "same"})
	w := file("/etc/f", "same")
	w.Node.Mode = 0o600
	j := staged(t, root, w)
	if len(j.Steps) != 1 || j.Steps[0].Op != opMeta {
		t.Fatalf("%+v", j.Steps)
	}
	if err := errors.Join(j.roll(), j.check(), j.undo()); err != nil {
		t.Fatal(err)
	}
	if n, err := root.Inspect("/etc/f"); err != nil || n.Mode != 0o644 {
		t.Errorf("%+v, %v", n, err)
	}
}

func TestStepsNameWhatIsInTheWay(t *testing.T) {
	for name, c := range map[string]struct {
		tree map[string]string
		want files.Want
		text string
		is   error
	}{
		"a path below a file":      {map[string]string{"/etc/f": "x"}, file("/etc/f/below", "y"), "/etc/f is a file", unix.ENOTDIR},
		"a directory with others'": {map[string]string{"/etc/d/others": "x"}, file("/etc/d", "y"), "it holds others", nil},
		"a dangling link above":    {map[string]string{"/etc/l": "-> nowhere"}, file("/etc/l/f", "y"), "link to nowhere", unix.ENOTDIR},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := makeSteps(host(t, c.tree), "t", nil, []files.Want{c.want})
			if err == nil || !strings.Contains(err.Error(), c.text) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestDirectoryThatOthersUseStays(t *testing.T) {
	root := host(t, map[string]string{"/etc/d/others": "x"})
	w := gone("/etc/d")
	j := staged(t, root, w)
	if err := errors.Join(j.roll(), j.check()); err != nil {
		t.Fatal(err)
	}
	if !root.IsDir("/etc/d") {
		t.Error("it was removed")
	}
}

func TestLinksGoInBeforeLinksGoOut(t *testing.T) {
	root := host(t, map[string]string{"/etc/systemd/system/a.wants/x.service": "-> /etc/systemd/system/x.service"})
	steps, _, err := makeSteps(root, "t", nil, []files.Want{gone("/etc/systemd/system/a.wants/x.service"),
		file("/etc/systemd/system/x.service", "x"),
		{Path: "/etc/systemd/system/b.wants/x.service", Node: files.Node{Type: files.Symlink, Target: "/etc/systemd/system/x.service"}}})
	if err != nil {
		t.Fatal(err)
	}
	if last := steps[len(steps)-1]; last.Op != opRemove {
		t.Errorf("%+v", steps)
	}
}

func TestStagingNeedsItsSpaceBeforehand(t *testing.T) {
	root := host(t, map[string]string{"/etc/x": "x"})
	w := file("/etc/big", "")
	steps, _, err := makeSteps(root, "t", nil, []files.Want{w})
	if err != nil {
		t.Fatal(err)
	}
	err = checkSpace(root, steps, "/etc", 1<<60)
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "/etc") {
		t.Errorf("%v", err)
	}
}

func TestUndoGivesLabelsBackThoughWhatWasKeptWasRelabelled(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can label")
	}
	const before, kept = "system_u:object_r:shadow_t:s0", "system_u:object_r:var_lib_t:s0"
	root := host(t, map[string]string{"etc/file": "old", "etc/going": "old", "etc/link": "-> old"})
	label := func(at, label string) {
		t.Helper()
		if err := unix.Lsetxattr(at, "security.selinux", []byte(label+"\x00"), 0); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"etc/file", "etc/going", "etc/link"}
	for _, name := range names {
		label(filepath.Join(root.Path(), name), before)
	}
	j := staged(t, root, file("/etc/file", "new"), gone("/etc/going"), gone("/etc/link"))
	if err := j.roll(); err != nil {
		t.Fatal(err)
	}
	keeps, err := filepath.Glob(filepath.Join(root.Path(), j.dir(), "keep-*"))
	if err != nil || len(keeps) != len(names) {
		t.Fatalf("%q are kept, %v", keeps, err)
	}
	for _, at := range keeps {
		label(at, kept)
	}
	if err := j.undo(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		buf := make([]byte, 100)
		n, err := unix.Lgetxattr(filepath.Join(root.Path(), name), "security.selinux", buf)
		if got := strings.TrimRight(string(buf[:max(n, 0)]), "\x00"); err != nil || got != before {
			t.Errorf("%s is labelled %q, %v", name, got, err)
		}
	}
}
