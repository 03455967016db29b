// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/files"
)

var yes, no = new(true), new(false)

// hostTree is a host by path: contents, or "-> target" for a link, or "" and a path that ends in a slash for a directory.
type hostTree map[string]string

func (h hostTree) build(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range slices.Sorted(maps.Keys(h)) {
		at := filepath.Join(dir, p)
		must(t, os.MkdirAll(filepath.Dir(at), 0o755))
		switch target, isLink := strings.CutPrefix(h[p], "-> "); {
		case strings.HasSuffix(p, "/"):
			must(t, os.MkdirAll(at, 0o755))
		case isLink:
			must(t, os.Symlink(target, at))
		default:
			must(t, os.WriteFile(at, []byte(h[p]), 0o644))
		}
	}
	return dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openRoot(t testing.TB, dir string) *files.Root {
	t.Helper()
	r, err := files.Open(dir)
	must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// links returns the links below /etc/systemd/system and where they lead. Two forms count as one, in which versions of
// systemd differ: 252 as Debian 12 builds it searches /lib where 257 searches /usr/lib, one directory; and the alias of
// a linked unit points at its file before 256, at the link to it since.
func links(t testing.TB, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	base := filepath.Join(dir, UnitDir)
	err := filepath.WalkDir(base, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink == 0 {
			return err
		}
		target, err := os.Readlink(p)
		if rest, ok := strings.CutPrefix(target, "/lib/"); ok {
			target = "/usr/lib/" + rest
		}
		found[strings.TrimPrefix(p, base+"/")] = target
		return err
	})
	must(t, err)
	for p, target := range found {
		if via, ok := found[strings.TrimPrefix(target, etcUnits)]; ok && strings.HasPrefix(target, etcUnits) {
			found[p] = via
		}
	}
	return found
}

// meet makes the tree what the wants say, with nothing but the standard library.
func meet(t testing.TB, dir string, wants []files.Want) {
	t.Helper()
	for _, w := range wants {
		at := filepath.Join(dir, w.Path)
		if err := os.Remove(at); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		switch w.Node.Type {
		case files.Absent:
		case files.Symlink:
			must(t, os.MkdirAll(filepath.Dir(at), 0o755))
			must(t, os.Symlink(w.Node.Target, at))
		case files.Regular:
			must(t, os.MkdirAll(filepath.Dir(at), 0o755))
			must(t, os.WriteFile(at, w.Node.Data, os.FileMode(w.Node.Mode)))
		default:
			t.Fatalf("%s: unexpected type %s", w.Path, w.Node.Type)
		}
	}
}

func service(install string) string {
	return "[Unit]\nDescription=x\n[Service]\nExecStart=/bin/true\n[Install]\n" + install
}

const (
	usrUnits = "/usr/lib/systemd/system/"
	etcUnits = "/etc/systemd/system/"
	presets  = "/usr/lib/systemd/system-preset/"
)

// systemctl runs the real one on a tree. Where it is not installed the comparison can't be made: the lab requires it.
func systemctl(t *testing.T, root string, args ...string) string {
	t.Helper()
	bin, err := exec.LookPath("systemctl")
	if err != nil {
		if os.Getenv("LAB") == "require" {
			t.Fatal("systemctl is not installed, and LAB=require asks for the comparison with it")
		}
		t.Skip("systemctl is not installed: nothing to compare with (LAB=require makes this a failure)")
	}
	out, err := exec.Command(bin, append([]string{"--root=" + root}, args...)...).CombinedOutput()
	if err != nil {
		// Refusals are part of what is compared.
		return string(out) + err.Error()
	}
	return string(out)
}

// TestEnablementIsWhatSystemctlDoes runs systemctl on one copy of a tree and Wants on another.
func TestEnablementIsWhatSystemctlDoes(t *testing.T) {
	full := hostTree{
		"/lib":                                              "-> usr/lib",
		usrUnits + "plain.service":                          service("WantedBy=multi-user.target\nRequiredBy=a.target \"b.target\"\n"),
		usrUnits + "multi-user.target":                      "[Unit]\nDescription=x\n",
		usrUnits + "aliased.service":                        service("Alias=second.service third.service\nWantedBy=multi-user.target\n"),
		usrUnits + "vendoralias.service":                    "-> plain.service",
		usrUnits + "tmpl@.service":                          service("WantedBy=multi-user.target\nDefaultInstance=one\n"),
		usrUnits + "bare@.service":                          service("WantedBy=multi-user.target\n"),
		usrUnits + "tt@.service":                            service("WantedBy=grp@.target grp@%i.target\nAlias=ttalias@.service\n"),
		usrUnits + "also.service":                           service("WantedBy=multi-user.target\nAlso=also.socket nothere.socket\n"),
		usrUnits + "also.socket":                            "[Socket]\nListenStream=/run/x\n[Install]\nWantedBy=sockets.target\n",
		usrUnits + "sp-ec@.service":                         service("Alias=al-%j@%i.service\nWantedBy=%p-%i.target %N.target n-%n.wanted.target %%.target p%j.target\nDefaultInstance=d\n"),
		usrUnits + "static.service":                         "[Service]\nExecStart=/bin/true\n",
		usrUnits + "dropped.service":                        service("WantedBy=multi-user.target\n"),
		usrUnits + "dropped.service.d/10-more.conf":         "[Install]\nWantedBy=more.target\n",
		"/run/systemd/system/dropped.service.d/20-run.conf": "[Install]\nRequiredBy=run.target\n",
		etcUnits + "dropped.service.d/10-more.conf":         "[Install]\nWantedBy=\nWantedBy=reset.target\n",
		usrUnits + "hushed.service":                         service("WantedBy=multi-user.target\n"),
		usrUnits + "hushed.service.d/a.conf":                "[Install]\nWantedBy=never.target\n",
		etcUnits + "hushed.service.d/a.conf":                "",
		usrUnits + "inst@.service":                          service("WantedBy=multi-user.target\n"),
		usrUnits + "inst@.service.d/t.conf":                 "[Install]\nWantedBy=tmpl-%i.target\n",
		etcUnits + "inst@x.service.d/i.conf":                "[Install]\nRequiredBy=own.target\n",
		usrUnits + "legacy.service":                         service("Alias=multi-user.target.wants/legacy.service\n"),
		usrUnits + "badalias.service":                       service("Alias=wrong.socket good.service\nWantedBy=multi-user.target\n"),
		usrUnits + "cont.service":                           service("WantedBy=one.target \\\n# a comment in between\n  two.target\nWantedBy=three.target\n"),
		usrUnits + "a.mount":                                "[Mount]\nWhat=/dev/x\nWhere=/a\n[Install]\nWantedBy=local-fs.target\nAlias=b.mount\n",
		"/opt/linked.service":                               service("WantedBy=multi-user.target\nAlias=linkalias.service\n"),
		etcUnits + "linked.service":                         "-> /opt/linked.service",
		etcUnits + "hostmask.service":                       "-> /dev/null",
		usrUnits + "hostmask.service":                       service("WantedBy=multi-user.target\n"),
		"/usr/local/lib/systemd/system/local.service":       service("WantedBy=multi-user.target\n"),
		etcUnits + "override.service":                       service("WantedBy=etc.target\n"),
		usrUnits + "override.service":                       service("WantedBy=usr.target\n"),
		usrUnits + "taken.service":                          service("Alias=dm.service\nWantedBy=multi-user.target\n"),
		etcUnits + "dm.service":                             "-> /usr/lib/systemd/system/static.service",
		// What an older enablement left.
		etcUnits + "old.target.wants/aliased.service":          "-> /usr/lib/systemd/system/aliased.service",
		etcUnits + "oldname.service":                           "-> /usr/lib/systemd/system/aliased.service",
		etcUnits + "multi-user.target.wants/tmpl@two.service":  "-> /usr/lib/systemd/system/tmpl@.service",
		etcUnits + "multi-user.target.wants/gone.service":      "-> /usr/lib/systemd/system/gone.service",
		etcUnits + "multi-user.target.requires/static.service": "-> ../../../../usr/lib/systemd/system/static.service",
		etcUnits + "multi-user.target.wants/local.service":     "-> ../../../../usr/local/lib/systemd/system/local.service",
	}
	on := func(names ...string) (u []Unit) {
		for _, n := range names {
			u = append(u, Unit{Name: n, Enabled: yes})
		}
		return u
	}
	off := func(names ...string) (u []Unit) {
		for _, n := range names {
			u = append(u, Unit{Name: n, Enabled: no})
		}
		return u
	}
	preset := func(names ...string) (u []Unit) {
		for _, n := range names {
			u = append(u, Unit{Name: n, Preset: true})
		}
		return u
	}
	rules := func(lines string) hostTree { return hostTree{presets + "50-x.preset": lines} }

	tests := []struct {
		name  string
		extra hostTree
		runs  []string // systemctl arguments, one command an element
		units []Unit
	}{
		{"a plain unit", nil, []string{"enable plain.service"}, on("plain.service")},
		{"aliases, and links of an [Install] that is no more", nil, []string{"reenable aliased.service"}, on("aliased.service")},
		{"by a vendor's alias", nil, []string{"enable vendoralias.service"}, on("vendoralias.service")},
		{"by an alias in /etc is refused", hostTree{etcUnits + "etcalias.service": "-> /usr/lib/systemd/system/plain.service"},
			[]string{"enable etcalias.service"}, on("etcalias.service")},
		{"a template with a default instance", nil, []string{"enable tmpl@.service"}, on("tmpl@.service")},
		{"a template with a default instance, other instance", nil, []string{"enable tmpl@x.service"}, on("tmpl@x.service")},
		{"a template without an instance is refused", nil, []string{"enable bare@.service"}, on("bare@.service")},
		{"an instance", nil, []string{"enable bare@y.service"}, on("bare@y.service")},
		{"a template for a template", nil, []string{"enable tt@.service"}, on("tt@.service")},
		{"an instance for a template", nil, []string{"enable tt@k.service"}, on("tt@k.service")},
		{"specifiers in a template", nil, []string{"enable sp-ec@.service"}, on("sp-ec@.service")},
		{"specifiers in an instance", nil, []string{"enable sp-ec@q.service"}, on("sp-ec@q.service")},
		{"a static unit", nil, []string{"enable static.service"}, on("static.service")},
		{"drop-ins over all directories", nil, []string{"enable dropped.service"}, on("dropped.service")},
		{"a masked drop-in", nil, []string{"enable hushed.service"}, on("hushed.service")},
		{"drop-ins of template and instance", nil, []string{"enable inst@x.service"}, on("inst@x.service")},
		{"dependencies written as aliases", nil, []string{"enable legacy.service"}, on("legacy.service")},
		{"dependencies written as aliases, of another unit", hostTree{
			usrUnits + "lie.service":   service("Alias=multi-user.target.wants/truth.service multi-user.target.wants/t@.service\n"),
			usrUnits + "tlie@.service": service("Alias=x@.target.wants/tlie@.service x.target.wants/tlie@q.service x.target.requires/tlie@.service\n"),
		}, []string{"enable lie.service", "enable tlie@.service"}, on("lie.service", "tlie@.service")},
		{"an alias of another type", nil, []string{"enable badalias.service"}, on("badalias.service")},
		{"continued lines", nil, []string{"enable cont.service"}, on("cont.service")},
		{"a type that has no aliases", nil, []string{"enable a.mount"}, on("a.mount")},
		{"a linked unit", nil, []string{"enable linked.service"}, on("linked.service")},
		{"a masked unit is refused", nil, []string{"enable hostmask.service"}, on("hostmask.service")},
		{"/usr/local, relative link already there", nil, []string{"enable local.service"}, on("local.service")},
		{"/etc before /usr", nil, []string{"enable override.service"}, on("override.service")},
		{"an alias that another unit has", nil, []string{"enable taken.service"}, on("taken.service")},
		{"a unit that is not there", nil, []string{"enable nope.service"}, on("nope.service")},
		{"several at once", nil, []string{"enable plain.service bare@a.service bare@b.service"},
			on("plain.service", "bare@a.service", "bare@b.service")},

		{"disabling removes all names", nil, []string{"disable aliased.service"}, off("aliased.service")},
		{"disabling what is not there removes its links", nil, []string{"disable gone.service"}, off("gone.service")},
		{"disabling a template removes its instances", nil, []string{"disable tmpl@.service"}, off("tmpl@.service")},
		{"disabling an instance", nil, []string{"disable tmpl@two.service"}, off("tmpl@two.service")},
		{"disabling a linked unit unlinks it", nil, []string{"enable linked.service", "disable linked.service"}, off("linked.service")},
		{"disabling by a vendor's alias", nil, []string{"disable vendoralias.service"}, off("vendoralias.service")},
		{"disabling a static unit", nil, []string{"disable static.service"}, off("static.service")},
		{"disabling a masked unit", nil, []string{"disable hostmask.service"}, off("hostmask.service")},
		{"disabling a relative link", nil, []string{"disable local.service"}, off("local.service")},
		{"disabling the one whose name another wants", nil, []string{"disable static.service", "enable taken.service"},
			append(off("static.service"), on("taken.service")...)},
		{"disabling follows Also=", hostTree{etcUnits + "sockets.target.wants/also.socket": "-> /usr/lib/systemd/system/also.socket"},
			[]string{"disable also.service"}, off("also.service")},

		{"preset: default is enable", nil, []string{"preset plain.service"}, preset("plain.service")},
		{"preset: disable", rules("disable plain.service\n"), []string{"preset plain.service"}, preset("plain.service")},
		{"preset: first match wins", rules("# c\n\n; d\nenable pl*\ndisable *\n"),
			[]string{"preset plain.service local.service"}, preset("plain.service", "local.service")},
		{"preset: files in order of names, /etc over /usr",
			hostTree{presets + "50-x.preset": "disable *\n", "/etc/systemd/system-preset/50-x.preset": "enable plain.service\n",
				presets + "90-y.preset": "disable *\n"},
			[]string{"preset plain.service local.service"}, preset("plain.service", "local.service")},
		{"preset: a masked file", hostTree{presets + "50-x.preset": "disable *\n", "/etc/systemd/system-preset/50-x.preset": "-> /dev/null"},
			[]string{"preset plain.service"}, preset("plain.service")},
		{"preset: classes", rules("disable [!a-o]lain.servic?\n"), []string{"preset plain.service"}, preset("plain.service")},
		{"preset: an open class is no pattern", rules("disable [p*\n"), []string{"preset plain.service"}, preset("plain.service")},
		{"preset: instances", rules("enable bare@.service a b\ndisable *\n"), []string{"preset bare@.service"}, preset("bare@.service")},
		{"preset: one of the instances", rules("enable bare@.service a b\ndisable *\n"),
			[]string{"preset bare@a.service"}, preset("bare@a.service")},
		{"preset: not one of the instances", rules("enable bare@.service a b\ndisable *\n"),
			[]string{"preset bare@c.service"}, preset("bare@c.service")},
		{"preset: template without instance", nil, []string{"preset bare@.service"}, preset("bare@.service")},
		{"preset: template keeps the instances of others", nil, []string{"preset tmpl@.service"}, preset("tmpl@.service")},
		{"preset: an alias is passed over", rules("disable *\n"), []string{"preset vendoralias.service"}, preset("vendoralias.service")},
		{"preset: static", nil, []string{"preset static.service"}, preset("static.service")},
		{"preset: disabled static", rules("disable *\n"), []string{"preset static.service"}, preset("static.service")},
		{"preset: masked", nil, []string{"preset hostmask.service"}, preset("hostmask.service")},

		{"masking", nil, []string{"mask plain.service"}, []Unit{{Name: "plain.service", Mask: yes}}},
		{"unmasking", nil, []string{"unmask hostmask.service"}, []Unit{{Name: "hostmask.service", Mask: no}}},
		{"unmasking leaves an administrator's file", nil, []string{"unmask override.service"}, []Unit{{Name: "override.service", Mask: no}}},
		{"unmasking and enabling", nil, []string{"unmask hostmask.service", "enable hostmask.service"},
			[]Unit{{Name: "hostmask.service", Mask: no, Enabled: yes}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			host := maps.Clone(full)
			maps.Copy(host, tt.extra)
			theirs, ours := host.build(t), host.build(t)
			var said []string
			for _, r := range tt.runs {
				said = append(said, systemctl(t, theirs, strings.Fields(r)...))
			}
			wants, warnings, err := Wants(openRoot(t, ours), tt.units, nil, nothingKept{})
			must(t, err)
			meet(t, ours, wants)
			if diff := cmp.Diff(links(t, theirs), links(t, ours)); diff != "" {
				t.Errorf("links differ (-systemctl +ours):\n%s\nsystemctl said:\n%s\nwe said: %q", diff, strings.Join(said, "\n"), warnings)
			}
			// A second look finds nothing to do.
			again, _, err := Wants(openRoot(t, ours), tt.units, nil, nothingKept{})
			must(t, err)
			before := links(t, ours)
			meet(t, ours, again)
			if diff := cmp.Diff(before, links(t, ours)); diff != "" {
				t.Errorf("not stable:\n%s", diff)
			}
		})
	}
}
