// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Written by ostree 2025.2.
func TestLockIsReadFromTheStateOfWhatIsStaged(t *testing.T) {
	for _, c := range []struct {
		file   string
		legacy bool
		want   bool
	}{
		{"", false, false},
		{"", true, false},
		{"rpm-staged", false, false},
		{"rpm-staged", true, true},
		{"rpm-staged-locked", false, true},
		{"rpm-staged-unlocked", false, false},
	} {
		files := map[string]string{}
		if c.file != "" {
			state, err := os.ReadFile("testdata/" + c.file)
			if err != nil {
				t.Fatal(err)
			}
			files[StagedState] = string(state)
		}
		if c.legacy {
			files[StagedLock] = " "
		}
		if got, err := StagedLocked(hostTree(t, files)); got != c.want || err != nil {
			t.Errorf("%+v: locked %v, %v", c, got, err)
		}
	}
}

func FuzzStagedState(f *testing.F) {
	for _, name := range []string{"rpm-staged", "rpm-staged-locked", "rpm-staged-unlocked", "staged-extra"} {
		state, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(state)
	}
	f.Fuzz(func(t *testing.T, state []byte) {
		entries, err := readDictionary(state)
		if err != nil && len(entries) > 0 {
			t.Errorf("%q gave %v and %v", state, entries, err)
		}
		for key, value := range entries {
			if pairs, err := readPairs(value); err != nil && len(pairs) > 0 {
				t.Errorf("%q gave %v and %v", value.value, pairs, err)
			}
			if strings.Contains(value.kind, "\x00") || len(key)+len(value.kind)+len(value.value) > len(state) {
				t.Errorf("%q gave %q: %+v", state, key, value)
			}
		}
	})
}

func TestStringsOfAStagedDeploymentAreRead(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, c := range []struct {
		value string
		want  []string
	}{
		{"", nil},
		{"a\x00bc=d\x00\x02\x07", []string{"a", "bc=d"}},
		{"\x00\x01", []string{""}},
		{long + "\x00\x2d\x01", []string{long}},
	} {
		if got, err := readStrings(variant{kind: "as", value: []byte(c.value)}); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, %v", c.value, got, err)
		}
	}
	for _, bad := range []string{"a", "a\x00\x09", "a\x00b\x00\x03\x02", "ab\x02"} {
		if got, err := readStrings(variant{kind: "as", value: []byte(bad)}); err == nil {
			t.Errorf("%q: %q", bad, got)
		}
	}
	if got, err := readStrings(variant{kind: "s", value: []byte("a\x00")}); err == nil {
		t.Errorf("%q", got)
	}
}
