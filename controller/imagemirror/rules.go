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

	"github.com/noderefit/noderefit/registries"
)

// origin is an object that asks for mirrors, for settings of registries, or for signatures.
type origin struct {
	object   client.Object
	kind     string
	rules    []rule
	settings *settings
	demand   *demand
	// err is what is wrong with the object for any pool. pools has what is wrong for single pools.
	err   error
	pools map[string]error
	// beside is what has no effect, while the rest of the object counts.
	beside error
}

// originOf reads an object of one of the kinds. It returns nil for an object of another kind.
func originOf(object client.Object) *origin {
	switch o := object.(type) {
	case *configv1.ImageDigestMirrorSet:
		return digests(o)
	case *configv1.ImageTagMirrorSet:
		return tags(o)
	case *operatorv1alpha1.ImageContentSourcePolicy:
		return policies(o)
	case *configv1.Image:
		return settingsOf(o)
	case *configv1.ClusterImagePolicy:
		return clusterPolicy(o)
	case *configv1.ImagePolicy:
		return namespacedPolicy(o)
	}
	return nil
}

func (o *origin) String() string {
	if namespace := o.object.GetNamespace(); namespace != "" {
		return o.kind + "/" + namespace + "/" + o.object.GetName()
	}
	return o.kind + "/" + o.object.GetName()
}

// tenant reports whether an administrator of a single namespace may make the object.
func (o *origin) tenant() bool { return o.kind == kindPolicy }

// rule is one entry of an object.
type rule struct {
	asked
	origin *origin
	// field is the path of the entry in the object.
	field string
}

// asked is what an entry asks for. What was accepted is noted in the same form.
type asked struct {
	Source  string   `json:"source"`
	Mirrors []string `json:"mirrors,omitempty"`
	// Tags is true if the mirrors are for images that are pulled by tag, and false if for those by digest.
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
	host  = `(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])(?:\.(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]))*`
	below = `(?:/[a-z0-9]+(?:(?:[._]|__|-*)[a-z0-9]+)*)*`
)

// These match what the schema of the two newer kinds allows. The older kind has no schema for it.
var (
	location = regexp.MustCompile(`^` + host + `(?::[0-9]+)?` + below + `$`)
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

// arrange puts objects into the order in which their mirrors count. It notes an error in objects that contradict each
// other.
func arrange(origins []*origin) []*origin {
	kinds := []string{
		"ImageDigestMirrorSet", "ImageTagMirrorSet", "ImageContentSourcePolicy", "Image", kindClusterPolicy, kindPolicy,
	}
	origins = slices.SortedFunc(slices.Values(origins), func(a, b *origin) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, a.kind), slices.Index(kinds, b.kind)),
			cmp.Compare(a.object.GetNamespace(), b.object.GetNamespace()),
			cmp.Compare(a.object.GetName(), b.object.GetName()))
	})
	contradict(origins)
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

// sources merges the rules of objects, by source. A source without mirrors counts only if contact with it is allowed,
// as an exception to a source that is never contacted.
func sources(objects []counted) []registries.Source {
	by := map[string][]asked{}
	var scopes []string
	for _, o := range objects {
		for _, r := range o.Rules {
			if by[r.Source] == nil {
				scopes = append(scopes, r.Source)
			}
			by[r.Source] = append(by[r.Source], r)
		}
	}
	slices.Sort(scopes)
	out := make([]registries.Source, 0, len(scopes))
	for _, scope := range scopes {
		is := registries.Source{Scope: scope}
		var lists [][]string
		for _, r := range by[scope] {
			lists = append(lists, r.Mirrors)
			is.Blocked = is.Blocked || r.Policy == configv1.NeverContactSource
			is.Allowed = is.Allowed || r.Policy == configv1.AllowContactingSource
		}
		is.Allowed = is.Allowed && !is.Blocked
		for _, at := range registries.InOrder(lists) {
			m := registries.Mirror{Location: at}
			for _, r := range by[scope] {
				if slices.Contains(r.Mirrors, at) {
					m.Digests, m.Tags = m.Digests || !r.Tags, m.Tags || r.Tags
				}
			}
			is.Mirrors = append(is.Mirrors, m)
		}
		out = append(out, is)
	}
	var asking []registries.Source
	for i, is := range out {
		if len(is.Mirrors) > 0 || is.Allowed && registries.Never(slices.Concat(out[:i], out[i+1:]), is.Scope) {
			asking = append(asking, is)
		}
	}
	return asking
}

// inexpressible returns why containerd can't do what a rule asks for, and nil if it can. containerd knows only mirrors
// of whole registries. A mirror of a part of a registry can be asked for all images by digest, since a digest means the
// same everywhere. A tag does not.
func inexpressible(r rule, all []registries.Source) error {
	host, path := registries.Split(r.Source)
	if strings.HasPrefix(host, "*") {
		return fmt.Errorf("%s.source: containerd has no wildcards; name each registry", r.field)
	}
	if r.Tags && path != "" && len(r.Mirrors) > 0 {
		return fmt.Errorf("%s.source: containerd has mirrors of whole registries only; a mirror for %s would serve the "+
			"tags of all of %s", r.field, r.Source, host)
	}
	if r.Policy == configv1.NeverContactSource && path != "" {
		return fmt.Errorf("%s.mirrorSourcePolicy: containerd can block only whole registries, and not %s",
			r.field, r.Source)
	}
	if r.Policy == configv1.AllowContactingSource && path != "" && registries.Never(all, host) {
		return fmt.Errorf("%s.mirrorSourcePolicy: containerd can block only whole registries; it cannot block %s and "+
			"allow %s", r.field, host, r.Source)
	}
	for i, m := range r.Mirrors {
		if _, ok := registries.Under(m, path); !ok {
			return fmt.Errorf("%s.mirrors[%d]: containerd keeps the path of an image, so that a mirror of %s has to end in /%s",
				r.field, i, r.Source, path)
		}
	}
	return nil
}
