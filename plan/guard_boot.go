// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/systemd/syntax"
)

// through are the targets that a boot passes on its way to those in boots.
var through = []string{"sysinit.target", "basic.target", "local-fs-pre.target", "local-fs.target", "swap.target",
	"sockets.target", "timers.target", "paths.target", "slices.target", "network.target", "network-online.target",
	"remote-fs.target", "getty.target"}

// types are those whose units a boot starts; a drop-in for all of a type is named after it.
var types = []string{"service", "socket", "target", "mount", "swap", "path", "timer", "slice", "automount"}

// inBoot reports whether a boot starts a unit, or one that a drop-in of that name is read for.
func inBoot(unit string) bool {
	return slices.Contains(types, unit) || slices.ContainsFunc(slices.Concat(boots, through), func(b string) bool {
		return unit == b || slices.Contains(prefixDirs(b), unit+".d")
	})
}

// pullsAway finds what has a boot start a target that ends it, or stops it before the host serves.
func pullsAway(unit string, a syntax.Assignment) string {
	words, _ := syntax.Words(a.Value)
	keys := []string{"Requires", "Requisite", "Wants", "BindsTo", "BindTo", "Upholds"}
	if slices.Contains(types, unit) { // one of them ends or fails in every boot
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

// starves finds limits of the slice that all units are in, the agent's own among them. Those of system.slice do not
// hold for what takes a bad configuration back. Of the root slice systemd has no limit of memory or of CPU time.
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
	return a.Key + "=" + a.Value + " would hold for all of this host, also for the agent's units; give it to " +
		"system.slice, or to a slice of your own"
}

// typeOf is the type of a unit, "service" for crio.service.
func typeOf(unit string) string { return strings.TrimPrefix(path.Ext(unit), ".") }

// prepareRootPath is what ostree reads to make the root of a deployment, before the file of the image.
const prepareRootPath = "/etc/ostree/prepare-root.conf"

// prepareRoot judges the configuration of ostree-prepare-root. Without a lasting /etc no deployment carries a
// configuration, and there is none to come back to.
func prepareRoot(at string, contents *string) string {
	if at != prepareRootPath {
		return ""
	}
	if contents == nil {
		return "it decides whether this host could be taken back; give it as a file"
	}
	all, _ := syntax.Parse(*contents, false)
	transient := ""
	for _, a := range all {
		if a.Section == "etc" && a.Key == "transient" {
			transient = a.Value
		}
	}
	if slices.Contains([]string{"true", "1", "yes"}, transient) {
		return "etc.transient leaves no deployment an /etc of its own to come back to; leave it out"
	}
	return ""
}
