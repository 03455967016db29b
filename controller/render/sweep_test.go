// SPDX-License-Identifier: Apache-2.0

package render

import (
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// called is the name of a rendered configuration of workers.
func called(digit string) string { return "rendered-worker-" + strings.Repeat(digit, 32) }

func TestWhatNodesAndPoolsNameIsNeeded(t *testing.T) {
	pool := *workers(called("1"))
	pool.Status.Configuration.Name = called("2")
	pool.Annotations = map[string]string{
		api.PinKey:     api.Encode(api.Pin{Config: called("3"), From: called("4")}),
		api.HistoryKey: api.Encode([]string{called("5"), called("6")}),
	}
	node := map[string]string{
		api.CurrentConfig: called("7"), api.DesiredConfig: called("8"), api.PreviousConfig: called("9"),
	}
	got := needed([]mcfgv1.MachineConfigPool{pool}, []map[string]string{node})
	for digit := range strings.SplitSeq("123456789", "") {
		if !got.has(called(digit)) {
			t.Errorf("%s is not needed", called(digit))
		}
	}
	if got.has(called("a")) {
		t.Error("what nobody names is needed")
	}
}

func TestWhatANodeIsStillToGoBackToIsNeeded(t *testing.T) {
	tried := api.Tried{Config: called("1"), From: called("2"), Begun: time.Now(), Ended: time.Now()}
	node := map[string]string{api.DesiredConfig: called("1"), api.TriedKey: api.Encode(tried)}
	if !needed(nil, []map[string]string{node}).has(called("2")) {
		t.Error("a trial has ended, the node waits to go back, and where to is not needed")
	}
	node[api.DesiredConfig] = called("3")
	if needed(nil, []map[string]string{node}).has(called("2")) {
		t.Error("the node has gone back, and where it came from is needed still")
	}
}

func TestAPoolThatCanNotBeReadKeepsAllThatIsItsOwn(t *testing.T) {
	for _, key := range []string{api.PinKey, api.HistoryKey} {
		pool := *workers(called("1"))
		pool.Annotations = map[string]string{key: "garbled"}
		got := needed([]mcfgv1.MachineConfigPool{pool}, nil)
		if !got.has(called("a")) || got.has("rendered-infra-"+strings.Repeat("a", 32)) {
			t.Errorf("%s: got %v", key, got)
		}
	}
}

func TestRipeIsWhatWasUnneededForTheWholeRetention(t *testing.T) {
	mark := map[string]string{api.GeneratedBy: "v1"}
	object := func(digit string, annotations map[string]string) *mcfgv1.MachineConfig {
		return &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: called(digit), Annotations: annotations}}
	}
	rendered := []*mcfgv1.MachineConfig{
		object("1", mark), object("2", mark), object("3", map[string]string{api.RestoredFrom: "node-1"}), object("4", nil),
	}
	none := needs{}
	two := needs{names: map[string]bool{called("2"): true}}
	since := map[string]time.Time{called("f"): {}}
	start := time.Unix(0, 0)
	steps := []struct {
		what   string
		needed needs
		at     time.Duration
		ripe   []string
		next   time.Duration
	}{
		{"seen for the first time", two, 0, nil, 10 * time.Minute},
		{"a moment before", two, 9 * time.Minute, nil, time.Minute},
		{"one is no longer needed", none, 10 * time.Minute, []string{called("1"), called("3")}, 10 * time.Minute},
		{"it is needed again", two, 15 * time.Minute, []string{called("1"), called("3")}, 0},
		{"and the clock starts anew", none, 20 * time.Minute, []string{called("1"), called("3")}, 10 * time.Minute},
	}
	for _, step := range steps {
		got, next := ripe(rendered, step.needed, since, start.Add(step.at), 10*time.Minute)
		var names []string
		for _, mc := range got {
			names = append(names, mc.Name)
		}
		if !slices.Equal(names, step.ripe) || next != step.next {
			t.Errorf("%s: got %v and %s", step.what, names, next)
		}
	}
	if _, ok := since[called("f")]; ok {
		t.Error("remembers what is gone")
	}
}

func TestOwnersOfOthersStayAndThoseOfAnEarlierPoolGo(t *testing.T) {
	mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{
		{Kind: "MachineConfigPool", Name: "worker", UID: "old"}, {Kind: "Other", Name: "worker", UID: "x"},
	}}}
	pool := workers("")
	pool.UID = "new"
	own(pool, mc)
	if len(mc.OwnerReferences) != 2 || mc.OwnerReferences[0].UID != "x" || !owns(pool, mc) {
		t.Errorf("got %v", mc.OwnerReferences)
	}
	if o := mc.OwnerReferences[1]; o.BlockOwnerDeletion != nil || o.Controller == nil || !*o.Controller {
		t.Errorf("got %v", o)
	}
}
