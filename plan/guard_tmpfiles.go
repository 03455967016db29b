// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// tmpfilesDirs are the directories where systemd-tmpfiles finds its configuration, besides the OS's own.
var tmpfilesDirs = []string{"/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/local/lib/tmpfiles.d"}

// wayBackPaths are the files and directories that this host comes back with. No line of tmpfiles.d may touch them or
// anything below them. Nor may a line empty or replace a directory above them.
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

// tmpfilesCredential is the name of the credential with such lines. The credential comes from the kernel's command line
// or from a file in credentialDirs.
const tmpfilesCredential = "tmpfiles.extra"

// credentialDirs are the directories where systemd finds credentials that services ask for by name.
var credentialDirs = []string{"/etc/credstore", "/run/credstore", "/usr/local/lib/credstore"}

func tmpfilesText(contents string, follow func(string) string) string {
	number := 0
	for text := range strings.Lines(contents) {
		number++
		text = strings.TrimSpace(text)
		t, ok := parseTmpfile(text)
		if !ok {
			continue // systemd-tmpfiles skips such a line
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

// parseTmpfile reads a line. ok is false for a comment, and for anything that is no line of tmpfiles.d.
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

// tmpfileFields returns the first six fields of a line: type, path, mode, user, group, age. They may be quoted, and
// have C's escapes.
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
				if err != nil { // an escape unknown to Go stands for the character itself
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

// tmpfileSpecifiers replaces the specifiers that are the same on every host. Specifiers that differ from host to host
// name no path of wayBackPaths.
func tmpfileSpecifiers(at string) string {
	return strings.NewReplacer("%%", "%", "%S", "/var/lib", "%C", "/var/cache", "%L", "/var/log", "%t", "/run",
		"%T", "/tmp", "%V", "/var/tmp", "%h", "/root").Replace(at)
}

// paths returns the paths that a line is for. If the type takes a pattern, the alternatives in braces are expanded.
func (t tmpfile) paths() []string {
	if !t.globs() {
		return []string{t.path}
	}
	return braces(t.path)
}

func (t tmpfile) globs() bool { return strings.IndexByte("wrRzZtThHaAe", t.typ) >= 0 }

// maxAlternatives limits the number of paths that braces expand to.
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

// places judges what the line makes in a directory of units. The line may take effect before systemd reads the units.
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
	return "" // the path is or stays a directory
}

// touches reports whether the line, which is for the path at, changes the path own of wayBackPaths.
func (t tmpfile) touches(at, own string) bool {
	if t.typ == 'x' || t.typ == 'X' { // these paths are left out of the cleaning
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

// takesBelow reports whether the line changes, or removes, the content of a directory at its path.
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
