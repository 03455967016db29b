// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"
)

// rebootMethods are the values of the flag --reboot-method.
var rebootMethods = []string{"full", "soft", "kexec", "command"}

// RebootMethod is the value of the flag --reboot-method: how the host reboots.
type RebootMethod string

// RebootMethodUsage is the help of the flag.
const RebootMethodUsage = "how to reboot: full; soft, as --soft-reboot=auto; kexec, without firmware and boot " +
	"loader; or command, by /etc/noderefit/reboot-command. What the host can't do becomes a full reboot"

func (m *RebootMethod) String() string {
	if *m == "" {
		return rebootMethods[0]
	}
	return strings.ToLower(string(*m))
}

// Set takes one of the values, and keeps it as it is written in a RolloutPolicy.
func (m *RebootMethod) Set(text string) error {
	if !slices.Contains(rebootMethods, text) {
		return fmt.Errorf("%q is not one of %s", text, strings.Join(rebootMethods, ", "))
	}
	*m = RebootMethod(strings.ToUpper(text[:1]) + text[1:])
	return nil
}

// Type names the values in a help text.
func (m *RebootMethod) Type() string { return strings.Join(rebootMethods, "|") }
