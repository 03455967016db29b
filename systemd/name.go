// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"slices"
	"strings"
)

// nameKind is the type of a unit name in systemd's terms.
type nameKind int

const (
	invalidName nameKind = iota
	plainName            // crio.service
	instance             // getty@tty1.service
	template             // getty@.service
)

// maxName is systemd's UNIT_NAME_MAX: a name has fewer bytes than this.
const maxName = 256

var (
	unitTypes = []string{
		"service", "socket", "target", "device", "mount", "automount", "swap", "timer", "path", "slice", "scope",
	}
	// templatedTypes are the types for which systemd accepts foo@.type and foo@bar.type.
	templatedTypes = []string{"service", "socket", "target", "timer", "path"}
	// aliasedTypes are the types whose units may have a second name by a link.
	aliasedTypes = append([]string{"device"}, templatedTypes...)
)

// name is a unit name in its parts: prefix@instance.type. The zero value is no name.
type name struct {
	kind     nameKind
	prefix   string
	instance string
	typ      string
}

func splitName(s string) name {
	dot := strings.LastIndexByte(s, '.')
	if dot <= 0 || len(s) >= maxName || !slices.Contains(unitTypes, s[dot+1:]) || !inCharset(s[:dot], "@") {
		return name{}
	}
	n := name{kind: plainName, typ: s[dot+1:]}
	var at bool
	n.prefix, n.instance, at = strings.Cut(s[:dot], "@")
	switch {
	case n.prefix == "":
		return name{}
	case at && n.instance == "":
		n.kind = template
	case at:
		n.kind = instance
	}
	return n
}

// String returns the whole name; template and instance keep their @.
func (n name) String() string {
	if n.kind == plainName {
		return n.prefix + "." + n.typ
	}
	return n.prefix + "@" + n.instance + "." + n.typ
}

// template returns the template of an instance, a template itself, and "" for other names.
func (n name) template() string {
	if n.kind != instance && n.kind != template {
		return ""
	}
	return n.prefix + "@." + n.typ
}

// with returns the instance i of a template or of another instance's template, "" where that is no valid name.
func (n name) with(i string) string {
	if n.template() == "" || i == "" {
		return ""
	}
	s := n.prefix + "@" + i + "." + n.typ
	if splitName(s).kind != instance {
		return ""
	}
	return s
}

// inCharset reports whether s has only the bytes that systemd allows in names, and those in more.
func inCharset(s, more string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		case strings.IndexByte(`:-_.\`+more, c) >= 0:
		default:
			return false
		}
	}
	return true
}

// aliasOK reports whether a link called link may stand for the unit target, by systemd's rules for aliases.
func aliasOK(link, target string) bool {
	l, t := splitName(link), splitName(target)
	switch {
	case l.kind == invalidName || t.kind == invalidName || l.typ != t.typ:
		return false
	case !slices.Contains(aliasedTypes, l.typ):
		return false
	case l.kind != plainName && !slices.Contains(templatedTypes, l.typ):
		return false
	case l.kind != t.kind:
		return l.kind == instance && t.kind == template
	}
	return t.kind != instance || l.instance == t.instance
}

// dependencyOK reports whether a link called link in another unit's .wants or .requires may stand for the unit target.
// With propagate the other unit is a template, so that both may be templates.
func dependencyOK(link, target string, propagate bool) bool {
	l, t := splitName(link), splitName(target)
	if link == target && l.kind != invalidName {
		return l.kind != template || propagate
	}
	return l.kind == instance && t.kind == template && l.template() == target
}
