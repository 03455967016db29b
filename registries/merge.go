// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"errors"
	"maps"
	"slices"
	"strings"
)

// Source is what an object demands for one source of images.
type Source struct {
	// Scope is the source: a registry, a part of a registry, or a wildcard such as *.example.com.
	Scope   string
	Mirrors []Mirror
	// Blocked: the source itself is never pulled from. Allowed: the source may be pulled from, even where a larger source
	// around it is blocked.
	Blocked, Allowed bool
}

// Mirror is a mirror of a source, and the kinds of reference for which the mirror is asked.
type Mirror struct {
	Location      string
	Digests, Tags bool
}

// nearest returns the source that counts for a scope: the longest one that covers the scope and that fits accepts. It
// returns nil if no source does.
func nearest(sources []Source, scope string, fits func(Source) bool) *Source {
	var found *Source
	for i, s := range sources {
		if covers(s.Scope, scope) >= 0 && fits(s) && (found == nil || len(s.Scope) > len(found.Scope)) {
			found = &sources[i]
		}
	}
	return found
}

// Never reports whether a scope must not be pulled from, because the scope itself or a larger one around it is blocked.
func Never(sources []Source, scope string) bool {
	s := nearest(sources, scope, func(s Source) bool { return s.Blocked || s.Allowed })
	return s != nil && s.Blocked
}

// covers returns the length of the part of source that scope matches, -1 if scope does not match.
func covers(scope, source string) int {
	if rest, wild := strings.CutPrefix(scope, "*"); wild {
		at, _ := Split(source)
		if strings.HasSuffix(at, rest) {
			return len(at)
		}
		return -1
	}
	if source == scope || strings.HasPrefix(source, scope+"/") {
		return len(scope)
	}
	return -1
}

// closest returns the entry that counts for a source, which is the entry with the longest scope; nil if no entry covers
// the source.
func closest(entries []*registry, source string) *registry {
	var found *registry
	for _, e := range entries {
		if s := e.scope(); s != "" && covers(s, source) >= 0 && (found == nil || len(s) > len(found.scope())) {
			found = e
		}
	}
	return found
}

// Merge puts the mirrors of sources behind those that the file has for them. For an image only the entry with the
// longest scope counts. So parts of a registry that become sources keep what the file sets for the registry. And parts
// of a source that are in the file get what the source has.
func (c *Conf) Merge(sources []Source) error {
	if _, old := c.file["registries"]; old {
		return errors.New("[registries]: uses version 1 of registries.conf, which has no mirrors; " +
			"write [[registry]] tables and unqualified-search-registries instead")
	}
	file := slices.Clone(c.entries)
	entries := make([]*registry, 0, len(sources))
	for _, s := range sources {
		e := closest(file, s.Scope)
		if e == nil || e.scope() != s.Scope {
			e = entry(s.Scope, e)
			c.entries = append(c.entries, e)
		}
		entries = append(entries, e)
	}
	for i, s := range sources {
		c.add(entries[i], s.Mirrors)
	}
	for _, e := range file {
		at := e.scope()
		s := nearest(sources, at, func(Source) bool { return at != "" })
		if s == nil || s.Scope == at {
			continue
		}
		c.add(e, parts(s.Mirrors, at[covers(s.Scope, at):]))
	}
	for _, e := range c.entries {
		if at := e.scope(); at != "" && Never(sources, at) {
			e.blocked = true
		}
	}
	return nil
}

// parts returns a registry's mirrors as mirrors for a part of the registry.
func parts(mirrors []Mirror, path string) []Mirror {
	out := slices.Clone(mirrors)
	for i := range out {
		out[i].Location += path
	}
	return out
}

// add puts mirrors behind those of an entry. A location that is insecure as a registry in the file is insecure as a
// mirror too: the library that reads the file looks only at the mirror.
func (c *Conf) add(e *registry, mirrors []Mirror) {
	known := map[string]*mirror{}
	var first, second []string
	for _, m := range e.mirrors {
		// The older key for mirrors by digest excludes the newer key, which is set for each mirror.
		if e.byDigestOnly {
			m.pull = digestOnly
		}
		first = append(first, m.location)
		if had := known[m.location]; had != nil {
			had.widen(m.pull != tagOnly, m.pull != digestOnly)
			continue
		}
		known[m.location] = &m
	}
	e.byDigestOnly = false
	delete(e.table, digestsKey)
	for _, m := range mirrors {
		second = append(second, m.Location)
		if known[m.Location] == nil {
			known[m.Location] = &mirror{location: m.Location, pull: digestOnly, insecure: c.Insecure(m.Location)}
			if !m.Digests {
				known[m.Location].pull = tagOnly
			}
		}
		known[m.Location].widen(m.Digests, m.Tags)
	}
	e.mirrors = nil
	for _, at := range InOrder([][]string{first, second}) {
		e.mirrors = append(e.mirrors, *known[at])
	}
}

// widen has a mirror asked for more kinds of reference.
func (m *mirror) widen(digests, tags bool) {
	if digests && m.pull == tagOnly || tags && m.pull == digestOnly || m.pull == all {
		m.pull = ""
	}
}

// entry returns a new entry for a source. above is the entry that has counted for the source so far, or nil. The new
// entry keeps what above sets for reaching the source.
func entry(source string, above *registry) *registry {
	out := &registry{location: source}
	if strings.HasPrefix(source, "*") {
		out = &registry{prefix: source}
	}
	if above == nil {
		return out
	}
	out.insecure, out.blocked, out.byDigestOnly = above.insecure, above.blocked, above.byDigestOnly
	part := source[covers(above.scope(), source):]
	if above.location != "" && above.location != above.scope() {
		out.prefix, out.location = source, above.location+part
	}
	for _, m := range above.mirrors {
		m.table = maps.Clone(m.table)
		m.location += part
		out.mirrors = append(out.mirrors, m)
	}
	return out
}

// InOrder merges lists so that each list keeps its order where this is possible. Otherwise, and where no list decides,
// the item that comes first in the first list that has it goes first.
func InOrder(lists [][]string) []string {
	var left []string
	before := map[string]map[string]bool{}
	for _, list := range lists {
		for i, x := range list {
			if before[x] == nil {
				before[x] = map[string]bool{}
				left = append(left, x)
			}
			for _, y := range list[:i] {
				before[x][y] = true
			}
		}
	}
	var out []string
	for len(left) > 0 {
		at := slices.IndexFunc(left, func(x string) bool {
			return !slices.ContainsFunc(left, func(y string) bool { return x != y && before[x][y] })
		})
		at = max(at, 0)
		out, left = append(out, left[at]), slices.Delete(left, at, at+1)
	}
	return out
}

// Split returns the host and the path of a location, without the slash between them.
func Split(location string) (host, path string) {
	host, path, _ = strings.Cut(location, "/")
	return host, path
}
