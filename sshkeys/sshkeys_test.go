// SPDX-License-Identifier: Apache-2.0

package sshkeys

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/files"
)

// testHost is a tree with the usual accounts: core in /etc/passwd, svc in the image's own.
func testHost(t *testing.T) *files.Accounts {
	t.Helper()
	dir := t.TempDir()
	for name, data := range map[string]string{
		"etc/passwd":     "root:x:0:0::/root:/bin/bash\ncore:x:1000:1001:CoreOS Admin:/var/home/core:/bin/bash\n",
		"usr/lib/passwd": "core:x:7:7::/elsewhere:/bin/false\nsvc:x:990:991::/var/lib/svc:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
	} {
		at := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(at), 0o755))
		must(t, os.WriteFile(at, []byte(data), 0o644))
	}
	must(t, os.MkdirAll(filepath.Join(dir, "var/home/core"), 0o700))
	root, err := files.Open(dir)
	must(t, err)
	t.Cleanup(func() { _ = root.Close() })
	accounts, err := root.Accounts()
	must(t, err)
	return accounts
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestKeysStandInTheUsersOwnFile(t *testing.T) {
	dir := func(p, user string, uid, gid int) files.Want {
		return files.Want{Path: p, Kind: "sshkeys", Name: user, Exists: true,
			Node: files.Node{Type: files.Directory, Mode: 0o700, UID: uid, GID: gid}}
	}
	file := func(p, user string, uid, gid int, data string) files.Want {
		return files.Want{Path: p, Kind: "sshkeys", Name: user,
			Node: files.Node{Type: files.Regular, Mode: 0o600, UID: uid, GID: gid, Data: []byte(data)}}
	}
	gone := func(p, user string) files.Want {
		return files.Want{Path: p, Kind: "sshkeys", Name: user, Node: files.Node{Type: files.Absent}}
	}
	const coreSSH, svcSSH = "/var/home/core/.ssh", "/var/lib/svc/.ssh"
	core := []files.Want{
		dir(coreSSH, "core", 1000, 1001), dir(coreSSH+"/authorized_keys.d", "core", 1000, 1001),
		file(coreSSH+"/authorized_keys.d/ignition", "core", 1000, 1001, "ssh-ed25519 A a@x\nssh-rsa B\n"),
	}
	coreUser := User{Name: "core", Keys: []string{"ssh-ed25519 A a@x\n", "ssh-rsa B"}}
	tests := []struct {
		name            string
		users, previous []User
		want            []files.Want
	}{
		{"one user", []User{coreUser}, nil, core},
		{"several users, each their own", []User{coreUser, {Name: "svc", Keys: []string{"k"}}}, nil, append(core[:3:3],
			dir(svcSSH, "svc", 990, 991), dir(svcSSH+"/authorized_keys.d", "svc", 990, 991),
			file(svcSSH+"/authorized_keys.d/ignition", "svc", 990, 991, "k\n"))},
		{"no keys, none before", []User{{Name: "core"}}, []User{{Name: "core"}}, nil},
		{"the last key goes", []User{{Name: "core"}}, []User{coreUser},
			[]files.Want{gone(coreSSH+"/authorized_keys.d/ignition", "core")}},
		{"a user leaves", nil, []User{coreUser}, []files.Want{gone(coreSSH+"/authorized_keys.d/ignition", "core")}},
		{"a user leaves whom the host has lost", nil, []User{{Name: "ghost", Keys: []string{"k"}}}, nil},
		{"a user without a home leaves", nil, []User{{Name: "nobody", Keys: []string{"k"}}}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			accounts := testHost(t)
			got, err := Wants(accounts, tt.users, tt.previous)
			must(t, err)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestUsersThatTheHostDoesNotHaveAreNamed(t *testing.T) {
	accounts := testHost(t)
	_, err := Wants(accounts, []User{{Name: "core"}, {Name: "ghost"}, {Name: "spook"}}, nil)
	want := `passwd.users: user "ghost" does not exist on this host; passwd.users: user "spook" does not exist on this host`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err = Wants(accounts, []User{{Name: "nobody", Keys: []string{"k"}}}, nil); err == nil || !strings.Contains(err.Error(), `"nobody"`) {
		t.Errorf("a home of / must be refused by name, got %v", err)
	}
}
