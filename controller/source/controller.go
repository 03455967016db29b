// SPDX-License-Identifier: Apache-2.0

// Package source has what the controllers share that make MachineConfigs of other objects. The package decides when
// they look, and how MachineConfigs are named and ordered. The package finds what is beneath a MachineConfig, and
// writes MachineConfigs.
package source

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

const (
	// debounce is how long a change waits for changes that come with it. The render controller waits longer, so that what
	// is applied together is rendered together.
	debounce = 100 * time.Millisecond
	// retryFrom and retryTo limit the back-off after errors of the API server.
	retryFrom, retryTo = 200 * time.Millisecond, time.Minute
	// syncTimeout limits one turn. So a kind that can't be listed is an error in the log and not a silent wait.
	syncTimeout = time.Minute
	// behindAtMost is how many turns in a row may find the cache behind. After these it is an error with its back-off,
	// since something else is wrong then, such as a kind that is gone.
	behindAtMost = 30
	// kindsPace is the time between two looks for kinds that the cluster lacks.
	kindsPace = time.Minute
)

// CacheOptions limit what a manager's cache keeps of rendered MachineConfigs to the metadata. Rendered ones are large
// and many. Code that needs one reads it from the API server.
func CacheOptions() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{&mcfgv1.MachineConfig{}: {Transform: func(o any) (any, error) {
		if mc, ok := o.(*mcfgv1.MachineConfig); ok {
			mc.ManagedFields = nil
			if machineconfig.PoolOf(mc.Name) != "" {
				mc.Spec = mcfgv1.MachineConfigSpec{}
			}
		}
		return o, nil
	}}}
}

// Controller looks at everything at once whenever something changes that it depends on: pools, MachineConfigs, Nodes
// and the objects that MachineConfigs are made of. Objects that make MachineConfigs for one pool depend on each other
// anyway.
type Controller struct {
	Name string
	// Kinds are the kinds that MachineConfigs are made of. Each is watched as soon as the cluster has it.
	Kinds []client.Object
	// Look does the work. has reports whether the cluster has one of the kinds. If Look returns an error that is Behind,
	// the controller tries again soon.
	Look func(ctx context.Context, has func(client.Object) bool) error
	// Every is the time between two looks without a change, 0 for none.
	Every time.Duration
	// Alone means that only changes of Kinds count.
	Alone bool
}

// Add adds the controller to a manager.
func (c Controller) Add(mgr ctrl.Manager) error {
	r := &reconciler{Controller: c, mgr: mgr, watching: map[reflect.Type]bool{}}
	var err error
	r.controller, err = controller.New(c.Name, mgr, controller.Options{
		MaxConcurrentReconciles: 1,
		Reconciler:              r,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryFrom, retryTo),
		ReconciliationTimeout:   syncTimeout,
	})
	if err != nil {
		return fmt.Errorf("adding controller %s: %w", c.Name, err)
	}
	atOnce := source.TypedFunc[reconcile.Request](func(
		_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request],
	) error {
		q.Add(reconcile.Request{}) // kinds that exist from the start would otherwise not be looked for
		return nil
	})
	if err := r.controller.Watch(atOnce); err != nil {
		return fmt.Errorf("adding controller %s: %w", c.Name, err)
	}
	if c.Alone {
		return nil
	}
	for object, when := range map[client.Object]predicate.Funcs{
		&mcfgv1.MachineConfig{}:     configChanged(),
		&mcfgv1.MachineConfigPool{}: {UpdateFunc: poolChanged},
		&corev1.Node{}:              {UpdateFunc: nodeChanged},
	} {
		if err := r.watch(object, when); err != nil {
			return fmt.Errorf("adding controller %s: %w", c.Name, err)
		}
	}
	return nil
}

// reconciler is used by one worker, so its map needs no lock.
type reconciler struct {
	Controller
	mgr        ctrl.Manager
	controller controller.Controller
	watching   map[reflect.Type]bool
	// behind is the number of turns in a row that found the cache behind.
	behind int
}

func (r *reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	lacking, err := r.watchKinds(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	err = r.Look(ctx, func(o client.Object) bool { return r.watching[reflect.TypeOf(o)] })
	if r.behind++; !Behind(err) {
		r.behind = 0
	}
	switch {
	case r.behind > behindAtMost:
		return reconcile.Result{}, fmt.Errorf("tried %d times: %w", r.behind, err)
	case r.behind > 0:
		logf.FromContext(ctx).V(1).Info("trying again", "because", err.Error())
		return reconcile.Result{RequeueAfter: debounce}, nil
	case err != nil:
		return reconcile.Result{}, err
	case lacking:
		return reconcile.Result{RequeueAfter: kindsPace}, nil
	}
	return reconcile.Result{RequeueAfter: r.Every}, nil
}

// watchKinds starts watches of kinds that the cluster has got, and reports whether some are lacking.
func (r *reconciler) watchKinds(ctx context.Context) (lacking bool, err error) {
	for _, kind := range r.Kinds {
		if r.watching[reflect.TypeOf(kind)] {
			continue
		}
		gvk, err := apiutil.GVKForObject(kind, r.mgr.GetScheme())
		if err != nil {
			return lacking, err
		}
		_, err = r.mgr.GetRESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) {
			lacking = true
			continue
		}
		if err != nil {
			return lacking, fmt.Errorf("looking for the kind %s: %w", gvk.Kind, err)
		}
		logf.FromContext(ctx).Info("watching", "kind", gvk.Kind)
		if err := r.watch(kind, predicate.Funcs{}); err != nil {
			return lacking, fmt.Errorf("watching the kind %s: %w", gvk.Kind, err)
		}
		r.watching[reflect.TypeOf(kind)] = true
	}
	return lacking, nil
}

func (r *reconciler) watch(object client.Object, when predicate.Funcs) error {
	ask := func(q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		q.AddAfter(reconcile.Request{}, debounce)
	}
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	soon := handler.Funcs{
		CreateFunc: func(_ context.Context, _ event.CreateEvent, q queue) { ask(q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			if e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() {
				ask(q)
			}
		},
		DeleteFunc: func(_ context.Context, _ event.DeleteEvent, q queue) { ask(q) },
	}
	return r.controller.Watch(source.Kind(r.mgr.GetCache(), object, soon, when))
}

// ofRendered reports whether an object is a rendered configuration. Nothing is made of those.
func ofRendered(o client.Object) bool { return machineconfig.PoolOf(o.GetName()) != "" }

func configChanged() predicate.Funcs {
	return predicate.NewPredicateFuncs(func(o client.Object) bool { return !ofRendered(o) })
}

// poolChanged reports whether a pool changed in more than the counts in its status.
func poolChanged(e event.UpdateEvent) bool {
	a, b := e.ObjectOld, e.ObjectNew
	return a.GetGeneration() != b.GetGeneration() || !a.GetDeletionTimestamp().Equal(b.GetDeletionTimestamp()) ||
		!maps.Equal(a.GetLabels(), b.GetLabels()) || a.GetAnnotations()[api.Runtime] != b.GetAnnotations()[api.Runtime] ||
		a.GetAnnotations()[api.ValuesSchemaKey] != b.GetAnnotations()[api.ValuesSchemaKey]
}

func nodeChanged(e event.UpdateEvent) bool {
	a, ok := e.ObjectOld.(*corev1.Node)
	b, okNew := e.ObjectNew.(*corev1.Node)
	return ok && okNew && (!maps.Equal(a.Labels, b.Labels) ||
		a.Status.NodeInfo.ContainerRuntimeVersion != b.Status.NodeInfo.ContainerRuntimeVersion)
}
