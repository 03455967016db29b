// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"golang.org/x/net/html"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// rendered is the name of a configuration.
func rendered(pool, digit string) string { return "rendered-" + pool + "-" + strings.Repeat(digit, 32) }

// fixture is a cluster that a test makes up.
type fixture struct {
	View

	policies []api.RolloutPolicy
}

func (f *fixture) pool(name, target string, change ...func(*mcfgv1.MachineConfigPool)) {
	p := mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
	p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + name: ""}}
	p.Spec.Configuration.Name = target
	for _, c := range change {
		c(&p)
	}
	f.Pools = append(f.Pools, p)
}

func (f *fixture) node(name, pool, current, desired string, state api.State, change ...func(*corev1.Node)) {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{api.NodeRole + pool: ""}, Annotations: map[string]string{
			api.CurrentConfig: current, api.DesiredConfig: desired, api.StateKey: string(state),
		},
	}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, c := range change {
		c(&n)
	}
	f.Nodes = append(f.Nodes, n)
}

func (f *fixture) says(node, desired string, condition mcfgv1.StateProgress, status metav1.ConditionStatus, since time.Time,
	annotations map[string]string,
) {
	if f.States == nil {
		f.States = map[string]*mcfgv1.MachineConfigNode{}
	}
	s := &mcfgv1.MachineConfigNode{ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: annotations}}
	s.Spec.ConfigVersion.Desired = desired
	s.Status.Conditions = []metav1.Condition{{
		Type: string(condition), Status: status, LastTransitionTime: metav1.NewTime(since),
	}}
	f.States[node] = s
}

// busyCluster has a rollout that is under way and waits for a budget, a configuration that failed, and a window that is
// not open.
func busyCluster() *fixture {
	f := &fixture{}
	a, b := rendered("worker", "a"), rendered("worker", "b")
	f.pool("worker", b, func(p *mcfgv1.MachineConfigPool) {
		p.Spec.MaxUnavailable = new(intstr.FromInt32(2))
		p.Annotations[api.RolloutsKey] = api.Encode([]api.PastRollout{
			{Config: b, Wanted: noon.Add(-time.Hour), Began: noon.Add(-50 * time.Minute)},
			{Config: a, Wanted: noon.Add(-48 * time.Hour), Began: noon.Add(-48 * time.Hour), Ended: noon.Add(-47 * time.Hour),
				Nodes: 4, Updated: 4},
		})
	})
	f.node("worker-1", "worker", b, b, api.Done)
	f.says("worker-1", b, mcfgv1.MachineConfigNodeUpdated, metav1.ConditionTrue, noon.Add(-30*time.Minute), nil)
	f.node("worker-2", "worker", a, b, api.Working)
	f.says("worker-2", b, mcfgv1.MachineConfigNodeUpdateDrained, metav1.ConditionUnknown, noon.Add(-12*time.Minute),
		map[string]string{api.DrainKey: api.Encode(api.Drain{
			Config: b, Since: noon.Add(-12 * time.Minute), Left: 1, Waiting: []api.WaitingPod{{
				Namespace: "shop", Name: "checkout-7d9", Since: noon.Add(-12 * time.Minute), Why: api.DrainWaitBudget,
				Budget: "checkout",
			}},
		})})
	f.node("worker-3", "worker", a, a, api.Done)
	f.says("worker-3", a, mcfgv1.MachineConfigNodeUpdated, metav1.ConditionTrue, noon.Add(-47*time.Hour), nil)
	f.node("worker-4", "worker", a, a, api.Done)
	f.says("worker-4", a, mcfgv1.MachineConfigNodeUpdated, metav1.ConditionTrue, noon.Add(-47*time.Hour), nil)

	c, d := rendered("gpu", "c"), rendered("gpu", "d")
	failed := []api.Quarantine{{Config: d, Node: "gpu-1", Reason: "health check nvidia-smi: exit 9", Since: noon.Add(-time.Hour)}}
	f.pool("gpu", d, func(p *mcfgv1.MachineConfigPool) {
		p.Annotations[api.PoolQuarantineKey] = api.Encode(failed)
		p.Annotations[api.RolloutsKey] = api.Encode([]api.PastRollout{{
			Config: d, Wanted: noon.Add(-2 * time.Hour), Began: noon.Add(-2 * time.Hour), Failed: 1,
		}})
	})
	f.node("gpu-1", "gpu", c, d, api.RolledBack, func(n *corev1.Node) {
		n.Annotations[api.QuarantinedKey] = api.Encode(failed)
	})
	f.says("gpu-1", d, mcfgv1.MachineConfigNodeNodeDegraded, metav1.ConditionTrue, noon.Add(-time.Hour), nil)
	f.node("gpu-2", "gpu", c, c, api.Done)
	f.says("gpu-2", c, mcfgv1.MachineConfigNodeUpdated, metav1.ConditionTrue, noon.Add(-90*time.Hour), nil)

	f.pool("edge", rendered("edge", "f"), func(p *mcfgv1.MachineConfigPool) {
		p.Annotations[api.RolloutsKey] = api.Encode([]api.PastRollout{{
			Config: rendered("edge", "f"), Wanted: noon.Add(-time.Hour),
		}})
	})
	f.node("edge-1", "edge", rendered("edge", "e"), rendered("edge", "e"), api.Done)
	f.says("edge-1", rendered("edge", "e"), mcfgv1.MachineConfigNodeUpdated, metav1.ConditionTrue, noon.Add(-9*time.Hour), nil)
	night := api.RolloutPolicy{ObjectMeta: metav1.ObjectMeta{Name: "nights"}}
	night.Spec.Pools = []string{"edge"}
	night.Spec.Windows = &api.RolloutWindows{Open: []api.Window{{Cron: "0 22 * * *", DurationMinutes: 360}}}
	f.policies = append(f.policies, night)

	f.pool("master", rendered("master", "9"))
	f.node("master-1", "master", rendered("master", "9"), rendered("master", "9"), api.Done)
	f.says("master-1", rendered("master", "9"), mcfgv1.MachineConfigNodeUpdated, metav1.ConditionTrue, noon.Add(-99*time.Hour), nil)
	f.node("lost-1", "nobodys", "", "", "")
	return f
}

func (f *fixture) handler() http.Handler {
	return New(Options{Now: func() time.Time { return noon }, Version: "v1", Read: func(context.Context) (View, error) {
		book := rollout.NewBook(f.policies, rollout.Unasked)
		f.Follow = func(pools []*progress.Pool) { book.Follow(pools, noon, "") }
		return f.View, nil
	}})
}

// newSheet is what the first page is made from.
func newSheet(v View) *sheet {
	return &sheet{newState(v, noon), question{path: "/page/", zone: time.UTC, page: 1}, "/page/"}
}

// get is a page, which has to be one.
func get(t *testing.T, h http.Handler, path string) *element {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
	if w.Code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, w.Code, w.Body)
	}
	return parse(t, w)
}

func parse(t *testing.T, w *httptest.ResponseRecorder) *element {
	t.Helper()
	if kind := w.Header().Get("Content-Type"); kind != "text/html; charset=utf-8" {
		t.Fatalf("the answer is %s:\n%s", kind, w.Body)
	}
	root, err := html.Parse(bytes.NewReader(w.Body.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	return &element{root}
}

// refreshes says after how many seconds a browser loads a page again.
func refreshes(page *element) []string {
	var out []string
	for _, m := range page.all(func(e *element) bool { return e.attribute("http-equiv") == "refresh" }) {
		out = append(out, m.attribute("content"))
	}
	return out
}

// element of a page that a browser has read.
type element struct{ *html.Node }

func (e *element) all(match func(*element) bool) []*element {
	var out []*element
	for n := range e.Descendants() {
		if x := (&element{n}); n.Type == html.ElementNode && match(x) {
			out = append(out, x)
		}
	}
	return out
}

func (e *element) attribute(name string) string {
	for _, a := range e.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func called(tag string) func(*element) bool { return func(e *element) bool { return e.Data == tag } }

// text is what stands there, with single blanks.
func (e *element) text() string {
	var words []string
	for n := range e.Descendants() {
		if n.Type == html.TextNode {
			words = append(words, strings.Fields(n.Data)...)
		}
	}
	return strings.Join(words, " ")
}

func section(t *testing.T, page *element, pool string) *element {
	t.Helper()
	found := page.all(func(e *element) bool { return e.attribute("aria-labelledby") == "pool-"+pool })
	if len(found) != 1 {
		t.Fatalf("%d sections are about pool %s", len(found), pool)
	}
	return found[0]
}

func rows(e *element, table string) []string {
	var out []string
	for _, found := range e.all(func(x *element) bool { return x.Data == "table" && strings.HasPrefix(x.attribute("class"), table) }) {
		for _, row := range found.all(called("tr"))[1:] {
			out = append(out, row.text())
		}
	}
	return out
}

// listed are the nodes that a page lists, in its order.
func listed(e *element) []string {
	var out []string
	for _, head := range e.all(func(x *element) bool { return x.Data == "th" && x.attribute("scope") == "row" }) {
		for _, a := range head.all(called("a")) {
			if strings.Contains(a.attribute("href"), "/nodes/") {
				out = append(out, a.text())
			}
		}
	}
	return out
}

func contains(t *testing.T, where, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%s: no %q in\n%s", where, w, text)
		}
	}
}

func TestTheFirstPageSaysWhereEverythingStands(t *testing.T) {
	t.Parallel()
	page := get(t, busyCluster().handler(), "/page/")
	var order []string
	for _, h := range page.all(called("h2")) {
		order = append(order, strings.Fields(h.text())[0])
	}
	if diff := cmp.Diff([]string{"gpu", "worker", "edge", "master", "Nodes"}, order); diff != "" {
		t.Errorf("the order is not (-) but (+)\n%s", diff)
	}
	contains(t, "the head", page.all(called("header"))[0].text(), "2 of 8 nodes updated",
		"2 pools need a person, 1 pool waits, 1 pool is up to date", "As of 2026-11-22 12:00 UTC")

	worker := section(t, page, "worker")
	contains(t, "worker", worker.text(), "! Draining", "1 of 4 updated to "+rendered("worker", "b"),
		"1 Updated 1 Updating 2 Waiting", "Blocked by PodDisruptionBudget shop/checkout",
		"pod shop/checkout-7d9 is held by PodDisruptionBudget checkout, which allows 0 disruptions now",
		"What to do give the pod's workload another ready replica", "Since 2026-11-22 11:48 UTC (12m)",
		"Out of service at a time 2 nodes", "2 more wait for the same reason as the pool. 1 up to date. All nodes of worker")
	nodes := rows(worker, "nodes")
	if diff := cmp.Diff([]string{"As said above.", "worker-2 ! Draining 12m aaaaaaaa → bbbbbbbb"}, nodes); diff != "" {
		t.Errorf("the nodes of worker are not (-) but (+)\n%s", diff)
	}
	if n := strings.Count(worker.text(), "PodDisruptionBudget shop/checkout"); n != 1 {
		t.Errorf("what worker waits for is said %d times", n)
	}
	if diff := cmp.Diff([]string{
		"bbbbbbbb 2026-11-22 11:00 UTC 10m 50m ↻ under way, 1 of 4 updated",
		"aaaaaaaa 2026-11-20 12:00 UTC – 60m ✓ done, 4 nodes",
	}, rows(worker, "rollouts")); diff != "" {
		t.Errorf("the rollouts of worker are not (-) but (+)\n%s", diff)
	}

	gpu := section(t, page, "gpu")
	contains(t, "gpu", gpu.text(), "! Quarantined", "kubectl refit quarantine lift gpu",
		rendered("gpu", "d")+" failed on node gpu-1 and is offered to no other node: health check nvidia-smi: exit 9",
		"As said above. gpu-1 ! RolledBack 60m", "! 0 of 2 updated, failed on 1")
	if text := gpu.text(); strings.Count(text, "nvidia-smi") != 1 || strings.Contains(text, "Blocked by") {
		t.Errorf("what failed in gpu is said more than once, or as if it was waited for:\n%s", text)
	}
	edge := section(t, page, "edge")
	contains(t, "edge", edge.text(), "○ OutsideWindow", "RolloutPolicy nights", "Next window 2026-11-22 22:00 UTC (in 10h)",
		"○ waits, no node was sent yet")
	contains(t, "master", section(t, page, "master").text(), "✓ UpToDate", "1 of 1 updated")
	if text := edge.text(); strings.Contains(text, "Quarantined") {
		t.Errorf("what failed in another pool is shown with edge:\n%s", text)
	}
	if large := section(t, get(t, largeCluster(3).handler(), "/page/pools/large"), "large"); strings.Contains(
		strings.Join(rows(large, "nodes"), "\n"), "Blocked by") {
		t.Errorf("a node waits for itself:\n%s", large.text())
	}
	contains(t, "all", page.text(), "Nodes of no pool", "lost-1 ○ Unmanaged")
}

func TestWhatPeopleWriteCantBecomeMarkup(t *testing.T) {
	t.Parallel()
	const evil = `<script>alert(1)</script>"><img src=x onerror=alert(2)>' onload='javascript:alert(3)`
	f := &fixture{}
	f.pool("a", evil, func(p *mcfgv1.MachineConfigPool) {
		p.Annotations[api.PoolQuarantineKey] = api.Encode([]api.Quarantine{{Config: evil, Node: evil, Reason: evil, Since: noon}})
		p.Annotations[api.RolloutsKey] = api.Encode([]api.PastRollout{{Config: evil, Wanted: noon}, {Config: evil + "2", Ended: noon}})
	})
	f.pool(evil, "x")
	f.node(evil, "a", evil, evil+"2", api.Degraded, func(n *corev1.Node) { n.Annotations[api.Reason] = evil })
	f.Warnings = []string{evil}
	for _, path := range []string{"/page/", "/page/pools/a", "/page/pools/a?page=" + "%22%3E%3Cscript%3E&x=%22%3E%3Cscript%3E"} {
		page := get(t, f.handler(), path)
		contains(t, path, page.text(), "<script>alert(1)</script>")
		for _, e := range page.all(func(*element) bool { return true }) {
			if e.Data == "script" || e.Data == "img" {
				t.Errorf("%s: there is a <%s>", path, e.Data)
			}
			for _, a := range e.Attr {
				if strings.HasPrefix(a.Key, "on") {
					t.Errorf("%s: <%s> has %s=%q", path, e.Data, a.Key, a.Val)
				}
			}
		}
	}
}

func TestAPageHasNothingThatItsPolicyForbids(t *testing.T) {
	t.Parallel()
	h := busyCluster().handler()
	page := get(t, h, "/page/")
	for _, e := range page.all(func(*element) bool { return true }) {
		for _, a := range e.Attr {
			leads := a.Key == "href" || a.Key == "src" || a.Key == "action"
			toDocs := e.Data == "a" && strings.HasPrefix(a.Val, docs) && e.attribute("rel") == "noreferrer"
			if leads && !strings.HasPrefix(a.Val, "/page/") && !toDocs {
				t.Errorf("<%s> leads to %s", e.Data, a.Val)
			}
			if name, _, _ := strings.Cut(strings.TrimPrefix(a.Val, docs), "#"); toDocs {
				if _, err := os.Stat("../docs/" + name); err != nil {
					t.Errorf("the documentation has no such page: %v", err)
				}
			}
			if a.Key == "style" {
				t.Errorf("<%s> has a style of its own", e.Data)
			}
		}
		if e.Data == "style" || e.Data == "script" {
			t.Errorf("there is a <%s>", e.Data)
		}
	}
	sheet := page.all(called("link"))[0].attribute("href")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, sheet, http.NoBody))
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/css; charset=utf-8" ||
		strings.Contains(w.Body.String(), "url(") || strings.Contains(w.Body.String(), "@import") {
		t.Errorf("the style sheet: %d %v\n%s", w.Code, w.Header(), w.Body)
	}
}

func TestPicturesSayWhatStandsBesideThem(t *testing.T) {
	t.Parallel()
	p := progress.Pool{Target: "b"}
	add := func(n int, current, desired string, state api.State) {
		for range n {
			p.Nodes = append(p.Nodes, progress.Node{Node: api.Node{Current: current, Desired: desired, State: state}})
		}
	}
	add(2000, "b", "b", api.Done)
	add(2996, "a", "a", api.Done)
	add(3, "a", "b", api.Working)
	add(1, "a", "b", api.RolledBack)
	got := phases(p)
	if got.Text != "2000 Updated, 3 Updating, 1 RolledBack, 2996 Waiting" {
		t.Errorf("it says %s", got.Text)
	}
	at := 0
	for _, part := range got.Parts {
		if part.X != at || part.Width < narrow {
			t.Errorf("%s is drawn from %d, %d wide: it should be from %d, at least %d", part.Phase, part.X, part.Width, at, narrow)
		}
		at += part.Width
	}
	if at != width {
		t.Errorf("it is %d wide, not %d", at, width)
	}
}

func TestRolloutsAreDrawnAgainstTheLongest(t *testing.T) {
	t.Parallel()
	f := busyCluster()
	s := newSheet(f.View)
	p, _ := s.report.Pool("worker")
	hour := func(h float64) time.Time { return noon.Add(-time.Duration(h * float64(time.Hour))) }
	for _, test := range []struct {
		rollout api.PastRollout
		want    string
	}{
		{api.PastRollout{Config: p.Target, Wanted: hour(1), Began: hour(0.5)}, "busy 500+500 [500]: under way, 1 of 4 updated"},
		{api.PastRollout{Config: p.Target, Wanted: hour(1), Began: hour(1), Failed: 2}, "trouble 0+1000 [500]: 1 of 4 updated, failed on 2"},
		{api.PastRollout{Config: p.Target, Wanted: hour(1)}, "waits 1000+0 [500]: waits, no node was sent yet"},
		{api.PastRollout{Config: "x", Wanted: hour(5), Began: hour(5), Ended: hour(4), Nodes: 3, Updated: 3}, "good 0+1000 []: done, 3 nodes"},
		{
			api.PastRollout{Config: "x", Wanted: hour(5), Began: hour(5), Ended: hour(4), Nodes: 3, Updated: 3, Failed: 1},
			"good 0+1000 []: done, 3 nodes, failed on 1",
		},
		{
			api.PastRollout{Config: "x", Wanted: hour(5), Began: hour(4.5), Ended: hour(4), Nodes: 3, Updated: 1, Replaced: true},
			"waits 500+500 []: replaced, 1 of 3 updated",
		},
		{
			api.PastRollout{Config: "x", Wanted: hour(5), Ended: hour(4), Nodes: 3, Failed: 1, Replaced: true},
			"trouble 1000+0 []: replaced, 0 of 3 updated, failed on 1",
		},
		{api.PastRollout{Config: "x", Wanted: hour(5)}, "waits 1000+0 []: replaced"},
	} {
		r := s.rollouts([]api.PastRollout{test.rollout}, p)[0]
		if got := fmt.Sprintf("%s %d+%d %v: %s", r.Mood, r.Before, r.Length, r.Arrivals, r.Outcome); got != test.want {
			t.Errorf("%+v is\n%s, not\n%s", test.rollout, got, test.want)
		}
	}
}

func TestALongRolloutIsDrawnToo(t *testing.T) {
	t.Parallel()
	s := newSheet(busyCluster().View)
	p, _ := s.report.Pool("worker")
	day := func(d int) time.Time { return noon.AddDate(0, 0, -d) }
	parts := s.rollouts([]api.PastRollout{
		{Config: "x", Wanted: day(400), Began: day(200), Ended: noon}, {Config: "y", Wanted: day(100), Began: day(100), Ended: noon},
	}, p)
	if a, b := parts[0], parts[1]; a.Before != 500 || a.Length != 500 || b.Before != 0 || b.Length != 250 {
		t.Errorf("400 days are drawn %d+%d, 100 of them %d+%d", a.Before, a.Length, b.Before, b.Length)
	}
}

func TestWhatAPolicyHoldsIsSaidBesideWhatANodeDoes(t *testing.T) {
	t.Parallel()
	f := busyCluster()
	f.Follow = func(pools []*progress.Pool) {
		for _, p := range pools {
			if p.Name != "worker" {
				continue
			}
			p.Rules = progress.Rules{
				Policy: "careful", Hold: &progress.Hold{
					Verdict: progress.OutsideWindow, Because: "no window is open",
				},
				Closed: map[string]int{"smoke": 1, "passed": 0},
				Staging: &progress.Staging{Required: true, Of: 3, Staged: []string{"w-1", "w-2"},
					Unable: []progress.NodeProblem{{Node: "w-3"}}, Approval: &api.Approval{By: "jane"}},
			}
		}
	}
	s := newSheet(f.View)
	p, _ := s.report.Pool("worker")
	facts := map[string]string{}
	for _, one := range s.facts(p) {
		facts[one.Name] = one.Text
	}
	for name, want := range map[string]string{
		"No node begins": "OutsideWindow: no window is open", "Closed gates": "smoke",
		"Staged ahead": "on 2 of 3 nodes; 1 could not", "Approved": "by jane",
	} {
		if facts[name] != want {
			t.Errorf("%s: %q, want %q", name, facts[name], want)
		}
	}
}

func TestAGateThatRefusedIsNamedWhereANodeWouldBe(t *testing.T) {
	t.Parallel()
	f := busyCluster()
	config := rendered("worker", "f")
	f.pool("gated", config, func(p *mcfgv1.MachineConfigPool) {
		p.Annotations = map[string]string{api.PoolQuarantineKey: api.Encode([]api.Quarantine{
			{Config: config, Gate: "smoke", Reason: "was closed", Since: noon},
		})}
	})
	s := newSheet(f.View)
	if got := s.pool("gated", few, 0).Quarantined; len(got) != 1 || got[0].Where != "gate smoke" {
		t.Errorf("it failed on %+v", got)
	}
}

func TestTheNodesOfALargePoolArePagedThrough(t *testing.T) {
	t.Parallel()
	f := largeCluster(many*2 + 50)
	h := f.handler()
	first := get(t, h, "/page/")
	large := section(t, first, "large")
	if n := len(listed(large)); n != few {
		t.Errorf("the first page lists %d nodes", n)
	}
	contains(t, "large", large.text(), "5 more", "270 more wait for the same reason as the pool. 150 up to date.")
	seen := map[string]bool{}
	var pages []int
	for path := "/page/pools/large"; path != ""; {
		page := get(t, h, path)
		names := listed(page)
		pages = append(pages, len(names))
		for _, name := range names {
			seen[name] = true
		}
		path = ""
		for _, a := range page.all(called("a")) {
			if a.attribute("rel") == "next" {
				path = a.attribute("href")
			}
		}
	}
	if diff := cmp.Diff([]int{many, many, 50}, pages); diff != "" || len(seen) != len(f.Nodes) {
		t.Errorf("%d of %d nodes are on pages of %v", len(seen), len(f.Nodes), pages)
	}
	for _, far := range []string{"999", "9223372036854775807", "-9223372036854775808", "92233720368547758"} {
		w := get(t, h, "/page/pools/large?page="+far)
		contains(t, "far away", w.text(), "Pool large")
	}
}

func TestAPageRefreshesItselfUnlessItIsToldNotTo(t *testing.T) {
	t.Parallel()
	h := busyCluster().handler()
	toggle := func(page *element) string {
		for _, a := range page.all(called("header"))[0].all(called("a")) {
			if strings.Contains(a.text(), "Stop") || strings.Contains(a.text(), "Refresh") {
				return a.attribute("href")
			}
		}
		return ""
	}
	page := get(t, h, "/page/pools/worker?page=2")
	if got := refreshes(page); !slices.Equal(got, []string{"15"}) {
		t.Errorf("it refreshes %v", got)
	}
	still := get(t, h, toggle(page))
	if got := refreshes(still); got != nil {
		t.Errorf("told not to, it refreshes %v", got)
	}
	if back := toggle(still); back != "/page/pools/worker?page=2" {
		t.Errorf("from there it goes to %s", back)
	}
}

func TestManyWhoLookAtATimeAreOneLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		h := New(Options{Now: time.Now, Read: func(context.Context) (View, error) {
			reads++
			return busyCluster().View, nil
		}})
		for range 20 {
			get(t, h, "/page/")
			get(t, h, "/page/pools/gpu")
		}
		if reads != 1 {
			t.Errorf("the cluster was read %d times", reads)
		}
		<-time.After(2 * fresh)
		get(t, h, "/page/")
		if reads != 2 {
			t.Errorf("a moment later it was read %d times", reads)
		}
	})
}

func TestWhatIsNotKnownIsSaid(t *testing.T) {
	t.Parallel()
	f := busyCluster()
	f.States, f.Warnings = nil, []string{"The steps of nodes: not known: forbidden"}
	page := get(t, f.handler(), "/page/")
	contains(t, "the page", page.text(), "! The steps of nodes: not known: forbidden", "worker-2")

	broken := New(Options{Now: time.Now, Read: func(context.Context) (View, error) { return View{}, errors.New("no nodes") }})
	for path, want := range map[string]string{
		"/page/":             "503 The cluster could not be read no nodes This page tries again every 15 s. All pools",
		"/page/pools/worker": "503 The cluster could not be read no nodes This page tries again every 15 s. All pools",
		"/page/nodes/worker": "503 The cluster could not be read no nodes This page tries again every 15 s. All pools",
		"/page/elsewhere":    "404 Not found There is no page /page/elsewhere. This page tries again every 15 s. All pools",
	} {
		w := httptest.NewRecorder()
		broken.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		body := parse(t, w)
		if got := fmt.Sprintf("%d %s", w.Code, body.all(called("body"))[0].text()); got != want {
			t.Errorf("%s: %s, not %s", path, got, want)
		}
		if got := refreshes(body); !slices.Equal(got, []string{"15"}) {
			t.Errorf("%s: a display on a wall stays on this page: it refreshes %v", path, got)
		}
	}
	w := httptest.NewRecorder()
	f.handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/page/pools/none", http.NoBody))
	if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "There is no MachineConfigPool none") {
		t.Errorf("a pool that is not there: %d %s", w.Code, w.Body)
	}
}

func TestAnEmptyClusterHasAPage(t *testing.T) {
	t.Parallel()
	contains(t, "the page", get(t, (&fixture{}).handler(), "/page/").text(), "No MachineConfigPool selects nodes yet.",
		"What to do next", "kind: MachineConfigPool", "kubectl label node NODE node-role.kubernetes.io/worker=")
}

func TestOnlyThoseWhoAreLetThroughSeeAPage(t *testing.T) {
	t.Parallel()
	var asked []string
	line := &Line{}
	guarded, err := Guard(busyCluster().handler(), line, func(h http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
			switch r.Header.Get("Authorization") {
			case "Bearer good":
				h.ServeHTTP(w, r)
			case "Bearer weak":
				http.Error(w, "Forbidden", http.StatusForbidden)
			case "Bearer ended":
				http.Error(w, "Authentication failed", http.StatusInternalServerError)
			default:
				http.Error(w, http.StatusText(http.StatusUnauthorized), http.StatusUnauthorized)
			}
		}), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		method, path string
		with         func(*http.Request)
		code         int
		asked        string
	}{
		{"GET", "/page/", func(*http.Request) {}, 401, ""},
		{"GET", "/page/", func(r *http.Request) { r.SetBasicAuth("anybody", "good") }, 200, "GET /page/ Bearer good"},
		{"HEAD", "/page/", func(r *http.Request) { r.SetBasicAuth("", "good") }, 200, "HEAD /page/ Bearer good"},
		{"GET", "/page/", func(r *http.Request) { r.Header.Set("Authorization", "Bearer good") }, 200, "GET /page/ Bearer good"},
		{"GET", "/page/", func(r *http.Request) { r.SetBasicAuth("good", "wrong") }, 401, "GET /page/ Bearer wrong"},
		{"GET", "/page/", func(r *http.Request) { r.SetBasicAuth("x", "weak") }, 403, "GET /page/ Bearer weak"},
		{"GET", "/page/", func(r *http.Request) { r.SetBasicAuth("x", "ended") }, 401, "GET /page/ Bearer ended"},
		{"GET", stylePath, func(*http.Request) {}, 401, ""},
		{"GET", "/elsewhere", func(*http.Request) {}, 401, ""},
		{"GET", "/", func(*http.Request) {}, 302, ""},
		{"GET", "/page", func(*http.Request) {}, 302, ""},
		{"POST", "/page/", func(r *http.Request) { r.SetBasicAuth("x", "good") }, 405, ""},
		{"DELETE", "/page/pools/worker", func(r *http.Request) { r.SetBasicAuth("x", "good") }, 405, ""},
	} {
		asked = nil
		r := httptest.NewRequestWithContext(t.Context(), test.method, test.path, http.NoBody)
		test.with(r)
		w := httptest.NewRecorder()
		guarded.ServeHTTP(w, r)
		what := test.method + " " + test.path
		if got := strings.Join(asked, ", "); w.Code != test.code || got != test.asked {
			t.Errorf("%s: %d after asking %q, not %d after %q", what, w.Code, got, test.code, test.asked)
		}
		if challenged := w.Header().Get("WWW-Authenticate") != ""; challenged && w.Code == http.StatusOK || !challenged && w.Code == http.StatusUnauthorized {
			t.Errorf("%s: the answer %d has WWW-Authenticate: %s", what, w.Code, w.Header().Get("WWW-Authenticate"))
		}
		// A display on a wall comes back by itself, and nobody is asked for a token every 15 seconds.
		if w.Code == http.StatusForbidden || w.Code == http.StatusUnauthorized {
			if again := refreshes(parse(t, w)) != nil; again != (w.Code == http.StatusForbidden) {
				t.Errorf("%s: the answer %d is refreshed: %t", what, w.Code, again)
			}
		}
		if w.Header().Get("Content-Security-Policy") != policy || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: the answer has not the headers that hold a browser back: %v", what, w.Header())
		}
	}
}

// transport answers as a cluster does, or not at all.
type transport struct {
	code int
	err  error
}

func (t transport) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: t.code, Body: http.NoBody}, t.err
}

func TestAClusterThatCantBeAskedIsNoFaultOfTheToken(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		cluster transport
		code    int
	}{
		{"it does not answer", transport{0, errors.New("connection refused")}, 503},
		{"it lets the controller not ask", transport{403, nil}, 503},
		{"it is busy", transport{500, nil}, 503},
		{"it does not know the token", transport{201, nil}, 401},
	} {
		line := &Line{Next: test.cluster}
		guarded, err := Guard(busyCluster().handler(), line, func(http.Handler) (http.Handler, error) {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asks := httptest.NewRequestWithContext(r.Context(), http.MethodPost, "/apis/authentication.k8s.io", http.NoBody)
				if answer, err := line.RoundTrip(asks); err == nil {
					_ = answer.Body.Close()
				}
				http.Error(w, "Authentication failed", http.StatusInternalServerError)
			}), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/page/", http.NoBody)
		r.SetBasicAuth("x", "good")
		w := httptest.NewRecorder()
		guarded.ServeHTTP(w, r)
		challenged := w.Header().Get("WWW-Authenticate") != ""
		if w.Code != test.code || challenged != (w.Code == http.StatusUnauthorized) {
			t.Errorf("%s: %d, asked for another token: %t", test.name, w.Code, challenged)
		}
		if said := strings.Contains(w.Body.String(), "The token could not be checked"); said != (w.Code == http.StatusServiceUnavailable) {
			t.Errorf("%s: %s", test.name, w.Body)
		}
	}
}

// largeCluster has a rollout a third of the way, and one node that hangs.
func largeCluster(nodes int) *fixture {
	f := &fixture{}
	a, b := rendered("large", "a"), rendered("large", "b")
	f.pool("large", b, func(p *mcfgv1.MachineConfigPool) { p.Spec.MaxUnavailable = new(intstr.FromInt32(10)) })
	for i := range nodes {
		name := fmt.Sprintf("node-%05d", i)
		switch {
		case i < nodes/3:
			f.node(name, "large", b, b, api.Done)
			f.says(name, b, mcfgv1.MachineConfigNodeUpdated, metav1.ConditionTrue, noon.Add(-time.Duration(i)*time.Second), nil)
		case i < nodes/3+few+5:
			f.node(name, "large", a, b, api.Working)
			f.says(name, b, mcfgv1.MachineConfigNodeUpdateRebooted, metav1.ConditionUnknown, noon.Add(-time.Minute), nil)
		default:
			f.node(name, "large", a, a, api.Done)
			f.says(name, a, mcfgv1.MachineConfigNodeUpdated, metav1.ConditionTrue, noon.Add(-time.Hour), nil)
		}
	}
	return f
}
