// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/transaction"
)

func TestUpdateComesBackByItselfAndByRequest(t *testing.T) {
	ctx := context.Background()
	h, s := updated(ctx, t, Options{})
	comesBack(ctx, t, h, s)
}

// TestUpdateComesBackOnComposefs has the root of Fedora CoreOS: an image that is mounted, of which a deployment's tree
// of files is only the store.
func TestUpdateComesBackOnComposefs(t *testing.T) {
	ctx := context.Background()
	h, s := updated(ctx, t, Options{Composefs: true})
	root := func() {
		t.Helper()
		text := mustOutput(ctx, t, h.Machine, "findmnt", "--noheadings", "--output=SOURCE,FSTYPE,OPTIONS", "/")
		if fields := strings.Fields(text); len(fields) != 3 || fields[0] != "composefs" || fields[1] != "overlay" ||
			!strings.HasPrefix(fields[2], "ro,") {
			t.Errorf("the root is %q", text)
		}
	}
	root()
	// Nothing can be made there, and the agent says so before it touches anything.
	boots := h.Boots()
	refused := h.apply(ctx, "outside", ignore)
	status, err := h.status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(refused), status.Reason} {
		if !strings.Contains(text, "read-only") || !strings.Contains(text, "/data") {
			t.Errorf("applying a file outside of what is writable: %s", text)
		}
	}
	if status.State != transaction.Degraded || status.Config.Committed != "b" || status.Config.Pending != "" {
		t.Errorf("after what can't be had: %s on %+v", status.State, status.Config)
	}
	// What it can have heals it (P3), and it has that.
	if err := h.moveTo(ctx, "b", ignore); err != nil || h.Boots() != boots {
		t.Fatalf("asking for what is there: %v, %d boots", err, h.Boots()-boots)
	}
	comesBack(ctx, t, h, s)
	root()
}

// updated is a machine on b, which was reached by an update of OS image, kernel arguments, files, units and keys at
// once.
func updated(ctx context.Context, t *testing.T, options Options) (*vmHost, *scene) {
	t.Helper()
	if testing.Short() && options != (Options{}) {
		t.Skip("not in short mode")
	}
	s := set(t, options)
	t.Parallel()
	h, err := s.resume(ctx, options.name()+"-update", s.saved["b"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		counted.Boots.Add(int64(h.Boots() - 1))
		closeMachine(t, h.Machine)
	})
	return h, s
}

// comesBack tries on b what can't prove healthy, and then goes back to a.
func comesBack(ctx context.Context, t *testing.T, h *vmHost, s *scene) {
	t.Helper()
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
