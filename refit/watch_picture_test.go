// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

var colourless = regexp.MustCompile(`\x1b\[[0-9]*m`)

var update = flag.Bool("update", false, "write what is drawn to testdata")

const (
	before = "rendered-worker-164f2a075f165d0e8b4c621a6fffae36"
	after  = "rendered-worker-97254a31e32a144f050a02157adac818"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// twelve is a pool worker of twelve nodes: four are there, three are on their way, one of which waits in its drain, one
// has failed, one is not ready, and three wait for their turn. The pool master is done, the pool infra is paused.
func twelve() progress.View {
	v := progress.View{States: map[string]*mcfgv1.MachineConfigNode{}}
	for _, name := range []string{"infra", "master", "worker"} {
		p := mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
		p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + name: ""}}
		p.Spec.Configuration.Name = after
		p.Spec.Paused = name == "infra"
		v.Pools = append(v.Pools, p)
	}
	node := func(name, pool, current, desired string, state api.State) *corev1.Node {
		v.Nodes = append(v.Nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: map[string]string{api.NodeRole + pool: ""},
				Annotations: map[string]string{
					api.CurrentConfig: current, api.DesiredConfig: desired, api.StateKey: string(state),
				},
			},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
			}},
		})
		s := &mcfgv1.MachineConfigNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		s.Spec.ConfigVersion.Desired = desired
		v.States[name] = s
		return &v.Nodes[len(v.Nodes)-1]
	}
	step := func(name string, of mcfgv1.StateProgress, seconds int) {
		v.States[name].Status.Conditions = []metav1.Condition{{
			Type: string(of), Status: metav1.ConditionUnknown,
			LastTransitionTime: metav1.NewTime(noon.Add(-time.Duration(seconds) * time.Second)),
		}}
	}
	node("control-1", "master", after, after, api.Done)
	node("infra-1", "infra", before, before, api.Done)
	for i := range 4 {
		node(fmt.Sprintf("node-%02d", i), "worker", after, after, api.Done)
	}
	node("node-04.a-long-name.example.com", "worker", before, after, api.Working)
	step("node-04.a-long-name.example.com", mcfgv1.MachineConfigNodeUpdateRebooted, 40)
	node("node-05", "worker", before, after, api.Working)
	step("node-05", mcfgv1.MachineConfigNodeUpdateDrained, 75)
	v.States["node-05"].Annotations = map[string]string{api.DrainKey: api.Encode(api.Drain{
		Config: after, Since: noon.Add(-75 * time.Second), Left: 2, Waiting: []api.WaitingPod{{
			Namespace: "shop", Name: "router-1", Since: noon.Add(-time.Minute), Why: api.DrainWaitBudget, Budget: "router",
		}},
	})}
	node("node-06", "worker", before, after, api.Working)
	step("node-06", mcfgv1.MachineConfigNodeUpdatePrepared, 5)
	node("node-07", "worker", before, after, api.Degraded).Annotations[api.Reason] = "no space on /boot: 4 KiB\x1b[2J free"
	node("node-08", "worker", before, before, api.Done).Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "Kubelet stopped posting node status.",
		LastTransitionTime: metav1.NewTime(noon.Add(-time.Hour)),
	}}
	for i := range 3 {
		node(fmt.Sprintf("node-%02d", 9+i), "worker", before, before, api.Done)
	}
	return v
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (run with -update when that is meant):\n%s", path, diff)
	}
}

func TestARolloutIsDrawnForPapersOfEveryWidth(t *testing.T) {
	r := progress.NewReport(twelve())
	for _, p := range []paper{{width: 40, height: 24}, {width: 80, height: 24}, {width: 200, height: 24, utf8: true}} {
		lines := picture(r, r.Pools(), noon, p)
		golden(t, fmt.Sprintf("watch-%d.txt", p.width), strings.Join(lines, "\n")+"\n")
		for _, line := range lines {
			if utf8.RuneCountInString(line) >= p.width || strings.Contains(line, "\x1b") {
				t.Errorf("on %d columns: %q", p.width, line)
			}
			if !p.utf8 && len(line) != utf8.RuneCountInString(line) {
				t.Errorf("not ASCII: %q", line)
			}
		}
	}
}

func TestOnlyWhatMovesFailedOrIsNotAsItShouldBeHasALine(t *testing.T) {
	r := progress.NewReport(twelve())
	text := strings.Join(picture(r, []string{"worker"}, noon, paper{width: 80, height: 24}), "\n")
	for _, name := range []string{"node-04", "node-05", "node-06", "node-07", "node-08"} {
		if strings.Count(text, "  "+name) != 1 {
			t.Errorf("%s is not on it once:\n%s", name, text)
		}
	}
	for _, name := range []string{"node-03", "node-09", "control-1", "infra"} {
		if strings.Contains(text, name) {
			t.Errorf("%s is on it:\n%s", name, text)
		}
	}
}

// A pool's line stays, and of the nodes those that need a person.
// The pool keeps its count of all nodes: only the lines of nodes are chosen.
func TestOnlyNodesWithTheLabelsHaveLines(t *testing.T) {
	v := twelve()
	all := picture(progress.NewReport(v), []string{"worker"}, noon, paper{width: 120, height: 24})
	if len(all) < 3 {
		t.Fatalf("%q", all)
	}
	name := strings.Fields(all[len(all)-1])[0]
	for i := range v.Nodes {
		if v.Nodes[i].Name == name {
			v.Nodes[i].Labels["rack"] = "a"
		}
	}
	rack, err := labels.Parse("rack=a")
	if err != nil {
		t.Fatal(err)
	}
	lines := picture(progress.NewReport(v), []string{"worker"}, noon, paper{width: 120, height: 24, only: rack})
	if len(lines) != 2 || lines[0] != all[0] || !strings.HasPrefix(strings.TrimSpace(lines[1]), name) {
		t.Errorf("%q of %q", lines, all)
	}
}

func TestALowPaperLeavesOutWhatOnlyTakesTime(t *testing.T) {
	r := progress.NewReport(twelve())
	for height, want := range map[int][]string{
		24: {"infra", "master", "worker", "node-04", "node-05", "node-06", "node-07", "node-08"},
		8:  {"infra", "master", "worker", "node-05", "node-07", "node-08", "and 2 nodes more"},
		6:  {"infra", "master", "worker", "node-07", "and 4 nodes more"},
		3:  {"infra", "and 2 pools and 5 nodes more"},
		2:  {"and 3 pools and 5 nodes more"},
		1:  {"and 3 pools and 5 nodes more"},
	} {
		lines := picture(r, r.Pools(), noon, paper{width: 80, height: height})
		if len(lines) != len(want) {
			t.Errorf("height %d:\n%s", height, strings.Join(lines, "\n"))
			continue
		}
		for i, line := range lines {
			if !strings.HasPrefix(strings.TrimSpace(line), want[i]) {
				t.Errorf("height %d: line %d is %q, want %s", height, i, line, want[i])
			}
		}
	}
}

func TestWhatDriftedHasALineAndAPoolWithoutNodesIsNotUpdated(t *testing.T) {
	v := twelve()
	item := api.DriftItem{Kind: "file", Name: "/etc/a", What: []string{"contents"}, Since: noon.Add(-time.Hour)}
	v.Nodes[0].Annotations[api.DriftKey] = api.Encode(api.NewDrift(after, []api.DriftItem{item}))
	empty := *v.Pools[0].DeepCopy()
	empty.Name, empty.Spec.Paused = "empty", false
	empty.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "body"}}
	v.Pools = append(v.Pools, empty)
	r := progress.NewReport(v)
	lines := picture(r, []string{"empty", "master"}, noon, paper{width: 80, height: 24})
	if len(lines) != 3 || !strings.HasSuffix(lines[0], "] 0/0   0%  no nodes") ||
		!strings.HasPrefix(lines[2], "  control-1  Drifted  60m  the host has drifted from 97254a31") {
		t.Errorf("%q", lines)
	}
}

// What tells nodes apart is what they are called for.
func TestNamesThatAreTooLongStayApart(t *testing.T) {
	for _, c := range []struct {
		width int
		names []string
		want  []string
	}{
		{40, []string{"node-1", "node-2"}, []string{"node-1", "node-2"}},
		{120, []string{"a.example.com", "b.example.com"}, []string{"a.example.com", "b.example.com"}},
		{30, []string{"a.example.com", "b.example.com"}, []string{"a", "b"}},
		{30, []string{"10.10.10.121", "10.10.10.122"}, []string{"10.1~0.121", "10.1~0.122"}},
		{30, []string{"production-eu-abc12", "production-eu-xyz34"}, []string{"prod~abc12", "prod~xyz34"}},
	} {
		p := paper{width: c.width}
		all := make([]busy, len(c.names))
		for i, name := range c.names {
			all[i].name = name
		}
		room := p.names(all)
		got := make([]string, len(all))
		for i, b := range all {
			got[i] = p.middle(b.name, room)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("on %d columns %q are %q", c.width, c.names, got)
		}
	}
}

func TestColoursChangeNothingButTheColours(t *testing.T) {
	r := progress.NewReport(twelve())
	p := paper{width: 80, height: 24}
	plain := strings.Join(picture(r, r.Pools(), noon, p), "\n")
	p.colours = true
	coloured := strings.Join(picture(r, r.Pools(), noon, p), "\n")
	for _, c := range []string{red, green, yellow, bold} {
		if !strings.Contains(coloured, "\x1b["+c+"m") {
			t.Errorf("nothing has colour %s", c)
		}
		coloured = strings.ReplaceAll(coloured, "\x1b["+c+"m", "")
	}
	if coloured = strings.ReplaceAll(coloured, "\x1b[0m", ""); coloured != plain {
		t.Error(cmp.Diff(plain, coloured))
	}
}

func TestABarIsFullOnlyWhenAllIsDone(t *testing.T) {
	for _, c := range []struct {
		all, done, moving, failing int
		want                       []int
	}{
		{0, 0, 0, 0, []int{0, 0, 0, 20}},
		{3, 3, 0, 0, []int{20, 0, 0, 0}},
		{3, 1, 1, 0, []int{8, 6, 0, 6}},
		{1000, 999, 0, 0, []int{19, 0, 0, 1}},
		{1000, 998, 1, 1, []int{18, 1, 1, 0}},
		{1000, 1, 1, 1, []int{1, 1, 1, 17}},
		{1000, 0, 1000, 0, []int{0, 20, 0, 0}},
	} {
		if got := shares(20, c.all, []int{c.done, c.moving, c.failing}); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
