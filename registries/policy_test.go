// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"slices"
	"strings"
	"testing"
)

func TestAScopeIsWithinItsRegistryItsPartsAndItsWildcards(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		scope, outer string
		want         bool
	}{
		{"quay.io", "quay.io", true},
		{"quay.io/a", "quay.io", true},
		{"quay.io", "quay.io/a", false},
		{"quay.io/ab", "quay.io/a", false},
		{"quay.io/a:v1", "quay.io/a", true},
		{"quay.io/a@sha256:00", "quay.io/a", true},
		{"quay.io/a:v1@sha256:00", "quay.io/a", true},
		{"quay.io:5000", "quay.io", false},
		{"quay.io:5000/a", "quay.io", false},
		{"quay.io:5000/a", "quay.io:5000", true},
		{"a.example.com", "*.example.com", true},
		{"a.b.example.com:5000/c", "*.example.com", true},
		{"example.com", "*.example.com", false},
		{"*.a.example.com", "*.example.com", true},
		{"*.example.com", "*.a.example.com", false},
		{"quay.io/x.example.com", "*.example.com", false},
	} {
		if got := within(c.scope, c.outer); got != c.want {
			t.Errorf("%s within %s: %v", c.scope, c.outer, got)
		}
	}
}

func TestARestrictionNeverOpensWhatWasClosed(t *testing.T) {
	t.Parallel()
	const signed = `[{"type":"signedBy"}]`
	for _, c := range []struct {
		what, policy     string
		allowed, blocked []string
		demands          map[string]string // by scope, what the policy demands something for
		wrong            string
	}{
		{"nothing beneath", "", []string{"a.example"}, nil, map[string]string{"a.example/x": "", "b.example": "the default"}, ""},
		{"a transport's default", `{"default":[{"type":"reject"}],"transports":{"docker":{"":[{"type":"insecureAcceptAnything"}]}}}`,
			[]string{"a.example"}, nil, map[string]string{"a.example/x": "", "b.example": "the default"}, ""},
		{"a demand of the same registry", `{"default":` + signed + `,"transports":{"docker":{"a.example":` + signed + `}}}`,
			[]string{"a.example", "a.example/x"}, nil, map[string]string{"a.example/x": "a.example"}, ""},
		{"a part that is rejected", `{"default":` + signed + `,"transports":{"docker":{"a.example/x":[{"type":"reject"}]}}}`,
			[]string{"a.example"}, nil, map[string]string{"a.example/x/y": "a.example/x", "a.example/z": "a.example"}, ""},
		{"a demand of the default", `{"default":` + signed + `}`, []string{"a.example", "b.example/x"}, nil,
			map[string]string{"a.example/x": "a.example", "b.example/x": "b.example/x", "b.example": "the default"}, ""},
		{"a demand of a transport's default", `{"default":[{"type":"insecureAcceptAnything"}],"transports":{"docker":{"":` +
			signed + `}}}`, []string{"a.example"}, nil, map[string]string{"a.example/x": "a.example"}, ""},
		{"allowed, and rejected by default", `{"default":[{"type":"reject"}]}`, []string{"a.example"}, nil, nil,
			"rejects images of a.example, which is allowed"},
		{"allowed, and permitted beside a rejection", `{"default":[{"type":"reject"}],"transports":{"docker":{"a.example":` +
			signed + `}}}`, []string{"a.example", "a.example/x"}, nil, map[string]string{"a.example/x": "a.example"}, ""},
		{"more than is allowed", `{"default":` + signed + `,"transports":{"docker":{"a.example":` + signed + `}}}`,
			[]string{"a.example/x"}, nil, nil, "permits images of a.example, which is not within an allowed registry"},
		{"a part of what is blocked", `{"default":` + signed + `,"transports":{"docker":{"a.example/x":` + signed + `}}}`,
			nil, []string{"a.example"}, nil, "permits images of a.example/x, which is within a.example"},
		{"blocked", `{"default":` + signed + `}`, nil, []string{"a.example"},
			map[string]string{"a.example/x": "a.example", "b.example": "the default"}, ""},
	} {
		var data []byte
		if c.policy != "" {
			data = []byte(c.policy)
		}
		p, err := ParsePolicy(data)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Restrict(c.allowed, c.blocked); err != nil || c.wrong != "" {
			if err == nil || c.wrong == "" || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v, want %q", c.what, err, c.wrong)
			}
			continue
		}
		for scope, want := range c.demands {
			if got := p.Demands(scope); got != want {
				t.Errorf("%s: %s is held by %q, want %q", c.what, scope, got, want)
			}
		}
	}
}

// The two scopes are equally long.
func TestAHostCountsBeforeItsWildcard(t *testing.T) {
	t.Parallel()
	p, err := ParsePolicy(nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Require("*.example.com", Requirement{"type": "signedBy"})
	p.Transports[docker]["a.example.com"] = []Requirement{{"type": anything}}
	for range 100 {
		if by := p.Demands("a.example.com/x"); by != "" {
			t.Fatalf("%s counts", by)
		}
	}
}

func TestTheOlderTransportHasOnlyTheScopesThatItCanRead(t *testing.T) {
	t.Parallel()
	p, err := ParsePolicy(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, scope := range []string{"a.example", "a.example/b/c:v1", "a.example/b:v1", "a.example/b/c/d"} {
		p.Require(scope, Requirement{"type": "reject"})
	}
	for _, scope := range []string{"a.example/b:v1", "a.example/b/c/d"} {
		if _, has := p.Transports[atomic][scope]; has || p.Transports[docker][scope] == nil {
			t.Errorf("%s: atomic has it: %v", scope, has)
		}
	}
	if len(p.Transports[atomic]) != 2 {
		t.Errorf("got %v", p.Transports[atomic])
	}
}

func TestSignaturesAreLookedForWhereverAnImageMayComeFrom(t *testing.T) {
	t.Parallel()
	conf, err := Parse([]byte(`
[[registry]]
prefix = "a.example"
location = "at.example/a"
[[registry.mirror]]
location = "m.example"
[[registry]]
location = "a.example/x/y"
[[registry.mirror]]
location = "n.example/y"
[[registry]]
prefix = "*.lab.example"
[[registry.mirror]]
location = "l.example"
`))
	if err != nil {
		t.Fatal(err)
	}
	for scope, want := range map[string][]string{
		"a.example":       {"at.example/a", "m.example", "n.example/y"},
		"a.example/x":     {"at.example/a/x", "m.example/x", "n.example/y"},
		"a.example/x/y:1": {"n.example/y"},
		"*.lab.example":   {"l.example"},
		"b.lab.example/c": {"l.example/c"},
		"other.example":   nil,
	} {
		text, err := conf.Attachments([]string{scope})
		if err != nil {
			t.Fatal(err)
		}
		got, err := Attached(text)
		want = append(want, scope)
		slices.Sort(want)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %s, %v, want %s", scope, got, err, want)
		}
	}
}
