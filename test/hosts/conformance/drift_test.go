// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/test/lab/snapshot"
)

// managed is a configuration with something of every kind that a tree can have.
func managed() []part {
	return []part{
		withFile("/etc/f", "secret of f", mode(0o600), obj{"user": obj{"name": "core"}}),
		withFile("/etc/deep/f", "1"),
		withDir("/etc/d", mode(0o750)),
		withLink("/etc/l", "/etc/f"),
		withLink("/etc/h", "/etc/deep/f", obj{"hard": true}),
		withUnit("a.service", contents(install), obj{"enabled": true}),
		withUnit("off.service", contents(install), obj{"enabled": false}),
		withUnit("m.service", obj{"mask": true}),
		withUnit("chronyd.service", obj{"enabled": true}, dropin("x.conf", "[Unit]\n")),
		withUnit("crio.service", dropin("none.conf", "")),
		withUser("core", obj{"passwordHash": "$6$secret", "sshAuthorizedKeys": []string{"ssh-rsa AAAA"}}),
	}
}

type driftTest struct {
	name   string
	meddle func(*tree)
	want   []string // kind, subject and what
}

func driftTests() []driftTest {
	const units, wants = "etc/systemd/system/", "etc/systemd/system/multi-user.target.wants/"
	const keys = "home/core/.ssh/authorized_keys.d/ignition"
	remove := func(path string) func(*tree) {
		return func(tr *tree) { tr.must(os.RemoveAll(tr.path(path))) }
	}
	return []driftTest{
		{"contents of a file", func(tr *tree) { tr.put("etc/f", "secret of drift", 0o600) }, []string{"file /etc/f contents"}},
		{"as many bytes", func(tr *tree) { tr.put("etc/f", "Secret of f", 0o600) }, []string{"file /etc/f contents"}},
		{"mode of a file", func(tr *tree) { tr.must(os.Chmod(tr.path("etc/f"), 0o644)) }, []string{"file /etc/f mode"}},
		{"owner of a file", func(tr *tree) { tr.must(os.Chown(tr.path("etc/f"), 12345, 0)) }, []string{"file /etc/f owner"}},
		{"group of a file", func(tr *tree) { tr.must(os.Chown(tr.path("etc/f"), 1000, 7)) }, []string{"file /etc/f owner"}},
		{"all of a file", func(tr *tree) {
			tr.put("etc/f", "x", 0o644)
			tr.must(os.Chown(tr.path("etc/f"), 1, 1))
		}, []string{"file /etc/f contents", "file /etc/f mode", "file /etc/f owner"}},
		{"a file goes", remove("etc/f"), []string{"file /etc/f missing"}},
		{"a file becomes a link", func(tr *tree) {
			remove("etc/f")(tr)
			tr.symlink("/etc/passwd", "etc/f")
		}, []string{"file /etc/f type"}},
		{"a file becomes a directory", func(tr *tree) {
			remove("etc/f")(tr)
			tr.must(os.Mkdir(tr.path("etc/f"), 0o755))
		}, []string{"file /etc/f type"}},
		{"the parent goes", func(tr *tree) {
			remove("etc/deep")(tr)
		}, []string{"file /etc/deep/f missing", "link /etc/h target"}},
		{"mode of a directory", func(tr *tree) { tr.must(os.Chmod(tr.path("etc/d"), 0o777)) }, []string{"directory /etc/d mode"}},
		{"a directory goes", remove("etc/d"), []string{"directory /etc/d missing"}},
		{"a link leads elsewhere", func(tr *tree) {
			remove("etc/l")(tr)
			tr.symlink("/etc/passwd", "etc/l")
		}, []string{"link /etc/l target"}},
		{"a link goes", remove("etc/l"), []string{"link /etc/l missing"}},
		{"a hard link is broken", func(tr *tree) {
			remove("etc/h")(tr)
			tr.put("etc/h", "1", 0o644)
		}, []string{"link /etc/h target"}},
		{"contents of a unit", func(tr *tree) { tr.put(units+"a.service", "# mine\n"+install, 0o644) }, []string{"unit a.service contents"}},
		{"mode of a unit", func(tr *tree) { tr.must(os.Chmod(tr.path(units+"a.service"), 0o600)) }, []string{"unit a.service mode"}},
		{"a unit goes", remove(units + "a.service"), []string{"unit a.service missing"}},
		{"a unit is disabled", remove(wants + "a.service"), []string{"unit a.service enabled"}},
		{"a unit without contents is disabled", remove(wants + "chronyd.service"), []string{"unit chronyd.service enabled"}},
		{"a unit is enabled", func(tr *tree) { tr.symlink("/etc/systemd/system/off.service", wants+"off.service") }, []string{"unit off.service enabled"}},
		{"a mask goes", remove(units + "m.service"), []string{"unit m.service masked"}},
		{"a unit is masked", func(tr *tree) {
			remove(units + "a.service")(tr)
			tr.symlink("/dev/null", units+"a.service")
		}, []string{"unit a.service type"}},
		{"contents of a drop-in", func(tr *tree) { tr.put(units+"chronyd.service.d/x.conf", "[Service]\n", 0o644) }, []string{"dropin chronyd.service/x.conf contents"}},
		{"a drop-in goes", remove(units + "chronyd.service.d"), []string{"dropin chronyd.service/x.conf missing"}},
		{"a drop-in that must not be", func(tr *tree) { tr.put(units+"crio.service.d/none.conf", "[Service]\n", 0o644) }, []string{"dropin crio.service/none.conf type"}},
		{"keys", func(tr *tree) { tr.put(keys, "ssh-rsa EVIL\n", 0o600) }, []string{"sshkeys core contents"}},
		{"mode of the keys", func(tr *tree) { tr.must(os.Chmod(tr.path(keys), 0o644)) }, []string{"sshkeys core mode"}},
		{"owner of the keys", func(tr *tree) { tr.must(os.Chown(tr.path(keys), 0, 0)) }, []string{"sshkeys core owner"}},
		{"the keys go", remove(keys), []string{"sshkeys core missing"}},
		{"password", func(tr *tree) {
			tr.put("etc/shadow", strings.Replace(tr.read("etc/shadow"), "core:$6$secret:", "core:$6$secret-other:", 1), 0)
		}, []string{"password core contents"}},
		{"the user's line goes", func(tr *tree) { tr.put("etc/shadow", "root:*:1::::::\n", 0) }, []string{"password core contents"}},
	}
}

// drifted is a tree whose times are past, with the configuration a and one kind of drift.
func drifted(t *testing.T, meddle func(*tree)) *tree {
	t.Helper()
	tr := newTree(t)
	tr.apply(doc("a", managed()...))
	tr.age()
	meddle(tr)
	return tr
}

func TestVerifyFindsDrift(t *testing.T) {
	for _, tt := range driftTests() {
		t.Run(tt.name, func(t *testing.T) {
			tr := drifted(t, tt.meddle)
			before := tr.all()
			r, d := tr.verify()
			subject := strings.Fields(tt.want[0])[1]
			r.is(t, 4, subject)
			if diff := cmp.Diff(tt.want, d.lines()); diff != "" || d.Config != "a" {
				t.Errorf("%s: drift (-should be, +is):\n%s", d.Config, diff)
			}
			for _, e := range d.Drift {
				if e.Expected == "" || e.Found == "" {
					t.Errorf("%+v does not say what was expected and found", e)
				}
			}
			text := tr.run("verify")
			if text.is(t, 4, subject); !strings.Contains(text.stdout, subject) {
				t.Errorf("%s is not named:\n%s", subject, text.stdout)
			}
			if strings.Contains(r.stdout+r.stderr+text.stdout+text.stderr, "ecret") {
				t.Errorf("contents are shown:\n%s%s%s", r.stdout, text.stdout, text.stderr)
			}
			tr.same(before, tr.all(), snapshot.Untouched)
		})
	}
}

func TestApplyOverwritesDriftAndKeepsIt(t *testing.T) {
	for _, tt := range driftTests() {
		t.Run(tt.name, func(t *testing.T) {
			tr := drifted(t, tt.meddle)
			kept := map[string]string{} // by path, the bytes of regular files that differ
			for _, path := range []string{"etc/f", "etc/systemd/system/a.service", "home/core/.ssh/authorized_keys.d/ignition"} {
				if strings.Contains(tt.want[0], "contents") && strings.HasPrefix(tr.what(path), "file") {
					kept[path] = tr.read(path)
				}
			}
			before := tr.take()

			config := tr.save(doc("a", managed()...))
			r := tr.run("apply", "--config", config, "--strict")
			subject := strings.Fields(tt.want[0])[1]
			r.is(t, 4, subject)
			tr.same(before, tr.take(), snapshot.Untouched)

			r = tr.run("apply", "--config", config, "-o", "json").ok(t)
			if !slices.ContainsFunc(r.lines("warning:"), func(l string) bool { return strings.Contains(l, subject) }) {
				t.Errorf("no warning names %s: %s", subject, r.stderr)
			}
			if strings.Contains(r.stdout+r.stderr, "ecret") {
				t.Errorf("contents are shown: %s%s", r.stdout, r.stderr)
			}
			tr.verified()
			tr.committed("a")
			all := tr.drifts()
			for path, text := range kept {
				if tr.read(path) != text && !slices.Contains(all, text) {
					t.Errorf("what stood at %s was not kept", path)
				}
			}
			state := tr.all()
			tr.run("apply", "--config", config, "--strict").ok(t)
			tr.same(state, tr.all(), snapshot.Untouched)
		})
	}
}

// drifts are the contents of all files that were kept of drift.
func (tr *tree) drifts() (all []string) {
	tr.Helper()
	err := filepath.WalkDir(tr.path("var/lib/machine-config-daemon/drift"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		all = append(all, string(data))
		return err
	})
	if !os.IsNotExist(err) {
		tr.must(err)
	}
	return all
}

func TestOnlyWhatDriftedIsWrittenAgain(t *testing.T) {
	tr := drifted(t, func(tr *tree) { tr.put("etc/f", "other", 0o600) })
	before := tr.take()
	tr.apply(doc("a", managed()...))
	for _, line := range snapshot.Diff(before, tr.take(), snapshot.Untouched) {
		if path, _, _ := strings.Cut(line, ":"); path != "etc" && path != "etc/f" {
			t.Error(line)
		}
	}
}

func TestDriftDoesNotStopAnUpdate(t *testing.T) {
	for name, next := range map[string][]part{
		"that changes the file":   {withFile("/etc/f", "2"), withFile("/etc/g", "1")},
		"that drops the file":     {withFile("/etc/g", "1")},
		"that leaves it as it is": {withFile("/etc/f", "1"), withFile("/etc/g", "2")},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			tr.apply(doc("a", withFile("/etc/f", "1"), withFile("/etc/g", "1")))
			tr.put("etc/f", "mine", 0o644)
			r := tr.tryApply(doc("b", next...), "--strict")
			r.is(t, 4, "/etc/f")
			tr.committed("a")
			r = tr.apply(doc("b", next...))
			if len(r.lines("warning:")) != 1 {
				t.Errorf("warnings: %s", r.stderr)
			}
			tr.committed("b")
			tr.verified()
			if !slices.Contains(tr.drifts(), "mine") {
				t.Errorf("what drifted was not kept: %q", tr.drifts())
			}
		})
	}
}

func TestDriftThatIsWhatTheNextConfigurationWants(t *testing.T) {
	tr := newTree(t)
	tr.apply(doc("a", withFile("/etc/f", "1")))
	tr.put("etc/f", "2", 0o644)
	before := tr.take()
	tr.settled("b", withFile("/etc/f", "2"))
	tr.same(before, tr.take(), snapshot.Untouched)
}

func TestRollbackHealsDrift(t *testing.T) {
	tr := newTree(t)
	tr.apply(doc("a", withFile("/etc/f", "1"), withFile("/etc/g", "1")))
	tr.apply(doc("b", withFile("/etc/f", "2"), withFile("/etc/g", "1")))
	tr.put("etc/g", "mine", 0o644)
	tr.run("rollback").ok(t)
	tr.has(map[string]string{"etc/f": "file 0644 0:0 1", "etc/g": "file 0644 0:0 1"})
	tr.committed("a")
	tr.verified()
}

func TestVerifyAgainstAFile(t *testing.T) {
	tr := newTree(t)
	tr.run("verify").is(t, 1, "--config")
	r, d := tr.verify("--config", tr.save(doc("x", withFile("/etc/f", "1"))))
	r.is(t, 4, "/etc/f")
	if diff := cmp.Diff([]string{"file /etc/f missing"}, d.lines()); diff != "" || d.Config != "x" {
		t.Errorf("%s: drift (-should be, +is):\n%s", d.Config, diff)
	}
	tr.put("etc/f", "1", 0o644)
	r, d = tr.verify("--config", tr.save(doc("x", withFile("/etc/f", "1"))))
	if r.is(t, 0); len(d.Drift) != 0 || !strings.Contains(r.stdout, `"drift": []`) {
		t.Errorf("%s", r.stdout)
	}
}

func TestWhatNobodyManagesIsNoDrift(t *testing.T) {
	tr := drifted(t, func(tr *tree) {
		tr.put("etc/theirs", "1", 0o644)
		tr.put("etc/d/theirs", "1", 0o644)
		tr.put("etc/systemd/system/a.service.d/theirs.conf", "[Unit]\n", 0o644)
		tr.put("home/core/.ssh/authorized_keys", "ssh-rsa MINE\n", 0o600)
		tr.symlink("/usr/lib/systemd/system/crio.service", "etc/systemd/system/multi-user.target.wants/crio.service")
		tr.put("etc/shadow", strings.Replace(tr.read("etc/shadow"), "chrony:!!:", "chrony:$6$mine:", 1), 0)
	})
	tr.verified()
	before := tr.take()
	tr.apply(doc("a", managed()...))
	tr.same(before, tr.take(), snapshot.Untouched)
}

// Where nothing says otherwise a repair does what an apply of the same does, but for the record.
func TestRepairWritesBackWhatDriftedAndKeepsIt(t *testing.T) {
	for _, tt := range driftTests() {
		t.Run(tt.name, func(t *testing.T) {
			tr := drifted(t, tt.meddle)
			kept := map[string]string{} // by path, the bytes of regular files that differ
			for _, path := range []string{"etc/f", "etc/systemd/system/a.service", "home/core/.ssh/authorized_keys.d/ignition"} {
				if strings.Contains(tt.want[0], "contents") && strings.HasPrefix(tr.what(path), "file") {
					kept[path] = tr.read(path)
				}
			}
			record := tr.read("var/lib/machine-config-daemon/boot.json")
			r := tr.run("repair", "--os", "none", "-o", "json").ok(t)
			if subject := strings.Fields(tt.want[0])[1]; !strings.Contains(r.stderr, "wrote back") ||
				!strings.Contains(r.stderr, subject) {
				t.Errorf("it does not say that it wrote back %s: %s", subject, r.stderr)
			}
			if strings.Contains(r.stdout+r.stderr, "ecret") {
				t.Errorf("contents are shown: %s%s", r.stdout, r.stderr)
			}
			tr.verified()
			tr.committed("a")
			if tr.read("var/lib/machine-config-daemon/boot.json") != record {
				t.Error("the record was touched: the host had the configuration all along")
			}
			all := tr.drifts()
			for path, text := range kept {
				if tr.read(path) != text && !slices.Contains(all, text) {
					t.Errorf("what stood at %s was not kept", path)
				}
			}
			state := tr.all()
			tr.run("repair", "--os", "none").ok(t)
			tr.run("apply", "--config", tr.save(doc("a", managed()...)), "--strict").ok(t)
			tr.same(state, tr.all(), snapshot.Untouched)
		})
	}
}

func TestRepairOfSomeThingsLeavesTheOthers(t *testing.T) {
	tr := drifted(t, func(tr *tree) {
		tr.put("etc/f", "mine", 0o600)
		tr.put("etc/deep/f", "mine", 0o644)
	})
	tr.run("repair", "--os", "none", "--only", "file /etc/none").ok(t)
	if tr.read("etc/f") != "mine" || tr.read("etc/deep/f") != "mine" {
		t.Error("something was written that nobody asked for")
	}
	tr.run("repair", "--os", "none", "--only", "file /etc/f").ok(t)
	if tr.read("etc/f") == "mine" || tr.read("etc/deep/f") != "mine" {
		t.Errorf("written back: %q, %q", tr.read("etc/f"), tr.read("etc/deep/f"))
	}
	newTree(t).run("repair", "--os", "none").is(t, 1, "no committed configuration")
}

// Upstream's word for "overwrite it, whatever you think".
func TestForceFileIsGoodForOnce(t *testing.T) {
	const force = "run/machine-config-daemon-force"
	tr := newTree(t)
	tr.apply(doc("a", withFile("/etc/f", "1"), withFile("/etc/g", "1")))
	tr.put("etc/f", "mine", 0o644)
	tr.put(force, "", 0o644)
	tr.tryApply(doc("b", withFile("/etc/f", "1"), withFile("/etc/g", "2")), "--strict").ok(t)
	tr.committed("b")
	tr.verified()
	if tr.what(force) != "" && !strings.HasPrefix(tr.what(force), "absent") {
		t.Errorf("the file is still there: %s", tr.what(force))
	}
	tr.put("etc/f", "mine", 0o644)
	tr.tryApply(doc("a", withFile("/etc/f", "1"), withFile("/etc/g", "1")), "--strict").is(t, 4, "/etc/f")
	tr.put(force, "", 0o644)
	tr.run("repair", "--os", "none").ok(t)
	tr.verified()
	if _, err := os.Lstat(tr.path(force)); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}

// What a head watches is what verify compares: whatever the drift, one of the paths, or its directory, is where it
// happened.
func TestVerifyNamesThePathsThatItCompares(t *testing.T) {
	tr := drifted(t, func(*tree) {})
	r := tr.run("verify", "--paths", "-o", "json").ok(t)
	for _, path := range []string{"/etc/f", "/etc/deep/f", "/etc/d", "/etc/l", "/etc/h", "/etc/systemd/system/a.service",
		"/etc/systemd/system/m.service", "/etc/systemd/system/*", "/etc/systemd/system/multi-user.target.wants/*",
		"/etc/systemd/system/chronyd.service.d/x.conf", "/etc/systemd/system/crio.service.d/none.conf",
		"/home/core/.ssh/authorized_keys.d/ignition", "/etc/shadow"} {
		if !strings.Contains(r.stdout, `"`+path+`"`) {
			t.Errorf("%s is not among them", path)
		}
	}
	if strings.Contains(r.stdout, "machine-config-daemon") {
		t.Errorf("the agent's own is among them: %s", r.stdout)
	}
	if r := tr.run("verify", "-o", "json").ok(t); strings.Contains(r.stdout, `"paths"`) {
		t.Error("they are there although nobody asked")
	}
}
