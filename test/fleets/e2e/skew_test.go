// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab/fleet"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// release is a directory with the programs of a version.
type release struct{ version, dir string }

// released builds the programs of a version, beside the plugin of this run.
func released(ctx context.Context, t *testing.T, version string) release {
	t.Helper()
	dir := filepath.Join(bin, version) // what runs from there goes on when the scenario is over
	must(t, os.Mkdir(dir, 0o755))
	for _, name := range []string{"machine-config-controller", "machine-config-daemon", agent.RunProgram} {
		_, err := programs.Build(ctx, dir, "cmd/"+name, "-ldflags=-s -w -X main.version="+version)
		must(t, err)
	}
	must(t, os.Symlink(filepath.Join(bin, "kubectl-refit"), filepath.Join(dir, "kubectl-refit")))
	return release{version, dir}
}

// versionsApart has an upgrade in the middle of a rollout, and the pair of versions that it never has: newer controllers
// begin the rollout with older agents, and older controllers end it with newer agents.
func versionsApart(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	began := time.Now()
	older, newer := released(ctx, t, "v0.1.0"), released(ctx, t, "v0.2.0")
	t.Logf("programs after %s", time.Since(began).Round(time.Second))
	booted := boots(f)
	at, err := f.Configuration(ctx, "worker")
	must(t, err)
	rendered, err := renderedConfigs(ctx, f)
	must(t, err)

	replace(ctx, t, f, newer, older, "\"50%\"")
	if now, err := renderedConfigs(ctx, f); err != nil || now != rendered {
		t.Errorf("rendered are %s, before it was %s: %v", now, rendered, err)
	}
	assigned(ctx, t, f, map[string]string{"w0": at, "w1": at})

	_, after := blocked(ctx, t, f, fleet.WorkerFile("60-blocked", "twice"))
	rendered, err = renderedConfigs(ctx, f)
	must(t, err)
	replace(ctx, t, f, older, newer, "1")
	assigned(ctx, t, f, map[string]string{"w0": after, "w1": at})
	must(t, f.Unpin(ctx, "guarded"), f.WaitAt(ctx, after, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	bootedOnce(t, f, booted, names(f)...)
	if now, err := renderedConfigs(ctx, f); err != nil || now != rendered {
		t.Errorf("rendered are %s, before it was %s: %v", now, rendered, err)
	}
	mc, err := f.MachineConfigs.MachineconfigurationV1().MachineConfigs().Get(ctx, after, metav1.GetOptions{})
	if err != nil || mc.Annotations[api.GeneratedBy] != "v0.2.0" {
		t.Errorf("%s was made by %q, %v", after, mc.Annotations[api.GeneratedBy], err)
	}
}

// replace replaces controllers and agents by those of other directories, and waits until they are at work.
func replace(ctx context.Context, t *testing.T, f *fleet.Fleet, controllers, agents release, maxUnavailable string) {
	t.Helper()
	for _, c := range f.Controllers() {
		c.Kill()
	}
	// Nobody is left who could hold it; otherwise the others wait until it is over.
	_, err := f.Kubectl(ctx, "-n", api.Namespace, "delete", "lease", api.Controller)
	must(t, err)
	f.Use(controllers.dir)
	_, err = f.StartController(ctx)
	must(t, err)
	f.Use(agents.dir)
	for _, n := range f.Nodes {
		_, err := node.On(n.Host, filepath.Join(agents.dir, "machine-config-daemon"))
		must(t, err, f.StartAgent(ctx, n))
	}
	for _, n := range f.Nodes {
		must(t, fleet.Until(ctx, n.Name+" has the program of "+agents.version, func(ctx context.Context) (bool, string, error) {
			text, err := n.Output(ctx, api.HostProgram, "--version")
			return strings.Contains(text, agents.version), text, err
		}))
	}
	must(t, f.Pool(ctx, "worker", maxUnavailable), f.WaitPool(ctx, "worker", "observed", func(p *mcfgv1.MachineConfigPool) bool {
		return p.Status.ObservedGeneration == p.Generation
	}))
}

// assigned compares which configuration each node was told.
func assigned(ctx context.Context, t *testing.T, f *fleet.Fleet, want map[string]string) {
	t.Helper()
	for name, config := range want {
		says, _, err := f.Says(ctx, name)
		if err != nil || says.Desired != config {
			t.Errorf("%s is to have %s, not %s: %v", name, says.Desired, config, err)
		}
	}
}
