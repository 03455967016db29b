// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

func TestStagingRefusesADiskBelowItsFloor(t *testing.T) {
	h := openTree(t, t.TempDir())
	cfg := &machineconfig.Config{Name: configB, Digest: digestOfB}
	res, err := h.Stage(t.Context(), cfg, StageOptions{MinFree: 1 << 60})
	if !errors.As(err, new(*files.LowDisk)) || !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), transaction.StateDir) {
		t.Errorf("%v, %+v", err, res)
	}
	if _, err := h.Stage(t.Context(), cfg, StageOptions{MinFree: 1}); err != nil {
		t.Errorf("a disk with room: %v", err)
	}
}

// presentComposer is an OS manager that has composed an OS, and still has it.
type presentComposer struct{ composer }

func (presentComposer) Present(context.Context, osimage.System, osimage.Composed) (bool, error) {
	return true, nil
}

func TestAnOSThatNobodyApprovedIsRefusedBeforeAnythingIsTouched(t *testing.T) {
	h := openTree(t, t.TempDir())
	h.composer = presentComposer{}
	cfg := &machineconfig.Config{Name: configB, Digest: digestOfB}
	kept := staged{Digest: digestOfB, Booted: "b", Composed: osimage.Composed{Checksum: "c", Base: "sha256:x"}}
	if err := h.keepStaged(kept); err != nil {
		t.Fatal(err)
	}
	for approved, refused := range map[string]bool{"": false, "sha256:x": false, "sha256:y": true, "c": true} {
		res := &Result{Plan: &plan.Plan{Desired: configB, Changes: []plan.Change{{Kind: plan.OSImage}}}}
		a := &attempt{cfg: cfg, options: ApplyOptions{Approved: approved}, result: res}
		c, err := h.compose(t.Context(), a, "b", &wanted{})
		if isRefused(err) != refused || refused == (c.Checksum == "c") {
			t.Errorf("approved %q: %+v, %v", approved, c, err)
		}
		if refused && (!strings.Contains(err.Error(), "sha256:x") || !strings.Contains(err.Error(), approved)) {
			t.Errorf("approved %q: %v", approved, err)
		}
	}
	if err := approves(cfg, "c", osimage.Composed{Checksum: "c"}); err != nil {
		t.Errorf("a commit, by its checksum: %v", err)
	}
}
