// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	mc "github.com/noderefit/noderefit/machineconfig"
)

func raw(s string) json.RawMessage { return json.RawMessage(s) }

func file(path, contents string) mc.File {
	return mc.File{Path: path, Mode: 0o644, Contents: []byte(contents)}
}

func mustMake(t *testing.T, current, desired *mc.Config, opts Options) *Plan {
	t.Helper()
	p, err := Make(current, desired, opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// lines are the changes as people read them.
func lines(changes []Change) []string {
	out := []string{}
	for _, c := range changes {
		out = append(out, c.String())
	}
	return out
}

// steps are the actions without their reasons.
func steps(actions []Action) []string {
	out := []string{}
	for _, a := range actions {
		out = append(out, strings.TrimSpace(string(a.Type)+" "+a.Service))
	}
	return out
}

func fields(us []Unreconcilable) []string {
	out := []string{}
	for _, u := range us {
		out = append(out, u.Field)
	}
	return out
}

func check(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func TestChanges(t *testing.T) {
	files := func(fs ...mc.File) *mc.Config { return &mc.Config{Files: fs} }
	dirs := func(ds ...mc.Directory) *mc.Config { return &mc.Config{Directories: ds} }
	links := func(ls ...mc.Link) *mc.Config { return &mc.Config{Links: ls} }
	units := func(us ...mc.Unit) *mc.Config { return &mc.Config{Units: us} }
	users := func(us ...mc.User) *mc.Config { return &mc.Config{Users: us} }
	for _, c := range []struct {
		name             string
		current, desired *mc.Config
		want             []string
	}{
		{"nothing from nothing", nil, &mc.Config{}, nil},
		{"file added to a fresh host", nil, files(file("/a", "x")), []string{"+ file /a"}},
		{"file removed", files(file("/a", "x")), files(), []string{"- file /a"}},
		{"file contents", files(file("/a", "x")), files(file("/a", "y")), []string{"~ file /a (contents)"}},
		{"file mode", files(mc.File{Path: "/a", Mode: 0o600}), files(mc.File{Path: "/a", Mode: 0o644}), []string{"~ file /a (mode)"}},
		{
			"everything of a file",
			files(mc.File{Path: "/a", Mode: 0o600}),
			files(mc.File{Path: "/a", Mode: 0o644, Contents: []byte("x"), Owner: mc.Owner{User: "core"}}),
			[]string{"~ file /a (contents, mode, owner)"},
		},
		{
			"root however it is written",
			files(mc.File{Path: "/a", Owner: mc.Owner{UID: new(0), Group: "root"}}, mc.File{Path: "/b"}),
			files(mc.File{Path: "/a"}, mc.File{Path: "/b", Owner: mc.Owner{User: "root", GID: new(0)}}), nil,
		},
		{
			"owner by id and by name are not known to be one",
			files(mc.File{Path: "/a", Owner: mc.Owner{UID: new(1000)}}), files(mc.File{Path: "/a", Owner: mc.Owner{User: "core"}}),
			[]string{"~ file /a (owner)"},
		},
		{
			"a name of digits is no id",
			files(mc.File{Path: "/a", Owner: mc.Owner{UID: new(1000)}}), files(mc.File{Path: "/a", Owner: mc.Owner{User: "1000"}}),
			[]string{"~ file /a (owner)"},
		},
		{
			"owning group", files(mc.File{Path: "/a", Owner: mc.Owner{GID: new(5)}}), files(mc.File{Path: "/a", Owner: mc.Owner{GID: new(6)}}),
			[]string{"~ file /a (owner)"},
		},
		{"file that was appended to becomes whole", files(mc.File{Path: "/a", Append: true}), files(mc.File{Path: "/a"}), []string{"~ file /a (contents)"}},
		{"appending is refused and so no change", nil, files(mc.File{Path: "/a", Append: true, Contents: []byte("x")}), nil},
		{
			"directory", dirs(mc.Directory{Path: "/d", Mode: 0o755}, mc.Directory{Path: "/gone"}),
			dirs(mc.Directory{Path: "/d", Mode: 0o700, Owner: mc.Owner{Group: "wheel"}}, mc.Directory{Path: "/new"}),
			[]string{"~ directory /d (mode, owner)", "- directory /gone", "+ directory /new"},
		},
		{
			"link", links(mc.Link{Path: "/l", Target: "/x"}, mc.Link{Path: "/o", Target: "/x"}, mc.Link{Path: "/same", Target: "/x"}),
			links(mc.Link{Path: "/l", Target: "/y"}, mc.Link{Path: "/o", Target: "/x", Owner: mc.Owner{User: "core"}}, mc.Link{Path: "/same", Target: "/x"}),
			[]string{"~ link /l (target)", "~ link /o (owner)"},
		},
		{"soft link becomes a hard one", links(mc.Link{Path: "/l", Target: "/x"}), links(mc.Link{Path: "/l", Target: "/x", Hard: true}), []string{"~ link /l (type)"}},
		{
			"a hard link has no owner of its own", links(mc.Link{Path: "/l", Target: "/x", Hard: true}),
			links(mc.Link{Path: "/l", Target: "/x", Hard: true, Owner: mc.Owner{User: "core"}}), nil,
		},
		{"file becomes a link", files(file("/p", "x")), links(mc.Link{Path: "/p", Target: "/x"}), []string{"- file /p", "+ link /p"}},
		{"unit added", nil, units(mc.Unit{Name: "a.service", Contents: "x"}), []string{"+ unit a.service"}},
		{"unit removed", units(mc.Unit{Name: "a.service", Enabled: new(true)}), units(), []string{"- unit a.service"}},
		{
			"everything of a unit", units(mc.Unit{Name: "a.service", Contents: "x", Enabled: new(false)}),
			units(mc.Unit{Name: "a.service", Contents: "y", Enabled: new(true), Mask: new(true)}),
			[]string{"~ unit a.service (contents, enabled, masked)"},
		},
		{
			"presets are not the same as disabled", units(mc.Unit{Name: "a.service", Contents: "x", Enabled: new(false)}),
			units(mc.Unit{Name: "a.service", Contents: "x"}), []string{"~ unit a.service (enabled)"},
		},
		{
			"drop-ins apart from their unit",
			units(mc.Unit{Name: "a.service", Contents: "x", Dropins: []mc.Dropin{{Name: "1.conf", Contents: "x"}, {Name: "2.conf", Contents: "x"}, {Name: "5.conf", Contents: "x"}}}),
			units(mc.Unit{Name: "a.service", Contents: "x", Dropins: []mc.Dropin{{Name: "2.conf", Contents: "y"}, {Name: "3.conf", Contents: "x"}, {Name: "5.conf", Contents: "x"}}}),
			[]string{"- dropin a.service/1.conf", "~ dropin a.service/2.conf (contents)", "+ dropin a.service/3.conf"},
		},
		{"drop-in of a unit that is not ours", nil, units(mc.Unit{Name: "a.service", Dropins: []mc.Dropin{{Name: "1.conf", Contents: "x"}}}), []string{"+ dropin a.service/1.conf"}},
		{
			"unit stops being ours, its drop-in stays",
			units(mc.Unit{Name: "a.service", Contents: "x", Dropins: []mc.Dropin{{Name: "1.conf", Contents: "x"}}}),
			units(mc.Unit{Name: "a.service", Dropins: []mc.Dropin{{Name: "1.conf", Contents: "x"}}}),
			[]string{"- unit a.service"},
		},
		{
			"an empty drop-in is an absent one",
			units(mc.Unit{Name: "a.service", Dropins: []mc.Dropin{{Name: "1.conf", Contents: "x"}, {Name: "2.conf"}, {Name: "3.conf"}}}),
			units(mc.Unit{Name: "a.service", Dropins: []mc.Dropin{{Name: "1.conf"}, {Name: "2.conf", Contents: "x"}}}),
			[]string{"- dropin a.service/1.conf", "+ dropin a.service/2.conf"},
		},
		{"an empty drop-in that never was", nil, units(mc.Unit{Name: "a.service", Dropins: []mc.Dropin{{Name: "1.conf"}}}), nil},
		{"user added", nil, users(mc.User{Name: "core", Keys: []string{"k"}, PasswordHash: new("h")}), []string{"+ SSH keys of core", "+ password of core"}},
		{"an account that the configuration says more of", users(mc.User{Name: "b"}), users(mc.User{Name: "a", Other: map[string]json.RawMessage{"uid": []byte("5")}},
			mc.User{Name: "b", Other: map[string]json.RawMessage{"uid": []byte("6")}}), []string{"+ user a", "~ user b (account)"}},
		{
			"user removed with what it had", users(mc.User{Name: "a", Keys: []string{"k"}}, mc.User{Name: "b", PasswordHash: new("h")}, mc.User{Name: "c"}), users(),
			[]string{"- SSH keys of a", "- password of b"},
		},
		{
			"keys and passwords come, go and change",
			users(mc.User{Name: "a", Keys: []string{"k"}}, mc.User{Name: "b", Keys: []string{"k"}, PasswordHash: new("h")}, mc.User{Name: "c", PasswordHash: new("h")}),
			users(mc.User{Name: "a", PasswordHash: new("h")}, mc.User{Name: "b", Keys: []string{"k", "l"}, PasswordHash: new("i")}, mc.User{Name: "c", Keys: []string{"k"}}),
			[]string{"- SSH keys of a", "~ SSH keys of b", "+ SSH keys of c", "+ password of a", "~ password of b", "- password of c"},
		},
		{"a password that becomes empty is not one that goes", users(mc.User{Name: "a", PasswordHash: new("h")}), users(mc.User{Name: "a", PasswordHash: new("")}), []string{"~ password of a"}},
		{
			"kernel arguments", &mc.Config{KernelArguments: []string{"a=1", "b=2"}}, &mc.Config{KernelArguments: []string{"b=2", "c=3"}},
			[]string{"~ kernel arguments: delete a=1; append c=3"},
		},
		{"kernel type", &mc.Config{}, &mc.Config{KernelType: mc.KernelRealtime}, []string{"~ kernel type: default -> realtime"}},
		{"kernel type said or not", &mc.Config{}, &mc.Config{KernelType: mc.KernelDefault}, nil},
		{
			"extensions are a set", &mc.Config{Extensions: []string{"usbguard", "sysstat", "kerberos"}}, &mc.Config{Extensions: []string{"ipsec", "kerberos", "usbguard", "foo", "foo"}},
			[]string{"~ extensions: install foo, ipsec (NetworkManager-libreswan, libreswan, openvswitch3.5-ipsec); uninstall sysstat"},
		},
		{"OS image", &mc.Config{OSImageURL: "a"}, &mc.Config{OSImageURL: "b"}, []string{"~ OS image: a -> b"}},
		{"no OS image asked for", &mc.Config{OSImageURL: "a"}, &mc.Config{}, nil},
		{
			"by kind, then by name",
			&mc.Config{},
			&mc.Config{
				OSImageURL: "i", KernelArguments: []string{"k"}, Files: []mc.File{file("/z", ""), file("/a", "")},
				Links: []mc.Link{{Path: "/b"}}, Directories: []mc.Directory{{Path: "/c"}},
				Units: []mc.Unit{{Name: "u.service", Contents: "x", Dropins: []mc.Dropin{{Name: "d.conf", Contents: "x"}}}},
			},
			[]string{
				"+ file /a", "+ file /z", "+ directory /c", "+ link /b", "+ unit u.service", "+ dropin u.service/d.conf",
				"~ kernel arguments: append k", "~ OS image: (unknown) -> i",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := mustMake(t, c.current, c.desired, Options{})
			if c.want == nil {
				c.want = []string{}
				check(t, "actions", p.Actions, []Action{})
			}
			check(t, "changes", lines(p.Changes), c.want)
		})
	}
}

func TestJSONIsTheContracts(t *testing.T) {
	current := &mc.Config{
		Name: "rendered-worker-a", OSImageURL: "old", KernelArguments: []string{"a=1"},
		Files: []mc.File{{Path: "/etc/chrony.conf", Mode: 0o644}},
		Units: []mc.Unit{{Name: "kubelet.service", Contents: "x"}},
		Users: []mc.User{{Name: "core", Keys: []string{"k"}}},
	}
	desired := &mc.Config{
		Name: "rendered-worker-b", OSImageURL: "new", KernelArguments: []string{"b=2"}, KernelType: "realtime", Extensions: []string{"usbguard"},
		Files:       []mc.File{{Path: "/etc/chrony.conf", Mode: 0o600, Contents: []byte("secret"), Owner: mc.Owner{UID: new(3)}}},
		Directories: []mc.Directory{{Path: "/etc/d"}},
		Links:       []mc.Link{{Path: "/etc/l", Target: "/t"}},
		Units:       []mc.Unit{{Name: "kubelet.service", Contents: "y", Enabled: new(true), Mask: new(false)}, {Name: "crio.service", Dropins: []mc.Dropin{{Name: "10-x.conf", Contents: "z"}}}},
		Users:       []mc.User{{Name: "core", PasswordHash: new("hash")}},
		Provision:   map[string]json.RawMessage{"storage.disks": raw(`[]`)},
	}
	got, err := json.MarshalIndent(mustMake(t, current, desired, Options{}), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	check(t, "plan", string(got), `{
  "current": "rendered-worker-a",
  "desired": "rendered-worker-b",
  "changes": [
    {
      "kind": "file",
      "path": "/etc/chrony.conf",
      "op": "change",
      "what": [
        "contents",
        "mode",
        "owner"
      ]
    },
    {
      "kind": "directory",
      "path": "/etc/d",
      "op": "add"
    },
    {
      "kind": "link",
      "path": "/etc/l",
      "op": "add"
    },
    {
      "kind": "unit",
      "name": "kubelet.service",
      "op": "change",
      "what": [
        "contents",
        "enabled"
      ]
    },
    {
      "kind": "dropin",
      "name": "crio.service/10-x.conf",
      "op": "add"
    },
    {
      "kind": "sshkeys",
      "user": "core",
      "op": "remove"
    },
    {
      "kind": "password",
      "user": "core",
      "op": "add"
    },
    {
      "kind": "kargs",
      "delete": [
        "a=1"
      ],
      "append": [
        "b=2"
      ]
    },
    {
      "kind": "kernelType",
      "from": "default",
      "to": "realtime"
    },
    {
      "kind": "extensions",
      "install": [
        "usbguard"
      ],
      "uninstall": [],
      "packages": {
        "usbguard": [
          "usbguard"
        ]
      }
    },
    {
      "kind": "osImage",
      "from": "old",
      "to": "new"
    }
  ],
  "actions": [
    {
      "type": "Drain",
      "because": "file /etc/chrony.conf: no policy covers it (and 8 more changes)"
    },
    {
      "type": "Reboot",
      "because": "file /etc/chrony.conf: no policy covers it (and 8 more changes)"
    }
  ],
  "drain": true,
  "reboot": true,
  "unreconcilable": [
    {
      "field": "storage.disks",
      "reason": "storage.disks was added; only provisioning a new machine can do that, and irreconcilableValidationOverrides.storage with Disks lets this machine stay as it is"
    }
  ]
}`)
	var back Plan
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatal(err)
	}
	again, err := json.MarshalIndent(&back, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	check(t, "read and written again", string(again), string(got))
}

func TestEmptyPlanHasEmptyLists(t *testing.T) {
	got, err := json.Marshal(mustMake(t, nil, &mc.Config{Name: "x"}, Options{}))
	if err != nil {
		t.Fatal(err)
	}
	check(t, "plan", string(got), `{"current":"","desired":"x","changes":[],"actions":[],"drain":false,"reboot":false,"unreconcilable":[]}`)
	half, err := json.Marshal(Change{Kind: Kargs, Append: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	check(t, "kargs", string(half), `{"kind":"kargs","delete":[],"append":["a"]}`)
}

func TestInvalidConfigurationsAreNamed(t *testing.T) {
	if _, err := Make(&mc.Config{}, nil, Options{}); err == nil {
		t.Error("a plan without a desired configuration")
	}
	for _, c := range []struct {
		name string
		c    *mc.Config
	}{
		{"/a", &mc.Config{Files: []mc.File{file("/a", ""), file("/a", "x")}}},
		{"/d", &mc.Config{Directories: []mc.Directory{{Path: "/d"}, {Path: "/d"}}}},
		{"/l", &mc.Config{Links: []mc.Link{{Path: "/l"}, {Path: "/l"}}}},
		{"u.service", &mc.Config{Units: []mc.Unit{{Name: "u.service", Contents: "x"}, {Name: "u.service", Contents: "x"}}}},
		{"u.service/d.conf", &mc.Config{Units: []mc.Unit{{Name: "u.service", Dropins: []mc.Dropin{{Name: "d.conf", Contents: "x"}, {Name: "d.conf", Contents: "x"}}}}}},
		{"core", &mc.Config{Users: []mc.User{{Name: "core"}, {Name: "core"}}}},
	} {
		for _, pair := range [][2]*mc.Config{{c.c, {}}, {{}, c.c}} {
			if _, err := Make(pair[0], pair[1], Options{}); err == nil || !strings.Contains(err.Error(), c.name+" is listed twice") {
				t.Errorf("%s twice: %v", c.name, err)
			}
		}
	}
}

func TestUnreconcilable(t *testing.T) {
	disks := &mc.Config{Provision: map[string]json.RawMessage{
		"storage.disks": raw(`[{"device":"/dev/a"}]`), "storage.filesystems": raw(`[1]`), "storage.raid": raw(`[1]`),
		"storage.luks": raw(`[1]`), "passwd.groups": raw(`[1]`), "kernelArguments": raw(`{"shouldExist":["a"]}`),
	}}
	allFields := []string{"kernelArguments", "passwd.groups", "storage.disks", "storage.filesystems", "storage.luks", "storage.raid"}
	overrides := func(words string) *Policy {
		p, err := ParsePolicy([]byte("apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\nspec:\n  irreconcilableValidationOverrides: {storage: " + words + "}\n"))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	user := func(name string, other map[string]json.RawMessage) *mc.Config {
		return &mc.Config{Users: []mc.User{{Name: name, Other: other}}}
	}
	appending := &mc.Config{Files: []mc.File{{Path: "/a", Append: true}}}
	for _, c := range []struct {
		name             string
		current, desired *mc.Config
		policy           *Policy
		want             []string
	}{
		{"provisioning sections added", &mc.Config{}, disks, nil, allFields},
		{"provisioning sections removed", disks, &mc.Config{}, nil, allFields},
		{"provisioning sections kept", disks, disks, nil, nil},
		{"provisioning sections on a fresh host are taken as they are", nil, disks, nil, nil},
		{
			"one section changed", &mc.Config{Provision: map[string]json.RawMessage{"storage.disks": raw(`[1]`), "storage.raid": raw(`[1]`)}},
			&mc.Config{Provision: map[string]json.RawMessage{"storage.disks": raw(`[2]`), "storage.raid": raw(`[1]`)}}, nil, []string{"storage.disks"},
		},
		{"overridden", &mc.Config{}, disks, overrides("[Disks, FileSystems, Raid]"), []string{"kernelArguments", "passwd.groups"}},
		{"overridden in part", &mc.Config{}, disks, overrides("[FileSystems]"), []string{"kernelArguments", "passwd.groups", "storage.disks", "storage.luks", "storage.raid"}},
		{"luks goes with the disks", &mc.Config{}, disks, overrides("[Disks]"), []string{"kernelArguments", "passwd.groups", "storage.filesystems", "storage.raid"}},
		{"FIPS on", &mc.Config{}, &mc.Config{FIPS: true}, nil, []string{"fips"}},
		{"FIPS off", &mc.Config{FIPS: true}, &mc.Config{}, nil, []string{"fips"}},
		{"FIPS on a fresh host is taken as it is", nil, &mc.Config{FIPS: true}, nil, nil},
		{"a file that is appended to, though unchanged", appending, appending, nil, []string{"storage.files.append"}},
		{"a file that is appended to, on a fresh host", nil, appending, nil, []string{"storage.files.append"}},
		{"a file that is no longer appended to", appending, &mc.Config{}, nil, nil},
		{"the force file", nil, &mc.Config{Files: []mc.File{file("/run/machine-config-daemon-force", "")}}, nil, []string{"storage.files"}},
		{"directories and links", &mc.Config{}, &mc.Config{Directories: []mc.Directory{{Path: "/d"}}, Links: []mc.Link{{Path: "/l"}}}, nil, nil},
		{"several users", &mc.Config{}, &mc.Config{Users: []mc.User{{Name: "core"}, {Name: "admin", Keys: []string{"k"}}}}, nil, nil},
		{
			"fields of an account", user("core", map[string]json.RawMessage{"shell": raw(`"a"`), "uid": raw(`1`), "system": raw(`true`)}),
			user("core", map[string]json.RawMessage{"shell": raw(`"b"`), "system": raw(`true`), "homeDir": raw(`"/h"`)}), nil,
			[]string{"passwd.users.homeDir", "passwd.users.shell", "passwd.users.uid"},
		},
		{"fields of a new account", &mc.Config{}, user("a", map[string]json.RawMessage{"gecos": raw(`"x"`)}), nil, []string{"passwd.users.gecos"}},
		{"fields of an account on a fresh host are taken as they are", nil, user("a", map[string]json.RawMessage{"gecos": raw(`"x"`)}), nil, nil},
		{"an account that goes, whatever it had", user("a", map[string]json.RawMessage{"gecos": raw(`"x"`)}), &mc.Config{}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := mustMake(t, c.current, c.desired, Options{Policy: c.policy})
			if c.want == nil {
				c.want = []string{}
			}
			check(t, "fields", fields(p.Unreconcilable), c.want)
			for _, u := range p.Unreconcilable {
				if u.Reason == "" {
					t.Errorf("%s has no reason", u.Field)
				}
			}
		})
	}
}

func TestHostWithoutOS(t *testing.T) {
	plain := &mc.Config{Files: []mc.File{file("/etc/nmstate/openshift/a", "x")}}
	full := &mc.Config{
		Files: plain.Files, KernelArguments: []string{"a"}, KernelType: "realtime", Extensions: []string{"usbguard"}, OSImageURL: "i",
	}
	file := []string{"+ file /etc/nmstate/openshift/a"}
	all := []string{
		"~ kernel arguments: append a", "~ kernel type: default -> realtime", "~ extensions: install usbguard", "~ OS image: (unknown) -> i",
	}

	p := mustMake(t, nil, full, Options{NoOS: true})
	check(t, "refused", fields(p.Unreconcilable), []string{"extensions", "kernelArguments", "kernelType", "osImageURL"})
	check(t, "the rest", lines(p.Changes), file)
	check(t, "no reboot for what can't be", steps(p.Actions), []string{"None"})

	p = mustMake(t, nil, full, Options{NoOS: true, SkipOS: true})
	check(t, "nothing refused", fields(p.Unreconcilable), []string{})
	check(t, "the rest", lines(p.Changes), file)
	check(t, "skipped", lines(p.Skipped), all)

	p = mustMake(t, full, plain, Options{NoOS: true, OS: &OS{}})
	check(t, "going back from what was skipped is not refused", p.Unreconcilable, []Unreconcilable{})
	check(t, "nor a change", lines(p.Changes), []string{})

	p = mustMake(t, full, full, Options{NoOS: true, SkipOS: true, OS: &OS{}})
	check(t, "still skipped", lines(p.Skipped), all)
}

func TestAdoptionTakesWhatTheHostMeets(t *testing.T) {
	desired := &mc.Config{
		OSImageURL: "i", KernelArguments: []string{"a", "b"},
		Files: []mc.File{file("/same", ""), file("/other", "")},
		Units: []mc.Unit{{Name: "u.service", Dropins: []mc.Dropin{{Name: "gone.conf"}, {Name: "there.conf"}}}},
	}
	met := func(c Change) bool { return c.Path == "/same" || c.Kind == OSImage || c.Name == "u.service/gone.conf" }
	p := mustMake(t, nil, desired, Options{Satisfied: met, Kargs: &HostKargs{CommandLine: []string{"ro", "b"}}})
	check(t, "changes", lines(p.Changes), []string{"+ file /other", "- dropin u.service/there.conf", "~ kernel arguments: append a"})

	p = mustMake(t, nil, desired, Options{Satisfied: func(Change) bool { return true }})
	check(t, "all met", p.Actions, []Action{})

	p = mustMake(t, &mc.Config{Files: []mc.File{file("/old", ""), file("/same", "x")}}, &mc.Config{Files: []mc.File{file("/same", "")}},
		Options{Satisfied: func(Change) bool { return true }})
	check(t, "whatever it is", lines(p.Changes), []string{})
	check(t, "and told", lines(p.Unwritten), []string{"- file /old", "~ file /same (contents)"})
	check(t, "without an action", p.Actions, []Action{})
	p = mustMake(t, nil, desired, Options{Satisfied: func(Change) bool { return true }})
	check(t, "of a host that was never configured nothing is told", lines(p.Unwritten), []string{})
}

func TestAnEmptyPasswordThatIsLockedIsTold(t *testing.T) {
	leaves := &mc.Config{Users: []mc.User{{Name: "core", Keys: []string{"k"}}, {Name: "other"}}}
	empty := func(c Change) bool { return c.Kind != Password || c.User != "core" }
	p := mustMake(t, leaves, &mc.Config{}, Options{Satisfied: empty})
	check(t, "on a host where it is empty", lines(p.Changes), []string{"- password of core"})
	p = mustMake(t, leaves, &mc.Config{}, Options{})
	check(t, "of documents alone", lines(p.Changes), []string{"- SSH keys of core"})
}

func TestAMaskThatContentsReplaceIsNoDifference(t *testing.T) {
	unit := func(contents string, mask *bool) *mc.Config {
		return &mc.Config{Units: []mc.Unit{{Name: "a.service", Contents: contents, Mask: mask}}}
	}
	for _, c := range []struct {
		name     string
		from, to *mc.Config
		want     []string
	}{
		{"not said, then said to be none", unit("x", nil), unit("x", new(false)), []string{}},
		{"said to be none, then not said", unit("x", new(false)), unit("x", nil), []string{}},
		{"a mask", unit("x", new(false)), unit("x", new(true)), []string{"~ unit a.service (masked)"}},
		{"without contents it says something", unit("", new(true)), unit("", new(false)), []string{"~ unit a.service (masked)"}},
	} {
		p := mustMake(t, c.from, c.to, Options{})
		check(t, c.name, lines(p.Changes), c.want)
		if len(c.want) == 0 {
			check(t, c.name, p.Actions, []Action{})
		}
	}
}

func TestAFileWithoutContents(t *testing.T) {
	with := func(f mc.File) *mc.Config { return &mc.Config{Files: []mc.File{f}} }
	bare := mc.File{Path: "/f", Mode: 0o600, NoContents: true}
	other := bare
	other.Mode = 0o640
	for _, c := range []struct {
		name     string
		from, to *mc.Config
		want     []string
	}{
		{"the same", with(bare), with(bare), []string{}},
		{"another mode", with(bare), with(other), []string{"~ file /f (mode)"}},
		{"an empty one is another thing", with(bare), with(mc.File{Path: "/f", Mode: 0o600}), []string{"~ file /f (contents)"}},
		{"contents go, and the bytes stay", with(mc.File{Path: "/f", Mode: 0o600, Contents: []byte("x")}), with(bare), []string{}},
		{"new", &mc.Config{}, with(bare), []string{"+ file /f"}},
	} {
		check(t, c.name, lines(mustMake(t, c.from, c.to, Options{}).Changes), c.want)
	}
	full := with(mc.File{Path: "/f", Mode: 0o600, Contents: []byte("x\n")})
	p := mustMake(t, full, with(bare), Options{Satisfied: func(Change) bool { return false }})
	check(t, "on a host that has others from before", lines(p.Changes), []string{"~ file /f (contents)"})
	d := Diffs(full, with(bare), p.Changes)
	check(t, "diff", d[0].Diff, "--- /f\n+++ /f\ncontents: as on the host\n")
}

func TestKernelArgumentsOfTheHost(t *testing.T) {
	host := &HostKargs{CommandLine: []string{"ro", "mine=1", "quiet"}, Owned: []string{"quiet"}}
	current := &mc.Config{KernelArguments: []string{"quiet", "lost"}}
	p := mustMake(t, current, current, Options{Kargs: host})
	check(t, "an argument that was lost comes back", lines(p.Changes), []string{"~ kernel arguments: append lost"})
	p = mustMake(t, current, &mc.Config{KernelArguments: []string{"mine=1"}}, Options{Kargs: host})
	check(t, "the base's is adopted", lines(p.Changes), []string{"~ kernel arguments: delete quiet"})
	p = mustMake(t, current, &mc.Config{KernelArguments: []string{"quiet"}}, Options{Kargs: host})
	check(t, "nothing to do", lines(p.Changes), []string{})
}

func TestPackages(t *testing.T) {
	check(t, "two-node-ha", packagesOf("two-node-ha"), []string{"pacemaker", "pcs", "fence-agents-all"})
	check(t, "one that is not in the table", packagesOf("htop"), []string{"htop"})
	packagesOf("usbguard")[0] = "x"
	check(t, "the table stays", packagesOf("usbguard"), []string{"usbguard"})
}

// arbitrary makes a configuration of a few things out of a small world, so that two of them often share some.
func arbitrary(r *rand.Rand) *mc.Config {
	flip := func() bool { return r.IntN(2) == 0 }
	tri := func() *bool { return []*bool{nil, new(true), new(false)}[r.IntN(3)] }
	text := func() string { return []string{"", "x", "y"}[r.IntN(3)] }
	owner := func() mc.Owner {
		return []mc.Owner{{}, {UID: new(0)}, {User: "root"}, {User: "core"}, {GID: new(5)}}[r.IntN(5)]
	}
	c := &mc.Config{
		Name: fmt.Sprint(r.IntN(9)), OSImageURL: text(), FIPS: flip(), KernelType: []string{"", "default", "realtime"}[r.IntN(3)],
	}
	paths := []string{
		"/etc/containers/registries.conf", "/etc/containers/policy.json", "/etc/crio/policies/a", "/etc/nmstate/openshift", "/etc/x",
		"/var/lib/kubelet/config.json", "/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt",
	}
	for _, p := range paths {
		switch r.IntN(8) {
		case 0, 1, 2:
			c.Files = append(c.Files, mc.File{Path: p, Mode: uint32(r.IntN(2)), Owner: owner(), Contents: []byte(text()), Append: r.IntN(9) == 0})
		case 3:
			c.Directories = append(c.Directories, mc.Directory{Path: p, Mode: uint32(r.IntN(2)), Owner: owner()})
		case 4:
			c.Links = append(c.Links, mc.Link{Path: p, Target: text(), Hard: flip(), Owner: owner()})
		}
	}
	for _, name := range []string{"iri-registry.service", "crio.service", "kubelet.service"} {
		if flip() {
			u := mc.Unit{Name: name, Contents: text(), Enabled: tri(), Mask: tri()}
			for _, d := range []string{"1.conf", "2.conf"} {
				if flip() {
					u.Dropins = append(u.Dropins, mc.Dropin{Name: d, Contents: text()})
				}
			}
			c.Units = append(c.Units, u)
		}
	}
	for _, name := range []string{"core", "admin"} {
		if flip() {
			u := mc.User{Name: name}
			if flip() {
				u.Keys = []string{"k" + text()}
			}
			if flip() {
				u.PasswordHash = new(text())
			}
			if flip() {
				u.Other = map[string]json.RawMessage{"uid": raw(fmt.Sprint(r.IntN(2)))}
			}
			c.Users = append(c.Users, u)
		}
	}
	for _, arg := range []string{"a=1", "a=2", "b", "hugepages=1", "hugepagesz=2M"} {
		if flip() {
			c.KernelArguments = append(c.KernelArguments, arg)
		}
	}
	for _, e := range []string{"usbguard", "ipsec", "kerberos"} {
		if flip() {
			c.Extensions = append(c.Extensions, e)
		}
	}
	if flip() {
		c.Provision = map[string]json.RawMessage{"storage.disks": raw(text()), "storage.luks": raw(text())}
	}
	return c
}

// shuffled is the same configuration with every list whose order means nothing in another order.
func shuffled(r *rand.Rand, c *mc.Config) *mc.Config {
	out := *c
	out.Files, out.Directories, out.Links = mixed(r, c.Files), mixed(r, c.Directories), mixed(r, c.Links)
	out.Users, out.Extensions, out.Units = mixed(r, c.Users), mixed(r, c.Extensions), mixed(r, c.Units)
	for i := range out.Units {
		out.Units[i].Dropins = mixed(r, out.Units[i].Dropins)
	}
	return &out
}

func mixed[T any](r *rand.Rand, list []T) []T {
	out := slices.Clone(list)
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func TestPlanProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		a, b := arbitrary(r), arbitrary(r)
		self := mustMake(t, a, shuffled(r, a), Options{})
		if len(self.Changes)+len(self.Actions) > 0 || self.Drain || self.Reboot {
			t.Fatalf("a configuration differs from itself: %+v\n%+v", self, a)
		}
		for _, u := range self.Unreconcilable {
			if u.Field != "storage.files.append" {
				t.Fatalf("a configuration can't be reached from itself: %+v", u)
			}
		}

		p := mustMake(t, a, b, Options{})
		if d := cmp.Diff(p, mustMake(t, shuffled(r, a), shuffled(r, b), Options{}), cmp.AllowUnexported(Plan{})); d != "" {
			t.Fatalf("the order of lists matters:\n%s", d)
		}
		if (len(p.Changes) == 0) && len(p.Actions) > 0 {
			t.Fatalf("actions without changes: %+v", p)
		}
		seen := map[string]bool{}
		last := -1
		for _, s := range steps(p.Actions) {
			if seen[s] {
				t.Fatalf("%s twice in %v", s, p.Actions)
			}
			seen[s] = true
			name, service, _ := strings.Cut(s, " ")
			if name == "Reload" && seen["Restart "+service] || name == "Restart" && seen["Reload "+service] {
				t.Fatalf("%s both reloaded and restarted in %v", service, p.Actions)
			}
			rank := map[string]int{"None": 0, "Drain": 1, "DaemonReload": 2, "Reload": 3, "Restart": 3, "Reboot": 4}[name]
			if rank < last {
				t.Fatalf("wrong order: %v", p.Actions)
			}
			last = rank
		}
		if seen["None"] && len(seen) > 1 || seen["Reboot"] && (len(seen) != 2 || !seen["Drain"]) {
			t.Fatalf("actions that exclude each other: %v", p.Actions)
		}
		if p.Reboot != seen["Reboot"] || p.Drain != seen["Drain"] {
			t.Fatalf("drain %t, reboot %t with %v", p.Drain, p.Reboot, p.Actions)
		}
	}
}

func TestTextForPeople(t *testing.T) {
	current := &mc.Config{Name: "a", Files: []mc.File{file("/etc/x", "SECRET"), file("/etc/y", "SECRET")}}
	desired := &mc.Config{
		Name: "b", Files: []mc.File{file("/etc/x", "HIDDEN")}, Users: []mc.User{{Name: "core", PasswordHash: new("HASH"), Keys: []string{"KEY"}}},
		KernelArguments: []string{"quiet"}, FIPS: true,
	}
	var out strings.Builder
	if err := mustMake(t, current, desired, Options{SkipOS: true}).WriteText(&out); err != nil {
		t.Fatal(err)
	}
	check(t, "text", out.String(), `a -> b

Impossible on this host, so nothing will be changed:
  fips: FIPS mode is set when a machine is installed and can't go from false to true; provision a new machine

Changes:
  ~ file /etc/x (contents)
  - file /etc/y
  + SSH keys of core
  + password of core

Skipped, still to be done on the OS:
  ~ kernel arguments: append quiet

Actions:
  1. Drain, because of file /etc/x: no policy covers it (and 1 more change)
  2. Reboot, because of file /etc/x: no policy covers it (and 1 more change)
`)
	for _, c := range []struct {
		desired *mc.Config
		want    string
	}{
		{&mc.Config{Name: "b"}, "(never configured) -> b\n\nNothing to do.\n"},
		{
			&mc.Config{Name: "b", Files: []mc.File{file("/etc/containers/policy.json", "")}},
			"(never configured) -> b\n\nChanges:\n  + file /etc/containers/policy.json\n\nActions:\n" +
				"  1. Reload crio.service, because of file /etc/containers/policy.json: default policy for file /etc/containers/policy.json\n\nNo drain, no reboot.\n",
		},
	} {
		out.Reset()
		if err := mustMake(t, nil, c.desired, Options{}).WriteText(&out); err != nil {
			t.Fatal(err)
		}
		check(t, "text", out.String(), c.want)
	}
}

// benchConfig has the size of a rendered worker configuration: 100 files of 1 to 8 KiB, 25 units, 15 drop-ins.
func benchConfig() *mc.Config {
	r := rand.New(rand.NewPCG(1, 1))
	c := &mc.Config{Name: "bench", KernelType: mc.KernelDefault}
	for i := range 100 {
		c.Files = append(c.Files, file(fmt.Sprintf("/etc/bench.d/%d/file%03d.conf", i%10, i), strings.Repeat("option = value\n", 68+r.IntN(480))))
	}
	for i := range 25 {
		u := mc.Unit{Name: fmt.Sprintf("bench%02d.service", i), Contents: strings.Repeat("Environment=V=1\n", 30), Enabled: new(i < 10)}
		if i < 15 {
			u.Dropins = []mc.Dropin{{Name: "10-bench.conf", Contents: "[Service]\nEnvironment=D=1\n"}}
		}
		c.Units = append(c.Units, u)
	}
	return c
}

func BenchmarkMake(b *testing.B) {
	current, desired := benchConfig(), benchConfig()
	desired.Files[57].Contents = []byte("changed\n")
	for b.Loop() {
		p, err := Make(current, desired, Options{})
		if err != nil || len(p.Changes) != 1 {
			b.Fatal(p, err)
		}
	}
}
