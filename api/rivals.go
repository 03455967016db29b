// SPDX-License-Identifier: Apache-2.0

package api

// Units of a host that change the OS by themselves and reboot. Two managers on one host undo each other's work.
const (
	UnitZincati = "zincati.service"
	UnitBootc   = "bootc-fetch-apply-updates.timer"
	// UnitRPMOSTree is enabled on many hosts where its configuration, RPMOSTreeConfig, makes it do nothing.
	UnitRPMOSTree = "rpm-ostreed-automatic.timer"
)

// RPMOSTreeConfig is the key file of rpm-ostree's daemon.
const RPMOSTreeConfig = "/etc/rpm-ostreed.conf"

// RPMOSTreeHarmless reports whether rpm-ostree's timer touches no deployment under an AutomaticUpdatePolicy.
func RPMOSTreeHarmless(policy string) bool {
	switch policy {
	case "", "none", "off", "check":
		return true
	}
	return false
}

// BootcManaged is the label of a Node whose OS image bootc-operator manages, as a BootcNodePool says. bootc-operator
// writes the label.
const BootcManaged = "bootc.dev/managed"

// KuredSentinel is the file by which kured is asked for a reboot, unless kured is told another file.
const KuredSentinel = "/var/run/reboot-required"
