// SPDX-License-Identifier: Apache-2.0

package source

import (
	"slices"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// condition is any of OpenShift's condition types. They have the same fields, except for the type of Type.
type condition[T ~string] interface {
	~struct {
		Type               T                      `json:"type"`
		Status             corev1.ConditionStatus `json:"status,omitempty"`
		LastTransitionTime metav1.Time            `json:"lastTransitionTime"`
		Reason             string                 `json:"reason,omitempty"`
		Message            string                 `json:"message,omitempty"`
	}
}

// fields is a condition with fields that generic code can name.
type fields[T ~string] struct {
	Type               T
	Status             corev1.ConditionStatus
	LastTransitionTime metav1.Time
	Reason             string
	Message            string
}

// Conditions returns OpenShift's conditions as those of Kubernetes.
func Conditions[C condition[T], T ~string](list []C) (all []metav1.Condition) {
	for _, one := range list {
		c := fields[T](one)
		all = append(all, metav1.Condition{
			Type: string(c.Type), Status: metav1.ConditionStatus(c.Status), LastTransitionTime: c.LastTransitionTime,
			Reason: c.Reason, Message: c.Message,
		})
	}
	return all
}

// ConditionsAs returns Kubernetes' conditions as those of one of OpenShift's kinds.
func ConditionsAs[C condition[T], T ~string](list []metav1.Condition) (all []C) {
	for _, c := range list {
		all = append(all, C(fields[T]{
			Type: T(c.Type), Status: corev1.ConditionStatus(c.Status), LastTransitionTime: c.LastTransitionTime,
			Reason: c.Reason, Message: c.Message,
		}))
	}
	return all
}

// SetPoolConditions puts conditions among those of other controllers, and reports whether anything changed. The time of
// a condition is that of the last change of its status. A new reason or message does not change the time.
func SetPoolConditions(to *[]mcfgv1.MachineConfigPoolCondition, now metav1.Time,
	conditions ...mcfgv1.MachineConfigPoolCondition,
) bool {
	changed := false
	for _, c := range conditions {
		i := slices.IndexFunc(*to, func(old mcfgv1.MachineConfigPoolCondition) bool { return old.Type == c.Type })
		if i < 0 {
			c.LastTransitionTime = now
			*to, changed = append(*to, c), true
			continue
		}
		old := (*to)[i]
		if c.LastTransitionTime = now; old.Status == c.Status && !old.LastTransitionTime.IsZero() {
			c.LastTransitionTime = old.LastTransitionTime
		}
		if c != old {
			(*to)[i], changed = c, true
		}
	}
	return changed
}
