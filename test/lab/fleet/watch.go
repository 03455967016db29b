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

// Availability counts how many of certain objects serve, seen from outside until Least is called.
type Availability struct {
	mu      sync.Mutex
	least   int
	serving map[types.UID]bool
	serves  func(any) bool
	stop    context.CancelFunc
}

// WatchReady begins to watch the pods of a workload. A pod serves while it is ready.
func (f *Fleet) WatchReady(ctx context.Context, workload string) *Availability {
	factory := informers.NewSharedInformerFactoryWithOptions(f.Client, 0, informers.WithNamespace("default"),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "app=" + workload }))
	return watch(ctx, factory.Core().V1().Pods().Informer(), func(o any) bool {
		p, ok := o.(*corev1.Pod)
		return ok && ready(p)
	})
}

// WatchNodes begins to watch the nodes of a pool. A node serves while it is not cordoned. Late heartbeats of the
// kubelet don't count: a busy machine delays them.
func (f *Fleet) WatchNodes(ctx context.Context, pool string) *Availability {
	factory := informers.NewSharedInformerFactoryWithOptions(f.Client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = api.NodeRole + pool }))
	return watch(ctx, factory.Core().V1().Nodes().Informer(), func(o any) bool {
		n, ok := o.(*corev1.Node)
		return ok && !n.Spec.Unschedulable
	})
}

// watch returns when it knows how many objects serve now.
func watch(ctx context.Context, informer cache.SharedIndexInformer, serves func(any) bool) *Availability {
	ctx, stop := context.WithCancel(ctx)
	a := &Availability{least: -1, serving: map[types.UID]bool{}, serves: serves, stop: stop}
	seen, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { a.see(o, false) },
		UpdateFunc: func(_, o any) { a.see(o, false) },
		DeleteFunc: func(o any) { a.see(o, true) },
	})
	if err != nil {
		panic(err) // an informer that was not started accepts every handler
	}
	go informer.RunWithContext(ctx)
	cache.WaitForCacheSync(ctx.Done(), seen.HasSynced) // the handler's sync, which is later than the informer's
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

// Least ends the watch, and returns the lowest number of objects that served at one time.
func (a *Availability) Least() int {
	a.stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.least
}
