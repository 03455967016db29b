// SPDX-License-Identifier: Apache-2.0

package cli

import "fmt"

// SoftReboot is the value of the flag --soft-reboot: whether an update may restart the userspace alone where that is
// enough and the host is able to do so.
type SoftReboot bool

// SoftRebootUsage is the help of the flag.
const SoftRebootUsage = "restart the userspace alone where an update needs no more than that and the host can: " +
	"never or auto"

func (s *SoftReboot) String() string {
	if *s {
		return "auto"
	}
	return "never"
}

// Set takes "never" or "auto".
func (s *SoftReboot) Set(text string) error {
	if text != "never" && text != "auto" {
		return fmt.Errorf("%q is neither never nor auto", text)
	}
	*s = text == "auto"
	return nil
}

// Type names the values in a help text.
func (s *SoftReboot) Type() string { return "never|auto" }
