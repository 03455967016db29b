// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
	"strings"
)

// keyfile is an origin file: groups of keys in their order. What we do not know of is kept.
type keyfile struct{ groups []*group }

type group struct {
	name string
	keys []pair
}

type pair struct{ key, value string }

func parseKeyfile(text string) *keyfile {
	k := &keyfile{}
	var in *group
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "["); ok {
			in = &group{name: strings.TrimSuffix(name, "]")}
			k.groups = append(k.groups, in)
		} else if key, value, ok := strings.Cut(line, "="); ok && in != nil && !strings.HasPrefix(line, "#") {
			in.keys = append(in.keys, pair{strings.TrimSpace(key), strings.TrimSpace(value)})
		}
	}
	return k
}

func (k *keyfile) String() string {
	var text strings.Builder
	for _, g := range k.groups {
		if len(g.keys) == 0 {
			continue
		}
		text.WriteString("[" + g.name + "]\n")
		for _, p := range g.keys {
			text.WriteString(p.key + "=" + p.value + "\n")
		}
		text.WriteString("\n")
	}
	return strings.TrimSuffix(text.String(), "\n")
}

func (k *keyfile) get(name, key string) string {
	for _, g := range k.groups {
		for _, p := range g.keys {
			if g.name == name && p.key == key {
				return p.value
			}
		}
	}
	return ""
}

// set sets a key, or removes it where the value is empty.
func (k *keyfile) set(name, key, value string) {
	at := slices.IndexFunc(k.groups, func(g *group) bool { return g.name == name })
	if at < 0 {
		if value == "" {
			return
		}
		at = len(k.groups)
		k.groups = append(k.groups, &group{name: name})
	}
	g := k.groups[at]
	i := slices.IndexFunc(g.keys, func(p pair) bool { return p.key == key })
	switch {
	case value == "" && i >= 0:
		g.keys = slices.Delete(g.keys, i, i+1)
	case value == "":
	case i >= 0:
		g.keys[i].value = value
	default:
		g.keys = append(g.keys, pair{key, value})
	}
}

func (k *keyfile) list(name, key string) []string {
	list := []string{}
	for item := range strings.SplitSeq(k.get(name, key), ";") {
		if item != "" {
			list = append(list, item)
		}
	}
	return list
}

func (k *keyfile) setList(name, key string, list []string) {
	value := ""
	if len(list) > 0 {
		value = strings.Join(list, ";") + ";"
	}
	k.set(name, key, value)
}

// origin is what a deployment was asked to be.
type origin struct {
	file *keyfile

	Refspec       string // refspec or baserefspec: REF, REMOTE:REF or a checksum
	Container     string // container-image-reference
	Override      string // override-commit
	URL           string // custom-url and custom-description
	Description   string
	Requested     []string
	Local         []string // DIGEST:NEVRA
	Removed       []string // names of packages of the base
	Replaced      []string // DIGEST:NEVRA
	RegenerateRAM bool
}

func parseOrigin(text string) *origin {
	k := parseKeyfile(text)
	return &origin{
		file:          k,
		Refspec:       cmp.Or(k.get("origin", "baserefspec"), k.get("origin", "refspec")),
		Container:     k.get("origin", "container-image-reference"),
		Override:      k.get("origin", "override-commit"),
		URL:           k.get("origin", "custom-url"),
		Description:   k.get("origin", "custom-description"),
		Requested:     k.list("packages", "requested"),
		Local:         k.list("packages", "requested-local"),
		Removed:       k.list("overrides", "remove"),
		Replaced:      k.list("overrides", "replace-local"),
		RegenerateRAM: k.get("rpmostree", "regenerate-initramfs") == "true",
	}
}

// String is the text of the origin file.
func (o *origin) String() string {
	k := o.file
	key, other := "refspec", "baserefspec"
	if o.assembled() {
		key, other = other, key
	}
	k.set("origin", other, "")
	k.set("origin", key, o.Refspec)
	k.set("origin", "container-image-reference", o.Container)
	k.set("origin", "override-commit", o.Override)
	k.set("origin", "custom-url", o.URL)
	k.set("origin", "custom-description", o.Description)
	k.setList("packages", "requested", o.Requested)
	k.setList("packages", "requested-local", o.Local)
	k.setList("overrides", "remove", o.Removed)
	k.setList("overrides", "replace-local", o.Replaced)
	return k.String()
}

// assembled says whether the deployment may need a commit that is composed on this machine.
func (o *origin) assembled() bool {
	return len(o.Requested)+len(o.Local)+len(o.Removed)+len(o.Replaced) > 0 || o.RegenerateRAM
}

// source is what it was rebased to.
func (o *origin) source() string { return cmp.Or(o.Container, o.Refspec) }
