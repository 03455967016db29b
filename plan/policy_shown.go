// SPDX-License-Identifier: Apache-2.0

package plan

import "slices"

// InForce has the rules of a policy: OpenShift's defaults in their order, Noderefit's own, and then added ones. A
// replacement of a default is in the default's place.
type InForce struct {
	Files, Units []RuleInForce
	SSHKey       RuleInForce
}

// RuleInForce is a rule about one path, one unit, or SSH keys.
type RuleInForce struct {
	About   string   // the path or unit as it was written, "" for SSH keys
	Special bool     // the contents of the change decide, and Actions is empty
	Actions []Action // without Because, as no change has asked for them
}

// Idle returns, by field, the parts of a policy that are valid and cover nothing.
func (p *Policy) Idle() []string { return slices.Clone(p.idle) }

// InForce returns the rules that a node goes by.
func (p *Policy) InForce() InForce {
	out := InForce{SSHKey: p.sshkey.inForce()}
	for _, r := range p.files.order {
		out.Files = append(out.Files, r.inForce())
	}
	for _, r := range p.units.order {
		out.Units = append(out.Units, r.inForce())
	}
	return out
}

func (r *rule) inForce() RuleInForce {
	out := RuleInForce{About: r.about, Special: r.registries || r.hosts}
	if !out.Special {
		for _, s := range r.steps {
			out.Actions = append(out.Actions, Action{Type: s.action, Service: s.service})
		}
	}
	return out
}
