// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	operatorv1 "github.com/openshift/api/operator/v1"
)

// Idle returns, by field, the parts of a policy that are valid and cover nothing.
func (p *Policy) Idle() []string { return slices.Clone(p.idle) }

// ClusterPolicies returns the policies in force, as the status of a MachineConfiguration shows them: OpenShift's
// defaults in their order, Noderefit's own, and then added ones. A replacement of a default is in the default's place.
// Special means that the contents of the change decide.
func (p *Policy) ClusterPolicies() operatorv1.NodeDisruptionPolicyClusterStatus {
	var out operatorv1.NodeDisruptionPolicyClusterStatus
	for _, r := range p.files.order {
		out.Files = append(out.Files, operatorv1.NodeDisruptionPolicyStatusFile{Path: r.about, Actions: r.shown()})
	}
	for _, r := range p.units.order {
		out.Units = append(out.Units, operatorv1.NodeDisruptionPolicyStatusUnit{
			Name: operatorv1.NodeDisruptionPolicyServiceName(r.about), Actions: r.shown()})
	}
	out.SSHKey.Actions = p.sshkey.shown()
	return out
}

func (r *rule) shown() []operatorv1.NodeDisruptionPolicyStatusAction {
	if r.registries || r.hosts {
		return []operatorv1.NodeDisruptionPolicyStatusAction{{Type: operatorv1.SpecialStatusAction}}
	}
	out := []operatorv1.NodeDisruptionPolicyStatusAction{} // the schema wants a list even without an action
	for _, s := range r.steps {
		a := operatorv1.NodeDisruptionPolicyStatusAction{Type: operatorv1.NodeDisruptionPolicyStatusActionType(s.action)}
		service := operatorv1.NodeDisruptionPolicyServiceName(s.service)
		switch s.action {
		case ActionReload:
			a.Reload = &operatorv1.ReloadService{ServiceName: service}
		case ActionRestart:
			a.Restart = &operatorv1.RestartService{ServiceName: service}
		default:
		}
		out = append(out, a)
	}
	return out
}
