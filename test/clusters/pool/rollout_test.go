// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

func TestARolloutKeepsToMaxUnavailableAndTellsEachNodeOnce(t *testing.T) {
	l := newLab(t)
	for i, z := range []string{"", "z2", "z2", "z1", "z1", "z1"} {
		l.node(fmt.Sprintf("roll-%d", i), "worker", "rendered-worker-a", zone(z))
	}
	l.mustPatchNode("roll-3", `{"spec":{"taints":[{"key":"gpu","effect":"PreferNoSchedule"}]}}`)
	l.pool("worker", "rendered-worker-a", maxUnavailable("34%"))
	c := l.alone("--node-name=roll-3")
	l.updated("worker", "rendered-worker-a")
	l.eye.forget()
	begin := time.Now()

	l.target("worker", "rendered-worker-b")
	l.until("the nodes that wait are tainted", func() bool { return l.stand("roll-0").Tainted })
	l.until("the pool says that it is updating", func() bool {
		return l.condition("worker", mcfgv1.MachineConfigPoolUpdating) == "True All nodes are updating to rendered-worker-b"
	})
	l.updated("worker", "rendered-worker-b")

	told, order, most := l.eye.seen()
	for i := range 6 {
		name := fmt.Sprintf("roll-%d", i)
		if diff := cmp.Diff([]string{"rendered-worker-b"}, told[name]); diff != "" {
			t.Errorf("%s was told (-want +got):\n%s", name, diff)
		}
	}
	if most != 2 {
		t.Errorf("%d nodes were out of service at one time, and 34%% of 6 is 2", most)
	}
	// Those of a zone have the same age to the second, or are in order; the own node is last.
	if !strings.HasPrefix(order[0], "roll-4") || order[4] != "roll-0" || order[5] != "roll-3" {
		t.Errorf("the nodes went in the order %v", order)
	}
	l.until("the taint is gone everywhere", func() bool {
		for i := range 6 {
			if l.stand(fmt.Sprintf("roll-%d", i)).Tainted {
				return false
			}
		}
		return true
	})
	if taints := l.getNode("roll-3").Spec.Taints; len(taints) != 1 || taints[0].Key != "gpu" {
		t.Errorf("somebody else's taint is not as it was: %v", taints)
	}
	checkWrites(l, begin, 6)
	checkTelling(l, c)
	if history := l.getPool("worker").Annotations[api.HistoryKey]; history != `["rendered-worker-a"]` {
		t.Errorf("the history is %s", history)
	}
	l.eye.mu.Lock()
	defer l.eye.mu.Unlock()
	t.Logf("from one node's arrival to the next one's being sent: %v", l.eye.waits)
}

// checkWrites counts what the controller wrote since: a node is patched when it is tainted, when it is sent, and when the
// taint goes; those that are sent at once are tainted by the same patch.
func checkWrites(l *lab, since time.Time, nodes int) {
	l.t.Helper()
	requests, err := l.Requests()
	if err != nil {
		l.t.Fatal(err)
	}
	count := map[string]int{}
	for _, r := range requests {
		if strings.HasPrefix(r.UserAgent, api.Controller) && r.Received.After(since) && r.Verb != "watch" {
			count[fmt.Sprintf("%s %s/%s %d", r.Verb, r.Object.Resource, r.Object.Subresource, r.Response.Code)]++
		}
	}
	l.t.Logf("requests for %d nodes: %v", nodes, count)
	if got, want := count["patch nodes/ 200"], 3*nodes-2; got > want {
		l.t.Errorf("%d patches of nodes; %d are enough", got, want)
	}
	if got := count["list nodes/ 200"] + count["get nodes/ 200"]; got != 0 {
		l.t.Errorf("%d reads of nodes past the cache", got)
	}
}

// checkTelling looks where people look.
func checkTelling(l *lab, c *controller) {
	l.t.Helper()
	out, err := l.Kubectl(l.ctx, "get", "mcp")
	if err != nil {
		l.t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(out) {
		rows = append(rows, strings.Fields(line))
	}
	want := [][]string{
		{
			"NAME", "CONFIG", "UPDATED", "UPDATING", "DEGRADED", "MACHINECOUNT", "READYMACHINECOUNT", "UPDATEDMACHINECOUNT",
			"DEGRADEDMACHINECOUNT", "AGE",
		},
		{"worker", "rendered-worker-b", "True", "False", "False", "6", "6", "6", "0"},
	}
	rows[1] = rows[1][:len(rows[1])-1]
	if diff := cmp.Diff(want, rows); diff != "" {
		l.t.Errorf("kubectl get mcp (-want +got):\n%s", diff)
	}
	for series, want := range map[string]string{
		`mco_machine_count{pool="worker"}`:                    "6",
		`mco_updated_machine_count{pool="worker"}`:            "6",
		`mco_degraded_machine_count{pool="worker"}`:           "0",
		`mco_unavailable_machine_count{pool="worker"}`:        "0",
		`noderefit_pool_nodes{phase="Updated",pool="worker"}`: "6",
		`noderefit_pool_max_unavailable{pool="worker"}`:       "2",
		`noderefit_pool_quarantined{pool="worker"}`:           "0",
		`noderefit_pool_misconfigured{pool="worker"}`:         "0",
	} {
		l.measures(c, series, want)
	}
	if c.metric(l.t, `mco_state{node="roll-0",pool="worker",reason="",state="Done"}`) == "" {
		l.t.Error("there is no state of roll-0")
	}
	l.until("there are events of everything", func() bool {
		events, err := l.Client.CoreV1().Events("default").List(l.ctx, metav1.ListOptions{})
		if err != nil {
			return false
		}
		var reasons []string
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "MachineConfigPool" {
				reasons = append(reasons, e.Reason)
			}
		}
		for _, want := range []string{
			"SetDesiredConfig", "AnnotationChange", "Updating", "Completed", "DeferringOperatorNodeUpdate",
		} {
			if !slices.Contains(reasons, want) {
				return false
			}
		}
		return true
	})
}
