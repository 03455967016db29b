// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
)

func podNamed(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
}

func ending30(p *corev1.Pod) *corev1.Pod {
	grace := int64(30)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: noon.Add(30 * time.Second)}, &grace
	return p
}

func held(budget string) *refusal {
	return &refusal{why: api.DrainWaitBudget, budget: budget, message: "no"}
}

func names(targets []*target) string {
	var out []string
	for _, t := range targets {
		out = append(out, t.pod.Name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestABudgetThatIsClosedIsAskedOnceForAllItsPods(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	q := newQueue(nil)
	q.observe([]*corev1.Pod{podNamed("a"), podNamed("b"), podNamed("c"), podNamed("x")}, at(0))
	ask := func(s int, want string) {
		t.Helper()
		due := q.due(at(s))
		if names(due) != want {
			t.Fatalf("after %d s %q are due, want %q", s, names(due), want)
		}
		for _, d := range due {
			q.ask(d, at(s))
		}
	}
	ask(0, "a b c x")
	for _, uid := range []types.UID{"a", "b", "c"} {
		q.answer(uid, held("web"))
	}
	q.answer("x", &refusal{why: api.DrainWaitRefused})
	ask(0, "")
	ask(4, "")
	ask(5, "a x") // one for the budget, and what a webhook refuses by itself
	ask(9, "")
	q.answer("a", held("web"))
	q.answer("x", nil)
	ask(10, "b") // each in its turn
	q.answer("b", nil)
	ask(10, "c") // the budget has opened
	q.answer("c", held("web"))
	ask(14, "")
	ask(15, "a")
	q.observe([]*corev1.Pod{podNamed("a"), podNamed("b"), podNamed("c")}, at(16))
	ask(65, "c") // a, asked for last, waits for an answer
	ask(70, "b") // accepted a minute ago, and never seen terminating
}

func TestEachPodIsAskedForOnceAMinuteAtLeast(t *testing.T) {
	q := newQueue(nil)
	var pods []*corev1.Pod
	for i := range 40 {
		pods = append(pods, podNamed(fmt.Sprintf("p%02d", i)))
	}
	q.observe(pods, noon)
	asked := map[string]time.Time{}
	requests := 0
	for s := range 300 {
		now := noon.Add(time.Duration(s) * time.Second)
		for _, d := range q.due(now) {
			if last, ok := asked[d.pod.Name]; ok && now.Sub(last) > patience {
				t.Fatalf("%s was last asked for %s ago", d.pod.Name, now.Sub(last))
			}
			asked[d.pod.Name] = now
			requests++
			q.ask(d, now)
			q.answer(d.pod.UID, held("web"))
		}
	}
	if len(asked) != 40 || requests > 40*6 {
		t.Errorf("%d pods were asked for with %d requests in 5 minutes", len(asked), requests)
	}
}

func TestWhatIsTerminatingIsNotAskedForAgain(t *testing.T) {
	q := newQueue(nil)
	q.observe([]*corev1.Pod{ending30(podNamed("a"))}, noon)
	if due := q.due(noon.Add(time.Hour)); len(due) > 0 {
		t.Errorf("%s is asked for", names(due))
	}
	if len(q.targets) != 1 {
		t.Error("a terminating pod counts as gone")
	}
}

func TestAReportNamesWhatIsBlockedFirst(t *testing.T) {
	q := newQueue(&api.Drain{Waiting: []api.WaitingPod{{Namespace: "shop", Name: "web", Since: noon.Add(-time.Hour)}}})
	finalised := ending30(podNamed("held"))
	finalised.Finalizers = []string{"example.com/wait"}
	q.observe([]*corev1.Pod{finalised, ending30(podNamed("a")), podNamed("db"), podNamed("web"), podNamed("new")}, noon)
	for _, uid := range []types.UID{"db", "web", "new"} {
		q.ask(q.targets[uid], noon)
	}
	q.answer("web", held("web"))
	q.targets["web"].explained = explained{budgets: "web", placement: "0 of 1 node could take it", replacement: "r"}
	q.answer("db", &refusal{why: api.DrainWaitRefused, message: "not now"})
	since := noon.Add(-time.Minute)
	want := api.Drain{Config: "b", Since: since, Left: 5, Waiting: []api.WaitingPod{
		{
			Namespace: "shop", Name: "web", Since: noon.Add(-time.Hour), Why: api.DrainWaitBudget, Budget: "web",
			Placement: "0 of 1 node could take it", Message: "no; r",
		},
		{Namespace: "shop", Name: "db", Since: noon, Why: api.DrainWaitRefused, Message: "not now"},
		{
			Namespace: "shop", Name: "a", Since: noon, Why: api.DrainWaitTerminating,
			Message: "to end by 2026-03-01T12:00:30Z, 30 s after it was evicted",
		},
		{
			Namespace: "shop", Name: "held", Since: noon, Why: api.DrainWaitTerminating,
			Message: "to end by 2026-03-01T12:00:30Z, 30 s after it was evicted; held by finalizers example.com/wait",
		},
	}}
	if diff := cmp.Diff(want, q.report("b", since, noon.Add(time.Second))); diff != "" {
		t.Error(diff)
	}
	late := q.report("b", since, noon.Add(20*time.Second)).Waiting
	if w := late[2]; w.Name != "new" || w.Why != api.DrainWaitError ||
		w.Message != "no answer from the API server since the eviction was asked for at 2026-03-01T12:00:00Z" {
		t.Errorf("an eviction that is not answered is reported as %+v", w)
	}
}

func TestAReportHasRoomForTwenty(t *testing.T) {
	q := newQueue(nil)
	var pods []*corev1.Pod
	for i := range 30 {
		pods = append(pods, ending30(podNamed(fmt.Sprintf("p%02d", i))))
	}
	q.observe(append(pods, podNamed("z")), noon)
	q.answer("z", held("web"))
	r := q.report("b", noon, noon)
	if r.Left != 31 || len(r.Waiting) != 20 || r.Waiting[0].Name != "z" {
		t.Errorf("%d left, %d named, %s first", r.Left, len(r.Waiting), r.Waiting[0].Name)
	}
}

func TestAPodThatIsGoneIsForgotten(t *testing.T) {
	q := newQueue(nil)
	q.observe([]*corev1.Pod{podNamed("a")}, noon)
	q.ask(q.targets["a"], noon)
	again := podNamed("a")
	again.UID = "another"
	q.observe([]*corev1.Pod{again}, noon.Add(time.Second))
	q.answer("a", held("web"))
	if due := q.due(noon.Add(comebackWait + time.Second)); names(due) != "a" || due[0].pod.UID != "another" {
		t.Errorf("%v are due", names(due))
	}
}
