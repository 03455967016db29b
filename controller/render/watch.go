// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"fmt"
	"maps"
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

	"github.com/noderefit/noderefit/machineconfig"
)

// Kinds that a cluster may lack.
const (
	kindKubeletConfig          = "KubeletConfig"
	kindContainerRuntimeConfig = "ContainerRuntimeConfig"
	kindControllerConfig       = "ControllerConfig"
)

// optionalKind is a kind that is watched as soon as the cluster has it.
type optionalKind struct {
	gvk      schema.GroupVersionKind
	watching bool
	start    func() error
}

// watch starts the watches that every cluster can have, and prepares those that it may lack.
func (r *reconciler) watch(c controller.TypedController[task], from cache.Cache) error {
	for _, start := range []source.TypedSource[task]{
		source.TypedKind(from, &mcfgv1.MachineConfig{}, later(r.configChanged)),
		source.TypedKind(from, &mcfgv1.MachineConfigPool{}, later(r.poolChanged)),
		source.TypedKind(from, &corev1.Node{}, later(r.nodeChanged)),
	} {
		if err := c.Watch(start); err != nil {
			return err
		}
	}
	r.optional = []*optionalKind{
		optional(c, from, mcfgv1.GroupVersion.WithKind(kindKubeletConfig), &mcfgv1.KubeletConfig{}, r.allPools),
		optional(c, from, mcfgv1.GroupVersion.WithKind(kindContainerRuntimeConfig), &mcfgv1.ContainerRuntimeConfig{},
			r.allPools),
		optional(c, from, mcfgv1.GroupVersion.WithKind(kindControllerConfig), &mcfgv1.ControllerConfig{}, r.allPools),
	}
	// Of a MachineConfiguration only that it changed is of interest, of mirrors only what their annotation says.
	kinds := append([]schema.GroupVersionKind{operatorv1.GroupVersion.WithKind("MachineConfiguration")}, mirrorKinds...)
	for _, gvk := range kinds {
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(gvk)
		r.optional = append(r.optional, optional(c, from, gvk, o, r.allPools))
	}
	return nil
}

// mirrorKinds have no status: that nothing can be made of one stands in an annotation.
var mirrorKinds = []schema.GroupVersionKind{
	configv1.GroupVersion.WithKind("ImageDigestMirrorSet"),
	configv1.GroupVersion.WithKind("ImageTagMirrorSet"),
	operatorv1alpha1.GroupVersion.WithKind("ImageContentSourcePolicy"),
}

func optional[T client.Object](
	c controller.TypedController[task], from cache.Cache, gvk schema.GroupVersionKind, object T,
	changed func(context.Context, client.Object, client.Object) map[task]time.Duration,
) *optionalKind {
	return &optionalKind{gvk: gvk, start: func() error {
		return c.Watch(source.TypedKind(from, object, later(func(ctx context.Context, was, is T) map[task]time.Duration {
			return changed(ctx, was, is)
		})))
	}}
}

// watchOptional starts watches of kinds that have come to the cluster since. It asks at each turn and not by a timer:
// whatever such an object is to change, it changes MachineConfigs.
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

// later queues what changed says, each task after its delay: the earliest of several counts. changed gets the old and
// the new object, one of them nil when it comes or goes.
func later[T client.Object](
	changed func(ctx context.Context, was, is T) map[task]time.Duration,
) handler.TypedEventHandler[T, task] {
	type queue = workqueue.TypedRateLimitingInterface[task]
	add := func(q queue, tasks map[task]time.Duration) {
		for t, delay := range tasks {
			q.AddAfter(t, delay)
		}
	}
	var none T
	return handler.TypedFuncs[T, task]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[T], q queue) {
			add(q, changed(ctx, none, e.Object))
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

// configChanged wakes the pools that select a MachineConfig, or the one that a rendered configuration was made for.
func (r *reconciler) configChanged(ctx context.Context, was, is *mcfgv1.MachineConfig) map[task]time.Duration {
	some := is
	if some == nil {
		some = was
	}
	if pool := machineconfig.PoolOf(some.Name); pool != "" {
		return map[task]time.Duration{task(pool): debounce, sweep: debounce}
	}
	out := map[task]time.Duration{}
	pools := &mcfgv1.MachineConfigPoolList{}
	if err := r.cached.List(ctx, pools, client.UnsafeDisableDeepCopy); err != nil {
		logf.FromContext(ctx).Error(err, "listing MachineConfigPools")
		return out
	}
	for i := range pools.Items {
		for _, mc := range []*mcfgv1.MachineConfig{was, is} {
			if mc != nil && selects(&pools.Items[i], mc) {
				out[task(pools.Items[i].Name)] = debounce
			}
		}
	}
	return out
}

func selects(pool *mcfgv1.MachineConfigPool, mc *mcfgv1.MachineConfig) bool {
	s, err := metav1.LabelSelectorAsSelector(pool.Spec.MachineConfigSelector)
	return err == nil && s.Matches(labels.Set(mc.Labels))
}

// poolChanged leaves alone what the pool controller counts.
func (r *reconciler) poolChanged(_ context.Context, was, is *mcfgv1.MachineConfigPool) map[task]time.Duration {
	switch {
	case is == nil:
		return map[task]time.Duration{task(was.Name): debounce, sweep: r.sweepDelay()}
	case was != nil && was.Generation == is.Generation && was.DeletionTimestamp.Equal(is.DeletionTimestamp) &&
		was.Status.Configuration.Name == is.Status.Configuration.Name &&
		maps.Equal(was.Annotations, is.Annotations) && maps.Equal(was.Labels, is.Labels):
		return nil
	}
	return map[task]time.Duration{task(is.Name): debounce, sweep: r.sweepDelay()}
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

func (r *reconciler) allPools(ctx context.Context, _, _ client.Object) map[task]time.Duration {
	out := map[task]time.Duration{}
	pools := &mcfgv1.MachineConfigPoolList{}
	if err := r.cached.List(ctx, pools, client.UnsafeDisableDeepCopy); err != nil {
		logf.FromContext(ctx).Error(err, "listing MachineConfigPools")
	}
	for i := range pools.Items {
		out[task(pools.Items[i].Name)] = debounce
	}
	return out
}
