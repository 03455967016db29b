// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/transaction"
)

// openTree is a host that is a directory; the same one again for the same dir.
func openTree(t *testing.T, dir string) *Host {
	t.Helper()
	h, err := Open(dir, OSNone, func(string, string) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
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
	cfg := &machineconfig.Config{Name: cfgB, Digest: strings.Repeat("b", 64)}
	if res, err := second.Stage(ended, cfg, ApplyOptions{}); !isRefused(err) || res.Status == nil {
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
		pending.Config, pending.Digest = cfgB, b
		err := h.stage(t.Context(), &transaction.Record{Pending: pending},
			&machineconfig.Config{Name: "next", Digest: one.digest}, ApplyOptions{}, &Result{})
		if isRefused(err) != one.refused || err != nil && !strings.Contains(err.Error(), cfgB) {
			t.Errorf("%s of %s with %s pending: %v", one.phase, cfgB, one.digest[:1], err)
		}
	}
	// Nothing of what is being prepared can boot, and the next apply takes it back.
	preparing := &transaction.Pending{Phase: transaction.PhasePrepare}
	if err := spares(&transaction.Record{Pending: preparing}, &machineconfig.Config{Digest: c}); err != nil {
		t.Error(err)
	}
}
