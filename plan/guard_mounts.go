// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/machineconfig"
)

// recordMounts are the units of what may be mounted over the agent's record, by where they are mounted.
var recordMounts = map[string]string{"/var": "var.mount", "/var/lib": "var-lib.mount",
	"/var/lib/machine-config-daemon": `var-lib-machine\x2dconfig\x2ddaemon.mount`}

// displacing finds what would have a host that is configured look for the agent's record elsewhere in its next boot,
// where nothing knows how to go back.
func displacing(current, desired *machineconfig.Config) (out []Unreconcilable) {
	const why = "%s %s would change what is mounted over the agent's record; only provisioning a new machine can do that"
	for _, unit := range recordMounts {
		if !reflect.DeepEqual(unitOf(current, unit), unitOf(desired, unit)) {
			out = append(out, Unreconcilable{"systemd.units", fmt.Sprintf(why, "unit", unit)})
		}
	}
	if !slices.Equal(fstab(current), fstab(desired)) {
		out = append(out, Unreconcilable{"storage.files", fmt.Sprintf(why, "file", "/etc/fstab")})
	}
	return out
}

// unitOf is what a configuration has of a unit, nothing where it has none.
func unitOf(c *machineconfig.Config, name string) machineconfig.Unit {
	for _, u := range c.Units {
		if u.Name == name {
			return u
		}
	}
	return machineconfig.Unit{Name: name}
}

// fstab are the entries of a configuration's /etc/fstab that may be mounted over the agent's record.
func fstab(c *machineconfig.Config) (entries []string) {
	for _, f := range c.Files {
		if f.Path != "/etc/fstab" {
			continue
		}
		for line := range strings.Lines(string(f.Contents)) {
			fields := strings.Fields(line)
			if len(fields) < 2 || strings.HasPrefix(fields[0], "#") {
				continue
			}
			if _, is := recordMounts["/"+strings.Trim(fields[1], "/")]; is {
				entries = append(entries, strings.Join(fields, " "))
			}
		}
	}
	return entries
}
