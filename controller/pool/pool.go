// SPDX-License-Identifier: Apache-2.0

// Package pool is the controller that decides which node goes to which configuration, and when. The controller tells a
// node by one annotation. It tells people by the status, the conditions and the events of the node's pool.
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

// Name is the controller's name on the command line and in logs.
const Name = "pool"

const (
	// debounce gathers the events of a moment, such as those of a batch of nodes, into one look at the cluster. It delays
	// the next node by this time, which is little beside the minutes that a node takes.
	debounce = 200 * time.Millisecond
	// A look that failed is repeated after retryFirst. The delay doubles up to retryLast.
	retryFirst = 50 * time.Millisecond
	retryLast  = 30 * time.Second
	// told is how many of the nodes that are not sent anywhere are told something in one look. Each write takes time, and
	// the first decision is to be renewed before the last node is told.
	told = 100
	// longestSleep is the longest time between two looks while a window or a soak is awaited, because people set clocks.
	longestSleep = time.Minute
	// vainAtMost is how many nodes in a row the controller fails to tell before it stops until the next try.
	vainAtMost = 3
	// pageSize is how many nodes a list from the API server itself has per page.
	pageSize = 500
)

// Setup is what the controller needs to know besides the cluster.
type Setup struct {
	// Self is the name of the node that the process runs on; empty if the process does not run on a node of the cluster.
	Self string
	// Now returns the time by which windows open and soaks end; nil means the machine's clock.
	Now func() time.Time
	// Certified is true where the cluster has ControllerConfigs, and Governed where it has RolloutPolicies. A kind that
	// the cluster gets later is seen only after a restart.
	Certified, Governed bool
	// Gates asks the questions of policies' gates; nil means that no question is asked and no gate passes.
	Gates Gates
}

// Add adds the controller to a manager. The manager's scheme has to have MachineConfigPools and the kinds of package
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

// soon asks for one look at the whole cluster, however many events come. A look is at all pools together. A node that
// leaves a pool joins another, and the control plane's pools share what may be out of service.
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
	// raw requests paths of the API server that are not objects; nil means that no path is requested.
	raw rest.Interface
	// certified is true where the cluster had ControllerConfigs before this process began, and governed where it had
	// RolloutPolicies.
	certified, governed bool

	// Only the one worker touches the fields below.
	nodes    freshest[*corev1.Node]
	pools    freshest[*mcfgv1.MachineConfigPool]
	read     readings
	looked   bool
	deferred map[string]string // by pool, the configuration for which it was reported that the own node waits
	// known are the policies of the last look.
	known   []api.RolloutPolicy
	refused refusals
	defined *defined.Watch
	// joined is what is known of new nodes.
	joined map[types.UID]*joined
	// etcdTrouble is the API server's last answer about etcd, and etcdAsked its time.
	etcdTrouble string
	etcdAsked   time.Time
}

// Reconcile looks at the cluster, tells the nodes, and reports. A pool that fails does not hold up another pool.
func (r *reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	pools, nodes, err := r.look(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	errs := r.label(ctx, pools, nodes)
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

// onlyConflicts reports whether all errors are conflicts with other writers, which the next look takes into account.
func onlyConflicts(errs []error) bool {
	return len(errs) > 0 && !slices.ContainsFunc(errs, func(err error) bool { return !conflicts(err) })
}

// conflicts reports whether an object had changed since the decision. Where the test of a JSON patch fails, the API
// server answers 422, as for an invalid object, but names no field.
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

// look reads all pools and nodes from the cache. The first look reads the API server as well: the process that led
// before may have sent nodes that the cache still shows at rest.
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
	_, _ = strip(n) // strip does not fail for a Node
	r.nodes.note(n)
}

// expirys returns those of the cluster's ControllerConfig, and nothing if the cluster does not have a ControllerConfig.
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

// sync does what one pool needs: it writes the pool's annotations, tells the nodes, and reports. sync returns whether
// more is left to tell.
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

// A write that takes at least slow is held up, as by a webhook. A write that is refused sooner holds no other node up.
const slow = time.Second / 2

// take tells the nodes. A node that was told something else meanwhile, or is gone, is left to the next look. Where
// vainAtMost nodes in a row can't be told, the rest waits for the next try. Each write may take as long as a webhook
// that does not answer.
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
		r.tellTrial(pool, nodes[s.Node], n, s)
		r.tellReboot(pool, nodes[s.Node], n, s)
		r.noteNode(n)
		if s.sends() {
			log.FromContext(ctx).Info("node sent", "pool", pool.Name, "node", s.Node, "from", s.Before, "to", s.Desired,
				"lift", s.Lift != "", "held", s.Held, "back", s.Back)
			r.events.Eventf(pool, n, corev1.EventTypeNormal, "SetDesiredConfig", "SetDesiredConfig",
				"Targeted node %s to config %s", s.Node, s.Desired)
			r.tellWithheld(pool, n, s)
			if s.Back != "" {
				r.events.Eventf(pool, n, corev1.EventTypeWarning, "RollingBack", "RollingBack",
					"Node %s goes back from %s to %s: gate %s was closed at its deadline", s.Node, s.Before, s.Desired, s.Back)
			}
		}
	}
	return errs
}

// writeStatus writes the pool's status where it has changed.
func (r *reconciler) writeStatus(ctx context.Context, pool *mcfgv1.MachineConfigPool, p progress.Pool,
	expirys []mcfgv1.CertExpiry,
) error {
	after := pool.DeepCopy()
	after.Status = status(pool, p, time.Now())
	after.Status.CertExpirys = expirys
	if equality.Semantic.DeepEqual(pool.Status, after.Status) && !api.UnreadableStatus(pool) {
		return nil
	}
	// This is not a patch. A patch would leave out the counts that are zero and were never set, and kubectl shows nothing
	// for a missing count. The resource version keeps two writers apart.
	if err := r.client.Status().Update(ctx, after); err != nil {
		return fmt.Errorf("reporting: %w", err)
	}
	r.pools.note(after)
	r.announce(pool, after)
	return nil
}
