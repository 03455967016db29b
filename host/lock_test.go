// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/reboots"
	"github.com/noderefit/noderefit/transaction"
)

// A host whose record shows the end of an update takes the next command, although the process that wrote the record is
// still cleaning up. So does a host whose lock has just been taken, and has no name in it yet.
func TestACommandWaitsForWhatWritesTheEndOfAnUpdateDown(t *testing.T) {
	for holder, refused := range map[string]bool{
		"":                                     false,
		"machine-config-daemon prove, pid 1":   false,
		"machine-config-daemon recover, pid 1": false,
		"machine-config-daemon stage, pid 1":   false,
		"machine-config-daemon apply, pid 1":   true,
		"somebody else":                        true,
	} {
		h := openTree(t, t.TempDir())
		if err := h.root.MkdirAll(transaction.RunDir, 0o755); err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(h.root.Path(), transaction.RunDir, "lock")
		f, err := os.OpenFile(at, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(holder); err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(200*time.Millisecond, func() { _ = f.Close() })
		if err := h.Lock(t.Context(), "apply"); isRefused(err) != refused {
			t.Errorf("held by %q: %v", holder, err)
		}
	}
}

// Programs that report whether a reboot is wanted run as units of fixed names. So a second process that asks waits for the
// first one, and stops nothing of its.
func TestOneAsksAtATimeWhatWantsAReboot(t *testing.T) {
	dir := t.TempDir()
	first, second := openTree(t, dir), openTree(t, dir)
	release, err := first.lockFile(t.Context(), reboots.LockName, "wants-reboot", "asks for reboots", 0)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := second.RebootWanted(ended); !isRefused(err) || !strings.Contains(err.Error(), "wants-reboot, pid") {
		t.Errorf("while another one asks: %v", err)
	}
	var free atomic.Bool
	time.AfterFunc(200*time.Millisecond, func() { free.Store(true); release() })
	if _, err := second.RebootWanted(t.Context()); err != nil || !free.Load() {
		t.Errorf("%v, the other one has ended: %t", err, free.Load())
	}
}
