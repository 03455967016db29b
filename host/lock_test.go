// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
