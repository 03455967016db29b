// SPDX-License-Identifier: Apache-2.0

package disruptionpolicy

import (
	operatorv1 "github.com/openshift/api/operator/v1"

	"github.com/noderefit/noderefit/plan"
)

// clusterPolicies returns the rules in force as the status of a MachineConfiguration shows them.
func clusterPolicies(in plan.InForce) operatorv1.NodeDisruptionPolicyClusterStatus {
	var out operatorv1.NodeDisruptionPolicyClusterStatus
	for _, r := range in.Files {
		out.Files = append(out.Files, operatorv1.NodeDisruptionPolicyStatusFile{Path: r.About, Actions: statusActions(r)})
	}
	for _, r := range in.Units {
		out.Units = append(out.Units, operatorv1.NodeDisruptionPolicyStatusUnit{
			Name: operatorv1.NodeDisruptionPolicyServiceName(r.About), Actions: statusActions(r)})
	}
	out.SSHKey.Actions = statusActions(in.SSHKey)
	return out
}

func statusActions(r plan.RuleInForce) []operatorv1.NodeDisruptionPolicyStatusAction {
	if r.Special {
		return []operatorv1.NodeDisruptionPolicyStatusAction{{Type: operatorv1.SpecialStatusAction}}
	}
	out := []operatorv1.NodeDisruptionPolicyStatusAction{} // the schema wants a list even without an action
	for _, does := range r.Actions {
		a := operatorv1.NodeDisruptionPolicyStatusAction{Type: operatorv1.NodeDisruptionPolicyStatusActionType(does.Type)}
		service := operatorv1.NodeDisruptionPolicyServiceName(does.Service)
		switch does.Type {
		case plan.ActionReload:
			a.Reload = &operatorv1.ReloadService{ServiceName: service}
		case plan.ActionRestart:
			a.Restart = &operatorv1.RestartService{ServiceName: service}
		default:
		}
		out = append(out, a)
	}
	return out
}
