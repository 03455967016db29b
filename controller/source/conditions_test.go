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

// latest is what operators read: of the conditions that have changed last, the first one.
func latest(conditions []metav1.Condition) (kind string) {
	var at metav1.Time
	for _, c := range conditions {
		if kind == "" || at.Before(&c.LastTransitionTime) {
			kind, at = c.Type, c.LastTransitionTime
		}
	}
	return kind
}

func TestTheLatestConditionSaysWhetherAnObjectHasFailed(t *testing.T) {
	invalid, lacking := problem{reason: "Invalid", message: "x"}, problem{reason: "NoPool", message: "y", waits: true}
	second := time.Unix(1700000000, 0)
	var said []metav1.Condition
	for i, step := range []struct {
		problems []problem
		want     string
	}{
		{[]problem{lacking}, "Failure"},
		{[]problem{invalid}, "Failure"},
		{[]problem{lacking}, "Failure"},
		{nil, "Success"},
		{nil, "Success"},
		{[]problem{invalid}, "Failure"},
		{[]problem{{reason: "Invalid", message: "z"}}, "Failure"},
		{nil, "Success"},
	} {
		conditions := (&Verdict{problems: step.problems}).Conditions()
		timed(conditions, said, metav1.NewTime(second.Add(time.Duration(i)*time.Second)))
		if got := latest(conditions); got != step.want {
			t.Errorf("step %d: %s is the latest, want %s: %v", i, got, step.want, conditions)
		}
		again := (&Verdict{problems: step.problems}).Conditions()
		timed(again, conditions, metav1.NewTime(second.Add(time.Hour)))
		if diff := cmp.Diff(conditions, again); diff != "" {
			t.Errorf("step %d: without a change (-was +is):\n%s", i, diff)
		}
		said = conditions
	}
}

func TestConditionsOfOthersStayAndTheTimeIsThatOfTheStatus(t *testing.T) {
	then, now := metav1.NewTime(time.Unix(1000, 0)), metav1.NewTime(time.Unix(2000, 0))
	cs := []mcfgv1.MachineConfigPoolCondition{
		{Type: mcfgv1.MachineConfigPoolUpdated, Status: corev1.ConditionTrue, LastTransitionTime: then},
		{Type: mcfgv1.MachineConfigPoolRenderDegraded, Status: corev1.ConditionTrue, Message: "a", LastTransitionTime: then},
	}
	degraded := func(status corev1.ConditionStatus, message string) mcfgv1.MachineConfigPoolCondition {
		return mcfgv1.MachineConfigPoolCondition{Type: mcfgv1.MachineConfigPoolRenderDegraded, Status: status, Message: message}
	}
	if SetPoolConditions(&cs, now, degraded(corev1.ConditionTrue, "a")) {
		t.Error("the same is a change")
	}
	if !SetPoolConditions(&cs, now, degraded(corev1.ConditionTrue, "b")) || cs[1].LastTransitionTime != then {
		t.Errorf("another message moved the time: %v", cs[1])
	}
	if !SetPoolConditions(&cs, now, degraded(corev1.ConditionFalse, "")) || cs[1].LastTransitionTime != now {
		t.Errorf("another status kept the time: %v", cs[1])
	}
	if len(cs) != 2 || cs[0].LastTransitionTime != then {
		t.Errorf("touched what is not ours: %v", cs)
	}
	cs[0].LastTransitionTime = metav1.Time{}
	if SetPoolConditions(&cs, now, cs[0]); cs[0].LastTransitionTime != now {
		t.Errorf("a condition whose time could not be read is from %s", cs[0].LastTransitionTime)
	}
}
