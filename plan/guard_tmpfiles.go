// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// tmpfilesDirs are where systemd-tmpfiles finds its configuration, besides the OS's own.
var tmpfilesDirs = []string{"/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/local/lib/tmpfiles.d"}

// wayBackPaths are the files and directories that this host comes back with: no line of tmpfiles.d may touch them, nor
// what is below them, nor empty or replace what is above them.
var wayBackPaths = func() []string {
	all := []string{"/var/lib/machine-config-daemon", "/etc/machine-config-daemon", "/boot/loader", "/boot/loader.0",
		"/boot/loader.1", "/boot/ostree", "/ostree", "/sysroot/ostree"}
	for _, unit := range OwnUnits {
		at := path.Join("/etc/systemd/system", unit)
		all = append(all, at, at+".d")
		for _, target := range wantedBy {
			all = append(all, path.Join("/etc/systemd/system", target+".wants", unit))
		}
	}
	return all
}()

// tmpfile is a line of tmpfiles.d(5), without its argument.
type tmpfile struct {
	typ             byte
	modifiers, path string
	age             string
}

// tmpfiles judges a file of tmpfiles.d by its lines, or a link there to a file of the configuration.
func (g *guard) tmpfiles(at, target string, contents *string) string {
	dir, name := path.Dir(at), path.Base(at)
	read := slices.Contains(tmpfilesDirs, dir) && strings.HasSuffix(name, ".conf") ||
		slices.Contains(credentialDirs, dir) && name == tmpfilesCredential
	if !read {
		return ""
	}
	if contents == nil {
		linked := g.contents[g.leadsTo(at, target)]
		contents = &linked
	}
	return tmpfilesText(*contents, g.follow)
}

// tmpfilesCredential is the name of the credential that has lines, from the kernel's command line or from a file of
// credentialDirs.
const tmpfilesCredential = "tmpfiles.extra"

// credentialDirs are where systemd finds credentials for services that ask for them by name.
var credentialDirs = []string{"/etc/credstore", "/run/credstore", "/usr/local/lib/credstore"}

func tmpfilesText(contents string, follow func(string) string) string {
	number := 0
	for text := range strings.Lines(contents) {
		number++
		text = strings.TrimSpace(text)
		t, ok := parseTmpfile(text)
		if !ok {
			continue // which systemd-tmpfiles skips
		}
		for _, at := range t.paths() {
			if why := t.places(follow(path.Clean(at))); why != "" {
				return fmt.Sprintf("line %d (%s): %s", number, text, why)
			}
			for _, own := range wayBackPaths {
				if t.touches(follow(path.Clean(at)), own) {
					return fmt.Sprintf("line %d (%s) touches %s, with which this host comes back from a bad configuration; "+
						"leave the line out", number, text, own)
				}
			}
		}
	}
	return ""
}

// parseTmpfile reads a line; comments, and what is no line, are not ok.
func parseTmpfile(text string) (t tmpfile, ok bool) {
	if text == "" || text[0] == '#' {
		return t, false
	}
	fields := tmpfileFields(text)
	if len(fields) < 2 || fields[0] == "" {
		return t, false
	}
	t.typ, t.modifiers, t.path = fields[0][0], fields[0][1:], tmpfileSpecifiers(fields[1])
	if len(fields) == 6 {
		t.age = fields[5]
	}
	return t, path.IsAbs(t.path)
}

// tmpfileFields are the first six fields of a line: type, path, mode, user, group, age. They may be quoted, and have
// C's escapes.
func tmpfileFields(text string) (fields []string) {
	for len(fields) < 6 {
		text = strings.TrimLeft(text, " \t")
		if text == "" {
			break
		}
		var field strings.Builder
		quote := byte(0)
		i := 0
		for ; i < len(text); i++ {
			c := text[i]
			switch {
			case c == '\\' && i+1 < len(text):
				value, _, rest, err := strconv.UnquoteChar(text[i:], quote)
				if err != nil { // an escape of no meaning in Go: the character itself
					field.WriteByte(text[i+1])
					i++
					continue
				}
				field.WriteRune(value)
				i = len(text) - len(rest) - 1
				continue
			case quote != 0 && c == quote:
				quote = 0
				continue
			case quote == 0 && (c == '"' || c == '\''):
				quote = c
				continue
			}
			if quote == 0 && (c == ' ' || c == '\t') {
				break
			}
			field.WriteByte(c)
		}
		fields, text = append(fields, field.String()), text[i:]
	}
	return fields
}

// tmpfileSpecifiers puts in what is the same on every host. What differs from host to host names none of wayBackPaths.
func tmpfileSpecifiers(at string) string {
	return strings.NewReplacer("%%", "%", "%S", "/var/lib", "%C", "/var/cache", "%L", "/var/log", "%t", "/run",
		"%T", "/tmp", "%V", "/var/tmp", "%h", "/root").Replace(at)
}

// paths are those that a line is for: with the alternatives of its braces, where it takes a pattern.
func (t tmpfile) paths() []string {
	if !t.globs() {
		return []string{t.path}
	}
	return braces(t.path)
}

func (t tmpfile) globs() bool { return strings.IndexByte("wrRzZtThHaAe", t.typ) >= 0 }

// maxAlternatives bounds what braces come to.
const maxAlternatives = 4096

func braces(text string) []string {
	all := []string{text}
	for i := 0; i < len(all) && len(all) < maxAlternatives; {
		end := strings.IndexByte(all[i], '}')
		begin := strings.LastIndexByte(all[i][:max(end, 0)], '{')
		if end < 0 || begin < 0 {
			i++
			continue
		}
		var alternatives []string
		for part := range strings.SplitSeq(all[i][begin+1:end], ",") {
			alternatives = append(alternatives, all[i][:begin]+part+all[i][end+1:])
		}
		all = slices.Replace(all, i, i+1, alternatives...)
	}
	return all
}

// places judges what the line makes of a directory of units: it may come before systemd reads them.
func (t tmpfile) places(at string) string {
	rel := relativeTo(at)
	switch {
	case t.typ == 'x' || t.typ == 'X':
		return ""
	case slices.Contains(boots, rel):
		return leads
	}
	if why := takesPlace(rel); why != holdsLinks || strings.IndexByte("dDvqQezxZm", t.typ) < 0 {
		return why
	}
	return "" // it is or stays a directory
}

// touches reports whether the line, which is for the path at, changes what is wayBackPaths at own.
func (t tmpfile) touches(at, own string) bool {
	if t.typ == 'x' || t.typ == 'X' { // what is left alone when the rest is cleaned
		return false
	}
	line, mine := strings.Split(at, "/"), strings.Split(own, "/")
	for i := range min(len(line), len(mine)) {
		if line[i] == mine[i] || at == "/" {
			continue
		}
		matches, err := path.Match(strings.ReplaceAll(line[i], "[!", "[^"), mine[i])
		if !t.globs() || err != nil || !matches {
			return false
		}
	}
	return at != "/" && len(line) >= len(mine) || t.takesBelow()
}

// takesBelow reports whether the line changes, or removes, what is below a directory that is at its path.
func (t tmpfile) takesBelow() bool {
	forced := strings.ContainsAny(t.modifiers, "+=")
	switch t.typ {
	case 'R', 'Z', 'T', 'H', 'A', 'D':
		return true
	case 'L', 'p', 'c', 'b', 'C':
		return forced
	case 'f', 'F', 'w':
		return strings.Contains(t.modifiers, "=")
	case 'd', 'e', 'v', 'q', 'Q':
		return t.age != "" && t.age != "-"
	}
	return false
}
