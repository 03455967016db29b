// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// osManagers are units that change the OS by themselves and reboot. Two managers on one host undo each other's work.
var osManagers = []string{"zincati.service", "bootc-fetch-apply-updates.timer", rpmostreeTimer}

// rpm-ostree's timer is enabled on many hosts where its configuration, a key file, makes it do nothing.
const (
	rpmostreeTimer  = "rpm-ostreed-automatic.timer"
	rpmostreeConfig = "/etc/rpm-ostreed.conf"
)

// mcoUnits are those that the OpenShift machine-config-operator brings to a host.
var mcoUnits = []string{"machine-config-daemon-firstboot.service", "machine-config-daemon-pull.service"}

// ownUnits is a line in each of our units.
const ownUnits = "Documentation=https://github.com/noderefit/noderefit\n"

// sentinel is the file by which kured is asked for a reboot, unless kured is told another file.
const sentinel = "/var/run/reboot-required"

// signs are traces of other managers on a host.
type signs struct {
	units     map[string]string // active states of the units above; "masked" for a masked one
	texts     map[string]string // contents of the unit files of mcoUnits in /etc
	processes [][]string        // command lines
	// automatic is the job of rpm-ostreed's timer: the value of AutomaticUpdatePolicy.
	automatic string
	// currentConfig reports whether there is a file in the place of our link: the other agent wrote it.
	currentConfig bool
	exists        func(path string) bool
}

// rival names another manager of the host, and what to do about it; "" where there is no other manager. off reports
// whether the configuration turns a unit off, boots whether the update reboots. Managers that care only for the OS and
// for reboots count only where boots is true.
func rival(s signs, off func(unit string) bool, boots bool) string {
	active := func(unit string) bool {
		return (s.units[unit] == "active" || s.units[unit] == "activating") && !off(unit)
	}
	for _, unit := range osManagers {
		if boots && active(unit) && (unit != rpmostreeTimer || !harmless(s.automatic)) {
			return unit + " manages this host's OS too: disable it, or have the configuration do so"
		}
	}
	const mco = "the OpenShift machine-config-operator manages this host too: "
	for _, argv := range s.processes {
		if len(argv) > 1 && strings.HasPrefix(path.Base(argv[0]), "machine-config-daemon") && argv[1] == "start" {
			return mco + "its agent runs (" + argv[0] + " start); remove it from the cluster first"
		}
	}
	for _, unit := range mcoUnits {
		state := s.units[unit]
		switch {
		case strings.Contains(s.texts[unit], ownUnits): // our own unit, which has the name of OpenShift's
		case active(unit):
			return mco + unit + " is " + state + "; disable it, or have the configuration do so"
		case s.currentConfig && state != "" && state != "not-found" && state != "masked" && !off(unit):
			return mco + transaction.ConfigDir + "/currentconfig is its file, and " + unit +
				" is installed; mask it, or have the configuration do so"
		}
	}
	for _, argv := range s.processes {
		if boots && len(argv) > 0 && path.Base(argv[0]) == "kured" {
			if at := sentinelOf(argv); at != "" && s.exists(at) {
				return "kured is about to reboot this host: it runs, and " + at + " asks it to; let it, or remove the file"
			}
		}
	}
	return ""
}

// harmless reports whether rpm-ostree's timer touches no deployment under that policy.
func harmless(policy string) bool {
	return slices.Contains([]string{"", "none", "off", "check"}, policy)
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
	at := sentinel
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

// otherManagers refuses a host on which another manager is at work, unless the configuration turns that manager off.
func (h *Host) otherManagers(ctx context.Context, cfg *machineconfig.Config, boots bool) error {
	if h.services == nil {
		return nil
	}
	s := signs{exists: h.exists, texts: map[string]string{}}
	units := slices.Concat(osManagers, mcoUnits)
	err := h.services.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) (err error) {
		s.units, err = m.ActiveState(ctx, units...)
		return err
	})
	if err != nil {
		return err
	}
	for _, unit := range units {
		if n, err := h.root.Inspect(path.Join(systemd.UnitDir, unit)); err == nil && n.Target == "/dev/null" {
			s.units[unit] = "masked"
		}
	}
	for _, unit := range mcoUnits {
		if text, err := h.root.ReadFile(path.Join(systemd.UnitDir, unit)); err == nil {
			s.texts[unit] = string(text)
		}
	}
	if s.processes, err = h.processes(); err != nil {
		return err
	}
	config, err := h.root.ReadFile(rpmostreeConfig)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking for other managers of the OS: %w", err)
	}
	s.automatic = automaticPolicy(string(config))
	current, err := h.root.Inspect(transaction.ConfigDir + "/currentconfig")
	s.currentConfig = err == nil && current.Type == files.Regular
	off := func(unit string) bool {
		return slices.ContainsFunc(cfg.Units, func(u machineconfig.Unit) bool {
			return u.Name == unit && (u.Enabled != nil && !*u.Enabled || u.Mask != nil && *u.Mask)
		})
	}
	if who := rival(s, off, boots); who != "" {
		return &Refused{Err: errors.New(who)}
	}
	return nil
}

// processes returns the command lines of all running processes; the kernel's threads have none.
func (h *Host) processes() ([][]string, error) {
	names, err := h.root.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var out [][]string
	for _, name := range names {
		if _, err := strconv.Atoi(name); err != nil {
			continue
		}
		line, err := h.root.ReadFile("/proc/" + name + "/cmdline")
		if err == nil && len(line) > 0 { // a process that has ended meanwhile is left out
			out = append(out, strings.Split(strings.TrimRight(string(line), "\x00"), "\x00"))
		}
	}
	return out, nil
}
