// SPDX-License-Identifier: Apache-2.0

package hands

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/reboots"
)

// watched is a tree with a driftWatch on it.
type watched struct {
	t    *testing.T
	dir  string
	root *files.Root
	w    *driftWatch
}

func watchTree(t *testing.T, tune func(*driftWatch), paths ...string) *watched {
	t.Helper()
	dir := t.TempDir()
	root, err := files.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	x := &watched{t: t, dir: dir, root: root, w: newDriftWatch(root)}
	for _, d := range []string{"etc/app", "var/usrlocal", "usr", "run"} {
		x.do(os.MkdirAll(x.at(d), 0o755))
	}
	x.do(os.Symlink("../var/usrlocal", x.at("usr/local")))
	if tune != nil {
		tune(x.w)
	}
	go x.w.run()
	t.Cleanup(func() {
		x.w.close()
		_ = root.Close()
	})
	x.watch(paths...)
	return x
}

// watch sets the paths and waits until they are watched: then a change of a probe beside them is announced.
func (x *watched) watch(paths ...string) {
	x.t.Helper()
	probe := fmt.Sprintf("/run/probe-%d", time.Now().UnixNano())
	x.w.watch(append(slices.Clone(paths), probe))
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		x.do(os.WriteFile(x.at(probe), nil, 0o600))
		if x.told(100 * time.Millisecond) {
			x.do(os.Remove(x.at(probe)))
			x.quiet()
			return
		}
	}
	x.t.Fatal("nothing is watched")
}

func (x *watched) at(name string) string { return filepath.Join(x.dir, name) }

func (x *watched) do(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

func (x *watched) write(name, text string) {
	x.t.Helper()
	x.do(os.WriteFile(x.at(name), []byte(text), 0o600))
}

func (x *watched) told(within time.Duration) bool {
	select {
	case <-x.w.touched:
		return true
	case <-time.After(within):
		return false
	}
}

// quiet discards announcements of earlier changes.
func (x *watched) quiet() {
	for x.told(200 * time.Millisecond) {
	}
}

// tells checks that a change is announced.
func (x *watched) tells(what string, change func()) {
	x.t.Helper()
	change()
	if !x.told(20 * time.Second) {
		x.t.Errorf("%s: not told", what)
	}
	x.quiet()
}

// silent checks that a change of an unwatched path is not announced.
func (x *watched) silent(what string, change func()) {
	x.t.Helper()
	change()
	if x.told(300 * time.Millisecond) {
		x.t.Errorf("%s: told", what)
	}
}

func TestWhatIsManagedIsSeenToChange(t *testing.T) {
	x := watchTree(t, nil, "/etc/app/a.conf", "/etc/link", "/usr/local/bin/tool", "/etc/later/on/b.conf", "/etc/units/*")
	x.tells("created", func() { x.write("etc/app/a.conf", "1") })
	x.tells("written", func() { x.write("etc/app/a.conf", "2") })
	x.tells("its mode", func() { x.do(os.Chmod(x.at("etc/app/a.conf"), 0o640)) })
	x.tells("replaced", func() {
		x.write("etc/app/new", "3")
		x.do(os.Rename(x.at("etc/app/new"), x.at("etc/app/a.conf")))
	})
	x.tells("removed", func() { x.do(os.Remove(x.at("etc/app/a.conf"))) })
	x.tells("a link", func() { x.do(os.Symlink("one", x.at("etc/link"))) })
	x.tells("a link's target", func() {
		x.do(os.Symlink("two", x.at("etc/link.new")))
		x.do(os.Rename(x.at("etc/link.new"), x.at("etc/link")))
	})
	x.silent("something beside it", func() { x.write("etc/app/other", "1") })
	x.silent("something of the same name elsewhere", func() { x.write("etc/a.conf", "1") })
	x.silent("to be read", func() {
		_, err := os.ReadFile(x.at("etc/app/other"))
		x.do(err)
	})
}

// Upstream watches the directories that exist when it starts, and no others.
func TestDirectoriesThatComeLaterAreWatched(t *testing.T) {
	x := watchTree(t, nil, "/etc/later/on/b.conf", "/usr/local/bin/tool", "/etc/units/*")
	x.tells("a parent", func() { x.do(os.Mkdir(x.at("etc/later"), 0o755)) })
	x.tells("another", func() { x.do(os.Mkdir(x.at("etc/later/on"), 0o755)) })
	x.tells("the file", func() { x.write("etc/later/on/b.conf", "1") })
	x.tells("written", func() { x.write("etc/later/on/b.conf", "2") })
	x.tells("behind a link", func() { x.do(os.Mkdir(x.at("var/usrlocal/bin"), 0o755)) })
	x.tells("a file behind a link", func() { x.write("var/usrlocal/bin/tool", "1") })
	x.tells("a directory of which everything counts", func() { x.do(os.Mkdir(x.at("etc/units"), 0o755)) })
	x.tells("anything in it", func() { x.do(os.Symlink("x", x.at("etc/units/some.service"))) })
	x.tells("all at once", func() {
		x.do(os.RemoveAll(x.at("etc/later")))
		x.do(os.MkdirAll(x.at("etc/later/on"), 0o755))
	})
	x.tells("and after that", func() { x.write("etc/later/on/b.conf", "3") })
}

func TestDirectoryThatIsReplacedIsStillWatched(t *testing.T) {
	x := watchTree(t, nil, "/etc/app/a.conf", "/usr/local/bin/tool")
	for i := range 3 {
		x.tells("moved away", func() { x.do(os.Rename(x.at("etc/app"), x.at(fmt.Sprint("etc/app.", i)))) })
		x.tells("made anew", func() { x.do(os.Mkdir(x.at("etc/app"), 0o755)) })
		x.tells("the file in the new one", func() { x.write("etc/app/a.conf", "1") })
		x.silent("the file in the old one", func() { x.write(fmt.Sprintf("etc/app.%d/a.conf", i), "2") })
	}
	x.tells("swapped in one step", func() {
		x.do(os.MkdirAll(x.at("etc/swap"), 0o755))
		x.do(os.Rename(x.at("etc/app"), x.at("etc/app.last")))
		x.do(os.Rename(x.at("etc/swap"), x.at("etc/app")))
	})
	x.tells("the file in the swapped one", func() { x.write("etc/app/a.conf", "1") })
	x.tells("the way leads elsewhere", func() {
		x.do(os.MkdirAll(x.at("var/other/bin"), 0o755))
		x.do(os.Remove(x.at("usr/local")))
		x.do(os.Symlink("/var/other", x.at("usr/local")))
	})
	x.tells("the file there", func() { x.write("var/other/bin/tool", "1") })
	x.tells("a file in the way", func() {
		x.do(os.RemoveAll(x.at("etc/app")))
		x.write("etc/app", "no directory")
	})
	x.tells("out of the way again", func() {
		x.do(os.Remove(x.at("etc/app")))
		x.do(os.Mkdir(x.at("etc/app"), 0o755))
	})
	x.tells("and the file", func() { x.write("etc/app/a.conf", "1") })
}

// The directory is the one that was watched before, or has its number; the kernel's watch on it is gone all the same.
func TestDirectoryThatComesBackIsWatched(t *testing.T) {
	x := watchTree(t, nil, "/etc/app/a.conf")
	for name, change := range map[string]func(){
		"moved away and back": func() {
			x.do(os.Rename(x.at("etc/app"), x.at("etc/away")))
			x.do(os.Rename(x.at("etc/away"), x.at("etc/app")))
		},
		"removed and made at once": func() {
			x.do(os.RemoveAll(x.at("etc/app")))
			x.do(os.Mkdir(x.at("etc/app"), 0o755))
		},
	} {
		for i := range 5 {
			x.tells(name, change)
			x.tells(fmt.Sprintf("%s, %d: the file in it", name, i), func() { x.write("etc/app/a.conf", fmt.Sprint(i)) })
			if t.Failed() {
				return
			}
		}
	}
}

// A link that leads out of the host leads to the host's own path, and the watch never leaves the host.
func TestWatchesStayOnTheHost(t *testing.T) {
	outside := t.TempDir()
	x := watchTree(t, nil)
	x.do(os.Symlink(outside, x.at("etc/out")))
	x.do(os.Symlink("../../../../../../../../etc/app", x.at("etc/up")))
	x.watch("/etc/out/x", "/etc/up/y")
	x.silent("outside", func() { x.do(os.WriteFile(filepath.Join(outside, "x"), nil, 0o600)) })
	x.tells("where it would lead on the host", func() { x.write("etc/app/y", "1") })
}

func TestTwoNamesOfADirectoryAreBothWatched(t *testing.T) {
	x := watchTree(t, nil, "/var/usrlocal/a", "/usr/local/b")
	x.tells("by its own name", func() { x.write("var/usrlocal/a", "1") })
	x.tells("by its link", func() { x.write("var/usrlocal/b", "1") })
	x.watch("/usr/local/b")
	x.tells("by the one that is left", func() { x.write("var/usrlocal/b", "2") })
	x.silent("what is no longer managed", func() { x.write("var/usrlocal/a", "2") })
}

func TestNothingIsWatchedOfNothing(t *testing.T) {
	x := watchTree(t, nil, "/etc/app/a.conf")
	x.w.watch(nil)
	deadline := time.Now().Add(20 * time.Second)
	for i := 0; ; i++ {
		x.write("etc/app/a.conf", fmt.Sprint(i))
		if !x.told(300 * time.Millisecond) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("still watched")
		}
	}
}

// More events at once than the kernel's queue holds: events about managed paths may be among the lost ones.
func TestStormIsTold(t *testing.T) {
	x := watchTree(t, nil, "/etc/app/a.conf", "/etc/app/sub/b.conf")
	x.tells("thousands of changes", func() {
		for i := range 20000 {
			x.write(fmt.Sprintf("etc/app/%d", i%500), "x")
		}
		x.write("etc/app/a.conf", "1")
	})
	x.tells("what comes after them", func() { x.do(os.Mkdir(x.at("etc/app/sub"), 0o755)) })
	x.tells("in what comes after them", func() { x.write("etc/app/sub/b.conf", "1") })
}

func TestWithoutTheKernelsHelpItIsLookedAt(t *testing.T) {
	x := watchTree(t, func(w *driftWatch) { w.looks, w.most = 50*time.Millisecond, 0 },
		"/etc/app/a.conf", "/etc/later/b.conf", "/usr/local/tool", "/etc/units/*")
	if err := x.w.why(); err == nil || !strings.Contains(err.Error(), "the agent watches at most") {
		t.Errorf("it says %v", err)
	}
	x.tells("created", func() { x.write("etc/app/a.conf", "1") })
	x.tells("written", func() { x.write("etc/app/a.conf", "23") })
	x.silent("something beside it", func() { x.write("etc/app/other", "1") })
	x.tells("a parent", func() { x.do(os.Mkdir(x.at("etc/later"), 0o755)) })
	x.tells("the file", func() { x.write("etc/later/b.conf", "1") })
	x.tells("behind a link", func() { x.write("var/usrlocal/tool", "1") })
	x.tells("replaced", func() {
		x.do(os.Rename(x.at("etc/app"), x.at("etc/app.old")))
		x.do(os.Mkdir(x.at("etc/app"), 0o755))
	})
	x.tells("anything in a directory", func() {
		x.do(os.Mkdir(x.at("etc/units"), 0o755))
		x.write("etc/units/z", "1")
	})
}

// limitsVar marks the process of TestWhereTheKernelHasNothingLeftToGiveItIsLookedAt that has its own limits.
const limitsVar = "NODEREFIT_TEST_INOTIFY"

// The kernel's real limits, in a user namespace: the watches of root's processes are left alone.
func TestWhereTheKernelHasNothingLeftToGiveItIsLookedAt(t *testing.T) {
	if os.Getenv(limitsVar) == "" {
		out, err := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", "true").CombinedOutput()
		if err != nil {
			t.Skipf("no user namespace can be made: %v: %s", err, out)
		}
		cmd := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", os.Args[0],
			"-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
		cmd.Env = append(os.Environ(), limitsVar+"=1")
		if out, err = cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	for limit, fails := range map[string]error{
		"max_inotify_instances": unix.EMFILE, "max_inotify_watches": unix.ENOSPC,
	} {
		t.Run(limit, func(t *testing.T) {
			set := func(n string) {
				if err := os.WriteFile("/proc/sys/user/"+limit, []byte(n), 0); err != nil {
					t.Fatal(err)
				}
			}
			set("0")
			x := watchTree(t, func(w *driftWatch) { w.looks, w.retries = 50*time.Millisecond, 500*time.Millisecond },
				"/etc/app/a.conf")
			if err := x.w.why(); !errors.Is(err, fails) {
				t.Errorf("it says %v", err)
			}
			x.tells("looked for", func() { x.write("etc/app/a.conf", "1") })
			x.tells("replaced by a link", func() {
				x.do(os.Remove(x.at("etc/app/a.conf")))
				x.do(os.Symlink("elsewhere", x.at("etc/app/a.conf")))
			})
			// Watches that other programs have released are taken without a request.
			set("1000")
			for end := time.Now().Add(20 * time.Second); x.w.why() != nil; x.told(50 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("it still says %v", x.w.why())
				}
			}
			x.tells("told", func() { x.write("etc/app/b", "1"); x.do(os.Rename(x.at("etc/app/b"), x.at("etc/app/a.conf"))) })
		})
	}
}

// tree is a host in memory.
type tree map[string]files.Node

func (t tree) Inspect(name string) (files.Node, error) {
	if n, is := t[name]; is {
		return n, nil
	}
	return files.Node{Type: files.Absent}, nil
}

func TestWhichEntriesDecideWhatStandsAtAPath(t *testing.T) {
	dir := files.Node{Type: files.Directory}
	link := func(to string) files.Node { return files.Node{Type: files.Symlink, Target: to} }
	host := tree{"/etc": dir, "/etc/app": dir, "/usr": dir, "/usr/local": link("../var/usrlocal"), "/var": dir,
		"/var/usrlocal": dir, "/loop": link("/loop"), "/file": {Type: files.Regular}, "/abs": link("/etc/app/./"),
		"/out": link("../../../etc")}
	for p, want := range map[string][]string{
		"/etc/app/x":           {"/ etc way", "/etc app way", "/etc/app x leaf"},
		"/etc/none/y/z":        {"/ etc way", "/etc none way"},
		"/usr/local/bin/x":     {"/ usr way", "/usr local way", "/ var way", "/var usrlocal way", "/var/usrlocal bin way"},
		"/usr/local":           {"/ usr way", "/usr local leaf"},
		"/loop/x":              {"/ loop way"},
		"/file/x":              {"/ file way"},
		"/abs/x":               {"/ abs way", "/ etc way", "/etc app way", "/etc/app x leaf"},
		"/out/app/x":           {"/ out way", "/ etc way", "/etc app way", "/etc/app x leaf"},
		"/etc/./app//../app/*": {"/ etc way", "/etc app way", "/etc/app * leaf"},
	} {
		var got []string
		for dir, names := range entriesOf(host, []string{p}) {
			for name, is := range names {
				text := map[part]string{leaf: "leaf", onWay: "way", leaf | onWay: "both"}[is]
				got = append(got, fmt.Sprintf("%s %s %s", dir, name, text))
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", p, got, want)
		}
	}
	both := entriesOf(host, []string{"/etc/app", "/etc/app/x"})
	dirs := slices.Sorted(maps.Keys(both))
	if both["/etc"]["app"] != leaf|onWay || !slices.Equal(dirs, []string{"/", "/etc", "/etc/app"}) {
		t.Errorf("%v", both)
	}
}

// A person or a package manager may ask what wants a reboot, and the agent hears of the answer.
func TestAnAnswerThatWantsARebootIsAnnounced(t *testing.T) {
	x := watchTree(t, nil, reboots.Paths...)
	said := reboots.Answers{NeedsReboot: true, Needs: []string{"glibc"}}
	x.do(reboots.Keep(x.root, "boot", said, nil))
	if !x.told(20 * time.Second) {
		t.Error("the answer is not announced")
	}
	x.quiet()
	x.do(reboots.Keep(x.root, "boot", said, nil))
	if x.told(200 * time.Millisecond) {
		t.Error("the same answer is announced again")
	}
}
