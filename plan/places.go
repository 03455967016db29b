// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/machineconfig"
)

// own are the paths below which the agent keeps its own files.
var own = []string{"/var/lib/machine-config-daemon", "/run/machine-config-daemon", "/etc/machine-config-daemon/orig",
	"/etc/machine-config-daemon/currentconfig"}

// usurping returns the paths of a configuration that are the agent's own, which no host can have. Links of the
// configuration itself are followed; those of a host, only a host can see.
func usurping(desired *machineconfig.Config) []Unreconcilable {
	g := newGuard(desired)
	each(desired, func(field, kind, at string) {
		to := g.follow(path.Clean(at))
		if i := slices.IndexFunc(own, func(dir string) bool { return below(to, dir) }); i >= 0 {
			g.refuse(field, kind+" "+at, fmt.Sprintf("%s belongs to the agent; leave it out", own[i]))
		}
	})
	return g.found
}

// InImage returns the paths of a configuration that no host with an OS image can have. Paths that the present
// configuration has already are left out: such a host has no OS image. current is nil where there is none.
func InImage(current, desired *machineconfig.Config) []Unreconcilable {
	had := map[string]bool{}
	if current != nil {
		each(current, func(_, _, at string) { had[at] = true })
	}
	g := newGuard(desired)
	each(desired, func(field, kind, at string) {
		if to := g.follow(path.Clean(at)); !had[at] && below(to, "/usr") && !below(to, "/usr/local") {
			g.refuse(field, kind+" "+at, "/usr is part of the OS image, which no configuration can change; below /etc and "+
				"/usr/local it can")
		}
	})
	return g.found
}

// Misplaced returns the paths of a configuration that no host can have, for a pool that never had a configuration.
func Misplaced(desired *machineconfig.Config) []Unreconcilable {
	return append(usurping(desired), InImage(nil, desired)...)
}

func below(at, dir string) bool { return at == dir || strings.HasPrefix(at, dir+"/") }

// each calls a function for each path of a configuration.
func each(c *machineconfig.Config, do func(field, kind, at string)) {
	for _, f := range c.Files {
		do("storage.files", "file", f.Path)
	}
	for _, l := range c.Links {
		do("storage.links", "link", l.Path)
	}
	for _, d := range c.Directories {
		do("storage.directories", "directory", d.Path)
	}
}
