// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/ostree"
)

// restless is a host on which somebody writes to /etc each time that a deployment has been made, so many times.
type restless struct {
	*shelf

	dir         string
	made, moves int
}

func (h *restless) Materialise(context.Context, ostree.Request) (ostree.Deployment, error) {
	h.made++
	d := ostree.Deployment{ID: fmt.Sprintf("B.%d", h.made)}
	*h.shelf = append(*h.shelf, d)
	if h.made > h.moves {
		return d, nil
	}
	return d, os.WriteFile(filepath.Join(h.dir, "etc", fmt.Sprintf("by-hand-%d", h.made)), nil, 0o600)
}

func (h *restless) SetDefault(_ context.Context, id string) error {
	for i := range *h.shelf {
		(*h.shelf)[i].Default = (*h.shelf)[i].ID == id
	}
	return nil
}

// What is written to the running /etc after the new one was made of it would be missing there.
func TestDeploymentIsMadeAgainWhileTheRunningEtcMoves(t *testing.T) {
	for moves, want := range [][]string{{"A", "B.1"}, {"A", "B.2"}, {"A", "B.3"}, {"A"}} {
		root := inMemory(t)
		h := &restless{shelf: &shelf{{ID: "A", Booted: true, Default: true}}, dir: root.Path(), moves: moves}
		e := &Engine{Root: root, Deployments: h, BootID: "boot-0", Now: time.Now, Say: func(string, string) {}}
		r := &Record{}
		err := carryOut(t.Context(), e.NewSwitch(r, Switch{Booted: "A",
			Etc:    func(*files.Root) ([]files.Want, error) { return nil, nil },
			Open:   func(ostree.Deployment) (*files.Root, error) { return files.Open(root.Path()) },
			Update: Update{Revision: Revision{Config: "b", Digest: "bb"}, Document: []byte("{}"), Timeout: time.Hour}}))
		if got := h.ids(); !slices.Equal(got, want) {
			t.Errorf("moved %d times, there are %v instead of %v", moves, got, want)
		}
		if decided := len(want) > 1; !decided {
			if err == nil || !strings.Contains(err.Error(), "/etc/by-hand-3") || r.Pending != nil || r.State != Degraded {
				t.Errorf("moved %d times: %v, %+v", moves, err, r.Standing)
			}
		} else if err != nil || r.Pending == nil || r.Pending.Deployment != want[1] || !(*h.shelf)[1].Default {
			t.Errorf("moved %d times: %v, %+v", moves, err, r)
		}
	}
}
