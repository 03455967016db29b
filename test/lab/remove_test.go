// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// grow makes a tree to be removed, with an immutable directory and a link that leads out of it, and a directory outside
// with a canary.
func grow(t *testing.T) (tree, outside string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting takes root")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	tree, outside = filepath.Join(dir, "tree"), filepath.Join(dir, "outside")
	deployment := filepath.Join(tree, "sysroot/ostree/deploy/testos/deploy/c.0")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(tree, "a b/c"), 0o755),
		os.MkdirAll(filepath.Join(deployment, "etc"), 0o755),
		os.Mkdir(outside, 0o755),
		os.WriteFile(filepath.Join(tree, "a b/file"), []byte("x"), 0o600),
		os.WriteFile(filepath.Join(outside, "canary"), []byte("alive"), 0o600),
		os.Symlink(outside, filepath.Join(tree, "link")),
		setImmutable(deployment, true),
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := RemoveTree(tree); err != nil {
			t.Error(err)
		}
	})
	return tree, outside
}

// bind mounts a directory or file at another until the end of the test at the latest, and returns what unmounts it.
func bind(t *testing.T, from, at string) (unbind func()) {
	t.Helper()
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	unbind = sync.OnceFunc(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Errorf("unmounting %s: %v", at, err)
		}
	})
	t.Cleanup(unbind)
	return unbind
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// Nothing below a mount is removed, and nothing beside it: whoever cleans up by hand then finds everything as it was.
func TestRemovalRefusesWhatIsMounted(t *testing.T) {
	for _, c := range []struct{ name, from, at string }{
		{"a directory of the same file system", "", "a b/c"},
		{"a file of the same file system", "canary", "a b/file"},
		{"the tree itself", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree, outside := grow(t)
			canary, at := filepath.Join(outside, "canary"), filepath.Join(tree, c.at)
			unbind := bind(t, filepath.Join(outside, c.from), at)
			err := RemoveTree(tree)
			if err == nil || !strings.Contains(err.Error(), at+" is mounted") {
				t.Errorf("removing it: %v", err)
			}
			if !exists(t, canary) {
				t.Fatal("the canary is gone")
			}
			unbind()
			if !exists(t, filepath.Join(tree, "a b/file")) {
				t.Error("something was removed before it was refused")
			}
			if err := RemoveTree(tree); err != nil {
				t.Error(err)
			}
			if exists(t, tree) || !exists(t, canary) {
				t.Errorf("the tree is there: %t, the canary: %t", exists(t, tree), exists(t, canary))
			}
		})
	}
}

// Between the look at the mounts and the removal one may come.
func TestRemovalDoesNotEnterAMountThatComesMeanwhile(t *testing.T) {
	tree, outside := grow(t)
	unbind := bind(t, outside, filepath.Join(tree, "a b/c"))
	parent, err := os.Open(filepath.Dir(tree))
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	if err := removeAt(parent, filepath.Base(tree)); err == nil || !strings.Contains(err.Error(), "a b/c") {
		t.Errorf("removing it: %v", err)
	}
	unbind()
	if !exists(t, filepath.Join(outside, "canary")) {
		t.Error("the canary is gone")
	}
}

func TestRemovalFollowsNoLink(t *testing.T) {
	tree, outside := grow(t)
	link := tree + "-link"
	if err := os.Symlink(tree, link); err != nil {
		t.Fatal(err)
	}
	if err := RemoveTree(link); err != nil || exists(t, link) || !exists(t, tree) {
		t.Errorf("removing a link: %v; the tree is there: %t", err, exists(t, tree))
	}
	if err := RemoveTree(tree); err != nil || exists(t, tree) || !exists(t, filepath.Join(outside, "canary")) {
		t.Errorf("removing the tree: %v", err)
	}
	if err := errors.Join(RemoveTree(tree), RemoveTree(filepath.Join(tree, "below"))); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
}

func TestMountsAreListedDeepestFirst(t *testing.T) {
	const mountinfo = `22 1 259:1 / / rw - ext4 /dev/root rw
30 22 0:5 / /cache/tree/dev rw - devtmpfs none rw
31 30 0:6 / /cache/tree/dev/shm rw shared:3 - tmpfs none rw
32 22 0:7 / /cache/tree2 rw - tmpfs none rw
33 22 0:8 / /cache/tree/a\040b\134 rw - tmpfs none rw
`
	want := []string{`/cache/tree/a b\`, "/cache/tree/dev/shm", "/cache/tree/dev"}
	if got := parseMounts(mountinfo, "/cache/tree"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := parseMounts(mountinfo, "/"); len(got) != 5 {
		t.Errorf("below / are %q", got)
	}
}

// What could not be removed stays known: the next one to prepare removes it, once nothing is mounted there.
func TestHostWithAMountIsNotRemovedNorForgotten(t *testing.T) {
	base := Need(t)
	_, outside := grow(t)
	host, err := base.NewHost(t.Context(), "", Options{Name: "mounted"})
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(host.dir, "empty")
	unbind := bind(t, outside, at)
	if err := host.Close(); err == nil || !strings.Contains(err.Error(), at+" is mounted") {
		t.Errorf("closing it: %v", err)
	}
	if !exists(t, filepath.Join(outside, "canary")) || !exists(t, host.Sysroot()) || !exists(t, host.machine.record) {
		t.Error("something of it, or of what is mounted there, is gone")
	}
	unbind()
	if err := host.machine.remove(); err != nil || exists(t, host.dir) || exists(t, host.machine.record) {
		t.Errorf("removing it without the mount: %v", err)
	}
}

// What the labs leave out is for tests: they remove what they have made in a directory of their own.
func TestLabsRemoveTreesInOneWay(t *testing.T) {
	near, err := filepath.Glob("../*/*.go")
	far, farErr := filepath.Glob("../*/*/*.go")
	files, err := slices.Concat(near, far), errors.Join(err, farErr)
	if err != nil || len(files) < 50 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		text := read(t, file)
		if strings.Contains(text, "os.RemoveAll(") && !strings.HasSuffix(file, "_test.go") {
			t.Errorf("%s removes a tree otherwise than with lab.RemoveTree", file)
		}
	}
}

// Builds of earlier versions left their mounts behind; whatever else is mounted there is somebody's.
func TestLeftMountsOfABuildAreUnmounted(t *testing.T) {
	work, outside := grow(t)
	shm, home := filepath.Join(work, tree, "dev/shm"), filepath.Join(work, tree, "home")
	if err := errors.Join(os.MkdirAll(shm, 0o755), os.MkdirAll(home, 0o755)); err != nil {
		t.Fatal(err)
	}
	unbind := bind(t, outside, home)
	if err := unix.Mount("tmpfs", shm, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	if err := removeBuild(work); err == nil || !strings.Contains(err.Error(), home+" is mounted") {
		t.Errorf("cleaning up with another mount: %v", err)
	}
	if left, err := mountsBelow(work); err != nil || !slices.Equal(left, []string{home}) {
		t.Errorf("mounted are %q (%v)", left, err)
	}
	if !exists(t, filepath.Join(outside, "canary")) {
		t.Error("the canary is gone")
	}
	unbind()
	if err := removeBuild(work); err != nil || exists(t, work) {
		t.Errorf("cleaning up: %v", err)
	}
}

// A build that is killed takes its mounts along. The one here is cut where the root file system is made, with the mounts
// of mmdebstrap up; no package is fetched for it.
func TestKilledBuildLeavesNothingMounted(t *testing.T) {
	const key = "LAB_TEST_BUILD"
	if work := os.Getenv(key); work != "" {
		if err := build(t.Context(), work, interruptedBootstrap(work), nil, os.Stdout); err != nil {
			t.Fatal(err)
		}
		t.Fatal("the build ended")
	}
	Need(t)
	work, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	work = filepath.Join(work, "building")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledBuildLeavesNothingMounted$")
	cmd.Env = append(os.Environ(), key+"="+work)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen := ""
	for lines := bufio.NewScanner(stdout); !strings.Contains(seen, tree+"/proc\n") && lines.Scan(); {
		seen += lines.Text() + "\n"
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The pipe ends with the last process that has it: all of the build is gone then.
	ended := time.AfterFunc(30*time.Second, func() { t.Error("the build goes on"); stdout.Close() })
	_, _ = io.Copy(io.Discard, stdout)
	ended.Stop()
	_ = cmd.Wait() // it was killed

	if !strings.Contains(seen, "mounted: "+filepath.Join(work, tree, "sys")) {
		t.Errorf("the build did not get as far as its mounts: %s", seen)
	}
	left, err := mountsBelow(work)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("it left mounted: %q", left)
	}
	if err := removeBuild(work); err != nil || exists(t, work) {
		t.Errorf("cleaning up: %v", err)
	}
	for _, at := range left {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Logf("unmounting %s: %v", at, err)
		}
	}
}

// interruptedBootstrap is mmdebstrap with nothing to install, which says what it has mounted and waits for ever.
func interruptedBootstrap(work string) []string {
	at := filepath.Join(work, tree)
	return []string{"mmdebstrap", "--variant=extract", "--mode=root", "--skip=update",
		`--setup-hook=mkdir -p "$1/proc" "$1/sys"`,
		"--extract-hook=awk -v at=" + at + ` 'index($5, at) { print "mounted: " $5 }' /proc/self/mountinfo; sleep infinity`,
		suite, at, "deb [trusted=yes] copy:" + work + " ./"}
}
