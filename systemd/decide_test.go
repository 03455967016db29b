// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/systemd/syntax"
)

// short writes a want as "path type[=target or contents] kind/name aspect".
func short(w files.Want) string {
	s := w.Path + " " + string(w.Node.Type)
	switch w.Node.Type {
	case files.Symlink:
		s += "=" + w.Node.Target
	case files.Regular:
		s += fmt.Sprintf("=%d bytes %04o", len(w.Node.Data), w.Node.Mode)
	}
	return strings.TrimSpace(s + " " + w.Kind + ":" + w.Name + " " + string(w.Aspect))
}

func TestUnitsComeDownToPaths(t *testing.T) {
	const mu = etcUnits + "multi-user.target.wants/"
	usr := hostTree{
		usrUnits + "v.service":     service("WantedBy=multi-user.target\n"),
		usrUnits + "w.service":     service("WantedBy=multi-user.target\n"),
		usrUnits + "static.target": "[Unit]\nDescription=x\n",
	}
	with := func(more hostTree) hostTree {
		h := maps.Clone(usr)
		maps.Copy(h, more)
		return h
	}
	contents := service("WantedBy=multi-user.target\nAlias=c2.service\n")
	file := fmt.Sprintf(" file=%d bytes 0644 unit:c.service", len(contents))
	tests := []struct {
		name     string
		host     hostTree
		units    []Unit
		released []string
		want     []string
		warnings []string
	}{
		{name: "contents and drop-ins", host: hostTree{},
			units: []Unit{{Name: "c.service", Contents: contents, Dropins: []Dropin{{"a.conf", "[Unit]\n"}, {"b.conf", ""}}}},
			want: []string{
				etcUnits + "c.service" + file,
				etcUnits + "c.service.d/a.conf file=7 bytes 0644 dropin:c.service/a.conf",
				etcUnits + "c.service.d/b.conf absent dropin:c.service/b.conf",
			}},
		{name: "new contents count for [Install], not what the host has", host: with(hostTree{etcUnits + "c.service": service("WantedBy=old.target\n"),
			etcUnits + "old.target.wants/c.service": "-> /etc/systemd/system/c.service", etcUnits + "c1.service": "-> c.service"}),
			units: []Unit{{Name: "c.service", Contents: contents, Enabled: yes}},
			want: []string{
				etcUnits + "c.service" + file,
				etcUnits + "c1.service absent unit:c.service enabled",
				etcUnits + "c2.service link=/etc/systemd/system/c.service unit:c.service enabled",
				mu + "c.service link=/etc/systemd/system/c.service unit:c.service enabled",
				etcUnits + "old.target.wants/c.service absent unit:c.service enabled",
			}},
		{name: "a new drop-in counts for [Install] of a vendor's unit", host: usr,
			units: []Unit{{Name: "v.service", Enabled: yes, Dropins: []Dropin{{"a.conf", "[Install]\nWantedBy=x.target\n"}}}},
			want: []string{mu + "v.service link=" + usrUnits + "v.service unit:v.service enabled",
				etcUnits + "v.service.d/a.conf file=28 bytes 0644 dropin:v.service/a.conf",
				etcUnits + "x.target.wants/v.service link=" + usrUnits + "v.service unit:v.service enabled"}},
		{name: "a drop-in that goes does not count", host: with(hostTree{etcUnits + "v.service.d/a.conf": "[Install]\nWantedBy=x.target\n"}),
			units: []Unit{{Name: "v.service", Enabled: yes, Dropins: []Dropin{{"a.conf", ""}}}},
			want: []string{mu + "v.service link=" + usrUnits + "v.service unit:v.service enabled",
				etcUnits + "v.service.d/a.conf absent dropin:v.service/a.conf"}},
		{name: "enabled not said and unchanged: links are left alone", host: with(hostTree{mu + "v.service": "-> " + usrUnits + "v.service"}),
			units: []Unit{{Name: "v.service"}}},
		{name: "UpheldBy", host: hostTree{usrUnits + "u.service": service("UpheldBy=x.target\n")},
			units: []Unit{{Name: "u.service", Enabled: yes}},
			want:  []string{etcUnits + "x.target.upholds/u.service link=" + usrUnits + "u.service unit:u.service enabled"}},
		{name: "a link that leads there already is wanted as it is", host: with(hostTree{"/lib": "-> usr/lib", mu + "v.service": "-> /lib/systemd/system/v.service"}),
			units: []Unit{{Name: "v.service", Enabled: yes}},
			want:  []string{mu + "v.service link=/lib/systemd/system/v.service unit:v.service enabled"}},

		{name: "masked", host: usr, units: []Unit{{Name: "v.service", Contents: contents, Mask: yes}},
			want: []string{etcUnits + "v.service link=/dev/null unit:v.service masked"}},
		{name: "masked and enabled", host: with(hostTree{mu + "v.service": "-> " + usrUnits + "v.service"}),
			units: []Unit{{Name: "v.service", Mask: yes, Enabled: yes}},
			want: []string{mu + "v.service absent unit:v.service enabled",
				etcUnits + "v.service link=/dev/null unit:v.service masked"},
			warnings: []string{"unit v.service: the unit is both masked and enabled: the mask counts"}},
		{name: "mask: false where there is no mask", host: with(hostTree{etcUnits + "v.service": contents}),
			units: []Unit{{Name: "v.service", Mask: no}}},
		{name: "mask: false lifts a mask", host: with(hostTree{etcUnits + "v.service": "-> /dev/null"}),
			units: []Unit{{Name: "v.service", Mask: no, Enabled: yes}},
			want: []string{mu + "v.service link=" + usrUnits + "v.service unit:v.service enabled",
				etcUnits + "v.service absent unit:v.service masked"}},

		{name: "nothing to enable", host: usr, units: []Unit{{Name: "none.service", Enabled: yes}},
			warnings: []string{"unit none.service: enabled, but the unit has neither contents nor a unit file on this host: skipped"}},
		{name: "no [Install]", host: with(hostTree{etcUnits + "x.target.wants/static.target": "-> " + usrUnits + "static.target"}),
			units:    []Unit{{Name: "static.target", Enabled: yes}},
			warnings: []string{"unit static.target: enabled, but the unit has no [Install] section: nothing to do"}},
		{name: "default.target is not multi-user's enablement", host: with(hostTree{etcUnits + "default.target": "-> " + usrUnits + "static.target"}),
			units: []Unit{{Name: "static.target", Enabled: no}}},
		{name: "a mask among the dependencies is none", host: with(hostTree{etcUnits + "x.target.wants/v.service": "-> /dev/null"}),
			units: []Unit{{Name: "v.service", Enabled: no}}},
		{name: "an instance that the configuration leaves alone, of a template that it disables", host: hostTree{
			usrUnits + "t@.service": service("WantedBy=multi-user.target\n"),
			mu + "t@a.service":      "-> " + usrUnits + "t@.service", mu + "t@b.service": "-> " + usrUnits + "t@.service"},
			units: []Unit{{Name: "t@.service", Enabled: no}, {Name: "t@a.service"}},
			want:  []string{mu + "t@b.service absent unit:t@.service enabled"}},
		{name: "a place that a file has", host: with(hostTree{mu + "v.service": "a file"}), units: []Unit{{Name: "v.service", Enabled: yes}},
			want: []string{mu + "v.service link=/usr/lib/systemd/system/v.service unit:v.service enabled"}},
		{name: "an alias that is a unit of the configuration", host: hostTree{},
			units: []Unit{{Name: "c.service", Contents: contents, Enabled: yes}, {Name: "c2.service", Contents: contents}},
			want: []string{etcUnits + "c.service" + file, etcUnits + "c2.service" + strings.ReplaceAll(file, "c.s", "c2.s"),
				mu + "c.service link=/etc/systemd/system/c.service unit:c.service enabled"},
			warnings: []string{"unit c.service: not wholly enabled: " + etcUnits + "c2.service belongs to c2.service in this configuration"}},

		{name: "Also= does not go before what the configuration says", host: with(hostTree{
			usrUnits + "a.service": service("WantedBy=multi-user.target\nAlso=v.service w.service\n"),
			usrUnits + "b.service": service("Also=v.service w.service\n"), mu + "w.service": "-> " + usrUnits + "w.service"}),
			units: []Unit{{Name: "a.service", Enabled: yes}, {Name: "b.service", Enabled: no}, {Name: "v.service", Enabled: no}},
			want: []string{mu + "a.service link=" + usrUnits + "a.service unit:a.service enabled",
				mu + "w.service link=" + usrUnits + "w.service unit:a.service enabled"},
			warnings: []string{"unit a.service: Also=v.service: that unit stays disabled, as the configuration demands"}},
		{name: "two names of one unit", host: with(hostTree{usrUnits + "x.service": "-> v.service"}),
			units: []Unit{{Name: "x.service", Enabled: no}, {Name: "v.service", Enabled: yes}},
			want:  []string{mu + "v.service link=" + usrUnits + "v.service unit:v.service enabled"}},

		{name: "released: to the deployment's own links", host: with(hostTree{
			"/usr/etc/systemd/system/other.target.wants/v.service": "-> " + usrUnits + "v.service",
			mu + "v.service": "-> " + usrUnits + "v.service", mu + "w.service": "-> " + usrUnits + "w.service"}),
			released: []string{"v.service"},
			want: []string{mu + "v.service absent unit:v.service enabled",
				etcUnits + "other.target.wants/v.service link=" + usrUnits + "v.service unit:v.service enabled"}},
		{name: "released: to what presets say of the vendor's unit", host: with(hostTree{presets + "1.preset": "disable w*\n",
			etcUnits + "v.service": contents, etcUnits + "old.target.wants/v.service": "-> /etc/systemd/system/v.service",
			mu + "w.service": "-> " + usrUnits + "w.service"}),
			released: []string{"v.service", "w.service"},
			want: []string{mu + "v.service link=" + usrUnits + "v.service unit:v.service enabled",
				mu + "w.service absent unit:w.service enabled",
				etcUnits + "old.target.wants/v.service absent unit:v.service enabled"}},
		{name: "released: a unit that only the configuration brought", host: with(hostTree{etcUnits + "c.service": contents,
			etcUnits + "c2.service": "-> /etc/systemd/system/c.service", mu + "c.service": "-> /etc/systemd/system/c.service"}),
			released: []string{"c.service"},
			want: []string{etcUnits + "c2.service absent unit:c.service enabled",
				mu + "c.service absent unit:c.service enabled"}},
		{name: "released and here again", host: usr, units: []Unit{{Name: "v.service"}}, released: []string{"v.service"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			host := openRoot(t, tt.host.build(t))
			wants, warnings, err := Wants(host, tt.units, tt.released, nothingKept{host})
			must(t, err)
			got, want := map[string]bool{}, map[string]bool{}
			for _, w := range wants {
				got[short(w)] = true
			}
			for _, w := range tt.want {
				want[w] = true
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("wants (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tt.warnings, warnings); diff != "" {
				t.Errorf("warnings (-want +got)\n%s", diff)
			}
		})
	}
}

// An older systemctl has no "ignore".
func TestPresetIgnoreLeavesLinksAlone(t *testing.T) {
	host := hostTree{usrUnits + "v.service": service("WantedBy=x.target\n"), presets + "1.preset": "ignore v.service\n",
		etcUnits + "y.target.wants/v.service": "-> " + usrUnits + "v.service"}
	wants, warnings, err := Wants(openRoot(t, host.build(t)), []Unit{{Name: "v.service", Preset: true}}, nil, nothingKept{})
	must(t, err)
	if len(wants)+len(warnings) > 0 {
		t.Errorf("got %v, %q", wants, warnings)
	}
}

func TestSpecifiersOfTheSystemComeFromItsTree(t *testing.T) {
	host := hostTree{"/etc/machine-id": "0123\n", "/etc/hostname": "node-1.example\n", "/etc/os-release": "-> ../usr/lib/os-release",
		"/usr/lib/os-release": "NAME=x\nID=fedora\nVERSION_ID=\"41\"\n"}
	tree := newTree(openRoot(t, host.build(t)))
	u := &unitFile{name: "pre-fix@in-st.service"}
	for in, want := range map[string]string{
		"plain": "plain", "%m %H %l %o%w": "0123 node-1.example node-1 fedora41", "%n|%N|%p|%i|%j": "pre-fix@in-st.service|pre-fix@in-st|pre-fix|in-st|fix",
		"%%n": "%n", "%u%U%g%G": "root0root0", "%W": "", "%?": "%?", "end%": "end%",
	} {
		if got, err := tree.expand(u, in); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"%b", "a%v", "%q"} {
		if got, err := tree.expand(u, in); err == nil {
			t.Errorf("%s: got %q, want an error", in, got)
		}
	}
}

// nothingKept is a host without notes on what was there before: files that go are the image's again.
type nothingKept struct{ host Host }

func (n nothingKept) UnitFile(name string) (files.Node, bool, error) {
	at := defaultDir + "/" + name
	node, err := n.host.Inspect(at)
	if err == nil && node.Type == files.Regular {
		node.Data, err = n.host.ReadFile(at)
	}
	return node, true, err
}

func (nothingKept) Links(string) ([]Link, bool, error) { return nil, false, nil }

// kept is a host with notes: of an admin's own unit file, and of links that were there before.
type kept struct {
	file  files.Node
	links []Link
}

func (k kept) UnitFile(string) (files.Node, bool, error)          { return k.file, true, nil }
func (k kept) Links(string) (links []Link, known bool, err error) { return k.links, true, nil }

func TestAReleasedUnitIsEnabledAsItWas(t *testing.T) {
	const mu = etcUnits + "multi-user.target.wants/"
	ours := hostTree{usrUnits + "v.service": service("WantedBy=multi-user.target\n"), presets + "1.preset": "enable *\n",
		etcUnits + "v.service": service("WantedBy=x.target\nAlso=w.socket\n"), usrUnits + "w.socket": service("WantedBy=x.target\n"),
		etcUnits + "x.target.wants/v.service": "-> /etc/systemd/system/v.service",
		etcUnits + "x.target.wants/w.socket":  "-> " + usrUnits + "w.socket"}
	admins := files.Node{Type: files.Regular, Data: []byte(service("WantedBy=multi-user.target\n"))}
	for _, tt := range []struct {
		name string
		past kept
		want []string
	}{
		{"not at all, whatever the presets say", kept{file: files.Node{Type: files.Absent},
			links: []Link{{etcUnits + "x.target.wants/v.service", ""}, {etcUnits + "x.target.wants/w.socket", ""}}},
			[]string{etcUnits + "x.target.wants/v.service absent unit:v.service enabled",
				etcUnits + "x.target.wants/w.socket absent unit:v.service enabled"}},
		{"by links of its own", kept{file: admins, links: []Link{{mu + "v.service", "../v.service"}, {etcUnits + "x.target.wants/w.socket", "../w.socket"}}},
			[]string{mu + "v.service link=../v.service unit:v.service enabled",
				etcUnits + "x.target.wants/v.service absent unit:v.service enabled",
				etcUnits + "x.target.wants/w.socket link=../w.socket unit:v.service enabled"}},
	} {
		wants, _, err := Wants(openRoot(t, ours.build(t)), nil, []string{"v.service"}, tt.past)
		must(t, err)
		var got []string
		for _, w := range wants {
			got = append(got, short(w))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: wants (-want +got)\n%s", tt.name, diff)
		}
	}
}

func TestEnablementIsWhatDisablingWouldTakeAway(t *testing.T) {
	const mu = etcUnits + "multi-user.target.wants/"
	host := openRoot(t, hostTree{usrUnits + "v.service": service("WantedBy=multi-user.target\nAlso=w.socket\nAlias=alias.service\n"),
		usrUnits + "w.socket": service("WantedBy=multi-user.target\n"), usrUnits + "u.service": service("WantedBy=multi-user.target\n"),
		mu + "v.service": "-> " + usrUnits + "v.service", mu + "w.socket": "-> " + usrUnits + "w.socket",
		mu + "u.service": "-> " + usrUnits + "u.service", etcUnits + "alias.service": "-> " + usrUnits + "v.service",
		etcUnits + "m.service": "-> /dev/null", mu + "gone.service": "-> " + usrUnits + "gone.service"}.build(t))
	for unit, want := range map[string]string{
		"v.service": "true " + etcUnits + "alias.service " + mu + "v.service " + mu + "w.socket",
		"u.service": "true " + mu + "u.service", "m.service": "true", "gone.service": "false " + mu + "gone.service",
		"none.service": "false", "../x": "false"} {
		links, there, err := Enablement(host, unit)
		must(t, err)
		got := strconv.FormatBool(there)
		for _, l := range links {
			got += " " + l.Path
		}
		if got != want {
			t.Errorf("%s: %s, should be %s", unit, got, want)
		}
	}
}

func TestLoopsOfLinksAreNoUnits(t *testing.T) {
	host := hostTree{usrUnits + "a.service": "-> b.service", usrUnits + "b.service": "-> a.service",
		etcUnits + "l.service": "-> l.service", etcUnits + "x.target.wants/a.service": "-> a.service"}
	wants, warnings, err := Wants(openRoot(t, host.build(t)),
		[]Unit{{Name: "a.service", Enabled: yes}, {Name: "l.service", Enabled: yes}}, nil, nothingKept{})
	must(t, err)
	if len(wants) > 0 || len(warnings) != 2 {
		t.Errorf("got %v, %q", wants, warnings)
	}
}

func TestValidateNamesUnitAndLine(t *testing.T) {
	long := strings.Repeat("x", syntax.MaxLine)
	tests := []struct {
		unit Unit
		want string // "" for a good one
	}{
		{Unit{Name: "a.service", Contents: "\ufeff# c\n; d\n[Unit]\nDescription = x\\\n# between\n  y\n\n[X-Own]\nA=\n"}, ""},
		{Unit{Name: `dev-disk-by\x2did.swap`}, ""},
		{Unit{Name: "a@b@c.service", Contents: "stray text that systemd and Ignition pass over\n[Unit]\n"}, ""},
		{Unit{Name: "a.service", Dropins: []Dropin{{"10-a.conf", ""}, {"b.conf", "[Service]\nA=" + strings.Repeat("x", 5000)}}}, ""},
		{Unit{Name: "a"}, `unit "a": not a valid unit name`},
		{Unit{Name: ""}, `unit "": not a valid unit name`},
		{Unit{Name: "@a.service"}, `unit "@a.service": not a valid unit name`},
		{Unit{Name: "../a.service"}, `unit "../a.service": not a valid unit name`},
		{Unit{Name: "a b.service"}, `unit "a b.service": not a valid unit name`},
		{Unit{Name: "a.svc"}, `unit "a.svc": not a valid unit name`},
		{Unit{Name: strings.Repeat("a", 248) + ".service"}, "unit"},
		{Unit{Name: "a@.mount"}, "unit a@.mount: a mount unit can't be a template or an instance"},
		{Unit{Name: "a.service", Contents: "[Unit]\nA=b\nnothing\n"}, "unit a.service: line 3: neither a section header nor Key=Value"},
		{Unit{Name: "a.service", Contents: "[Unit]\n=b\n"}, "unit a.service: line 2: neither a section header nor Key=Value"},
		{Unit{Name: "a.service", Contents: "[Unit]\nA=b \\\n c\n[Unit\n"}, `unit a.service: line 4: "[Unit" is not a section header`},
		{Unit{Name: "a.service", Contents: "[Unit]\nA=\x00\n"}, "unit a.service: line 2: holds a NUL byte"},
		{Unit{Name: "a.service", Contents: "[Unit]\nA=" + long}, "unit a.service: line 2: longer than 1048576 bytes"},
		{Unit{Name: "a.service", Contents: "[Unit]\nA=\\\n" + long[9:] + "\\\n" + long[9:]}, "unit a.service: line 2: longer than 1048576 bytes with its continuations"},
		{Unit{Name: "a.service", Dropins: []Dropin{{"a.conf", "[Unit]\nx"}}}, "unit a.service: drop-in a.conf: line 2: neither a section header nor Key=Value"},
		{Unit{Name: "a.service", Dropins: []Dropin{{"a", ""}}}, `unit a.service: drop-in "a": not a file name that ends in .conf`},
		{Unit{Name: "a.service", Dropins: []Dropin{{".conf", ""}}}, `unit a.service: drop-in ".conf": not a file name that ends in .conf`},
		{Unit{Name: "a.service", Dropins: []Dropin{{"../x.conf", ""}}}, `unit a.service: drop-in "../x.conf": not a file name that ends in .conf`},
		{Unit{Name: "a.service", Dropins: []Dropin{{"a.conf", ""}, {"a.conf", "[Unit]\n"}}}, "unit a.service: drop-in a.conf: given twice"},
	}
	for _, tt := range tests {
		err := Validate(tt.unit)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want)) {
			t.Errorf("%.30s: got %.200v, want %q", tt.unit.Name, err, tt.want)
		}
	}
	if _, _, err := Wants(nil, []Unit{{Name: "../../x.service"}}, nil, nothingKept{}); err == nil {
		t.Error("Wants took a name that leads out of its directory")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("[Unit]\nA=b\\\n c\n[Install]\nWantedBy=\"x y\" z\\\n")
	f.Add("\ufeff[a]\r\nb = c\\\\\n#\\\n")
	f.Fuzz(func(t *testing.T, s string) {
		strict, err := syntax.Parse(s, true)
		lax, laxErr := syntax.Parse(s, false)
		if err == nil && (laxErr != nil || !cmp.Equal(strict, lax)) {
			t.Fatalf("strict and lax reading differ: %v, %v", strict, lax)
		}
		for _, a := range lax {
			syntax.Words(a.Value)
		}
	})
}

// BenchmarkWants judges 25 units on a host of the usual size; 5 ms are what it may cost at most.
func BenchmarkWants(b *testing.B) {
	host := hostTree{"/lib": "-> usr/lib", presets + "90-default.preset": "enable a*\ndisable *\n"}
	for i := range 400 {
		host[fmt.Sprintf("%sunit%03d.service", usrUnits, i)] = service("WantedBy=multi-user.target\n")
	}
	for i := range 80 {
		host[fmt.Sprintf("%smulti-user.target.wants/unit%03d.service", etcUnits, i)] = fmt.Sprintf("-> %sunit%03d.service", usrUnits, i)
		if i%4 == 0 {
			host[fmt.Sprintf("%salias%03d.service", etcUnits, i)] = fmt.Sprintf("-> %sunit%03d.service", usrUnits, i)
		}
	}
	var units []Unit
	for i := range 25 {
		u := Unit{Name: fmt.Sprintf("unit%03d.service", i*4)}
		switch i % 4 {
		case 0:
			u.Enabled = yes
		case 1:
			u.Enabled, u.Contents = yes, service("WantedBy=multi-user.target\nAlias=x.service\n")
		case 2:
			u.Preset, u.Dropins = true, []Dropin{{"10-x.conf", "[Service]\nRestart=always\n"}}
		case 3:
			u.Enabled = no
		}
		units = append(units, u)
	}
	root := openRoot(b, host.build(b))
	for b.Loop() {
		if _, _, err := Wants(root, units, nil, nothingKept{}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestNothingIsReadOutsideTheRoot(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret.service")
	must(t, os.WriteFile(outside, []byte(service("WantedBy=leak.target\n")), 0o644))
	host := hostTree{usrUnits + "out.service": "-> " + outside}
	wants, warnings, err := Wants(openRoot(t, host.build(t)), []Unit{{Name: "out.service", Enabled: yes}}, nil, nothingKept{})
	must(t, err)
	if len(wants) > 0 || len(warnings) != 1 {
		t.Errorf("got %v, %q", wants, warnings)
	}
}
