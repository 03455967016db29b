// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// heldAt is a pool whose nodes all wait, as its policy rules.
func heldAt(hold, unproved *progress.Hold) *progress.Report {
	v := twelve()
	v.Pools, v.Nodes = v.Pools[2:], v.Nodes[len(v.Nodes)-3:]
	v.Follow = func(pools []*progress.Pool) { pools[0].Rules.Hold, pools[0].Rules.Unproved = hold, unproved }
	return progress.NewReport(v)
}

// Who reads a pipe sees each hold when it begins, with its end, and when it is over; and nothing in between.
func TestEveryHoldOfAPoolIsALineInAPipe(t *testing.T) {
	t.Parallel()
	closed := &progress.Hold{
		Verdict: progress.OutsideWindow, Because: "no window is open; the next one opens at 21:00:00Z", Until: noon.Add(9 * time.Hour),
	}
	soaks := &progress.Hold{Verdict: progress.Soaking, Because: "stage canary soaks", Until: noon.Add(time.Hour)}
	gate := &progress.Hold{Verdict: progress.GateClosed, Because: "gate errors is closed: 7 > 1"}
	var out strings.Builder
	f := &follower{out: &out, pools: map[string]poolMark{}, nodes: map[string]nodeMark{}, worked: map[string]bool{}}
	for i, hold := range []*progress.Hold{closed, closed, soaks, gate, nil, nil} {
		f.print(heldAt(hold, nil), noon.Add(time.Duration(i)*time.Minute))
	}
	golden(t, "held.txt", out.String()) // as docs/kubectl-refit.md has it
}

// A pool that nobody has written a configuration for says so, and does not keep the watch of all pools from its end
// unless the pool has nodes.
func TestAPoolWithoutMachineConfigsSaysSo(t *testing.T) {
	t.Parallel()
	for _, nodes := range []bool{true, false} {
		v := twelve()
		v.Pools, v.Nodes = v.Pools[2:], v.Nodes[len(v.Nodes)-3:]
		if !nodes {
			v.Nodes = nil
		}
		v.Pools[0].Spec.Configuration.Name, v.Pools[0].Spec.Paused = "", false
		v.Pools[0].Status.Conditions = []mcfgv1.MachineConfigPoolCondition{{
			Type: api.PoolRenderPending, Status: corev1.ConditionTrue, Reason: api.NoMachineConfigs, Message: "no document matches",
		}}
		r := progress.NewReport(v)
		var out strings.Builder
		f := &follower{out: &out, pools: map[string]poolMark{}, nodes: map[string]nodeMark{}, worked: map[string]bool{}}
		f.print(r, noon)
		want := map[bool]string{true: "the pool has no MachineConfigs and never had any", false: "no node matches"}[nodes]
		if got := out.String(); !strings.Contains(got, "none was rendered yet: "+want) {
			t.Errorf("%q lacks %q", got, want)
		}
		if _, ended := f.atEnd(r, noon); ended == nodes {
			t.Errorf("with nodes %t: ended is %t", nodes, ended)
		}
	}
}

func TestTheEndOfAHoldComesFirstInAPicture(t *testing.T) {
	t.Parallel()
	for ahead, want := range map[time.Duration]string{
		9 * time.Hour: "OutsideWindow until 21:00 UTC: ", 48 * time.Hour: "OutsideWindow until 2026-03-03 12:00 UTC: ", 0: "OutsideWindow: ",
	} {
		hold := &progress.Hold{Verdict: progress.OutsideWindow, Because: "no window is open", Until: noon.Add(ahead)}
		lines := picture(heldAt(hold, nil), []string{"worker"}, noon, paper{width: 120, height: 24})
		if !strings.Contains(lines[0], want) {
			t.Errorf("%q lacks %q", lines[0], want)
		}
	}
}

func TestNoPoolsAreNoRolloutThatIsOver(t *testing.T) {
	t.Parallel()
	v := twelve()
	v.Pools = nil
	if err := (&follower{}).result(progress.NewReport(v), noon); err == nil || !strings.Contains(err.Error(), "no MachineConfigPools") {
		t.Error(err)
	}
}
