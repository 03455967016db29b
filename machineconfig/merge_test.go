// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_6"
	"github.com/coreos/ignition/v2/config/v3_6/types"
	"github.com/google/go-cmp/cmp"
)

func doc(name, rest string) *Document {
	mc := withConfig("3.4.0", rest)
	mc.Name = name
	return &Document{Object: mc}
}

func mustMerge(t testing.TB, docs ...*Document) *Config {
	t.Helper()
	c, _, err := Merge("p", docs, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestMergesAsIgnitionDoes compares with Ignition's own merge of one document after the other, which is slower, for
// documents that collide in every kind of entry. Files have their contents as a whole in each document, the one point
// in which this project differs on purpose.
func TestMergesAsIgnitionDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	for round := range 300 {
		var docs []*Document
		for i := range 2 + r.IntN(5) {
			var lists [3][]string
			for _, path := range []string{"/a", "/b", "/c"} {
				owner := pick("", `,"user":{"id":1}`, `,"group":{"name":"g"}`, `,"user":{"id":2},"group":{"name":"h"}`)
				switch r.IntN(5) {
				case 0:
					lists[0] = append(lists[0], fmt.Sprintf(`{"path":%q,"contents":{"source":"data:,%d"}%s%s}`, path, i, owner, pick("", `,"mode":384`, `,"overwrite":false`)))
				case 1:
					lists[1] = append(lists[1], fmt.Sprintf(`{"path":%q%s%s}`, path, owner, pick("", `,"mode":448`)))
				case 2:
					lists[2] = append(lists[2], fmt.Sprintf(`{"path":%q,"target":"/t%d"%s}`, path, i, pick("", `,"overwrite":true`)))
				}
			}
			rest := fmt.Sprintf(`,"storage":{"files":[%s],"directories":[%s],"links":[%s],"disks":[{"device":"/dev/%s","wipeTable":true}]}`,
				strings.Join(lists[0], ","), strings.Join(lists[1], ","), strings.Join(lists[2], ","), pick("a", "b"))
			rest += units(fmt.Sprintf(`{"name":"%s.service"%s%s,"dropins":[{"name":"%s.conf","contents":"[Unit]\n#%d"}]}`, pick("a", "b"),
				pick("", `,"enabled":true`, `,"enabled":false`, `,"mask":true`), pick("", fmt.Sprintf(`,"contents":"[Unit]\n#%d"`, i)), pick("x", "y"), i))
			rest += fmt.Sprintf(`,"passwd":{"groups":[{"name":"g%d"}],"users":[{"name":%q,"sshAuthorizedKeys":[%q]%s}]}`, r.IntN(2), pick("core", "admin"), pick("k", "l"), pick("", `,"passwordHash":"h"`, `,"shell":"/bin/sh"`))
			docs = append(docs, doc(fmt.Sprintf("%02d", i), rest))
		}
		var parts []*parsed
		var want types.Config
		for _, d := range docs {
			p, _, err := d.parse(offered)
			if err != nil {
				t.Fatal(err)
			}
			parts = append(parts, p)
			want = v3_6.Merge(want, p.cfg)
		}
		got := merge(parts)
		// Ignition's outcome in the canonical order, by the same means.
		order := accumulator{
			files: map[string]types.File{}, dirs: map[string]types.Directory{}, links: map[string]types.Link{},
			units: map[string]types.Unit{}, users: map[string]types.PasswdUser{}, contents: contents{},
		}
		order.add(&parsed{cfg: want})
		if diff := cmp.Diff(order.result().cfg, got.cfg); diff != "" {
			t.Fatalf("round %d: %s", round, diff)
		}
	}
}

func TestMergeNamesCulprits(t *testing.T) {
	devel, realtime := doc("30-devel", ""), doc("40-realtime", "")
	devel.Object.Spec.Extensions = []string{"kernel-devel"}
	realtime.Object.Spec.KernelType = KernelRealtime
	tests := []struct {
		name string
		docs []*Document
		want []string
	}{
		{"extension and kernel", []*Document{devel, realtime}, []string{"spec.extensions[0]", "30-devel", "40-realtime"}},
		{"file below another's link", []*Document{
			doc("30-link", `,"storage":{"links":[{"path":"/a","target":"/b"}]}`), doc("40-file", files(`{"path":"/a/c"}`)),
		}, []string{"spec.config.storage.files[0]", "/a/c", "30-link", "40-file"}},
		{"file below another's file", []*Document{
			doc("30-file", files(`{"path":"/a"}`)), doc("40-file", files(`{"path":"/a/c"}`)),
		}, []string{"spec.config.storage.files[1].path", "/a/c", "30-file", "40-file"}},
		{"unit and file", []*Document{
			doc("30-unit", units(`{"name":"a.service","contents":"[Unit]\n"}`)), doc("40-file", files(`{"path":"/etc/systemd/system/a.service"}`)),
		}, []string{"a.service", "30-unit", "40-file"}},
		{"owner by id and by name", []*Document{
			doc("30-id", files(`{"path":"/a","user":{"id":1}}`)), doc("40-name", files(`{"path":"/a","user":{"name":"u"}}`)),
		}, []string{"spec.config.storage.files[0].user", "/a", "30-id", "40-name"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			docs := append([]*Document{doc("00-fine", files(`{"path":"/x"}`)), doc("35-fine", "")}, tt.docs...)
			docs = append(docs, doc("99-fine", files(`{"path":"/y"}`)))
			_, _, err := Merge("p", docs, nil)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			if strings.Contains(err.Error(), "-fine") {
				t.Errorf("names an innocent document: %v", err)
			}
		})
	}
}

func TestMergeTakesContentsAsAWhole(t *testing.T) {
	low := doc("1", files(`{"path":"/a","mode":384,"contents":{"source":"data:;base64,`+gzippedZ+`","compression":"gzip"}}`))
	if c := mustMerge(t, low, doc("2", files(`{"path":"/a","contents":{"source":"data:,plain"}}`))); string(c.Files[0].Contents) != "plain" || c.Files[0].Mode != 0o600 {
		t.Errorf("higher contents: %q, mode %o", c.Files[0].Contents, c.Files[0].Mode)
	}
	if c := mustMerge(t, low, doc("2", files(`{"path":"/a","mode":420,"contents":{"compression":""}}`))); string(c.Files[0].Contents) != "z" || c.Files[0].Mode != 0o644 {
		t.Errorf("higher mode alone: %q, mode %o", c.Files[0].Contents, c.Files[0].Mode)
	}
}

func TestMergeOfFilesWithoutContents(t *testing.T) {
	bare, full := files(`{"path":"/a","mode":384}`), files(`{"path":"/a","contents":{"source":"data:,z"}}`)
	for _, tt := range []struct {
		name, low, high string
		none            bool
	}{
		{"contents come later", bare, full, false},
		{"contents stay under another mode", full, bare, false},
		{"neither has any", bare, files(`{"path":"/a","mode":416}`), true},
	} {
		c := mustMerge(t, doc("1", tt.low), doc("2", tt.high))
		again := mustParse(t, c.Object)
		if c.Files[0].NoContents != tt.none || again.Digest != c.Digest {
			t.Errorf("%s: no contents: %t, digest %s, read back %s", tt.name, c.Files[0].NoContents, c.Digest, again.Digest)
		}
	}
	one, other := mustMerge(t, doc("1", bare)), mustMerge(t, doc("1", files(`{"path":"/a","mode":384,"contents":{"source":"data:,"}}`)))
	if one.Name == other.Name {
		t.Errorf("an empty file and one without contents are both %s", one.Name)
	}
}

func TestMergeWritesTheVersionThatIsNeeded(t *testing.T) {
	newest := doc("2", "")
	newest.Object.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.6.0"},"storage":{"directories":[{"path":"/t","mode":1023}]}}`)
	for want, docs := range map[string][]*Document{"3.5.0": {doc("1", "")}, "3.6.0": {doc("1", ""), newest}} {
		c := mustMerge(t, docs...)
		if !strings.Contains(string(c.Object.Spec.Config.Raw), `"version":"`+want+`"`) {
			t.Errorf("should be %s: %s", want, c.Object.Spec.Config.Raw)
		}
		if again := mustParse(t, c.Object); again.Digest != c.Digest {
			t.Errorf("%s: digest %s became %s", want, c.Digest, again.Digest)
		}
	}
}

func TestMergeRefusesWhatCannotBeStored(t *testing.T) {
	big := func(name string, n int) *Document {
		return doc(name, files(fmt.Sprintf(`{"path":"/%s","contents":{"source":"data:,%s"}}`, name, strings.Repeat("x", n))))
	}
	_, warnings, err := Merge("p", []*Document{big("a", 1_300_000)}, nil)
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "82 %") {
		t.Errorf("near the limit: %q, %v", warnings, err)
	}
	_, _, err = Merge("p", []*Document{big("a", 900_000), big("b", 800_000)}, nil)
	if err == nil || !strings.Contains(err.Error(), "1572864") || !strings.Contains(err.Error(), "MachineConfig/a") {
		t.Errorf("beyond the limit: %v", err)
	}
}
