// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func digest(letter string) string { return "@sha256:" + strings.Repeat(letter, 64) }

func TestWhatIsLeftToBeDoneForWantedImages(t *testing.T) {
	t.Parallel()
	a, b, c := "quay.io/x/a"+digest("a"), "quay.io/x/b"+digest("b"), "docker.io/c"+digest("c")
	library := "docker.io/library/c" + digest("c")
	for _, test := range []struct {
		name   string
		wanted []string
		has    []stored
		want   todo
	}{
		{"nothing", nil, []stored{{[]string{a}, false}}, todo{}},
		{"all in their order", []string{b, a, b}, nil, todo{Pull: []string{b, a}}},
		{"one is there", []string{a, b}, []stored{{[]string{"quay.io/x/a:1", a}, false}},
			todo{Pull: []string{b}, Pin: []string{a}}},
		{"one is pinned", []string{a, b}, []stored{{[]string{a}, true}}, todo{Pull: []string{b}}},
		{"the same content under two names", []string{a}, []stored{{[]string{a}, false}, {[]string{a}, true}}, todo{}},
		{"Docker's short names", []string{c}, []stored{{[]string{library}, true}}, todo{}},
		{"one pinned under its full name", []string{c, "index." + c}, []stored{{[]string{library}, true}}, todo{}},
		{"a pin of another program", nil, []stored{{[]string{a}, true}}, todo{}},
	} {
		if got := decide(test.wanted, test.has); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
	if got := unwanted([]string{b, library}, []string{library, b, "quay.io/x/d" + digest("d"), a}); !slices.Equal(got, []string{a, "quay.io/x/d" + digest("d")}) {
		t.Errorf("not wanted any more: %q", got)
	}
	if got := unwanted([]string{library}, []string{c}); len(got) > 0 {
		t.Errorf("Docker's short name is not wanted: %q", got)
	}
}
