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
			tell(t, f)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(f.Pool(ctx, "worker", "1"), f.Apply(ctx, motd("00-worker", "first"))); err != nil {
		t.Fatal(err)
	}
	if _, err := f.StartController(ctx); err != nil {
		t.Fatal(err)
	}
	if err := f.StartAgents(ctx); err != nil {
		t.Fatal(err)
	}
	if err := f.WaitPool(ctx, "worker", "everybody has the first configuration", fleet.Updated(len(f.Nodes))); err != nil {
		t.Fatal(err)
	}
	return t.Context(), f
}

// tell leaves in the test's log what there is to find out why it failed.
func tell(t *testing.T, f *fleet.Fleet) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, n := range f.Nodes {
		text, err := n.Journal(ctx)
		if err != nil {
			text = err.Error()
		}
		t.Logf("journal of %s:\n%s", n.Name, last(text, 12000))
	}
	for _, c := range f.Controllers() {
		t.Logf("controllers:\n%s", last(c.Log(), 8000))
	}
	for _, args := range [][]string{{"get", "mcp,nodes,machineconfignodes,mc"}, {"get", "mcp,machineconfignodes", "-o", "yaml"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"}} {
		text, err := f.Kubectl(ctx, args...)
		t.Logf("kubectl %v: %v\n%s", args, err, last(text, 12000))
	}
}

func last(text string, n int) string { return text[max(0, len(text)-n):] }

// motd is a MachineConfig for workers whose file needs a drain and a reboot, as everything does without a policy.
func motd(name, text string) string {
	return fmt.Sprintf(`apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: %s
  labels:
    machineconfiguration.openshift.io/role: worker
spec:
  config:
    ignition:
      version: 3.2.0
    storage:
      files:
      - path: /etc/%[1]s.conf
        mode: 420
        overwrite: true
        contents:
          source: data:,%[2]s
`, name, text)
}
