// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// At three in the morning, in the middle of a freeze, somebody takes B back: it goes at once, two at a time, and no node
// is turned round on its way. One that was away since before A stays where it is.
func TestTheWayBackGoesWhateverTheTimeIs(t *testing.T) {
	t.Parallel()
	two := intstr.FromInt32(2)
	f := Fleet{
		Pool: setup{target: "A", maxUnavailable: "2"}.object(), Start: t0, Update: 10 * time.Minute, Limit: 24 * time.Hour,
		Approve: -1,
		Policies: []api.RolloutPolicy{{Spec: api.RolloutPolicySpec{
			Pools: []string{api.PoolWorker}, MinReadySeconds: 3600, Approval: &api.RolloutApproval{},
			Stages:  []api.RolloutStage{{Name: "canary", Nodes: &two, SoakSeconds: 3600}},
			Windows: &api.RolloutWindows{Blackouts: []api.Window{{From: "2026-01-01", Until: "2026-12-31"}}},
		}}},
	}
	f.Pool.Status.Configuration.Name = "A"
	f.Pool.Annotations = map[string]string{api.HistoryKey: api.Encode([]string{"older"})}
	newer := func(name, current, before string) progress.Node {
		return progress.Node{Name: name, Created: t0.Add(-time.Hour), ReadySince: t0.Add(-time.Hour), Node: api.Node{
			Current: current, Desired: current, Previous: before, State: api.Done, Arrived: api.Arrival{Config: current},
		}}
	}
	f.Nodes = []progress.Node{newer("a", "B", "A"), newer("b", "B", "A"), newer("c", "C", "B"), newer("away", "older", "oldest")}
	sent, arrived := map[string]time.Time{}, map[string]time.Time{}
	for _, e := range Simulate(f) {
		switch e.What {
		case eventSent:
			sent[e.Node] = e.At
		case eventArrived:
			arrived[e.Node] = e.At
		case eventTakenBack, eventRolledBack:
			t.Errorf("%+v", e)
		}
		if len(sent)-len(arrived) > 2 {
			t.Errorf("%d at a time", len(sent)-len(arrived))
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		if arrived[name].IsZero() || arrived[name].After(t0.Add(20*time.Minute)) {
			t.Errorf("%s is back at %s", name, arrived[name])
		}
	}
	if at, is := sent["away"]; is {
		t.Errorf("away was sent at %s", at)
	}
	f.Pool.Spec.Paused = true
	if log := Simulate(f); len(log) > 0 && log[len(log)-1].What != Stuck {
		t.Errorf("paused: %+v", log)
	}
}
