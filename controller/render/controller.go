// SPDX-License-Identifier: Apache-2.0

// Package render makes the rendered configuration of each pool. It merges the MachineConfigs that the pool selects,
// publishes the result under a name that is a digest of the content, and points spec.configuration there. In the pool's
// status it writes the conditions RenderDegraded and RenderPending. With the announcement of a change it also writes
// Reconciling and Stalled, which the pool controller takes back.
package render

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	operatorv1 "github.com/openshift/api/operator/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/defined"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/signature"
)

// The events on the pool.
const (
	eventGenerated  = "RenderedConfigGenerated" // as upstream
	eventOverridden = "OSImageURLOverridden"    // as upstream
	eventWarning    = "RenderedConfigWarning"
	eventRefused    = "RenderedConfigRefused" // an object was removed because its content does not fit its name
	eventUnpinned   = "PinRemoved"
	eventFailed     = "SyncFailed"
)

const (
	// debounce is how long a change waits for further changes, as when a directory is applied.
	debounce = 500 * time.Millisecond
	// sweepDelay is how long it may take to notice that a rendered configuration is unneeded.
	sweepDelay = 30 * time.Second
	// retryFrom and retryTo bound the back-off after errors of the API server.
	retryFrom, retryTo = 200 * time.Millisecond, time.Minute
	// syncTimeout bounds one turn, so that a kind that can't be listed is an error in the log and not a silent wait.
	syncTimeout = time.Minute
	// noteLimit is the longest note of an event that the API takes, in bytes.
	noteLimit = 1024
)

// Options are the options of the controller.
type Options struct {
	// Version is the version of this program that rendered configurations name, "unknown" if empty.
	Version string
	// Retention is how long a rendered configuration stays after no object names it any more, 10 minutes if zero.
	Retention time.Duration
}

// Add adds the controller to a manager. The manager's cache should have source.CacheOptions.
func (o Options) Add(mgr ctrl.Manager) error {
	scheme := mgr.GetScheme()
	if err := errors.Join(mcfgv1.Install(scheme), operatorv1.Install(scheme), api.Install(scheme)); err != nil {
		return fmt.Errorf("adding controller render: %w", err)
	}
	if err := register(metrics.Registry); err != nil {
		return fmt.Errorf("adding controller render: %w", err)
	}
	r := &reconciler{
		cached: mgr.GetClient(), live: mgr.GetAPIReader(), mapper: mgr.GetRESTMapper(),
		events:    mgr.GetEventRecorder("machineconfigcontroller-rendercontroller"),
		version:   cmp.Or(o.Version, "unknown"),
		retention: cmp.Or(o.Retention, 10*time.Minute),
		concluded: map[string]int{}, genuine: map[string]identity{}, unneeded: map[string]time.Time{},
		defined: map[string]*defined.Watch{}, whole: map[string]string{}, rested: map[string]time.Time{},
	}
	c, err := controller.NewTyped("render", mgr, controller.TypedOptions[task]{
		// One worker is enough, and no configuration is swept away while a pool is being pointed at it.
		MaxConcurrentReconciles: 1,
		Reconciler:              reconcile.TypedFunc[task](r.reconcile),
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[task](retryFrom, retryTo),
		ReconciliationTimeout:   syncTimeout,
	})
	if err != nil {
		return fmt.Errorf("adding controller render: %w", err)
	}
	if err := r.watch(c, mgr.GetCache()); err != nil {
		return fmt.Errorf("adding controller render: %w", err)
	}
	return nil
}

// task is an entry of the controller's queue: the name of a pool, an announcement, or sweep.
type task string

// sweep is not a name that a pool can have.
const sweep task = "/sweep"

// reconciler is used by one worker, so its maps need no lock.
type reconciler struct {
	cached  client.Client // the manager's cache, with rendered MachineConfigs without their content; writes everything
	live    client.Reader // the API server itself
	mapper  meta.RESTMapper
	events  events.EventRecorder
	version string

	changes changes
	// defined knows, by pool, which definitions were away. again is when to look at the pool of this turn again because of
	// them.
	defined map[string]*defined.Watch
	// whole has, by pool, the configuration that was rendered last while all definitions were there.
	whole map[string]string
	// rested has, by pool, when the newest of its MachineConfigs was made, as of the last look at which nothing was to
	// change. The objects of any older definition were all back at that time. Objects that are missing later were deleted
	// by people.
	rested map[string]time.Time
	again  time.Time
	// concluded has, by pool, how many of the changes the last rendering knew of.
	concluded map[string]int
	retention time.Duration
	optional  []*optionalKind
	// genuine has the rendered configurations whose content was seen to have the digest of their name.
	genuine map[string]identity
	// unneeded has, by name, since when no object names a rendered configuration.
	unneeded map[string]time.Time
}

// identity is one version of the content of one object.
type identity struct {
	uid        string
	generation int64
}

func identify(mc *mcfgv1.MachineConfig) identity { return identity{string(mc.UID), mc.Generation} }

func (r *reconciler) reconcile(ctx context.Context, t task) (reconcile.Result, error) {
	if err := r.watchOptional(ctx); err != nil {
		return reconcile.Result{}, err
	}
	var again time.Duration
	var err error
	r.again = time.Time{}
	if pool, is := t.announced(); is {
		err = r.announce(ctx, pool)
	} else if t == sweep {
		again, err = r.sweep(ctx)
	} else {
		err = r.reconcilePool(ctx, string(t))
		if !r.again.IsZero() {
			again = max(time.Until(r.again), debounce)
		}
	}
	if isAgain(err) {
		logf.FromContext(ctx).V(1).Info("trying again", "because", err.Error())
		return reconcile.Result{RequeueAfter: debounce}, nil
	}
	if err != nil {
		r.complain(ctx, t, err)
	}
	return reconcile.Result{RequeueAfter: again}, err
}

// complain makes an event on a pool for which something could not be done and could not be written into its status.
func (r *reconciler) complain(ctx context.Context, t task, err error) {
	name, is := t.announced()
	if !is {
		name = string(t)
	}
	pool := &mcfgv1.MachineConfigPool{}
	if t != sweep && r.cached.Get(ctx, client.ObjectKey{Name: name}, pool) == nil {
		r.event(pool, corev1.EventTypeWarning, eventFailed, "Render", api.ShortReason(err.Error()))
	}
}

// isAgain reports whether another program wrote meanwhile, or a cache is behind. The next turn sees the newer state.
func isAgain(err error) bool { return apierrors.IsConflict(err) }

func (r *reconciler) reconcilePool(ctx context.Context, name string) error {
	pool := &mcfgv1.MachineConfigPool{}
	if err := r.cached.Get(ctx, client.ObjectKey{Name: name}, pool); err != nil {
		if apierrors.IsNotFound(err) {
			// whole and rested stay: a pool that is made again with its definition may go on from them.
			forget(name)
			return nil
		}
		return fmt.Errorf("reading MachineConfigPool/%s: %w", name, err)
	}
	if pool.DeletionTimestamp != nil {
		return nil
	}
	seen := r.changes.of(name)
	in, err := r.observe(ctx, pool)
	if err != nil {
		return err
	}
	out := decide(in)
	if out.publish {
		in.rendering.carried, in.rendering.signatures = in.carried, in.signatures
		if err := r.publish(ctx, pool, in.rendering); isAgain(err) {
			return err
		} else if err != nil {
			said := []mcfgv1.MachineConfigPoolCondition{unpublished(err), out.conditions[0]}
			return errors.Join(err, r.conclude(ctx, pool, said, seen))
		}
	}
	// This comes before a node is sent anywhere: the configuration carries the node's drift policy, hooks and signatures.
	if err := r.carry(ctx, pool, in.carried, in.signatures); err != nil {
		return err
	}
	if pool, err = r.point(ctx, pool, out); err != nil {
		return err
	}
	return r.conclude(ctx, pool, out.conditions, seen)
}

// conclude writes the conditions that a look at a pool led to, and notes which changes the look knew of. Where
// something has changed since, the pool is about to be looked at again, and keeps reporting that.
func (r *reconciler) conclude(
	ctx context.Context, pool *mcfgv1.MachineConfigPool, cs []mcfgv1.MachineConfigPoolCondition, seen int,
) error {
	if r.changes.of(pool.Name) != seen {
		cs = append(slices.DeleteFunc(cs, func(c mcfgv1.MachineConfigPoolCondition) bool {
			return c.Type == api.PoolRenderPending
		}), pendingAgain()...)
	}
	if err := r.say(ctx, pool, cs); err != nil {
		return err
	}
	r.concluded[pool.Name] = seen
	return r.acknowledge(ctx, pool)
}

// observe gathers everything that a decision about a pool depends on.
func (r *reconciler) observe(ctx context.Context, pool *mcfgv1.MachineConfigPool) (input, error) {
	in := input{pool: pool}
	parts, err := r.parts(ctx)
	if err != nil {
		return in, err
	}
	in.waiting, in.refused = waitingFor(pool, parts)
	in.pin, in.pinErr = api.Decode[*api.Pin](pool.Annotations, api.PinKey)
	if in.pin != nil && in.pin.Config != pool.Spec.Configuration.Name {
		if _, err := r.take(ctx, in.pin.Config); isUnusable(err) {
			in.pinErr = err
		} else if err != nil {
			return in, err
		}
	}
	base, err := r.base(ctx)
	if err != nil {
		return in, err
	}
	base, wrong, err := r.streamed(ctx, pool, base)
	if err != nil {
		return in, err
	}
	sources, err := r.sources(ctx)
	if err != nil {
		return in, err
	}
	if in.rendering, in.failure = renderPool(pool, sources, base); wrong != nil {
		in.rendering, in.failure = nil, &failure{reasonNoStream, wrong.Error()}
	}
	if err := r.place(ctx, pool, in.rendering); err != nil {
		return in, err
	}
	in.waiting, in.signatures = append(in.waiting, altered(in.rendering, parts)...), signature.Of(sources)
	nodes := &corev1.NodeList{}
	if len(in.waiting) > 0 || in.moves() {
		if err := r.cached.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
			return in, fmt.Errorf("listing Nodes: %w", err)
		}
	}
	in.waiting = append(in.waiting, in.unsigned(nodes.Items)...)
	away, err := r.away(ctx, in, nodes.Items)
	if err != nil {
		return in, err
	}
	in.hold(away, nodes.Items)
	var problem error
	if in.carried, problem, err = r.carried(ctx, pool); err != nil {
		return in, err
	}
	if problem != nil && in.failure == nil {
		in.failure = &failure{api.HooksUnusable, strings.ReplaceAll(problem.Error(), "\n", "; ")}
	}
	if in.failure != nil || !in.moves() {
		return in, nil
	}
	in.failure, err = r.unreconcilable(ctx, pool, in.rendering)
	if until := time.Now().Add(lookAgain); in.failure != nil && in.rendering.image == plan.ImageThere &&
		(r.again.IsZero() || until.Before(r.again)) {
		r.again = until // the node with the image may leave, of which the pool is not told
	}
	return in, err
}

// base returns what every pool is merged over: the default images of the ControllerConfig. It returns nil without one.
func (r *reconciler) base(ctx context.Context) (*machineconfig.Document, error) {
	if !r.watching(kindControllerConfig) {
		return nil, nil
	}
	cc := &mcfgv1.ControllerConfig{}
	err := r.cached.Get(ctx, client.ObjectKey{Name: api.ControllerConfig}, cc)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading ControllerConfig/%s: %w", api.ControllerConfig, err)
	}
	base := machineconfig.Defaults(cc)
	if err := api.UnreadableImages(cc); err != nil {
		base.Object.Annotations = map[string]string{api.UnreadableKey: err.Error()}
	}
	return base, nil
}

// sources returns the MachineConfigs that people and other controllers wrote. The objects belong to the cache.
func (r *reconciler) sources(ctx context.Context) ([]*mcfgv1.MachineConfig, error) {
	return r.list(ctx, func(mc *mcfgv1.MachineConfig) bool { return machineconfig.PoolOf(mc.Name) == "" })
}

func (r *reconciler) list(ctx context.Context, want func(*mcfgv1.MachineConfig) bool) ([]*mcfgv1.MachineConfig, error) {
	list := &mcfgv1.MachineConfigList{}
	if err := r.cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing MachineConfigs: %w", err)
	}
	var out []*mcfgv1.MachineConfig
	for i := range list.Items {
		if want(&list.Items[i]) {
			out = append(out, &list.Items[i])
		}
	}
	return out, nil
}

// unreconcilable returns why no node of the pool can get from what the pool has to what was rendered. It returns nil if
// a node can.
func (r *reconciler) unreconcilable(
	ctx context.Context, pool *mcfgv1.MachineConfigPool, to *rendering,
) (*failure, error) {
	if pool.Spec.Configuration.Name == "" && pool.Status.Configuration.Name == "" {
		if found := plan.Refused(to.config, to.image); len(found) > 0 {
			return blame(pool, &machineconfig.Config{}, to, nil, found), nil
		}
		return nil, nil
	}
	var from []*machineconfig.Config
	for _, name := range present(pool, to.config.Name) {
		c, err := r.take(ctx, name)
		if isUnusable(err) {
			continue // nothing to compare with; the nodes check for themselves
		}
		if err != nil {
			return nil, err
		}
		from = append(from, c)
	}
	unreached, err := unreachable(from, to.config, nil, to.image)
	if err != nil || len(unreached) == 0 {
		return nil, err
	}
	policy, err := r.policy(ctx)
	if err != nil {
		return nil, err
	}
	if unreached, err = unreachable(from, to.config, policy, to.image); err != nil || len(unreached) == 0 {
		return nil, err
	}
	return blame(pool, from[0], to, policy, unreached), nil
}

// policy returns the policy of MachineConfiguration/cluster, and nil without one. An invalid policy is left aside,
// since a policy can only allow more.
func (r *reconciler) policy(ctx context.Context) (*plan.Policy, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(operatorv1.GroupVersion.WithKind("MachineConfiguration"))
	err := r.live.Get(ctx, client.ObjectKey{Name: "cluster"}, object)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading MachineConfiguration/cluster: %w", err)
	}
	data, err := object.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("reading MachineConfiguration/cluster: %w", err)
	}
	policy, err := plan.ParsePolicy(data)
	if err != nil {
		logf.FromContext(ctx).Info("leaving MachineConfiguration/cluster aside", "because", err.Error())
		return nil, nil
	}
	return policy, nil
}

// point sets spec.configuration and removes an outdated pin, in one patch. It returns the pool as it is then.
func (r *reconciler) point(
	ctx context.Context, pool *mcfgv1.MachineConfigPool, out decision,
) (*mcfgv1.MachineConfigPool, error) {
	changed := pool.DeepCopy()
	if out.target != "" {
		changed.Spec.Configuration.Name, changed.Spec.Configuration.Source = out.target, out.sources
	}
	if out.unpin != "" {
		delete(changed.Annotations, api.PinKey)
	}
	if err := r.nameValues(ctx, changed); err != nil {
		return pool, err
	}
	was := pool.Spec.Configuration
	same := was.Name == changed.Spec.Configuration.Name && slices.Equal(was.Source, changed.Spec.Configuration.Source)
	if same && out.unpin == "" && changed.Annotations[api.NamedValuesKey] == pool.Annotations[api.NamedValuesKey] {
		return pool, nil
	}
	patch := client.MergeFromWithOptions(pool, client.MergeFromWithOptimisticLock{})
	if err := r.cached.Patch(ctx, changed, patch); err != nil {
		return pool, fmt.Errorf("setting spec.configuration of MachineConfigPool/%s: %w", pool.Name, err)
	}
	logf.FromContext(ctx).Info("pool has a configuration", "pool", pool.Name, "config", changed.Spec.Configuration.Name,
		"was", was.Name, "unpinned", out.unpin != "")
	if out.unpin != "" {
		r.event(changed, corev1.EventTypeNormal, eventUnpinned, "Unpin", out.unpin)
	}
	return changed, nil
}

// say writes the conditions of this controller.
func (r *reconciler) say(
	ctx context.Context, pool *mcfgv1.MachineConfigPool, cs []mcfgv1.MachineConfigPoolCondition,
) error {
	changed := pool.DeepCopy()
	news := source.SetPoolConditions(&changed.Status.Conditions, metav1.Now(), cs...)
	show(pool.Name, changed.Status.Conditions)
	if !news {
		return nil
	}
	patch := client.MergeFromWithOptions(pool, client.MergeFromWithOptimisticLock{})
	if err := r.cached.Status().Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("setting conditions of MachineConfigPool/%s: %w", pool.Name, err)
	}
	for _, c := range cs {
		if c.Status == corev1.ConditionTrue && c.Reason != api.Rendering && c.Type != api.Reconciling &&
			c.Type != api.PoolRenderWarning {
			logf.FromContext(ctx).Info("pool can't be rendered", "pool", pool.Name, "condition", c.Type,
				"reason", c.Reason, "message", c.Message)
		}
	}
	return nil
}

func (r *reconciler) event(on client.Object, kind, reason, action, note string) {
	if len(note) > noteLimit {
		note = strings.ToValidUTF8(note[:noteLimit-len("…")], "") + "…"
	}
	r.events.Eventf(on, nil, kind, reason, action, "%s", note)
}
