// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/noderefit/noderefit/api"
)

// stage is a step of an installation.
type stage struct {
	// name is for people.
	name  string
	kinds []string
	// named restricts the stage to one object.
	named string
	// kept are objects that people own from the moment that they are there: they are made where they are missing, and
	// nothing else is done to them.
	kept bool
}

// stages are in the order in which an installation goes in. The definitions are before what is of their kinds, the
// controller is before the agents, and what the accounts may not do is in force before there is a pod that has them.
var stages = []stage{
	{name: "definitions", kinds: []string{"CustomResourceDefinition"}},
	{name: "namespace", kinds: []string{"Namespace"}},
	{name: "accounts and rights", kinds: []string{
		"ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding",
	}},
	{name: "policies", kinds: []string{
		"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "PodDisruptionBudget", "NetworkPolicy",
	}},
	{name: "pools and configuration", kinds: []string{"MachineConfigPool", "ControllerConfig"}, kept: true},
	{name: "controller", kinds: []string{"Deployment"}, named: api.Controller},
	{name: "agents", kinds: []string{"DaemonSet"}, named: api.Daemon},
	{name: "server", kinds: []string{"DaemonSet"}, named: api.Server},
	{name: "monitoring", kinds: []string{"PodMonitor", "PrometheusRule"}},
}

// stageOf returns the index of the stage that an object belongs to, len(stages) where it belongs to none.
func stageOf(object *unstructured.Unstructured) int {
	at := slices.IndexFunc(stages, func(s stage) bool {
		return slices.Contains(s.kinds, object.GetKind()) && (s.named == "" || s.named == object.GetName())
	})
	if at < 0 {
		return len(stages)
	}
	return at
}

// reference names an object of an installation.
type reference struct {
	Group     string `json:"group,omitempty"`
	Version   string `json:"version"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func refOf(object *unstructured.Unstructured) reference {
	gvk := object.GroupVersionKind()
	return reference{gvk.Group, gvk.Version, gvk.Kind, object.GetNamespace(), object.GetName()}
}

func (r reference) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
}

func (r reference) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

func nameOf(object *unstructured.Unstructured) string { return refOf(object).String() }

// refs names objects.
func refs(objects []*unstructured.Unstructured) []reference {
	out := make([]reference, len(objects))
	for i, object := range objects {
		out[i] = refOf(object)
	}
	return out
}

// installs names the objects by which an installation is known: all but the definitions and the namespace, which an
// earlier one may have left, and those that people own.
func installs(objects []*unstructured.Unstructured) []reference {
	return refs(slices.DeleteFunc(slices.Clone(objects), func(object *unstructured.Unstructured) bool {
		at := stageOf(object)
		return at <= 1 || at == len(stages) || stages[at].kept
	}))
}
