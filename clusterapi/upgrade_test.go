// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"encoding/base64"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// formerDigest is the digest of files("2", "") in records of the first version, which was over the bytes of files.
const formerDigest = "57580305b0d135b6ce7813189e13e47a82c445379b17733e59d5e10808523e5d"

// upgraded is a stand whose record an older version of this program wrote, with changed bytes of the files where they
// are named.
func upgraded(t *testing.T, digest, content string) *stand {
	t.Helper()
	s := newStand(t)
	two := files("2", "")
	s.can(files("1", ""), two)
	s.update("m1", two, waits, "has the files")
	s.update("m2", two, waits, "renders")
	s.edit(func(r *record) { r.Digest = digest })
	mc := s.configs[prefix+"worker"]
	text := strings.ReplaceAll(string(mc.Spec.Config.Raw), base64.StdEncoding.EncodeToString([]byte("2\n")),
		base64.StdEncoding.EncodeToString([]byte(content)))
	mc.Spec.Config.Raw = []byte(text)
	return s
}

// edit changes the record as another version of this program would have written it.
func (s *stand) edit(change func(*record)) {
	s.t.Helper()
	mc := s.configs[prefix+"worker"]
	r, err := api.Decode[record](mc.Annotations, madeKey)
	if err != nil {
		s.t.Fatal(err)
	}
	change(&r)
	mc.Annotations[madeKey] = api.Encode(r)
}

// Machines that are on their way while this program is upgraded go on to their end, one after the other. What an older
// version noted and made of the contents does not have them wait for each other.
func TestAnUpgradeOfThisProgramStrandsNoMachine(t *testing.T) {
	for name, test := range map[string]struct{ digest, content string }{
		"the digest is over the bytes":                      {formerDigest, "2\n"},
		"the digest is over bytes of another making":        {strings.Repeat("0", 64), "2"},
		"the digest covers files that it does not any more": {"spec:" + strings.Repeat("0", 64), "2\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := upgraded(t, test.digest, test.content)
			two, three := files("2", ""), files("3", "")
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
		})
	}
}

// What was refused before an upgrade is refused after it: a machine that was passed by takes no pool back.
func TestAnUpgradeOfThisProgramForgetsNoRefusal(t *testing.T) {
	two, three := files("2", ""), files("3", "")
	t.Run("of a node that was passed by", func(t *testing.T) {
		s := upgraded(t, formerDigest, "2\n")
		s.rolls()
		for i := range s.nodes {
			s.nodes[i].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse,
				Message: "dead", LastTransitionTime: metav1.Unix(1, 0)}}
		}
		s.update("m2", three, waits, "has the files")
		s.edit(func(r *record) { r.Refused = []refusal{{Digest: formerDigest, Node: "node-m1"}} })
		s.update("m1", two, failed, "gone on to other files without node node-m1")
		if out := s.can(three, two); out.BootstrapConfigTemplatePatch == nil {
			t.Fatalf("%+v", out)
		}
		s.update("m1", two, waits, "")
	})
	t.Run("of files that failed", func(t *testing.T) {
		s := upgraded(t, formerDigest, "2\n")
		config := s.rolls()
		s.quarantines(config)
		s.edit(func(r *record) {
			r.Digest, r.Asked, r.Refused = "", nil, []refusal{{Digest: formerDigest, Config: config}}
		})
		s.update("m1", two, failed, "failed on node node-m1")
	})
}

// Records keep digests, so a digest has to be the same in all versions. Where it has to change here, way changes too.
func TestADigestStays(t *testing.T) {
	appends := false
	all := []file{
		{Path: "/etc/b", Owner: "root:root", Append: &appends, Content: "b"},
		{Path: "/etc/a", Permissions: "0755", Encoding: "base64", Content: "YQ=="},
		{Path: "/etc/key", Permissions: "0600", Content: "a secret"},
		{Path: "/etc/other", Owner: "etcd", Content: "not in place"},
	}
	_, _, got := expressed(all)
	if want := "spec:a8210d6b09f8a4a4670d1dc5c105dc7c1893a7cdf91982e4dd63594bf0d8d1b4"; got != want {
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
