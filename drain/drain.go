// SPDX-License-Identifier: Apache-2.0

// Package drain empties a node and gives it back: the cordon ledger, evictions that no budget, webhook or restart talks
// into anything else, and the explanation of a drain that waits.
//
// Which pods have to go is what `kubectl drain --force --ignore-daemonsets --delete-emptydir-data` says, by its own
// library. Asking for the evictions is done here, because the library's loop gives up at the first webhook that says
// no, can't be cancelled while it sleeps, evicts by name alone (so that a pod of a StatefulSet that came back elsewhere
// in between would go too) and reads each pod that is ending once a second.
package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubectl/pkg/drain"

	"github.com/noderefit/noderefit/api"
)

const (
	// turnEvery is how often a drain looks around when nothing happens. It costs no request.
	turnEvery = time.Second
	// reportEvery is the shortest time between two reports, and reportFirst that before the first one, so that what is
	// blocked from the beginning is in it.
	reportEvery = 5 * time.Second
	reportFirst = time.Second
	// explainEvery is how often what a budget means is asked anew, explainNews how often for pods that have only just been
	// refused, and explainTimeout how long that may hold up the rest.
	explainEvery   = 30 * time.Second
	explainNews    = 2 * time.Second
	explainTimeout = 10 * time.Second
	// syncTimeout is how long the first list of the node's pods may take.
	syncTimeout = time.Minute
)

// ErrUncordoned is the error of a drain that finds its node taking pods: somebody uncordoned it, so that whatever is
// evicted may come straight back. The node has to be cordoned again before it is drained again.
var ErrUncordoned = errors.New("the node was uncordoned during the drain")

// Drainer drains one node. It keeps between calls which pods are to go, and serves one call at a time.
//
// A drain costs the API server one watch of the node's pods, one eviction for each pod, one read for each pod of a
// DaemonSet, and a read of the node and a list of its pods at each end. While it waits it costs, for each budget that
// refuses (or each pod that anything else refuses), one eviction every RetryDelay. Each namespace with a budget that
// refuses is explained twice a minute, with two lists; one list of the cluster's nodes every five minutes goes with it,
// which is the only thing that grows with the cluster, and is never asked for at rest.
type Drainer struct {
	Client kubernetes.Interface
	Node   string

	known map[types.UID]bool // by pod: it has to go
	// skips are the pods that stay by the policy that is in force.
	skips  []drain.PodFilter
	policy *api.DrainPolicy
	// settled are the lineages of pods that stay, for the configuration settledFor.
	settled    map[string]int
	settledFor string
}

// Forecast says what a drain would wait for, before anything is cordoned or evicted: the pods that a
// PodDisruptionBudget would not let go as things are, because it allows no disruption, or fewer than it has pods on
// this node while no other node could take them. Config and Since are the caller's to fill in; Left counts all pods
// that would have to go. Policy says which stay; nil: none does.
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

// Run evicts what has to go and returns when all of it is gone: not accepted, not terminating, gone, and the node still
// cordoned. Pods that come back to the cordoned node however often they are evicted are left there at last, as those of
// a DaemonSet are; the last report names them. It ends with ctx, within a second, or with the error of a list, or with
// ErrUncordoned, and may be called again after each. Only where its policy says so it gives up, with a *TimeoutError,
// or deletes what refuses to go: else budgets are never bypassed, and whatever refuses is asked again.
//
// Where the policy says so, the node is out of the load balancers for a while before the first eviction, and the
// volumes of the pods that went are waited for after the last.
//
// An uncordon while nothing moves is for the caller to see, who watches the node: Run asks for it only at the
// beginning, at the end and when a pod turns up.
//
// What the request's last report waited for has been waited for since then. report is called from Run's own goroutine
// whenever what the drain waits for has changed, at most every five seconds; it should not block for long.
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

// follow takes up a policy.
func (d *Drainer) follow(policy *api.DrainPolicy) error {
	if reflect.DeepEqual(policy, d.policy) {
		return nil
	}
	filters, err := skips(policy)
	if err != nil {
		return err
	}
	d.policy, d.skips, d.known = policy, filters, nil
	return nil
}

// helper is kubectl's drain, for what it says about which pods go.
func (d *Drainer) helper(ctx context.Context) *drain.Helper {
	return &drain.Helper{
		Ctx: ctx, Client: d.Client, Out: io.Discard, ErrOut: io.Discard,
		Force: true, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true, GracePeriodSeconds: -1,
		EvictErrorRetryDelay: RetryDelay, AdditionalFilters: d.skips,
	}
}

func (d *Drainer) ownPods() string {
	return fields.OneTermEqualSelector("spec.nodeName", d.Node).String()
}

// list is the pods on the node, as they are and not as a cache has them.
func (d *Drainer) list(ctx context.Context) ([]*corev1.Pod, error) {
	list, err := d.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: d.ownPods()})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of node %s: %w", d.Node, err)
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return pods, nil
}

// leaving are those of pods that have to go. kubectl's filters read a DaemonSet for each of its pods, so they are asked
// only when there is a pod that they have not seen.
func (d *Drainer) leaving(ctx context.Context, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	unknown := func(p *corev1.Pod) bool { _, ok := d.known[p.UID]; return !ok }
	if slices.ContainsFunc(pods, unknown) {
		chosen, errs := d.helper(ctx).GetPodsForDeletion(d.Node)
		if len(errs) > 0 {
			return nil, fmt.Errorf("choosing the pods of node %s that have to go: %w", d.Node, errors.Join(errs...))
		}
		d.known = map[types.UID]bool{}
		for _, p := range pods {
			d.known[p.UID] = false
		}
		for _, p := range chosen.Pods() {
			d.known[p.UID] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !d.known[p.UID] }), nil
}

// cordoned fails unless the node is cordoned, by whomever.
func (d *Drainer) cordoned(ctx context.Context) error {
	node, err := d.Client.CoreV1().Nodes().Get(ctx, d.Node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading node %s: %w", d.Node, err)
	}
	if !ReadHold(node).Cordoned() {
		return ErrUncordoned
	}
	return nil
}

// evict asks for the eviction of this very pod, once: what to make of a refusal is decided here, not by the client.
func (d *Drainer) evict(ctx context.Context, pod *corev1.Pod) error {
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	}
	return d.Client.PolicyV1().RESTClient().Post().AbsPath("/api/v1").Namespace(pod.Namespace).Resource("pods").
		Name(pod.Name).SubResource("eviction").MaxRetries(0).Body(eviction).Do(ctx).Error()
}

// remove deletes this very pod, whatever a budget says. It has the time to end that it asks for, as after an eviction.
func (d *Drainer) remove(ctx context.Context, pod *corev1.Pod) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}
	return d.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, options)
}

// watchPods keeps the node's pods in a store, and rings for each change.
func (d *Drainer) watchPods(ring func()) (cache.Store, cache.Controller) {
	pods := d.Client.CoreV1().Pods(metav1.NamespaceAll)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = d.ownPods()
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = d.ownPods()
			return pods.Watch(ctx, o)
		},
	}
	return cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, d.Client),
		ObjectType:    &corev1.Pod{},
		Transform:     stripped,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { ring() },
			UpdateFunc: func(any, any) { ring() },
			DeleteFunc: func(any) { ring() },
		},
	})
}

// stripped is a pod without what is a third of it and serves nobody here.
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
	reportAt time.Time // not before then

	explainer   *explainer
	explainedAt time.Time
	confirmAt   time.Time // not before then

	clock    *clock
	excluded time.Time // since when the node is out of the load balancers; zero: it is not
	volumes  *volumes
	forced   []string // pods that were deleted although they refused
	forcing  int      // evictions that may end so, without an answer
}

// answer is what became of an eviction. force: the pod was to be deleted where it is refused; forced is its name where
// that was done.
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

// waitExcluded lets load balancers notice that the node is none of theirs any more, before the first pod goes.
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

// turn looks at everything once and starts what is due. It is true when the drain is done.
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
		pod, force := t.pod, timeout == api.DrainForces && t.refuses() // the queue goes on to newer ones
		if force {
			r.forcing++
		}
		r.working.Go(func() { r.askFor(ctx, pod, force) })
	}
	r.explain(ctx, now)
	r.tell(now)
	return false, nil
}

// finish is when all pods are gone: their volumes are waited for, and the API server has the last word.
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
		return false, nil // what becomes of it is to be said
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

// staying are the pods that the node keeps.
func (r *run) staying() []*corev1.Pod {
	var out []*corev1.Pod
	for _, o := range r.store.List() {
		if pod, is := o.(*corev1.Pod); is && (!r.known[pod.UID] || r.queue.stays(pod.UID)) {
			out = append(out, pod)
		}
	}
	return out
}

// timedOut is the end of a drain that has reached its limit.
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

// state is where the drain is.
func (r *run) state(now time.Time) api.Drain {
	d := r.clock.stamp(r.queue.report(r.config, r.since, now))
	d.Forced = r.forced
	if r.clock.phase == api.DrainDetaches {
		d.Volumes = r.volumes.left
	}
	return d
}

// present are the pods that have to go, as the watch has them. At first, and when there is a pod that was not there
// before, the node may be taking pods: nothing is evicted then, to come back at once.
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

// confirm asks the API server itself, of which the watch is only a late picture.
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

// askFor asks for the eviction of a pod. With force it is deleted where that is refused, and only then: what refused it
// before may be gone.
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

// explain finds out what the refusals by budgets mean. What it can't find out is said in place of it.
func (r *run) explain(ctx context.Context, now time.Time) {
	blocked := r.queue.blocked()
	wait := explainEvery
	if slices.ContainsFunc(blocked, func(t *target) bool { return t.placement == "" }) {
		wait = explainNews
	}
	// Answers that are about to come are waited for, so that one look at a namespace serves all its pods.
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

// tell reports where the drain is, if that is news and it is time.
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
