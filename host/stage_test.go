// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/rpmostree"
	"github.com/noderefit/noderefit/transaction"
)

// openTree returns a host that is a directory; the same host again for the same dir. configB is a rendered
// configuration, and digestOfB the digest of its content.
const configB = "rendered-worker-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

var digestOfB = strings.Repeat("b", 64)

func openTree(t *testing.T, dir string) *Host {
	t.Helper()
	h, err := Open(dir, OSNone, func(string, string) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// write writes the boot record, as another process would.
func write(t *testing.T, h *Host, r *transaction.Record) {
	t.Helper()
	inner, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	record := fmt.Sprintf(`{"sha256":"%x","record":%s}`, sha256.Sum256(inner), inner)
	err = errors.Join(h.root.MkdirAll(transaction.StateDir, 0o700),
		h.root.WriteRecord(transaction.RecordPath, []byte(record), 0o600))
	if err != nil {
		t.Fatal(err)
	}
}

func isRefused(err error) bool { return errors.As(err, new(*Refused)) }

func TestOneStagesAtATime(t *testing.T) {
	dir := t.TempDir()
	first, second := openTree(t, dir), openTree(t, dir)
	release, err := first.lockStaging(t.Context(), "apply", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.lockStaging(t.Context(), "unstage", 0); !isRefused(err) || !strings.Contains(err.Error(), "apply, pid") {
		t.Errorf("while another has it: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	cfg := &machineconfig.Config{Name: configB, Digest: strings.Repeat("b", 64)}
	if res, err := second.Stage(ended, cfg, StageOptions{}); !isRefused(err) || res.Status == nil {
		t.Errorf("stage while another has it: %v, result %+v", err, res)
	}
	if err := second.Lock(t.Context(), "prove"); err != nil {
		t.Errorf("whoever composes keeps others from the host: %v", err)
	}
	time.AfterFunc(200*time.Millisecond, release)
	after, err := second.lockStaging(t.Context(), "stage", settling)
	if err != nil {
		t.Fatalf("when the other has done: %v", err)
	}
	after()
}

func TestStageSparesTheDeploymentsOfAnUpdateThatIsUnderWay(t *testing.T) {
	h := openTree(t, t.TempDir())
	b, c := strings.Repeat("b", 64), strings.Repeat("c", 64)
	for _, one := range []struct {
		phase   transaction.Phase
		digest  string
		refused bool
	}{
		{transaction.PhaseBoot, c, true},
		{transaction.PhaseProve, c, true},
		{transaction.PhaseUndo, c, true},
		{transaction.PhaseBoot, b, false},
	} {
		pending := &transaction.Pending{Phase: one.phase, Road: transaction.RoadTree}
		pending.Config, pending.Digest = configB, b
		err := h.stage(t.Context(), &transaction.Record{Pending: pending},
			&machineconfig.Config{Name: "next", Digest: one.digest}, StageOptions{}, &Result{})
		if isRefused(err) != one.refused || err != nil && !strings.Contains(err.Error(), configB) {
			t.Errorf("%s of %s with %s pending: %v", one.phase, configB, one.digest[:1], err)
		}
	}
	// No part of an update in preparation can boot, and the next apply takes that update back.
	preparing := &transaction.Pending{Phase: transaction.PhasePrepare}
	if err := spares(&transaction.Record{Pending: preparing}, &machineconfig.Config{Digest: c}); err != nil {
		t.Error(err)
	}
}

func TestStatusSaysWhatIsStaged(t *testing.T) {
	h := openTree(t, t.TempDir())
	h.composer = &rpmostree.Deployments{Plain: ostree.NewPlain(ostree.Exec, h.root.Path())}
	if got := h.Status(t.Context()).Staged; got != "" {
		t.Errorf("where nothing is: %q", got)
	}
	b := strings.Repeat("b", 64)
	if err := h.keepStaged(staged{Digest: b}); err != nil {
		t.Fatal(err)
	}
	if got := h.Status(t.Context()).Staged; got != b {
		t.Errorf("staged %q, want %q", got, b)
	}
	if err := h.root.WriteRecord(StagedPath, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := h.Status(t.Context()).Staged; got != "unknown" {
		t.Errorf("where it can't be read: %q", got)
	}
}

func TestStatusSaysHowFarAPullIs(t *testing.T) {
	h := openTree(t, t.TempDir())
	if err := h.root.MkdirAll(transaction.RunDir, 0o755); err != nil {
		t.Fatal(err)
	}
	h.pulling.Says("nobody pulls")
	if got := h.Status(t.Context()).Pulling; got != nil {
		t.Errorf("where nobody pulls: %+v", got)
	}
	// A tree has no processes; a host has ours.
	if err := h.root.MkdirAll(fmt.Sprintf("/proc/%d", os.Getpid()), 0o755); err != nil {
		t.Fatal(err)
	}
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("/proc/%d/comm", os.Getpid())
	if err := h.root.WriteRecord(at, comm, 0o644); err != nil {
		t.Fatal(err)
	}
	done := h.pulling.Begin("quay.io/os/node")
	if got := h.Status(t.Context()).Pulling; got == nil || got.Says != "quay.io/os/node" || got.Since == "" {
		t.Errorf("in the beginning: %+v", got)
	}
	h.pulling.Says("trying again: no route to host")
	if got := h.Status(t.Context()).Pulling; got == nil || got.Says != "trying again: no route to host" {
		t.Errorf("later: %+v", got)
	}
	// A killed process pulls no more, whichever process has its number now.
	if err := h.root.WriteRecord(at, []byte("sleep\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := h.Status(t.Context()).Pulling; got != nil {
		t.Errorf("of somebody else: %+v", got)
	}
	done()
	if h.exists(h.pulling.File) {
		t.Error("it is still told at the end")
	}
}

func TestUnstageSparesAnUpdateThatIsUnderWay(t *testing.T) {
	h := openTree(t, t.TempDir())
	if _, err := h.Unstage(t.Context()); err != nil {
		t.Errorf("at rest: %v", err)
	}
	r, err := h.store().Load()
	if err != nil {
		t.Fatal(err)
	}
	r.Pending = &transaction.Pending{Phase: transaction.PhaseBoot, Road: transaction.RoadTree}
	r.Pending.Config, r.Pending.Digest = configB, strings.Repeat("b", 64)
	write(t, h, r)
	if res, err := h.Unstage(t.Context()); !isRefused(err) || !strings.Contains(err.Error(), configB) || res.Status == nil {
		t.Errorf("with an update under way: %v, result %+v", err, res)
	}
}
