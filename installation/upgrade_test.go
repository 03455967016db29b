// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhatIsUpgraded(t *testing.T) {
	t.Parallel()
	is := func(p phase, version string, from ...string) *record {
		return &record{Version: version, From: from, Phase: p}
	}
	for name, test := range map[string]struct {
		found       found
		definitions string
		to          string
		way         []step
		title       string
		refused     string
	}{
		"an OpenShift": {
			found: found{openShift: "its API has x", record: is(installed, "v0.1.0")}, refused: "this cluster is an OpenShift",
		},
		"an MCO of its own": {found: found{strangers: []string{"Deployment a/b"}}, refused: "Deployment a/b does not belong"},
		"Helm's":            {found: found{helm: &helmRelease{"x", "y"}}, refused: "go on with helm upgrade x --namespace y"},
		"kubectl's":         {found: found{others: []string{"Role a"}}, refused: "(Role a): go on with kubectl apply"},
		"nothing":           {refused: "the plugin has not installed Noderefit here: use kubectl refit install"},
		"an uninstallation in the middle": {
			found: found{record: is("Uninstalling", "v0.1.0")}, refused: "the installation is Uninstalling: end that command first",
		},
		"the same version": {
			found: found{record: is(installed, "v0.1.0")}, definitions: "v0.1.0", to: "v0.1.0", way: upwards,
			title: "applying Noderefit v0.1.0 again",
		},
		"the same version with newer definitions, after a way back": {
			found: found{record: is(installed, "v0.1.0")}, definitions: "v0.2.0", to: "v0.1.0", way: upwards,
			title: "applying Noderefit v0.1.0 again",
		},
		"a newer patch": {
			found: found{record: is(installed, "v0.1.0")}, definitions: "v0.1.0", to: "v0.1.9", way: upwards,
			title: "upgrading Noderefit from v0.1.0 to v0.1.9",
		},
		"the next minor version": {
			found: found{record: is(installed, "v0.1.7")}, definitions: "v0.1.7", to: "v0.2.0", way: upwards,
			title: "upgrading Noderefit from v0.1.7 to v0.2.0",
		},
		"back by one minor version": {
			found: found{record: is(installed, "v0.2.0")}, definitions: "v0.2.0", to: "v0.1.7", way: downwards,
			title: "taking Noderefit back from v0.2.0 to v0.1.7",
		},
		"back by a patch": {
			found: found{record: is(installed, "v0.1.2")}, definitions: "v0.1.2", to: "v0.1.1", way: downwards,
			title: "taking Noderefit back from v0.1.2 to v0.1.1",
		},
		"three minor versions": {
			found: found{record: is(installed, "v0.1.0")}, definitions: "v0.1.0", to: "v0.4.0",
			refused: "v0.1.0 and v0.4.0 are more than one minor version apart, and their parts do not work together: go " +
				"through v0.2, v0.3, each with its own kubectl-refit",
		},
		"three minor versions back": {
			found: found{record: is(installed, "v0.4.0")}, definitions: "v0.4.0", to: "v0.1.0", refused: "go through v0.3, v0.2,",
		},
		"another major version": {
			found: found{record: is(installed, "v0.9.0")}, definitions: "v0.9.0", to: "v1.0.0", refused: "different major versions",
		},
		"a second minor version back, with the definitions of the first": {
			found: found{record: is(installed, "v0.2.0")}, definitions: "v0.3.0", to: "v0.1.0",
			refused: "after the step \"agents\", definitions v0.3.0 with agents v0.1.0 is not supported: a way back leaves",
		},
		"a half-done upgrade goes on": {
			found: found{record: is(upgrading, "v0.2.0", "v0.1.0")}, definitions: "v0.1.0 v0.2.0", to: "v0.2.0", way: upwards,
			title: "upgrading Noderefit from v0.1.0 to v0.2.0",
		},
		"a half-done upgrade goes back": {
			found: found{record: is(upgrading, "v0.2.0", "v0.1.0")}, definitions: "v0.1.0 v0.2.0", to: "v0.1.0", way: downwards,
			title: "taking Noderefit back from v0.2.0 to v0.1.0",
		},
		"a half-done way back goes on": {
			found: found{record: is(upgrading, "v0.1.0", "v0.2.0")}, definitions: "v0.2.0", to: "v0.1.0", way: downwards,
			title: "taking Noderefit back from v0.2.0 to v0.1.0",
		},
		"a half-done upgrade to a third version": {
			found: found{record: is(upgrading, "v0.2.0", "v0.1.0")}, definitions: "v0.2.0", to: "v0.3.0",
			refused: "v0.1.0 and v0.3.0 are more than one minor version apart",
		},
		"a half-done upgrade to a corrected patch": {
			found: found{record: is(upgrading, "v0.2.0", "v0.1.0")}, definitions: "v0.2.0", to: "v0.2.1", way: upwards,
			title: "upgrading Noderefit from v0.2.0 and v0.1.0 to v0.2.1",
		},
		"a half-installed one": {
			found: found{record: is(installing, "v0.1.0")}, definitions: "v0.1.0", to: "v0.1.1", way: upwards,
			title: "upgrading Noderefit from v0.1.0 to v0.1.1",
		},
		"a build of one's own": {
			found: found{record: is(installed, "dev")}, to: "v0.1.0", way: upwards, title: "upgrading Noderefit from dev to v0.1.0",
		},
		"an object that somebody applied": {
			found: found{record: is(installed, "v0.1.0"), others: []string{"Role a"}}, to: "v0.2.0", way: upwards,
			title: "upgrading Noderefit from v0.1.0 to v0.2.0",
		},
	} {
		m, err := decideUpgrade(&test.found, strings.Fields(test.definitions), test.to)
		if test.refused != "" {
			if err == nil || !strings.Contains(err.Error(), test.refused) {
				t.Errorf("%s: %v, want %q", name, err, test.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if m.title() != test.title || !slices.Equal(m.steps, test.way) {
			t.Errorf("%s: %s, by %v", name, m.title(), m.steps)
		}
	}
}

func TestAVersionThatIsNoneGoesWithAWord(t *testing.T) {
	t.Parallel()
	m, err := decideUpgrade(&found{record: &record{Version: "dev", Phase: installed}}, nil, "v0.1.0")
	if err != nil || len(m.said) != 1 || !strings.Contains(m.said[0], "whether dev and v0.1.0 work together is not known") {
		t.Errorf("%v: %+v", err, m)
	}
}

// Both ways take each stage, and the same pairs of versions are at work in both: the parts go in one order upwards, and
// in the other one downwards.
func TestTheWayBackIsTheOtherWayRound(t *testing.T) {
	t.Parallel()
	var all, up, down []string
	for _, s := range stages {
		all = append(all, s.name)
	}
	for _, s := range upwards {
		up = append(up, s.stage)
	}
	for _, s := range slices.Backward(downwards[2:]) {
		down = append(down, s.stage)
	}
	if diff := cmp.Diff(all, up); diff != "" {
		t.Errorf("the stages (-) and the way up (+) differ:\n%s", diff)
	}
	if diff := cmp.Diff(all[1:], down); diff != "" {
		t.Errorf("the stages without the definitions (-) and the way down (+) differ:\n%s", diff)
	}
	for _, s := range slices.Concat(upwards, downwards) {
		kept := slices.ContainsFunc(stages, func(stage stage) bool { return stage.name == s.stage && stage.kept })
		if kept && s.do != add {
			t.Errorf("the step %+v changes what people own", s)
		}
	}
	for _, s := range downwards {
		if s.stage == "definitions" && s.do != add {
			t.Errorf("the step %+v makes definitions older", s)
		}
	}
}

func TestWhatAReleaseNoLongerHasGoes(t *testing.T) {
	t.Parallel()
	mc := "machineconfiguration.openshift.io"
	role := reference{"rbac.authorization.k8s.io", "v1", "ClusterRole", "", "x"}
	server := reference{"apps", "v1", "DaemonSet", "ns", "machine-config-server"}
	unknown := reference{"", "v1", "Service", "ns", "x"}
	noted := []reference{
		{"apiextensions.k8s.io", "v1", "CustomResourceDefinition", "", "x"},
		{"", "v1", "Namespace", "", "ns"},
		role,
		{"rbac.authorization.k8s.io", "v1beta1", "ClusterRole", "", "still"},
		{mc, "v1", "MachineConfigPool", "", "worker"},
		{mc, "v1", "ControllerConfig", "", "machine-config-controller"},
		server,
		unknown,
	}
	now := []reference{{"rbac.authorization.k8s.io", "v1", "ClusterRole", "", "still"}}
	if diff := cmp.Diff([]reference{unknown, server, role}, gone(union(noted, now), now)); diff != "" {
		t.Error(diff)
	}
	if both := union(noted, now); len(both) != len(noted) {
		t.Errorf("%d objects are noted of %d", len(both), len(noted))
	}
}

// A machine that is off keeps nobody waiting for the agents of the others.
func TestNodesThatAreNotReadyAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	pod := func(node, revision string, ready corev1.ConditionStatus) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: revision}},
			Spec:       corev1.PodSpec{NodeName: node},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		}
	}
	node := func(name string, ready corev1.ConditionStatus) corev1.Node {
		return corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
		}
	}
	pods := []corev1.Pod{
		pod("new", "2", corev1.ConditionTrue), pod("old", "1", corev1.ConditionTrue), pod("starts", "2", corev1.ConditionFalse),
		pod("off", "1", corev1.ConditionFalse), pod("lost", "2", corev1.ConditionTrue), pod("off-too", "2", corev1.ConditionFalse),
	}
	nodes := []corev1.Node{
		node("new", corev1.ConditionTrue), node("old", corev1.ConditionTrue), node("starts", corev1.ConditionTrue),
		node("off", corev1.ConditionUnknown), node("lost", corev1.ConditionUnknown), node("off-too", corev1.ConditionFalse),
		node("not-ours", corev1.ConditionFalse),
	}
	absent, missing := behind(pods, nodes, "2")
	if diff := cmp.Diff([][]string{{"off", "off-too"}, {"old", "starts"}}, [][]string{absent, missing}); diff != "" {
		t.Error(diff)
	}
}
