// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/lab/snapshot"
)

// spoilCopy makes the host's copy of the committed configuration unreadable, and returns its path on the host.
func (tr *tree) spoilCopy(name string, how func(at string) error) string {
	tr.Helper()
	all, err := filepath.Glob(tr.path("var/lib/machine-config-daemon/configs/*.json"))
	tr.must(err)
	for _, at := range all {
		data, err := os.ReadFile(at)
		tr.must(err)
		if strings.Contains(string(data), `"name":"`+name+`"`) {
			tr.must(how(at))
			return strings.TrimPrefix(at, tr.root)
		}
	}
	tr.Fatalf("no copy of %s among %v", name, all)
	return ""
}

// A copy of the committed configuration that can't be read is said so by each command, with the file and what to do, and
// an apply of the same configuration writes it anew.
func TestAnUnreadableCopyOfTheConfigurationIsNamed(t *testing.T) {
	for name, how := range map[string]func(at string) error{
		"gone":       os.Remove,
		"cut off":    func(at string) error { return os.Truncate(at, 20) },
		"no JSON":    func(at string) error { return os.WriteFile(at, []byte("x"), 0o600) },
		"of another": func(at string) error { return os.WriteFile(at, []byte(doc("b")), 0o600) },
		"a link":     func(at string) error { return errors.Join(os.Remove(at), os.Symlink("/etc/nowhere", at)) },
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			tr.apply(doc("a", withFile("/etc/only-a", "1"), withFile("/etc/both", "2")))
			tr.apply(doc("b", withFile("/etc/only-b", "1"), withFile("/etc/both", "2")))
			b := doc("b", withFile("/etc/only-b", "1"), withFile("/etc/both", "2"))
			c := doc("c", withFile("/etc/both", "2"))
			at := tr.spoilCopy("b", how)
			named := func(what, text string) {
				t.Helper()
				for _, says := range []string{at, "gone or damaged", "apply b again"} {
					if !strings.Contains(strings.Join(strings.Fields(text), " "), says) {
						t.Errorf("%s does not say %q:\n%s", what, says, text)
					}
				}
				if strings.Contains(text, "never configured") {
					t.Errorf("%s takes the host for one that was never configured:\n%s", what, text)
				}
			}
			before := tr.all()
			named("plan", tr.run("plan", "--desired", tr.save(c)).ok(t).stdout)
			var p planDoc
			tr.run("plan", "--desired", tr.save(c), "-o", "json").ok(t).json(t, &p)
			if p.Current != "b" {
				t.Errorf("current is %q", p.Current)
			}
			named("plan -o json", p.Unread)
			s := tr.status()
			if s.Config.Committed != "b" || s.State != "Degraded" {
				t.Errorf("status: %+v", s)
			}
			named("status", s.Reason)
			for _, verb := range []string{"verify", "repair"} {
				r := tr.run(verb)
				r.is(t, 1)
				named(verb, r.stderr)
			}
			tr.same(before, tr.all(), snapshot.Content)
			// Another configuration is reached, and what the one before had stays, which is told.
			r := tr.tryApply(c)
			r.is(t, 0)
			named("apply", r.stderr+r.stdout)
			if !strings.Contains(r.stderr, "stays on the host") {
				t.Errorf("apply says nothing of what stays:\n%s", r.stderr)
			}
			tr.committed("c")
			tr.verified()
			// The same one heals the copy, and knows what it had.
			tr = newTree(t)
			tr.apply(b)
			tr.spoilCopy("b", how)
			tr.apply(b)
			tr.committed("b")
			tr.verified()
			tr.apply(c)
			if tr.what("etc/only-b") != "absent" {
				t.Error("what b had and c has not stays, though b was applied again")
			}
		})
	}
}

// An agent of before accepted a field that does not exist in the place of a file's contents. What a host has committed
// so stays readable, and a new document with it is refused.
func TestWhatAFormerAgentAcceptedStaysReadable(t *testing.T) {
	tr := newTree(t)
	tr.apply(doc("a", withFile("/etc/only-a", "1")))
	tr.apply(doc("b", listed("storage", "files", obj{"path": "/etc/only-b", "mode": 0o600})))
	// The same content, as the former agent kept it.
	entry := obj{"path": "/etc/only-b", "mode": 0o600, "contents": obj{"inline": "x"}}
	b := doc("b", listed("storage", "files", entry))
	tr.spoilCopy("b", func(at string) error { return os.WriteFile(at, []byte(b), 0o600) })
	if s := tr.status(); s.Config.Committed != "b" || s.State != "Done" {
		t.Errorf("status: %+v", s)
	}
	tr.verified()
	var p planDoc
	c := tr.save(doc("c", withFile("/etc/only-c", "1")))
	tr.run("plan", "--desired", c, "-o", "json").ok(t).json(t, &p)
	if p.Current != "b" || p.Unread != "" {
		t.Errorf("plan: from %q, unread %q", p.Current, p.Unread)
	}
	for _, args := range [][]string{{"plan", "--desired", tr.save(b)}, {"apply", "--config", tr.save(b)}} {
		if r := tr.run(args[0], args[1:]...); r.code != 1 || !strings.Contains(r.stderr, "inline is a field of Butane") {
			t.Errorf("%q: exit code %d: %s", args, r.code, r.stderr)
		}
	}
	tr.run("rollback").ok(t)
	tr.committed("a")
	tr.verified()
	if tr.what("etc/only-b") != "absent" {
		t.Error("rollback leaves what b had")
	}
}
