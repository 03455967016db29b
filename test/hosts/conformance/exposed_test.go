// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Debian has /usr/local and /var/local as root:staff 2775. What a configuration has in such a directory is written; what
// only a link there leads to is left as it is, and the plan names it.
func TestPlacesThatAGroupCanWriteTo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give directories to groups")
	}
	for name, row := range map[string]struct {
		uid, gid int
		mode     os.FileMode
		followed bool
	}{
		"root's alone":               {0, 0, 0o755, true},
		"of a group that only reads": {0, 50, 0o755, true},
		"Debian's staff":             {0, 50, 0o775 | os.ModeSetgid, false},
		"of the group root":          {0, 0, 0o775, false},
		"of the world, sticky":       {0, 0, 0o777 | os.ModeSticky, false},
		"another user's":             {1000, 0, 0o755, false},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			tr.must(os.MkdirAll(tr.path("usr/local/bin"), 0o755))
			tr.must(os.MkdirAll(tr.path("usr/local/share/man"), 0o755))
			tr.must(os.Symlink("share/man", tr.path("usr/local/man")))
			tr.must(filepath.WalkDir(tr.path("usr/local"), func(at string, d os.DirEntry, err error) error {
				if err == nil {
					err = os.Lchown(at, row.uid, row.gid)
				}
				if err == nil && d.IsDir() {
					err = os.Chmod(at, row.mode)
				}
				return err
			}))
			direct := []part{withFile("/usr/local/bin/tool", "x", mode(0o755)), withDir("/usr/local/lib/d"),
				withLink("/usr/local/bin/link", "tool"), withFile("/etc/f", "1")}
			document := doc("a", append(slices.Clone(direct), withFile("/usr/local/man/page", "p"))...)

			var p planDoc
			r := tr.run("plan", "-o", "json", "--desired", tr.save(document)).ok(t)
			r.json(t, &p)
			text := tr.run("plan", "--desired", tr.save(document)).ok(t).stdout
			reason := "users other than root can write to /usr/local"
			if row.followed && (len(p.Left) > 0 || strings.Contains(text, reason)) {
				t.Errorf("the plan leaves %v:\n%s", p.Left, text)
			}
			if !row.followed && (len(p.Left) != 1 || p.Left[0].Path != "/usr/local/man/page" ||
				!strings.Contains(p.Left[0].Reason, reason) || !strings.Contains(text, reason)) {
				t.Errorf("the plan does not name what is left: %v\n%s", p.Left, text)
			}

			r = tr.apply(document)
			tr.has(map[string]string{"usr/local/bin/tool": "file 0755 0:0 x", "usr/local/lib/d": "dir 0755 0:0",
				"usr/local/bin/link": "link 0:0 -> tool", "etc/f": "file 0644 0:0 1"})
			_, drift := tr.verify()
			if row.followed {
				tr.has(map[string]string{"usr/local/share/man/page": "file 0644 0:0 p"})
				if len(drift.Drift) > 0 {
					t.Errorf("drift: %v", drift.lines())
				}
				return
			}
			tr.has(map[string]string{"usr/local/share/man/page": "absent"})
			if !strings.Contains(r.stderr, "/usr/local/man/page") || !strings.Contains(r.stderr, reason) {
				t.Errorf("apply does not name what is left:\n%s", r.stderr)
			}
			if got := drift.lines(); !slices.Equal(got, []string{"file /usr/local/man/page missing"}) {
				t.Errorf("drift: %v", got)
			}
			// What such a place has is let go of as well.
			tr.apply(doc("b", withFile("/etc/f", "1")))
			tr.has(map[string]string{"usr/local/bin/tool": "absent", "usr/local/bin/link": "absent"})
		})
	}
}
