// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	operatorv1 "github.com/openshift/api/operator/v1"
	operatorv1alpha1 "github.com/openshift/api/operator/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

// Kinds that a cluster may lack.
const (
	kindKubeletConfig          = "KubeletConfig"
	kindContainerRuntimeConfig = "ContainerRuntimeConfig"
	kindControllerConfig       = "ControllerConfig"
	kindNodeHook               = "NodeHook"
	kindOSImageStream          = "OSImageStream"
)

// optionalKind is a kind that is watched as soon as the cluster has it.
type optionalKind struct {
	gvk      schema.GroupVersionKind
	watching bool
	start    func() error
}

// watch starts the watches of the kinds that every cluster has, and prepares those of the kinds that it may lack.
func (r *reconciler) watch(c controller.TypedController[task], from cache.Cache) error {
	for _, start := range []source.TypedSource[task]{
		source.TypedKind(from, &mcfgv1.MachineConfig{}, later(r.changes.note, r.configChanged)),
		source.TypedKind(from, &mcfgv1.MachineConfigPool{}, later(r.changes.note, r.poolChanged)),
		source.TypedKind(from, &corev1.Node{}, later(r.changes.note, r.nodeChanged)),
	} {
		if err := c.Watch(start); err != nil {
			return err
		}
	}
	r.optional = []*optionalKind{
		optional(r, c, from, mcfgv1.GroupVersion.WithKind(kindKubeletConfig), &mcfgv1.KubeletConfig{}, r.partChanged),
		optional(r, c, from, mcfgv1.GroupVersion.WithKind(kindContainerRuntimeConfig), &mcfgv1.ContainerRuntimeConfig{},
			r.partChanged),
		optional(r, c, from, mcfgv1.GroupVersion.WithKind(kindControllerConfig), &mcfgv1.ControllerConfig{}, r.partChanged),
		optional(r, c, from, mcfgv1.GroupVersion.WithKind(kindOSImageStream), &mcfgv1.OSImageStream{}, r.allPools),
		optional(r, c, from, api.GroupVersion.WithKind(kindNodeHook), &api.NodeHook{}, r.allPools),
	}
	// The metadata is enough: of a MachineConfiguration only the change matters, and of mirrors only the annotation.
	partial := func(gvk schema.GroupVersionKind, changed func(context.Context, ...client.Object) map[task]time.Duration) {
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(gvk)
		r.optional = append(r.optional, optional(r, c, from, gvk, o, changed))
	}
	partial(operatorv1.GroupVersion.WithKind("MachineConfiguration"), r.allPools)
	// Of an OSStream and an ImagePolicy only the MachineConfigs matter, and that the definition is there. What is wrong
	// with an ImagePolicy is the matter of a namespace.
	for _, gvk := range []schema.GroupVersionKind{
		api.GroupVersion.WithKind("OSStream"), configv1.GroupVersion.WithKind("ImagePolicy"),
	} {
		partial(gvk, func(context.Context, ...client.Object) map[task]time.Duration { return nil })
	}
	for _, gvk := range mirrorKinds {
		partial(gvk, r.partChanged)
	}
	return nil
}

// mirrorKinds are those of which an annotation reports that nothing can be made of an object. Most have no status.
var mirrorKinds = []schema.GroupVersionKind{
	configv1.GroupVersion.WithKind("ImageDigestMirrorSet"),
	configv1.GroupVersion.WithKind("ImageTagMirrorSet"),
	configv1.GroupVersion.WithKind("Image"),
	configv1.GroupVersion.WithKind("ClusterImagePolicy"),
	operatorv1alpha1.GroupVersion.WithKind("ImageContentSourcePolicy"),
}

func optional[T interface {
	client.Object
	comparable
}](
	r *reconciler, c controller.TypedController[task], from cache.Cache, gvk schema.GroupVersionKind, object T,
	changed func(context.Context, ...client.Object) map[task]time.Duration,
) *optionalKind {
	var none T
	there := func(ctx context.Context, was, is T) map[task]time.Duration {
		var objects []client.Object
		for _, o := range []T{was, is} {
			if o != none {
				objects = append(objects, o)
			}
		}
		return changed(ctx, objects...)
	}
	return &optionalKind{gvk: gvk, start: func() error {
		return c.Watch(source.TypedKind(from, object, later(r.changes.note, there)))
	}}
}

// watchOptional starts watches of kinds that the cluster got meanwhile. It asks at each turn, without a timer: an
// object of such a kind takes effect through MachineConfigs, whose change brings a turn.
func (r *reconciler) watchOptional(ctx context.Context) error {
	for _, k := range r.optional {
		if k.watching {
			continue
		}
		_, err := r.mapper.RESTMapping(k.gvk.GroupKind(), k.gvk.Version)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("looking for the kind %s: %w", k.gvk.Kind, err)
		}
		logf.FromContext(ctx).Info("watching", "kind", k.gvk.Kind)
		if err := k.start(); err != nil {
			return fmt.Errorf("watching the kind %s: %w", k.gvk.Kind, err)
		}
		k.watching = true
	}
	return nil
}

func (r *reconciler) watching(kind string) bool {
	for _, k := range r.optional {
		if k.gvk.Kind == kind {
			return k.watching
		}
	}
	return false
}

// later queues the tasks that changed returns, each after its delay. Of several delays of a task, the shortest counts.
// changed gets the old and the new object, one of them nil when the object comes or goes.
//
// note counts the announcements. Objects that were there when the watch began are not announced, since they may not
// have changed.
func later[T client.Object](
	note func(pool string), changed func(ctx context.Context, was, is T) map[task]time.Duration,
) handler.TypedEventHandler[T, task] {
	type queue = workqueue.TypedRateLimitingInterface[task]
	add := func(q queue, tasks map[task]time.Duration) {
		for t, delay := range tasks {
			if pool, is := t.announced(); is {
				note(pool)
			}
			q.AddAfter(t, delay)
		}
	}
	var none T
	return handler.TypedFuncs[T, task]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[T], q queue) {
			tasks := changed(ctx, none, e.Object)
			maps.DeleteFunc(tasks, func(t task, _ time.Duration) bool {
				_, is := t.announced()
				return is && e.IsInInitialList
			})
			add(q, tasks)
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[T], q queue) {
			if e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() {
				add(q, changed(ctx, e.ObjectOld, e.ObjectNew))
			}
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[T], q queue) {
			add(q, changed(ctx, e.Object, none))
		},
	}
}

// configChanged wakes the pools that select a MachineConfig, or the pool that a rendered configuration was made for.
func (r *reconciler) configChanged(ctx context.Context, was, is *mcfgv1.MachineConfig) map[task]time.Duration {
	some := is
	if some == nil {
		some = was
	}
	if pool := machineconfig.PoolOf(some.Name); pool != "" {
		return map[task]time.Duration{task(pool): debounce, sweep: debounce}
	}
	var objects []client.Object
	for _, mc := range []*mcfgv1.MachineConfig{was, is} {
		if mc != nil {
			objects = append(objects, mc)
		}
	}
	return r.wake(ctx, objects, func(pool *mcfgv1.MachineConfigPool) bool {
		// A MachineConfig may have signatures of what a pool renders to that does not select the MachineConfig.
		return slices.ContainsFunc(objects, func(o client.Object) bool {
			return isFor(o, pool) || o.GetAnnotations()[api.SignaturesKey] != ""
		})
	})
}

// wake has the pools rendered that which selects. It announces a pool where the objects are for that pool and ask for
// another configuration than before.
func (r *reconciler) wake(ctx context.Context, objects []client.Object, which func(*mcfgv1.MachineConfigPool) bool,
) map[task]time.Duration {
	out := map[task]time.Duration{}
	pools := &mcfgv1.MachineConfigPoolList{}
	if err := r.cached.List(ctx, pools, client.UnsafeDisableDeepCopy); err != nil {
		logf.FromContext(ctx).Error(err, "listing MachineConfigPools")
		return out
	}
	for i := range pools.Items {
		pool := &pools.Items[i]
		if !which(pool) {
			continue
		}
		out[task(pool.Name)] = debounce
		if asksForAnother(objects) && slices.ContainsFunc(objects, func(o client.Object) bool { return isFor(o, pool) }) {
			out[announcement+task(pool.Name)] = 0
		}
	}
	return out
}

func selects(pool *mcfgv1.MachineConfigPool, mc *mcfgv1.MachineConfig) bool {
	s, err := metav1.LabelSelectorAsSelector(pool.Spec.MachineConfigSelector)
	return err == nil && s.Matches(labels.Set(mc.Labels))
}

// poolChanged ignores changes of the counts that the pool controller writes.
func (r *reconciler) poolChanged(_ context.Context, was, is *mcfgv1.MachineConfigPool) map[task]time.Duration {
	switch {
	case is == nil:
		return map[task]time.Duration{task(was.Name): debounce, sweep: r.sweepDelay()}
	case was != nil && was.Generation == is.Generation && was.DeletionTimestamp.Equal(is.DeletionTimestamp) &&
		was.Status.Configuration.Name == is.Status.Configuration.Name &&
		maps.Equal(was.Annotations, is.Annotations) && maps.Equal(was.Labels, is.Labels):
		return nil
	}
	tasks := map[task]time.Duration{task(is.Name): debounce, sweep: r.sweepDelay()}
	if was != nil && was.Annotations[api.PinKey] != is.Annotations[api.PinKey] {
		tasks[announcement+task(is.Name)] = 0 // changes of the spec show in the generation
	}
	return tasks
}

func (r *reconciler) nodeChanged(_ context.Context, was, is *corev1.Node) map[task]time.Duration {
	if was != nil && is != nil {
		same := true
		for _, key := range nodeKeys {
			same = same && was.Annotations[key] == is.Annotations[key]
		}
		if same {
			return nil
		}
	}
	return map[task]time.Duration{sweep: r.sweepDelay()}
}

// allPools has all pools looked at again, without an announcement.
func (r *reconciler) allPools(ctx context.Context, _ ...client.Object) map[task]time.Duration {
	return r.wake(ctx, nil, func(*mcfgv1.MachineConfigPool) bool { return true })
}

// partChanged wakes all pools. An object that is not for a pool may have been for the pool before, or may take the
// place of an object that is.
func (r *reconciler) partChanged(ctx context.Context, objects ...client.Object) map[task]time.Duration {
	return r.wake(ctx, objects, func(*mcfgv1.MachineConfigPool) bool { return true })
}
