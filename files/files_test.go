// SPDX-License-Identifier: Apache-2.0

package files_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/noderefit/noderefit/files"
	"golang.org/x/sys/unix"
)

// What the test binary does instead of testing when it starts itself again.
const (
	asLockHolder    = "FILES_TEST_HOLD_LOCK_IN" // takes /lock of the root it names and waits to be killed
	withoutOpenat2  = "FILES_TEST_WITHOUT_OPENAT2"
	lockHolderText  = "apply of rendered-worker-1, process 4711"
	lockHolderReady = "locked"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(asLockHolder); dir != "" {
		if err := holdLock(dir); err != nil {
			fmt.Fprintln(os.Stderr, "holding the lock:", err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(withoutOpenat2) != "" {
		if err := denyOpenat2(); err != nil {
			fmt.Fprintln(os.Stderr, "denying openat2:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// denyOpenat2 makes this process see a kernel from before Linux 5.6.
func denyOpenat2() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the system call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_OPENAT2},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	if fd, err := unix.Openat2(unix.AT_FDCWD, ".", &unix.OpenHow{Flags: unix.O_PATH}); !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("openat2 gave %d, %w", fd, err)
	}
	return nil
}

// needRoot ends a test that mounts, changes owners or sets security attributes.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can do this")
	}
}

// tree makes entries below a new directory: "dir/", "file=contents", "link -> target".
func tree(t testing.TB, entries ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, e := range entries {
		if name, target, ok := strings.Cut(e, " -> "); ok {
			mkdir(t, filepath.Dir(filepath.Join(dir, name)))
			must(t, os.Symlink(target, filepath.Join(dir, name)))
			continue
		}
		name, data, ok := strings.Cut(e, "=")
		if !ok {
			mkdir(t, filepath.Join(dir, name))
			continue
		}
		mkdir(t, filepath.Dir(filepath.Join(dir, name)))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644))
	}
	return dir
}

func host(t testing.TB, entries ...string) (*files.Root, string) {
	t.Helper()
	dir := tree(t, entries...)
	return open(t, dir), dir
}

func open(t testing.TB, dir string) *files.Root {
	t.Helper()
	r, err := files.Open(dir)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

func mkdir(t testing.TB, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	return string(b)
}

// mine gives n the owner that anybody may give: oneself.
func mine(n files.Node) files.Node {
	n.UID, n.GID = os.Getuid(), os.Getgid()
	return n
}

func file(data string) files.Node {
	return mine(files.Node{Type: files.Regular, Mode: 0o640, Data: []byte(data)})
}

func mount(t testing.TB, source, target, fstype string, flags uintptr, data string) {
	t.Helper()
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		t.Fatalf("mounting %s: %v", target, err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(target, unix.MNT_DETACH)) })
}

func mountReadOnly(t testing.TB, dir string) {
	t.Helper()
	mount(t, dir, dir, "", unix.MS_BIND, "")
	must(t, unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

// state is everything about a tree that a write to it would change.
func state(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	must(t, filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		line := fmt.Sprint(p, st.Ino, st.Nlink, st.Mode, st.Uid, st.Gid, st.Size, st.Mtim, st.Ctim)
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			line += read(t, p)
		}
		out = append(out, line)
		return nil
	}))
	return out
}

// unchanged fails the test when what is in dir differs from before.
func unchanged(t testing.TB, dir string, before []string) {
	t.Helper()
	if diff := cmp.Diff(before, state(t, dir)); diff != "" {
		t.Errorf("%s was touched (-before +after):\n%s", dir, diff)
	}
}

func stat(t testing.TB, name string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(name, &st))
	return st
}

// again runs tests of this binary in a process of its own.
func again(t *testing.T, run string, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+run)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	} else if strings.Contains(string(out), "no tests to run") {
		t.Errorf("nothing ran:\n%s", out)
	}
}
