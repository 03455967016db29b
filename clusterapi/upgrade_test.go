// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/api"
)

// edit changes the record as another version of this program would have written it.
func (s *stand) edit(change func(*record)) {
	s.t.Helper()
	mc := s.configs[prefix+"worker"]
	r, err := api.Decode[record](mc.Annotations, api.ClusterAPIKey)
	if err != nil {
		s.t.Fatal(err)
	}
	change(&r)
	mc.Annotations[api.ClusterAPIKey] = api.Encode(r)
}

// Machines that are on their way while this program is upgraded go on to their end, one after the other, though a
// version that took other files made another digest of them.
func TestAnUpgradeOfThisProgramStrandsNoMachine(t *testing.T) {
	s := newStand(t)
	two, three := files("2", ""), files("3", "")
	s.can(files("1", ""), two)
	s.update("m1", two, waits, "has the files")
	s.update("m2", two, waits, "renders")
	s.edit(func(r *record) { r.Digest = strings.Repeat("0", 64) })
	s.rolls()
	s.update("m1", two, waits, "")
	s.update("m2", two, waits, "")
	s.has(map[string]string{"/etc/a": "2"})
	name := s.rolls(0)
	s.update("m2", two, waits, "node node-m2: ")
	s.update("m1", two, done, "node-m1 has the files")
	s.update("m1", three, waits, "the machine of node node-m2 is not told yet") // the template went on
	s.moves(1, name, api.Done)
	s.update("m2", two, done, "node-m2 has the files")
	s.update("m1", three, waits, "has the files")
	s.has(map[string]string{"/etc/a": "3"})
}

// Records keep digests, so a digest has to be the same in all versions.
func TestADigestStays(t *testing.T) {
	appends := false
	all := []file{
		{Path: "/etc/b", Owner: "root:root", Append: &appends, Content: "b"},
		{Path: "/etc/a", Permissions: "0755", Encoding: "base64", Content: "YQ=="},
		{Path: "/etc/key", Permissions: "0600", Content: "a secret"},
		{Path: "/etc/other", Owner: "etcd", Content: "not in place"},
	}
	_, _, got := expressed(all)
	if want := "a8210d6b09f8a4a4670d1dc5c105dc7c1893a7cdf91982e4dd63594bf0d8d1b4"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	all[0].Owner, all[0].Append, all[2].Content = "", nil, "another"
	if _, _, same := expressed([]file{all[1], all[0], all[3], all[2]}); same != got {
		t.Errorf("the same files otherwise said: %s, want %s", same, got)
	}
	all[0].Content = "c"
	if _, _, other := expressed(all); other == got {
		t.Error("other files have the same digest")
	}
}
