// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	configv1 "github.com/openshift/api/config/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
)

// The conditions of policies. Pending and Applied are OpenShift's. Stalled is what GitOps tools read.
const (
	conditionPending = configv1.ImagePolicyPending
	conditionApplied = configv1.ImagePolicyApplied
	conditionStalled = "Stalled"
)

// Reasons of the conditions of policies.
const (
	reasonRendered  = "Rendered"
	reasonInvalid   = "Invalid"
	reasonPool      = "RefusedForPools"
	reasonConflicts = "ConflictScopes" // OpenShift's
)

// conditions returns the conditions that a policy should have, on the basis of those that it has.
func (o *origin) conditions(had []metav1.Condition, now metav1.Time) []metav1.Condition {
	reason, errs := reasonRendered, []error{o.err, o.beside}
	for _, pool := range slices.Sorted(maps.Keys(o.pools)) {
		errs = append(errs, o.pools[pool])
	}
	switch {
	case o.err != nil:
		reason = reasonInvalid
	case len(o.pools) > 0:
		reason = reasonPool
	case o.beside != nil:
		reason = reasonConflicts
	}
	message := ""
	if err := errors.Join(errs...); err != nil {
		message = api.ShortReason(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	out := slices.Clone(had)
	set := func(kind string, is bool) {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&out, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message,
			ObservedGeneration: o.object.GetGeneration(), LastTransitionTime: now})
	}
	set(conditionApplied, reason == reasonRendered)
	set(conditionPending, reason != reasonRendered)
	set(conditionStalled, reason != reasonRendered)
	return out
}

// setConditions writes the conditions of a policy, where they have changed. It does nothing for other kinds.
func (r *reconciler) setConditions(ctx context.Context, o *origin) error {
	if o.demand == nil {
		return nil
	}
	var said *[]metav1.Condition
	changed := o.object.DeepCopyObject()
	switch c := changed.(type) {
	case *configv1.ClusterImagePolicy:
		said = &c.Status.Conditions
	case *configv1.ImagePolicy:
		said = &c.Status.Conditions
	}
	object, ok := changed.(client.Object)
	if !ok || said == nil {
		return fmt.Errorf("setting the conditions of %s: the object has another type", o)
	}
	had := *said
	*said = o.conditions(had, metav1.Now())
	if equality.Semantic.DeepEqual(had, *said) {
		return nil
	}
	if err := r.client.Status().Patch(ctx, object, client.MergeFrom(o.object)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("setting the conditions of %s: %w", o, err)
	}
	return nil
}
