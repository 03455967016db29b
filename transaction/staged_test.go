// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
)

// left are the paths that a boot would have to begin again for: those of steps for which shows is false.
func left(t *testing.T, j *journal, shows func(st *step) (bool, error)) []string {
	t.Helper()
	var out []string
	for i := range j.Steps {
		yes, err := shows(&j.Steps[i])
		if err != nil {
			t.Fatal(err)
		}
		if !yes {
			out = append(out, j.Steps[i].Path)
		}
	}
	return out
}

// A step that never counts as done, or as undone, would have a host boot for ever.
func TestStepsAreSeenToBeDoneAndUndone(t *testing.T) {
	entries := map[string]string{"etc/mode": "same", "etc/new": "old", "etc/link": "-> old", "etc/going": "old", "etc/dir/x": ""}
	mode, link, hard := file("/etc/mode", "same"), file("/etc/link", ""), file("/etc/hard", "")
	mode.Node.Mode = 0o600
	link.Node = files.Node{Type: files.Symlink, Target: "new", UID: os.Getuid(), GID: os.Getgid()}
	hard.Node, hard.HardTo = files.Node{}, "/etc/new"
	private := dir("/etc/dir")
	private.Node.Mode = 0o700
	wants := []files.Want{mode, file("/etc/new", "new"), link, hard, file("/etc/made", "made"), gone("/etc/going"), private}
	for name, meanwhile := range map[string]func(at func(name string) string) error{
		"nothing": func(func(string) string) error { return nil },
		"somebody replaces what was made by a link": func(at func(string) string) error {
			return errors.Join(os.Remove(at("made")), os.Symlink("elsewhere", at("made")))
		},
		"somebody replaces what has another mode by a directory": func(at func(string) string) error {
			return errors.Join(os.Remove(at("mode")), os.Mkdir(at("mode"), 0o711))
		},
		"somebody replaces another name by a file": func(at func(string) string) error {
			return errors.Join(os.Remove(at("hard")), os.WriteFile(at("hard"), nil, 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := host(t, entries)
			j := staged(t, root, wants...)
			// Of what is to go there is a second name, which goes with the undoing.
			if got := left(t, j, j.undone); !slices.Equal(got, []string{"/etc/going"}) {
				t.Errorf("before anything is done there is left to undo %q", got)
			}
			if got := left(t, j, j.done); len(got) != len(j.Steps) {
				t.Errorf("of %d steps all but %q count as done", len(j.Steps), got)
			}
			if err := j.roll(); err != nil {
				t.Fatal(err)
			}
			if got := left(t, j, j.done); len(got) > 0 {
				t.Errorf("done do not count %q", got)
			}
			if got := left(t, j, j.undone); len(got) != len(j.Steps) {
				t.Errorf("of %d steps all but %q count as undone", len(j.Steps), got)
			}
			if err := meanwhile(func(name string) string { return filepath.Join(root.Path(), "etc", name) }); err != nil {
				t.Fatal(err)
			}
			if err := j.undo(); err != nil {
				t.Fatal(err)
			}
			if got := left(t, j, j.undone); len(got) > 0 {
				t.Errorf("undone do not count %q", got)
			}
		})
	}
}

// As on a host where SELinux is disabled, and that was labelled before.
func TestLabelThatNobodyManagesIsNoPartOfAStep(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can label")
	}
	root := host(t, map[string]string{"etc/file": "same"})
	at := filepath.Join(root.Path(), "etc/file")
	if err := unix.Lsetxattr(at, "security.selinux", []byte("system_u:object_r:etc_t:s0\x00"), 0); err != nil {
		t.Fatal(err)
	}
	want := file("/etc/file", "same")
	want.Node.Mode = 0o600
	j := staged(t, root, want)
	if err := errors.Join(j.roll(), j.check()); err != nil {
		t.Fatal(err)
	}
	if got := left(t, j, j.done); len(got) > 0 {
		t.Errorf("done do not count %q", got)
	}
	if err := j.undo(); err != nil {
		t.Fatal(err)
	}
	if got := left(t, j, j.undone); len(got) > 0 {
		t.Errorf("undone do not count %q", got)
	}
}
