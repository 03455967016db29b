// SPDX-License-Identifier: Apache-2.0

package reboots

import (
	"errors"
	"testing"
	"time"

	"github.com/noderefit/noderefit/transaction"
)

// A host whose soft reboot becomes a full one waits for a full one: the boot brings a kernel, and answers each want.
func TestASoftRebootThatBecomesAFullOneIsRecordedAsFull(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		stuck error // of kexec -u
		down  transaction.Method
		how   transaction.SoftReboot
	}{
		"the kernel is unloaded":    {nil, transaction.MethodSoft, transaction.SoftStarted},
		"the kernel remains loaded": {errors.New("Operation not permitted"), transaction.MethodFull, ""},
	} {
		w := newWorld(t)
		w.stuck = c.stuck
		w.put(kexecLoaded, "1\n", 0o644)
		e := &transaction.Engine{Root: w.root, BootID: "k1", Now: time.Now, Say: func(string, string) {}}
		store := transaction.NewStore(w.root)
		r, err := store.Load()
		w.must(err)
		w.must(e.BeginReboot(t.Context(), r, transaction.Reboot{Rebooted: transaction.Rebooted{Why: "a test", Soft: true}}))
		_, err = w.start(transaction.MethodSoft, func(t *Trip) {
			t.Loaded = "0ld"
			t.Record = func(w *transaction.Way) error { return e.StartBy(r, w) }
		})
		now, loading := store.Load()
		w.must(errors.Join(err, loading))
		if w.down[0] != c.down || now.Way.Started != c.down || now.Pending.SoftReboot != c.how ||
			now.Rebooted.Soft != (c.how != "") || now.Reason != "rebooting: a test" {
			t.Errorf("%s: down %v, way %+v, soft reboot %q, order %+v, %q", what, w.down, now.Way, now.Pending.SoftReboot,
				now.Rebooted, now.Reason)
		}
	}
}
