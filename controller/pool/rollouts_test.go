// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

func TestAPoolRemembersHowItsRolloutsWent(t *testing.T) {
	t.Parallel()
	var known []api.PastRollout
	for i, step := range []struct {
		what, target string
		nodes        []string
		want         string // each as "config began ended nodes updated failed", times in minutes, "!" behind a replaced one
	}{
		{"what all have is no rollout", "A", []string{"a A Done", "b A Done"}, ""},
		{"one that is wanted", "B", []string{"a A Done", "b A Done"}, "B 1 - - 0 0 0"},
		{"one that has begun", "B", []string{"a A>B Working", "b A Done"}, "B 1 2 - 0 0 0"},
		{"nothing new", "B", []string{"a B Done", "b A Done"}, "B 1 2 - 0 0 0"},
		{"one that failed on a node", "B", []string{"a B Done", "b A>B RolledBack failed=B"}, "B 1 2 - 0 0 1"},
		{"one that failed, when that was mended", "B", []string{"a B Done", "b A>B Working"}, "B 1 2 - 0 0 1"},
		{"one that ended", "B", []string{"a B Done", "b B Done"}, "B 1 2 6 2 2 1"},
		{"no end twice", "B", []string{"a B Done", "b B Done"}, "B 1 2 6 2 2 1"},
		{"no node that joins later", "B", []string{"a B Done", "b B Done", "c - -"}, "B 1 2 6 2 2 1"},
		{"the next", "C", []string{"a B>C Working", "b B Done"}, "C 9 9 - 0 0 0, B 1 2 6 2 2 1"},
		{"one that was replaced", "D", []string{"a C Done", "b B Done"}, "D 10 - - 0 0 0, C 9 9 10 2 1 0!, B 1 2 6 2 2 1"},
		{
			"one that nobody has to do anything for", "B", []string{"b B Done"},
			"D 10 - 11 1 0 0!, C 9 9 10 2 1 0!, B 1 2 6 2 2 1",
		},
		{"nothing without a configuration", "", nil, "D 10 - 11 1 0 0!, C 9 9 10 2 1 0!, B 1 2 6 2 2 1"},
	} {
		p := poolAt("", func(p *mcfgv1.MachineConfigPool) { p.Spec.Configuration.Name = step.target })
		known = rollouts(known, progress.NewPool(p, nodes(t, step.nodes...)), t0.Add(time.Duration(i)*time.Minute))
		if diff := cmp.Diff(step.want, words(known)); diff != "" {
			t.Errorf("%s: not what was wanted (-) but (+)\n%s", step.what, diff)
		}
	}
}

// words is a record in a form that a table can hold.
func words(list []api.PastRollout) string {
	minutes := func(at time.Time) string {
		if at.IsZero() {
			return "-"
		}
		return fmt.Sprint(int(at.Sub(t0).Minutes()))
	}
	text := ""
	for i, r := range list {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s %s %s %s %d %d %d", r.Config, minutes(r.Wanted), minutes(r.Began), minutes(r.Ended), r.Nodes,
			r.Updated, r.Failed)
		if r.Replaced {
			text += "!"
		}
	}
	return text
}

func TestAPoolRemembersTheLastRolloutsOnly(t *testing.T) {
	t.Parallel()
	var known []api.PastRollout
	for i := range 3 * rolloutsLimit {
		p := poolAt("", func(p *mcfgv1.MachineConfigPool) { p.Spec.Configuration.Name = fmt.Sprint(i) })
		known = rollouts(known, progress.NewPool(p, nodes(t, "a A Done")), t0)
	}
	if len(known) != rolloutsLimit || known[0].Config != fmt.Sprint(3*rolloutsLimit-1) {
		t.Errorf("it remembers %s", words(known))
	}
}

func TestARecordOfRolloutsThatCantBeReadIsLeftForAPerson(t *testing.T) {
	t.Parallel()
	p := poolAt("A", with(api.RolloutsKey, "oops"))
	if patch := annotationPatch(p, progress.NewPool(p, nodes(t, "a A Done")), t0); patch != nil {
		t.Errorf("it is replaced: %s", patch)
	}
}

func TestWhatIsRememberedOfARolloutIsWrittenOnce(t *testing.T) {
	t.Parallel()
	p := poolAt("A")
	state := func() progress.Pool { return progress.NewPool(p, nodes(t, "a A>B Working", "b A Done")) }
	patch := annotationPatch(p, state(), t0)
	want := `{"metadata":{"annotations":{"noderefit.dev/rollouts":` + quoted(api.Encode([]api.PastRollout{{
		Config: "B", Wanted: t0.UTC(), Began: t0.UTC(),
	}})) + `},"resourceVersion":"12"}}`
	if string(patch) != want {
		t.Fatalf("got  %s\nwant %s", patch, want)
	}
	p.Annotations = map[string]string{api.RolloutsKey: api.Encode([]api.PastRollout{{
		Config: "B", Wanted: t0.UTC(), Began: t0.UTC(),
	}})}
	if patch := annotationPatch(p, state(), t0.Add(time.Hour)); patch != nil {
		t.Errorf("it is written again: %s", patch)
	}
}
