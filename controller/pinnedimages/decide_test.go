// SPDX-License-Identifier: Apache-2.0

package pinnedimages

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
)

var now = time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)

func set(name, role string, images ...string) mcfgv1.PinnedImageSet {
	s := mcfgv1.PinnedImageSet{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}}
	if role != "" {
		s.Labels = map[string]string{api.Role: role}
	}
	for _, image := range images {
		s.Spec.PinnedImages = append(s.Spec.PinnedImages, mcfgv1.PinnedImageRef{Name: mcfgv1.ImageDigestFormat(image)})
	}
	return s
}

// cluster is a pool worker with so many nodes.
func cluster(nodes int, sets ...mcfgv1.PinnedImageSet) world {
	pool := mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"worker": ""}}
	pool.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: "worker"}}
	w := world{sets: sets, pools: []mcfgv1.MachineConfigPool{pool}}
	for i := range nodes {
		w.nodes = append(w.nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("w-%02d", i), Labels: map[string]string{"worker": ""},
				Annotations: map[string]string{api.CurrentConfig: "rendered-worker-a", api.DesiredConfig: "rendered-worker-a",
					api.StateKey: string(api.Done)}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
	}
	return w
}

// obey writes what was decided, as the controller does.
func (w *world) obey(d decision) {
	for i := range w.nodes {
		n := &w.nodes[i]
		switch o, known := d.orders[n.Name]; {
		case known && o != nil:
			n.Annotations[api.PinOrderKey] = api.Encode(o)
		case known:
			delete(n.Annotations, api.PinOrderKey)
		}
	}
}

// says has the agent of a node report on its order.
func (w *world) says(node, missing int, why string) {
	w.reports(node, api.Pinned{Images: 2, Missing: missing, Error: why})
}

func (w *world) reports(node int, is api.Pinned) {
	is.Order = w.order(node).Digest()
	w.nodes[node].Annotations[api.PinnedKey] = api.Encode(is)
}

func (w *world) order(node int) *api.PinOrder {
	o, _ := api.Decode[*api.PinOrder](w.nodes[node].Annotations, api.PinOrderKey)
	return o
}

// pulls are the nodes that may pull, by their numbers.
func (w *world) pulls() (out []int) {
	for i := range w.nodes {
		if o := w.order(i); o != nil && o.Pull {
			out = append(out, i)
		}
	}
	return out
}

func (w *world) step() decision {
	d := decide(*w, now)
	w.obey(d)
	return d
}

func TestNodesOfAPoolPullAsManyAtATimeAsMay(t *testing.T) {
	t.Parallel()
	w := cluster(30, set("base", "worker", "a", "b"))
	expect := func(what string, want ...int) {
		t.Helper()
		w.step()
		if got := w.pulls(); !slices.Equal(got, want) {
			t.Errorf("%s: %v pull, want %v", what, got, want)
		}
	}
	expect("a tenth begins", 0, 1, 2)
	expect("and is waited for", 0, 1, 2)
	w.says(0, 0, "")
	w.says(1, 1, "a: not found")
	expect("one that has all, and one that fails, make room", 0, 1, 2, 3, 4)
	w.nodes[2].Status.Conditions[0].Status = corev1.ConditionFalse
	expect("so does one that is not ready", 0, 1, 2, 3, 4, 5)
	w.pools[0].Spec.Paused = true
	w.says(3, 0, "")
	expect("a paused pool has no other begin", 0, 1, 2, 3, 4, 5)
	w.pools[0].Spec.Paused = false

	policy := api.RolloutPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	policy.Spec.Pools = []string{"worker"}
	policy.Spec.Staging = &api.RolloutStaging{MinFreeMebibytes: 512, MaxConcurrent: new(intstr.FromInt(5)),
		Windows: &api.RolloutWindows{Open: []api.Window{{Cron: "0 22 * * *", DurationMinutes: 60}}}}
	w.policies = []api.RolloutPolicy{policy}
	expect("the window is closed: those that are not done end", 0, 3)
	if o := w.order(9); o.MinFreeMebibytes != 512 || !o.Since.Equal(now) {
		t.Errorf("the order is %+v", o)
	}
	w.policies[0].Spec.Staging.Windows = nil
	expect("five at once, the one that failed among them", 0, 1, 3, 4, 5, 6, 7)
}

func TestAPoolWhosePolicyIsAwayKeepsItsOrders(t *testing.T) {
	t.Parallel()
	policy := api.RolloutPolicy{ObjectMeta: metav1.ObjectMeta{Name: "careful"}}
	policy.Spec.Pools = []string{"worker"}
	policy.Spec.Staging = &api.RolloutStaging{MinFreeMebibytes: 512, MaxConcurrent: new(intstr.FromInt(1))}
	elsewhere := api.RolloutPolicy{ObjectMeta: metav1.ObjectMeta{Name: "careful"}}
	for name, test := range map[string]struct {
		note  string // the name of the policy that the pool has noted; empty: it has noted none
		there []api.RolloutPolicy
		kept  bool
	}{
		"it went with its definition":  {"careful", nil, true},
		"people deleted it":            {"", nil, false},
		"it selects another pool now":  {"careful", []api.RolloutPolicy{elsewhere}, false},
		"it is there":                  {"careful", []api.RolloutPolicy{policy}, false},
		"another policy came for it":   {"gone", []api.RolloutPolicy{policy}, false},
		"the note can't be understood": {"?", nil, true},
	} {
		w := cluster(2, set("base", "worker", "a"))
		w.policies = []api.RolloutPolicy{policy}
		w.step()
		before := api.Encode(w.order(0)) + api.Encode(w.order(1))
		w.policies = test.there
		w.pools[0].Annotations = map[string]string{}
		switch test.note {
		case "":
		case "?":
			w.pools[0].Annotations[api.RolloutPolicyKey] = "?"
		default:
			w.pools[0].Annotations[api.RolloutPolicyKey] = api.Encode(api.PolicyNote{Name: test.note})
		}
		w.sets = append(w.sets, set("more", "worker", "b"))
		s := w.step().pools["worker"]
		if is := api.Encode(w.order(0)) + api.Encode(w.order(1)); (is == before) != test.kept {
			t.Errorf("%s: nodes were told %s, and are told %s", name, before, is)
		}
		if (s.policy != nil) != test.kept || s.wrong != "" {
			t.Errorf("%s: the pool misses %+v, and says %q", name, s.policy, s.wrong)
		}
		// Nodes let go of their images by no policy.
		w.sets = nil
		if s := w.step().pools["worker"]; s.policy != nil || s.wrong != "" || len(w.order(0).Sets) > 0 {
			t.Errorf("%s: without sets the pool says %q, and a node is told %+v", name, s.wrong, w.order(0))
		}
	}
}

func TestANodeThatDoesNotPullTakesNoPlace(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(w *world){
		"no agent":   func(w *world) { delete(w.nodes[0].Annotations, api.StateKey) },
		"an update":  func(w *world) { w.nodes[0].Annotations[api.DesiredConfig] = "rendered-worker-b" },
		"a failure":  func(w *world) { w.nodes[0].Annotations[api.StateKey] = string(api.Degraded) },
		"first boot": func(w *world) { delete(w.nodes[0].Annotations, api.CurrentConfig) },
	} {
		w := cluster(2, set("base", "worker", "a"))
		stop(&w)
		w.step()
		if got := w.pulls(); !slices.Equal(got, []int{1}) {
			t.Errorf("%s before the turn: %v pull", name, got)
		}
		w = cluster(2, set("base", "worker", "a"))
		w.step()
		stop(&w)
		w.step()
		if got := w.pulls(); !slices.Equal(got, []int{0, 1}) {
			t.Errorf("%s in the turn: %v pull", name, got)
		}
	}
}

func TestANodeWithoutNewsKeepsItsPlaceForALimitedTime(t *testing.T) {
	t.Parallel()
	w := cluster(3, set("base", "worker", "a"))
	at := func(after time.Duration, want ...int) string {
		t.Helper()
		d := decide(w, now.Add(after))
		w.obey(d)
		if got := w.pulls(); !slices.Equal(got, want) {
			t.Errorf("after %s %v pull, want %v", after, got, want)
		}
		return d.pools["worker"].wrong
	}
	at(0, 0)
	if why := at(turnLimit-time.Second, 0); why != "" {
		t.Errorf("within the limit the pool says %q", why)
	}
	// One image has come.
	w.reports(0, api.Pinned{Images: 2, Missing: 1, Since: now.Add(turnLimit - time.Second)})
	at(turnLimit, 0)
	at(2*turnLimit-2*time.Second, 0)
	why := at(2*turnLimit, 0, 1)
	if !strings.Contains(why, "node w-00: no news of its images since "+
		now.Add(turnLimit-time.Second).Format(time.RFC3339)) {
		t.Errorf("the pool says %q", why)
	}
	if !w.order(0).PullSince.Equal(now) {
		t.Errorf("the turn of the first node began at %s", w.order(0).PullSince)
	}
	// A node that fails says itself why.
	w.says(0, 1, "a: not found")
	if why := at(2*turnLimit, 0, 1); !strings.Contains(why, "node w-00: a: not found") ||
		strings.Contains(why, "node w-00: no news") {
		t.Errorf("the pool says %q", why)
	}
}

func TestANodeThatLosesAnImageLaterHasAnotherTurn(t *testing.T) {
	t.Parallel()
	w := cluster(2, set("base", "worker", "a", "b"), set("more", "worker", "c"))
	w.step()
	w.says(0, 0, "")
	w.step()
	later := now.Add(3 * longestTurn)
	w.reports(0, api.Pinned{Images: 2, Missing: 1, Since: later})
	delete(w.nodes[1].Annotations, api.PinOrderKey)
	d := decide(w, later)
	w.obey(d)
	if got := w.pulls(); !slices.Equal(got, []int{0}) || d.pools["worker"].wrong != "" || !w.order(0).PullSince.Equal(later) {
		t.Errorf("%v pull, the pool says %q, the order is %+v", got, d.pools["worker"].wrong, w.order(0))
	}
}

func TestNoNewsKeepsAPlaceForEver(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		news, after time.Duration
		over        bool
	}{
		"news":                    {longestTurn - turnLimit, longestTurn - time.Second, false},
		"news for a whole day":    {longestTurn - time.Second, longestTurn, true},
		"news from a clock ahead": {longestTurn, turnLimit, true},
	} {
		w := cluster(2, set("base", "worker", "a"))
		w.step()
		w.reports(0, api.Pinned{Images: 2, Missing: 1, Since: now.Add(test.news)})
		d := decide(w, now.Add(test.after))
		if w.obey(d); (len(w.pulls()) > 1) != test.over || (d.pools["worker"].wrong != "") != test.over {
			t.Errorf("%s: %v pull, the pool says %q", name, w.pulls(), d.pools["worker"].wrong)
		}
	}
}

func TestANodeThatIsNotAtRestForLongIsNamed(t *testing.T) {
	t.Parallel()
	w := cluster(2, set("base", "worker", "a"))
	delete(w.nodes[0].Annotations, api.StateKey)
	w.step()
	w.says(1, 0, "")
	for after, want := range map[time.Duration]bool{turnLimit - time.Second: false, turnLimit: true} {
		why := decide(w, now.Add(after)).pools["worker"].wrong
		if strings.Contains(why, "node w-00: ") != want || strings.Contains(why, "node w-01") {
			t.Errorf("after %s the pool says %q", after, why)
		}
	}
}

func TestANodeOfAPoolThatCantBeReadKeepsItsImages(t *testing.T) {
	t.Parallel()
	w := cluster(1, set("base", "worker", "a"))
	w.step()
	before := w.nodes[0].Annotations[api.PinOrderKey]
	w.pools[0].Spec.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "worker", Operator: "Exist"}}}
	w.step()
	if now := w.nodes[0].Annotations[api.PinOrderKey]; now != before {
		t.Errorf("with a selector that can't be read the node is told %s", now)
	}
	// A node that people took out of its pool lets go.
	w = cluster(1, set("base", "worker", "a"))
	w.step()
	w.nodes[0].Labels = nil
	if d := w.step(); !d.left.Equal(now) {
		t.Errorf("the node that left its pool was told at %s", d.left)
	}
	if o := w.order(0); o == nil || len(o.Sets) > 0 {
		t.Errorf("the node that left its pool is told %+v", o)
	}
	// A node that was told to let go is no question to the API server, however long the node does not answer.
	if d := w.step(); !d.left.IsZero() {
		t.Errorf("the node that lets go was told at %s", d.left)
	}
}

func TestNodesWithoutImagesAreNotReadWhereThereAreNoSets(t *testing.T) {
	cost := func(nodes int) float64 {
		w := cluster(nodes)
		return testing.AllocsPerRun(10, func() { decide(w, now) })
	}
	if one, many := cost(1), cost(101); many-one >= 100 {
		t.Errorf("101 nodes take %v allocations, and 1 node takes %v", many, one)
	}
}

func TestASetThatChangesOrGoesIsToldAnew(t *testing.T) {
	t.Parallel()
	w := cluster(1, set("base", "worker", "a"), set("other", "infra", "x"), set("named", "", "n"))
	w.pools[0].Spec.PinnedImageSets = []mcfgv1.PinnedImageSetRef{{Name: "named"}}
	names := func() (out []string) {
		for _, s := range w.order(0).Sets {
			out = append(out, fmt.Sprint(s.Name, s.Generation))
		}
		return out
	}
	d := w.step()
	if got := names(); !slices.Equal(got, []string{"named1", "base1"}) || d.pools["worker"].sets != 2 {
		t.Errorf("the node is told %v, the pool has %+v", got, d.pools["worker"])
	}
	first := w.order(0).Digest()
	w.says(0, 0, "")
	if s := w.step().pools["worker"]; s.keep != 1 || s.fit != 1 || s.nodes != 1 || s.wrong != "" {
		t.Errorf("the pool says %+v", s)
	}
	// An object that is made again begins with generation 1.
	w.sets[0] = set("base", "worker", "b")
	if s := w.step().pools["worker"]; s.keep != 1 {
		t.Errorf("before it is told, the pool says %+v", s)
	}
	if s := w.step().pools["worker"]; s.keep != 0 || w.order(0).Digest() == first {
		t.Errorf("after that, the pool says %+v, and the node is told %v", s, names())
	}
	// A set that the pool names and nobody has made takes nothing back.
	before := w.nodes[0].Annotations[api.PinOrderKey]
	w.sets = w.sets[:2]
	if s := w.step().pools["worker"]; !strings.Contains(s.wrong, "PinnedImageSet/named") || w.nodes[0].Annotations[api.PinOrderKey] != before {
		t.Errorf("without the set the pool says %+v, and the node is told %v", s, names())
	}
	if name, told := lost(w); name != "named" || !told.Equal(now) {
		t.Errorf("lost is %q, told %s", name, told)
	}
	// Without sets a node lets go of its images, and then has no order.
	w.pools[0].Spec.PinnedImageSets, w.sets = nil, nil
	w.step()
	if o := w.order(0); o == nil || len(o.Sets) != 0 {
		t.Errorf("without sets the node is told %+v", o)
	}
	w.step()
	if w.order(0) == nil {
		t.Error("the order is gone before the node has let go")
	}
	w.nodes[0].Annotations[api.PinnedKey] = api.Encode(api.Pinned{Order: w.order(0).Digest()})
	w.step()
	if w.order(0) != nil {
		t.Errorf("at the end the node is told %+v", w.order(0))
	}
	w.step()
}

func TestAPoolSaysHowFarItsNodesAre(t *testing.T) {
	t.Parallel()
	w := cluster(12, set("base", "worker", "a"))
	w.step()
	for i := range 10 {
		w.says(i, 1, "a: no space")
	}
	w.says(10, 0, "")
	s := w.step().pools["worker"]
	var status mcfgv1.MachineConfigPoolStatus
	if !show(&status, s, 7, now) || show(&status, s, 7, now.Add(time.Hour)) {
		t.Error("the status is not written once")
	}
	c := status.Conditions[0]
	if c.Type != mcfgv1.MachineConfigPoolPinnedImageSetsDegraded || c.Status != corev1.ConditionTrue ||
		!strings.Contains(c.Message, "node w-00: a: no space") || !strings.Contains(c.Message, "2 more nodes") {
		t.Errorf("the condition is %+v", c)
	}
	if n := status.PoolSynchronizersStatus[0]; n.MachineCount != 12 || n.UpdatedMachineCount != 1 || n.UnavailableMachineCount != 11 ||
		n.ObservedGeneration != 7 || n.PoolSynchronizerType != mcfgv1.PinnedImageSets {
		t.Errorf("the counts are %+v", n)
	}
	if !show(&status, poolState{}, 8, now) || len(status.PoolSynchronizersStatus) > 0 || status.Conditions[0].Status != corev1.ConditionFalse {
		t.Errorf("without sets the status is %+v", status)
	}
	if show(new(mcfgv1.MachineConfigPoolStatus), poolState{}, 8, now) {
		t.Error("a pool that never had sets speaks of them")
	}
}

func TestANodeLacksImagesSinceTheFirstChangeThatItHasNotFollowed(t *testing.T) {
	t.Parallel()
	w := cluster(1, set("base", "worker", "a"))
	at := func(after time.Duration, image string, want time.Duration) {
		t.Helper()
		w.sets[0] = set("base", "worker", image)
		w.obey(decide(w, now.Add(after)))
		if got := w.order(0).Since; !got.Equal(now.Add(want)) {
			t.Errorf("after %s the node lacks images since %s, want %s", after, got.Sub(now), want)
		}
	}
	at(time.Hour, "a", time.Hour)
	at(2*time.Hour, "b", time.Hour)
	w.says(0, 1, "")
	at(3*time.Hour, "c", time.Hour)
	w.says(0, 0, "")
	at(4*time.Hour, "c", time.Hour)
	at(5*time.Hour, "d", 5*time.Hour)
	at(2*time.Hour, "d", 2*time.Hour) // another clock finds a time of the future
}

func TestSetsThatThePoolNamesComeFirstAndEachOnce(t *testing.T) {
	t.Parallel()
	w := cluster(1, set("d", "worker", "a"), set("b", "worker", "a"), set("a", "", "a"), set("c", "worker", "a"), set("e", "infra", "a"))
	for _, name := range []string{"c", "a", "c"} {
		w.pools[0].Spec.PinnedImageSets = append(w.pools[0].Spec.PinnedImageSets, mcfgv1.PinnedImageSetRef{Name: name})
	}
	sets, wrong := setsOf(&w.pools[0], w.sets)
	got := ""
	for _, s := range sets {
		got += s.Name
	}
	if got != "cabd" || wrong != "" {
		t.Errorf("the sets are %s, %q", got, wrong)
	}
}

func TestTooManyImagesAreRefusedAndTakeNothingBack(t *testing.T) {
	t.Parallel()
	w := cluster(1, set("base", "worker", "a"))
	w.step()
	before := w.nodes[0].Annotations[api.PinOrderKey]
	w.sets = append(w.sets, set("more", "worker", slices.Repeat([]string{"a"}, mostImages)...))
	if s := w.step().pools["worker"]; !strings.Contains(s.wrong, "have 2001 images, and may have 2000") ||
		w.nodes[0].Annotations[api.PinOrderKey] != before {
		t.Errorf("the pool says %+v", s)
	}
}

func TestTooManySetsAreRefusedAndTakeNothingBack(t *testing.T) {
	t.Parallel()
	w := cluster(1, set("base", "worker", "a"))
	w.step()
	before := w.nodes[0].Annotations[api.PinOrderKey]
	for i := range mostSets {
		w.sets = append(w.sets, set(fmt.Sprintf("s-%03d", i), "worker", "a"))
	}
	if s := w.step().pools["worker"]; !strings.Contains(s.wrong, "101 PinnedImageSets, and may have 100") ||
		w.nodes[0].Annotations[api.PinOrderKey] != before {
		t.Errorf("the pool says %+v", s)
	}
}
