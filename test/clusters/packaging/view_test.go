// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// viewRole is what docs/gitops.md has people bind to the account of a pipeline.
const viewRole = "noderefit-view"

func TestAPipelinePlansAndStatesWithRightsToReadAndNoOthers(t *testing.T) {
	c := installed(t)
	ctx := t.Context()
	const account, namespace, pool = "plans", "ci", "viewed"
	config, kubeconfig, err := c.ServiceAccountConfig(ctx, namespace, account, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "ci-plans"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: viewRole},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	who := admin(t, c)
	makeNamespace(t, who, "viewed")
	_, err = who.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "viewed-1", Labels: map[string]string{api.NodeRole + pool: ""},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = who.kube.PolicyV1().PodDisruptionBudgets("viewed").Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt32(0)),
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "none"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	object := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: pool}}
	object.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: pool}}
	object.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + pool: ""}}
	_, err = who.mc.MachineconfigurationV1().MachineConfigPools().Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	program, err := programs.Build(ctx, t.TempDir(), "cmd/kubectl-refit")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "50-viewed.bu")
	text := "variant: openshift\nversion: 4.18.0\nmetadata:\n  name: 50-viewed\n  labels:\n    " + api.Role + ": viewed\n" +
		"storage:\n  files:\n    - path: /etc/viewed\n      contents: {inline: new}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"plan", pool, "-o", "json", "-f", file},
		{"status", pool, "-o", "json"},
		{"explain", "pool/" + pool, "-o", "json"},
	} {
		cmd := exec.CommandContext(ctx, program, append(args, "--kubeconfig="+kubeconfig)...)
		var said strings.Builder
		cmd.Stderr = &said
		out, err := cmd.Output()
		// Not even a warning that something could not be read.
		if err != nil || said.String() != "" || !json.Valid(out) {
			t.Errorf("%v: %v\n%s%s", args, err, out, &said)
		}
		if args[0] == "plan" && !strings.Contains(string(out), "/etc/viewed") {
			t.Errorf("the plan is %s", out)
		}
	}

	reader := clientsOf(t, config)
	refuse(t, reader, "", map[string]attempt{
		"pause a pool":          func(ctx context.Context, who clients) error { return pausePool(ctx, who, pool) },
		"send a node somewhere": patchNode("viewed-1", `{"metadata":{"annotations":{%q:"x"}}}`, api.DesiredConfig),
		"make a MachineConfig":  createMC("50-viewed", map[string]string{api.Role: pool}, ""),
		"read a Secret":         readSecrets(metav1.NamespaceSystem),
		"give itself more":      bindItself,
	})
}

func pausePool(ctx context.Context, who clients, pool string) error {
	_, err := who.mc.MachineconfigurationV1().MachineConfigPools().Patch(ctx, pool, types.MergePatchType,
		[]byte(`{"spec":{"paused":true}}`), metav1.PatchOptions{})
	return err
}

func bindItself(ctx context.Context, who clients) error {
	_, err := who.kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "more"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{})
	return err
}
