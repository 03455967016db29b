// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// passing are the resources whose objects come and go by themselves.
var passing = []string{
	"events", "leases", "endpoints", "endpointslices", "componentstatuses", "apiservices", "controllerrevisions",
	"replicasets", "servicecidrs", "ipaddresses",
}

// listed reads all objects of all kinds but those that come and go.
func (b *bench) listed() []unstructured.Unstructured {
	b.t.Helper()
	client, err := dynamic.NewForConfig(b.Config)
	if err != nil {
		b.t.Fatal(err)
	}
	lists, err := b.Client.Discovery().ServerPreferredResources()
	if err != nil {
		b.t.Fatal(err)
	}
	var all []unstructured.Unstructured
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || slices.Contains(passing, r.Name) {
				continue
			}
			found, err := client.Resource(version.WithResource(r.Name)).List(b.t.Context(), metav1.ListOptions{})
			if err != nil {
				b.t.Fatal(err)
			}
			all = append(all, found.Items...)
		}
	}
	return all
}

// name is the object's, with its kind.
func name(o *unstructured.Unstructured) string {
	return o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
}

// text is an object without what its status and its servers write.
func text(t *testing.T, o *unstructured.Unstructured) string {
	t.Helper()
	o = o.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	delete(o.Object, "status")
	data, err := yaml.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// state are all objects, as text, but pods, which come and go, and Nodes, whose kubelets write.
func (b *bench) state() map[string]string {
	b.t.Helper()
	all := map[string]string{}
	for _, o := range b.listed() {
		if o.GetKind() != "Pod" && o.GetKind() != "Node" {
			all[name(&o)] = text(b.t, &o)
		}
	}
	return all
}

// viewer lets a group read everything.
func viewer(t *testing.T, b *bench, group string) {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: group},
		Subjects:   []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: group}},
		RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", APIGroup: rbacv1.GroupName, Name: "view-all"},
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "view-all"}, Rules: []rbacv1.PolicyRule{{
		Verbs: []string{"get", "list"}, APIGroups: []string{"*"}, Resources: []string{"*"},
	}}}
	if _, err := b.Client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
