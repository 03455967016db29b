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
	holder, err := p.LockHolder()
	if err != nil || holder == nil || holder.PID != os.Getpid() || holder.Name == "" {
		t.Errorf("%+v, %v", holder, err)
	}
	release()
	if holder, err := p.LockHolder(); holder != nil || err != nil {
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
		if got := unitOf(groups); got != want {
			t.Errorf("%q is of %q", groups, got)
		}
	}
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
