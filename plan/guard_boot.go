// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/systemd/syntax"
)

// through are the targets that a boot passes on its way to the targets in boots.
var through = []string{"sysinit.target", "basic.target", "local-fs-pre.target", "local-fs.target", "swap.target",
	"sockets.target", "timers.target", "paths.target", "slices.target", "network.target", "network-online.target",
	"remote-fs.target", "getty.target"}

// types are the types of units that a boot starts. A drop-in for all units of a type is named after the type.
var types = []string{"service", "socket", "target", "mount", "swap", "path", "timer", "slice", "automount"}

// inBoot reports whether a boot starts a unit, or a unit that a drop-in of that name is read for.
func inBoot(unit string) bool {
	return slices.Contains(types, unit) || slices.ContainsFunc(slices.Concat(boots, through), func(b string) bool {
		return unit == b || slices.Contains(prefixDirs(b), unit+".d")
	})
}

// pullsAway finds a setting that makes a boot start a target which ends the boot, or stops it before the host serves.
func pullsAway(unit string, a syntax.Assignment) string {
	words, _ := syntax.Words(a.Value)
	keys := []string{"Requires", "Requisite", "Wants", "BindsTo", "BindTo", "Upholds"}
	if slices.Contains(types, unit) { // some unit of the type ends or fails in every boot
		keys = append(keys, "OnSuccess", "OnFailure")
	}
	away := false
	switch {
	case a.Section == "Unit" && inBoot(unit) && slices.Contains(keys, a.Key):
		away = slices.ContainsFunc(words, goesAway)
	case a.Section == "Install" && goesAway(unit):
		away = slices.Contains([]string{"WantedBy", "RequiredBy", "UpheldBy"}, a.Key) && slices.ContainsFunc(words, inBoot)
	}
	if !away {
		return ""
	}
	return a.Key + "=" + a.Value + ": " + leads
}

// starves finds limits of the root slice, which all units are in, those of the agent too. Limits of system.slice do not
// apply to the units that take a bad configuration back. systemd sets no limit of memory or CPU time on the root slice.
func starves(unit string, a syntax.Assignment) string {
	if unit != "-.slice" && unit != "slice" || a.Section != "Slice" {
		return ""
	}
	switch a.Key {
	case "TasksMax":
		if slices.Contains([]string{"", "infinity", "100%"}, a.Value) {
			return ""
		}
	case "ManagedOOMSwap", "ManagedOOMMemoryPressure":
		if a.Value != "kill" {
			return ""
		}
	default:
		return ""
	}
	return a.Key + "=" + a.Value + " would apply to the whole host, including the agent's units; set it in " +
		"system.slice, or in a slice of your own"
}

// typeOf returns the type of a unit, "service" for crio.service.
func typeOf(unit string) string { return strings.TrimPrefix(path.Ext(unit), ".") }

// prepareRootPath is the file that ostree reads to make the root of a deployment. It comes before the image's own file.
const prepareRootPath = "/etc/ostree/prepare-root.conf"

// prepareRoot judges the configuration of ostree-prepare-root. Without a lasting /etc no deployment carries a
// configuration, so the host could not come back to one.
func prepareRoot(at string, contents *string) string {
	if at != prepareRootPath {
		return ""
	}
	if contents == nil {
		return "its contents decide whether this host could be taken back; configure a regular file"
	}
	all, _ := syntax.Parse(*contents, false)
	transient := ""
	for _, a := range all {
		if a.Section == "etc" && a.Key == "transient" {
			transient = a.Value
		}
	}
	if slices.Contains([]string{"true", "1", "yes"}, transient) {
		return "etc.transient leaves no deployment an /etc to come back to; leave it out"
	}
	return ""
}
