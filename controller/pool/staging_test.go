// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

func TestASimulatedRolloutStagesIsApprovedAndGoes(t *testing.T) {
	t.Parallel()
	two := intstr.FromInt32(2)
	f := Fleet{
		Pool: setup{maxUnavailable: "4"}.object(), Nodes: fleet(4), Start: t0, Update: 5 * time.Minute, Limit: 48 * time.Hour,
		Staging: 10 * time.Minute, Approve: time.Hour,
		Policies: []api.RolloutPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: api.RolloutPolicySpec{
			Pools: []string{"worker"}, Approval: &api.RolloutApproval{}, Staging: &api.RolloutStaging{MaxConcurrent: &two},
		}}},
	}
	lines := func(log []Entry) (out []string) {
		for _, e := range log {
			out = append(out, strings.TrimSpace(e.At.Sub(t0).String()+" "+e.What))
		}
		return out
	}
	want := []string{
		"0s held", "10m0s staged", "10m0s staged", "10m0s held", "20m0s staged", "20m0s staged", "20m0s held", "1h20m0s approved",
		"1h20m0s sent", "1h20m0s sent", "1h20m0s sent", "1h20m0s sent",
		"1h25m0s arrived", "1h25m0s arrived", "1h25m0s arrived", "1h25m0s arrived", "1h25m0s finished",
	}
	if diff := cmp.Diff(want, lines(Simulate(f))); diff != "" {
		t.Errorf("timeline (-want +got):\n%s", diff)
	}
	f.Approve = -1
	log := Simulate(f)
	if end := log[len(log)-1]; end.What != Stuck || !strings.Contains(end.Because, "waits for an approval") {
		t.Errorf("without an approval it ends with %+v", end)
	}
}

func TestWhoApprovedIsSaidWhileItIsInForce(t *testing.T) {
	t.Parallel()
	p := progress.Pool{Name: "worker", Target: "B"}
	if got := approvedText(p); got != "" {
		t.Errorf("without a policy: %s", got)
	}
	p.Rules.Staging = &progress.Staging{Required: true, Approval: &api.Approval{Config: "B", By: "ann", Since: t0, Why: "tested"}}
	if got, want := approvedText(p), "B (no OS) was approved by ann at 2026-03-01T03:00:00Z: tested"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	p.Rules.Hold = &progress.Hold{Verdict: progress.NeedsApproval}
	if got := approvedText(p); got != "" {
		t.Errorf("something else was approved: %s", got)
	}
}
