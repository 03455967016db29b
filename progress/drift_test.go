// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
)

// driftedWorld is a pool whose nodes are all where they should be, and whose nodes b and c have drifted, c first.
func driftedWorld(policy string) *world {
	w := newWorld()
	for i := range w.Nodes {
		w.at(&w.Nodes[i], renderedB, renderedB, api.Done, "")
	}
	drift := func(n *corev1.Node, since time.Time, item api.DriftItem) {
		item.Kind, item.What, item.Since = "file", []string{"contents"}, since
		n.Annotations[api.DriftKey] = api.Encode(api.NewDrift(renderedB, []api.DriftItem{item}))
	}
	drift(w.b, began.Add(time.Hour), api.DriftItem{Name: "/etc/b.conf"})
	drift(w.c, began, api.DriftItem{Name: "/etc/c.conf", Repairs: 3, Again: began.Add(time.Minute)})
	w.pool.Annotations = map[string]string{api.DriftPolicyKey: policy}
	return w
}

func TestADeploymentThatSomebodyElseHasBootedIsNotToBePutIntoAMachineConfig(t *testing.T) {
	w := driftedWorld("")
	w.c.Annotations[api.DriftKey] = api.Encode(api.NewDrift(renderedB, []api.DriftItem{
		{Kind: "deployment", What: []string{"another"}, Since: began},
	}))
	a, _ := NewReport(w.View).ExplainNode("c")
	if a.Verdict != Drifted || !strings.HasPrefix(a.Do, "boot the configuration's deployment again") ||
		strings.Contains(a.Do, "MachineConfig") {
		t.Errorf("%+v", a)
	}
}

func TestDriftIsExplainedAndHoldsNothingUp(t *testing.T) {
	for policy, do := range map[string]string{
		"":                "kubectl annotate mcp worker " + api.DriftPolicyKey + "=repair",
		"updates: strict": "updates of the node wait until then",
		"repair":          "find the program that changes the path",
	} {
		r := NewReport(driftedWorld(policy).View)
		a, _ := r.ExplainNode("c")
		if a.Verdict != Drifted || !a.Since.Equal(began) || a.Blocking != nil ||
			!strings.Contains(a.Because, "file /etc/c.conf (contents)") ||
			!strings.Contains(a.Because, "was written back 3 times and changed again, the next try is at 2026-03-01T12:01") ||
			!strings.Contains(a.Do, do) {
			t.Errorf("%q: %+v", policy, a)
		}
		if a, _ := r.ExplainNode("a"); a.Verdict != UpToDate {
			t.Errorf("%q: %+v", policy, a)
		}
		p, _ := r.ExplainPool("worker")
		if p.Verdict != Drifted || !strings.Contains(p.Because, "2 of them drifted; node c: ") || !p.Since.Equal(began) {
			t.Errorf("%q: %+v", policy, p)
		}
		if done, ended := r.Ended("worker"); !done || !ended {
			t.Errorf("%q: the rollout has not ended", policy)
		}
		pool, _ := r.Pool("worker")
		if !pool.Complete() || pool.Degraded != 0 || pool.Unavailable != 0 {
			t.Errorf("%q: %+v", policy, pool.Counts)
		}
	}
}

func TestDriftPolicyThatCanNotBeReadIsThePoolsProblem(t *testing.T) {
	r := NewReport(driftedWorld("heal").View)
	if p, _ := r.ExplainPool("worker"); p.Verdict != Misconfigured || !strings.Contains(p.Because, `policy: "heal"`) ||
		!strings.Contains(p.Because, api.DriftPolicyKey) {
		t.Errorf("%+v", p)
	}
}

func TestDriftGivesWayToWhatMovesTheNode(t *testing.T) {
	w := driftedWorld("")
	w.at(w.c, renderedA, renderedB, api.Working, "")
	r := NewReport(w.View)
	if a, _ := r.ExplainNode("c"); a.Verdict == Drifted {
		t.Errorf("%+v", a)
	}
	if n, _, _ := r.Node("c"); n.Drift.Count() != 1 {
		t.Errorf("%+v", n.Drift)
	}
}

func TestADoubtAboutTheRenderingIsAWarningWhateverTheVerdict(t *testing.T) {
	w := newWorld()
	w.Pools[0].Status.Conditions = append(w.Pools[0].Status.Conditions, mcfgv1.MachineConfigPoolCondition{
		Type: api.PoolRenderWarning, Status: "True", Message: "MachineConfig/50-a: spec.config.storage.file: there is no such field",
	})
	a, _ := NewReport(w.View).ExplainPool(w.Pools[0].Name)
	if len(a.Warnings) != 1 || a.Verdict == Misconfigured || a.Verdict == RenderDegraded {
		t.Errorf("%+v", a)
	}
	w.Pools[0].Status.Conditions = nil
	if a, _ := NewReport(w.View).ExplainPool(w.Pools[0].Name); len(a.Warnings) != 0 {
		t.Errorf("%+v", a)
	}
}
