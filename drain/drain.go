// SPDX-License-Identifier: Apache-2.0

// Package drain empties a node and gives it back. It has the cordon ledger, evictions that withstand budgets, webhooks
// and restarts, and the explanation of a drain that waits.
//
// The pods that go are those that `kubectl drain --force --ignore-daemonsets --delete-emptydir-data` chooses; a test
// compares the two. The library of that command is not used, because it brings the kinds of all API groups, an OpenAPI
// document and kustomize into a program of each node. Its loop has four more defects. It gives up at the first webhook
// that refuses. It can't be cancelled while it sleeps. It evicts by name alone, so a pod of a StatefulSet that came
// back elsewhere in between would go too. It reads each pod that is ending once a second.
package drain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/kube"
)

const (
	// turnEvery is how often a drain checks its state when nothing happens. The check costs no request.
	turnEvery = time.Second
	// reportEvery is the shortest time between two reports. reportFirst is the time before the first report, so that it
	// has the pods that are blocked from the beginning.
	reportEvery = 5 * time.Second
	reportFirst = time.Second
	// explainEvery is how often the meaning of a refusal is asked again. explainNews is how often it is asked for pods
	// that were refused just now. explainTimeout is how long an explanation may delay the rest.
	explainEvery   = 30 * time.Second
	explainNews    = 2 * time.Second
	explainTimeout = 10 * time.Second
	// syncTimeout is how long the first list of the node's pods may take.
	syncTimeout = time.Minute
)

// ErrUncordoned is the error of a drain that finds its node taking pods. The node was uncordoned, so an evicted pod may
// come straight back. The node has to be cordoned again before it is drained again.
var ErrUncordoned = errors.New("the node was uncordoned during the drain")

// Drainer drains one node. It remembers between calls which pods have to go, and serves one call at a time.
//
// A drain costs the API server one watch of the node's pods and one eviction for each pod. It costs one read for each
// pod of a DaemonSet. At each end it costs a read of the node and a list of its pods. While it waits, each budget that
// refuses costs one eviction every RetryDelay, and so does each pod with another refusal. Each namespace with a budget
// that refuses is explained twice a minute, with two lists. One list of the cluster's nodes every five minutes goes
// with it. Only that list grows with the cluster, and it is never asked for at rest.
type Drainer struct {
	Client *kube.Client
	Node   string

	known map[types.UID]bool // by UID: the pod has to go
	// skips select the pods that stay by the policy in force.
	skips  []labels.Selector
	policy *api.DrainPolicy
	// settled are the lineages of pods that stay, for the configuration settledFor.
	settled    map[string]int
	settledFor string
}

// Forecast returns what a drain would wait for, before any cordon or eviction. These are the pods that a
// PodDisruptionBudget would not let go in the present state. The budget allows no disruption, or fewer than it has pods
// on this node while no other node could take them. The caller sets Config and Since. Left counts all pods that would
// have to go. policy names the pods that stay; with nil no pod stays.
func (d *Drainer) Forecast(ctx context.Context, policy *api.DrainPolicy) (api.Drain, error) {
	if err := d.follow(policy); err != nil {
		return api.Drain{}, err
	}
	pods, err := d.list(ctx)
	if err != nil {
		return api.Drain{}, err
	}
	if pods, err = d.leaving(ctx, pods); err != nil {
		return api.Drain{}, err
	}
	out := api.Drain{Left: len(pods)}
	e := &explainer{client: d.Client, node: d.Node}
	var held []heldPod
	for _, name := range namespaces(pods) {
		budgets, err := e.readBudgets(ctx, name)
		if err != nil {
			return out, err
		}
		held = append(held, holds(budgets, pods)...)
	}
	if len(held) == 0 {
		return out, nil
	}
	now := time.Now().UTC().Truncate(time.Second)
	asked := make([]*corev1.Pod, len(held))
	for i := range held {
		asked[i] = held[i].pod
	}
	explanations, err := e.explain(ctx, asked, now)
	if err != nil {
		return out, err
	}
	out.Waiting = warnings(held, explanations, now)
	return out, nil
}

// Run evicts the pods that have to go. It returns when all of them are gone and the node is still cordoned: an accepted
// eviction or a terminating pod is not gone. Pods that come back to the cordoned node after each eviction are left
// there at last, like those of a DaemonSet. The last report names them. Run ends with ctx, within a second, or with the
// error of a list, or with ErrUncordoned. It may be called again after each. Only where its policy says so, Run gives
// up, with a *TimeoutError, or deletes a pod that refuses to go. Otherwise budgets are never bypassed, and each refused
// eviction is asked for again.
//
// A policy can take the node out of the load balancers for a while before the first eviction. A policy can also make
// Run wait, at the end, for the volumes of the pods that went.
//
// The caller watches the node, and has to see an uncordon while nothing moves. Run checks the cordon only at the
// beginning, at the end and when a pod appears.
//
// Pods of the request's last report count as waited for since the time in that report. Run's own goroutine calls report
// whenever the drain waits for something else, at most every five seconds. report should not block for long.
func (d *Drainer) Run(ctx context.Context, ask Request, report func(api.Drain)) error {
	if err := d.follow(ask.Policy); err != nil {
		return fmt.Errorf("draining node %s: %w", d.Node, err)
	}
	now, config, last := time.Now(), ask.Config, ask.Last
	r := &run{
		Drainer: d, config: config, queue: newQueue(last), report: report,
		since: now.UTC().Truncate(time.Second), reportAt: now.Add(reportFirst),
		answers: make(chan answer), bell: make(chan struct{}, 1),
		explainer: &explainer{client: d.Client, node: d.Node},
		clock:     newClock(ask, now), volumes: &volumes{client: d.Client, node: d.Node}, excluded: ask.Excluded,
	}
	if last != nil && last.Config == config && !last.Since.IsZero() {
		r.since = last.Since
	}
	if d.settledFor == config {
		maps.Copy(r.queue.gone, d.settled)
	}
	inner, cancel := context.WithCancel(ctx)
	defer r.working.Wait()
	defer cancel()
	err := r.run(inner)
	if r.begun {
		d.settled, d.settledFor = r.queue.settled(), config
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("draining node %s: %w", d.Node, err)
	}
	return nil
}

// follow adopts a policy.
func (d *Drainer) follow(policy *api.DrainPolicy) error {
	if reflect.DeepEqual(policy, d.policy) {
		return nil
	}
	skips, err := selectors(policy)
	if err != nil {
		return err
	}
	d.policy, d.skips, d.known = policy, skips, nil
	return nil
}

func (d *Drainer) ownPods() string {
	return fields.OneTermEqualSelector("spec.nodeName", d.Node).String()
}

// list returns the pods on the node from the API server itself, not from a cache.
func (d *Drainer) list(ctx context.Context) ([]*corev1.Pod, error) {
	list, err := d.Client.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: d.ownPods()})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of node %s: %w", d.Node, err)
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return pods, nil
}

// leaving returns those of pods that have to go. A choice reads a DaemonSet for each of its pods. So all pods are
// judged anew only when one of them was never seen before.
func (d *Drainer) leaving(ctx context.Context, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	unknown := func(p *corev1.Pod) bool { _, ok := d.known[p.UID]; return !ok }
	if slices.ContainsFunc(pods, unknown) {
		known := make(map[types.UID]bool, len(pods))
		for _, p := range pods {
			stays, err := d.stays(ctx, p)
			if err != nil {
				return nil, fmt.Errorf("choosing the pods of node %s that have to go: %w", d.Node, err)
			}
			known[p.UID] = !stays
		}
		d.known = known
	}
	return slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !d.known[p.UID] }), nil
}

// cordoned fails unless the node is cordoned, by any owner.
func (d *Drainer) cordoned(ctx context.Context) error {
	node, err := d.Client.Nodes().Get(ctx, d.Node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading node %s: %w", d.Node, err)
	}
	if !ReadHold(node).Cordoned() {
		return ErrUncordoned
	}
	return nil
}

// evict asks once for the eviction of this very pod. A refusal is handled here, not by the client.
func (d *Drainer) evict(ctx context.Context, pod *corev1.Pod) error {
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	}
	return d.Client.Evict(ctx, eviction)
}

// remove deletes this very pod, in spite of budgets. The pod has its own grace period, as after an eviction.
func (d *Drainer) remove(ctx context.Context, pod *corev1.Pod) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}
	return d.Client.Pods(pod.Namespace).Delete(ctx, pod.Name, options)
}

// watchPods keeps the node's pods in a store, and rings for each change.
func (d *Drainer) watchPods(ring func()) (cache.Store, cache.Controller) {
	return cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: kube.Selected(d.Client.Pods(metav1.NamespaceAll), d.ownPods()),
		ObjectType:    &corev1.Pod{},
		Transform:     stripped,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { ring() },
			UpdateFunc: func(any, any) { ring() },
			DeleteFunc: func(any) { ring() },
		},
	})
}

// stripped returns a pod without its managed fields. They are a third of the pod and have no use here.
func stripped(o any) (any, error) {
	if pod, ok := o.(*corev1.Pod); ok {
		pod.ManagedFields = nil
	}
	return o, nil
}

// run is one drain.
type run struct {
	*Drainer
	config  string
	since   time.Time
	begun   bool // the node was seen cordoned
	queue   *queue
	store   cache.Store
	working sync.WaitGroup
	answers chan answer
	bell    chan struct{}

	report   func(api.Drain)
	reported api.Drain
	reportAt time.Time // no report before then

	explainer   *explainer
	explainedAt time.Time
	confirmAt   time.Time // no confirm before then

	clock    *clock
	excluded time.Time // when the node was taken out of the load balancers; zero: it is in them
	volumes  *volumes
	forced   []string // pods that were deleted although they refused
	forcing  int      // running evictions that may end in a deletion
}

// answer is the result of an eviction. force: the pod was to be deleted if the eviction is refused. forced is the name
// of a pod that was deleted for this reason.
type answer struct {
	uid     types.UID
	force   bool
	forced  string
	refusal *refusal
}

func (r *run) ring() {
	select {
	case r.bell <- struct{}{}:
	default:
	}
}

// waitExcluded gives load balancers the time to remove the node, before the first pod goes.
func (r *run) waitExcluded(ctx context.Context) error {
	if !r.policy.Excludes() || r.excluded.IsZero() {
		return nil
	}
	now := time.Now()
	r.clock.enter(api.DrainExcludes, now)
	left := r.clock.limit().Sub(now)
	if left <= 0 {
		return nil
	}
	r.report(r.clock.stamp(api.Drain{Config: r.config, Since: r.since}))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(left):
		return nil
	}
}

func (r *run) run(ctx context.Context) error {
	if err := r.waitExcluded(ctx); err != nil {
		return err
	}
	store, informer := r.watchPods(r.ring)
	r.store = store
	r.working.Go(func() { informer.RunWithContext(ctx) })
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(syncTimeout):
		return fmt.Errorf("watching the pods of the node: no answer within %s", syncTimeout)
	case <-informer.HasSyncedChecker().Done():
	}
	tick := time.NewTicker(turnEvery)
	defer tick.Stop()
	for {
		done, err := r.turn(ctx, time.Now())
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case a := <-r.answers:
			r.queue.answer(a.uid, a.refusal)
			r.noteForced(a)
		case <-r.bell:
		case <-tick.C:
		}
	}
}

// turn checks the whole state once and starts what is due. It returns true when the drain is done.
func (r *run) turn(ctx context.Context, now time.Time) (bool, error) {
	pods, err := r.present(ctx)
	if err != nil {
		return false, err
	}
	r.queue.observe(pods, now.UTC().Truncate(time.Second))
	if r.queue.left() == 0 {
		return r.finish(ctx, now)
	}
	r.clock.enter(api.DrainEvicts, now)
	r.volumes.listed = false
	timeout := r.clock.over(now)
	if timeout == api.DrainHolds {
		return false, r.timedOut(now)
	}
	for _, t := range r.queue.due(now) {
		r.queue.ask(t, now)
		pod, force := t.pod, timeout == api.DrainForces && t.refuses() // the queue replaces t.pod by newer versions
		if force {
			r.forcing++
		}
		r.working.Go(func() { r.askFor(ctx, pod, force) })
	}
	r.explain(ctx, now)
	r.tell(now)
	return false, nil
}

// finish runs when all pods are gone: it waits for their volumes, and then the API server has to confirm.
func (r *run) finish(ctx context.Context, now time.Time) (bool, error) {
	if r.policy != nil && r.policy.WaitForVolumeDetachSeconds > 0 {
		r.clock.enter(api.DrainDetaches, now)
		gone, err := r.volumes.detached(ctx, r.staying(), now)
		if err != nil {
			return false, err
		}
		if !gone {
			switch r.clock.over(now) {
			case api.DrainHolds:
				return false, r.timedOut(now)
			case api.DrainForces:
				r.report(r.state(now))
			default:
				r.tell(now)
				return false, nil
			}
		}
	}
	if r.forcing > 0 {
		return false, nil // the answer has to be reported first
	}
	done, err := r.confirm(ctx, now)
	if done && (len(r.queue.targets) > 0 || len(r.forced) > len(r.reported.Forced)) {
		r.report(r.state(now))
	}
	return done, err
}

// noteForced keeps the names of pods that were deleted although they refused.
func (r *run) noteForced(a answer) {
	if a.force {
		r.forcing--
	}
	if a.forced != "" {
		r.forced = append(r.forced, a.forced)
	}
}

// staying returns the pods that the node keeps.
func (r *run) staying() []*corev1.Pod {
	var out []*corev1.Pod
	for _, o := range r.store.List() {
		if pod, is := o.(*corev1.Pod); is && (!r.known[pod.UID] || r.queue.stays(pod.UID)) {
			out = append(out, pod)
		}
	}
	return out
}

// timedOut returns the error of a drain that has reached its limit.
func (r *run) timedOut(now time.Time) error {
	d := r.state(now)
	waits := StepText(&d)
	if waits == "" && len(d.Waiting) > 0 {
		waits = Sentence(d.Waiting[0])
		if d.Left > 1 {
			waits += fmt.Sprintf("; and %s", count(d.Left-1, "more pod"))
		}
	}
	return &TimeoutError{Phase: r.clock.phase, After: r.clock.allowed(), Waits: waits}
}

// state returns the progress of the drain.
func (r *run) state(now time.Time) api.Drain {
	d := r.clock.stamp(r.queue.report(r.config, r.since, now))
	d.Forced = r.forced
	if r.clock.phase == api.DrainDetaches {
		d.Volumes = r.volumes.left
	}
	return d
}

// present returns the pods that have to go, from the watch. At the start, and when a new pod has appeared, the node may
// be taking pods. So the cordon is checked then before any eviction, as evicted pods would come back at once.
func (r *run) present(ctx context.Context) ([]*corev1.Pod, error) {
	var pods []*corev1.Pod
	fresh := !r.begun
	for _, o := range r.store.List() {
		pod := o.(*corev1.Pod) //nolint:forcetypeassert // the store's only type
		_, known := r.known[pod.UID]
		fresh = fresh || !known
		pods = append(pods, pod)
	}
	if fresh {
		if err := r.cordoned(ctx); err != nil {
			return nil, err
		}
		r.begun = true
	}
	return r.leaving(ctx, pods)
}

// confirm asks the API server itself, because the watch is always a little late.
func (r *run) confirm(ctx context.Context, now time.Time) (bool, error) {
	if now.Before(r.confirmAt) {
		return false, nil
	}
	r.confirmAt = now.Add(turnEvery)
	if err := r.cordoned(ctx); err != nil {
		return false, err
	}
	pods, err := r.list(ctx)
	if err != nil {
		return false, err
	}
	pods, err = r.leaving(ctx, pods)
	pods = slices.DeleteFunc(pods, func(p *corev1.Pod) bool { return r.queue.stays(p.UID) })
	return err == nil && len(pods) == 0, err
}

// askFor asks for the eviction of a pod. With force the pod is deleted if this eviction is refused, and only then: the
// cause of an earlier refusal may be gone.
func (r *run) askFor(ctx context.Context, pod *corev1.Pod, force bool) {
	a := answer{uid: pod.UID, force: force, refusal: readRefusal(r.evict(ctx, pod))}
	if force && a.refusal.final() {
		err := r.remove(ctx, pod)
		if err == nil {
			a.forced = pod.Namespace + "/" + pod.Name
		}
		a.refusal = a.refusal.despite(err)
	}
	select {
	case r.answers <- a:
	case <-ctx.Done():
	}
}

// explain finds the meaning of refusals by budgets. Where it fails, the error takes the place of the explanation.
func (r *run) explain(ctx context.Context, now time.Time) {
	blocked := r.queue.blocked()
	wait := explainEvery
	if slices.ContainsFunc(blocked, func(t *target) bool { return t.placement == "" }) {
		wait = explainNews
	}
	// Pending answers are waited for, so that one look at a namespace serves all its pods.
	if len(blocked) == 0 || now.Sub(r.explainedAt) < wait || r.queue.asking(now, explainNews) {
		return
	}
	r.explainedAt = now
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	pods := make([]*corev1.Pod, len(blocked))
	for i, t := range blocked {
		pods[i] = t.pod
	}
	explanations, err := r.explainer.explain(ctx, pods, now)
	for i, t := range blocked {
		if err != nil {
			t.explained = explained{placement: "unknown: " + err.Error()}
			continue
		}
		t.explained = explanations[i]
	}
}

// tell reports the progress of the drain, if it has changed and a report is due.
func (r *run) tell(now time.Time) {
	if now.Before(r.reportAt) {
		return
	}
	current := r.state(now)
	if reflect.DeepEqual(current, r.reported) {
		return
	}
	r.report(current)
	r.reported, r.reportAt = current, now.Add(reportEvery)
}

func namespaces(pods []*corev1.Pod) []string {
	names := map[string]bool{}
	for _, p := range pods {
		names[p.Namespace] = true
	}
	return slices.Sorted(maps.Keys(names))
}
