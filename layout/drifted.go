// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"slices"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
)

// Drifted returns a configuration as a host has it whose subjects differ from it. drifted has, by Subject, the aspects
// that differ.
func Drifted(cfg *machineconfig.Config, drifted map[string][]string) *machineconfig.Config {
	if len(drifted) == 0 {
		return cfg
	}
	c := *cfg
	c.Files = slices.DeleteFunc(slices.Clone(c.Files), func(f machineconfig.File) bool {
		return drifted[Subject("file", f.Path)] != nil
	})
	c.Directories = slices.DeleteFunc(slices.Clone(c.Directories), func(d machineconfig.Directory) bool {
		return drifted[Subject("directory", d.Path)] != nil
	})
	c.Links = slices.DeleteFunc(slices.Clone(c.Links), func(l machineconfig.Link) bool {
		return drifted[Subject("link", l.Path)] != nil
	})
	c.Users = slices.Clone(c.Users)
	for i, u := range c.Users {
		if drifted[Subject("sshkeys", u.Name)] != nil {
			c.Users[i].Keys = nil
		}
		if drifted[Subject("password", u.Name)] != nil {
			c.Users[i].PasswordHash = nil
		}
	}
	c.Units = slices.Clone(c.Units)
	for i, u := range c.Units {
		if what := drifted[Subject("unit", u.Name)]; what != nil {
			c.Units[i] = driftedUnit(u, what)
		}
		c.Units[i].Dropins = slices.DeleteFunc(slices.Clone(u.Dropins), func(d machineconfig.Dropin) bool {
			return drifted[Subject("dropin", u.Name+"/"+d.Name)] != nil
		})
	}
	return &c
}

// driftedUnit returns a unit that differs from u in those aspects.
func driftedUnit(u machineconfig.Unit, what []string) machineconfig.Unit {
	for _, w := range what {
		switch files.What(w) {
		case files.Enabled:
			if u.Enabled != nil {
				no := !*u.Enabled
				u.Enabled = &no
			}
		case files.Masked:
			u.Mask = nil
		default:
			u.Contents = ""
		}
	}
	return u
}
