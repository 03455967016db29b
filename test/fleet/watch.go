// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/noderefit/noderefit/api"
)

// Availability is how many of certain objects served, seen from outside for as long as it looks.
type Availability struct {
	mu      sync.Mutex
	least   int
	serving map[types.UID]bool
	serves  func(any) bool
	stop    context.CancelFunc
}

// WatchReady begins to look at the pods of a workload, which serve while they are ready.
func (f *Fleet) WatchReady(ctx context.Context, workload string) *Availability {
	factory := informers.NewSharedInformerFactoryWithOptions(f.Client, 0, informers.WithNamespace("default"),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "app=" + workload }))
	return watch(ctx, factory.Core().V1().Pods().Informer(), func(o any) bool {
		p, ok := o.(*corev1.Pod)
		return ok && ready(p)
	})
}

// WatchNodes begins to look at the nodes of a pool, which serve while nobody has cordoned them. Whether the kubelet is
// heard of in time is no part of it: a machine that is busy with something else delays that.
func (f *Fleet) WatchNodes(ctx context.Context, pool string) *Availability {
	factory := informers.NewSharedInformerFactoryWithOptions(f.Client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = api.NodeRole + pool }))
	return watch(ctx, factory.Core().V1().Nodes().Informer(), func(o any) bool {
		n, ok := o.(*corev1.Node)
		return ok && !n.Spec.Unschedulable
	})
}

// watch returns when it knows how many serve now.
func watch(ctx context.Context, informer cache.SharedIndexInformer, serves func(any) bool) *Availability {
	ctx, stop := context.WithCancel(ctx)
	a := &Availability{least: -1, serving: map[types.UID]bool{}, serves: serves, stop: stop}
	seen, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { a.see(o, false) },
		UpdateFunc: func(_, o any) { a.see(o, false) },
		DeleteFunc: func(o any) { a.see(o, true) },
	})
	if err != nil {
		panic(err) // an informer that was not started takes every handler
	}
	go informer.RunWithContext(ctx)
	cache.WaitForCacheSync(ctx.Done(), seen.HasSynced) // of the handler, which lags behind its informer
	a.mu.Lock()
	defer a.mu.Unlock()
	a.least = len(a.serving)
	return a
}

func (a *Availability) see(o any, gone bool) {
	if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = unknown.Obj
	}
	object, ok := o.(metav1.Object)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if gone || !a.serves(o) {
		delete(a.serving, object.GetUID())
	} else {
		a.serving[object.GetUID()] = true
	}
	a.least = min(a.least, len(a.serving))
}

func ready(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Least ends the look and returns the lowest number that served at one time.
func (a *Availability) Least() int {
	a.stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.least
}
