// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
)

// announcement, followed by the name of a pool, is the task to report that the pool is about to be rendered. That is
// done at once, while rendering waits for further changes. Until the pool is rendered, its configuration is not yet
// what its MachineConfigs ask for, and nothing else in the pool shows that.
const announcement = "/announce/"

// announced returns the pool of an announcement, and whether the task is an announcement.
func (t task) announced() (pool string, is bool) { return strings.CutPrefix(string(t), announcement) }

// changes counts, for each pool, the changes of what the pool is made of. The watches count, and the worker reads.
type changes struct {
	mu   sync.Mutex
	seen map[string]int
}

func (c *changes) note(pool string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	c.seen[pool]++
}

func (c *changes) of(pool string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[pool]
}

// pendingAgain returns the conditions of a pool that is about to be rendered. The pool controller takes the last two
// back.
func pendingAgain() []mcfgv1.MachineConfigPoolCondition {
	const why = "something has changed that the pool's configuration is made of"
	return []mcfgv1.MachineConfigPoolCondition{
		{Type: api.PoolRenderPending, Status: corev1.ConditionTrue, Reason: api.Rendering, Message: why},
		{Type: api.Reconciling, Status: corev1.ConditionTrue, Reason: api.PoolRenderPending, Message: why},
		{Type: api.Stalled, Status: corev1.ConditionFalse},
	}
}

// announce reports that a pool is about to be rendered, unless the pool was rendered meanwhile: nothing would take the
// report back then. Where the pool was not, its task is still to come, since each counted change has the pool rendered
// as well.
func (r *reconciler) announce(ctx context.Context, name string) error {
	if r.concluded[name] == r.changes.of(name) {
		return nil
	}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		pool := &mcfgv1.MachineConfigPool{}
		if err := r.live.Get(ctx, client.ObjectKey{Name: name}, pool); err != nil {
			return client.IgnoreNotFound(err)
		}
		changed := pool.DeepCopy()
		if pool.DeletionTimestamp != nil ||
			!source.SetPoolConditions(&changed.Status.Conditions, metav1.Now(), pendingAgain()...) {
			return nil
		}
		patch := client.MergeFromWithOptions(pool, client.MergeFromWithOptimisticLock{})
		return client.IgnoreNotFound(r.cached.Status().Patch(ctx, changed, patch))
	})
	if err != nil {
		return fmt.Errorf("announcing that MachineConfigPool/%s is rendered again: %w", name, err)
	}
	return nil
}

// acknowledge notes which generation of the pool was dealt with, once all results are written.
func (r *reconciler) acknowledge(ctx context.Context, pool *mcfgv1.MachineConfigPool) error {
	generation := strconv.FormatInt(pool.Generation, 10)
	if pool.Annotations[api.RenderedGeneration] == generation {
		return nil
	}
	// No other program writes this annotation. It stays true for that generation after any other write.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{api.RenderedGeneration: generation},
	}})
	if err != nil {
		return err
	}
	err = r.cached.Patch(ctx, pool.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("noting the generation of MachineConfigPool/%s: %w", pool.Name, err)
	}
	return nil
}

// asksForAnother reports whether a change of an object asks for another configuration. It gets the object before and
// after the change, or only one of the two if the object came or went.
func asksForAnother(objects []client.Object) bool {
	if len(objects) != 2 {
		return true
	}
	was, is := objects[0], objects[1]
	return was.GetGeneration() != is.GetGeneration() || !maps.Equal(was.GetLabels(), is.GetLabels()) ||
		was.GetAnnotations()[api.Templates] != is.GetAnnotations()[api.Templates]
}

// isFor reports whether an object is part of a pool's configuration. An object without a selector is for every pool.
func isFor(o client.Object, pool *mcfgv1.MachineConfigPool) bool {
	var of *metav1.LabelSelector
	switch o := o.(type) {
	case *mcfgv1.MachineConfig:
		return selects(pool, o)
	case *mcfgv1.KubeletConfig:
		of = o.Spec.MachineConfigPoolSelector
	case *mcfgv1.ContainerRuntimeConfig:
		of = o.Spec.MachineConfigPoolSelector
	default:
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(of)
	return err == nil && !selector.Empty() && selector.Matches(labels.Set(pool.Labels))
}
