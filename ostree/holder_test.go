// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// locked is the root of a host on which this process has the lock of the sysroot until release is called.
func locked(t *testing.T) (root string, release func()) {
	t.Helper()
	root = t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "ostree"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc", filepath.Join(root, "proc")); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(root, sysrootLock))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	return root, func() { _ = file.Close() }
}

func TestHolderOfTheLockIsNamed(t *testing.T) {
	root, release := locked(t)
	p := NewPlain(nil, root)
	holder, err := p.LockHolder("")
	if err != nil || holder == nil || holder.PID != os.Getpid() || holder.Name == "" {
		t.Errorf("%+v, %v", holder, err)
	}
	release()
	if holder, err := p.LockHolder(""); holder != nil || err != nil {
		t.Errorf("nobody has it: %+v, %v", holder, err)
	}
	for holder, want := range map[Holder]string{
		{}:                      "another program",
		{PID: 7, Name: "bootc"}: "bootc (process 7)",
		{PID: 7, Name: "bootc", Unit: "session-1.scope"}: "bootc (process 7 of session-1.scope)",
	} {
		if got := holder.String(); got != want {
			t.Errorf("%+v is %q", holder, got)
		}
	}
	for groups, want := range map[string]string{
		"0::/system.slice/bootc-fetch-apply-updates.service\n": "bootc-fetch-apply-updates.service",
		"0::/user.slice/user-0.slice/session-1.scope\n":        "session-1.scope",
		"0::/init.slice\n": "", "": "",
	} {
		if got := unitIn(groups); got != want {
			t.Errorf("%q is of %q", groups, got)
		}
	}
}

// process is one below a test's own /proc, with one open file.
type process struct{ pid, name, unit, lock, file string }

func TestHolderIsTheProcessThatHasTheLockOfThisVeryFile(t *testing.T) {
	const own, pulls = "noderefit-bootc.service", "bootc-fetch-apply-updates.service"
	for _, c := range []struct {
		name      string
		processes []process
		want      Holder
	}{
		{"the same inode number elsewhere", []process{{"10", "pod", "pod.scope", "OFDLCK", "elsewhere"},
			{"20", "bootc", own, "OFDLCK", "ostree/lock"}}, Holder{20, "bootc", own}},
		{"nobody but that", []process{{"10", "pod", "pod.scope", "OFDLCK", "elsewhere"}}, Holder{}},
		{"a lock that ostree does not see", []process{{"10", "flock", "a.scope", "FLOCK ", "ostree/lock"},
			{"20", "bootc", "b.scope", "OFDLCK", "ostree/lock"}}, Holder{20, "bootc", "b.scope"}},
		{"closed meanwhile", []process{{"10", "x", "a.scope", "OFDLCK", "gone"}}, Holder{}},
		{"our own are first", []process{{"10", "sh", "a.scope", "OFDLCK", "ostree/lock"},
			{"20", "bootc", own, "OFDLCK", "ostree/lock"}}, Holder{20, "bootc", own}},
		{"another unit", []process{{"10", "bootc", pulls, "POSIX ", "ostree/lock"},
			{"20", "bootc", own, "", "ostree/lock"}}, Holder{10, "bootc", pulls}},
		{"a name with control characters", []process{{"10", "\x1b[2J\nx\xff", "a\x07.scope", "OFDLCK", "ostree/lock"}},
			Holder{10, "?[2J?x?", "a?.scope"}},
		{"a long name", []process{{"10", strings.Repeat("x", 500), "a.scope", "OFDLCK", "ostree/lock"}},
			Holder{10, strings.Repeat("x", maxShown), "a.scope"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, _ := locked(t)
			inode := inodeOf(t, filepath.Join(root, sysrootLock))
			must(t, errors.Join(os.Remove(filepath.Join(root, "proc")), os.WriteFile(filepath.Join(root, "elsewhere"), nil, 0o600)))
			for _, p := range c.processes {
				dir := filepath.Join(root, "proc", p.pid)
				info := "pos:\t0\n"
				if p.lock != "" {
					info += fmt.Sprintf("lock:\t1: %s ADVISORY  WRITE -1 08:01:%d 0 EOF\n", p.lock, inode)
				}
				must(t, errors.Join(os.MkdirAll(dir+"/fdinfo", 0o755), os.Mkdir(dir+"/fd", 0o755),
					os.WriteFile(dir+"/comm", []byte(p.name+"\n"), 0o600),
					os.WriteFile(dir+"/cgroup", []byte("0::/system.slice/"+p.unit+"\n"), 0o600),
					os.WriteFile(dir+"/fdinfo/3", []byte(info), 0o600), os.Symlink(filepath.Join(root, p.file), dir+"/fd/3")))
			}
			holder, err := NewPlain(nil, root).LockHolder(own)
			if err != nil || holder == nil || *holder != c.want {
				t.Errorf("%+v, %v", holder, err)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// inodeOf returns the inode number of a file.
func inodeOf(t *testing.T, path string) uint64 {
	t.Helper()
	var stat unix.Stat_t
	must(t, unix.Stat(path, &stat))
	return stat.Ino
}

func TestLockIsWaitedForWithALimitAndWithWords(t *testing.T) {
	root, release := locked(t)
	pid := fmt.Sprintf("(process %d", os.Getpid())
	synctest.Test(t, func(t *testing.T) {
		p := NewPlain(nil, root)
		var said []string
		say := func(text string) { said = append(said, text) }
		began := time.Now()
		err := p.AwaitLock(t.Context(), time.Minute, say)
		if ClassOf(err) != Retryable || !strings.Contains(err.Error(), pid) || time.Since(began) != time.Minute {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if len(said) != 1 || !strings.Contains(said[0], pid) {
			t.Errorf("said %q", said)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = p.AwaitLock(ctx, time.Minute, nil)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), pid) {
			t.Errorf("with a deadline: %v", err)
		}
		time.AfterFunc(10*time.Second, release)
		began = time.Now()
		if err := p.AwaitLock(t.Context(), time.Minute, nil); err != nil || time.Since(began) > 11*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

func TestToolThatWaitsForTheLockNamesItsHolder(t *testing.T) {
	root, _ := locked(t)
	hangs := func(ctx context.Context, _ ...string) ([]byte, error) { return Exec(ctx, "sleep", "10") }
	run := NewPlain(nil, root).Bounded(hangs, Limits{Ask: time.Minute, Deploy: 10 * time.Millisecond})
	output, err := run(t.Context(), "ostree", "admin", "cleanup")
	err = Failing("cleaning up", output, err)
	if want := fmt.Sprintf("(process %d", os.Getpid()); ClassOf(err) != Retryable || !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), "holds the lock of the sysroot: it did not end within 10ms") {
		t.Errorf("%v", err)
	}
}
