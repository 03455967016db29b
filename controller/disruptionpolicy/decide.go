// SPDX-License-Identifier: Apache-2.0

package disruptionpolicy

import (
	"encoding/json"
	"slices"
	"strings"

	operatorv1 "github.com/openshift/api/operator/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/plan"
)

// decide returns the desired status of a MachineConfiguration. If its policies are invalid, the shown policies stay:
// nodes refuse to update until the policies are valid, so no others are in force.
func decide(
	document []byte, generation int64, is operatorv1.MachineConfigurationStatus, now metav1.Time,
) operatorv1.MachineConfigurationStatus {
	to := *is.DeepCopy()
	to.ObservedGeneration = generation
	says := metav1.Condition{
		Type: api.NodeDisruptionPolicyDegraded, Status: metav1.ConditionFalse, ObservedGeneration: generation,
		LastTransitionTime: now, Reason: api.PolicyInForce, Message: "the policies of the spec are in force",
	}
	policy, err := plan.ParsePolicy(document)
	if err != nil {
		says.Status, says.Reason = metav1.ConditionTrue, api.PolicyInvalid
		says.Message = "no node updates until this is mended: " + err.Error()
	} else {
		to.NodeDisruptionPolicyStatus.ClusterPolicies = clusterPolicies(policy.InForce())
		if idle := policy.Idle(); len(idle) > 0 {
			says.Status, says.Reason = metav1.ConditionTrue, api.PolicyWithoutEffect
			says.Message = strings.Join(idle, "; ")
		}
	}
	says.Message = api.ShortReason(says.Message)
	meta.SetStatusCondition(&to.Conditions, says)
	if c, known := ignored(document, is.Conditions); known {
		c.ObservedGeneration, c.LastTransitionTime = generation, now
		meta.SetStatusCondition(&to.Conditions, c)
	}
	says.Type = api.Stalled // nothing is stalled while the rest is in force
	if says.Reason != api.PolicyInvalid {
		says.Status = metav1.ConditionFalse
	}
	meta.SetStatusCondition(&to.Conditions, says)
	return to
}

// ignored returns the condition about fields without effect. ignored returns false if the object never had such fields.
func ignored(document []byte, before []metav1.Condition) (metav1.Condition, bool) {
	var is struct {
		Spec struct {
			ManagedBootImages struct {
				MachineManagers []json.RawMessage `json:"machineManagers"`
			} `json:"managedBootImages"`
		} `json:"spec"`
	}
	err := json.Unmarshal(document, &is) // the condition of the policies names a field of the wrong type
	if err == nil && len(is.Spec.ManagedBootImages.MachineManagers) > 0 {
		return metav1.Condition{Type: api.Ignored, Status: metav1.ConditionTrue, Reason: api.NotSupported,
			Message: "spec.managedBootImages has no effect here: no boot image of a machine set is updated; " +
				"new machines are brought to their pool's configuration when they join"}, true
	}
	return metav1.Condition{Type: api.Ignored, Status: metav1.ConditionFalse, Reason: api.AllSupported},
		meta.FindStatusCondition(before, api.Ignored) != nil
}

// degraded returns the condition of the policies in the status.
func degraded(conditions []metav1.Condition) metav1.Condition {
	i := slices.IndexFunc(conditions, func(c metav1.Condition) bool { return c.Type == api.NodeDisruptionPolicyDegraded })
	if i < 0 {
		return metav1.Condition{}
	}
	return conditions[i]
}
