// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/lab/snapshot"
)

// taken is one kind of thing that a configuration can take over from an admin.
type taken struct {
	name            string
	want, wantOther []part         // what the first configuration asks for, and what the second one asks for
	same, other     func(tr *tree) // the admin's own: exactly as want asks for it, and differing from it
	lockedPassword  bool           // after letting go the password is locked, whatever it was before
	subject         string         // of the change that a plan has for want
	nothing         bool           // identical is that nothing is there, and a plan has no word for that
	stays           bool           // bytes that a configuration wrote stay when the next one does not speak of them
}

const (
	unitsDir  = "etc/systemd/system/"
	chronyd   = unitsDir + "multi-user.target.wants/chronyd.service"
	nopreset  = unitsDir + "multi-user.target.wants/nopreset.service"
	coreKeys  = "home/core/.ssh/authorized_keys.d/ignition"
	adminUnit = "[Service]\nExecStart=/bin/echo admin\n[Install]\nWantedBy=graphical.target\n"
)

func takenKinds() []taken {
	on, off := obj{"enabled": true}, obj{"enabled": false}
	keys := func(k string) obj { return obj{"sshAuthorizedKeys": []string{k}} }
	hash := func(h string) obj { return obj{"passwordHash": h} }
	shadow := func(h string) func(*tree) {
		return func(tr *tree) {
			tr.put("etc/shadow", strings.Replace(tr.read("etc/shadow"), "core:!!:", "core:"+h+":", 1), 0)
		}
	}
	keyFile := func(text string) func(*tree) {
		return func(tr *tree) {
			tr.put(coreKeys, text, 0o600)
			for _, p := range []string{coreKeys, filepath.Dir(coreKeys), filepath.Dir(filepath.Dir(coreKeys))} {
				tr.must(os.Chown(tr.path(p), 1000, 1001))
			}
			tr.must(os.Chmod(tr.path(filepath.Dir(coreKeys)), 0o700))
			tr.must(os.Chmod(tr.path(filepath.Dir(filepath.Dir(coreKeys))), 0o700))
		}
	}
	link := func(target, name string) func(*tree) { return func(tr *tree) { tr.symlink(target, name) } }
	put := func(name, text string, perm os.FileMode) func(*tree) {
		return func(tr *tree) { tr.put(name, text, perm) }
	}
	dir := func(name string, perm os.FileMode) func(*tree) {
		return func(tr *tree) { tr.must(os.MkdirAll(tr.path(name), perm)); tr.must(os.Chmod(tr.path(name), perm)) }
	}
	both := func(all ...func(*tree)) func(*tree) {
		return func(tr *tree) {
			for _, f := range all {
				f(tr)
			}
		}
	}
	return []taken{
		{name: "file", subject: "file /etc/motd",
			want: []part{withFile("/etc/motd", "text", mode(0o640))}, wantOther: []part{withFile("/etc/motd", "other")},
			same: put("etc/motd", "text", 0o640), other: put("etc/motd", "admin's", 0o600)},
		{name: "file that differs in its mode alone", subject: "file /etc/motd",
			want: []part{withFile("/etc/motd", "text", mode(0o640))}, wantOther: []part{withFile("/etc/motd", "text", mode(0o644))},
			same: put("etc/motd", "text", 0o640), other: put("etc/motd", "text", 0o600)},
		{name: "file outside of /etc", subject: "file /var/lib/x/f",
			want: []part{withFile("/var/lib/x/f", "text")}, wantOther: []part{withFile("/var/lib/x/f", "other")},
			same: put("var/lib/x/f", "text", 0o644), other: put("var/lib/x/f", "admin's", 0o600)},
		{name: "file without contents", subject: "file /etc/motd", stays: true,
			want: []part{withFile("/etc/motd", "", mode(0o640), obj{"contents": obj{}})}, wantOther: []part{withFile("/etc/motd", "other")},
			same: put("etc/motd", "admin's", 0o640), other: put("etc/motd", "admin's", 0o600)},
		{name: "link", subject: "link /etc/l",
			want: []part{withLink("/etc/l", "/x")}, wantOther: []part{withLink("/etc/l", "/y")},
			same: link("/x", "etc/l"), other: link("/admin", "etc/l")},
		{name: "hard link", subject: "link /etc/h",
			want: []part{withLink("/etc/h", "/etc/passwd", obj{"hard": true})}, wantOther: []part{withFile("/etc/h", "other")},
			same: func(tr *tree) { tr.must(os.Link(tr.path("etc/passwd"), tr.path("etc/h"))) }, other: put("etc/h", "admin's", 0o600)},
		{name: "unit", subject: "unit a.service",
			want:      []part{withUnit("a.service", contents("[Service]\nExecStart=/bin/true\n"))},
			wantOther: []part{withUnit("a.service", contents("[Service]\nExecStart=/bin/false\n"))},
			same:      put(unitsDir+"a.service", "[Service]\nExecStart=/bin/true\n", 0o644), other: put(unitsDir+"a.service", adminUnit, 0o600)},
		{name: "masked unit", subject: "unit chronyd.service",
			want: []part{withUnit("chronyd.service", obj{"mask": true})}, wantOther: []part{withUnit("chronyd.service", contents("[Service]\nExecStart=/bin/false\n"))},
			same: link("/dev/null", unitsDir+"chronyd.service"), other: put(unitsDir+"chronyd.service", adminUnit, 0o600)},
		{name: "mask that must go", subject: "unit chronyd.service",
			want: []part{withUnit("chronyd.service", obj{"mask": false})}, wantOther: []part{withUnit("chronyd.service", obj{"mask": false})},
			same: link("/usr/lib/systemd/system/chronyd.service", chronyd), other: link("/dev/null", unitsDir+"chronyd.service")},
		{name: "dropin", subject: "dropin a.service/x.conf",
			want: []part{withUnit("a.service", dropin("x.conf", "[Unit]\nA=1\n"))}, wantOther: []part{withUnit("a.service", dropin("x.conf", "[Unit]\nA=2\n"))},
			same: put(unitsDir+"a.service.d/x.conf", "[Unit]\nA=1\n", 0o644), other: put(unitsDir+"a.service.d/x.conf", "[Unit]\nA=admin\n", 0o600)},
		{name: "dropin that must go", subject: "dropin a.service/x.conf", nothing: true,
			want: []part{withUnit("a.service", dropin("x.conf", ""))}, wantOther: []part{withUnit("a.service", dropin("x.conf", "[Unit]\nA=2\n"))},
			same: func(*tree) {}, other: put(unitsDir+"a.service.d/x.conf", "[Unit]\nA=admin\n", 0o600)},
		{name: "directory", subject: "directory /etc/d",
			want: []part{withDir("/etc/d", mode(0o750))}, wantOther: []part{withDir("/etc/d", mode(0o711))},
			same: dir("etc/d", 0o750), other: dir("etc/d", 0o700)},
		{name: "enablement of a unit that the presets disable", subject: "unit nopreset.service",
			want: []part{withUnit("nopreset.service", on)}, wantOther: []part{withUnit("nopreset.service", off)},
			same: link("/usr/lib/systemd/system/nopreset.service", nopreset), other: link("/usr/lib/systemd/system/nopreset.service",
				unitsDir+"graphical.target.wants/nopreset.service")},
		{name: "enablement of a unit that the presets enable", subject: "unit chronyd.service",
			want: []part{withUnit("chronyd.service", on)}, wantOther: []part{withUnit("chronyd.service", off)},
			same: link("/usr/lib/systemd/system/chronyd.service", chronyd), other: link("../chronyd.service",
				unitsDir+"default.target.requires/chronyd.service")},
		{name: "disablement", subject: "unit chronyd.service", nothing: true,
			want: []part{withUnit("chronyd.service", off)}, wantOther: []part{withUnit("chronyd.service", on)},
			same: func(*tree) {}, other: link("/usr/lib/systemd/system/chronyd.service", chronyd)},
		{name: "enablement by a preset", subject: "dropin chronyd.service/x.conf",
			want:      []part{withUnit("chronyd.service", dropin("x.conf", "[Unit]\nA=1\n"))},
			wantOther: []part{withUnit("chronyd.service", dropin("x.conf", "[Unit]\nA=1\n"), off)},
			same:      both(put(unitsDir+"chronyd.service.d/x.conf", "[Unit]\nA=1\n", 0o644), link("/usr/lib/systemd/system/chronyd.service", chronyd)),
			other:     link("/usr/lib/systemd/system/chronyd.service", unitsDir+"graphical.target.wants/chronyd.service")},
		{name: "enabled unit of an admin's", subject: "unit a.service",
			want: []part{withUnit("a.service", contents(install), on)}, wantOther: []part{withUnit("a.service", contents("#\n"+install), off)},
			same:  both(put(unitsDir+"a.service", install, 0o644), link("/etc/systemd/system/a.service", unitsDir+"multi-user.target.wants/a.service")),
			other: both(put(unitsDir+"a.service", adminUnit, 0o640), link("../a.service", unitsDir+"graphical.target.wants/a.service"))},
		{name: "key", subject: "sshkeys core",
			want: []part{withUser("core", keys("ssh-ed25519 A"))}, wantOther: []part{withUser("core", keys("ssh-ed25519 B"))},
			same: keyFile("ssh-ed25519 A\n"), other: keyFile("ssh-ed25519 admin\n")},
		{name: "password", subject: "password core", lockedPassword: true,
			want: []part{withUser("core", hash("$6$a"))}, wantOther: []part{withUser("core", hash("$6$b"))},
			same: shadow("$6$a"), other: shadow("$6$admin")},
	}
}

// ways are how a host comes to be without what a configuration had taken over.
var ways = []struct {
	name string
	walk func(tr *tree, k taken)
}{
	{"let go", func(tr *tree, k taken) {
		tr.apply(doc("with", k.want...))
		tr.apply(doc("without", withFile("/etc/unrelated", "1")))
	}},
	{"rolled back", func(tr *tree, k taken) {
		tr.apply(doc("with", k.want...))
		tr.run("rollback").ok(tr.T)
	}},
	{"changed and then let go", func(tr *tree, k taken) {
		tr.apply(doc("with", k.want...))
		tr.apply(doc("changed", k.wantOther...))
		tr.apply(doc("without", withFile("/etc/unrelated", "1")))
	}},
	{"changed and then rolled back twice over", func(tr *tree, k taken) {
		tr.apply(doc("with", k.want...))
		tr.apply(doc("changed", k.wantOther...))
		tr.run("rollback").ok(tr.T)
		tr.apply(doc("without", withFile("/etc/unrelated", "1")))
	}},
}

// What a host of a configuration already had, by an admin's hand, is there again once no configuration asks for it,
// however near it was to what the configuration asked for.
func TestAnAdminsOwnIsThereAgainWhenAConfigurationLetsGo(t *testing.T) {
	t.Parallel()
	for _, k := range takenKinds() {
		for state, plant := range map[string]func(*tree){"identical": k.same, "differing": k.other, "absent": func(*tree) {}} {
			for _, way := range ways {
				t.Run(k.name+"/"+state+"/"+way.name, func(t *testing.T) {
					t.Parallel()
					tr := newTree(t)
					tr.apply(doc("first", withFile("/etc/unrelated", "1")))
					plant(tr)
					tr.age()
					before := tr.take()
					kept := tr.kept()
					way.walk(tr, k)
					tr.verified()
					after := tr.take()
					if k.stays && state == "absent" && strings.HasSuffix(way.name, "twice over") {
						tr.has(map[string]string{"etc/motd": "file 0640 0:0 other"})
						delete(after, "etc/motd")
					}
					if k.lockedPassword {
						lockedOnce(t, tr, before, after)
					}
					tr.same(before, after, snapshot.Content)
					if now := tr.kept(); strings.Join(now, " ") != strings.Join(kept, " ") {
						t.Errorf("originals are left behind: %v", now)
					}
				})
			}
		}
	}
}

// lockedOnce checks that the password can't be used, and takes the difference out of the comparison.
func lockedOnce(t *testing.T, tr *tree, before, after snapshot.Tree) {
	t.Helper()
	for line := range strings.Lines(tr.read("etc/shadow")) {
		if fields := strings.Split(line, ":"); fields[0] == "core" && !strings.HasPrefix(fields[1], "!") {
			t.Errorf("the password of core is %q, should be locked", fields[1])
		}
	}
	after["etc/shadow"] = before["etc/shadow"]
}

// kept are the originals that the agent keeps.
func (tr *tree) kept() (all []string) {
	tr.Helper()
	err := filepath.WalkDir(tr.path("etc/machine-config-daemon/orig"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && (!e.IsDir() || strings.Contains(path, ".mcd")) {
			all = append(all, strings.TrimPrefix(path, tr.root))
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		tr.Fatal(err)
	}
	return all
}

func TestWhatIsThereAlreadyIsNeitherWrittenNorActedUpon(t *testing.T) {
	for _, k := range takenKinds() {
		t.Run(k.name, func(t *testing.T) {
			tr := newTree(t)
			tr.apply(doc("first", withFile("/etc/unrelated", "1")))
			k.same(tr)
			tr.age()
			before := tr.take()
			with := tr.save(doc("with", append(k.want, withFile("/etc/unrelated", "1"))...))
			var p planDoc
			tr.run("plan", "--desired", with, "-o", "json").ok(t).json(t, &p)
			if len(p.Changes)+len(p.Actions) > 0 || p.Drain || p.Reboot {
				t.Errorf("changes %v, actions %v, drain %t, reboot %t for what is there already",
					texts(p.Changes), texts(p.Actions), p.Drain, p.Reboot)
			}
			if named := strings.Join(texts(p.Unwritten), "; "); !k.nothing && named != "add "+k.subject {
				t.Errorf("unwritten is %q, should name %s", named, k.subject)
			}
			text := tr.run("plan", "--desired", with).ok(t).stdout
			_, name, _ := strings.Cut(k.subject, " ")
			if !k.nothing && (!strings.Contains(text, "nothing is written:\n  + ") || !strings.Contains(text, name)) ||
				!strings.Contains(text, "Nothing to do.") {
				t.Errorf("the text does not say that nothing is written to %s:\n%s", k.subject, text)
			}
			tr.run("apply", "--config", with).ok(t)
			tr.same(before, tr.take(), snapshot.Untouched)
			tr.verified()

			// The way out writes nothing either, and says so.
			without := tr.save(doc("without", withFile("/etc/unrelated", "1")))
			p = planDoc{}
			tr.run("plan", "--desired", without, "-o", "json").ok(t).json(t, &p)
			if wants := len(p.Changes) > 0; wants != k.lockedPassword {
				t.Errorf("letting go of what was there before: changes %v, actions %v", texts(p.Changes), texts(p.Actions))
			}
		})
	}
}

func TestAFirstConfigurationAdoptsWhatItFinds(t *testing.T) {
	tr := newTree(t)
	tr.put("etc/motd", "text", 0o644)
	tr.settled("first", withFile("/etc/motd", "text"))
	if kept := tr.kept(); len(kept) > 0 {
		t.Errorf("kept: %v", kept)
	}
	tr.settled("without")
	tr.has(map[string]string{"etc/motd": "absent"})
}

func TestWhatIsNoLinkEnablesNoUnit(t *testing.T) {
	const at = unitsDir + "multi-user.target.wants/a.service"
	unit := withUnit("a.service", contents(install), obj{"enabled": true})
	link := "link 0:0 -> /etc/systemd/system/a.service"
	misplaced := map[string]func(*tree){
		"a file":          func(tr *tree) { tr.put(at, install, 0o600) },
		"an empty folder": func(tr *tree) { tr.must(os.MkdirAll(tr.path(at), 0o750)); tr.must(os.Chmod(tr.path(at), 0o750)) },
	}
	for name, put := range misplaced {
		t.Run(name+" is drift", func(t *testing.T) {
			tr := newTree(t)
			tr.apply(doc("a", unit))
			tr.must(os.Remove(tr.path(at)))
			put(tr)
			r, d := tr.verify()
			r.is(t, 4)
			if got := strings.Join(d.lines(), "; "); got != "unit a.service enabled" {
				t.Errorf("drift is %s", got)
			}
			if name == "a file" {
				tr.run("apply", "--config", tr.save(doc("b", unit, withFile("/etc/x", "1")))).ok(t)
				if kept := strings.Join(tr.drifts(), " "); !strings.Contains(kept, install) {
					t.Errorf("what stood there is not kept: %q", kept)
				}
			} else {
				tr.run("repair").ok(t)
			}
			tr.has(map[string]string{at: link})
			tr.verified()
		})
		t.Run(name+" makes room, and is there again", func(t *testing.T) {
			tr := newTree(t)
			tr.apply(doc("first"))
			put(tr)
			before := tr.what(at)
			tr.settled("a", unit)
			tr.has(map[string]string{at: link})
			tr.apply(doc("b"))
			tr.has(map[string]string{at: before})
		})
	}
	t.Run("a folder with something in it is refused by name", func(t *testing.T) {
		tr := newTree(t)
		tr.put(at+"/theirs", "1", 0o644)
		before := tr.take()
		tr.tryApply(doc("a", unit)).is(t, 1, "systemd.units a.service", "/"+at, "theirs")
		tr.same(before, tr.take(), snapshot.Untouched)
		tr.must(os.RemoveAll(tr.path(at)))
		tr.settled("a", unit)
		tr.must(os.Remove(tr.path(at)))
		tr.put(at+"/theirs", "1", 0o644)
		r, d := tr.verify()
		r.is(t, 4)
		if got := strings.Join(d.lines(), "; "); got != "unit a.service enabled" {
			t.Errorf("drift is %s", got)
		}
	})
}

func TestAFileWithoutContentsKeepsTheBytesThatAreThere(t *testing.T) {
	bare := func(path string, m int) part { return listed("storage", "files", obj{"path": path, "mode": m}) }
	tr := newTree(t)
	tr.put("etc/neighbour.conf", "neighbour's\n", 0o644)
	tr.put("var/lib/log", "line\n", 0o600)
	tr.put("etc/chrony.conf", "edited by hand\n", 0o644)
	inode := tr.take()["etc/neighbour.conf"].Inode
	tr.settled("a", bare("/etc/neighbour.conf", 0o600), bare("/etc/stamp", 0o640), bare("/var/lib/log", 0o644),
		bare("/etc/chrony.conf", 0o600))
	tr.has(map[string]string{"etc/neighbour.conf": "file 0600 0:0 neighbour's\n", "etc/stamp": "file 0640 0:0 ",
		"var/lib/log": "file 0644 0:0 line\n", "etc/chrony.conf": "file 0600 0:0 edited by hand\n"})
	if tr.take()["etc/neighbour.conf"].Inode != inode {
		t.Error("the file was written anew")
	}

	// Its bytes are not the configuration's business; whether it is there, its mode and its owner are.
	tr.put("var/lib/log", "line\nanother\n", 0o644)
	tr.put("etc/stamp", "since", 0o640)
	tr.verified()
	tr.must(os.Chmod(tr.path("etc/neighbour.conf"), 0o644))
	tr.must(os.Remove(tr.path("var/lib/log")))
	r, d := tr.verify()
	r.is(t, 4)
	if got := strings.Join(d.lines(), "; "); got != "file /etc/neighbour.conf mode; file /var/lib/log missing" {
		t.Errorf("drift: %s", got)
	}
	tr.put("var/lib/log", "line\nanother\n", 0o644)

	// Let go, mode and owner are as before, and bytes stay: also those that somebody wrote into what we made.
	tr.settled("b", withFile("/etc/x", "1"))
	tr.has(map[string]string{"etc/neighbour.conf": "file 0644 0:0 neighbour's\n", "etc/stamp": "file 0640 0:0 since",
		"var/lib/log": "file 0600 0:0 line\nanother\n", "etc/chrony.conf": "file 0644 0:0 edited by hand\n"})
	if kept := tr.kept(); len(kept) > 0 {
		t.Errorf("originals are left behind: %v", kept)
	}
}

func TestContentsComeAndGo(t *testing.T) {
	bare := listed("storage", "files", obj{"path": "/etc/f", "mode": 0o640})
	tr := newTree(t)
	tr.apply(doc("first"))
	tr.put("etc/f", "admin's", 0o600)
	tr.settled("a", bare)
	tr.has(map[string]string{"etc/f": "file 0640 0:0 admin's"})
	tr.settled("b", withFile("/etc/f", "ours", mode(0o640)))
	tr.has(map[string]string{"etc/f": "file 0640 0:0 ours"})
	tr.settled("c", bare)
	tr.has(map[string]string{"etc/f": "file 0640 0:0 admin's"})
	tr.settled("d", withFile("/etc/f", "ours", mode(0o640)))
	tr.run("rollback").ok(t)
	tr.has(map[string]string{"etc/f": "file 0640 0:0 admin's"})
	tr.run("rollback").ok(t)
	tr.settled("e")
	tr.has(map[string]string{"etc/f": "file 0600 0:0 admin's"})

	// What nobody had before stays as the configuration has written it.
	tr.settled("f", withFile("/etc/g", "ours", mode(0o640)))
	tr.settled("g", listed("storage", "files", obj{"path": "/etc/g", "mode": 0o600}))
	tr.has(map[string]string{"etc/g": "file 0600 0:0 ours"})
}

// Ids that mean no owner are found while the document is read, and nothing is staged for them.
func TestIdsThatAreNoneAreRefusedByFieldAndPath(t *testing.T) {
	for _, id := range []int{-1, 1<<32 - 1} {
		tr := newTree(t)
		before := tr.all()
		document := doc("a", withFile("/etc/x", "1"), withFile("/etc/f", "1", obj{"user": obj{"id": id}}))
		tr.tryApply(document).is(t, 1, "storage.files[1].user.id", "/etc/f")
		tr.run("plan", "--desired", tr.save(document)).is(t, 1, "storage.files[1].user.id", "/etc/f")
		tr.same(before, tr.all(), snapshot.Untouched)
	}
}

// Contents replace a mask anyway: to say that there is none changes nothing on the host, its enablement by hand included.
func TestAMaskThatIsDeniedBesideContentsChangesNothing(t *testing.T) {
	const at = unitsDir + "multi-user.target.wants/a.service"
	tr := newTree(t)
	tr.apply(doc("a", withUnit("a.service", contents(install))))
	tr.symlink("/etc/systemd/system/a.service", at)
	tr.age()
	before := tr.take()
	denied := doc("b", withUnit("a.service", contents(install), obj{"mask": false}))
	var p planDoc
	tr.run("plan", "--desired", tr.save(denied), "-o", "json").ok(t).json(t, &p)
	if len(p.Changes)+len(p.Unwritten)+len(p.Actions) > 0 {
		t.Errorf("%+v", p)
	}
	tr.apply(denied)
	tr.same(before, tr.take(), snapshot.Untouched)
}

// What a configuration brought is no admin's own, under whatever other word the next one has it.
func TestWhatAConfigurationBroughtIsNoOriginal(t *testing.T) {
	t.Parallel()
	const link = "/etc/systemd/system/multi-user.target.wants/a.service"
	on := obj{"enabled": true}
	for _, tt := range []struct {
		name         string
		before       func(*tree)
		first, other []part
		gone         []string
	}{
		{"another spelling of the path", func(tr *tree) { tr.symlink("lib", "var/other") },
			[]part{withFile("/var/other/f", "1")}, []part{withFile("/var/lib/f", "1")}, []string{"var/lib/f"}},
		{"another spelling, and other contents", func(tr *tree) { tr.symlink("lib", "var/other") },
			[]part{withFile("/var/other/f", "1")}, []part{withFile("/var/lib/f", "2")}, []string{"var/lib/f"}},
		{"a directory that a file had to have", nil,
			[]part{withFile("/etc/new/f", "1")}, []part{withFile("/etc/new/f", "1"), withDir("/etc/new")}, []string{"etc/new"}},
		{"an enablement link", nil, []part{withUnit("a.service", contents(install), on)},
			[]part{withUnit("a.service", contents(install), on), withLink(link, "/etc/systemd/system/a.service")}, []string{link, unitsDir + "a.service"}},
		{"a link that becomes a file", nil, []part{withLink("/etc/l", "/x")}, []part{withFile("/etc/l", "1")}, []string{"etc/l"}},
		{"a link that becomes a file without contents", nil, []part{withLink("/etc/l", "/x")},
			[]part{listed("storage", "files", obj{"path": "/etc/l", "mode": 0o600})}, []string{"etc/l"}},
		{"a unit that comes to be masked", nil, []part{withUnit("a.service", contents(install), on)},
			[]part{withUnit("a.service", obj{"mask": true})}, []string{unitsDir + "a.service", link}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tr := newTree(t)
			tr.must(os.MkdirAll(tr.path("var/lib"), 0o755))
			if tt.before != nil {
				tt.before(tr)
			}
			tr.apply(doc("zero"))
			tr.apply(doc("a", tt.first...))
			tr.settled("b", tt.other...)
			tr.settled("c")
			for _, path := range tt.gone {
				tr.has(map[string]string{path: "absent"})
			}
			if kept := tr.kept(); len(kept) > 0 {
				t.Errorf("kept: %v", kept)
			}
		})
	}
}
