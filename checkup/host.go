// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"errors"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/api"
)

// host is what the probe saw on a host.
type host struct {
	ostree, rpmOSTree, bootc, systemd, podman, rebootRequired bool
	// units are "installed", "enabled" or "masked", by name.
	units map[string]string
	// policy is the AutomaticUpdatePolicy of rpm-ostree's timer.
	policy string
}

var errCutShort = errors.New("the probe's report is cut short")

// readHost reads the report of probe.sh. A report without its last line is refused: half of it could look like a host
// without other managers.
func readHost(report string) (host, error) {
	h := host{units: map[string]string{}}
	end := false
	for line := range strings.Lines(report) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch yes := value == "yes"; key {
		case "ostree":
			h.ostree = yes
		case "rpm-ostree":
			h.rpmOSTree = yes
		case "bootc":
			h.bootc = yes
		case "systemd":
			h.systemd = yes
		case "podman":
			h.podman = yes
		case "kured-sentinel":
			h.rebootRequired = yes
		case "policy":
			h.policy = value
		case "end":
			end = yes
		default:
			if unit, ok := strings.CutPrefix(key, "unit/"); ok {
				h.units[unit] = value
			}
		}
	}
	if !end {
		return host{}, errCutShort
	}
	return h, nil
}

// updaters are the enabled units that change the host by themselves, sorted.
func (h host) updaters() []string {
	var out []string
	for unit, state := range h.units {
		if state != "enabled" || unit == api.UnitRPMOSTree && api.RPMOSTreeHarmless(h.policy) {
			continue
		}
		out = append(out, unit)
	}
	slices.Sort(out)
	return out
}

// finding says what manages the OS of a probed host, and what a pool could have there.
func (p probed) finding(node string) Finding {
	h, say := p.host, func(s Severity, do, format string, args ...any) Finding {
		return found(s, do, format, args...).about("Node", "", node)
	}
	switch {
	case p.pull:
		return say(Note, "see the check images", "the host was not looked at: its node cannot pull the image")
	case p.err != nil:
		return say(Warning, "check again, or look at the host: systemctl is-enabled "+api.UnitZincati,
			"the host was not looked at: %s", p.err)
	case !h.systemd:
		return say(Failed, "keep the node out of all pools", "the host has no systemd, which the agent needs")
	case h.bootc && h.ostree && !h.podman:
		return say(Warning, "install podman on the host", "the host is managed by bootc, which needs podman for each switch")
	case h.rpmOSTree && h.ostree:
		return say(OK, "", "rpm-ostree: %s", meansImages)
	case h.bootc && h.ostree:
		return say(OK, "", "bootc: %s", meansBootc)
	case h.ostree:
		return say(OK, "", "ostree alone: kernel arguments and files; no OS images and no packages")
	}
	return say(Note, "", "no ostree: %s", meansFiles)
}

// managers are findings about what else changes a probed host.
func (p probed) managers(node string) []Finding {
	var out []Finding
	for _, unit := range p.host.updaters() {
		out = append(out, found(Warning, masked, "%s is enabled, and changes the host by itself", unit).about("Node", "",
			node))
	}
	if p.host.rebootRequired {
		out = append(out, found(Note, "see who asks for a reboot of the host", "%s is there: kured would reboot the host",
			api.KuredSentinel).about("Node", "", node))
	}
	return out
}
