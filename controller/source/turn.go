// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"maps"
	"slices"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/noderefit/noderefit/api"
)

// SeriesController makes MachineConfigs of the objects of a series. Of the objects it writes the status, the
// finalizers, and the annotation with the object's place.
type SeriesController[T client.Object, S any] struct {
	Series[T, S]
	// Name is the controller's name. Version is the maker's version in MachineConfigs, "unknown" if empty.
	Name, Version string
	// New is an object without content. List reads the existing objects.
	New  T
	List func(context.Context, client.Reader) ([]T, error)
	// Status returns an object's status. SetStatus sets it.
	Status    func(T) (observed int64, said []metav1.Condition)
	SetStatus func(T, int64, []metav1.Condition)

	client client.Client
}

// Add adds the controller to a manager, whose cache should have CacheOptions.
func (c SeriesController[T, S]) Add(mgr ctrl.Manager) error {
	if err := mcfgv1.Install(mgr.GetScheme()); err != nil {
		return fmt.Errorf("adding controller %s: %w", c.Name, err)
	}
	r := c
	r.client = mgr.GetClient()
	return Controller{Name: c.Name, Kinds: []client.Object{c.New}, Look: func(
		ctx context.Context, has func(client.Object) bool,
	) error {
		if !has(c.New) {
			return nil
		}
		return r.turn(ctx)
	}}.Add(mgr)
}

// turn carries out what is decided. An object gets its finalizers before its first MachineConfig. Its status is written
// after all its MachineConfigs are as they should be, so that a pool is rendered once.
func (c SeriesController[T, S]) turn(ctx context.Context) error {
	w, err := Read(ctx, c.client)
	if err != nil {
		return err
	}
	objects, err := c.List(ctx, c.client)
	if err != nil {
		return fmt.Errorf("listing %ss: %w", c.Kind, err)
	}
	d := c.Decide(w, objects, c.Version)
	var errs []error
	claimed := map[string]T{}
	for _, name := range slices.Sorted(maps.Keys(d.Objects)) {
		object, err := c.claim(ctx, d.Objects[name])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		claimed[name] = object
	}
	if slices.ContainsFunc(errs, Behind) {
		return Worst(errs)
	}
	failed := map[string]bool{}
	for _, mc := range d.Write {
		of := metav1.GetControllerOf(mc).Name
		if _, ok := claimed[of]; !ok {
			failed[of] = true
			continue
		}
		if err := Write(ctx, c.client, w.Config(mc.Name), mc); err != nil {
			failed[of] = true
			errs = append(errs, err)
			if !Behind(err) {
				d.Objects[of].say(reasonWrite, "%s", Untold(err))
			}
		}
	}
	for _, mc := range d.Remove {
		if owner := metav1.GetControllerOf(mc); owner != nil && failed[owner.Name] {
			continue // this may be the only MachineConfig of an object whose next one could not be written
		}
		errs = append(errs, Remove(ctx, c.client, mc))
	}
	if slices.ContainsFunc(errs, Behind) {
		return Worst(errs) // the decision is out of date
	}
	for _, name := range slices.Sorted(maps.Keys(claimed)) {
		errs = append(errs, c.report(ctx, claimed[name], d.Objects[name].Conditions()))
	}
	return Worst(errs)
}

// claim writes an object's place and its finalizers, which are named after its MachineConfigs, as upstream's are. claim
// returns the object after that.
func (c SeriesController[T, S]) claim(ctx context.Context, v *Verdict) (T, error) {
	var none T
	changed, ok := v.Object.DeepCopyObject().(T)
	if !ok {
		return none, fmt.Errorf("claiming %s/%s: the object has another type", c.Kind, v.Object.GetName())
	}
	if _, said := changed.GetAnnotations()[api.NameSuffix]; !said && v.Number >= 0 {
		changed.SetAnnotations(over(changed.GetAnnotations(), map[string]string{api.NameSuffix: SuffixOf(v.Number)}))
	}
	finalizers := slices.DeleteFunc(changed.GetFinalizers(), func(f string) bool {
		return IsNamed(f, c.What) && !v.Configs[f]
	})
	for _, name := range slices.Sorted(maps.Keys(v.Configs)) {
		if v.Object.GetDeletionTimestamp() == nil && !slices.Contains(finalizers, name) {
			finalizers = append(finalizers, name)
		}
	}
	changed.SetFinalizers(finalizers)
	if maps.Equal(changed.GetAnnotations(), v.Object.GetAnnotations()) &&
		slices.Equal(finalizers, v.Object.GetFinalizers()) {
		return changed, nil
	}
	patch := client.MergeFromWithOptions(v.Object, client.MergeFromWithOptimisticLock{})
	if err := c.client.Patch(ctx, changed, patch); err != nil {
		return none, fmt.Errorf("claiming %s/%s: %w", c.Kind, v.Object.GetName(), err)
	}
	return changed, nil
}

// ends reports whether an object's status needs no more writing. Such an object is being deleted, and still has
// MachineConfigs or has no finalizers left. If only another controller's finalizer is left, the status is still
// written, because pools wait for it.
func (c SeriesController[T, S]) ends(object T) bool {
	left := object.GetFinalizers()
	return object.GetDeletionTimestamp() != nil && (len(left) == 0 || slices.ContainsFunc(left, func(f string) bool {
		return IsNamed(f, c.What)
	}))
}

// report writes the status if it differs.
func (c SeriesController[T, S]) report(ctx context.Context, object T, conditions []metav1.Condition) error {
	if c.ends(object) {
		return nil
	}
	observed, said := c.Status(object)
	timed(conditions, said, metav1.Now())
	if observed == object.GetGeneration() && equality.Semantic.DeepEqual(said, conditions) {
		return nil
	}
	changed, ok := object.DeepCopyObject().(T)
	if !ok {
		return fmt.Errorf("setting the status of %s/%s: the object has another type", c.Kind, object.GetName())
	}
	c.SetStatus(changed, object.GetGeneration(), conditions)
	patch := client.MergeFromWithOptions(client.Object(object), client.MergeFromWithOptimisticLock{})
	if err := c.client.Status().Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("setting the status of %s/%s: %w", c.Kind, object.GetName(), err)
	}
	last := conditions[len(conditions)-1]
	logf.FromContext(ctx).Info("handled", "object", c.Kind+"/"+object.GetName(), "reason", last.Reason,
		"message", last.Message)
	return nil
}
