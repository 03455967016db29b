// SPDX-License-Identifier: Apache-2.0

// Package disruptionpolicy shows in the status of the cluster's MachineConfiguration which node disruption policies are
// in force. These are OpenShift's defaults, Noderefit's own, and what the object adds and replaces. Nodes read the
// object's spec by the same function, and not its status. So a policy in force never waits for the status.
package disruptionpolicy

import (
	"context"
	"encoding/json"
	"fmt"

	operatorv1 "github.com/openshift/api/operator/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
)

// Name is the controller's name.
const Name = "disruptionpolicy"

// Add adds the controller to a manager.
func Add(mgr ctrl.Manager) error {
	r := &reconciler{from: mgr.GetCache(), to: mgr.GetClient()}
	return source.Controller{Name: Name, Kinds: []client.Object{machineConfiguration()}, Alone: true, Look: r.look}.
		Add(mgr)
}

type reconciler struct {
	from client.Reader
	to   client.StatusClient
}

// machineConfiguration returns an unstructured object, since Go's type can't tell an absent field from an empty one.
func machineConfiguration() *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(operatorv1.GroupVersion.WithKind("MachineConfiguration"))
	return o
}

// look writes the status if it has to change. Without an object, the defaults are in force and nothing is written.
func (r *reconciler) look(ctx context.Context, has func(client.Object) bool) error {
	object := machineConfiguration()
	if !has(object) {
		return nil
	}
	err := r.from.Get(ctx, client.ObjectKey{Name: api.MachineConfiguration}, object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading MachineConfiguration/%s: %w", api.MachineConfiguration, err)
	}
	document, err := object.MarshalJSON()
	if err != nil {
		return fmt.Errorf("reading MachineConfiguration/%s: %w", object.GetName(), err)
	}
	var is struct {
		Status operatorv1.MachineConfigurationStatus `json:"status"`
	}
	if err := json.Unmarshal(document, &is); err != nil {
		return fmt.Errorf("reading the status of MachineConfiguration/%s: %w", object.GetName(), err)
	}
	to := decide(document, object.GetGeneration(), is.Status, metav1.Now())
	if equality.Semantic.DeepEqual(is.Status, to) {
		return nil
	}
	// Other fields of the status stay. The lists are written as a whole, based on the version that was read.
	status := map[string]any{"observedGeneration": to.ObservedGeneration, "conditions": to.Conditions}
	if !equality.Semantic.DeepEqual(is.Status.NodeDisruptionPolicyStatus, to.NodeDisruptionPolicyStatus) {
		status["nodeDisruptionPolicyStatus"] = to.NodeDisruptionPolicyStatus
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": object.GetUID(), "resourceVersion": object.GetResourceVersion()},
		"status":   status,
	})
	if err != nil {
		return err
	}
	if err := r.to.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("setting the status of MachineConfiguration/%s: %w", object.GetName(), err)
	}
	said := degraded(to.Conditions)
	logf.FromContext(ctx).Info("said which policies are in force", "files",
		len(to.NodeDisruptionPolicyStatus.ClusterPolicies.Files), "units",
		len(to.NodeDisruptionPolicyStatus.ClusterPolicies.Units), "reason", said.Reason, "message", said.Message)
	return nil
}
