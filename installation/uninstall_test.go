// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

func nodeWith(name string, annotations ...string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
	for i := 0; i < len(annotations); i += 2 {
		n.Annotations[annotations[i]] = annotations[i+1]
	}
	return n
}

func TestAnInstallationGoesWhereNothingIsInTheMiddle(t *testing.T) {
	on := func(state api.State, current, desired string) []corev1.Node {
		return []corev1.Node{nodeWith("w", api.StateKey, string(state), api.CurrentConfig, current, api.DesiredConfig, desired)}
	}
	ours := &found{record: &record{Version: "v0.1.0", Phase: installed}}
	for what, row := range map[string]struct {
		found *found
		nodes []corev1.Node
		want  Removal
		says  string
	}{
		"at rest":                    {ours, on(api.Done, "a", "a"), Removal{}, ""},
		"never configured":           {ours, []corev1.Node{nodeWith("w")}, Removal{}, ""},
		"joins":                      {ours, on("", "", "a"), Removal{}, ""},
		"begun to go":                {&found{record: &record{Phase: removing}}, nil, Removal{}, ""},
		"nothing is there":           {&found{}, nil, Removal{}, ""},
		"told":                       {ours, on(api.Done, "a", "b"), Removal{}, "w (on its way to b)"},
		"at work":                    {ours, on(api.Working, "a", "a"), Removal{}, "w (Working)"},
		"at work, forced":            {ours, on(api.Working, "a", "b"), Removal{Force: true}, ""},
		"at work, nodes are kept":    {ours, on(api.Working, "a", "b"), Removal{KeepNodes: true}, ""},
		"rolled back, and serves":    {ours, on(api.RolledBack, "a", "b"), Removal{}, ""},
		"waits for a person":         {ours, on(api.Degraded, "a", "b"), Removal{}, ""},
		"by Helm":                    {&found{helm: &helmRelease{"r", "n"}}, nil, Removal{}, "run helm uninstall r --namespace n, and then"},
		"by kubectl":                 {&found{others: []string{"DaemonSet x"}}, nil, Removal{}, "kubectl apply has installed Noderefit here (DaemonSet x)"},
		"an OpenShift":               {&found{openShift: "its API"}, nil, Removal{Force: true}, "this cluster is an OpenShift"},
		"of another MCO":             {&found{strangers: []string{"DaemonSet x"}}, nil, Removal{}, "DaemonSet x does not belong to Noderefit"},
		"by Helm, and recorded ours": {&found{record: &record{}, helm: &helmRelease{"r", "n"}}, nil, Removal{}, ""},
	} {
		err := decideUninstall(row.found, row.nodes, row.want)
		if (err != nil) != (row.says != "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %v; want %q", what, err, row.says)
		}
	}
}

func TestANodeKeepsWhatIsOfOthers(t *testing.T) {
	ledger := `{"by":"noderefit","config":"a","reason":"update","since":"2026-01-01T00:00:00Z"}`
	for what, row := range map[string]struct {
		node      corev1.Node
		scheduled bool
	}{
		"a cordon of ours":   {nodeWith("w", api.CordonKey, ledger, api.StateKey, "Done"), true},
		"a cordon of theirs": {nodeWith("w", api.StateKey, "Done"), false},
	} {
		n := row.node
		n.Spec.Unschedulable = true
		n.Annotations["example.org/x"] = "theirs"
		n.Annotations[api.ExcludedKey] = `{"since":"2026-01-01T00:00:00Z"}`
		n.Labels = map[string]string{api.ExcludeLabel: "", api.NodeRole + "worker": ""}
		n.Spec.Taints = []corev1.Taint{{Key: api.UpdateInProgressTaint}, {Key: "example.org/x"}, {Key: api.StartupTaint}}
		if !clean(&n) || clean(&n) {
			t.Errorf("%s: it is cleaned once", what)
		}
		if n.Spec.Unschedulable == row.scheduled || len(n.Annotations) != 1 || len(n.Labels) != 1 || len(n.Spec.Taints) != 1 {
			t.Errorf("%s: %+v %+v", what, n.ObjectMeta, n.Spec)
		}
	}
	kept := nodeWith("w")
	kept.Labels = map[string]string{api.ExcludeLabel: ""}
	if clean(&kept) || managed(&kept) {
		t.Errorf("what Noderefit never wrote to was changed: %+v", kept)
	}
}

func TestThePodOfAHostHasTheRightsOfTheAgentAndNoAccount(t *testing.T) {
	release, err := NewRelease("v0.1.0", "registry.example.com/noderefit")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := release.Render(nil)
	if err != nil {
		t.Fatal(err)
	}
	pod, err := cleanPod(objects, "w")
	if err != nil {
		t.Fatal(err)
	}
	c := pod.Spec.Containers[0]
	if pod.Spec.NodeName != "w" || pod.Spec.ServiceAccountName != "" || *pod.Spec.AutomountServiceAccountToken ||
		c.Image != "registry.example.com/noderefit/machine-config-daemon:v0.1.0" || len(c.SecurityContext.Capabilities.Add) != 1 {
		t.Errorf("%+v", pod.Spec)
	}
	script := c.Command[len(c.Command)-1]
	if !strings.Contains(script, "\nunder_way() {") || strings.Contains(script, ". ./state.sh") {
		t.Errorf("the script is not whole:\n%s", script)
	}
}

func TestPodsAreWaitedForWhereSomethingEndsThem(t *testing.T) {
	pod := func(name, node string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	}
	on := nodeWith("on")
	on.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	stay, waits, orphans := podsOn([]corev1.Pod{pod("a", "on"), pod("b", "off"), pod("c", "gone"), pod("d", "")},
		[]corev1.Node{on, nodeWith("off")})
	if len(stay) != 1 || stay["off"] == "" || strings.Join(waits, " ") != "a d" || strings.Join(orphans, " ") != "c" {
		t.Errorf("stay %v, waited for %v, removed %v", stay, waits, orphans)
	}
}
