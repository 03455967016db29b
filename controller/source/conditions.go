// SPDX-License-Identifier: Apache-2.0

package source

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// condition is what OpenShift's kinds of conditions have in common: only the type of Type is another.
type condition[T ~string] interface {
	~struct {
		Type               T                      `json:"type"`
		Status             corev1.ConditionStatus `json:"status,omitempty"`
		LastTransitionTime metav1.Time            `json:"lastTransitionTime"`
		Reason             string                 `json:"reason,omitempty"`
		Message            string                 `json:"message,omitempty"`
	}
}

// fields is a condition whose fields can be named.
type fields[T ~string] struct {
	Type               T
	Status             corev1.ConditionStatus
	LastTransitionTime metav1.Time
	Reason             string
	Message            string
}

// Conditions are OpenShift's conditions as Kubernetes has them.
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

// ConditionsAs are conditions as one of OpenShift's kinds has them.
func ConditionsAs[C condition[T], T ~string](list []metav1.Condition) (all []C) {
	for _, c := range list {
		all = append(all, C(fields[T]{
			Type: T(c.Type), Status: corev1.ConditionStatus(c.Status), LastTransitionTime: c.LastTransitionTime,
			Reason: c.Reason, Message: c.Message,
		}))
	}
	return all
}
