// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// The scenarios share one fleet, one after the other: each begins and ends with every node at its pool's configuration.
func TestRollouts(t *testing.T) {
	ctx, f := start(t, fleet.Options{Hosts: []string{"w0", "w1"}, Kwok: []string{"k0", "k1"}})
	for _, scenario := range []struct {
		name string
		run  func(context.Context, *testing.T, *fleet.Fleet)
	}{
		{"a change reaches every node within the budgets", withinBudgets},
		{"a blocked drain says why, and a revert heals the node", blockedThenReverted},
		{"a configuration is committed without a reboot, and people boot it in their window", bootedByPeople},
		{"a newer configuration during a drain is the one that is applied", changedMidDrain},
		{"somebody else's uncordon does not lead to a reboot with pods", uncordonedMidDrain},
		{"a node that somebody had cordoned is updated and stays cordoned", preCordoned},
		{"a paused pool stands still, and says so", paused},
		{"a bad configuration stops at its first node, and its deletion heals it", badConfiguration},
		{"a lifted quarantine is tried again, and passes once its cause is gone", liftedAgain},
		{"a node tries a configuration and goes back by itself or hands it on", triesAndKeeps},
		{"a canary that fails its gate goes back, and the rollout stops", gateFailed},
		{"a node that moves from worker to infra gets what infra has", movesToInfra},
		{"an agent that is killed all the time finishes with one boot", agentKilled},
		{"an API server that goes away in every phase delays, and no more", withoutAPI},
		{"controllers that are replaced midway lose and repeat nothing", leaderChanges},
		{"controllers and agents one minor version apart finish what the others began", versionsApart},
		{"a node that is deleted midway comes back and is finished", deletedMidway},
		{"nodes make their own of one configuration by NodeValues", makeTheirOwn}, // the last: its values stay in the pool
	} {
		ok := t.Run(scenario.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the scenario takes too long"))
			defer cancel()
			scenario.run(ctx, t, f)
		})
		if !ok {
			t.FailNow() // what a scenario leaves behind is not what the next one begins with
		}
	}
}

// must fails the scenario.
func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// change applies a MachineConfig and returns what the pool was at and what it renders to now.
func change(ctx context.Context, t *testing.T, f *fleet.Fleet, document string) (before, after string) {
	t.Helper()
	before, err := f.Configuration(ctx, "worker")
	must(t, err, f.Apply(ctx, document))
	after, err = f.Render(ctx, "worker", before)
	must(t, err)
	return before, after
}

func remove(ctx context.Context, t *testing.T, f *fleet.Fleet, name string) {
	t.Helper()
	_, err := f.Kubectl(ctx, "delete", "machineconfig", name)
	must(t, err)
}

func boots(f *fleet.Fleet) map[string]int {
	out := map[string]int{}
	for _, n := range f.Nodes {
		out[n.Name] = n.Boots()
	}
	return out
}

func bootedOnce(t *testing.T, f *fleet.Fleet, before map[string]int, names ...string) {
	t.Helper()
	for _, name := range names {
		if got := f.Node(name).Boots() - before[name]; got != 1 {
			t.Errorf("%s has booted %d times", name, got)
		}
	}
}

// names are those of the hosts.
func names(f *fleet.Fleet) (out []string) {
	for _, n := range f.Nodes {
		out = append(out, n.Name)
	}
	return out
}

func withinBudgets(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	// The budget lets one pod go at a time, and a node has two or so: a drain which asks nobody breaks it.
	must(t, f.Workload(ctx, "web", 8, 7), f.WaitReady(ctx, "w0"))
	must(t, fleet.Until(ctx, "the workload runs", func(ctx context.Context) (bool, string, error) {
		text, err := f.Kubectl(ctx, "get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}")
		return text == "8", text, err
	}))
	pods, nodes, before := f.WatchReady(ctx, "web"), f.WatchNodes(ctx, "worker"), boots(f)
	moving := slices.Concat(podsOf(ctx, t, f, "w0"), podsOf(ctx, t, f, "w1"))
	if len(moving) == 0 {
		t.Fatal("no pod has to move, so there is nothing to see")
	}
	_, after := change(ctx, t, f, fleet.WorkerFile("50-change", "second"))
	must(t, f.WaitAt(ctx, after, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	bootedOnce(t, f, before, names(f)...)
	if least := pods.Least(); least < 7 {
		t.Errorf("%d pods were ready at one time, the budget wants 7", least)
	}
	if least := nodes.Least(); least != 1 {
		t.Errorf("%d nodes served at one time, the pool wants 1", least)
	}
	for _, pod := range slices.Concat(podsOf(ctx, t, f, "w0"), podsOf(ctx, t, f, "w1")) {
		if slices.Contains(moving, pod) {
			t.Errorf("%s is where it was: its node has booted with it", pod)
		}
	}
	must(t, f.Workload(ctx, "web", 6, 4)) // enough for a drain to have something to do
	for _, n := range f.Nodes {
		text, err := n.Output(ctx, "cat", "/etc/50-change.conf")
		must(t, err)
		if text != "second" {
			t.Errorf("%s has %q", n.Name, text)
		}
		_, object, err := f.Says(ctx, n.Name)
		must(t, err)
		for _, taint := range object.Spec.Taints {
			if taint.Key == api.UpdateInProgressTaint {
				t.Errorf("%s still has the taint %v", n.Name, taint)
			}
		}
	}
}

// podsOf are the names of the workload's pods on a node; a pod that has come back has another one.
func podsOf(ctx context.Context, t *testing.T, f *fleet.Fleet, node string) []string {
	t.Helper()
	text, err := f.Kubectl(ctx, "get", "pods", "-l", "app=web", "--field-selector=spec.nodeName="+node, "-o", "name")
	must(t, err)
	return strings.Fields(text)
}

// blocked begins a change that w0 can't be drained for, and waits until it says so.
func blocked(ctx context.Context, t *testing.T, f *fleet.Fleet, document string) (before, after string) {
	t.Helper()
	must(t, f.Pinned(ctx, "guarded", "w0"))
	before, after = change(ctx, t, f, document)
	must(t, f.WaitNodeSays(ctx, "w0", "cordoned for "+after, func(says api.Node, n *corev1.Node) bool {
		return says.Desired == after && says.Cordon != nil && n.Spec.Unschedulable
	}))
	must(t, waitsForBudget(ctx, f))
	return before, after
}

// waitsForBudget waits until w0 is draining, for as long as the budget of what blocked has pinned does not allow it.
func waitsForBudget(ctx context.Context, f *fleet.Fleet) error {
	return fleet.Until(ctx, "explain names the budget", func(ctx context.Context) (bool, string, error) {
		text, _, err := f.Refit(ctx, "explain", "w0")
		return strings.Contains(text, "default/guarded") && strings.Contains(text, "PodDisruptionBudget"), text, err
	})
}

func blockedThenReverted(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	booted := boots(f)
	before, _ := blocked(ctx, t, f, fleet.WorkerFile("60-blocked", "third"))
	remove(ctx, t, f, "60-blocked")
	must(t, f.WaitAt(ctx, before, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	if f.Node("w0").Boots() != booted["w0"] {
		t.Error("w0 has booted for a change that was taken back")
	}
	must(t, f.Unpin(ctx, "guarded"))
}

func changedMidDrain(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	booted := boots(f)
	blocked(ctx, t, f, fleet.WorkerFile("60-blocked", "fifth"))
	_, newest := change(ctx, t, f, fleet.WorkerFile("60-blocked", "sixth"))
	began := time.Now()
	must(t, f.WaitNodeSays(ctx, "w0", "retargeted", func(says api.Node, _ *corev1.Node) bool {
		return says.Desired == newest && says.Cordon != nil && says.Cordon.Config == newest
	}))
	t.Logf("retargeted after %s", time.Since(began).Round(time.Millisecond))
	must(t, f.Unpin(ctx, "guarded"), f.WaitAt(ctx, newest, names(f)...))
	bootedOnce(t, f, booted, names(f)...)
}

func uncordonedMidDrain(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	booted := boots(f)
	_, after := blocked(ctx, t, f, fleet.WorkerFile("60-blocked", "seventh"))
	_, err := f.Kubectl(ctx, "uncordon", "w0")
	must(t, err)
	must(t, f.WaitNodeSays(ctx, "w0", "cordoned again", func(says api.Node, n *corev1.Node) bool {
		return says.Cordon != nil && n.Spec.Unschedulable
	}), waitsForBudget(ctx, f))
	if f.Node("w0").Boots() != booted["w0"] {
		t.Fatal("w0 has booted with a pod on it")
	}
	must(t, f.Unpin(ctx, "guarded"), f.WaitAt(ctx, after, names(f)...))
	bootedOnce(t, f, booted, names(f)...)
}

// The node that is out of service anyway goes first, and goes on taking the one place that the pool has: the other one
// waits until whoever cordoned it is done.
func preCordoned(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	_, err := f.Kubectl(ctx, "cordon", "w1")
	must(t, err)
	before, after := change(ctx, t, f, fleet.WorkerFile("60-blocked", "eighth"))
	must(t, f.WaitNodeSays(ctx, "w1", "updated and cordoned", func(says api.Node, n *corev1.Node) bool {
		return says.Current == after && says.State == api.Done && n.Spec.Unschedulable && says.Cordon == nil
	}))
	must(t, fleet.Until(ctx, "explain names the cordoned node", func(ctx context.Context) (bool, string, error) {
		text, _, err := f.Refit(ctx, "explain", "w0")
		return strings.Contains(text, "WaitsForTurn") && strings.Contains(text, "w1"), text, err
	}))
	if says, _, err := f.Says(ctx, "w0"); err != nil || says.Desired != before {
		t.Errorf("w0: %+v, %v", says, err)
	}
	_, err = f.Kubectl(ctx, "uncordon", "w1")
	must(t, err, f.WaitAt(ctx, after, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
}

func paused(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	text, exit, err := f.Refit(ctx, "pause", "worker")
	must(t, err)
	if exit != 0 {
		t.Fatal(text)
	}
	booted := boots(f)
	before, err := f.Configuration(ctx, "worker")
	must(t, err)
	var after string
	// With the second one the controller has looked again at the nodes that it left alone for the first one.
	for _, text := range []string{"ninth", "ninth-and-a-half"} {
		_, after = change(ctx, t, f, fleet.WorkerFile("60-blocked", text))
		must(t, f.WaitPool(ctx, "worker", "says that it is paused", func(p *mcfgv1.MachineConfigPool) bool {
			return slices.ContainsFunc(p.Status.Conditions, func(c mcfgv1.MachineConfigPoolCondition) bool {
				return strings.Contains(c.Message, "paused; will not update to "+after)
			})
		}))
	}
	for _, name := range names(f) {
		if says, n, err := f.Says(ctx, name); err != nil || says.Desired != before || n.Spec.Unschedulable {
			t.Errorf("%s: %+v, %v", name, says, err)
		}
	}
	if text, _, err := f.Refit(ctx, "explain", "w0"); err != nil || !strings.Contains(text, "paused") {
		t.Errorf("explain: %s, %v", text, err)
	}
	text, exit, err = f.Refit(ctx, "resume", "worker")
	must(t, err)
	if exit != 0 {
		t.Fatal(text)
	}
	must(t, f.WaitAt(ctx, after, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	bootedOnce(t, f, booted, names(f)...)
}
