// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"fmt"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
)

// Subject returns one key for the subject of a want or of a change.
func Subject(kind, name string) string { return kind + " " + name }

// Subjects returns the subjects of a want: several for passwords, which all stand in one file, and "" for the agent's
// own paths.
func Subjects(w files.Want) []string {
	switch {
	case w.Kind == "":
		return []string{""}
	case w.Name == "":
		return []string{Subject(w.Kind, w.Path)}
	case w.Kind != "password":
		return []string{Subject(w.Kind, w.Name)}
	}
	var out []string
	for user := range strings.FieldsSeq(w.Name) {
		out = append(out, Subject(w.Kind, user))
	}
	return out
}

// Differing returns the subjects that the host does not match.
func (v View) Differing(wants []files.Want) (map[string]bool, error) {
	out := map[string]bool{}
	for _, w := range wants {
		d, err := v.Compare(w)
		if err != nil {
			return nil, fmt.Errorf("comparing %s: %w", w.Path, err)
		}
		if len(d) == 0 {
			continue
		}
		for _, s := range Subjects(w) {
			out[s] = true
		}
	}
	return out, nil
}

// Writable refuses paths in the OS image. /usr is read-only, and the repository and all other deployments share its
// files.
func (c *Layout) Writable() error {
	places, err := c.view.places(c.Wants)
	if err != nil {
		return err
	}
	var wrong files.Misplaced
	for _, w := range c.Wants {
		if at := places[w.Path]; under(at, "/usr") {
			wrong = append(wrong, files.Misfit{Want: w, Reason: "is refused: " + at + " is part of the OS image, which no " +
				"configuration can change; leave it out"})
		}
	}
	if len(wrong) > 0 {
		return wrong
	}
	return nil
}

// Carried returns the wants that a deployment carries.
func (c *Layout) Carried() ([]files.Want, error) { return c.where(carries) }

// Below returns the wants whose place is in a directory.
func (c *Layout) Below(dir string) ([]files.Want, error) {
	return c.where(func(at string) bool { return under(at, dir) })
}

// Booted returns what a configuration wants in an /etc that each boot begins anew, from the image's. Nothing of another
// configuration is to be released there, and nothing of an admin's is to be kept.
func Booted(v View, cfg *machineconfig.Config) ([]files.Want, error) {
	c, err := Make(v, cfg, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Name, err)
	}
	return c.where(func(at string) bool { return under(at, "/etc") && !under(at, origDir) })
}

// where returns the wants with a place that fits accepts.
func (c *Layout) where(fits func(at string) bool) ([]files.Want, error) {
	places, err := c.view.places(c.Wants)
	if err != nil {
		return nil, err
	}
	var out []files.Want
	for _, w := range c.Wants {
		if fits(places[w.Path]) {
			out = append(out, w)
		}
	}
	return out, nil
}

// Beside returns the wants that no deployment carries. It refuses a path on a file system that is empty after the boot
// that the update needs.
func (c *Layout) Beside() ([]files.Want, error) {
	places, err := c.view.places(c.Wants)
	if err != nil {
		return nil, err
	}
	var out []files.Want
	for _, w := range c.Wants {
		at := places[w.Path]
		if carries(at) {
			continue
		}
		for _, dir := range []string{"/run", "/tmp", "/dev", "/proc", "/sys"} {
			if under(at, dir) {
				return nil, fmt.Errorf("%s: %s does not survive the reboot that this update needs", w.Subject(), dir)
			}
		}
		out = append(out, w)
	}
	return out, nil
}

// Only drops all wants except three kinds: some files of the configuration, what an admin had at their paths, and
// directories that were made for them.
func (c *Layout) Only(some []machineconfig.Delivery, made []string) error {
	about := map[string]bool{}
	for _, f := range some {
		at, err := c.resolve(f.Path)
		if err != nil {
			return fmt.Errorf("file %s: %w", f.Path, err)
		}
		about[f.Path], about[c.origPath(at)] = true, true
	}
	for _, dir := range made {
		about[dir] = true
	}
	c.Wants = slices.DeleteFunc(c.Wants, func(w files.Want) bool { return !about[w.Path] || w.Exists })
	return nil
}
