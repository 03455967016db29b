// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/pelletier/go-toml/v2"
)

// registriesConf is the part of containers-registries.conf(5) that the rules below speak about, and the rest by key.
type registriesConf struct {
	Search     []string       `toml:"unqualified-search-registries"`
	Registries []registry     `toml:"registry"`
	Rest       map[string]any `toml:"-"`
}

type registry struct {
	Prefix       string   `toml:"prefix"`
	Location     string   `toml:"location"`
	Insecure     bool     `toml:"insecure"`
	Blocked      bool     `toml:"blocked"`
	ByDigestOnly bool     `toml:"mirror-by-digest-only"`
	Mirrors      []mirror `toml:"mirror"`
}

type mirror struct {
	Location string `toml:"location"`
	Insecure bool   `toml:"insecure"`
	Pull     string `toml:"pull-from-mirror"`
}

const digestOnly = "digest-only"

// scope is what the container runtime looks a registry up by.
func (r registry) scope() string { return cmp.Or(r.Prefix, r.Location) }

// pull is for which references a mirror of this registry is asked: all, digest-only or tag-only.
func (r registry) pull(m mirror) string {
	switch {
	case m.Pull != "":
		return m.Pull
	case r.ByDigestOnly:
		return digestOnly
	}
	return "all"
}

// unsafeRegistries says what in a change of registries.conf could change where an image comes from that a running pod
// may pull again; "" where nothing could. Images pulled by digest are the same from every mirror, so more of these are
// safe. A file that is not there is an empty one. The texts name registries and keys, never other contents.
func unsafeRegistries(before, after []byte) string {
	if bytes.Equal(before, after) {
		return ""
	}
	old, err := parseRegistries(before)
	if err != nil {
		return "its current contents do not parse (" + err.Error() + ")"
	}
	changed, err := parseRegistries(after)
	if err != nil {
		return "its new contents do not parse (" + err.Error() + ")"
	}
	// Short names are looked up in this order: only more at the end leaves every name where it was found.
	if len(changed.Search) < len(old.Search) || !slices.Equal(old.Search, changed.Search[:len(old.Search)]) {
		return "unqualified-search-registries lost or reordered some"
	}
	for _, key := range slices.Sorted(maps.Keys(union(old.Rest, changed.Rest))) {
		if !reflect.DeepEqual(old.Rest[key], changed.Rest[key]) {
			return key + " changed"
		}
	}
	had, has := byScope(old.Registries), byScope(changed.Registries)
	for _, scope := range slices.Sorted(maps.Keys(had)) {
		is, ok := has[scope]
		if !ok {
			return fmt.Sprintf("registry %s was removed", scope)
		}
		if why := unsafeRegistry(had[scope], is); why != "" {
			return fmt.Sprintf("registry %s: %s", scope, why)
		}
	}
	for _, scope := range slices.Sorted(maps.Keys(has)) {
		if _, ok := had[scope]; ok {
			continue
		}
		if why := unsafeNewRegistry(has[scope]); why != "" {
			return fmt.Sprintf("new registry %s %s", scope, why)
		}
	}
	return ""
}

func unsafeRegistry(was, is registry) string {
	switch {
	case was.Prefix != is.Prefix:
		return "prefix changed"
	case was.Location != is.Location:
		return "location changed"
	case was.Blocked != is.Blocked:
		return "blocked changed"
	case was.Insecure != is.Insecure:
		return "insecure changed"
	}
	for _, old := range was.Mirrors {
		at := slices.IndexFunc(is.Mirrors, func(m mirror) bool { return m.Location == old.Location })
		if at < 0 {
			return fmt.Sprintf("mirror %s was removed", old.Location)
		}
		if old.Insecure != is.Mirrors[at].Insecure {
			return fmt.Sprintf("insecure of mirror %s changed", old.Location)
		}
		// One that is there twice, for digests and for tags, may go on as either.
		if !slices.ContainsFunc(is.Mirrors, func(m mirror) bool {
			return m.Location == old.Location && (is.pull(m) == was.pull(old) || is.pull(m) == digestOnly)
		}) {
			return fmt.Sprintf("mirror %s is no longer pulled from as before", old.Location)
		}
	}
	for _, m := range is.Mirrors {
		had := slices.ContainsFunc(was.Mirrors, func(old mirror) bool {
			return m.Location == old.Location && was.pull(old) == is.pull(m)
		})
		if !had && is.pull(m) != digestOnly {
			return fmt.Sprintf("new mirror %s is not digest-only", m.Location)
		}
	}
	return ""
}

func unsafeNewRegistry(r registry) string {
	switch {
	case r.Blocked:
		return "is blocked"
	case r.Insecure:
		return "is insecure"
	case r.Prefix != "" && r.Location != "" && r.Prefix != r.Location:
		return "is at another location"
	case len(r.Mirrors) == 0 && !r.ByDigestOnly:
		return "is not digest-only"
	}
	for _, m := range r.Mirrors {
		if r.pull(m) != digestOnly {
			return fmt.Sprintf("has the mirror %s, which is not digest-only", m.Location)
		}
	}
	return ""
}

func parseRegistries(data []byte) (*registriesConf, error) {
	var conf registriesConf
	if err := toml.Unmarshal(data, &conf); err != nil {
		return nil, whereNot(err)
	}
	if err := toml.Unmarshal(data, &conf.Rest); err != nil {
		return nil, whereNot(err)
	}
	delete(conf.Rest, "unqualified-search-registries")
	delete(conf.Rest, "registry")
	return &conf, nil
}

// whereNot keeps the place of a syntax error and drops its text, which can quote the file.
func whereNot(err error) error {
	if syntax, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, column := syntax.Position()
		return fmt.Errorf("line %d, column %d", line, column)
	}
	return errors.New("not TOML")
}

func byScope(registries []registry) map[string]registry {
	out := make(map[string]registry, len(registries))
	for _, r := range registries {
		out[r.scope()] = r
	}
	return out
}

func union(a, b map[string]any) map[string]any {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}
