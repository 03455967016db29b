// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/gate"
	"github.com/noderefit/noderefit/rollout"
)

// answered waits for an answer of the gate of one question that says something; nothing is a yes.
func answered(t *testing.T, a *gate.Asker, ask rollout.Ask, says string) {
	t.Helper()
	a.Ask([]rollout.Ask{ask}, rollout.Unasked)
	var got rollout.Answer
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		got = a.Answer(ask.Question)
		if !got.At.IsZero() && (says == "" && got.Passed || says != "" && strings.Contains(got.Message, says)) {
			return
		}
	}
	t.Fatalf("gate %s: got %+v, want %q", ask.Gate, got, says)
}

func TestGatesReadAndAskNoMoreThanTheyAreGranted(t *testing.T) {
	c := installed(t)
	root, controller := admin(t, c), as(t, c, api.Controller, "")
	const answer = "storage.example.com/healthy"
	// It answers to something that was asked before.
	if err := patchNode(theirs, `{"metadata":{"annotations":{%q:"yes"}}}`, answer)(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	const kubelets, drivers = "node.alpha.kubernetes.io/ttl", "csi.volume.kubernetes.io/nodeid"
	if err := patchNode(theirs, `{"metadata":{"annotations":{%q:"0",%q:"{}"}}}`, kubelets, drivers)(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	refuse(t, controller, "does not change these annotations", map[string]attempt{
		"take the kubelet's with a question":      patchNode(theirs, `{"metadata":{"annotations":{%q:"B",%q:null}}}`, api.AskPrefix+"x", kubelets),
		"take a driver's with a question":         patchNode(theirs, `{"metadata":{"annotations":{%q:"B",%q:null}}}`, api.AskPrefix+"x", drivers),
		"take an annotation away and ask nothing": patchNode(theirs, `{"metadata":{"annotations":{%q:null}}}`, answer),
		"answer itself":                           patchNode(theirs, `{"metadata":{"annotations":{%q:"B",%q:"no"}}}`, api.AskPrefix+"x", answer),
		"forget what the agent says":              patchNode(theirs, `{"metadata":{"annotations":{%q:"B",%q:"{}"}}}`, api.AskPrefix+"x", api.ChecksKey),
	})

	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	reader, err := client.New(controller.config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	a := gate.New(reader, time.Now)
	go func() { _ = a.Start(t.Context()) }()
	ask := func(name string, how api.Gate) rollout.Ask {
		return rollout.Ask{
			Question: rollout.Question{Pool: "worker", Config: "B", Node: theirs, Gate: name}, How: &how, Nodes: []string{theirs},
		}
	}
	answered(t, a, ask("storage", api.Gate{Annotation: &api.AnnotationGate{Key: answer, Value: "yes"}}), "has not answered yet")
	n, err := root.kube.CoreV1().Nodes().Get(t.Context(), theirs, metav1.GetOptions{})
	if err != nil || n.Annotations[answer] != "" || n.Annotations[api.AskPrefix+"storage"] != "B" {
		t.Errorf("asked: %v, %v", n.Annotations, err)
	}

	settings := api.Gate{CEL: &api.CELGate{
		APIVersion: "v1", Kind: "ConfigMap", Namespace: "default", Name: "settings", Expression: "object.data.on == 'true'",
	}}
	answered(t, a, ask("forbidden", settings), "let the controller do that by a ClusterRole with the label "+api.GatesRoleLabel)
	settingsMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"on": "true"}}
	if _, err := root.kube.CoreV1().ConfigMaps("default").Create(t.Context(), settingsMap, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	granted := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "gates-of-a-test", Labels: map[string]string{api.GatesRoleLabel: "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}},
	}
	if _, err := root.kube.RbacV1().ClusterRoles().Create(t.Context(), granted, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	answered(t, a, ask("granted", settings), "")
}
