// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/fleet"
	"github.com/noderefit/noderefit/test/lab/programs"
)

const repository = "../../.."

// patience is how long anything may take here: several reboots on a machine that has other work too.
const patience = 6 * time.Minute

// start makes a fleet whose agents and controllers are pods, and whose pool worker has its first configuration.
func start(t *testing.T) *scene {
	t.Helper()
	base := lab.NeedContainers(t)
	cluster.Need(t)
	began := time.Now()
	images, err := Serve(t.Context(), repository, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(images.Close)
	if err := images.Build(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	t.Logf("images after %s", time.Since(began).Round(time.Second))
	bin := t.TempDir()
	if _, err := programs.Build(t.Context(), bin, "cmd/kubectl-refit"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("the fleet takes too long"))
	defer cancel()
	hosts := []string{"w0", "w1"}
	if !testing.Short() {
		hosts = append(hosts, "w2")
	}
	f, err := images.Start(ctx, base, "v1", fleet.Options{Bin: bin, Hosts: hosts})
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
	t.Logf("fleet after %s", time.Since(began).Round(time.Second))
	if err := errors.Join(f.Pool(ctx, "worker", "1"), f.Apply(ctx, fleet.WorkerFile("00-worker", "first"))); err != nil {
		t.Fatal(err)
	}
	if err := f.WaitPool(ctx, "worker", "everybody has the first configuration", fleet.Updated(len(f.Nodes))); err != nil {
		t.Fatal(err)
	}
	t.Logf("first configuration after %s", time.Since(began).Round(time.Second))
	return &scene{Fleet: f, images: images}
}
