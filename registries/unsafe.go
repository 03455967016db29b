// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// pull returns the references for which a mirror of this registry is asked: all, digest-only or tag-only.
func (r *registry) pull(m mirror) string {
	switch {
	case m.pull != "":
		return m.pull
	case r.byDigestOnly:
		return digestOnly
	}
	return all
}

// both reads a file as it is and as it is to be. wrong names the one that does not parse.
func both[T any](before, after []byte, parse func([]byte) (T, error)) (old, changed T, wrong string) {
	old, err := parse(before)
	if err != nil {
		return old, changed, "its current contents do not parse (" + err.Error() + ")"
	}
	if changed, err = parse(after); err != nil {
		return old, changed, "its new contents do not parse (" + err.Error() + ")"
	}
	return old, changed, ""
}

// Unsafe returns the part of a change of registries.conf that could change the source of an image which a running pod
// may pull again; "" for a safe change. An image pulled by digest is the same from every mirror, so more mirrors for
// digests are safe. A missing file counts as empty. The texts name registries and keys, never other contents.
func Unsafe(before, after []byte) string {
	if bytes.Equal(before, after) {
		return ""
	}
	old, changed, wrong := both(before, after, Parse)
	if wrong != "" {
		return wrong
	}
	// Short names are looked up in this order. With additions only at the end, every name is found in the same place as
	// before.
	if len(changed.search) < len(old.search) || !slices.Equal(old.search, changed.search[:len(old.search)]) {
		return "unqualified-search-registries lost or reordered some"
	}
	for _, key := range slices.Sorted(maps.Keys(union(old.file, changed.file))) {
		if key != searchKey && key != registryKey && !reflect.DeepEqual(old.file[key], changed.file[key]) {
			return key + " changed"
		}
	}
	had, has := byScope(old.entries), byScope(changed.entries)
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

func unsafeRegistry(was, is *registry) string {
	switch {
	case was.prefix != is.prefix:
		return "prefix changed"
	case was.location != is.location:
		return "location changed"
	case was.blocked != is.blocked:
		return "blocked changed"
	case was.insecure != is.insecure:
		return "insecure changed"
	}
	for _, old := range was.mirrors {
		at := slices.IndexFunc(is.mirrors, func(m mirror) bool { return m.location == old.location })
		if at < 0 {
			return fmt.Sprintf("mirror %s was removed", old.location)
		}
		if old.insecure != is.mirrors[at].insecure {
			return fmt.Sprintf("insecure of mirror %s changed", old.location)
		}
		// A mirror that is listed twice, for digests and for tags, may remain as either.
		if !slices.ContainsFunc(is.mirrors, func(m mirror) bool {
			return m.location == old.location && (is.pull(m) == was.pull(old) || is.pull(m) == digestOnly)
		}) {
			return fmt.Sprintf("mirror %s is no longer pulled from as before", old.location)
		}
	}
	for _, m := range is.mirrors {
		had := slices.ContainsFunc(was.mirrors, func(old mirror) bool {
			return m.location == old.location && was.pull(old) == is.pull(m)
		})
		if !had && is.pull(m) != digestOnly {
			return fmt.Sprintf("new mirror %s is not digest-only", m.location)
		}
	}
	return ""
}

func unsafeNewRegistry(r *registry) string {
	switch {
	case r.blocked:
		return "is blocked"
	case r.insecure:
		return "is insecure"
	case r.prefix != "" && r.location != "" && r.prefix != r.location:
		return "is at another location"
	case len(r.mirrors) == 0 && !r.byDigestOnly:
		return "is not digest-only"
	}
	for _, m := range r.mirrors {
		if r.pull(m) != digestOnly {
			return fmt.Sprintf("has the mirror %s, which is not digest-only", m.location)
		}
	}
	return ""
}

func byScope(registries []*registry) map[string]*registry {
	out := make(map[string]*registry, len(registries))
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
