// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// An attempt is something that a service account tries.
type attempt func(context.Context, clients) error

// refuse wants every attempt refused, by a policy with the given words or, where there are none, by RBAC.
func refuse(t *testing.T, who clients, says string, attempts map[string]attempt) {
	t.Helper()
	if says == "" {
		says = " cannot "
	}
	for name, try := range attempts {
		t.Run(name, func(t *testing.T) {
			if err := try(t.Context(), who); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), says) {
				t.Errorf("got %v, want it forbidden with %q", err, says)
			}
		})
	}
}

func allow(t *testing.T, who clients, attempts map[string]attempt) {
	t.Helper()
	for name, try := range attempts {
		t.Run(name, func(t *testing.T) {
			if err := try(t.Context(), who); err != nil {
				t.Error(err)
			}
		})
	}
}

func patchNode(name, patch string, args ...any) attempt {
	return func(ctx context.Context, who clients) error {
		_, err := who.kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, patch, args...),
			metav1.PatchOptions{})
		return err
	}
}

// taintNode puts a taint onto a node, or takes it away, and leaves those that others put there.
func taintNode(name, key string, on bool) attempt {
	return func(ctx context.Context, who clients) error {
		nodes := who.kube.CoreV1().Nodes()
		return retry.RetryOnConflict(retry.DefaultRetry, func() error {
			node, err := nodes.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			taints := slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
			if on {
				taints = append(taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectPreferNoSchedule})
			}
			patch, err := json.Marshal(map[string]any{
				"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
				"spec":     map[string]any{"taints": taints},
			})
			if err != nil {
				return err
			}
			_, err = nodes.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		})
	}
}

// patchNodeStatus is what only the kubelet does.
func patchNodeStatus(name string) attempt {
	return func(ctx context.Context, who clients) error {
		_, err := who.kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType,
			[]byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{}, "status")
		return err
	}
}

// applyMCN makes or updates the MachineConfigNode of a name, for a node.
func applyMCN(name, node string) attempt {
	return func(ctx context.Context, who clients) error {
		patch := fmt.Appendf(nil, `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfigNode",
			"metadata":{"name":%q},"spec":{"node":{"name":%q},"pool":{"name":"worker"},"configVersion":{"desired":%q}}}`,
			name, node, renderedName)
		_, err := who.mc.MachineconfigurationV1().MachineConfigNodes().Patch(ctx, name, types.ApplyPatchType, patch,
			metav1.PatchOptions{FieldManager: api.Daemon})
		return err
	}
}

func applyMCNStatus(name string) attempt {
	return func(ctx context.Context, who clients) error {
		patch := fmt.Appendf(nil, `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfigNode",
			"metadata":{"name":%q},"status":{"conditions":[{"type":"Updated","status":"True","reason":"Updated",
			"message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, name)
		_, err := who.mc.MachineconfigurationV1().MachineConfigNodes().Patch(ctx, name, types.ApplyPatchType, patch,
			metav1.PatchOptions{FieldManager: api.Daemon}, "status")
		return err
	}
}

func patchMCN(name, patch string, args ...any) attempt {
	return func(ctx context.Context, who clients) error {
		_, err := who.mc.MachineconfigurationV1().MachineConfigNodes().Patch(ctx, name, types.MergePatchType,
			fmt.Appendf(nil, patch, args...), metav1.PatchOptions{})
		return err
	}
}

func deleteMCN(name string) attempt {
	return func(ctx context.Context, who clients) error {
		return who.mc.MachineconfigurationV1().MachineConfigNodes().Delete(ctx, name, metav1.DeleteOptions{})
	}
}

// createMC makes a MachineConfig that says that a node gave it back, unless that is empty.
func createMC(name string, labels map[string]string, from string) attempt {
	return createMCWith(metav1.ObjectMeta{Name: name, Labels: labels}, from)
}

func createMCWith(meta metav1.ObjectMeta, from string) attempt {
	return func(ctx context.Context, who clients) error {
		mc := &mcfgv1.MachineConfig{
			ObjectMeta: meta,
			Spec: mcfgv1.MachineConfigSpec{
				Config: runtime.RawExtension{Raw: []byte(`{"ignition":{"version":"3.5.0"}}`)},
			},
		}
		if from != "" {
			mc.Annotations = map[string]string{api.RestoredFrom: from}
		}
		_, err := who.mc.MachineconfigurationV1().MachineConfigs().Create(ctx, mc, metav1.CreateOptions{})
		return err
	}
}

func patchMC(name string) attempt {
	return func(ctx context.Context, who clients) error {
		_, err := who.mc.MachineconfigurationV1().MachineConfigs().Patch(ctx, name, types.MergePatchType,
			[]byte(`{"spec":{"kernelArguments":["init=/bin/sh"]}}`), metav1.PatchOptions{})
		return err
	}
}

func deleteMC(name string) attempt {
	return func(ctx context.Context, who clients) error {
		return who.mc.MachineconfigurationV1().MachineConfigs().Delete(ctx, name, metav1.DeleteOptions{})
	}
}

func patchPool(name, patch string, args ...any) attempt {
	return func(ctx context.Context, who clients) error {
		_, err := who.mc.MachineconfigurationV1().MachineConfigPools().Patch(ctx, name, types.MergePatchType,
			fmt.Appendf(nil, patch, args...), metav1.PatchOptions{})
		return err
	}
}

// evict evicts the pod that has the name now, and no other that gets it.
func evict(c *cluster.Cluster, namespace, name string) attempt {
	return func(ctx context.Context, who clients) error {
		pod, err := c.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return evictExactly(namespace, name, pod.UID)(ctx, who)
	}
}

func deletePod(namespace, name string) attempt {
	return func(ctx context.Context, who clients) error {
		return who.kube.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	}
}

func evictExactly(namespace, name string, uid types.UID) attempt {
	return func(ctx context.Context, who clients) error {
		return who.kube.PolicyV1().Evictions(namespace).Evict(ctx, eviction(namespace, name, uid))
	}
}

func eviction(namespace, name string, uid types.UID) *policyv1.Eviction {
	e := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: namespace, Name: name},
		DeleteOptions: &metav1.DeleteOptions{},
	}
	if uid != "" {
		e.DeleteOptions.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	return e
}

func createEvent(kind, name string) attempt {
	return func(ctx context.Context, who clients) error {
		_, err := who.kube.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "test-", Namespace: metav1.NamespaceDefault},
			InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name}, Reason: "Test", Type: corev1.EventTypeNormal,
		}, metav1.CreateOptions{})
		return err
	}
}

// makeEvent makes an event of a name about a node.
func makeEvent(t *testing.T, who clients, name, node string) {
	t.Helper()
	_, err := who.kube.CoreV1().Events(metav1.NamespaceDefault).Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node}, Reason: "Test", Type: corev1.EventTypeWarning,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func patchEvent(name, patch string, args ...any) attempt {
	return func(ctx context.Context, who clients) error {
		_, err := who.kube.CoreV1().Events(metav1.NamespaceDefault).Patch(ctx, name, types.MergePatchType,
			fmt.Appendf(nil, patch, args...), metav1.PatchOptions{})
		return err
	}
}

// makePod makes a pod that is bound to a node, or to none; it goes at once when it is deleted.
func makePod(t *testing.T, who clients, namespace, name, node string) {
	t.Helper()
	if err := createPod(t.Context(), who, namespace, name, node); err != nil {
		t.Fatal(err)
	}
}

func createPod(ctx context.Context, who clients, namespace, name, node string) error {
	now, no := int64(0), false
	_, err := who.kube.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &now, AutomountServiceAccountToken: &no,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "c", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	return err
}

// makeNamespace makes a namespace in which pods can be made.
func makeNamespace(t *testing.T, who clients, name string) {
	t.Helper()
	_, err := who.kube.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = who.kube.CoreV1().ServiceAccounts(name).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func deletePool(name string) attempt {
	return func(ctx context.Context, who clients) error {
		return who.mc.MachineconfigurationV1().MachineConfigPools().Delete(ctx, name, metav1.DeleteOptions{})
	}
}

func readSecrets(namespace string) attempt {
	return func(ctx context.Context, who clients) error {
		_, err := who.kube.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
		return err
	}
}

// podOf is a pod of a service account on a node.
func podOf(account, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: account + "-"},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: account,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
}

// ofObject makes a MachineConfig that says that an object controls it.
func ofObject(kind, name string) attempt {
	return createMCWith(metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{
		APIVersion: mcfgv1.GroupVersion.String(), Kind: kind, Name: "theirs", UID: "1", Controller: new(true),
	}}}, "")
}
