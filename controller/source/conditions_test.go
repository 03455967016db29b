// SPDX-License-Identifier: Apache-2.0

package source

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestConditionsOfOpenShiftAreThoseOfKubernetes(t *testing.T) {
	at := metav1.NewTime(time.Unix(1700000000, 0))
	theirs := []mcfgv1.KubeletConfigCondition{
		{Type: mcfgv1.KubeletConfigSuccess, Status: corev1.ConditionTrue, LastTransitionTime: at, Reason: "R", Message: "m"},
		{Type: mcfgv1.KubeletConfigFailure, Status: corev1.ConditionFalse},
	}
	ours := []metav1.Condition{
		{Type: "Success", Status: metav1.ConditionTrue, LastTransitionTime: at, Reason: "R", Message: "m"},
		{Type: "Failure", Status: metav1.ConditionFalse},
	}
	if d := cmp.Diff(ours, Conditions(theirs)); d != "" {
		t.Errorf("read: %s", d)
	}
	if d := cmp.Diff(theirs, ConditionsAs[mcfgv1.KubeletConfigCondition](ours)); d != "" {
		t.Errorf("written: %s", d)
	}
	if got := ConditionsAs[mcfgv1.ContainerRuntimeConfigCondition](nil); got != nil {
		t.Errorf("none became %v", got)
	}
}
