// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/ostree"
)

// home is a tree with a directory of another user, in which are a file and its second name.
func home(t *testing.T) *files.Root {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to users")
	}
	root := host(t, map[string]string{"/home/u/f": "of the user", "/home/u/g": "second", "/etc/f": "root's"})
	for _, name := range []string{"/home/u", "/home/u/f", "/home/u/g"} {
		if err := os.Chown(filepath.Join(root.Path(), name), 1500, 1500); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// What can't be kept while a transaction is staged is not done later, when it is in its place again: its undoing could
// not bring it back.
func TestWhatWasNotKeptIsNotDone(t *testing.T) {
	users := func(w files.Want) files.Want {
		w.Node.UID, w.Node.GID = 1500, 1500
		return w
	}
	for name, want := range map[string]files.Want{
		"remove":    gone("/home/u/f"),
		"hard link": {Path: "/home/u/f", Kind: "link", HardTo: "/home/u/g"},
		"put":       users(file("/home/u/f", "new")),
		"directory": users(dir("/home/u/f")),
	} {
		t.Run(name, func(t *testing.T) {
			root := home(t)
			before := tree(t, root)
			steps, _, err := makeSteps(root, "t", nil, []files.Want{want, file("/etc/f", "new")})
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			j := &journal{ID: "t", Steps: steps, root: root, Created: time.Now(),
				left: func(ls ...Left) {
					for _, l := range ls {
						left = append(left, l.Path)
					}
				}}
			at := filepath.Join(root.Path(), "home/u/f")
			err = errors.Join(j.write(), os.Rename(at, at+".away"), j.stage(), os.Rename(at+".away", at))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Join(left, " ") != "/home/u/f" {
				t.Errorf("left out: %v", left)
			}
			// Recovery is another process: it has the journal alone.
			if j, err = readJournal(root, "t"); err != nil || j == nil {
				t.Fatalf("reading the journal: %v, %v", j, err)
			}
			for range 2 {
				if err := errors.Join(j.roll(), j.check()); err != nil {
					t.Fatal(err)
				}
				got := tree(t, root)
				if got["/home/u/f"] != "of the user" {
					t.Errorf("done without a pre-image: %q", got["/home/u/f"])
				}
				if got["/etc/f"] != "new" {
					t.Errorf("the other step was not done: %q", got["/etc/f"])
				}
			}
			if err := j.undo(); err != nil {
				t.Fatal(err)
			}
			equal(t, tree(t, root), before)
		})
	}
}

// Where a home is a file system of its own the pre-image is in the home, and its user can take it away.
func TestWhatIsNotKeptAnyMoreIsNotDone(t *testing.T) {
	for name, want := range map[string]files.Want{
		"remove":    gone("/home/u/f"),
		"hard link": {Path: "/home/u/f", Kind: "link", HardTo: "/home/u/g"},
		"put":       file("/home/u/f", "new"),
	} {
		t.Run(name, func(t *testing.T) {
			root := home(t)
			before := tree(t, root)
			j := staged(t, root, want)
			if err := os.Remove(filepath.Join(root.Path(), j.dir(), j.Steps[0].Keep)); err != nil {
				t.Fatal(err)
			}
			if err := j.roll(); err != nil {
				t.Fatal(err)
			}
			if got := tree(t, root)["/home/u/f"]; got != "of the user" {
				t.Errorf("done without a pre-image: %q", got)
			}
			if err := j.forget(); err != nil { // as where everything else is settled
				t.Fatal(err)
			}
			equal(t, tree(t, root), before)
		})
	}
}

// A deployment that nothing runs on has no pre-images, and is written all the same.
func TestAUsersFileIsWrittenInANewDeployment(t *testing.T) {
	root := home(t)
	if err := os.Chown(filepath.Join(root.Path(), "etc/f"), 1500, 1500); err != nil {
		t.Fatal(err)
	}
	e := &Engine{Root: root, Say: func(string, string) {}, Left: func(l Left) { t.Errorf("left: %v", l.Err) }}
	_, err := e.writeEtc(ostree.Deployment{ID: "B"}, "t", Switch{
		Open: func(ostree.Deployment) (*files.Root, error) { return files.Open(root.Path()) },
		Etc: func(*files.Root) ([]files.Want, error) {
			return []files.Want{file("/etc/f", "new"), file("/etc/g", "new")}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	if got := tree(t, root)["/etc/f"]; got != "new" {
		t.Errorf("/etc/f is %q", got)
	}
}

// An empty file of ours that goes may be written to until it does.
func TestAnEmptyFileThatWasWrittenToSinceStays(t *testing.T) {
	root := host(t, map[string]string{"/etc/log": "", "/etc/empty": ""})
	log, empty := gone("/etc/log"), gone("/etc/empty")
	log.IfEmpty, empty.IfEmpty = true, true
	j := staged(t, root, log, empty)
	var left []string
	j.left = func(ls ...Left) {
		for _, l := range ls {
			left = append(left, l.Path)
		}
	}
	if err := os.WriteFile(filepath.Join(root.Path(), "etc/log"), []byte("a line"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.unmoved(), j.roll(), j.check(), j.forget()); err != nil {
		t.Fatal(err)
	}
	equal(t, tree(t, root), map[string]string{"/etc": "/", "/etc/log": "a line"})
	if strings.Join(left, " ") != "/etc/log" {
		t.Errorf("told of %v", left)
	}
}

// A user can make any number of names where a file is to take a directory's place.
func TestADirectoryOfManyNamesIsNotReadWhole(t *testing.T) {
	root := home(t)
	full := filepath.Join(root.Path(), "home/u/conf")
	if err := os.Mkdir(full, 0o700); err != nil {
		t.Fatal(err)
	}
	names := 200_000
	if testing.Short() {
		names = 20_000
	}
	for i := range names {
		if err := os.Link(filepath.Join(root.Path(), "home/u/f"), filepath.Join(full, strconv.Itoa(i))); err != nil {
			if errors.Is(err, unix.EMLINK) {
				err = os.WriteFile(filepath.Join(full, strconv.Itoa(i)), nil, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Chown(full, 1500, 1500); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	steps, left, err := makeSteps(root, "t", nil, []files.Want{file("/home/u/conf", "a file"), file("/etc/f", "new")})
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	got := after.TotalAlloc - before.TotalAlloc
	t.Logf("%d names, %d KiB allocated", names, got>>10)
	if got > 1<<20 {
		t.Errorf("%d KiB are allocated for %d names", got>>10, names)
	}
	if len(steps) != 1 || steps[0].Path != "/etc/f" {
		t.Errorf("steps: %+v", steps)
	}
	if len(left) != 1 || left[0].Path != "/home/u/conf" || !strings.Contains(left[0].Err.Error(), "which no configuration owns") {
		t.Errorf("left: %+v", left)
	}
}
