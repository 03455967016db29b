// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/noderefit/noderefit/machineconfig"
)

// Annotate sets an annotation of a Node, and removes the annotation where the value is empty. A Node that is gone is no
// error. A Node that was made again under the same name is left alone: the error is a conflict.
func Annotate(ctx context.Context, to client.Client, n *corev1.Node, key, value string) error {
	var is any
	if value != "" {
		is = value
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": n.UID, "annotations": map[string]any{key: is}}})
	if err != nil {
		return err
	}
	about := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	err = to.Patch(ctx, about, client.RawPatch(types.MergePatchType, patch))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing annotation %s of Node/%s: %w", key, n.Name, err)
	}
	return nil
}

// World is what Look reads of the cluster. The objects belong to the cache.
type World struct {
	// Pools are the pools that are not being deleted, by name.
	Pools []*mcfgv1.MachineConfigPool
	// Configs are the MachineConfigs that pools are rendered from, by name.
	Configs []*mcfgv1.MachineConfig
	Nodes   []*corev1.Node
}

// Read reads the World.
func Read(ctx context.Context, from client.Reader) (*World, error) {
	var pools mcfgv1.MachineConfigPoolList
	var configs mcfgv1.MachineConfigList
	var nodes corev1.NodeList
	for _, list := range []client.ObjectList{&pools, &configs, &nodes} {
		if err := from.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing %T: %w", list, err)
		}
	}
	w := &World{}
	for i := range pools.Items {
		if pools.Items[i].DeletionTimestamp == nil {
			w.Pools = append(w.Pools, &pools.Items[i])
		}
	}
	for i := range configs.Items {
		if mc := &configs.Items[i]; machineconfig.PoolOf(mc.Name) == "" {
			w.Configs = append(w.Configs, mc)
		}
	}
	for i := range nodes.Items {
		w.Nodes = append(w.Nodes, &nodes.Items[i])
	}
	slices.SortFunc(w.Pools, func(a, b *mcfgv1.MachineConfigPool) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(w.Configs, func(a, b *mcfgv1.MachineConfig) int { return cmp.Compare(a.Name, b.Name) })
	return w, nil
}

// Config returns a MachineConfig of the World, and nil if none has that name.
func (w *World) Config(name string) *mcfgv1.MachineConfig {
	i := slices.IndexFunc(w.Configs, func(mc *mcfgv1.MachineConfig) bool { return mc.Name == name })
	if i < 0 {
		return nil
	}
	return w.Configs[i]
}

// Apply has MachineConfigs written and removed in the World, as in a cluster. It reports whether that changes anything.
func (w *World) Apply(write, remove []*mcfgv1.MachineConfig) (changed bool) {
	next := map[string]*mcfgv1.MachineConfig{}
	for _, mc := range w.Configs {
		next[mc.Name] = mc
	}
	for _, mc := range remove {
		delete(next, mc.Name)
		changed = true
	}
	for _, mc := range write {
		changed = changed || !Same(next[mc.Name], mc)
		next[mc.Name] = mc
	}
	w.Configs = slices.SortedFunc(maps.Values(next), func(a, b *mcfgv1.MachineConfig) int {
		return cmp.Compare(a.Name, b.Name)
	})
	return changed
}

// Behind reports whether another program wrote at the same time, or the cache is behind. The next turn sees the new
// state.
func Behind(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// Worst joins errors. Errors that are Behind, which the next turn may not meet, count only if no others exist. Then one
// is returned.
func Worst(errs []error) error {
	var soon error
	var rest []error
	for _, err := range errs {
		if Behind(err) {
			soon = err
		} else {
			rest = append(rest, err)
		}
	}
	if err := errors.Join(rest...); err != nil {
		return err
	}
	return soon
}

// Untold returns the text of an API server's error. An error about an invalid object is reduced to its fields, because
// the server quotes their values.
func Untold(err error) string {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsInvalid(err) {
		return OneLine(err)
	}
	var fields []string
	name := ""
	if d := status.ErrStatus.Details; d != nil {
		name = d.Name
		for _, cause := range d.Causes {
			fields = append(fields, cause.Field)
		}
	}
	return fmt.Sprintf("MachineConfig/%s is refused: invalid fields %s", name, strings.Join(fields, ", "))
}

// OneLine returns an error, which may consist of several, on one line for a condition.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// Onto returns a MachineConfig as it is to be, on top of an existing one, if any. It has the content of made, with the
// labels, annotations and owners that others have set. A MachineConfig can have one controlling owner, so another one
// is dropped.
func Onto(is, made *mcfgv1.MachineConfig) *mcfgv1.MachineConfig {
	if is == nil {
		return made.DeepCopy()
	}
	to := is.DeepCopy()
	if !SameSpec(&is.Spec, &made.Spec) {
		to.Spec = *made.Spec.DeepCopy()
	}
	to.Labels, to.Annotations = over(is.Labels, made.Labels), over(is.Annotations, made.Annotations)
	to.OwnerReferences = append(slices.DeleteFunc(to.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Controller != nil && *o.Controller || slices.ContainsFunc(made.OwnerReferences,
			func(m metav1.OwnerReference) bool { return m.Kind == o.Kind && m.Name == o.Name })
	}), made.OwnerReferences...)
	return to
}

// Same reports whether a MachineConfig already is as Onto returned it.
func Same(is, to *mcfgv1.MachineConfig) bool { return is != nil && equality.Semantic.DeepEqual(is, to) }

func over(under, by map[string]string) map[string]string {
	out := maps.Clone(under)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, by)
	return out
}

// SameSpec reports whether two specs are the same, in any spelling of the API server's.
func SameSpec(a, b *mcfgv1.MachineConfigSpec) bool {
	x, y := a.DeepCopy(), b.DeepCopy()
	x.Config.Raw, y.Config.Raw = nil, nil
	return sameJSON(a.Config.Raw, b.Config.Raw) && equality.Semantic.DeepEqual(x, y)
}

func sameJSON(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return bytes.Equal(a, b)
	}
	return reflect.DeepEqual(x, y)
}

// Write creates a MachineConfig, or changes the existing one, to the result of Onto. The parameter is, the existing
// one, may be nil.
func Write(ctx context.Context, c client.Writer, is, to *mcfgv1.MachineConfig) error {
	switch {
	case is == nil:
		if err := c.Create(ctx, to); err != nil {
			return fmt.Errorf("creating MachineConfig/%s: %w", to.Name, err)
		}
		logf.FromContext(ctx).Info("made", "config", to.Name)
	case !Same(is, to):
		patch := client.MergeFromWithOptions(is, client.MergeFromWithOptimisticLock{})
		if err := c.Patch(ctx, to, patch); err != nil {
			return fmt.Errorf("changing MachineConfig/%s: %w", to.Name, err)
		}
		logf.FromContext(ctx).Info("changed", "config", to.Name)
	}
	return nil
}

// Remove deletes a MachineConfig if it is still as it was read.
func Remove(ctx context.Context, c client.Writer, mc *mcfgv1.MachineConfig) error {
	if mc.DeletionTimestamp != nil {
		return nil
	}
	err := c.Delete(ctx, mc, client.Preconditions{UID: &mc.UID, ResourceVersion: &mc.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing MachineConfig/%s: %w", mc.Name, err)
	}
	logf.FromContext(ctx).Info("removed", "config", mc.Name)
	return nil
}
