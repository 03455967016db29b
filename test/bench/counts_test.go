// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
)

// What each step of the workload may cost, whatever the machine.
func TestApplyTouchesTheDiskAsLittleAsPromised(t *testing.T) {
	base := lab.Need(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	agent, err := node.Build(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBench(ctx, base, agent, "", newWorkload())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ours := slices.DeleteFunc(b.onRoot(), func(s step) bool { return strings.HasPrefix(s.name, "naive.") })
	for _, road := range [][]step{ours, b.alive()} {
		if err := b.reset(ctx, true); err != nil {
			t.Fatal(err)
		}
		results, err := b.run(ctx, 0, road)
		if err != nil {
			t.Fatal(err)
		}
		for name, r := range results {
			if len(judge(name, r.counts)) == 0 {
				t.Errorf("%s: nothing is promised of it", name)
			}
			for _, wrong := range missed(name, r.counts) {
				t.Errorf("%s: %s", name, wrong)
			}
		}
	}
}
