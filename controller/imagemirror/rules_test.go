// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"slices"
	"strings"
	"testing"

	configv1 "github.com/openshift/api/config/v1"
	operatorv1alpha1 "github.com/openshift/api/operator/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/registries"
)

func idms(name, source string, policy configv1.MirrorSourcePolicy, mirrors ...configv1.ImageMirror) *origin {
	o := &configv1.ImageDigestMirrorSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.ImageDigestMirrors = []configv1.ImageDigestMirrors{
		{Source: source, Mirrors: mirrors, MirrorSourcePolicy: policy},
	}
	return digests(o)
}

func itms(name, source string, policy configv1.MirrorSourcePolicy, mirrors ...configv1.ImageMirror) *origin {
	o := &configv1.ImageTagMirrorSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.ImageTagMirrors = []configv1.ImageTagMirrors{
		{Source: source, Mirrors: mirrors, MirrorSourcePolicy: policy},
	}
	return tags(o)
}

func icsp(name, source string, mirrors ...string) *origin {
	o := &operatorv1alpha1.ImageContentSourcePolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.RepositoryDigestMirrors = []operatorv1alpha1.RepositoryDigestMirrors{{Source: source, Mirrors: mirrors}}
	return policies(o)
}

func TestMirrorsThatMakeNoSenseAreNamedByTheirField(t *testing.T) {
	for _, test := range []struct {
		what string
		o    *origin
		want string // "" where nothing is wrong
	}{
		{"a host", icsp("a", "quay.io", "mirror.example:5000"), ""},
		{"a repository", icsp("a", "quay.io/xiaoyun/test", "hub.iefcu.cn/xiaoyun/test"), ""},
		{"a wildcard", idms("a", "*.example.com", "", "m.example"), ""},
		{"a source without mirrors", idms("a", "quay.io", ""), ""},
		{"no source", icsp("a", "", "m.example"), `spec.repositoryDigestMirrors[0].source: "" is neither`},
		{"a digest", icsp("a", "quay.io/a@sha256:00", "m.example"), "spec.repositoryDigestMirrors[0].source"},
		{"a URL", icsp("a", "https://quay.io/a", "m.example"), "spec.repositoryDigestMirrors[0].source"},
		{"a wildcard with a path", icsp("a", "*.example.com/a", "m.example"), "spec.repositoryDigestMirrors[0].source"},
		{"a mirror with a wildcard", icsp("a", "quay.io", "m.example", "*.example"), "spec.repositoryDigestMirrors[0].mirrors[1]"},
		{"a mirror that breaks the line", icsp("a", "quay.io", "m\n.example"), "spec.repositoryDigestMirrors[0].mirrors[0]"},
		{"a mirror twice", icsp("a", "quay.io", "m", "n", "m"), `spec.repositoryDigestMirrors[0].mirrors[2]: "m" is there twice`},
		{"nowhere to pull from", idms("a", "quay.io", configv1.NeverContactSource), "spec.imageDigestMirrors[0].mirrorSourcePolicy"},
		{"the same for tags", itms("a", "quay.io", configv1.NeverContactSource), "spec.imageTagMirrors[0].mirrorSourcePolicy"},
	} {
		got := ""
		if test.o.err != nil {
			got = test.o.err.Error()
		}
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.what, got, test.want)
		}
	}
}

func TestObjectsThatContradictEachOtherNameEachOther(t *testing.T) {
	const never, allow = configv1.NeverContactSource, configv1.AllowContactingSource
	a, b := idms("a", "quay.io", never, "m"), itms("b", "quay.io", allow, "m")
	unset, elsewhere := idms("c", "quay.io", "", "m"), itms("d", "quay.io/d", allow, "m")
	arrange([]*origin{elsewhere, unset, b, a})
	for o, other := range map[*origin]string{a: "ImageTagMirrorSet/b", b: "ImageDigestMirrorSet/a"} {
		if o.err == nil || !strings.Contains(o.err.Error(), "mirrorSourcePolicy") || !strings.Contains(o.err.Error(), other) {
			t.Errorf("%s: %v", o, o.err)
		}
	}
	if unset.err != nil || elsewhere.err != nil {
		t.Errorf("those that don't: %v, %v", unset.err, elsewhere.err)
	}
}

func TestTheOutcomeDoesNotDependOnTheOrderInWhichObjectsAreListed(t *testing.T) {
	all := func() []*origin {
		return []*origin{
			icsp("z", "quay.io", "a", "b"), icsp("a", "quay.io", "b", "c"), idms("b", "quay.io", "", "d", "a"),
			itms("c", "quay.io", configv1.NeverContactSource, "b", "t"), idms("a", "docker.io/x", "", "a"),
		}
	}
	want := sources(counting(arrange(all()), nil))
	for range 20 {
		some := all()
		slices.Reverse(some)
		some = slices.Concat(some[2:], some[:2])
		got := sources(counting(arrange(some), nil))
		if len(got) != 2 || !slices.EqualFunc(got, want, func(x, y registries.Source) bool {
			return x.Scope == y.Scope && x.Blocked == y.Blocked && slices.Equal(x.Mirrors, y.Mirrors)
		}) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	if !slices.Equal(want[1].Mirrors, []registries.Mirror{
		{Location: "d", Digests: true}, {Location: "a", Digests: true}, {Location: "b", Digests: true, Tags: true},
		{Location: "t", Tags: true}, {Location: "c", Digests: true},
	}) || !want[1].Blocked || want[0].Blocked {
		t.Errorf("got %v", want)
	}
}
