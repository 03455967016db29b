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
	// RetryDelay is how long a refused eviction waits before it is asked for again. Zero would be hundreds of requests
	// a second.
	RetryDelay = 5 * time.Second
	// patience is after how long an eviction is asked for although there is reason to wait: another pod of the same
	// budget was refused just now, or the last one was accepted and the pod is not seen terminating.
	patience = time.Minute
	// slowAnswer is after how long an eviction without an answer is worth a word.
	slowAnswer = 15 * time.Second
	// reportLimit is how many pods a report names: it is an annotation. Left counts all of them.
	reportLimit = 20
)

// target is a pod that has to go.
type target struct {
	pod      *corev1.Pod
	since    time.Time // when the drain began to wait for it
	asked    time.Time // when its eviction was last asked for; zero: never
	asking   bool      // and there is no answer yet
	accepted bool      // the last answer was yes
	refusal  *refusal  // the last answer was no
	// comeback is how often pods of its controller had gone and come back when this one came; notBefore is until when it
	// is given time to go by itself, or to be the last of them.
	comeback  int
	notBefore time.Time
	explained
}

// terminating says that nothing more can be asked for: the pod only has to end.
func (t *target) terminating() bool { return t.pod.DeletionTimestamp != nil }

// blockedBy is the budget that refused, or nothing.
func (t *target) blockedBy() string {
	if t.refusal == nil || t.refusal.budget == "" {
		return ""
	}
	return t.pod.Namespace + "/" + t.refusal.budget
}

// refuses says that somebody has a say in whether the pod goes, and said no.
func (t *target) refuses() bool { return t.refusal.final() }

// queue is the pods that have to go, and what is known of each. It decides; it does nothing.
type queue struct {
	targets map[types.UID]*target
	// before has since when an earlier process waited for a pod, by namespace and name.
	before map[string]time.Time
	// gone has, by lineage, the highest comeback of the pods that went. What comes now comes after them.
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

// observe takes over which of the pods that have to go are there now.
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
	// A replacement is made after the pod that it replaces was told to go, and is seen after that.
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

// settled are the lineages whose pods stay: what an earlier drain for the same configuration has found out.
func (q *queue) settled() map[string]int {
	out := map[string]int{}
	for _, t := range q.targets {
		if t.stays() {
			out[lineage(t.pod)] = t.comeback - 1
		}
	}
	return out
}

// left counts the pods that still have to go.
func (q *queue) left() int {
	n := 0
	for _, t := range q.targets {
		if !t.stays() {
			n++
		}
	}
	return n
}

// stays says that the pod with that UID is the node's own.
func (q *queue) stays(uid types.UID) bool {
	t, ok := q.targets[uid]
	return ok && t.stays()
}

// due are the pods whose eviction is to be asked for now, those first that were asked for longest ago. Of pods that
// one budget refuses, one is asked for at a time: what holds for it holds for the others, and once it goes the next one
// is due at once. So a budget that is closed costs one request every RetryDelay, however many pods wait for it.
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

// ask notes that the eviction of t is asked for.
func (q *queue) ask(t *target, now time.Time) { t.asked, t.asking, t.accepted = now, true, false }

// answer notes what came of it; no refusal is a yes. The pod may be gone by then.
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

// asking says that an eviction has been asked for within the last while, and is not answered.
func (q *queue) asking(now time.Time, while time.Duration) bool {
	for _, t := range q.targets {
		if t.asking && now.Sub(t.asked) < while {
			return true
		}
	}
	return false
}

// blocked are the pods that a budget refuses, in a stable order.
func (q *queue) blocked() []*target {
	return slices.DeleteFunc(q.sorted(byName), func(t *target) bool {
		return t.terminating() || t.refusal == nil || t.refusal.why != api.DrainWaitBudget
	})
}

// report is where the drain is: pods that are blocked before pods that are ending, the longest wait first.
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

// waiting describes t, unless its eviction was asked for only just now.
func (t *target) waiting(now time.Time) (api.WaitingPod, bool) {
	w := api.WaitingPod{Namespace: t.pod.Namespace, Name: t.pod.Name, Since: t.since}
	switch {
	case t.terminating() || t.accepted:
		w.Why, w.Message = api.DrainWaitTerminating, ending(t.pod)
	case t.stays():
		w.Why, w.Message = api.DrainWaitComesBack, t.how()+" each time; it stays, as pods of a DaemonSet do"
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

// ending says by when a pod that was told to end has to have ended, and what else holds it.
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
