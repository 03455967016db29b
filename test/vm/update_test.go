// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/transaction"
)

// TestUpdateComesBackByItselfAndByRequest is on b, which was reached by an update of OS image, kernel arguments, files,
// units and keys at once. From there it tries what can't prove healthy, and then goes back to a.
func TestUpdateComesBackByItselfAndByRequest(t *testing.T) {
	ctx := context.Background()
	s := set(t, Options{})
	t.Parallel()
	h, err := s.resume(ctx, "update", s.saved["b"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		counted.Boots.Add(int64(h.Boots() - 1))
		closeMachine(t, h.Machine)
	})
	on := func(name string, state transaction.State) {
		t.Helper()
		at, status, err := h.judge(ctx, s.sides)
		if err != nil {
			t.Fatal(err)
		}
		if at != name || status.State != state {
			t.Fatalf("on %s, %s: %s; want %s, %s", at, status.State, status.Reason, name, state)
		}
	}
	on("b", transaction.Done)

	if err := h.apply(ctx, "bad", ignore, "--verdict-timeout=1m"); err != nil {
		t.Fatal(err)
	}
	if err := h.WaitBoot(ctx, h.Boots()+1); err != nil {
		t.Fatal(err)
	}
	on("b", transaction.RolledBack)
	status, err := h.status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(status.Reason, "crio.service") || len(status.Quarantined) != 1 ||
		status.Quarantined[0].Config != "bad" {
		t.Errorf("status %+v", status)
	}

	next := h.Boots() + 1
	if text, err := h.Output(ctx, agent, "rollback"); err != nil {
		t.Fatalf("rollback: %s %v", text, err)
	}
	if err := h.WaitBoot(ctx, next); err != nil {
		t.Fatal(err)
	}
	on("a", transaction.Done)
	if status, err = h.status(ctx); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(status.Quarantined, func(q transaction.Quarantined) bool { return q.Config == "b" }) {
		t.Errorf("going back by request quarantined %v", status.Quarantined)
	}
}
