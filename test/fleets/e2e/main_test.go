// SPDX-License-Identifier: Apache-2.0

// Package e2e rolls configurations out over real nodes: hosts that boot, drain and go back, on a real control plane.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/fleet"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// repository is the project's own, as seen from this folder; bin has its programs, built for this run.
const repository = "../../.."

var bin string

func TestMain(m *testing.M) {
	code := func() int {
		dir, err := os.MkdirTemp("", "noderefit-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		bin = dir
		if err := programs.All(context.Background(), dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}()
	os.Exit(code)
}

// patience is how long anything may take here: several reboots on a machine that has other work too.
const patience = 4 * time.Minute

// start makes a fleet with agents and controllers, whose pool worker has its first configuration everywhere.
func start(t *testing.T, options fleet.Options) (context.Context, *fleet.Fleet) {
	t.Helper()
	f := joined(t, options)
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("the fleet takes too long"))
	defer cancel()
	begin(ctx, t, f, "1")
	return t.Context(), f
}

// joined makes a fleet whose nodes are ready, without agents and controllers.
func joined(t *testing.T, options fleet.Options) *fleet.Fleet {
	t.Helper()
	base := lab.Need(t)
	cluster.Need(t)
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("the fleet takes too long"))
	defer cancel()
	options.Bin, options.Repository = bin, repository
	f, err := fleet.Start(ctx, base, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			f.Tell(t.Logf)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// begin makes the pool worker, starts agents and controllers, and waits for the pool's first configuration. Other
// documents may be part of it.
func begin(ctx context.Context, t *testing.T, f *fleet.Fleet, maxUnavailable string, documents ...string) {
	t.Helper()
	must(t, f.Pool(ctx, "worker", maxUnavailable))
	for _, document := range append(documents, fleet.WorkerFile("00-worker", "first")) {
		must(t, f.Apply(ctx, document))
	}
	_, err := f.StartController(ctx)
	must(t, err)
	must(t, f.StartAgents(ctx))
	must(t, f.WaitPool(ctx, "worker", "everybody has the first configuration", fleet.Updated(len(f.Nodes))))
}
