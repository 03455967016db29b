// SPDX-License-Identifier: Apache-2.0

package files_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/noderefit/noderefit/files"
)

func TestAccountsReadEtcBeforeTheImage(t *testing.T) {
	r, dir := host(t, "etc/", "usr/lib/")
	must(t, os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte(
		"root:x:0:0:root:/root:/bin/bash\n"+
			"core:x:1000:1001:CoreOS Admin:/var/home/core:/bin/bash\n"+
			"core:x:2000:2000:a second one:/nowhere:/bin/bash\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "usr/lib/passwd"), []byte(
		"core:x:3000:3000::/usr/home/core:/bin/bash\nchrony:x:994:992::/var/lib/chrony:/sbin/nologin\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "etc/group"), []byte("root:x:0:\nwheel:x:10:core,root\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "usr/lib/group"), []byte("wheel:x:11:\nchrony:x:992:\n"), 0o644))
	a, err := r.Accounts()
	must(t, err)
	for name, want := range map[string]files.Account{
		"root":   {Name: "root", UID: 0, GID: 0, Home: "/root"},
		"core":   {Name: "core", UID: 1000, GID: 1001, Home: "/var/home/core"},
		"chrony": {Name: "chrony", UID: 994, GID: 992, Home: "/var/lib/chrony"},
		"nobody": {},
	} {
		got, ok := a.User(name)
		if got != want || ok != (want.Name != "") {
			t.Errorf("User(%s) = %+v, %v", name, got, ok)
		}
	}
	for name, want := range map[string]int{"root": 0, "wheel": 10, "chrony": 992, "core": -1} {
		if got, ok := a.Group(name); ok != (want >= 0) || ok && got != want {
			t.Errorf("Group(%s) = %d, %v", name, got, ok)
		}
	}
}

func TestMalformedAccountLinesArePassedOver(t *testing.T) {
	for line, want := range map[string]files.Account{
		"u:x:1:2:g:/home/u:/bin/sh":   {Name: "u", UID: 1, GID: 2, Home: "/home/u"},
		"  u:x:1:2:g:/home/u:/bin/sh": {Name: "u", UID: 1, GID: 2, Home: "/home/u"},
		"u:x:1:2:g:/home/u:/bin/a:b":  {Name: "u", UID: 1, GID: 2, Home: "/home/u"},
		"u:x:1:2:g:/home/u":           {Name: "u", UID: 1, GID: 2, Home: "/home/u"},
		"u:x:1:2":                     {Name: "u", UID: 1, GID: 2},
		"u:x:4294967294:2:::":         {Name: "u", UID: 4294967294, GID: 2},
		"u:x:4294967295:2:::":         {}, // chown's word for "as it is"
		"u:x:1:4294967295:::":         {},
		"u:x:-1:2:::":                 {},
		"u:x:4294967296:2:::":         {},
		"u:x::2:::":                   {},
		"u:x:1::::":                   {},
		"u:x:one:2:::":                {},
		"u:x: 1:2:::":                 {},
		"u:x:1":                       {},
		"u":                           {},
		"#u:x:1:2:::":                 {},
		"+u:x:1:2:::":                 {},
		"-u:x:1:2:::":                 {},
		":x:1:2:::":                   {},
		"":                            {},
	} {
		r, dir := host(t, "etc/group=\n#wheel:x:1:\nwheel:x:ten:\nwheel:x:10\nu\nv:x\n")
		must(t, os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte("bad\n\n"+line+"\nlast:x:9:9::/l:/s"), 0o644))
		a, err := r.Accounts()
		must(t, err)
		for _, name := range []string{"u", "#u", "+u", "-u", ""} {
			if got, ok := a.User(name); ok && got != want {
				t.Errorf("%q gives %+v", line, got)
			}
		}
		if got, _ := a.User("u"); got != want {
			t.Errorf("%q gives %+v, want %+v", line, got, want)
		}
		if _, ok := a.User("last"); !ok {
			t.Errorf("%q hides what follows", line)
		}
		if got, ok := a.Group("wheel"); !ok || got != 10 {
			t.Errorf("Group(wheel) = %d, %v", got, ok)
		}
	}
}

func TestAccountsOfAHostWithout(t *testing.T) {
	r, _ := host(t, "etc/")
	a, err := r.Accounts()
	must(t, err)
	if _, ok := a.User("root"); ok {
		t.Error("a user from nowhere")
	}
	r, _ = host(t, "etc/passwd/")
	var pe *fs.PathError
	if _, err := r.Accounts(); !errors.As(err, &pe) || pe.Path != "/etc/passwd" {
		t.Errorf("Accounts of a directory: %v", err)
	}
}
