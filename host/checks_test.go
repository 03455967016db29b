// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/noderefit/noderefit/transaction"
)

func TestWhatCheckScriptsSaidIsKeptForTheConfigurationItIsAbout(t *testing.T) {
	t.Parallel()
	h := openTree(t, t.TempDir())
	if err := h.root.MkdirAll(transaction.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	said := heard{}
	wish := transaction.Check{Name: "wish", Run: func(context.Context) error {
		said.note("/etc/greenboot/check/wanted.d/10-wish", errors.New("exit status 1: would be nice"))
		said.note("/etc/greenboot/check/required.d/20-disk", nil)
		return nil
	}}
	if err := h.judge(t.Context(), "B", said, []transaction.Check{wish}, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	c := h.checked("B")
	if c == nil || c.Said["10-wish"] != "exit status 1: would be nice" || c.Said["20-disk"] != "" || len(c.Said) != 2 {
		t.Errorf("kept: %+v", c)
	}
	if c := h.checked("A"); c != nil {
		t.Errorf("of another configuration: %+v", c)
	}
}

func TestAVerdictThatIsInterruptedKeepsNothing(t *testing.T) {
	t.Parallel()
	h := openTree(t, t.TempDir())
	if err := h.root.MkdirAll(transaction.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stop := transaction.Check{Name: "stop", Run: func(context.Context) error { cancel(); return nil }}
	if err := h.judge(ctx, "B", heard{"x": ""}, []transaction.Check{stop}, time.Now().Add(time.Minute)); err == nil {
		t.Error("an interrupted verdict is a yes")
	}
	if c := h.checked("B"); c != nil {
		t.Errorf("kept: %+v", c)
	}
}
