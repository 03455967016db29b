// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"reflect"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// CacheOptions returns what a manager's cache keeps of the kinds that this controller reads. Of a Node that is what a
// rollout depends on, a tenth of the Node. Of Pods the cache keeps the members of etcd alone.
func CacheOptions() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.Node{}:              {Transform: strip},
		&mcfgv1.MachineConfigPool{}: {Transform: cache.TransformStripManagedFields()},
		&corev1.Pod{}:               {Namespaces: etcdNamespaces(), Transform: progress.StripEtcd},
	}
}

// strip drops what no decision needs from a Node: images, volumes, capacities, and the times of the
// kubelet's heartbeats. So a heartbeat does not change the Node.
func strip(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	n.ManagedFields = nil
	for key := range n.Annotations {
		if !strings.HasPrefix(key, "machineconfiguration.openshift.io/") && !strings.HasPrefix(key, "noderefit.dev/") &&
			!strings.HasPrefix(key, api.ValuePrefix) {
			delete(n.Annotations, key)
		}
	}
	n.Spec = corev1.NodeSpec{Unschedulable: n.Spec.Unschedulable, Taints: n.Spec.Taints}
	runtime := n.Status.NodeInfo.ContainerRuntimeVersion
	addresses := n.Status.Addresses // they may be values
	n.Status = corev1.NodeStatus{Conditions: slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type != corev1.NodeReady && c.Type != corev1.NodeDiskPressure && c.Type != corev1.NodeNetworkUnavailable
	})}
	n.Status.Addresses = addresses
	n.Status.NodeInfo.ContainerRuntimeVersion = runtime // the files that are made for a pool depend on the runtime
	for i := range n.Status.Conditions {
		n.Status.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
	return n, nil
}

// nodeChanged passes on those changes of a Node that a decision may depend on.
var nodeChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*corev1.Node)
	after, ok2 := e.ObjectNew.(*corev1.Node)
	if !ok || !ok2 {
		return true
	}
	return !reflect.DeepEqual(before.Annotations, after.Annotations) || !reflect.DeepEqual(before.Labels, after.Labels) ||
		!reflect.DeepEqual(before.Spec, after.Spec) || !reflect.DeepEqual(before.Status, after.Status) ||
		before.UID != after.UID
}}

// poolChanged passes on those changes of a pool that a decision may depend on. This controller's own reports are not
// among them.
var poolChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*mcfgv1.MachineConfigPool)
	after, ok2 := e.ObjectNew.(*mcfgv1.MachineConfigPool)
	if !ok || !ok2 {
		return true
	}
	return before.Generation != after.Generation || before.UID != after.UID ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		!reflect.DeepEqual(before.Annotations, after.Annotations) ||
		rendered(before) != rendered(after)
}}

// rendered returns the render controller's conditions of a pool, without their times.
func rendered(pool *mcfgv1.MachineConfigPool) [2]mcfgv1.MachineConfigPoolCondition {
	said := [2]mcfgv1.MachineConfigPoolCondition{
		find(&pool.Status, mcfgv1.MachineConfigPoolRenderDegraded), find(&pool.Status, api.PoolRenderPending),
	}
	for i := range said {
		said[i].LastTransitionTime = metav1.Time{}
	}
	return said
}

// freshest remembers objects in a newer version than the cache's: the answers to our own writes, and objects that were
// read past the cache. So no decision is made on a state that this process knows to be outdated.
type freshest[T client.Object] map[string]T

func (f freshest[T]) note(o T) { f[o.GetName()] = o }

// view returns the newer of the cached and the remembered object. The remembered one is forgotten once the cache has
// caught up.
func (f freshest[T]) view(cached T) T {
	seen, ok := f[cached.GetName()]
	if !ok {
		return cached
	}
	order, err := resourceversion.CompareResourceVersion(seen.GetResourceVersion(), cached.GetResourceVersion())
	if err != nil || order <= 0 {
		delete(f, cached.GetName())
		return cached
	}
	return seen
}
