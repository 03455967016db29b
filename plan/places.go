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

// forceFile makes the OpenShift daemon skip its checks, so a configuration must not have it.
const forceFile = "/run/machine-config-daemon-force"

// usurping returns the paths of a configuration that are the agent's own, which no host can have. Links of the
// configuration itself are followed; those of a host, only a host can see.
func usurping(desired *machineconfig.Config) []Unreconcilable {
	g := newGuard(desired)
	each(desired, func(field, kind, at string) {
		to := g.follow(path.Clean(at))
		if i := slices.IndexFunc(own, func(dir string) bool { return below(to, dir) }); i >= 0 {
			g.refuse(field, kind+" "+at, fmt.Sprintf("%s belongs to the agent; leave it out", own[i]))
		} else if to == forceFile {
			g.refuse(field, kind+" "+at, "OpenShift's daemon would skip its checks for it; leave it out")
		}
	})
	return g.found
}

// Image says whether hosts have an OS image, whose /usr no configuration can change.
type Image int

// What is known of the hosts.
const (
	ImageUnknown Image = iota // nothing, or not of all hosts
	ImageThere                // one of them has an image
	ImageAbsent               // all of them have none
)

// ImageOf returns what is known of hosts by how the OS of each is managed, as the agent reports it. "" means that
// nothing is known of a host.
func ImageOf(managed []string) Image {
	switch {
	case slices.ContainsFunc(managed, func(os string) bool { return os != "" && os != noImage }):
		return ImageThere
	case len(managed) == 0 || slices.Contains(managed, ""):
		return ImageUnknown
	}
	return ImageAbsent
}

// noImage is the report of a host whose OS no image brings.
const noImage = "none"

// with returns what is known of hosts that are to have a configuration. One that names an OS image is for hosts that
// boot an image: every other host refuses it.
func (i Image) with(desired *machineconfig.Config) Image {
	if i == ImageUnknown && desired.OSImageURL != "" {
		return ImageThere
	}
	return i
}

// Refuses returns the paths of a configuration that these hosts can't have. Paths that the present configuration has
// already are left out: they were accepted before. current is nil where there is none.
func (i Image) Refuses(current, desired *machineconfig.Config) []Unreconcilable {
	if i.with(desired) != ImageThere {
		return nil
	}
	return inImage(current, desired)
}

// Warnings returns what may be refused by hosts of which nothing is known.
func (i Image) Warnings(current, desired *machineconfig.Config) []string {
	if i.with(desired) != ImageUnknown {
		return nil
	}
	var out []string
	for _, u := range inImage(current, desired) {
		out = append(out, u.Field+": "+u.Reason+"; hosts that boot an image refuse it")
	}
	return out
}

func inImage(current, desired *machineconfig.Config) []Unreconcilable {
	had := map[string]bool{}
	if current != nil {
		each(current, func(_, _, at string) { had[path.Clean(at)] = true })
	}
	g := newGuard(desired)
	each(desired, func(field, kind, at string) {
		if to := g.follow(path.Clean(at)); !had[path.Clean(at)] && below(to, "/usr") && !below(to, "/usr/local") {
			g.refuse(field, kind+" "+at, "/usr is part of the OS image, which no configuration can change; below /etc and "+
				"/usr/local it can")
		}
	})
	return g.found
}

// Refused returns what hosts refuse of a configuration whatever they have now, for a pool that never had one: paths and
// units of the agent, what keeps a host from coming back, and paths in the image where a host has one.
func Refused(desired *machineconfig.Config, image Image) []Unreconcilable {
	out := slices.Concat(usurping(desired), disarming(desired, false), image.Refuses(nil, desired))
	slices.SortStableFunc(out, byField)
	return slices.Compact(out)
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
