// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	configv1 "github.com/openshift/api/config/v1"
	operatorv1alpha1 "github.com/openshift/api/operator/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// origin is an object that asks for mirrors.
type origin struct {
	object client.Object
	kind   string
	rules  []rule
	// err says what is wrong with the object whichever pool it is for; pools what can't be had on one.
	err   error
	pools map[string]error
}

func (o *origin) String() string { return o.kind + "/" + o.object.GetName() }

// rule is one entry of an object.
type rule struct {
	asked
	origin *origin
	// field is where the object has it.
	field string
}

// asked is what an entry asks for, as it is noted of what was accepted.
type asked struct {
	Source  string   `json:"source"`
	Mirrors []string `json:"mirrors,omitempty"`
	// Tags: the mirrors are for images that are asked for by tag, else for those by digest.
	Tags   bool                        `json:"tags,omitempty"`
	Policy configv1.MirrorSourcePolicy `json:"policy,omitempty"`
}

// digests reads an ImageDigestMirrorSet.
func digests(o *configv1.ImageDigestMirrorSet) *origin {
	out := &origin{object: o, kind: "ImageDigestMirrorSet"}
	for i, m := range o.Spec.ImageDigestMirrors {
		out.add(fmt.Sprintf("spec.imageDigestMirrors[%d]", i), m.Source, plain(m.Mirrors), false, m.MirrorSourcePolicy)
	}
	return out
}

// tags reads an ImageTagMirrorSet.
func tags(o *configv1.ImageTagMirrorSet) *origin {
	out := &origin{object: o, kind: "ImageTagMirrorSet"}
	for i, m := range o.Spec.ImageTagMirrors {
		out.add(fmt.Sprintf("spec.imageTagMirrors[%d]", i), m.Source, plain(m.Mirrors), true, m.MirrorSourcePolicy)
	}
	return out
}

// policies reads an ImageContentSourcePolicy.
func policies(o *operatorv1alpha1.ImageContentSourcePolicy) *origin {
	out := &origin{object: o, kind: "ImageContentSourcePolicy"}
	for i, m := range o.Spec.RepositoryDigestMirrors {
		out.add(fmt.Sprintf("spec.repositoryDigestMirrors[%d]", i), m.Source, m.Mirrors, false, "")
	}
	return out
}

func plain(mirrors []configv1.ImageMirror) []string {
	out := make([]string, 0, len(mirrors))
	for _, m := range mirrors {
		out = append(out, string(m))
	}
	return out
}

const (
	host = `(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])(?:\.(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]))*`
	path = `(?:/[a-z0-9]+(?:(?:[._]|__|-*)[a-z0-9]+)*)*`
)

// What the schema of the two newer kinds allows, for the older one which has none.
var (
	location = regexp.MustCompile(`^` + host + `(?::[0-9]+)?` + path + `$`)
	wildcard = regexp.MustCompile(`^\*\.` + host + `$`)
)

func (o *origin) add(field, source string, mirrors []string, tags bool, policy configv1.MirrorSourcePolicy) {
	wrong := func(below, format string, args ...any) {
		o.err = errors.Join(o.err, fmt.Errorf(field+below+": "+format, args...))
	}
	if !location.MatchString(source) && !wildcard.MatchString(source) {
		wrong(".source", "%q is neither host[:port][/namespace][/repository] nor *.host", source)
	}
	for i, m := range mirrors {
		if !location.MatchString(m) {
			wrong(fmt.Sprintf(".mirrors[%d]", i), "%q is not host[:port][/namespace][/repository]", m)
		}
		if slices.Contains(mirrors[:i], m) {
			wrong(fmt.Sprintf(".mirrors[%d]", i), "%q is there twice", m)
		}
	}
	if policy == configv1.NeverContactSource && len(mirrors) == 0 {
		wrong(".mirrorSourcePolicy", "%s without mirrors would leave nowhere to pull from", policy)
	}
	o.rules = append(o.rules, rule{asked{source, mirrors, tags, policy}, o, field})
}

// arrange puts objects into the order in which their mirrors count, and finds those that contradict each other.
func arrange(origins []*origin) []*origin {
	kinds := []string{"ImageDigestMirrorSet", "ImageTagMirrorSet", "ImageContentSourcePolicy"}
	origins = slices.SortedFunc(slices.Values(origins), func(a, b *origin) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, a.kind), slices.Index(kinds, b.kind)),
			cmp.Compare(a.object.GetName(), b.object.GetName()))
	})
	var rules []rule
	for _, o := range origins {
		rules = append(rules, o.rules...)
	}
	for _, r := range rules {
		for _, other := range rules {
			if r.Source == other.Source && r.Policy != "" && other.Policy != "" && r.Policy != other.Policy {
				r.origin.err = errors.Join(r.origin.err, fmt.Errorf("%s.mirrorSourcePolicy: is %s for %s, and %s in %s, %s",
					r.field, r.Policy, r.Source, other.Policy, other.origin, other.field))
			}
		}
	}
	return origins
}

// registry is what all rules of one source come to.
type registry struct {
	source  string
	mirrors []mirror
	// blocked: the source itself is never pulled from. allowed: it may be, whatever holds for what it is a part of.
	blocked, allowed bool
}

type mirror struct {
	location      string
	digests, tags bool
}

// nearest is the one that counts for a scope, nil if there is none: that of the longest source that covers it and fits.
func nearest(all []registry, scope string, fits func(registry) bool) *registry {
	var found *registry
	for i, r := range all {
		if covers(r.source, scope) >= 0 && fits(r) && (found == nil || len(r.source) > len(found.source)) {
			found = &all[i]
		}
	}
	return found
}

// never says that a source is not to be pulled from, by what holds for it or for what it is a part of.
func never(all []registry, scope string) bool {
	r := nearest(all, scope, func(r registry) bool { return r.blocked || r.allowed })
	return r != nil && r.blocked
}

// registries merges the rules of objects, by source. A source without mirrors asks for nothing, unless it is let out of
// what is never pulled from.
func registries(objects []counted) []registry {
	by := map[string][]asked{}
	var sources []string
	for _, o := range objects {
		for _, r := range o.Rules {
			if by[r.Source] == nil {
				sources = append(sources, r.Source)
			}
			by[r.Source] = append(by[r.Source], r)
		}
	}
	slices.Sort(sources)
	out := make([]registry, 0, len(sources))
	for _, source := range sources {
		is := registry{source: source}
		var lists [][]string
		for _, r := range by[source] {
			lists = append(lists, r.Mirrors)
			is.blocked = is.blocked || r.Policy == configv1.NeverContactSource
			is.allowed = is.allowed || r.Policy == configv1.AllowContactingSource
		}
		is.allowed = is.allowed && !is.blocked
		for _, at := range order(lists) {
			m := mirror{location: at}
			for _, r := range by[source] {
				if slices.Contains(r.Mirrors, at) {
					m.digests, m.tags = m.digests || !r.Tags, m.tags || r.Tags
				}
			}
			is.mirrors = append(is.mirrors, m)
		}
		out = append(out, is)
	}
	var asking []registry
	for i, is := range out {
		if len(is.mirrors) > 0 || is.allowed && never(slices.Concat(out[:i], out[i+1:]), is.source) {
			asking = append(asking, is)
		}
	}
	return asking
}

// order merges lists so that each keeps its order where that is possible; otherwise, and where no list says anything,
// what comes first in the first list that has it is first.
func order(lists [][]string) []string {
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

// split takes a location to its host and its path, without a slash between.
func split(location string) (host, path string) {
	host, path, _ = strings.Cut(location, "/")
	return host, path
}
