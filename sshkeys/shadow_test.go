// SPDX-License-Identifier: Apache-2.0

package sshkeys

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestShadowChangesOnlyWhatConfigurationsSay(t *testing.T) {
	hash := func(s string) *string { return &s }
	const (
		root = "root:$6$root:19000:0:99999:7:::\n"
		end  = "svc:*:19100::::::\n+garbage\n\nshort\n:nobody:\ncore2:$6$two:1::::::"
	)
	around := func(core string) string { return root + core + "\n" + end }
	keys := []string{"ssh-ed25519 A"}
	tests := []struct {
		name            string
		line            string // core's, before
		users, previous []User
		want            string // core's, after
		touched         bool
	}{
		{"a hash is set", "core:*:19500:0:99999:7:::", []User{{Name: "core", PasswordHash: hash("$y$new")}}, nil,
			"core:$y$new:19500:0:99999:7:::", true},
		{"the same hash", "core:$y$new:19500:0:99999:7:::", []User{{Name: "core", PasswordHash: hash("$y$new")}}, nil,
			"core:$y$new:19500:0:99999:7:::", false},
		{"a new hash unlocks", "core:!$y$old:19500::::::", []User{{Name: "core", PasswordHash: hash("$y$new")}}, nil,
			"core:$y$new:19500::::::", true},
		{"an empty hash is never an empty password", "core:$y$old:1::::::", []User{{Name: "core", PasswordHash: hash("")}}, nil,
			"core:*:1::::::", true},
		{"adding a key leaves a password that a person set", "core:$6$byhand:19500:0:99999:7:::",
			[]User{{Name: "core", Keys: keys}}, []User{{Name: "core"}}, "core:$6$byhand:19500:0:99999:7:::", false},
		{"a first key leaves a password that a person set", "core:$6$byhand:19500:0:99999:7:::",
			[]User{{Name: "core", Keys: keys}}, nil, "core:$6$byhand:19500:0:99999:7:::", false},
		{"even an empty one, of a user who stays", "core::19500:0:99999:7:::",
			[]User{{Name: "core", Keys: keys}}, []User{{Name: "core"}}, "core::19500:0:99999:7:::", false},
		{"a hash that goes away locks", "core:$y$old:1::::::", []User{{Name: "core"}}, []User{{Name: "core", PasswordHash: hash("$y$old")}},
			"core:!$y$old:1::::::", true},
		{"locked stays locked once", "core:!$y$old:1::::::", []User{{Name: "core"}}, []User{{Name: "core", PasswordHash: hash("$y$old")}},
			"core:!$y$old:1::::::", false},
		{"unusable stays", "core:*:1::::::", []User{{Name: "core"}}, []User{{Name: "core", PasswordHash: hash("")}},
			"core:*:1::::::", false},
		{"a removed user is locked", "core:$y$old:1::::::", nil, []User{{Name: "core", PasswordHash: hash("$y$old")}},
			"core:!$y$old:1::::::", true},
		{"a removed user's empty password is locked", "core::1::::::", nil, []User{{Name: "core", PasswordHash: hash("$y$old")}},
			"core:!:1::::::", true},
		{"even if it was never ours", "core::1::::::", nil, []User{{Name: "core", Keys: keys}}, "core:!:1::::::", true},
		{"a removed user's password that was never ours", "core:$6$byhand:1::::::", nil, []User{{Name: "core", Keys: keys}},
			"core:$6$byhand:1::::::", false},
		{"a line that ends early", "core:$y$old", []User{{Name: "core", PasswordHash: hash("$y$new")}}, nil, "core:$y$new", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := around(tt.line)
			current := []byte(before)
			got, touched, err := Shadow(current, tt.users, tt.previous)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(around(tt.want), string(got)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if slices.Contains(touched, "core") != tt.touched || len(touched) > 1 {
				t.Errorf("touched %v, want core: %v", touched, tt.touched)
			}
			if again, touched, err := Shadow(got, tt.users, nil); err != nil || len(touched) > 0 || !bytes.Equal(again, got) {
				t.Errorf("a second time touched %v: %v", touched, err)
			}
			if string(current) != before {
				t.Error("the input was changed")
			}
		})
	}
}

func TestShadowKnowsSeveralUsers(t *testing.T) {
	h := "$y$h"
	users := []User{{Name: "a", PasswordHash: &h}, {Name: "b", Keys: []string{"k"}}, {Name: "new", PasswordHash: &h}}
	previous := []User{{Name: "b", PasswordHash: &h}, {Name: "gone", PasswordHash: &h}, {Name: "ghost", PasswordHash: &h}}
	got, touched, err := Shadow([]byte("aa:x:1::::::\na:*:1::::::\nb:$y$h:2::::::\ngone:$y$h:3::::::"), users, previous)
	if err != nil {
		t.Fatal(err)
	}
	want := "aa:x:1::::::\na:$y$h:1::::::\nb:!$y$h:2::::::\ngone:!$y$h:3::::::\nnew:$y$h:::::::\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a", "b", "new", "gone"}, touched); diff != "" {
		t.Errorf("touched (-want +got)\n%s", diff)
	}
	if d := PasswordDrift(got, users); len(d) > 0 {
		t.Errorf("drift after setting: %v", d)
	}
	if diff := cmp.Diff([]string{"a", "new"}, PasswordDrift([]byte("a:*:1::::::\nb:x:1::::::\n"), users)); diff != "" {
		t.Errorf("drift (-want +got)\n%s", diff)
	}
}

func TestShadowErrorsNameTheUserAndNeverTheHash(t *testing.T) {
	for _, h := range []string{"$y$se:cret", "$y$secret\nroot2::0", "$y$secret\r"} {
		_, _, err := Shadow([]byte("core:*:1::::::\n"), []User{{Name: "core", PasswordHash: &h}}, nil)
		if err == nil || !strings.Contains(err.Error(), `"core"`) || strings.Contains(err.Error(), "$y$") {
			t.Errorf("%q: %v", h, err)
		}
		if d := PasswordDrift([]byte("core:"+h+":1::::::\n"), []User{{Name: "core", PasswordHash: &h}}); len(d) != 1 {
			t.Errorf("%q: a hash that can't be set is drift, got %v", h, d)
		}
	}
	h := "$y$h"
	for _, name := range []string{"", "a:b", "a\nb"} {
		if _, _, err := Shadow(nil, []User{{Name: name, PasswordHash: &h}}, nil); err == nil {
			t.Errorf("user %q was accepted", name)
		}
	}
}

func FuzzShadow(f *testing.F) {
	f.Add([]byte("root:*:1::::::\ncore:$y$h:2::::::\n"), "core", "$y$n", "core")
	f.Add([]byte("core::1\n\n:\ncore"), "x", "", "core")
	f.Add([]byte("a:b\r\nb"), "a", "h", "b")
	f.Fuzz(func(t *testing.T, current []byte, name, hash, left string) {
		users, previous := []User{{Name: name, PasswordHash: &hash}}, []User{{Name: left, PasswordHash: &hash}}
		before := bytes.Clone(current)
		got, touched, err := Shadow(current, users, previous)
		if !bytes.Equal(before, current) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			return
		}
		old, now := bytes.SplitAfter(current, []byte("\n")), bytes.SplitAfter(got, []byte("\n"))
		old = slices.DeleteFunc(old, func(l []byte) bool { return len(l) == 0 }) // what follows the last line's end
		for i, l := range old {
			who, _, record := bytes.Cut(l, []byte(":"))
			if record && slices.Contains(touched, string(who)) {
				continue
			}
			// A last line without an end may get one when a line is added.
			if i >= len(now) || !bytes.Equal(bytes.TrimSuffix(l, []byte("\n")), bytes.TrimSuffix(now[i], []byte("\n"))) {
				t.Fatalf("line %d %q is another's and has changed", i, l)
			}
		}
		for _, n := range touched {
			if i := find(now, n); i < 0 || password(now[i]) == "" {
				t.Fatalf("%q has no or an empty password", n)
			}
		}
		if d := PasswordDrift(got, users); len(d) > 0 {
			t.Fatalf("drift after setting: %v", d)
		}
	})
}
