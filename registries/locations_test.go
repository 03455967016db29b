// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"slices"
	"testing"
)

func TestMirrorsAreAskedBeforeTheirSource(t *testing.T) {
	t.Parallel()
	sources := []Source{
		{Scope: "r.example", Mirrors: []Mirror{{Location: "all.example/r", Tags: true}}},
		{Scope: "r.example/os", Mirrors: []Mirror{{Location: "tags.example/os", Tags: true}, {Location: "both.example", Tags: true, Digests: true}}},
		{Scope: "*.closed.example", Mirrors: []Mirror{{Location: "m.example/c", Digests: true}}, Blocked: true},
	}
	for _, c := range []struct {
		repository string
		tags       bool
		want       []string
	}{
		{"r.example/os/base", true, []string{"tags.example/os/base", "both.example/base", "r.example/os/base"}},
		{"r.example/os/base", false, []string{"both.example/base", "r.example/os/base"}},
		{"r.example/osx", true, []string{"all.example/r/osx", "r.example/osx"}},
		{"other.example/os", true, []string{"other.example/os"}},
		{"a.closed.example/os", false, []string{"m.example/c/os"}},
		{"a.closed.example/os", true, nil},
	} {
		if got := Locations(sources, c.repository, c.tags); !slices.Equal(got, c.want) {
			t.Errorf("%s, tags %v: %s, want %s", c.repository, c.tags, got, c.want)
		}
	}
}
