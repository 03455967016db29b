// SPDX-License-Identifier: Apache-2.0

package source

import (
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
