// SPDX-License-Identifier: Apache-2.0

package render

import (
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
)

func TestWhatIsUnfinishedIsNamedWithSinceWhenAndWhy(t *testing.T) {
	at := func(s int64) metav1.Time { return metav1.NewTime(time.Unix(s, 0)) }
	object := func(set func(*mcfgv1.KubeletConfig)) part {
		o := &mcfgv1.KubeletConfig{ObjectMeta: metav1.ObjectMeta{Name: "small", Generation: 2, CreationTimestamp: at(1)}}
		o.Spec.MachineConfigPoolSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"size": "small"}}
		o.Status.ObservedGeneration = 2
		set(o)
		return kubeletPart(o)
	}
	condition := func(kind mcfgv1.KubeletConfigStatusConditionType, status corev1.ConditionStatus, message string) func(
		*mcfgv1.KubeletConfig) {
		return func(o *mcfgv1.KubeletConfig) {
			o.Status.Conditions = append(o.Status.Conditions, mcfgv1.KubeletConfigCondition{
				Type: kind, Status: status, Message: message, LastTransitionTime: at(60 * int64(len(o.Status.Conditions)+1)),
			})
		}
	}
	both := func(fs ...func(*mcfgv1.KubeletConfig)) func(*mcfgv1.KubeletConfig) {
		return func(o *mcfgv1.KubeletConfig) {
			for _, f := range fs {
				f(o)
			}
		}
	}
	accepted := condition(mcfgv1.KubeletConfigAccepted, corev1.ConditionTrue, "")
	tests := map[string]struct {
		part    part
		want    []string
		refused bool
	}{
		"accepted":              {object(accepted), nil, false},
		"success, the old word": {object(condition(mcfgv1.KubeletConfigSuccess, corev1.ConditionTrue, "")), nil, false},
		"no condition at all": {object(func(*mcfgv1.KubeletConfig) {}),
			[]string{"KubeletConfig/small since 1970-01-01T00:00:01Z: no condition yet; is its controller running?"}, false},
		"failed": {object(condition(mcfgv1.KubeletConfigFailure, corev1.ConditionFalse, "Error: no")),
			[]string{"KubeletConfig/small since 1970-01-01T00:01:00Z: Failure is False: Error: no"}, false},
		"failed after success": {object(both(accepted, condition(mcfgv1.KubeletConfigFailure, corev1.ConditionFalse, "no"))),
			[]string{"KubeletConfig/small since 1970-01-01T00:02:00Z: Failure is False: no"}, false},
		"not accepted": {object(condition(mcfgv1.KubeletConfigAccepted, corev1.ConditionFalse, "")),
			[]string{"KubeletConfig/small since 1970-01-01T00:01:00Z: Accepted is False"}, true},
		"not accepted, and not for a pool that anybody knows": {object(both(
			condition(mcfgv1.KubeletConfigAccepted, corev1.ConditionFalse, ""), func(o *mcfgv1.KubeletConfig) {
				o.Spec.MachineConfigPoolSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
			})), nil, false},
		"not accepted before it was changed": {object(both(condition(mcfgv1.KubeletConfigAccepted, corev1.ConditionFalse, ""),
			func(o *mcfgv1.KubeletConfig) { o.Status.ObservedGeneration = 1 })),
			[]string{"KubeletConfig/small since 1970-01-01T00:01:00Z: generation 2 is not handled yet, 1 is"}, false},
		"of an older generation": {
			object(both(accepted, func(o *mcfgv1.KubeletConfig) { o.Status.ObservedGeneration = 1 })),
			[]string{"KubeletConfig/small since 1970-01-01T00:01:00Z: generation 2 is not handled yet, 1 is"}, false},
		"of another pool": {object(func(o *mcfgv1.KubeletConfig) {
			o.Spec.MachineConfigPoolSelector.MatchLabels["size"] = "large"
		}), nil, false},
		"without a selector": {object(func(o *mcfgv1.KubeletConfig) { o.Spec.MachineConfigPoolSelector = nil }), nil, false},
		"with an empty selector": {object(func(o *mcfgv1.KubeletConfig) {
			o.Spec.MachineConfigPoolSelector = &metav1.LabelSelector{}
		}), nil, false},
		"with a selector that makes no sense": {object(func(o *mcfgv1.KubeletConfig) {
			o.Spec.MachineConfigPoolSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
		}), []string{`KubeletConfig/small: spec.machineConfigPoolSelector: "Like" is not a valid label selector operator`}, false},
		"templates under way, of every pool": {templatePart(&mcfgv1.ControllerConfig{
			ObjectMeta: metav1.ObjectMeta{Name: api.ControllerConfig},
			Status: mcfgv1.ControllerConfigStatus{Conditions: []mcfgv1.ControllerConfigStatusCondition{
				{Type: mcfgv1.TemplateControllerFailing, Status: corev1.ConditionFalse},
				{Type: mcfgv1.TemplateControllerRunning, Status: corev1.ConditionTrue},
				{Type: mcfgv1.TemplateControllerCompleted, Status: corev1.ConditionFalse, LastTransitionTime: at(1)},
			}},
		}), []string{"ControllerConfig/machine-config-controller since 1970-01-01T00:00:01Z: " +
			"TemplateControllerCompleted is False"}, false},
		"templates that failed": {templatePart(&mcfgv1.ControllerConfig{
			ObjectMeta: metav1.ObjectMeta{Name: api.ControllerConfig},
			Status: mcfgv1.ControllerConfigStatus{Conditions: []mcfgv1.ControllerConfigStatusCondition{
				{Type: mcfgv1.TemplateControllerFailing, Status: corev1.ConditionTrue, Message: "no", LastTransitionTime: at(1)},
				{Type: mcfgv1.TemplateControllerCompleted, Status: corev1.ConditionFalse},
			}},
		}), []string{"ControllerConfig/machine-config-controller since 1970-01-01T00:00:01Z: " +
			"TemplateControllerFailing is True: no"}, false},
	}
	pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"size": "small"}}}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			waiting, refused := waitingFor(pool, []part{test.part})
			if test.refused {
				waiting, refused = refused, waiting
			}
			if !slices.Equal(waiting, test.want) || len(refused) > 0 {
				t.Errorf("got %q, want %q; and %q", waiting, test.want, refused)
			}
		})
	}
}

func TestMirrorsThatAreWrongAreNamedByThePoolsThatLackThemAndHoldNothingUp(t *testing.T) {
	object := func(unmade string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name: "m", Annotations: map[string]string{api.UnmadeKey: unmade},
		}}
	}
	since := time.Unix(60, 0).UTC()
	pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	says := []string{"ImageTagMirrorSet/m since 1970-01-01T00:01:00Z: Accepted is False: no"}
	for what, test := range map[string]struct {
		unmade string
		want   []string
	}{
		"made":            {"", nil},
		"for no pool":     {api.Encode(api.Unmade{Reason: "no", Since: since}), says},
		"for this one":    {api.Encode(api.Unmade{Reason: "no", Since: since, Pools: []string{"infra", "worker"}}), says},
		"for another one": {api.Encode(api.Unmade{Reason: "no", Since: since, Pools: []string{"infra"}}), nil},
	} {
		waiting, refused := waitingFor(pool, mirrorParts("ImageTagMirrorSet", object(test.unmade)))
		if !slices.Equal(refused, test.want) || len(waiting) > 0 {
			t.Errorf("%s: got %q, want %q; waits for %q", what, refused, test.want, waiting)
		}
	}
}

func TestAControllerConfigIsWaitedForWhereMachineConfigsAreMadeOfIt(t *testing.T) {
	named, begun := &mcfgv1.ControllerConfig{}, &mcfgv1.ControllerConfig{}
	named.Annotations = map[string]string{api.Templates: "own"}
	begun.Status.Conditions = []mcfgv1.ControllerConfigStatusCondition{{Type: mcfgv1.TemplateControllerRunning}}
	for what, test := range map[string]struct {
		cc   *mcfgv1.ControllerConfig
		want bool
	}{
		"it only names the default images":          {&mcfgv1.ControllerConfig{}, false},
		"it names templates, and nobody looked yet": {named, true},
		"somebody has begun":                        {begun, true},
	} {
		if got := templated(test.cc); got != test.want {
			t.Errorf("%s: %t", what, got)
		}
	}
	if why, _ := templatePart(named).unfinished(); why == "" {
		t.Error("one that nobody looked at counts as finished")
	}
}

func TestWhatSomebodyMadeOfAMachineConfigOfTemplatesIsNotRendered(t *testing.T) {
	made := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: "00-worker"}}
	made.Annotations = map[string]string{api.MadeAs: source.Mark(made)}
	changed := made.DeepCopy()
	changed.Spec.KernelArguments = []string{"quiet"}
	of := func(mc *mcfgv1.MachineConfig) *rendering {
		return &rendering{selected: []*machineconfig.Document{{Object: mc}}}
	}
	templates := []part{{kind: kindControllerConfig}}
	if got := altered(of(changed), templates); len(got) != 1 || !strings.HasPrefix(got[0], "MachineConfig/00-worker: ") {
		t.Errorf("changed: %q", got)
	}
	for what, got := range map[string][]string{
		"as it was made": altered(of(made), templates), "nobody puts it back": altered(of(changed), nil),
		"nothing is rendered": altered(nil, templates),
	} {
		if len(got) > 0 {
			t.Errorf("%s: %q", what, got)
		}
	}
}
