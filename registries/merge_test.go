// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"strings"
	"testing"
)

func TestAFileThatCantBeMergedIsToldWithoutItsContents(t *testing.T) {
	for what, test := range map[string]struct{ file, want string }{
		"no TOML":           {"a = 1\nSECRET =", "line 2, column"},
		"the first version": {"[registries.search]\nregistries = ['a']", "version 1 of registries.conf"},
		"no tables":         {"registry = 'SECRET'", "registry: is not a list of tables"},
		"no table":          {"registry = ['SECRET']", "registry: is not a list of tables"},
		"no mirrors":        {"[[registry]]\nlocation = 'a'\nmirror = 'SECRET'", "registry a: mirror: is not a list"},
		"no boolean":        {"[[registry]]\nlocation = 'a'\ninsecure = 'SECRET'", "registry a: insecure: is not a boolean"},
		"no mirror's boolean": {"[[registry]]\nlocation = 'a'\n[[registry.mirror]]\nlocation = 'm'\ninsecure = 'SECRET'",
			"registry a: mirror m: insecure: is not a boolean"},
	} {
		conf, err := Parse([]byte(test.file))
		if err == nil {
			err = conf.Merge(nil)
		}
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestListsKeepTheirOrderWhereTheyCan(t *testing.T) {
	for _, test := range []struct{ lists, want string }{
		{"", ""},
		{"a", "a"},
		{"abc cde", "abcde"},
		{"cde abc", "abcde"},
		{"ac bc ab", "abc"},
		{"ab ba", "ab"},
		{"ba ab", "ba"},
		{"ab cd", "abcd"},
		{"ab bc ca", "abc"},
		{"x ab ba yx", "yxab"},
	} {
		var lists [][]string
		for list := range strings.FieldsSeq(test.lists) {
			lists = append(lists, strings.Split(list, ""))
		}
		if got := strings.Join(InOrder(lists), ""); got != test.want {
			t.Errorf("%s: got %s, want %s", test.lists, got, test.want)
		}
	}
}

func TestKeysAreReadInAnyCaseAsTheRuntimeReadsThem(t *testing.T) {
	conf, err := Parse([]byte("[[Registry]]\nLocation = 'a.example'\nINSECURE = true\nkept = 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	if !conf.Insecure("a.example/x") {
		t.Error("a.example is not insecure")
	}
	text, err := conf.Text()
	if want := "[[registry]]\ninsecure = true\nkept = 1\nlocation = 'a.example'\n"; err != nil || string(text) != want {
		t.Errorf("got %s, %v, want %s", text, err, want)
	}
	two := "[[registry]]\nlocation = 'a.example'\nmirror-by-digest-only = true\n[[Registry]]\nlocation = 'b.example'\n"
	if why := Unsafe([]byte(two), []byte(strings.Replace(two, "b.example", "c.example", 1))); why != "Registry changed" {
		t.Errorf("a second spelling of a key: %q", why)
	}
}
