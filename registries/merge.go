// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"errors"
	"maps"
	"slices"
	"strings"
)

// Source is what is asked for one source of images.
type Source struct {
	// Scope is the source: a registry, a part of a registry, or a wildcard such as *.example.com.
	Scope   string
	Mirrors []Mirror
	// Blocked: the source itself is never pulled from. Allowed: it may be, whatever holds for what it is a part of.
	Blocked, Allowed bool
}

// Mirror is a mirror of a source, and the references that it is asked for.
type Mirror struct {
	Location      string
	Digests, Tags bool
}

// nearest returns the source that counts for a scope, nil if there is none: the longest one that covers it and fits.
func nearest(sources []Source, scope string, fits func(Source) bool) *Source {
	var found *Source
	for i, s := range sources {
		if covers(s.Scope, scope) >= 0 && fits(s) && (found == nil || len(s.Scope) > len(found.Scope)) {
			found = &sources[i]
		}
	}
	return found
}

// Never reports whether a scope is not to be pulled from, by what holds for it or for what it is a part of.
func Never(sources []Source, scope string) bool {
	s := nearest(sources, scope, func(s Source) bool { return s.Blocked || s.Allowed })
	return s != nil && s.Blocked
}

// covers is how much of a source a scope matches, -1 if it does not.
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

// closest returns the entry that counts for a source, nil if there is none: that of the longest scope.
func closest(entries []*registry, source string) *registry {
	var found *registry
	for _, e := range entries {
		if s := e.scope(); s != "" && covers(s, source) >= 0 && (found == nil || len(s) > len(found.scope())) {
			found = e
		}
	}
	return found
}

// Merge puts the mirrors of sources behind those that the file has for them. Only one entry counts for an image, that
// of the longest scope. So what the file says of a registry goes on to hold for its parts that become sources; and what
// a source has holds for its parts that are in the file.
func (c *Conf) Merge(sources []Source) error {
	if _, old := c.file["registries"]; old {
		return errors.New("[registries]: is of the first version of the format, which has no mirrors; " +
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

// parts returns mirrors of a registry as mirrors of a part of it.
func parts(mirrors []Mirror, path string) []Mirror {
	out := slices.Clone(mirrors)
	for i := range out {
		out[i].Location += path
	}
	return out
}

// add puts mirrors behind those that an entry has. A location that the file calls insecure as a registry is insecure as
// a mirror: the library that reads the file looks at the mirror alone.
func (c *Conf) add(e *registry, mirrors []Mirror) {
	known := map[string]*mirror{}
	var first, second []string
	for _, m := range e.mirrors {
		// The older key for mirrors by digest and the newer key, which each mirror has for itself, exclude each other.
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

// widen lets a mirror be asked for more references.
func (m *mirror) widen(digests, tags bool) {
	if digests && m.pull == tagOnly || tags && m.pull == digestOnly || m.pull == all {
		m.pull = ""
	}
}

// entry returns a new entry for a source that so far another entry counted for, or none. What that entry says of
// reaching the source goes on to hold.
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

// InOrder merges lists so that each keeps its order where that is possible; otherwise, and where no list says anything,
// what comes first in the first list that has it is first.
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
