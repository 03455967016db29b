// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
)

const (
	// RetryDelay is how long a refused eviction waits before it is asked for again. Zero would mean hundreds of requests a
	// second.
	RetryDelay = 5 * time.Second
	// patience is after how long an eviction is asked for in spite of a reason to wait. One reason is that another pod of
	// the same budget was refused just now. The other is that the last eviction was accepted, but the pod is not
	// terminating yet.
	patience = time.Minute
	// slowAnswer is after how long an eviction without an answer is reported.
	slowAnswer = 15 * time.Second
	// reportLimit is how many pods a report names, because a report is an annotation. Left counts all pods.
	reportLimit = 20
)

// target is a pod that has to go.
type target struct {
	pod      *corev1.Pod
	since    time.Time // when the drain began to wait for it
	asked    time.Time // when its eviction was last asked for; zero: never
	asking   bool      // the eviction has no answer yet
	accepted bool      // the last eviction was accepted
	refusal  *refusal  // the last eviction was refused
	// comeback is how often pods of its controller had gone and come back before this pod came. Until notBefore the pod
	// has time to go by itself, or to be the last of its controller.
	comeback  int
	notBefore time.Time
	explained
}

// terminating reports whether the pod is ending, so that no more requests are needed.
func (t *target) terminating() bool { return t.pod.DeletionTimestamp != nil }

// blockedBy returns the budget that refused, or "".
func (t *target) blockedBy() string {
	if t.refusal == nil || t.refusal.budget == "" {
		return ""
	}
	return t.pod.Namespace + "/" + t.refusal.budget
}

// refuses reports whether a budget or webhook with a say in the eviction refused it.
func (t *target) refuses() bool { return t.refusal.final() }

// queue holds the pods that have to go, and the facts about each. It decides, but makes no requests.
type queue struct {
	targets map[types.UID]*target
	// before holds, by namespace and name, since when an earlier process waited for a pod.
	before map[string]time.Time
	// gone holds, by lineage, the highest comeback of the pods that went. A pod that comes now is of the next order.
	gone map[string]int
}

func newQueue(last *api.Drain) *queue {
	q := &queue{targets: map[types.UID]*target{}, before: map[string]time.Time{}, gone: map[string]int{}}
	if last != nil {
		for _, w := range last.Waiting {
			q.before[w.Namespace+"/"+w.Name] = w.Since
		}
	}
	return q
}

// observe takes the pods that have to go and are present now.
func (q *queue) observe(pods []*corev1.Pod, now time.Time) {
	seen := map[types.UID]*target{}
	var fresh []*corev1.Pod
	for _, pod := range pods {
		t, ok := q.targets[pod.UID]
		if !ok {
			fresh = append(fresh, pod)
			continue
		}
		t.pod = pod
		seen[pod.UID] = t
	}
	// A replacement is made, and seen, after its pod was told to go.
	for uid, t := range q.targets {
		if seen[uid] == nil || t.terminating() {
			key := lineage(t.pod)
			q.gone[key] = max(q.gone[key], t.comeback)
		}
	}
	for _, pod := range fresh {
		seen[pod.UID] = q.enter(pod, now)
	}
	q.targets = seen
}

func (q *queue) enter(pod *corev1.Pod, now time.Time) *target {
	t := &target{pod: pod, since: now}
	if since, ok := q.before[pod.Namespace+"/"+pod.Name]; ok && since.Before(now) {
		t.since = since
	}
	if last, ok := q.gone[lineage(pod)]; ok {
		t.comeback = last + 1
		t.notBefore = now.Add(comebackDelay(t.comeback))
	}
	return t
}

// settled returns the lineages whose pods stay. An earlier drain for the same configuration found them.
func (q *queue) settled() map[string]int {
	out := map[string]int{}
	for _, t := range q.targets {
		if t.stays() {
			out[lineage(t.pod)] = t.comeback - 1
		}
	}
	return out
}

// left returns the number of pods that still have to go.
func (q *queue) left() int {
	n := 0
	for _, t := range q.targets {
		if !t.stays() {
			n++
		}
	}
	return n
}

// stays reports whether the pod with that UID is the node's own.
func (q *queue) stays(uid types.UID) bool {
	t, ok := q.targets[uid]
	return ok && t.stays()
}

// due returns the pods whose eviction is due now, in the order of their last requests, the oldest first. Of the pods
// that one budget refuses, one eviction is asked for at a time. The answer for it holds for the others, and once that
// pod goes the next one is due at once. So a closed budget costs one request every RetryDelay, whatever the number of
// its pods.
func (q *queue) due(now time.Time) []*target {
	busy := map[string]bool{}
	for _, t := range q.targets {
		if t.blockedBy() != "" && !t.terminating() && now.Sub(t.asked) < RetryDelay {
			busy[t.blockedBy()] = true
		}
	}
	var due []*target
	for _, t := range q.sorted(func(a, b *target) int { return a.asked.Compare(b.asked) }) {
		waited := now.Sub(t.asked)
		switch {
		case t.terminating() || t.asking || t.stays() || now.Before(t.notBefore):
			continue
		case t.asked.IsZero():
		case waited < RetryDelay:
			continue
		case t.accepted && waited < patience:
			continue
		case busy[t.blockedBy()] && waited < patience:
			continue
		}
		if t.blockedBy() != "" {
			busy[t.blockedBy()] = true
		}
		due = append(due, t)
	}
	return due
}

// ask records that the eviction of t is asked for.
func (q *queue) ask(t *target, now time.Time) { t.asked, t.asking, t.accepted = now, true, false }

// answer records the answer to an eviction; without a refusal it was accepted. The pod may be gone by then.
func (q *queue) answer(uid types.UID, refused *refusal) {
	t, ok := q.targets[uid]
	if !ok {
		return
	}
	t.asking, t.accepted, t.refusal = false, refused == nil, refused
	if refused == nil {
		t.explained = explained{}
	}
}

// asking reports whether an eviction was asked for within the last while and has no answer yet.
func (q *queue) asking(now time.Time, while time.Duration) bool {
	for _, t := range q.targets {
		if t.asking && now.Sub(t.asked) < while {
			return true
		}
	}
	return false
}

// blocked returns the pods that a budget refuses, in a stable order.
func (q *queue) blocked() []*target {
	return slices.DeleteFunc(q.sorted(byName), func(t *target) bool {
		return t.terminating() || t.refusal == nil || t.refusal.why != api.DrainWaitBudget
	})
}

// report returns the progress of the drain: pods that are blocked before pods that are ending, the longest wait first.
func (q *queue) report(config string, since, now time.Time) api.Drain {
	out := api.Drain{Config: config, Since: since, Left: q.left()}
	for _, t := range q.sorted(byName) {
		if w, ok := t.waiting(now); ok {
			out.Waiting = append(out.Waiting, w)
		}
	}
	slices.SortStableFunc(out.Waiting, func(a, b api.WaitingPod) int {
		return cmp.Or(cmp.Compare(rank(a.Why), rank(b.Why)), a.Since.Compare(b.Since))
	})
	if len(out.Waiting) > reportLimit {
		out.Waiting = out.Waiting[:reportLimit]
	}
	return out
}

func rank(why string) int {
	return slices.Index([]string{api.DrainWaitTerminating, api.DrainWaitComesBack}, why)
}

// waiting describes t, unless its eviction was asked for just now.
func (t *target) waiting(now time.Time) (api.WaitingPod, bool) {
	w := api.WaitingPod{Namespace: t.pod.Namespace, Name: t.pod.Name, Since: t.since}
	switch {
	case t.terminating() || t.accepted:
		w.Why, w.Message = api.DrainWaitTerminating, ending(t.pod)
	case t.stays():
		w.Why, w.Message = api.DrainWaitComesBack, t.how()+" each time; the drain leaves it, like the pods of a DaemonSet"
	case t.comeback > 0 && t.asked.IsZero():
		w.Why, w.Message = api.DrainWaitComesBack, t.how()+"; to be evicted again at "+stamp(t.notBefore)
	case t.refusal != nil:
		w.Why, w.Message = t.refusal.why, t.refusal.message
		w.Budget, w.Allowed, w.Placement = t.refusal.budget, t.allowed, t.placement
		if t.budgets != "" {
			w.Budget = t.budgets
		}
		w.Message = api.ShortReason(joined(w.Message, t.replacement))
	case t.asking && now.Sub(t.asked) > slowAnswer:
		w.Why = api.DrainWaitError
		w.Message = "no answer from the API server since the eviction was asked for at " + stamp(t.asked)
	default:
		return w, false
	}
	return w, true
}

// ending returns until when a pod that was told to end has to have ended, and what else holds the pod.
func ending(pod *corev1.Pod) string {
	if pod.DeletionTimestamp == nil {
		return "evicted"
	}
	text := "to end by " + stamp(pod.DeletionTimestamp.Time)
	if seconds := pod.DeletionGracePeriodSeconds; seconds != nil {
		text += fmt.Sprintf(", %d s after it was evicted", *seconds)
	}
	if len(pod.Finalizers) > 0 {
		text += "; held by finalizers " + strings.Join(pod.Finalizers, ", ")
	}
	return text
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func (q *queue) sorted(order func(a, b *target) int) []*target {
	all := make([]*target, 0, len(q.targets))
	for _, t := range q.targets {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *target) int { return cmp.Or(order(a, b), byName(a, b)) })
	return all
}

func byName(a, b *target) int {
	return cmp.Or(cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name))
}
