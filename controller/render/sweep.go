// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"fmt"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

// nodeKeys are the annotations by which a node needs a rendered configuration.
var nodeKeys = []string{api.CurrentConfig, api.DesiredConfig, api.PreviousConfig}

// needs is what keeps rendered configurations: their names, and pools that keep all of theirs because their annotations
// can't be read.
type needs struct{ names, pools map[string]bool }

func (n needs) has(name string) bool { return n.names[name] || n.pools[machineconfig.PoolOf(name)] }

// needed collects the needs of pools and nodes.
func needed(pools []mcfgv1.MachineConfigPool, nodes []map[string]string) needs {
	out := needs{map[string]bool{}, map[string]bool{}}
	for i := range pools {
		p := &pools[i]
		out.names[p.Spec.Configuration.Name] = true
		out.names[p.Status.Configuration.Name] = true
		pin, err := api.Decode[*api.Pin](p.Annotations, api.PinKey)
		if err != nil {
			out.pools[p.Name] = true
		} else if pin != nil {
			out.names[pin.Config], out.names[pin.From] = true, true
		}
		history, err := api.Decode[[]string](p.Annotations, api.HistoryKey)
		if err != nil {
			out.pools[p.Name] = true
		}
		for _, name := range history {
			out.names[name] = true
		}
	}
	for _, annotations := range nodes {
		for _, key := range nodeKeys {
			out.names[annotations[key]] = true
		}
		// What can't be read is not tried, so its configurations are not needed for it.
		if order, err := api.Decode[api.Trial](annotations, api.TrialKey); err == nil {
			out.names[order.Config], out.names[order.From] = true, true
		}
		tried, err := api.Decode[api.Tried](annotations, api.TriedKey)
		if err == nil && (tried.Ended.IsZero() || annotations[api.DesiredConfig] == tried.Config) {
			out.names[tried.Config], out.names[tried.From] = true, true
		}
	}
	return out
}

// sweepable reports whether a rendered configuration may go once nothing needs it. A person or another program made an
// object without either mark, and may need it.
func sweepable(mc *mcfgv1.MachineConfig) bool {
	return mc.DeletionTimestamp == nil && (mc.Annotations[api.GeneratedBy] != "" || mc.Annotations[api.RestoredFrom] != "")
}

// ripe notes since when rendered configurations are unneeded. It returns those that have been unneeded for the whole
// retention. next is the time until the next is, and 0 if there is no next.
func ripe(
	rendered []*mcfgv1.MachineConfig, needed needs, since map[string]time.Time, now time.Time, retention time.Duration,
) (out []*mcfgv1.MachineConfig, next time.Duration) {
	there := map[string]bool{}
	for _, mc := range rendered {
		there[mc.Name] = true
		if needed.has(mc.Name) || !sweepable(mc) {
			delete(since, mc.Name)
			continue
		}
		from, ok := since[mc.Name]
		if !ok {
			from = now
			since[mc.Name] = now
		}
		left := retention - now.Sub(from)
		if left <= 0 {
			out = append(out, mc)
		} else if next == 0 || left < next {
			next = left
		}
	}
	for name := range since {
		if !there[name] {
			delete(since, name)
		}
	}
	return out, next
}

// sweepDelay gathers the changes of a rollout, since a sweep is never urgent.
func (r *reconciler) sweepDelay() time.Duration { return min(sweepDelay, r.retention) }

// sweep looks after all rendered configurations. Configurations that nodes gave back, or that were changed, are
// verified. Those that nodes gave back become their pool's. Those that nothing needs are removed. sweep returns when to
// look again.
func (r *reconciler) sweep(ctx context.Context) (time.Duration, error) {
	rendered, err := r.list(ctx, func(mc *mcfgv1.MachineConfig) bool { return machineconfig.PoolOf(mc.Name) != "" })
	if err != nil {
		return 0, err
	}
	if err := r.tend(ctx, rendered); err != nil {
		return 0, err
	}
	cached, err := r.read(ctx, r.cached, &corev1.NodeList{})
	if err != nil {
		return 0, err
	}
	candidates, next := ripe(rendered, cached, r.unneeded, time.Now(), r.retention)
	if len(candidates) == 0 {
		return next, nil
	}
	// The cache may be behind, and a deletion can't be undone.
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	live, err := r.read(ctx, r.live, nodes)
	if err != nil {
		return 0, err
	}
	for _, mc := range candidates {
		if live.has(mc.Name) {
			delete(r.unneeded, mc.Name)
			continue
		}
		if err := r.remove(ctx, mc); err != nil {
			return 0, err
		}
		delete(r.unneeded, mc.Name)
		logf.FromContext(ctx).Info("removed what nothing needs any more", "config", mc.Name)
	}
	return next, nil
}

// read collects the needs from pools and nodes. nodes is an empty list of the kind to read the nodes as.
func (r *reconciler) read(ctx context.Context, from client.Reader, nodes client.ObjectList) (needs, error) {
	pools := &mcfgv1.MachineConfigPoolList{}
	if err := from.List(ctx, pools, client.UnsafeDisableDeepCopy); err != nil {
		return needs{}, fmt.Errorf("listing MachineConfigPools: %w", err)
	}
	if err := from.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return needs{}, fmt.Errorf("listing Nodes: %w", err)
	}
	var annotations []map[string]string
	switch list := nodes.(type) {
	case *corev1.NodeList:
		for i := range list.Items {
			annotations = append(annotations, list.Items[i].Annotations)
		}
	case *metav1.PartialObjectMetadataList:
		for i := range list.Items {
			annotations = append(annotations, list.Items[i].Annotations)
		}
	}
	return needed(pools.Items, annotations), nil
}

// tend verifies rendered configurations that were changed or given back, and makes those that were given back their
// pool's.
func (r *reconciler) tend(ctx context.Context, rendered []*mcfgv1.MachineConfig) error {
	for _, known := range rendered {
		restored := known.Annotations[api.RestoredFrom] != ""
		if known.DeletionTimestamp != nil || !restored && known.Generation <= 1 {
			continue
		}
		pool := &mcfgv1.MachineConfigPool{}
		err := r.cached.Get(ctx, client.ObjectKey{Name: machineconfig.PoolOf(known.Name)}, pool)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading MachineConfigPool/%s: %w", machineconfig.PoolOf(known.Name), err)
		}
		if err != nil || pool.DeletionTimestamp != nil {
			pool = nil
		}
		if r.genuine[known.Name] == identify(known) && (pool == nil || !restored || owns(pool, known)) {
			continue
		}
		if err := r.tendOne(ctx, pool, known.Name, restored); err != nil {
			return err
		}
	}
	return nil
}

func (r *reconciler) tendOne(ctx context.Context, pool *mcfgv1.MachineConfigPool, name string, restored bool) error {
	mc := &mcfgv1.MachineConfig{}
	if err := r.live.Get(ctx, client.ObjectKey{Name: name}, mc); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil
		}
		return fmt.Errorf("reading MachineConfig/%s: %w", name, err)
	}
	if _, err := verify(mc); err != nil {
		if !isUnusable(err) {
			return err
		}
		return r.refuse(ctx, pool, mc, err)
	}
	r.genuine[name] = identify(mc)
	if pool == nil || !restored {
		return nil
	}
	return r.adopt(ctx, pool, mc)
}
