// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/noderefit/noderefit/test/lab/cluster"
)

// Few nodes show that it works; LAB=require asks for some more, NODEREFIT_SCALE_NODES for as many as it says. The
// benchmark has 1,000 of them.
const few, more = 50, 200

func size(t *testing.T) int {
	t.Helper()
	if text := os.Getenv("NODEREFIT_SCALE_NODES"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 10 {
			t.Fatalf("NODEREFIT_SCALE_NODES: %q is not a number of at least 10", text)
		}
		return n
	}
	if os.Getenv("LAB") == "require" {
		return more
	}
	return few
}

func TestARolloutOverManyNodesConverges(t *testing.T) {
	cluster.Need(t)
	if testing.Short() {
		t.Skip("takes minutes")
	}
	nodes := size(t)
	// It takes a few minutes on a machine that does nothing else; this is only so that it ends.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	program, err := Build(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f, err := Start(ctx, program)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	begin := time.Now()
	if err := f.Grow(nodes); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d nodes joined in %v", nodes, time.Since(begin).Round(time.Second))
	r, err := f.Update()
	if err != nil {
		t.Fatal(err)
	}
	per := func(n int64) float64 { return float64(n) / float64(nodes) }
	t.Logf("updated in %v; each node %.1f requests, %.1f patches of its Node, %.0f bytes and %.0f watched; "+
		"controllers %v, %d MB, %.1f requests a node", r.Wall.Round(time.Second), per(r.Traffic.Requests), per(r.Traffic.NodePatches),
		per(r.Traffic.Bytes), per(r.Traffic.WatchBytes), r.Controller.CPU, r.Controller.RSS>>20, per(r.ControllerRequests))
	if r.MostDown > nodes/10 {
		t.Errorf("%d nodes were down at a time, of %d a tenth may be", r.MostDown, nodes)
	}
	if r.Boots != nodes || r.FewBoots != 1 {
		t.Errorf("%d nodes booted %d times, one of them %d times", nodes, r.Boots, r.FewBoots)
	}
}
