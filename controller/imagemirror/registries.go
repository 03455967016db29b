// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Values of pull-from-mirror; all is said by leaving it out.
const (
	all        = "all"
	digestOnly = "digest-only"
	tagOnly    = "tag-only"
)

// registriesConf is a registries.conf of the second version. What is not about mirrors stays as it was read.
type registriesConf struct {
	file    map[string]any
	entries []map[string]any
}

// parseRegistries reads one; without any contents it is an empty one. Its errors don't quote it.
func parseRegistries(data []byte) (*registriesConf, error) {
	c := &registriesConf{file: map[string]any{}}
	if err := toml.Unmarshal(data, &c.file); err != nil {
		if syntax, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, column := syntax.Position()
			return nil, fmt.Errorf("line %d, column %d: does not parse", line, column)
		}
		return nil, errors.New("is not TOML")
	}
	if _, old := c.file["registries"]; old {
		return nil, errors.New("[registries]: is of the first version of the format, which has no mirrors; " +
			"write [[registry]] tables and unqualified-search-registries instead")
	}
	list, _ := c.file["registry"].([]any)
	if c.file["registry"] != nil && list == nil {
		return nil, errors.New("registry: is no list of tables")
	}
	for _, item := range list {
		entry, ok := item.(map[string]any)
		if !ok {
			return nil, errors.New("registry: is no list of tables")
		}
		if _, err := mirrorsOf(entry); err != nil {
			return nil, err
		}
		c.entries = append(c.entries, entry)
	}
	return c, nil
}

// scope is what images are looked up by.
func scope(entry map[string]any) string {
	if prefix, _ := entry["prefix"].(string); prefix != "" {
		return prefix
	}
	at, _ := entry["location"].(string)
	return at
}

func mirrorsOf(entry map[string]any) ([]map[string]any, error) {
	list, _ := entry["mirror"].([]any)
	if entry["mirror"] != nil && list == nil {
		return nil, fmt.Errorf("registry %s: mirror: is no list of tables", scope(entry))
	}
	var out []map[string]any
	for _, item := range list {
		m, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("registry %s: mirror: is no list of tables", scope(entry))
		}
		out = append(out, m)
	}
	return out, nil
}

// covers is how much of a source a scope matches, -1 if it does not.
func covers(scope, source string) int {
	if rest, wild := strings.CutPrefix(scope, "*"); wild {
		at, _ := split(source)
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

// closest is the entry that counts for a source, nil if there is none: the one of the longest scope.
func closest(entries []map[string]any, source string) map[string]any {
	var found map[string]any
	for _, e := range entries {
		if s := scope(e); s != "" && covers(s, source) >= 0 && len(s) > len(scope(found)) {
			found = e
		}
	}
	return found
}

// insecure says that a location may be reached without TLS that can be verified.
func (c *registriesConf) insecure(location string) bool {
	is, _ := closest(c.entries, location)["insecure"].(bool)
	return is
}

// merge puts the mirrors of sources behind those that the file has for them. Only one entry counts for an image, that
// of the longest scope. So what the file says of a registry goes on to hold for its parts that become sources; and what
// a source has holds for its parts that are in the file.
func (c *registriesConf) merge(all []registry) error {
	file := slices.Clone(c.entries)
	sources := make([]map[string]any, 0, len(all))
	for _, r := range all {
		e := closest(file, r.source)
		if e == nil || scope(e) != r.source {
			var err error
			if e, err = entry(r.source, e); err != nil {
				return err
			}
			c.entries = append(c.entries, e)
		}
		sources = append(sources, e)
	}
	for i, r := range all {
		if err := c.add(sources[i], r.mirrors); err != nil {
			return err
		}
	}
	for _, e := range file {
		at := scope(e)
		r := nearest(all, at, func(registry) bool { return at != "" })
		if r == nil || r.source == at {
			continue
		}
		if err := c.add(e, parts(r.mirrors, at[covers(r.source, at):])); err != nil {
			return err
		}
	}
	for _, e := range c.entries {
		if at := scope(e); at != "" && never(all, at) {
			e["blocked"] = true
		}
	}
	return nil
}

// parts are mirrors of a registry as those of a part of it.
func parts(mirrors []mirror, path string) []mirror {
	out := slices.Clone(mirrors)
	for i := range out {
		out[i].location += path
	}
	return out
}

// add puts mirrors behind those that an entry has. One that the file says is insecure as a registry is so as a mirror:
// the library that reads the file looks at the mirror alone.
func (c *registriesConf) add(e map[string]any, mirrors []mirror) error {
	had, err := mirrorsOf(e)
	if err != nil {
		return err
	}
	// The older word for mirrors by digest and the newer one, which each mirror has for itself, exclude each other.
	if is, _ := e["mirror-by-digest-only"].(bool); is {
		for _, m := range had {
			m["pull-from-mirror"] = digestOnly
		}
	}
	delete(e, "mirror-by-digest-only")
	byLocation := map[string]map[string]any{}
	var first, second []string
	for _, m := range had {
		at, _ := m["location"].(string)
		byLocation[at] = m
		first = append(first, at)
	}
	for _, m := range mirrors {
		second = append(second, m.location)
		if byLocation[m.location] == nil {
			byLocation[m.location] = map[string]any{"location": m.location, "pull-from-mirror": digestOnly}
			if !m.digests {
				byLocation[m.location]["pull-from-mirror"] = tagOnly
			}
			if c.insecure(m.location) {
				byLocation[m.location]["insecure"] = true
			}
		}
		widen(byLocation[m.location], m)
	}
	var out []any
	for _, at := range order([][]string{first, second}) {
		out = append(out, byLocation[at])
	}
	if out != nil {
		e["mirror"] = out
	}
	return nil
}

// widen lets a mirror be pulled from for what is asked of it besides.
func widen(entry map[string]any, m mirror) {
	pull, _ := entry["pull-from-mirror"].(string)
	if m.digests && pull == tagOnly || m.tags && pull == digestOnly || pull == all {
		delete(entry, "pull-from-mirror")
	}
}

// entry is a new one for a source that so far another one counted for, or none: what that says of reaching the source
// goes on to hold.
func entry(source string, above map[string]any) (map[string]any, error) {
	out := map[string]any{"location": source}
	if strings.HasPrefix(source, "*") {
		out = map[string]any{"prefix": source}
	}
	if above == nil {
		return out, nil
	}
	for _, key := range []string{"insecure", "blocked", "mirror-by-digest-only"} {
		if is, _ := above[key].(bool); is {
			out[key] = true
		}
	}
	part := source[covers(scope(above), source):]
	if at, _ := above["location"].(string); at != "" && at != scope(above) {
		out["prefix"], out["location"] = source, at+part
	}
	mirrors, err := mirrorsOf(above)
	if err != nil {
		return nil, err
	}
	var copied []any
	for _, m := range mirrors {
		m = maps.Clone(m)
		at, _ := m["location"].(string)
		m["location"] = at + part
		copied = append(copied, m)
	}
	if copied != nil {
		out["mirror"] = copied
	}
	return out, nil
}

// text writes the file: what was there in its order, what is new behind it.
func (c *registriesConf) text() ([]byte, error) {
	var list []any
	for _, e := range c.entries {
		list = append(list, e)
	}
	if list != nil {
		c.file["registry"] = list
	}
	return toml.Marshal(c.file)
}
