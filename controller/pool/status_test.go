// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

func poolAt(current string, change ...func(*mcfgv1.MachineConfigPool)) *mcfgv1.MachineConfigPool {
	p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker", Generation: 7, ResourceVersion: "12"}}
	p.Spec.Configuration.Name = "B"
	p.Spec.Configuration.Source = []corev1.ObjectReference{{Name: "00-worker"}}
	p.Status.Configuration.Name = current
	for _, f := range change {
		f(p)
	}
	return p
}

func with(key, value string) func(*mcfgv1.MachineConfigPool) {
	return func(p *mcfgv1.MachineConfigPool) { p.Annotations = map[string]string{key: value} }
}

func nodes(t *testing.T, texts ...string) []progress.Node {
	t.Helper()
	var out []progress.Node
	for _, text := range texts {
		n := node(t, text)
		if n.Failing() && n.Reason == "" {
			n.Reason = "it won't"
		}
		out = append(out, n)
	}
	return out
}

func TestWhatAPoolSays(t *testing.T) {
	t.Parallel()
	runTable(t, "status.txt")
}

func TestAConditionNamesTenThingsThatAreWrongAndCountsTheRest(t *testing.T) {
	p := progress.Pool{Problems: []string{"nonsense"}}
	for i := range 500 {
		p.NodeProblems = append(p.NodeProblems, progress.NodeProblem{Text: strings.Repeat(fmt.Sprint(i), 5000)})
	}
	text := wrongText(p)
	if len(text) > namedNodes*api.ReasonLimit+100 || !strings.HasPrefix(text, "nonsense; 000") ||
		!strings.HasSuffix(text, "; 491 more things are wrong") {
		t.Errorf("%d bytes: %.100s", len(text), text)
	}
}

func TestAConditionThatStaysKeepsItsTime(t *testing.T) {
	p := poolAt("A")
	state := progress.NewPool(p, nodes(t, "a A Done"))
	p.Status = status(p, state, t0)
	if diff := cmp.Diff(p.Status, status(p, state, t0.Add(time.Hour))); diff != "" {
		t.Errorf("nothing happened, and the status changed:\n%s", diff)
	}
}

func TestWhatAPoolRemembers(t *testing.T) {
	q := func(config, node string, at time.Time) api.Quarantine {
		return api.Quarantine{Config: config, Node: node, Reason: "kubelet is down", Since: at}
	}
	for _, test := range []struct {
		name  string
		pool  *mcfgv1.MachineConfigPool
		nodes []string
		want  string
	}{
		{"nothing", poolAt("A"), []string{"a A Done"}, ""},
		{
			"what a node reports", poolAt("A"), []string{"a A>B RolledBack failed=B"},
			`{"noderefit.dev/quarantined":` + quoted(api.Encode([]api.Quarantine{q("B", "a", t0)})) + `}`,
		},
		{
			"each who reports, the first last", poolAt("A", with(api.PoolQuarantineKey, api.Encode([]api.Quarantine{q("B", "z", t0)}))),
			[]string{"a A>B RolledBack failed=B"},
			`{"noderefit.dev/quarantined":` + quoted(api.Encode([]api.Quarantine{q("B", "a", t0), q("B", "z", t0)})) + `}`,
		},
		{
			"who reports no time, with this one", poolAt("A"), []string{"a A>B RolledBack came-back=B"},
			`{"noderefit.dev/quarantined":` + quoted(api.Encode([]api.Quarantine{{
				Config: "B", Node: "a", Reason: "rolled back from B to A: somebody went back", Since: t0.Add(time.Hour),
			}})) + `}`,
		},
		{
			"nothing that was lifted", poolAt("A", func(p *mcfgv1.MachineConfigPool) {
				p.Annotations = map[string]string{
					api.PoolQuarantineKey: api.Encode([]api.Quarantine{q("B", "a", t0)}),
					api.LiftedKey:         api.Encode([]api.Lifted{{Config: "B", Failures: []api.Failure{{Node: "a", Since: t0}}}}),
				}
			}), []string{"a A>B RolledBack failed=B"}, `{"noderefit.dev/quarantined":null}`,
		},
		{"the configuration that all left", poolAt("A"), []string{"a B Done"}, `{"noderefit.dev/history":"[\"A\"]"}`},
		{
			"three of them, the latest first", poolAt("A", with(api.HistoryKey, `["X","B","Y","Z"]`)), []string{"a B Done"},
			`{"noderefit.dev/history":"[\"A\",\"X\",\"Y\"]"}`,
		},
		{"once", poolAt("B", with(api.HistoryKey, `["A"]`)), []string{"a B Done"}, ""},
		{"not what can't be read", poolAt("A", with(api.HistoryKey, `oops`)), []string{"a B Done"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			// Its rollouts are not what this is about: this one is over.
			metav1.SetMetaDataAnnotation(&test.pool.ObjectMeta, api.RolloutsKey,
				api.Encode([]api.PastRollout{{Config: test.pool.Spec.Configuration.Name, Ended: t0}}))
			got := string(annotationPatch(test.pool, progress.NewPool(test.pool, nodes(t, test.nodes...)), t0.Add(time.Hour)))
			want := test.want
			if want != "" {
				want = `{"metadata":{"annotations":` + want + `,"resourceVersion":"12"}}`
			}
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func quoted(s string) string { return api.Encode(s) }
