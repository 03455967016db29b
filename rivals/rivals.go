// SPDX-License-Identifier: Apache-2.0

// Package rivals knows the other managers of a host: those that change its OS, that reboot it, or that configure it.
package rivals

import (
	"path"
	"strings"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/transaction"
)

// osUnits are units that change the OS by themselves and reboot. Two managers on one host undo each other's work.
var osUnits = []string{api.UnitZincati, api.UnitBootc, api.UnitRPMOSTree}

// mcoUnits are those that the OpenShift machine-config-operator brings to a host.
var mcoUnits = []string{"machine-config-daemon-firstboot.service", "machine-config-daemon-pull.service"}

// ownUnits is a line in each of our units.
const ownUnits = "Documentation=https://github.com/noderefit/noderefit\n"

// Signs are traces of other managers on a host.
type Signs struct {
	Units     map[string]string // active states of the units above; "masked" for a masked one
	Texts     map[string]string // contents of the unit files of mcoUnits in /etc
	Processes [][]string        // command lines
	// Automatic is the job of rpm-ostreed's timer: the value of AutomaticUpdatePolicy.
	Automatic string
	// CurrentConfig reports whether there is a file in the place of our link: the other agent wrote it.
	CurrentConfig bool
	Exists        func(path string) bool
}

// Of names another manager of the host, and what to do about it; "" where there is no other manager. off reports
// whether the configuration turns a unit off, boots whether the update reboots. Managers that care only for the OS and
// for reboots count only where boots is true.
func Of(s Signs, off func(unit string) bool, boots bool) string {
	active := func(unit string) bool {
		return (s.Units[unit] == "active" || s.Units[unit] == "activating") && !off(unit)
	}
	for _, unit := range osUnits {
		if boots && active(unit) && (unit != api.UnitRPMOSTree || !api.RPMOSTreeHarmless(s.Automatic)) {
			return unit + " manages this host's OS too: disable it, or have the configuration do so"
		}
	}
	const mco = "the OpenShift machine-config-operator manages this host too: "
	for _, argv := range s.Processes {
		if len(argv) > 1 && strings.HasPrefix(path.Base(argv[0]), "machine-config-daemon") && argv[1] == "start" {
			return mco + "its agent runs (" + argv[0] + " start); remove it from the cluster first"
		}
	}
	for _, unit := range mcoUnits {
		state := s.Units[unit]
		switch {
		case strings.Contains(s.Texts[unit], ownUnits): // our own unit, which has the name of OpenShift's
		case active(unit):
			return mco + unit + " is " + state + "; disable it, or have the configuration do so"
		case s.CurrentConfig && state != "" && state != "not-found" && state != "masked" && !off(unit):
			return mco + transaction.ConfigDir + "/currentconfig is its file, and " + unit +
				" is installed; mask it, or have the configuration do so"
		}
	}
	for _, argv := range s.Processes {
		if boots && len(argv) > 0 && path.Base(argv[0]) == "kured" {
			if at := sentinelOf(argv); at != "" && s.Exists(at) {
				return "kured is about to reboot this host: it runs, and " + at + " asks it to; let it, or remove the file"
			}
		}
	}
	return ""
}

// automaticPolicy reads the policy from rpm-ostree's configuration; "" where the configuration has none, which means
// the policy none.
func automaticPolicy(config string) string {
	group, policy := "", ""
	for line := range strings.Lines(config) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			group = line
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		if group == "[Daemon]" && strings.TrimSpace(key) == "AutomaticUpdatePolicy" {
			policy = strings.TrimSpace(value)
		}
	}
	return policy
}

// sentinelOf returns the file that a kured looks for; "" where that kured asks a command instead, whose answer we can't
// know.
func sentinelOf(argv []string) string {
	at := api.KuredSentinel
	for i, arg := range argv {
		name, value, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !joined && i+1 < len(argv) {
			value = argv[i+1]
		}
		switch {
		case !strings.HasPrefix(arg, "--"):
		case name == "reboot-sentinel-command" && value != "":
			return ""
		case name == "reboot-sentinel" && value != "":
			at = value
		}
	}
	return at
}
