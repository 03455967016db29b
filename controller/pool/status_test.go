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
	"k8s.io/apimachinery/pkg/util/intstr"

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

// texts are the conditions, each as "status reason: message".
func texts(s mcfgv1.MachineConfigPoolStatus) map[mcfgv1.MachineConfigPoolConditionType]string {
	out := map[mcfgv1.MachineConfigPoolConditionType]string{}
	for _, c := range s.Conditions {
		out[c.Type] = strings.TrimSuffix(strings.TrimSpace(fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)), " :")
	}
	return out
}

func TestWhatAPoolSays(t *testing.T) {
	const quarantine = "B failed on node a at 2026-03-01T03:00:00Z and is offered to no other node, until the pool's " +
		"MachineConfigs change or the quarantine is lifted: kubelet is down"
	type says map[mcfgv1.MachineConfigPoolConditionType]string
	for _, test := range []struct {
		name    string
		pool    *mcfgv1.MachineConfigPool
		nodes   []string
		want    says
		counts  [5]int32 // machines, updated, ready, unavailable, degraded
		current string
	}{
		{
			"updated", poolAt("A"), []string{"a B Done", "b B Done"},
			says{"Updated": "True : All nodes are updated with B", "Updating": "False", "Degraded": "False"},
			[5]int32{2, 2, 2, 0, 0}, "B",
		},
		{
			"updating", poolAt("A"), []string{"a B Done", "b A>B Working", "c A Done"},
			says{"Updated": "False", "Updating": "True : All nodes are updating to B", "Degraded": "False"},
			[5]int32{3, 1, 1, 1, 0}, "A",
		},
		{
			"one is cordoned", poolAt("A"), []string{"a B Done cordoned"},
			says{"Updated": "False", "Updating": "True : All nodes are updating to B"},
			[5]int32{1, 1, 0, 1, 0}, "A",
		},
		{
			"empty", poolAt("A"), nil,
			says{"Updated": "True : All nodes are updated with B", "Updating": "False"},
			[5]int32{}, "B",
		},
		{
			"paused", poolAt("A", func(p *mcfgv1.MachineConfigPool) { p.Spec.Paused = true }), []string{"a A Done"},
			says{"Updated": "False", "Updating": "False : Pool is paused; will not update to B"},
			[5]int32{1, 0, 0, 0, 0}, "A",
		},
		{
			"degraded", poolAt("A"), []string{"a A>B Degraded", "b A>B Unreconcilable cordoned"},
			says{
				"Updating":     "True : All nodes are updating to B",
				"NodeDegraded": `True 2 nodes are reporting degraded status on sync: Node a is reporting: "it won't", Node b is reporting: "it won't"`,
				"Degraded":     `True : Node a is reporting: "it won't", Node b is reporting: "it won't"`,
			},
			[5]int32{2, 0, 0, 1, 2}, "A",
		},
		{
			"rolled back", poolAt("A"), []string{"a A>B RolledBack failed=B", "b A Done"},
			says{
				"Updating":     "False : Configuration is quarantined; will not update to B",
				"NodeDegraded": `True 1 nodes are reporting degraded status on sync: Node a is reporting: "it won't"`,
				"Degraded":     "True : " + quarantine, "Quarantined": "True : " + quarantine,
			},
			[5]int32{2, 0, 0, 0, 1}, "A",
		},
		{
			"rolled back, and the node is gone",
			poolAt("A", with(api.PoolQuarantineKey, api.Encode([]api.Quarantine{
				{Config: "B", Node: "a", Reason: "kubelet is down", Since: t0},
			}))), []string{"b A Done"},
			says{"NodeDegraded": "True : " + quarantine, "Degraded": "True : " + quarantine, "Quarantined": "True : " + quarantine},
			[5]int32{1, 0, 0, 0, 0}, "A",
		},
		{
			"something else is quarantined",
			poolAt("A", with(api.PoolQuarantineKey, api.Encode([]api.Quarantine{{Config: "X", Node: "a", Since: t0}}))),
			[]string{"b A Done"},
			says{"Updating": "True : All nodes are updating to B", "Degraded": "False", "Quarantined": "False"},
			[5]int32{1, 0, 0, 0, 0}, "A",
		},
		{
			"render's condition counts and stays", poolAt("A", func(p *mcfgv1.MachineConfigPool) {
				p.Status.Conditions = []mcfgv1.MachineConfigPoolCondition{
					{Type: mcfgv1.MachineConfigPoolRenderDegraded, Status: corev1.ConditionTrue, Message: "99-x does not parse"},
				}
			}), []string{"b A Done"},
			says{"RenderDegraded": "True : 99-x does not parse", "Degraded": "True : 99-x does not parse", "NodeDegraded": "False"},
			[5]int32{1, 0, 0, 0, 0}, "A",
		},
		{
			"nonsense in the specification", poolAt("A", func(p *mcfgv1.MachineConfigPool) {
				p.Spec.MaxUnavailable = new(intstr.FromString("lots"))
			}), []string{"b A Done"},
			says{
				"Misconfigured": `True : spec.maxUnavailable: "lots" is neither a number of nodes nor a percentage: 1 is used`,
				"Degraded":      `True : spec.maxUnavailable: "lots" is neither a number of nodes nor a percentage: 1 is used`,
			},
			[5]int32{1, 0, 0, 0, 0}, "A",
		},
		{
			"nothing rendered yet", poolAt("", func(p *mcfgv1.MachineConfigPool) { p.Spec.Configuration.Name = "" }),
			[]string{"b - -"},
			says{"Updated": "False", "Updating": "False : Pool has no configuration yet"},
			[5]int32{1, 0, 0, 0, 0}, "",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := status(test.pool, progress.NewPool(test.pool, nodes(t, test.nodes...)), t0)
			got := texts(s)
			for kind, want := range test.want {
				if strings.TrimSuffix(got[kind], " :") != want {
					t.Errorf("%s: got  %q\nwant %q", kind, got[kind], want)
				}
			}
			counts := [5]int32{
				s.MachineCount, s.UpdatedMachineCount, s.ReadyMachineCount, s.UnavailableMachineCount, s.DegradedMachineCount,
			}
			if diff := cmp.Diff(test.counts, counts); diff != "" {
				t.Errorf("machines, updated, ready, unavailable, degraded (-want +got):\n%s", diff)
			}
			if s.Configuration.Name != test.current || s.ObservedGeneration != 7 {
				t.Errorf("configuration %q, generation %d", s.Configuration.Name, s.ObservedGeneration)
			}
		})
	}
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
