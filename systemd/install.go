// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/systemd/syntax"
)

// refusal is the reason why systemd would not enable a unit. It is no error of the host.
type refusal string

func (r refusal) Error() string { return string(r) }

const (
	errMissing refusal = "it has no unit file"
	errMasked  refusal = "it is masked"
)

// install is a unit's [Install] section, drop-ins included.
type install struct {
	aliases, wantedBy, requiredBy, upheldBy, also []string

	defaultInstance string
}

func (i *install) empty() bool {
	return len(i.aliases)+len(i.wantedBy)+len(i.requiredBy)+len(i.upheldBy)+len(i.also) == 0
}

type linkKind int

const (
	regularUnit linkKind = iota
	maskedUnit
	aliasUnit  // a link to another path of the search path
	linkedUnit // a link out of the search path
)

// unitFile is a unit in the form that systemd's install logic uses.
type unitFile struct {
	name   string
	path   string // of the file; links are followed as far as systemd does
	kind   linkKind
	target string // of a link
	install
}

// search finds the unit with the given name in the search path and reads its [Install], without following links.
func (t *tree) search(unit string) (*unitFile, error) {
	n := splitName(unit)
	if n.kind == invalidName {
		return nil, refusal(fmt.Sprintf("%q is not a unit name", unit))
	}
	u := &unitFile{name: unit}
	names := []string{unit}
	if n.kind == instance {
		names = append(names, n.template())
	}
	found, err := t.searchFile(u, names)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, errMissing
	}
	if u.kind == maskedUnit {
		return u, nil
	}
	var dropins []string
	for _, name := range names {
		for _, dir := range searchDirs {
			there, err := t.has(dir, name+".d")
			if err != nil {
				return nil, err
			}
			if there {
				dropins = append(dropins, dir+"/"+name+".d")
			}
		}
	}
	paths, err := t.confFiles(dropins, ".conf")
	if err != nil {
		return nil, err
	}
	for _, p := range paths {
		data, err := t.read(p)
		if err != nil {
			return nil, err
		}
		if err := t.parseInstall(u, string(data)); err != nil {
			return nil, refusal(fmt.Sprintf("its drop-in %s does not parse: %v", p, err))
		}
	}
	return u, nil
}

func (t *tree) searchFile(u *unitFile, names []string) (bool, error) {
	for _, name := range names {
		for _, dir := range searchDirs {
			there, err := t.has(dir, name)
			if err != nil {
				return false, err
			}
			if !there {
				continue
			}
			// The directory's own path stays in the form that systemd writes into links.
			u.path = dir + "/" + name
			return true, t.load(u)
		}
	}
	return false, nil
}

// load reads u.path: a link's target, or a file's [Install].
func (t *tree) load(u *unitFile) error {
	at, node, err := t.chase(u.path, false)
	if err != nil {
		return loopRefusal(err)
	}
	switch node.Type {
	case files.Absent:
		return errMissing
	case files.Regular:
		null, err := t.isNull(at, node)
		if err != nil {
			return err
		}
		if null {
			u.kind = maskedUnit
			return nil
		}
		data, err := t.read(at)
		if err != nil {
			return err
		}
		u.kind = regularUnit
		if err := t.parseInstall(u, string(data)); err != nil {
			return refusal(fmt.Sprintf("its unit file %s does not parse: %v", u.path, err))
		}
		return nil
	case files.Symlink:
		target := node.Target
		if !path.IsAbs(target) {
			target = path.Dir(at) + "/" + target
		}
		if u.target, _, err = t.chase(target, false); err != nil {
			return loopRefusal(err)
		}
		end, last, err := t.follow(target)
		if err != nil {
			return loopRefusal(err)
		}
		null, err := t.isNull(end, last)
		switch {
		case err != nil:
			return err
		case null:
			u.kind = maskedUnit
		case !inSearchPath(u.target):
			u.kind = linkedUnit
		case !aliasOK(path.Base(u.path), path.Base(u.target)):
			return refusal(fmt.Sprintf("its unit file %s is a link to %s, which it can't be an alias of", u.path, u.target))
		default:
			u.kind = aliasUnit
		}
		return nil
	}
	return refusal(fmt.Sprintf("its unit file %s is neither a file nor a link", u.path))
}

func loopRefusal(err error) error {
	if errors.Is(err, errLoop) {
		return refusal("its unit file is a loop of links")
	}
	return err
}

// traverse finds the unit that name leads to, through links and aliases. enabling refuses an alias that a link in /etc
// or /run makes, as systemd refuses it when it enables. auxiliary, for a unit named by another unit's Also=, refuses
// any such link.
func (t *tree) traverse(unit string, enabling, auxiliary bool) (*unitFile, error) {
	u, err := t.search(unit)
	if err != nil {
		return nil, err
	}
	for hops := 0; u.kind == aliasUnit || u.kind == linkedUnit; hops++ {
		if hops > 64 {
			return nil, refusal("its unit file is a loop of links")
		}
		next := path.Base(u.target)
		sameName := u.kind == linkedUnit || next == u.name
		if n := splitName(u.name); !sameName && n.kind == instance && splitName(next).kind == template {
			next = splitName(next).with(n.instance)
			sameName = next == u.name
		}
		dir := path.Dir(u.path)
		if (auxiliary || enabling && !sameName) && (dir == UnitDir || dir == "/run/systemd/system") {
			return nil, refusal(fmt.Sprintf("%s makes it an alias of %s; name that unit instead", u.path, next))
		}
		if sameName {
			u.path = u.target
			err = t.load(u)
		} else {
			alias := u.name
			if u, err = t.search(next); errors.Is(err, errMissing) {
				return nil, refusal(fmt.Sprintf("%s is an alias of %s, which does not exist", alias, next))
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if u.kind == maskedUnit {
		return nil, errMasked
	}
	return u, nil
}

func (t *tree) parseInstall(u *unitFile, contents string) error {
	all, err := syntax.Parse(contents, false)
	if err != nil {
		return err
	}
	n := splitName(u.name)
	for _, a := range all {
		if a.Section != "Install" {
			continue
		}
		var list *[]string
		switch a.Key {
		case "Alias":
			if !slices.Contains(aliasedTypes, n.typ) {
				continue
			}
			list = &u.aliases
		case "WantedBy":
			list = &u.wantedBy
		case "RequiredBy":
			list = &u.requiredBy
		case "UpheldBy":
			list = &u.upheldBy
		case "Also":
			w, _ := syntax.Words(a.Value)
			for _, s := range w {
				if s, err := t.expand(u, s); err == nil && splitName(s).kind != invalidName {
					u.also = append(u.also, s)
				}
			}
			continue
		case "DefaultInstance":
			s, err := t.expand(u, a.Value)
			if n.kind == template && err == nil && (s == "" || inCharset(s, "@")) {
				u.defaultInstance = s
			}
			continue
		default:
			continue
		}
		if a.Value == "" {
			*list = nil
		} else if w, ok := syntax.Words(a.Value); ok {
			*list = append(*list, w...)
		}
	}
	return nil
}

// link is one enablement link: path in UnitDir, and target in systemd's form.
type link struct {
	path, target string
	alias        bool // a name in UnitDir itself, which may be taken
}

// links returns the links that enabling u creates. Each problem costs only its own link, and is returned in words. With
// presetting a template without an instance is skipped, as systemd does.
func (t *tree) links(u *unitFile, presetting bool) (all []link, problems []string, err error) {
	target := u.path
	if !slices.Contains(searchDirs, path.Dir(u.path)) {
		// Dependencies point at the file, aliases at the link that brings it into the search path.
		all = append(all, link{UnitDir + "/" + u.name, u.path, true})
		target = UnitDir + "/" + u.name
	}
	for _, a := range u.aliases {
		dst, err := t.expand(u, a)
		if err == nil {
			dst, err = verifyAlias(u.name, dst)
		}
		switch {
		case err != nil:
			problems = append(problems, fmt.Sprintf("Alias=%s: %v", a, err))
		case dst == u.name:
		default:
			all = append(all, link{UnitDir + "/" + dst, target, true})
		}
	}

	n := splitName(u.name)
	called, templateOnly := u.name, false
	if n.kind == template {
		if called = n.with(u.defaultInstance); called != "" {
			i, err := t.search(called)
			switch {
			case asRefusal(err):
				return all, append(problems, fmt.Sprintf("%s: %v", called, err)), nil
			case err != nil:
				return nil, nil, err
			case i.kind == maskedUnit:
				return all, append(problems, fmt.Sprintf("%s: %v", called, errMasked)), nil
			}
		} else {
			called, templateOnly = u.name, true
		}
	}
	for _, dep := range []struct {
		key, suffix string
		list        []string
	}{
		{"WantedBy", ".wants/", u.wantedBy},
		{"RequiredBy", ".requires/", u.requiredBy},
		{"UpheldBy", ".upholds/", u.upheldBy},
	} {
		for _, s := range dep.list {
			dst, err := t.expand(u, s)
			kind := splitName(dst).kind
			switch {
			case err != nil:
				problems = append(problems, fmt.Sprintf("%s=%s: %v", dep.key, s, err))
			case kind == invalidName || templateOnly && kind == plainName:
				if presetting {
					continue
				}
				why := "not a unit name"
				if kind != invalidName {
					why = "a template without DefaultInstance= can't be enabled for a unit that is no template"
				}
				problems = append(problems, fmt.Sprintf("%s=%s: %s", dep.key, s, why))
			default:
				all = append(all, link{UnitDir + "/" + dst + dep.suffix + called, u.path, false})
			}
		}
	}
	return all, problems, nil
}

// verifyAlias returns the name, relative to UnitDir, of an alias that unit may have. The unit's own name is returned
// unchanged and needs no link.
func verifyAlias(unit, alias string) (string, error) {
	no := fmt.Errorf("%s can't be an alias of %s", alias, unit)
	if dir, base, ok := strings.Cut(alias, "/"); ok {
		// The old syntax of WantedBy= and RequiredBy=.
		for _, suffix := range []string{".wants", ".requires"} {
			by, ok := strings.CutSuffix(dir, suffix)
			if n := splitName(by); ok && n.kind != invalidName && dependencyOK(base, unit, n.kind == template) {
				return alias, nil
			}
		}
		return "", no
	}
	if a, u := splitName(alias), splitName(unit); a.kind == template && u.kind == instance {
		alias = a.with(u.instance)
	}
	if alias != unit && !aliasOK(alias, unit) {
		return "", no
	}
	return alias, nil
}

func asRefusal(err error) bool {
	var r refusal
	return errors.As(err, &r)
}

// expand replaces the specifiers that systemd knows in [Install]. Specifiers whose values only a running system has
// (boot id, kernel release, pretty host name) are refused: the links are made for the next boot.
func (t *tree) expand(u *unitFile, s string) (string, error) {
	if !strings.Contains(s, "%") {
		return s, nil
	}
	n := splitName(u.name)
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch c := s[i]; c {
		case '%':
			b.WriteByte('%')
		case 'n', 'N', 'i':
			full := n
			if full.kind == template {
				full.instance = u.defaultInstance
			}
			switch c {
			case 'n':
				b.WriteString(full.String())
			case 'N':
				b.WriteString(strings.TrimSuffix(full.String(), "."+full.typ))
			case 'i':
				b.WriteString(full.instance)
			}
		case 'p':
			b.WriteString(n.prefix)
		case 'j':
			b.WriteString(n.prefix[strings.LastIndexByte(n.prefix, '-')+1:])
		case 'u', 'g':
			b.WriteString("root")
		case 'U', 'G':
			b.WriteByte('0')
		case 'a':
			b.WriteString(architecture())
		case 'm', 'H', 'l', 'o', 'w', 'B', 'W', 'M', 'A':
			v, err := t.systemSpecifier(c)
			if err != nil {
				return "", err
			}
			b.WriteString(v)
		case 'b', 'v', 'q':
			return "", fmt.Errorf("%%%c is known to a running system only", c)
		default:
			b.WriteByte('%')
			b.WriteByte(c)
		}
	}
	return b.String(), nil
}

func (t *tree) systemSpecifier(c byte) (string, error) {
	switch c {
	case 'm', 'H', 'l':
		file := "/etc/hostname"
		if c == 'm' {
			file = "/etc/machine-id"
		}
		real, _, err := t.follow(file)
		if err != nil {
			return "", err
		}
		data, err := t.read(real)
		if err != nil {
			return "", fmt.Errorf("%%%c: %w", c, err)
		}
		s := strings.TrimSpace(string(data))
		if c == 'l' {
			s, _, _ = strings.Cut(s, ".")
		}
		return s, nil
	}
	key := map[byte]string{
		'o': "ID", 'w': "VERSION_ID", 'B': "BUILD_ID", 'W': "VARIANT_ID", 'M': "IMAGE_ID", 'A': "IMAGE_VERSION",
	}[c]
	for _, file := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		real, node, err := t.follow(file)
		if err != nil {
			return "", err
		}
		if node.Type != files.Regular {
			continue
		}
		data, err := t.read(real)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(data)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
				return strings.Trim(v, `"'`), nil
			}
		}
		return "", nil
	}
	return "", fmt.Errorf("%%%c: no os-release", c)
}

// architecture returns systemd's name for the architecture of this binary, and so of the host.
func architecture() string {
	switch runtime.GOARCH {
	case "amd64":
		return "x86-64"
	case "ppc64le":
		return "ppc64-le"
	}
	return runtime.GOARCH // arm64, s390x, riscv64 have the same names
}
