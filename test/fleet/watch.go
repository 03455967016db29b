// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// Availability is how many pods of a workload were ready, seen from outside for as long as it looks.
type Availability struct {
	mu    sync.Mutex
	least int
	ready map[string]bool
	stop  context.CancelFunc
}

// WatchReady begins to look at the pods of a workload. It returns when it knows how many are ready now.
func (f *Fleet) WatchReady(ctx context.Context, workload string) *Availability {
	ctx, stop := context.WithCancel(ctx)
	a := &Availability{least: -1, ready: map[string]bool{}, stop: stop}
	selector := labels.SelectorFromSet(labels.Set{"app": workload}).String()
	factory := informers.NewSharedInformerFactoryWithOptions(f.Client, 0, informers.WithNamespace("default"),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = selector }))
	informer := factory.Core().V1().Pods().Informer()
	seen, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { a.see(o, false) },
		UpdateFunc: func(_, o any) { a.see(o, false) },
		DeleteFunc: func(o any) { a.see(o, true) },
	})
	if err != nil {
		panic(err) // an informer that was not started takes every handler
	}
	factory.Start(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), seen.HasSynced) // of the handler, which lags behind its informer
	a.mu.Lock()
	defer a.mu.Unlock()
	a.least = len(a.ready)
	return a
}

func (a *Availability) see(o any, gone bool) {
	if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = unknown.Obj
	}
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if gone || !ready(p) {
		delete(a.ready, string(p.UID))
	} else {
		a.ready[string(p.UID)] = true
	}
	if a.least > len(a.ready) {
		a.least = len(a.ready)
	}
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

// Least ends the look and returns the lowest number of ready pods there was.
func (a *Availability) Least() int {
	a.stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.least
}
