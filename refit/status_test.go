// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

func statusOf(t *testing.T, v progress.View, q StatusQuestion) StatusDocument {
	t.Helper()
	doc, err := makeStatus(v, nil, q, noon)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func written(t *testing.T, doc StatusDocument, l Look) string {
	t.Helper()
	var out strings.Builder
	l.Now = noon
	if err := doc.WriteText(&out, l); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// fleet is the view of twelve, with updated nodes added to the pool worker, one of which tells how long its update took.
func fleet(more int) progress.View {
	v := twelve()
	for i := range more {
		name := fmt.Sprintf("more-%02d", i)
		v.Nodes = append(v.Nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.NodeRole + "worker": "", "zone": "a"},
				Annotations: map[string]string{
					api.CurrentConfig: after, api.DesiredConfig: after, api.StateKey: string(api.Done),
				}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
		v.States[name] = rebootedIn(10*time.Minute, noon.Add(-time.Hour))
	}
	return v
}

// rebootedIn is the report of a node whose last update rebooted it and took a time.
func rebootedIn(took time.Duration, ended time.Time) *mcfgv1.MachineConfigNode {
	s := &mcfgv1.MachineConfigNode{}
	s.Annotations = map[string]string{api.UpdateKey: api.Encode(api.Update{Config: after, Since: ended.Add(-took)})}
	s.Status.ConfigVersion = &mcfgv1.MachineConfigNodeStatusMachineConfigVersion{Current: after}
	for kind, status := range map[mcfgv1.StateProgress]metav1.ConditionStatus{
		mcfgv1.MachineConfigNodeUpdated: metav1.ConditionTrue, mcfgv1.MachineConfigNodeUpdatePrepared: metav1.ConditionFalse,
		mcfgv1.MachineConfigNodeUpdateRebooted: metav1.ConditionFalse,
	} {
		s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{
			Type: string(kind), Status: status, LastTransitionTime: metav1.NewTime(ended),
		})
	}
	return s
}

func TestStatusShowsFirstWhatBlocks(t *testing.T) {
	t.Parallel()
	doc := statusOf(t, fleet(2), StatusQuestion{})
	golden(t, "status.txt", written(t, doc, Look{paper: paper{utf8: true}}))
	golden(t, "status-wide.txt", written(t, doc, Look{Wide: true, paper: paper{utf8: true}}))
	narrow := written(t, doc, Look{paper: paper{utf8: true, width: 80, height: 24}})
	golden(t, "status-80.txt", narrow)
	for line := range strings.Lines(narrow) {
		if n := columns(strings.TrimRight(line, "\n")); n >= 80 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	if strings.Contains(narrow, "\x1b") {
		t.Error("colours where there is no terminal")
	}
	colourful := written(t, doc, Look{paper: paper{utf8: true, width: 80, height: 24, colours: true}})
	if got := colourless.ReplaceAllString(colourful, ""); got != narrow {
		t.Errorf("colours move the columns:\n%s", got)
	}
	for _, want := range []string{"\x1b[31mDegraded", "\x1b[32mUpdated", "\x1b[33mDraining"} {
		if !strings.Contains(colourful, want) {
			t.Errorf("no %q in\n%s", want, colourful)
		}
	}
}

func TestALargePoolIsCountedAndItsUpdatedNodesAreLeftOut(t *testing.T) {
	t.Parallel()
	doc := statusOf(t, fleet(30), StatusQuestion{})
	text := written(t, doc, Look{})
	golden(t, "status-large.txt", text)
	if all := written(t, doc, Look{All: true}); strings.Count(all, "more-") != 30 || strings.Contains(all, "nodes of pool") {
		t.Errorf("not all nodes:\n%s", all)
	}
	some := statusOf(t, fleet(30), StatusQuestion{NotUpdated: true})
	if len(some.Nodes) != 9 || len(some.Pools) != 3 {
		t.Errorf("%d nodes and %d pools with --not-updated", len(some.Nodes), len(some.Pools))
	}
}

func TestLabelsChooseNodesAndTheirPools(t *testing.T) {
	t.Parallel()
	selected, err := labels.Parse("zone=a")
	if err != nil {
		t.Fatal(err)
	}
	doc := statusOf(t, fleet(3), StatusQuestion{Labels: selected})
	if len(doc.Nodes) != 3 || len(doc.Pools) != 1 || doc.Pools[0].Name != "worker" {
		t.Errorf("%+v", doc)
	}
	selected, _ = labels.Parse("zone=b")
	if _, err := makeStatus(fleet(3), nil, StatusQuestion{Labels: selected}, noon); err == nil ||
		err.Error() != "no node has the labels zone=b" {
		t.Error(err)
	}
}

func TestTheTimeThatIsLeftComesFromThePoolsHistory(t *testing.T) {
	t.Parallel()
	v := fleet(2)
	r := progress.NewReport(v)
	// Three nodes are on their way, and the latest has just begun: 10 minutes. Four wait, of which one is not ready.
	if l := left(r, v, nil, "worker", noon); l == nil || l.Seconds != 50*60 || l.SlowestSeconds != 50*60 {
		t.Errorf("worker: %+v", l)
	}
	for _, name := range []string{"master", "infra", "nobody"} {
		if l := left(r, v, nil, name, noon); l != nil {
			t.Errorf("%s: %+v", name, l)
		}
	}
	v = twelve()
	if l := left(progress.NewReport(v), v, nil, "worker", noon); l != nil {
		t.Errorf("without a history: %+v", l)
	}
}
