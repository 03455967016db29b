// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/test/lab/snapshot"
)

// resultDoc is what apply, recover and rollback print.
type resultDoc struct {
	APIVersion, Kind string

	Plan     *planDoc
	Status   statusDoc
	Reboot   string
	Warnings []string
}

// settled applies a document and checks what must hold after any success: it is committed, the tree matches it, and
// applying it again writes nothing at all.
func (tr *tree) settled(name string, parts ...part) {
	tr.Helper()
	document := doc(name, parts...)
	tr.apply(document)
	tr.committed(name)
	tr.verified()
	before := tr.all()
	tr.apply(document)
	tr.same(before, tr.all(), snapshot.Untouched)
}

func TestApplyFiles(t *testing.T) {
	tr := newTree(t)
	tr.put("etc/kept/old", "1", 0o644)
	tr.must(os.Chmod(tr.path("etc/kept"), 0o700))
	defer unix.Umask(unix.Umask(0o077))
	tr.settled("a", func(_, ign obj) { ign["ignition"] = obj{"version": "3.6.0"} },
		listed("storage", "files", obj{"path": "/etc/default", "contents": obj{"source": "data:,x"}}),
		withFile("/etc/secret", "s", mode(0o600)),
		withFile("/etc/setuid", "s", mode(0o4755)),
		withFile("/etc/none", "s", mode(0)),
		withFile("/etc/ids", "s", obj{"user": obj{"id": 12345}, "group": obj{"id": 54321}}),
		withFile("/etc/names", "s", obj{"user": obj{"name": "chrony"}, "group": obj{"name": "chrony"}}),
		withFile("/etc/user", "s", obj{"user": obj{"name": "core"}}),
		withFile("/etc/gzip", "", gzipped("unpacked\n")),
		withFile("/etc/empty", ""),
		listed("storage", "files", obj{"path": "/etc/nothing"}),
		withFile("/etc/percent", "", obj{"contents": obj{"source": "data:,a%20b%0A"}}),
		withFile("/etc/new/deep/er/f", "deep"),
		withFile("/etc/kept/f", "1"),
		withFile("/etc/chrony.conf", "ours\n"),
		withFile("/etc/binary", "\x00\xff\n"))
	tr.has(map[string]string{
		"etc/default":       "file 0644 0:0 x",
		"etc/secret":        "file 0600 0:0 s",
		"etc/setuid":        "file 4755 0:0 s",
		"etc/none":          "file 0000 0:0 s",
		"etc/ids":           "file 0644 12345:54321 s",
		"etc/names":         "file 0644 994:993 s",
		"etc/user":          "file 0644 1000:0 s",
		"etc/gzip":          "file 0644 0:0 unpacked\n",
		"etc/empty":         "file 0644 0:0 ",
		"etc/nothing":       "file 0644 0:0 ",
		"etc/percent":       "file 0644 0:0 a b\n",
		"etc/new":           "dir 0755 0:0",
		"etc/new/deep":      "dir 0755 0:0",
		"etc/new/deep/er":   "dir 0755 0:0",
		"etc/new/deep/er/f": "file 0644 0:0 deep",
		"etc/kept":          "dir 0700 0:0",
		"etc/kept/f":        "file 0644 0:0 1",
		"etc/kept/old":      "file 0644 0:0 1",
		"etc/chrony.conf":   "file 0644 0:0 ours\n",
		"etc/binary":        "file 0644 0:0 \x00\xff\n",
	})
}

func TestApplyDirectoriesAndLinks(t *testing.T) {
	tr := newTree(t)
	tr.put("etc/had/inside", "1", 0o644)
	tr.settled("a",
		withDir("/etc/d"), withDir("/etc/tight", mode(0o700), obj{"user": obj{"name": "core"}, "group": obj{"id": 5}}),
		withDir("/etc/had", mode(0o711)),
		withFile("/etc/below/f", "1"), withDir("/etc/below", mode(0o750)),
		withLink("/etc/abs", "/etc/passwd"), withLink("/etc/rel", "../usr/etc"), withLink("/etc/dangling", "/no/where"),
		withLink("/etc/owned", "x", obj{"user": obj{"name": "core"}, "group": obj{"name": "core"}}),
		withFile("/etc/target", "t"), withLink("/etc/hard", "/etc/target", obj{"hard": true}),
		withLink("/etc/passwd2", "/etc/passwd", obj{"hard": true}))
	tr.has(map[string]string{
		"etc/d":          "dir 0755 0:0",
		"etc/tight":      "dir 0700 1000:5",
		"etc/had":        "dir 0711 0:0",
		"etc/had/inside": "file 0644 0:0 1",
		"etc/below":      "dir 0750 0:0",
		"etc/below/f":    "file 0644 0:0 1",
		"etc/abs":        "link 0:0 -> /etc/passwd",
		"etc/rel":        "link 0:0 -> ../usr/etc",
		"etc/dangling":   "link 0:0 -> /no/where",
		"etc/owned":      "link 1000:1001 -> x",
		"etc/hard":       "file 0644 0:0 t",
	})
	now := tr.take()
	for a, b := range map[string]string{"etc/hard": "etc/target", "etc/passwd2": "etc/passwd"} {
		if now[a].Inode != now[b].Inode || now[a].Nlink != 2 {
			t.Errorf("%s and %s are not one file, or are more: %+v, %+v", a, b, now[a], now[b])
		}
	}
	tr.settled("b", withFile("/etc/target", "u"), withLink("/etc/hard", "/etc/target", obj{"hard": true}), withLink("/etc/abs", "/etc/group"))
	tr.has(map[string]string{"etc/hard": "file 0644 0:0 u", "etc/abs": "link 0:0 -> /etc/group", "etc/rel": "absent",
		"etc/d": "absent", "etc/had": "dir 0755 0:0", "etc/had/inside": "file 0644 0:0 1", "etc/passwd2": "absent"})
}

const install = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"

func TestApplyUnits(t *testing.T) {
	const wants = "etc/systemd/system/multi-user.target.wants/"
	const dir = "etc/systemd/system/"
	on, off, mask, unmask := obj{"enabled": true}, obj{"enabled": false}, obj{"mask": true}, obj{"mask": false}
	chronyd := "link 0:0 -> /usr/lib/systemd/system/chronyd.service"
	tests := []struct {
		name   string
		before func(*tree)
		parts  [][]part // configurations one after the other
		want   map[string]string
	}{
		{"contents, enabled", nil, [][]part{{withUnit("a.service", contents(install), on)}},
			map[string]string{dir + "a.service": "file 0644 0:0 " + install, wants + "a.service": "link 0:0 -> /etc/systemd/system/a.service"}},
		{"enabled, then not", nil, [][]part{{withUnit("a.service", contents(install), on)}, {withUnit("a.service", contents(install), off)}},
			map[string]string{dir + "a.service": "file 0644 0:0 " + install, wants + "a.service": "absent"}},
		{"a unit of the image", nil, [][]part{{withUnit("chronyd.service", on)}},
			map[string]string{dir + "chronyd.service": "absent", wants + "chronyd.service": chronyd}},
		{"disabled by hand before", func(tr *tree) { tr.symlink("/usr/lib/systemd/system/chronyd.service", wants+"chronyd.service") },
			[][]part{{withUnit("chronyd.service", off)}}, map[string]string{wants + "chronyd.service": "absent"}},
		{"another install section", nil, [][]part{{withUnit("a.service", contents(install), on)},
			{withUnit("a.service", contents(strings.Replace(install, "multi-user", "graphical", 1)), on)}},
			map[string]string{wants + "a.service": "absent", dir + "graphical.target.wants/a.service": "link 0:0 -> /etc/systemd/system/a.service"}},
		{"unsaid, the preset enables", nil, [][]part{{withUnit("wanted.service", contents(install))}},
			map[string]string{wants + "wanted.service": "link 0:0 -> /etc/systemd/system/wanted.service"}},
		{"unsaid, the preset disables", func(tr *tree) { tr.symlink("/usr/lib/systemd/system/nopreset.service", wants+"nopreset.service") },
			[][]part{{withUnit("nopreset.service", contents(install))}}, map[string]string{wants + "nopreset.service": "absent"}},
		{"only a drop-in", nil, [][]part{{withUnit("crio.service", dropin("10-x.conf", "[Service]\nA=1\n"))}},
			map[string]string{dir + "crio.service": "absent", dir + "crio.service.d": "dir 0755 0:0", dir + "crio.service.d/10-x.conf": "file 0644 0:0 [Service]\nA=1\n"}},
		{"an empty drop-in takes one away", func(tr *tree) { tr.put(dir+"crio.service.d/10-x.conf", "[Service]\n", 0o644) },
			[][]part{{withUnit("crio.service", dropin("10-x.conf", ""))}}, map[string]string{dir + "crio.service.d/10-x.conf": "absent"}},
		{"somebody else's drop-in stays", func(tr *tree) { tr.put(dir+"crio.service.d/99-admin.conf", "[Service]\n", 0o600) },
			[][]part{{withUnit("crio.service", dropin("10-x.conf", "[Service]\nA=1\n"))}, {}},
			map[string]string{dir + "crio.service.d/10-x.conf": "absent", dir + "crio.service.d/99-admin.conf": "file 0600 0:0 [Service]\n"}},
		{"mask", nil, [][]part{{withUnit("chronyd.service", mask)}}, map[string]string{dir + "chronyd.service": "link 0:0 -> /dev/null"}},
		{"mask in the place of contents", nil, [][]part{{withUnit("a.service", contents(install), on)}, {withUnit("a.service", mask)}},
			map[string]string{dir + "a.service": "link 0:0 -> /dev/null"}},
		{"mask, then contents", nil, [][]part{{withUnit("a.service", mask)}, {withUnit("a.service", contents(install), on)}},
			map[string]string{dir + "a.service": "file 0644 0:0 " + install, wants + "a.service": "link 0:0 -> /etc/systemd/system/a.service"}},
		{"unmask", nil, [][]part{{withUnit("chronyd.service", mask)}, {withUnit("chronyd.service", unmask)}}, map[string]string{dir + "chronyd.service": "absent"}},
		{"unmask what an admin masked", func(tr *tree) { tr.symlink("/dev/null", dir+"chronyd.service") },
			[][]part{{withUnit("chronyd.service", unmask)}}, map[string]string{dir + "chronyd.service": "absent"}},
		{"a mask is let go", nil, [][]part{{withUnit("nopreset.service", mask)}, {}}, map[string]string{dir + "nopreset.service": "absent"}},
		{"a unit is let go", nil, [][]part{{withUnit("a.service", contents(install), on, dropin("x.conf", "[Unit]\n"))}, {}},
			map[string]string{dir + "a.service": "absent", wants + "a.service": "absent", dir + "a.service.d/x.conf": "absent"}},
		{"a unit of the image is let go to its preset", nil, [][]part{{withUnit("chronyd.service", off)}, {}}, map[string]string{wants + "chronyd.service": chronyd}},
		{"a unit of the image is let go to a preset that disables", nil, [][]part{{withUnit("crio.service", on)}, {}}, map[string]string{wants + "crio.service": "absent"}},
		{"contents go, the unit stays", nil, [][]part{
			{withUnit("chronyd.service", contents(strings.Replace(install, "multi-user", "graphical", 1)), on)}, {withUnit("chronyd.service", on)}},
			map[string]string{dir + "chronyd.service": "absent", wants + "chronyd.service": chronyd, dir + "graphical.target.wants/chronyd.service": "absent"}},
		{"a mask goes, the unit is enabled", nil, [][]part{{withUnit("chronyd.service", mask)}, {withUnit("chronyd.service", on)}},
			map[string]string{dir + "chronyd.service": "absent", wants + "chronyd.service": chronyd}},
		{"contents go, and there were no others", nil, [][]part{{withUnit("a.service", contents(install), on)}, {withUnit("a.service", on)}},
			map[string]string{dir + "a.service": "absent", wants + "a.service": "absent"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTree(t)
			if tt.before != nil {
				tt.before(tr)
			}
			for i, parts := range tt.parts {
				tr.settled(string(rune('a'+i)), parts...)
			}
			tr.has(tt.want)
		})
	}
}

func TestAnEnabledUnitStaysEnabledWhileItsContentsChange(t *testing.T) {
	tr := newTree(t)
	const link = "etc/systemd/system/multi-user.target.wants/kubelet.service"
	tr.apply(doc("a", withUnit("kubelet.service", contents(install), obj{"enabled": true})))
	before := tr.take()
	tr.apply(doc("b", withUnit("kubelet.service", contents("# more\n"+install), obj{"enabled": true})))
	if diff := snapshot.Diff(snapshot.Tree{link: before[link]}, snapshot.Tree{link: tr.take()[link]}, snapshot.Untouched); len(diff) > 0 {
		t.Errorf("the link was touched: %v", diff)
	}
}

func TestEnablingAUnitThatIsNotThereIsSaidAndSkipped(t *testing.T) {
	tr := newTree(t)
	r := tr.apply(doc("a", withUnit("gone.service", obj{"enabled": true}), withFile("/etc/f", "1")))
	if w := r.lines("warning:"); !slices.ContainsFunc(w, func(l string) bool { return strings.Contains(l, "gone.service") }) {
		t.Errorf("warnings: %v", w)
	}
	tr.has(map[string]string{"etc/f": "file 0644 0:0 1", "etc/systemd/system/multi-user.target.wants/gone.service": "absent"})
	tr.committed("a")
}

func TestApplyKeys(t *testing.T) {
	keys := func(keys ...string) obj { return obj{"sshAuthorizedKeys": keys} }
	const dir, file = "home/core/.ssh/authorized_keys.d", "home/core/.ssh/authorized_keys.d/ignition"
	const other = "var/lib/chrony/.ssh/authorized_keys.d/ignition"
	tr := newTree(t)
	tr.must(os.MkdirAll(tr.path("var/lib/chrony"), 0o750))
	tr.settled("a", withUser("core", keys("ssh-ed25519 AAAA one", "ssh-ed25519 BBBB two")), withUser("chrony", keys("ssh-ed25519 CCCC three")))
	tr.has(map[string]string{
		"home/core/.ssh": "dir 0700 1000:1001",
		dir:              "dir 0700 1000:1001",
		file:             "file 0600 1000:1001 ssh-ed25519 AAAA one\nssh-ed25519 BBBB two\n",
		other:            "file 0600 994:993 ssh-ed25519 CCCC three\n",
	})
	tr.put("home/core/.ssh/authorized_keys", "my own\n", 0o600)
	tr.settled("b", withUser("core", keys("ssh-ed25519 BBBB two")), withUser("chrony"))
	tr.has(map[string]string{file: "file 0600 1000:1001 ssh-ed25519 BBBB two\n", other: "absent"})
	tr.settled("c", withUser("chrony"))
	tr.has(map[string]string{file: "absent", "home/core/.ssh/authorized_keys": "file 0600 0:0 my own\n"})
}

func TestKeysOfAHomeBehindALink(t *testing.T) {
	tr := newTree(t)
	tr.must(os.RemoveAll(tr.path("home")))
	tr.symlink("var/home", "home")
	tr.must(os.MkdirAll(tr.path("var/home/core"), 0o700))
	tr.settled("a", withUser("core", obj{"sshAuthorizedKeys": []string{"ssh-ed25519 AAAA one"}}))
	tr.has(map[string]string{"var/home/core/.ssh/authorized_keys.d/ignition": "file 0600 1000:1001 ssh-ed25519 AAAA one\n"})
}

func TestApplyPasswords(t *testing.T) {
	hash := func(h string) obj { return obj{"passwordHash": h} }
	const root, chrony = "root:*:19000:0:99999:7:::\n", "chrony:!!:19000::::::\n"
	shadow := func(core string) map[string]string {
		return map[string]string{"etc/shadow": "file 0000 0:0 " + root + "core:" + core + ":19000:0:99999:7:::\n" + chrony}
	}
	tr := newTree(t)
	tr.settled("keys-only", withUser("core", obj{"sshAuthorizedKeys": []string{"ssh-ed25519 A"}}))
	tr.has(shadow("!!"))
	tr.settled("a", withUser("core", hash("$6$one")))
	tr.has(shadow("$6$one"))
	tr.settled("b", withUser("core", hash("$6$two")))
	tr.has(shadow("$6$two"))
	tr.settled("c", withUser("core"))
	tr.has(shadow("!$6$two"))
	tr.settled("d", withUser("core", hash("$6$two")))
	tr.has(shadow("$6$two"))
	tr.settled("e")
	tr.has(shadow("!$6$two"))
}

func TestAUserWhoLeavesNeverHasAnEmptyPassword(t *testing.T) {
	tr := newTree(t)
	tr.apply(doc("a", withUser("core", obj{"passwordHash": "$6$one"})))
	tr.put("etc/shadow", strings.Replace(tr.read("etc/shadow"), "core:$6$one:", "core::", 1), 0)
	tr.apply(doc("b"))
	if strings.Contains(tr.read("etc/shadow"), "core::") {
		t.Error("anybody can log in")
	}
}

func TestLettingGo(t *testing.T) {
	tests := []struct {
		name   string
		before func(*tree)
		parts  part
		want   map[string]string
	}{
		{"the vendor's default comes back", func(tr *tree) {
			tr.put("usr/etc/chrony.conf", "vendor\n", 0o640)
			tr.must(os.Chown(tr.path("usr/etc/chrony.conf"), 0, 993))
		}, withFile("/etc/chrony.conf", "ours"), map[string]string{"etc/chrony.conf": "file 0640 0:993 vendor\n"}},
		{"the vendor's goes before an admin's", func(tr *tree) { tr.put("etc/chrony.conf", "admin's\n", 0o644) },
			withFile("/etc/chrony.conf", "ours"), map[string]string{"etc/chrony.conf": "file 0644 0:0 the image's\n"}},
		{"an admin's own comes back", func(tr *tree) {
			tr.put("etc/motd", "admin's\n", 0o640)
			tr.must(os.Chown(tr.path("etc/motd"), 1000, 1001))
		}, withFile("/etc/motd", "ours"), map[string]string{"etc/motd": "file 0640 1000:1001 admin's\n"}},
		{"also where it was a link", func(tr *tree) { tr.symlink("/etc/group", "etc/motd") },
			withFile("/etc/motd", "ours"), map[string]string{"etc/motd": "link 0:0 -> /etc/group"}},
		{"also where we made a link", func(tr *tree) { tr.put("etc/motd", "admin's\n", 0o600) },
			withLink("/etc/motd", "/etc/issue"), map[string]string{"etc/motd": "file 0600 0:0 admin's\n"}},
		{"what nobody had goes", func(*tree) {}, both(withFile("/etc/f", "1"), withLink("/etc/l", "/x"), withDir("/etc/d")),
			map[string]string{"etc/f": "absent", "etc/l": "absent", "etc/d": "absent"}},
		{"a directory that others use stays", func(tr *tree) { tr.put("etc/d/theirs", "1", 0o644) },
			withDir("/etc/d", mode(0o700)), map[string]string{"etc/d": "dir 0755 0:0", "etc/d/theirs": "file 0644 0:0 1"}},
		{"a vendor's link", func(tr *tree) { tr.symlink("../usr/share/zoneinfo/UTC", "usr/etc/localtime") },
			withLink("/etc/localtime", "../usr/share/zoneinfo/Europe/Paris"), map[string]string{"etc/localtime": "link 0:0 -> ../usr/share/zoneinfo/UTC"}},
		{"a vendor's unit file", func(tr *tree) { tr.put("usr/etc/systemd/system/v.service", "[Unit]\nA=v\n", 0o644) },
			withUnit("v.service", contents("[Unit]\nA=ours\n")), map[string]string{"etc/systemd/system/v.service": "file 0644 0:0 [Unit]\nA=v\n"}},
		{"an admin's unit file", func(tr *tree) { tr.put("etc/systemd/system/v.service", "[Unit]\nA=admin\n", 0o600) },
			withUnit("v.service", contents("[Unit]\nA=ours\n")), map[string]string{"etc/systemd/system/v.service": "file 0600 0:0 [Unit]\nA=admin\n"}},
		{"an admin's drop-in", func(tr *tree) { tr.put("etc/systemd/system/v.service.d/x.conf", "[Unit]\nA=admin\n", 0o600) },
			withUnit("v.service", dropin("x.conf", "[Unit]\nA=ours\n")), map[string]string{"etc/systemd/system/v.service.d/x.conf": "file 0600 0:0 [Unit]\nA=admin\n"}},
		{"outside of /etc there is no vendor's default", func(tr *tree) { tr.put("usr/var/f", "no\n", 0o644) },
			withFile("/var/f", "ours"), map[string]string{"var/f": "absent"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTree(t)
			tt.before(tr)
			tr.settled("a", tt.parts)
			// Changed in between, so that it is not merely the last thing replaced that comes back.
			tr.settled("b", tt.parts, withFile("/etc/other", "1"))
			with := tr.take()
			tr.settled("c")
			tr.has(tt.want)
			tr.run("rollback").ok(t)
			tr.same(with, tr.take(), snapshot.Content)
			tr.run("rollback").ok(t)
			tr.has(tt.want)
			tr.verified()
		})
	}
}

func TestTheOriginalIsThatOfBeforeTheFirstConfiguration(t *testing.T) {
	tr := newTree(t)
	tr.put("etc/motd", "admin's\n", 0o600)
	tr.settled("a", withFile("/etc/motd", "1"))
	tr.settled("b", withFile("/etc/motd", "2"))
	tr.settled("c", withFile("/etc/motd", "3", mode(0o640)))
	tr.settled("d")
	tr.has(map[string]string{"etc/motd": "file 0600 0:0 admin's\n"})
	// It is the admin's again: what stands there at the next time is what comes back at the next.
	tr.put("etc/motd", "admin's second\n", 0o644)
	tr.settled("e", withFile("/etc/motd", "4"))
	tr.settled("f")
	tr.has(map[string]string{"etc/motd": "file 0644 0:0 admin's second\n"})
}

func TestOnlyTheDifferenceIsTouched(t *testing.T) {
	parts := func(changed, m string) []part {
		perm := map[string]int{"": 0o644, "more": 0o600}[m]
		return []part{
			withFile("/etc/a/same", "1"), withFile("/etc/b/changed", changed), withFile("/etc/c/mode", "1", mode(perm)),
			withFile("/etc/d/owner", "1", obj{"user": obj{"id": map[string]int{"": 0, "more": 7}[m]}}),
			withDir("/etc/dir"), withLink("/etc/e/link", "/x"), withUser("core", obj{"passwordHash": "$6$x", "sshAuthorizedKeys": []string{"ssh-rsa A"}}),
			withUnit("a.service", contents(install), obj{"enabled": true}), withUnit("chronyd.service", dropin("x.conf", "[Unit]\n")),
		}
	}
	tr := newTree(t)
	tr.apply(doc("a", parts("1", "")...))
	tr.age()
	before := tr.take()
	tr.apply(doc("b", parts("2", "more")...))
	after := tr.take()
	touched := map[string]bool{}
	for _, line := range snapshot.Diff(before, after, snapshot.Untouched) {
		path, _, _ := strings.Cut(line, ":")
		touched[path] = true
	}
	want := map[string]bool{"etc/b": true, "etc/b/changed": true, "etc/c/mode": true, "etc/d/owner": true}
	if diff := cmp.Diff(want, touched); diff != "" {
		t.Errorf("touched (-should be, +is):\n%s", diff)
	}
	for _, path := range []string{"etc/c/mode", "etc/d/owner"} {
		if was, is := before[path], after[path]; was.Inode != is.Inode || !was.Mtime.Equal(is.Mtime) {
			t.Errorf("%s was written again for its metadata", path)
		}
	}
	for path, e := range after {
		if e.Mode&unix.S_IFMT == unix.S_IFREG && e.Nlink != 1 {
			t.Errorf("%s has %d names: a pre-image was left", path, e.Nlink)
		}
	}
}

func TestAdoptionWritesNothing(t *testing.T) {
	tr := newTree(t)
	const wants = "etc/systemd/system/multi-user.target.wants/"
	tr.put("etc/f", "1", 0o644)
	tr.must(os.Mkdir(tr.path("etc/d"), 0o755))
	tr.symlink("/x", "etc/l")
	tr.put("etc/systemd/system/a.service", install, 0o644)
	tr.symlink("/etc/systemd/system/a.service", wants+"a.service")
	tr.symlink("/dev/null", "etc/systemd/system/m.service")
	tr.put("etc/shadow", strings.Replace(tr.read("etc/shadow"), "core:!!:", "core:$6$x:", 1), 0)
	tr.age()
	before := tr.take()
	parts := []part{withFile("/etc/f", "1"), withDir("/etc/d"), withLink("/etc/l", "/x"), withUnit("m.service", obj{"mask": true}),
		withUnit("a.service", contents(install), obj{"enabled": true}), withUser("core", obj{"passwordHash": "$6$x"})}
	tr.settled("a", parts...)
	tr.same(before, tr.take(), snapshot.Untouched)

	other := newTree(t)
	other.put("etc/f", "1", 0o644)
	other.put("etc/g", "1", 0o644)
	other.age()
	file := other.take()["etc/f"]
	other.settled("a", withFile("/etc/f", "1"), withFile("/etc/g", "2"))
	if diff := snapshot.Diff(snapshot.Tree{"f": file}, snapshot.Tree{"f": other.take()["etc/f"]}, snapshot.Untouched); len(diff) > 0 {
		t.Errorf("a file that matched was touched: %v", diff)
	}
}

func TestTypeChanges(t *testing.T) {
	kinds := map[string]struct {
		part part
		want map[string]string
	}{
		"file":      {withFile("/etc/t", "1"), map[string]string{"etc/t": "file 0644 0:0 1"}},
		"directory": {withDir("/etc/t", mode(0o700)), map[string]string{"etc/t": "dir 0700 0:0"}},
		"link":      {withLink("/etc/t", "/etc/passwd"), map[string]string{"etc/t": "link 0:0 -> /etc/passwd"}},
		"hard link": {withLink("/etc/t", "/etc/chrony.conf", obj{"hard": true}), map[string]string{"etc/t": "file 0644 0:0 the image's\n"}},
		"file below": {withFile("/etc/t/u/v", "1"),
			map[string]string{"etc/t": "dir 0755 0:0", "etc/t/u": "dir 0755 0:0", "etc/t/u/v": "file 0644 0:0 1"}},
		"directory with a file": {both(withDir("/etc/t", mode(0o700)), withFile("/etc/t/f", "1")),
			map[string]string{"etc/t": "dir 0700 0:0", "etc/t/f": "file 0644 0:0 1"}},
	}
	for from, a := range kinds {
		for to, b := range kinds {
			if from == to {
				continue
			}
			t.Run(from+" to "+to, func(t *testing.T) {
				tr := newTree(t)
				tr.settled("a", a.part)
				tr.has(a.want)
				old := tr.take()
				tr.settled("b", b.part)
				tr.has(b.want)
				tr.run("rollback").ok(t)
				tr.has(a.want)
				tr.verified()
				now := tr.take()
				if to == "file below" {
					now = now.Without("etc/t/u") // made as a parent: nobody's, and it stays like any other
					old = old.Without("etc/t/u")
				}
				tr.same(old, now, snapshot.Content)
			})
		}
	}
}

func TestLinksNeverLeadOut(t *testing.T) {
	outside := t.TempDir()
	for name, text := range map[string]string{"canary": "canary", "group": "root:x:0:\noutsider:x:77:\n", "state/keep": "1"} {
		path := filepath.Join(outside, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	up := strings.Repeat("../", 12)
	tests := []struct {
		name   string
		before func(*tree)
		parts  []part
		code   int
		want   map[string]string // empty: not checked
	}{
		{"a link at the path is replaced", func(tr *tree) { tr.symlink(outside+"/canary", "etc/f") },
			[]part{withFile("/etc/f", "1")}, 0, map[string]string{"etc/f": "file 0644 0:0 1"}},
		{"a relative one too", func(tr *tree) { tr.symlink(up+outside[1:]+"/canary", "etc/f") },
			[]part{withFile("/etc/f", "1")}, 0, map[string]string{"etc/f": "file 0644 0:0 1"}},
		{"an absolute link in the middle means the tree's own", func(tr *tree) {
			tr.symlink("/var/opt", "opt")
			tr.must(os.MkdirAll(tr.path("var/opt"), 0o755))
		}, []part{withFile("/opt/f", "1")}, 0, map[string]string{"var/opt/f": "file 0644 0:0 1", "opt": "link 0:0 -> /var/opt"}},
		{"dots stop at the root", func(tr *tree) {
			tr.symlink(up+"var/opt", "opt")
			tr.must(os.MkdirAll(tr.path("var/opt"), 0o755))
		}, []part{withFile("/opt/f", "1")}, 0, map[string]string{"var/opt/f": "file 0644 0:0 1"}},
		{"an absolute link in the middle to what is not in the tree", func(tr *tree) { tr.symlink(outside, "etc/d") },
			[]part{withFile("/etc/d/canary", "1")}, 1, nil},
		{"a relative one", func(tr *tree) { tr.symlink(up+outside[1:], "etc/d") }, []part{withFile("/etc/d/canary", "1")}, 1, nil},
		{"a chain", func(tr *tree) {
			tr.symlink("b", "etc/a")
			tr.symlink(up+outside[1:], "etc/b")
		}, []part{withFile("/etc/a/canary", "1")}, 1, nil},
		{"a directory", func(tr *tree) { tr.symlink(outside, "etc/d") }, []part{withDir("/etc/d", mode(0o700))}, 0,
			map[string]string{"etc/d": "dir 0700 0:0"}},
		{"units", func(tr *tree) {
			tr.must(os.RemoveAll(tr.path("etc/systemd/system")))
			tr.symlink(outside, "etc/systemd/system")
		}, []part{withUnit("canary", obj{}), withUnit("a.service", contents(install), obj{"enabled": true})}, 1, nil},
		{"groups are the tree's", func(tr *tree) {
			tr.must(os.Remove(tr.path("etc/group")))
			tr.symlink(up+outside[1:]+"/group", "etc/group")
		}, []part{withFile("/etc/f", "1", obj{"group": obj{"name": "outsider"}})}, 1, nil},
		{"the agent's own state", func(tr *tree) {
			tr.must(os.RemoveAll(tr.path("var/lib/machine-config-daemon")))
			tr.symlink(up+outside[1:]+"/state", "var/lib/machine-config-daemon")
		}, []part{withFile("/etc/f", "1")}, 1, nil},
		{"the agent's lock", func(tr *tree) {
			tr.must(os.RemoveAll(tr.path("run")))
			tr.symlink(outside, "run")
		}, []part{withFile("/etc/f", "1")}, -1, nil},
		{"a hard link's target", func(*tree) {}, []part{withLink("/etc/h", up+outside[1:]+"/canary", obj{"hard": true})}, 1, nil},
		{"keys", func(tr *tree) {
			tr.symlink(up+outside[1:], "home/core/.ssh")
			tr.must(os.Lchown(tr.path("home/core/.ssh"), 1000, 1001))
		}, []part{withUser("core", obj{"sshAuthorizedKeys": []string{"ssh-rsa A"}})}, 0,
			map[string]string{"home/core/.ssh": "link 1000:1001 -> " + up + outside[1:]}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			canary, err := snapshot.Take(outside)
			if err != nil {
				t.Fatal(err)
			}
			tr := newTree(t)
			tt.before(tr)
			r := tr.tryApply(doc("a", tt.parts...))
			switch {
			case tt.code == 0:
				r.ok(t)
				tr.has(tt.want)
				tr.settled("b")
			case tt.code > 0:
				r.is(t, tt.code)
			}
			for _, verb := range []string{"status", "verify", "recover", "rollback"} {
				tr.run(verb)
			}
			after, err := snapshot.Take(outside)
			if err != nil {
				t.Fatal(err)
			}
			tr.same(canary, after, snapshot.Untouched)
		})
	}
}

// What a user puts in the way of their keys is that user's drift: no link of theirs is followed, and no update waits.
func TestWhatAUserPutsInTheWayOfTheirKeysIsTheirDrift(t *testing.T) {
	const ssh, file = "home/core/.ssh", "home/core/.ssh/authorized_keys.d/ignition"
	keys := withUser("core", obj{"sshAuthorizedKeys": []string{"ssh-rsa A"}})
	link := func(name, target string) func(*tree) {
		return func(tr *tree) {
			tr.symlink(target, name)
			tr.must(os.Lchown(tr.path(name), 1000, 1001))
		}
	}
	for name, tt := range map[string]struct {
		inTheWay func(*tree)
		drift    string
	}{
		"a link to /etc":            {link(ssh, "/etc"), "missing"},
		"a link to /tmp":            {link(ssh, "/tmp"), "missing"},
		"a link to the generators":  {link(filepath.Dir(file), "/etc/systemd/system-generators"), "missing"},
		"a link within the home":    {link(ssh, "elsewhere"), "missing"},
		"a link that leads nowhere": {link(ssh, "/no/such"), "missing"},
		"a loop":                    {link(ssh, ".ssh"), "missing"},
		"a link of root's":          {func(tr *tree) { tr.symlink("/etc", ssh) }, "missing"},
		"a file":                    {func(tr *tree) { tr.put(ssh, "mine", 0o644) }, "missing"},
		"a FIFO":                    {func(tr *tree) { tr.must(unix.Mkfifo(tr.path(ssh), 0o600)) }, "missing"},
		"a directory for the file":  {func(tr *tree) { tr.put(file+"/mine", "mine", 0o644) }, "type"},
		"directories for the file":  {func(tr *tree) { tr.must(os.MkdirAll(tr.path(file+"/a/b"), 0o755)) }, "type"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			for _, dir := range []string{"etc/systemd/system-generators", "tmp", "home/core/elsewhere"} {
				tr.must(os.MkdirAll(tr.path(dir), 0o755))
			}
			tr.settled("a", keys, withFile("/etc/f", "1"))
			tr.must(os.RemoveAll(tr.path(ssh)))
			tt.inTheWay(tr)

			tr.apply(doc("b", keys, withFile("/etc/f", "2")))
			tr.committed("b")
			tr.has(map[string]string{"etc/f": "file 0644 0:0 2", "etc/authorized_keys.d": "absent", "tmp/authorized_keys.d": "absent",
				"etc/systemd/system-generators/ignition": "absent", "home/core/elsewhere/authorized_keys.d": "absent"})
			if _, d := tr.verify(); !cmp.Equal(d.lines(), []string{"sshkeys core " + tt.drift}) {
				t.Errorf("drift %v, want %s", d.lines(), tt.drift)
			}
			tr.settled("c", withFile("/etc/f", "3"))
			tr.run("rollback").ok(t)
			tr.has(map[string]string{"etc/f": "file 0644 0:0 2"})
			tr.settled("d")
		})
	}
}

// A digest of what a user made of their key file, which may have terabytes, would keep an update for hours.
func TestAFileOfTerabytesInTheWayOfKeysIsNotRead(t *testing.T) {
	const file = "home/core/.ssh/authorized_keys.d/ignition"
	tr := newTree(t)
	keys := withUser("core", obj{"sshAuthorizedKeys": []string{"ssh-rsa A"}})
	tr.settled("a", keys)
	tr.must(os.Truncate(tr.path(file), 4<<40))
	if _, d := tr.verify(); len(d.Drift) != 1 || d.Drift[0].Found != "4398046511104 bytes" {
		t.Errorf("drift %+v", d.Drift)
	}
	tr.apply(doc("b", keys, withFile("/etc/f", "1")))
	tr.verified()
	tr.has(map[string]string{file: "file 0600 1000:1001 ssh-rsa A\n"})
}

// What an admin had is kept where its former owner can't go on to write to it, or have the agent read terabytes.
func TestWhatIsKeptOfAUsersIsOutOfTheirReach(t *testing.T) {
	const file, kept = "home/core/.ssh/authorized_keys.d/ignition", "etc/machine-config-daemon/orig"
	keys := withUser("core", obj{"sshAuthorizedKeys": []string{"ssh-rsa A"}})
	for name, tt := range map[string]struct {
		size int64
		back string
	}{
		"keys":      {6, "file 0600 1000:1001 before"},
		"terabytes": {4 << 40, "absent"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			tr.settled("a", withFile("/etc/f", "1"))
			tr.put(file, "before", 0o600)
			tr.must(errors.Join(os.Chown(tr.path(file), 1000, 1001), os.Truncate(tr.path(file), tt.size)))
			r := tr.apply(doc("b", keys))
			tr.has(map[string]string{file: "file 0600 1000:1001 ssh-rsa A\n"})
			if tt.back == "absent" {
				if !strings.Contains(r.stderr, file+": no copy is kept") {
					t.Errorf("stderr %s", r.stderr)
				}
			} else {
				tr.has(map[string]string{kept: "dir 0700 0:0"})
			}
			tr.apply(doc("c"))
			tr.has(map[string]string{file: tt.back})
		})
	}
}

func TestOnePathSpelledTwice(t *testing.T) {
	prepare := func(t *testing.T) *tree {
		t.Helper()
		tr := newTree(t)
		tr.must(os.MkdirAll(tr.path("var/opt"), 0o755))
		tr.symlink("var/opt", "opt")
		return tr
	}
	t.Run("with other contents", func(t *testing.T) {
		tr := prepare(t)
		before := tr.take()
		tr.tryApply(doc("a", withFile("/opt/f", "1"), withFile("/var/opt/f", "2"))).is(t, 1, "/opt/f", "/var/opt/f")
		tr.same(before, tr.take(), snapshot.Times)
	})
	t.Run("from one spelling to the other", func(t *testing.T) {
		tr := prepare(t)
		tr.settled("a", withFile("/opt/f", "1"))
		before := tr.take()
		tr.settled("b", withFile("/var/opt/f", "1"))
		tr.same(before, tr.take(), snapshot.Untouched)
		tr.settled("c")
		tr.has(map[string]string{"var/opt/f": "absent"})
	})
}

func TestOSChangesOnATree(t *testing.T) {
	for field, os := range map[string]part{
		"kernelArguments": withKargs("quiet"), "osImageURL": withSpec("osImageURL", "quay.io/os:1"),
		"kernelType": withSpec("kernelType", "realtime"), "extensions": withSpec("extensions", []string{"usbguard"}),
	} {
		t.Run(field, func(t *testing.T) {
			tr := newTree(t)
			tr.settled("a", withFile("/etc/f", "1"))
			before := tr.take()
			document := doc("b", withFile("/etc/f", "2"), os)
			r := tr.tryApply(document, "-o", "json")
			r.is(t, 3, field)
			var res resultDoc
			r.json(t, &res)
			if res.Plan == nil || !cmp.Equal(res.Plan.fields(), []string{field}) {
				t.Errorf("plan %+v", res.Plan)
			}
			tr.same(before, tr.take(), snapshot.Times)
			if s := tr.status(); s.State != "Unreconcilable" || !strings.Contains(s.Reason, field) || s.Config.Committed != "a" {
				t.Errorf("status %+v", s)
			}

			tr.apply(document, "--skip-os")
			tr.has(map[string]string{"etc/f": "file 0644 0:0 2"})
			s := tr.status()
			if s.Config.Committed != "b" || s.State != "Done" || len(s.Skipped) != 1 {
				t.Errorf("status %+v", s)
			}
			tr.verified()
			state := tr.all()
			tr.apply(document, "--skip-os")
			tr.same(state, tr.all(), snapshot.Untouched)
			tr.settled("a", withFile("/etc/f", "1"))
			if s := tr.status(); len(s.Skipped) != 0 {
				t.Errorf("skipped %v", s.Skipped)
			}
		})
	}
}

func TestWhatTakesTheWayBackIsRefusedAndTouchesNothing(t *testing.T) {
	tr := newTree(t)
	good := doc("a", withFile("/etc/f", "1"))
	tr.apply(good)
	tr.tryApply(doc("b", withFile("/etc/f", "2"), withUnit("machine-config-daemon-prove.service", obj{"mask": true}))).
		is(t, 3, "systemd.units", "machine-config-daemon-prove.service", "leave it out")
	if got := tr.read("etc/f"); got != "1" {
		t.Errorf("/etc/f is %q", got)
	}
	if s := tr.status(); s.State != "Unreconcilable" {
		t.Errorf("status %+v", s)
	}
	tr.apply(good)
}

func TestUnreconcilableHealsByPointingBack(t *testing.T) {
	tr := newTree(t)
	good := doc("a", withFile("/etc/f", "1"))
	tr.apply(good)
	tr.tryApply(doc("b", withFile("/etc/f", "2"), withSpec("fips", true))).is(t, 3, "fips")
	if s := tr.status(); s.State != "Unreconcilable" || s.Since == "" {
		t.Errorf("status %+v", s)
	}
	tr.apply(good)
	tr.committed("a")
}

func TestRollback(t *testing.T) {
	tr := newTree(t)
	tr.put("etc/theirs", "theirs", 0o640)
	r := tr.run("rollback")
	r.is(t, 1, "previous")
	a := []part{withFile("/etc/f", "1", mode(0o600)), withFile("/etc/only-a", "1"), withDir("/etc/d", mode(0o700)), withLink("/etc/l", "/a"),
		withUnit("a.service", contents(install), obj{"enabled": true}), withUser("core", obj{"passwordHash": "$6$a", "sshAuthorizedKeys": []string{"ssh-rsa A"}})}
	b := []part{withFile("/etc/f", "2", mode(0o644), obj{"user": obj{"id": 9}}), withFile("/etc/only-b", "1"), withDir("/etc/d", mode(0o755)), withLink("/etc/l", "/b"),
		withFile("/etc/theirs", "ours"), withUnit("a.service", contents(install), obj{"enabled": false}), withUser("core", obj{"passwordHash": "$6$b"})}
	tr.settled("a", a...)
	tr.run("rollback").is(t, 1, "previous")
	atA := tr.take()
	tr.settled("b", b...)
	atB := tr.take()

	r = tr.run("rollback", "-o", "json").ok(t)
	var res resultDoc
	r.json(t, &res)
	if res.Reboot != "none" || res.Plan == nil || res.Plan.Desired != "a" || res.Status.Config.Committed != "a" {
		t.Errorf("%+v", res)
	}
	tr.committed("a")
	tr.verified()
	tr.same(atA, tr.take(), snapshot.Content)
	tr.run("rollback").ok(t)
	tr.committed("b")
	tr.verified()
	tr.same(atB, tr.take(), snapshot.Content)
	tr.run("rollback").ok(t)
	tr.same(atA, tr.take(), snapshot.Content)
	if s := tr.status(); len(s.Quarantined) > 0 {
		t.Errorf("a rollback that a person asked for put %v into quarantine", s.Quarantined)
	}
}

func TestStatusShape(t *testing.T) {
	keys := func(tr *tree) obj {
		tr.Helper()
		var raw obj
		tr.run("status", "-o", "json").ok(tr.T).json(tr.T, &raw)
		for _, key := range []string{"config", "state", "phase", "reason", "since", "deployments", "transaction", "quarantined"} {
			if _, ok := raw[key]; !ok {
				tr.Errorf("no %s in %v", key, raw)
			}
		}
		for _, key := range []string{"deployments", "quarantined"} {
			if _, ok := raw[key].([]any); !ok {
				tr.Errorf("%s is %v, should be a list", key, raw[key])
			}
		}
		for _, key := range []string{"committed", "pending"} {
			if _, ok := at(raw, "config", key).(string); !ok {
				tr.Errorf("config.%s is %v, should be text", key, at(raw, "config", key))
			}
		}
		return raw
	}
	tr := newTree(t)
	before := tr.all()
	if raw := keys(tr); at(raw, "config", "committed") != "" || raw["state"] != "Done" {
		t.Errorf("never configured: %v", raw)
	}
	tr.same(before, tr.all(), snapshot.Untouched)
	start := time.Now().Add(-time.Second)
	tr.apply(doc("a", withFile("/etc/f", "1")))
	raw := keys(tr)
	since, _ := raw["since"].(string)
	when, err := time.Parse(time.RFC3339, since)
	if err != nil || when.Before(start.Truncate(time.Second)) || when.After(time.Now()) {
		t.Errorf("since %q: %v", since, err)
	}
	if at(raw, "config", "committed") != "a" || raw["state"] != "Done" || raw["reason"] != "" {
		t.Errorf("%v", raw)
	}
	tr.tryApply(doc("b", withFile("/etc/f", "1", obj{"user": obj{"name": "nobody-here"}}))).is(t, 1)
	raw = keys(tr)
	if reason, _ := raw["reason"].(string); raw["state"] != "Degraded" || !strings.Contains(reason, "nobody-here") || at(raw, "config", "committed") != "a" {
		t.Errorf("%v", raw)
	}
	text := tr.run("status").ok(t).stdout
	for _, want := range []string{"Degraded", "nobody-here", "a"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
}

func TestApplyResultShape(t *testing.T) {
	tr := newTree(t)
	for _, verb := range []string{"apply", "recover", "rollback"} {
		args := []string{"-o", "json"}
		if verb == "apply" {
			tr.apply(doc("first", withFile("/etc/f", "0")))
			args = append(args, "--config", tr.save(doc("a", withFile("/etc/f", "1"))))
		}
		r := tr.run(verb, args...).ok(t)
		var raw obj
		r.json(t, &raw)
		if raw["reboot"] != "none" || at(raw, "status", "state") != "Done" {
			t.Errorf("%s: %v", verb, raw)
		}
		_, hasPlan := raw["plan"]
		if want := verb != "recover"; hasPlan != want {
			t.Errorf("%s: plan is there: %t", verb, hasPlan)
		}
		if changes, ok := at(raw, "plan", "changes").([]any); verb != "recover" && (!ok || len(changes) != 1) {
			t.Errorf("%s: changes %v", verb, changes)
		}
	}
}

func TestRecoverOnAQuietTreeChangesNothing(t *testing.T) {
	tr := newTree(t)
	before := tr.all()
	tr.run("recover").ok(t)
	tr.same(before, tr.all(), snapshot.Untouched)
	tr.apply(doc("a", withFile("/etc/f", "1")))
	tr.apply(doc("b", withFile("/etc/f", "2")))
	before = tr.all()
	tr.run("recover").ok(t)
	tr.same(before, tr.all(), snapshot.Untouched)
	tr.committed("b")
}

func TestNothingButTheOwnStateIsMadeBeside(t *testing.T) {
	tr := newTree(t)
	before := tr.take()
	tr.apply(doc("a", withFile("/etc/f", "1")))
	var news []string
	for path := range tr.take() {
		if _, was := before[path]; !was {
			news = append(news, path)
		}
	}
	if !slices.Equal(news, []string{"etc/f"}) {
		t.Errorf("new in the tree: %v", news)
	}
}

// block makes a command stop at its first line of progress, by a standard error that is full, and waits until it has the
// host's lock. It returns its process id and how to let it go on; that waits for its end.
func (tr *tree) block(verb string, args ...string) (pid string, proceed func() error) {
	tr.Helper()
	r, w, err := os.Pipe()
	tr.must(err)
	size, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096)
	tr.must(err)
	_, err = w.Write(make([]byte, size))
	tr.must(err)
	cmd := exec.CommandContext(tr.Context(), filepath.Join(binaries, daemon), append([]string{verb, "--root", tr.root}, args...)...)
	cmd.Stderr = w
	tr.must(cmd.Start())
	tr.must(w.Close())
	pid = strconv.Itoa(cmd.Process.Pid)
	// The lock says who has it. Trying it instead could take it from the command that is to have it.
	for deadline := time.Now().Add(time.Minute); ; {
		data, err := os.ReadFile(tr.path("run/machine-config-daemon/lock"))
		if err == nil && strings.Contains(string(data), pid) {
			break
		}
		if time.Now().After(deadline) {
			tr.Fatalf("%s does not get to the lock: %q, %v", verb, data, err)
		}
	}
	return pid, func() error {
		go func() {
			_, _ = r.WriteTo(discard{})
		}()
		defer r.Close()
		return cmd.Wait()
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func TestOneOperationAtATime(t *testing.T) {
	tr := newTree(t)
	first := doc("first", withFile("/etc/f", "1"))
	tr.apply(first)
	pid, proceed := tr.block("apply", "--config", tr.save(doc("second", withFile("/etc/f", "2"))))
	before := tr.all()
	for _, args := range [][]string{{"recover"}, {"rollback"}, {"apply", "--config", tr.save(first)}} {
		tr.run(args[0], args[1:]...).fails(t, 5, "operation", pid)
	}
	if s := tr.status(); s.Config.Committed != "first" {
		t.Errorf("status beside an operation: %+v", s)
	}
	tr.same(before, tr.all(), snapshot.Untouched)
	if err := proceed(); err != nil {
		t.Fatal(err)
	}
	tr.committed("second")
	tr.run("recover").ok(t)
}

func TestADamagedBootRecordStopsWhateverActs(t *testing.T) {
	const record = "var/lib/machine-config-daemon/boot.json"
	tests := []struct {
		name   string
		damage func(string) string
		says   string
	}{
		{"empty", func(string) string { return "" }, "damaged"},
		{"cut", func(s string) string { return s[:len(s)/2] }, "damaged"},
		{"garbage", func(string) string { return "\x00\x00\x00" }, "damaged"},
		{"another bit", func(s string) string { return strings.Replace(s, `"config":"b"`, `"config":"c"`, 1) }, "damaged"},
		{"more", func(s string) string { return s + "{}" }, "damaged"},
		{"another document", func(string) string { return `{"version":1}` }, "damaged"},
		{"newer", func(s string) string { return strings.Replace(s, `"version":1`, `"version":2`, 1) }, "newer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTree(t)
			tr.apply(doc("a", withFile("/etc/f", "1")))
			tr.apply(doc("b", withFile("/etc/f", "2")))
			damaged := tt.damage(tr.read(record))
			if damaged == tr.read(record) {
				t.Fatal("it is not damaged")
			}
			tr.put(record, damaged, 0o600)
			before := tr.all()
			config := tr.save(doc("c", withFile("/etc/f", "3")))
			for _, args := range [][]string{{"apply", "--config", config}, {"recover"}, {"rollback"}, {"verify"}, {"plan", "--desired", config}} {
				tr.run(args[0], args[1:]...).is(t, 1, "boot record", tt.says)
			}
			s := tr.status()
			if s.State != "Degraded" || !strings.Contains(s.Reason, tt.says) || !s.Unreadable {
				t.Errorf("status %+v", s)
			}
			tr.same(before, tr.all(), snapshot.Untouched)
		})
	}
}

func TestALostCopyOfTheConfigurationIsSaidAndHeals(t *testing.T) {
	for name, lose := range map[string]func(*tree, string){
		"gone":    func(tr *tree, at string) { tr.must(os.Remove(tr.path(at))) },
		"damaged": func(tr *tree, at string) { tr.put(at, "{}", 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			tr.apply(doc("a", withFile("/etc/f", "1")))
			at, err := os.Readlink(tr.path("etc/machine-config-daemon/currentconfig"))
			tr.must(err)
			lose(tr, at)
			before := tr.take()
			tr.run("verify").is(t, 1, "configuration a")
			tr.same(before, tr.take(), snapshot.Times)
			r := tr.apply(doc("b", withFile("/etc/f", "2")))
			if w := r.lines("warning:"); len(w) != 1 || !strings.Contains(w[0], "configuration a") {
				t.Errorf("warnings: %v", w)
			}
			tr.has(map[string]string{"etc/f": "file 0644 0:0 2"})
			tr.settled("b", withFile("/etc/f", "2"))
		})
	}
}

func TestOSOfATree(t *testing.T) {
	tr := newTree(t)
	config := tr.save(doc("a", withFile("/etc/f", "1")))
	tr.run("apply", "--config", config, "--os", "none", "--no-reboot").ok(t)
	tr.committed("a")
	for _, backend := range []string{"rpm-ostree", "bootc", "ostree"} {
		before := tr.all()
		tr.run("apply", "--config", config, "--os", backend).is(t, 1, backend)
		tr.same(before, tr.all(), snapshot.Untouched)
	}
}

func TestTheCommittedConfigurationCanBeReadWhereItIsLookedFor(t *testing.T) {
	tr := newTree(t)
	tr.apply(doc("a", withFile("/etc/f", "1")))
	target, err := os.Readlink(tr.path("etc/machine-config-daemon/currentconfig"))
	tr.must(err)
	var mc obj
	if err := json.Unmarshal([]byte(tr.read(target)), &mc); err != nil || at(mc, "metadata", "name") != "a" {
		t.Errorf("%v: %v", err, mc)
	}
}

func TestDirectoriesMadeOnTheWayGoWithTheLastThatStandsInThem(t *testing.T) {
	tr := newTree(t)
	tr.must(os.MkdirAll(tr.path("srv/shared"), 0o755))
	a := doc("a", withFile("/etc/a.conf", "a"))
	tr.apply(a)
	before := tr.take()
	tr.apply(doc("b", withFile("/etc/a.conf", "a"), withFile("/etc/deep/er/x.conf", "x"), withFile("/srv/shared/y", "y"),
		withUnit("u.service", contents("[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=u.target\n"), obj{"enabled": true})))
	tr.apply(doc("c", withFile("/etc/a.conf", "a"), withFile("/etc/deep/z.conf", "z")))
	if got := tr.what("etc/deep/er"); got != "absent" {
		t.Errorf("etc/deep/er is %s", got)
	}
	tr.apply(a)
	tr.same(before, tr.take(), snapshot.Content)

	tr.apply(doc("d", withFile("/etc/deep/x.conf", "x")))
	tr.put("etc/deep/others", "theirs", 0o644)
	tr.apply(a)
	if tr.read("etc/deep/others") != "theirs" {
		t.Error("a directory went with what others have in it")
	}
	again := tr.take()
	tr.apply(a)
	tr.same(again, tr.take(), snapshot.Untouched)
}
