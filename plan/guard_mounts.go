// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/systemd/syntax"
)

// wayBackMounts are the mount points of what a host comes back with: the agent's record, and the boot loader's entries.
// Each has its unit name without the type.
var wayBackMounts = map[string]string{"/var": "var", "/var/lib": "var-lib",
	"/var/lib/machine-config-daemon": `var-lib-machine\x2dconfig\x2ddaemon`, "/boot": "boot", "/sysroot": "sysroot"}

// mounted is what a configuration sets for a mount point of wayBackMounts: the entry, and its effect. at is fstabPath
// if the entry concerns the whole table.
type mounted struct{ field, subject, at, says string }

// displacing finds changes after which a configured host would, in its next boot, look elsewhere for what it comes back
// with. The host could not undo such a change.
func displacing(current, desired *machineconfig.Config, skipOS bool) (out []Unreconcilable) {
	left := mountsOf(current, skipOS)
	changed := map[string]bool{}
	var found []mounted
	for _, m := range mountsOf(desired, skipOS) {
		if i := slices.IndexFunc(left, m.same); i >= 0 {
			left = slices.Delete(left, i, i+1)
			continue
		}
		m.subject += " would change"
		found, changed[m.at] = append(found, m), true
	}
	for _, m := range left {
		if !changed[m.at] { // a changed mount point is reported with its new state
			m.subject += " can't be left out: it defines"
			found = append(found, m)
		}
	}
	for i := 0; i < len(found); {
		m := found[i]
		var where []string
		for ; i < len(found) && found[i].subject == m.subject && found[i].says == m.says; i++ {
			where = append(where, found[i].at)
		}
		out = append(out, Unreconcilable{m.field, fmt.Sprintf("%s what is mounted at %s (%s), where this host keeps what it "+
			"comes back with; only provisioning a new machine can do that", m.subject, strings.Join(where, ", "), m.says)})
	}
	return out
}

// same reports whether both have the same effect, even in different entries.
func (m mounted) same(o mounted) bool { return m.at == o.at && m.says == o.says }

// mountsOf returns everything that a configuration sets for the mount points.
func mountsOf(c *machineconfig.Config, skipOS bool) (all []mounted) {
	g := newGuard(c)
	add := func(field, subject, at, says string) {
		if says != "" {
			all = append(all, mounted{field, subject, at, says})
		}
	}
	table := func(field, subject, text string) {
		for _, e := range g.fstab(text) {
			add(field, subject, e.at, e.says)
		}
	}
	for _, f := range c.Files {
		if g.follow(path.Clean(f.Path)) == fstabPath && !f.NoContents {
			table("storage.files", "file "+f.Path, text(&f))
		}
	}
	for _, l := range c.Links {
		if path.Clean(l.Path) != fstabPath {
			continue
		}
		if text, known := g.contents[g.leadsTo(fstabPath, l.Target)]; known {
			table("storage.links", "link "+l.Path, text)
		} else {
			add("storage.links", "link "+l.Path, fstabPath, "the table is "+l.Target)
		}
	}
	for at, stem := range wayBackMounts {
		for _, unit := range []string{stem + ".mount", stem + ".automount"} {
			field, subject, says := mountUnit(g.unitParts(c, unit))
			add(field, subject, at, says)
		}
	}
	if !skipOS {
		for _, a := range c.KernelArguments {
			for _, m := range g.mountArgument(a) {
				add("kernelArguments", "argument "+a, m.at, m.says)
			}
		}
	}
	slices.SortFunc(all, func(a, b mounted) int {
		return strings.Compare(a.field+a.subject+a.at+a.says, b.field+b.subject+b.at+b.says)
	})
	return all
}

const fstabPath = "/etc/fstab"

// fstab returns the entries of a table for the mount points. Device, type and options count. How often a file system is
// dumped or checked does not.
func (g *guard) fstab(text string) (entries []mounted) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		at := g.within(strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(fields[1]))
		if _, is := wayBackMounts[at]; is {
			entries = append(entries, mounted{at: at, says: mountSays(append(slices.Delete(fields, 1, 2), "", "")[:3])})
		}
	}
	return entries
}

// within returns a directory after resolving the configuration's own links in its path, including the last one.
func (g *guard) within(dir string) string { return path.Dir(g.follow(path.Clean("/"+dir) + "/.x")) }

// mountSays returns what is mounted: device, type, options.
func mountSays(what []string) string {
	if what[2] == "" {
		what[2] = "defaults"
	}
	return strings.Join(slices.DeleteFunc(what, func(s string) bool { return s == "" }), " ")
}

// mountArgument returns what a kernel argument sets for the mount points.
func (g *guard) mountArgument(a string) []mounted {
	a = strings.ReplaceAll(a, `"`, "")
	key, value, valued := strings.Cut(a, "=")
	key = strings.ReplaceAll(key, "-", "_")
	switch key {
	case "fstab", "rd.fstab":
		if valued && no(value) {
			return []mounted{{at: fstabPath, says: key + " is not read"}}
		}
	case "systemd.mount_extra", "rd.systemd.mount_extra":
		fields := append(strings.SplitN(value, ":", 4), "", "", "")
		at := fields[1]
		if key != "systemd.mount_extra" { // the initramfs has the root at /sysroot
			at = strings.TrimPrefix(at, "/sysroot")
		}
		at = g.within(at)
		if _, is := wayBackMounts[at]; is {
			return []mounted{{at: at, says: mountSays([]string{fields[0], fields[2], fields[3]})}}
		}
	case "systemd.mask":
		for at, stem := range wayBackMounts {
			if value == stem+".mount" {
				return []mounted{{at: at, says: "masked"}}
			}
		}
	}
	if name, text, is := credential(a); is && name == "fstab.extra" {
		return g.fstab(text)
	}
	return nil
}

// no reports whether systemd takes a word for false.
func no(value string) bool {
	return slices.Contains([]string{"0", "no", "n", "false", "f", "off"}, strings.ToLower(value))
}

// unitPart is an entry of a configuration for a unit. It is the unit's file, a drop-in of its own, a drop-in shared by
// name or type, or a word for another setting.
type unitPart struct{ field, subject, dropin, contents, word string }

// unitParts returns all entries for a unit. The drop-ins come last, in the order of their names.
func (g *guard) unitParts(c *machineconfig.Config, unit string) (parts []unitPart) {
	for _, u := range c.Units {
		if u.Name != unit {
			continue
		}
		p := unitPart{field: "systemd.units", subject: "unit " + u.Name, contents: u.Contents}
		parts = append(parts, p)
		p.contents = ""
		if u.Enabled != nil {
			p.word = map[bool]string{true: "enabled", false: "disabled"}[*u.Enabled]
			parts = append(parts, p)
		}
		if u.Mask != nil && *u.Mask {
			p.word = "masked"
			parts = append(parts, p)
		}
		for _, d := range u.Dropins {
			parts = append(parts, unitPart{p.field, "drop-in " + u.Name + "/" + d.Name, d.Name, d.Contents, ""})
		}
	}
	for _, f := range c.Files {
		p := unitPart{field: "storage.files", subject: "file " + f.Path, contents: text(&f)}
		parts = append(parts, partAt(p, unit, g.relative(f.Path), "", !f.NoContents)...)
	}
	for _, l := range c.Links {
		at := path.Clean(l.Path)
		text, known := g.contents[g.leadsTo(at, l.Target)]
		p := unitPart{field: "storage.links", subject: "link " + l.Path, contents: text}
		parts = append(parts, partAt(p, unit, g.relative(at), l.Target, known)...)
	}
	slices.SortStableFunc(parts, func(a, b unitPart) int { return strings.Compare(a.dropin, b.dropin) })
	return parts
}

// partAt returns the part with its effect on a unit, for a path below a directory of units. The part is a file with
// known contents, or a link to target.
func partAt(p unitPart, unit, rel, target string, known bool) []unitPart {
	dir, name := path.Split(rel)
	dir = strings.TrimSuffix(dir, "/")
	shared := append(prefixDirs(unit), unit+".d", typeOf(unit)+".d")
	switch {
	case dir == "" && name == unit && known && p.contents != "":
	case dir == "" && name == unit && (target == "/dev/null" || known):
		p.word = "masked"
	case dir == "" && name == unit:
		p.word = "as in " + target
	case slices.Contains(shared, dir) && known && strings.HasSuffix(name, ".conf"):
		p.dropin = name
	case name == unit && (strings.HasSuffix(dir, ".wants") || strings.HasSuffix(dir, ".requires")):
		p.word, p.contents = "enabled", ""
	default:
		return nil
	}
	return []unitPart{p}
}

// mountUnit returns the effect of the parts of a mount unit, and the last entry with an effect. A description, or the
// order of the unit, does not change what is mounted.
func mountUnit(parts []unitPart) (field, subject, says string) {
	var words []string
	last := map[string]string{}
	for _, p := range parts {
		before := len(words) + len(last)
		if p.word != "" {
			words = append(words, p.word)
		}
		assigned, err := syntax.Parse(p.contents, false)
		if err != nil {
			continue // such a unit is refused as a whole
		}
		counts := false
		for _, a := range assigned {
			switch {
			case slices.Contains(mountKeys, a.Key) && a.Section != "Unit":
				last[a.Key], counts = a.Value, true
			case stops(a):
				words = append(words, a.Key+"="+a.Value)
			}
		}
		if counts || len(words)+len(last) > before {
			field, subject = p.field, p.subject
		}
	}
	for _, key := range mountKeys {
		if last[key] != "" {
			words = append(words, key+"="+last[key])
		}
	}
	slices.Sort(words)
	return field, subject, strings.Join(slices.Compact(words), " ")
}

var mountKeys = []string{"What", "Where", "Type", "Options"}
