// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/noderefit/noderefit/machineconfig"
)

// overridden has, for each section that irreconcilableValidationOverrides can release, the word for it there.
var overridden = map[string]string{
	"storage.disks":       "Disks",
	"storage.filesystems": "FileSystems",
	"storage.raid":        "Raid",
	// The API has no word for luks. A change of what unlocks a device, such as a Tang server, is for new machines. clevis
	// rekeys the existing ones.
	"storage.luks": "Disks",
}

// provisioned finds differences between two configurations that can only be set when a machine is made.
func provisioned(current, desired *machineconfig.Config, policy *Policy) (out []Unreconcilable) {
	if current.FIPS != desired.FIPS {
		out = append(out, Unreconcilable{"fips", fmt.Sprintf(
			"FIPS mode is set when a machine is installed and can't go from %t to %t; provision a new machine",
			current.FIPS, desired.FIPS)})
	}
	for _, change := range rawChanges(current.Provision, desired.Provision) {
		word := overridden[change.field]
		if policy.overrides[word] {
			continue
		}
		reason := change.field + " " + change.verb + "; only provisioning a new machine can do that"
		if word != "" {
			reason += ", and irreconcilableValidationOverrides.storage with " + word +
				" lets this machine stay as it is"
		}
		if change.field == "kernelArguments" {
			reason = "Ignition's kernelArguments " + change.verb +
				"; only provisioning a new machine can do that, use the MachineConfig's spec.kernelArguments"
		}
		out = append(out, Unreconcilable{change.field, reason})
	}
	old := make(map[string]machineconfig.User)
	for _, u := range current.Users {
		old[u.Name] = u
	}
	for _, u := range desired.Users {
		for _, change := range rawChanges(old[u.Name].Other, u.Other) {
			out = append(out, Unreconcilable{"passwd.users." + change.field, fmt.Sprintf(
				"%s of user %s %s; of an account only sshAuthorizedKeys and passwordHash can be changed on a running host",
				change.field, u.Name, change.verb)})
		}
	}
	return out
}

// impossible finds what can't be reconciled from any configuration.
func impossible(desired *machineconfig.Config) (out []Unreconcilable) {
	for _, f := range desired.Files {
		if f.Append {
			out = append(out, Unreconcilable{"storage.files.append", "file " + f.Path +
				" has append, which can't be repeated or undone; give the whole contents of the file instead"})
		}
	}
	return append(out, usurping(desired)...)
}

// Field returns the field of a MachineConfig's spec that a change of this kind comes from. The result is "" for changes
// that come from the spec's config.
func (k Kind) Field() string {
	return map[Kind]string{
		Kargs: "kernelArguments", KernelType: "kernelType", Extensions: "extensions", OSImage: "osImageURL",
	}[k]
}

// withoutOS returns the obstacle for a change on a host that can't change its operating system.
func withoutOS(c Change, why func(Kind) string) Unreconcilable {
	reason := "this host can't change its operating system"
	if why != nil {
		reason = why(c.Kind)
	}
	return Unreconcilable{c.Kind.Field(), strings.TrimPrefix(c.String(), "~ ") + ": " + reason +
		"; --skip-os applies the rest"}
}

type rawChange struct{ field, verb string }

// rawChanges compares canonical JSON by field.
func rawChanges(old, desired map[string]json.RawMessage) (out []rawChange) {
	for field, was := range old {
		if is, ok := desired[field]; !ok {
			out = append(out, rawChange{field, "was removed"})
		} else if !bytes.Equal(was, is) {
			out = append(out, rawChange{field, "was changed"})
		}
	}
	for field := range desired {
		if _, ok := old[field]; !ok {
			out = append(out, rawChange{field, "was added"})
		}
	}
	return out
}

func byField(a, b Unreconcilable) int {
	return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason))
}
