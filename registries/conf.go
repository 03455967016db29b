// SPDX-License-Identifier: Apache-2.0

// Package registries is about the two files that name the places from which container images are pulled:
// registries.conf, which CRI-O and podman read, and containerd's hosts.toml. A file is read, merged with mirrors, and
// written:
//
//	conf, err := registries.Parse(text)
//	mirrors := []registries.Mirror{{Location: "mirror.example", Digests: true}}
//	err = conf.Merge([]registries.Source{{Scope: "quay.io", Mirrors: mirrors}})
//	text, err = conf.Text()
//
// A change of a file is judged by the images that running pods may pull again:
//
//	why := registries.Unsafe(before, after) // "" where the change is safe
//
// Errors and reasons name registries and keys, and quote nothing else of a file.
package registries

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Path is the place of registries.conf for CRI-O and podman.
const Path = "/etc/containers/registries.conf"

// Values of pull-from-mirror. Without the key, the mirror is asked for all references.
const (
	all        = "all"
	digestOnly = "digest-only"
	tagOnly    = "tag-only"
)

// Conf is a registries.conf, as in containers-registries.conf(5). Keys that the package does not know stay as they were
// read.
type Conf struct {
	search  []string
	entries []*registry
	file    map[string]any
}

type registry struct {
	prefix, location                string
	insecure, blocked, byDigestOnly bool
	mirrors                         []mirror
	table                           map[string]any // as in the file, nil for a new entry
}

type mirror struct {
	location string
	insecure bool
	pull     string
	table    map[string]any // as in the file, nil for a new mirror
}

// The keys that have a meaning here.
const (
	searchKey   = "unqualified-search-registries"
	registryKey = "registry"
	prefixKey   = "prefix"
	locationKey = "location"
	insecureKey = "insecure"
	blockedKey  = "blocked"
	digestsKey  = "mirror-by-digest-only"
	mirrorKey   = "mirror"
	pullKey     = "pull-from-mirror"
)

// Parse reads a registries.conf; a file without contents is an empty one.
func Parse(data []byte) (*Conf, error) {
	file, err := parseTOML(data)
	if err != nil {
		return nil, err
	}
	t := &table{keys: fold(file, searchKey, registryKey)}
	c := &Conf{file: t.keys}
	for _, name := range read[[]any](t, searchKey, "list of names") {
		s, ok := name.(string)
		if !ok {
			t.wrong(searchKey, "list of names")
		}
		c.search = append(c.search, s)
	}
	for _, item := range t.tables(registryKey) {
		e, err := readRegistry(item)
		t.err = cmp.Or(t.err, err)
		c.entries = append(c.entries, e)
	}
	return c, t.err
}

func readRegistry(keys map[string]any) (*registry, error) {
	t := &table{keys: fold(keys, prefixKey, locationKey, insecureKey, blockedKey, digestsKey, mirrorKey)}
	e := &registry{table: t.keys}
	e.prefix, e.location = read[string](t, prefixKey, "text"), read[string](t, locationKey, "text")
	t.of = "registry " + e.scope() + ": "
	e.insecure, e.blocked = read[bool](t, insecureKey, "boolean"), read[bool](t, blockedKey, "boolean")
	e.byDigestOnly = read[bool](t, digestsKey, "boolean")
	for _, item := range t.tables(mirrorKey) {
		m := &table{keys: fold(item, locationKey, insecureKey, pullKey)}
		is := mirror{table: m.keys, location: read[string](m, locationKey, "text"), pull: read[string](m, pullKey, "text")}
		m.of = t.of + "mirror " + is.location + ": "
		is.insecure = read[bool](m, insecureKey, "boolean")
		t.err = cmp.Or(t.err, m.err)
		e.mirrors = append(e.mirrors, is)
	}
	return e, t.err
}

// table is a TOML table, with the first error that reading the table gave.
type table struct {
	keys map[string]any
	of   string // the beginning of each error
	err  error
}

func (t *table) wrong(key, kind string) {
	t.err = cmp.Or(t.err, fmt.Errorf("%s%s: is not a %s", t.of, key, kind))
}

// read returns the value of a key, the zero value where the table does not have the key.
func read[T any](t *table, key, kind string) (value T) {
	if raw, has := t.keys[key]; has {
		var ok bool
		if value, ok = raw.(T); !ok {
			t.wrong(key, kind)
		}
	}
	return value
}

func (t *table) tables(key string) []map[string]any {
	const kind = "list of tables"
	var out []map[string]any
	for _, item := range read[[]any](t, key, kind) {
		keys, ok := item.(map[string]any)
		if !ok {
			t.wrong(key, kind)
		}
		out = append(out, keys)
	}
	return out
}

// fold returns a copy of a table with the known keys in lower case, because readers of the file ignore their case.
func fold(keys map[string]any, known ...string) map[string]any {
	out := make(map[string]any, len(keys))
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		as := key
		for _, k := range known {
			if _, has := keys[k]; !has && out[k] == nil && strings.EqualFold(key, k) {
				as = k
			}
		}
		out[as] = keys[key]
	}
	return out
}

// scope returns the name under which the container runtime looks up a registry.
func (r *registry) scope() string { return cmp.Or(r.prefix, r.location) }

// Insecure reports whether the file allows connections to a location without TLS, or with TLS that can't be verified.
func (c *Conf) Insecure(location string) bool {
	e := closest(c.entries, location)
	return e != nil && e.insecure
}

// Text returns the file's text: entries of the file in their order, then new entries.
func (c *Conf) Text() ([]byte, error) {
	file := maps.Clone(c.file)
	var list []any
	for _, e := range c.entries {
		list = append(list, e.text())
	}
	if list != nil {
		file[registryKey] = list
	}
	return toml.Marshal(file)
}

func (r *registry) text() map[string]any {
	out := map[string]any{}
	maps.Copy(out, r.table)
	put(out, prefixKey, r.prefix)
	put(out, locationKey, r.location)
	put(out, insecureKey, r.insecure)
	put(out, blockedKey, r.blocked)
	put(out, digestsKey, r.byDigestOnly)
	var list []any
	for _, m := range r.mirrors {
		keys := map[string]any{}
		maps.Copy(keys, m.table)
		put(keys, locationKey, m.location)
		put(keys, insecureKey, m.insecure)
		put(keys, pullKey, m.pull)
		list = append(list, keys)
	}
	if list != nil {
		out[mirrorKey] = list
	}
	return out
}

// put sets a key of the table to a value. The zero value removes the key where the table has another value.
func put[T comparable](keys map[string]any, key string, value T) {
	var zero T
	if value != zero {
		keys[key] = value
	} else if was, _ := keys[key].(T); was != zero {
		delete(keys, key)
	}
}

// parseTOML reads a file. An error has the position, and not the parser's text, which quotes the file.
func parseTOML(data []byte) (map[string]any, error) {
	file := map[string]any{}
	err := toml.Unmarshal(data, &file)
	if syntax, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, column := syntax.Position()
		return nil, fmt.Errorf("line %d, column %d: is not TOML", line, column)
	}
	if err != nil {
		return nil, errors.New("is not TOML")
	}
	return file, nil
}
