// SPDX-License-Identifier: Apache-2.0

// Package pool is the controller that says which node goes to which configuration, and when. It tells a node by one
// annotation, and people by the status, the conditions and the events of its pool.
package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/defined"
	"github.com/noderefit/noderefit/progress"
)

// Name of the controller, on the command line and in logs.
const Name = "pool"

const (
	// debounce collects the events of a moment, such as those of a batch of nodes, into one look at the cluster. It adds
	// to the time between one node and the next, which is minutes.
	debounce = 200 * time.Millisecond
	// A look that failed is repeated after retryFirst, doubling up to retryLast.
	retryFirst = 50 * time.Millisecond
	retryLast  = 30 * time.Second
	// told is how many nodes that are not sent anywhere are told in one look. Each write takes its time, and what was
	// decided first is to be looked at again before the last is told.
	told = 100
	// longestSleep is how long nothing is looked at while a window or a soak is waited for: clocks are set.
	longestSleep = time.Minute
	// vainAtMost is how many nodes in a row the controller fails to tell, before it stops until the next try.
	vainAtMost = 3
	// pageSize is how many nodes are asked for at a time where the cache is not good enough.
	pageSize = 500
)

// Setup is what the controller needs to know beside the cluster.
type Setup struct {
	// Self is the name of the node that the process runs on; empty: none of the cluster's.
	Self string
	// Now is the clock by which windows open and soaks end; nil: the machine's.
	Now func() time.Time
	// Certified: the cluster has ControllerConfigs, and Governed: RolloutPolicies. Kinds that come later need another
	// process.
	Certified, Governed bool
	// Gates ask what policies' gates ask; nil: nobody does, and no gate passes.
	Gates Gates
}

// Add puts the controller into a manager. The manager's scheme has to know MachineConfigPools and the kinds of package
// api, and its cache should have CacheOptions.
func (s Setup) Add(mgr ctrl.Manager) error {
	r := &reconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder("machineconfigcontroller-pool"),
		self: s.Self, now: s.Now, gates: s.Gates, report: newReport(), certified: s.Certified, governed: s.Governed,
		nodes: freshest[*corev1.Node]{}, pools: freshest[*mcfgv1.MachineConfigPool]{},
	}
	if r.now == nil {
		r.now = time.Now
	}
	r.defined = defined.NewWatch(mgr.GetAPIReader(), r.now)
	if err := metrics.Registry.Register(r.report); err != nil {
		return fmt.Errorf("adding controller %s: registering metrics: %w", Name, err)
	}
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryFirst, retryLast)
	b := ctrl.NewControllerManagedBy(mgr).Named(Name)
	if r.certified {
		b = b.Watches(&mcfgv1.ControllerConfig{}, soon(), builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	}
	if r.governed {
		b = b.Watches(&api.RolloutPolicy{}, soon(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
			Watches(&corev1.Pod{}, soon())
		kube, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
		if err != nil {
			return fmt.Errorf("adding controller %s: %w", Name, err)
		}
		r.raw = kube.CoreV1().RESTClient()
		if s.Gates != nil {
			b = b.WatchesRawSource(source.Channel(s.Gates.Changed(), soon()))
		}
	}
	return b.
		Watches(&mcfgv1.MachineConfigPool{}, soon(), builder.WithPredicates(poolChanged)).
		Watches(&corev1.Node{}, soon(), builder.WithPredicates(nodeChanged)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1, RateLimiter: limiter}).
		Complete(r)
}

// soon asks for one look at the whole cluster, however many events there are. All pools are looked at together: a node
// that leaves one joins another, and the control plane's pools share what may be out of service.
func soon() handler.EventHandler {
	ask := func(q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		q.AddAfter(reconcile.Request{}, debounce)
	}
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc:  func(_ context.Context, _ event.CreateEvent, q queue) { ask(q) },
		UpdateFunc:  func(_ context.Context, _ event.UpdateEvent, q queue) { ask(q) },
		DeleteFunc:  func(_ context.Context, _ event.DeleteEvent, q queue) { ask(q) },
		GenericFunc: func(_ context.Context, _ event.GenericEvent, q queue) { ask(q) },
	}
}

type reconciler struct {
	client client.Client
	live   client.Reader
	events events.EventRecorder
	self   string
	now    func() time.Time
	gates  Gates
	report *report
	// raw asks what is no object; nil: nothing is asked.
	raw rest.Interface
	// certified: the cluster has ControllerConfigs, and governed: RolloutPolicies, since before this process.
	certified, governed bool

	// What follows is touched by the one worker alone.
	nodes    freshest[*corev1.Node]
	pools    freshest[*mcfgv1.MachineConfigPool]
	read     readings
	looked   bool
	deferred map[string]string // pool to the configuration for which the own node was said to be last
	// known are the policies that there were at the last look.
	known   []api.RolloutPolicy
	refused refusals
	defined *defined.Watch
	// etcdTrouble is what the API server said about etcd last, and etcdAsked when.
	etcdTrouble string
	etcdAsked   time.Time
}

// Reconcile looks at the cluster, says what is to be said, and reports. A pool that fails does not hold up another.
func (r *reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	pools, nodes, err := r.look(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	policies, again, err := r.policies(ctx, pools)
	if err != nil {
		return reconcile.Result{}, err
	}
	etcd, err := r.etcd(ctx, pools, policies)
	if err != nil {
		return reconcile.Result{}, err
	}
	w := assemble(pools, r.read.sorted(nodes), &r.read, policies, etcd, r.answers(), r.self, r.now())
	w.wake(again)
	r.ask(w, policies)
	if w.expirys, err = r.expirys(ctx); err != nil {
		return reconcile.Result{}, err
	}
	r.tell(w)
	var errs []error
	var next reconcile.Result
	for i := range w.pools {
		more, failed := r.sync(ctx, w, i, nodes)
		if more {
			next.RequeueAfter = debounce
		}
		for _, err := range failed {
			errs = append(errs, fmt.Errorf("pool %s: %w", w.pools[i].object.Name, err))
		}
	}
	errs = append(errs, r.writePolicies(ctx, w, policies)...)
	err = errors.Join(errs...)
	if onlyConflicts(errs) {
		log.FromContext(ctx).V(1).Info("somebody else wrote meanwhile", "error", err.Error())
		return reconcile.Result{RequeueAfter: debounce}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if next.RequeueAfter == 0 && !w.next.IsZero() {
		next.RequeueAfter = min(max(w.next.Sub(w.now), debounce), longestSleep)
	}
	return next, nil
}

// onlyConflicts says that nothing went wrong but that others wrote as well, which the next look takes into account.
func onlyConflicts(errs []error) bool {
	return len(errs) > 0 && !slices.ContainsFunc(errs, func(err error) bool { return !conflicts(err) })
}

// conflicts says that an object was not as it was decided upon. For a JSON patch whose test fails the API server has
// 422, as for an object that is not valid, but it names no field.
func conflicts(err error) bool {
	if apierrors.IsConflict(err) {
		return true
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsInvalid(err) {
		return false
	}
	details := status.ErrStatus.Details
	return details == nil || len(details.Causes) == 0
}

// look reads all pools and nodes from the cache. The first time it reads them from the API server as well: the process
// that led before may have sent nodes off which the cache still shows at rest.
func (r *reconciler) look(ctx context.Context) ([]*mcfgv1.MachineConfigPool, map[string]*corev1.Node, error) {
	if !r.looked {
		if err := r.readLive(ctx); err != nil {
			return nil, nil, err
		}
		r.looked = true
	}
	var poolList mcfgv1.MachineConfigPoolList
	if err := r.client.List(ctx, &poolList, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("listing MachineConfigPools: %w", err)
	}
	var nodeList corev1.NodeList
	if err := r.client.List(ctx, &nodeList, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("listing Nodes: %w", err)
	}
	pools := make([]*mcfgv1.MachineConfigPool, 0, len(poolList.Items))
	for i := range poolList.Items {
		pools = append(pools, r.pools.view(&poolList.Items[i]))
	}
	nodes := make(map[string]*corev1.Node, len(nodeList.Items))
	for i := range nodeList.Items {
		nodes[nodeList.Items[i].Name] = r.nodes.view(&nodeList.Items[i])
	}
	maps.DeleteFunc(r.nodes, func(name string, _ *corev1.Node) bool { return nodes[name] == nil })
	there := make(map[string]bool, len(pools))
	for _, p := range pools {
		there[p.Name] = true
	}
	maps.DeleteFunc(r.pools, func(name string, _ *mcfgv1.MachineConfigPool) bool { return !there[name] })
	maps.DeleteFunc(r.refused, func(pool string, _ refusal) bool { return !there[pool] })
	maps.DeleteFunc(r.deferred, func(pool, _ string) bool { return !there[pool] })
	r.read.forget(nodes, there)
	return pools, nodes, nil
}

func (r *reconciler) readLive(ctx context.Context) error {
	var pools mcfgv1.MachineConfigPoolList
	if err := r.live.List(ctx, &pools); err != nil {
		return fmt.Errorf("listing MachineConfigPools: %w", err)
	}
	for i := range pools.Items {
		r.pools.note(&pools.Items[i])
	}
	var page corev1.NodeList
	for {
		if err := r.live.List(ctx, &page, client.Limit(pageSize), client.Continue(page.Continue)); err != nil {
			return fmt.Errorf("listing Nodes: %w", err)
		}
		for i := range page.Items {
			r.noteNode(page.Items[i].DeepCopy())
		}
		if page.Continue == "" {
			return nil
		}
	}
}

func (r *reconciler) noteNode(n *corev1.Node) {
	_, _ = strip(n) // of a Node it can't fail
	r.nodes.note(n)
}

// expirys are those of the cluster's ControllerConfig; none where there is none.
func (r *reconciler) expirys(ctx context.Context) ([]mcfgv1.CertExpiry, error) {
	if !r.certified {
		return nil, nil
	}
	cc := &mcfgv1.ControllerConfig{}
	err := r.client.Get(ctx, client.ObjectKey{Name: api.ControllerConfig}, cc)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading ControllerConfig/%s: %w", api.ControllerConfig, err)
	}
	return expirys(cc), nil
}

// sync does what one pool needs: remember what must not be forgotten, tell the nodes, report. It says whether there is
// more to tell.
func (r *reconciler) sync(ctx context.Context, w *world, i int, nodes map[string]*corev1.Node) (bool, []error) {
	var errs []error
	more := false
	pool, p := w.pools[i].object, w.pools[i].state
	if patch := annotationPatch(pool, p, time.Now()); patch != nil {
		patched := pool.DeepCopy()
		if err := r.client.Patch(ctx, patched, client.RawPatch(types.MergePatchType, patch)); err != nil {
			errs = append(errs, fmt.Errorf("writing the annotations of MachineConfigPool/%s: %w", pool.Name, err))
		} else {
			r.pools.note(patched)
			pool = patched
		}
	}
	if pool.DeletionTimestamp.IsZero() {
		o := w.options(i)
		o.Told = told
		d := decide(p, o)
		w.taken(i, d)
		more = d.More
		errs = append(errs, r.take(ctx, pool, d, nodes)...)
		r.deferSelf(pool, d)
	}
	if r.refused == nil {
		r.refused = refusals{}
	}
	p.Refused = r.refused.text(pool.Name, errs, w.now)
	if err := r.writeStatus(ctx, pool, p, w.expirys); err != nil {
		errs = append(errs, err)
	}
	if text := r.refused.note(pool.Name, errs, w.now); text != "" {
		r.events.Eventf(pool, nil, corev1.EventTypeWarning, api.PoolWritesRefused, "Write", "%s", note(text))
	}
	return more, errs
}

// slow is how long a write takes at least that something holds up. What is refused at once holds no other node up.
const slow = time.Second / 2

// take tells the nodes. One that was told something else meanwhile, or is gone, is looked at again. Where one after the
// other can't be told, the rest waits for the next try: each may take as long as a webhook that does not answer.
func (r *reconciler) take(ctx context.Context, pool *mcfgv1.MachineConfigPool, d decision,
	nodes map[string]*corev1.Node,
) []error {
	var errs []error
	vain := 0
	for _, s := range d.Steps {
		if vain == vainAtMost {
			break
		}
		n, began := nodes[s.Node].DeepCopy(), time.Now()
		err := r.client.Patch(ctx, n, client.RawPatch(types.JSONPatchType, nodePatch(nodes[s.Node], s)))
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			errs = append(errs, fmt.Errorf("telling node %s: %w", s.Node, err))
			vain += rank(!conflicts(err) && time.Since(began) >= slow)
			continue
		}
		vain = 0
		r.noteNode(n)
		if s.sends() {
			log.FromContext(ctx).Info("node sent", "pool", pool.Name, "node", s.Node, "from", s.Before, "to", s.Desired,
				"lift", s.Lift != "", "held", s.Held, "back", s.Back)
			r.events.Eventf(pool, n, corev1.EventTypeNormal, "SetDesiredConfig", "SetDesiredConfig",
				"Targeted node %s to config %s", s.Node, s.Desired)
			if s.Back != "" {
				r.events.Eventf(pool, n, corev1.EventTypeWarning, "RollingBack", "RollingBack",
					"Node %s goes back from %s to %s: gate %s was closed at its deadline", s.Node, s.Before, s.Desired, s.Back)
			}
		}
	}
	return errs
}

// writeStatus reports, if there is anything new to report.
func (r *reconciler) writeStatus(ctx context.Context, pool *mcfgv1.MachineConfigPool, p progress.Pool,
	expirys []mcfgv1.CertExpiry,
) error {
	after := pool.DeepCopy()
	after.Status = status(pool, p, time.Now())
	after.Status.CertExpirys = expirys
	if equality.Semantic.DeepEqual(pool.Status, after.Status) && !api.UnreadableStatus(pool) {
		return nil
	}
	// Not a patch: it would leave out the counts that are zero and never were anything else, and kubectl shows nothing
	// for what is not there. The resource version keeps two writers apart.
	if err := r.client.Status().Update(ctx, after); err != nil {
		return fmt.Errorf("reporting: %w", err)
	}
	r.pools.note(after)
	r.announce(pool, after)
	return nil
}
