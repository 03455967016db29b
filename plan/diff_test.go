// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"testing"

	mc "github.com/noderefit/noderefit/machineconfig"
)

// secret is what no diff may show.
const secret = "c0ffee-never-to-be-said"

// Public keys, with what ssh-keygen -l prints of them.
const (
	keyA   = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBmF9m9ZelpzBdRciaxenan/2x6tf9Z8hfPYG84hnn3b"
	printA = "SHA256:uH/zipssoSKeqVDHz15oLLj0lf3YIGs4B2Ws7Icif7o"
	keyB   = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPFT0/v88Z5Zu17mLz+tKDyFNHVFyxSGzrAO3j9a4gPG"
	printB = "SHA256:Rn+pUG2+52rlHbtzyMpG5UUatRA58kEANH9QRyJVNtc"
)

func TestDiffsShowWhatDiffers(t *testing.T) {
	id := 1000
	withFile := func(f mc.File) *mc.Config { return &mc.Config{Files: []mc.File{f}} }
	withUnit := func(u mc.Unit) *mc.Config { return &mc.Config{Units: []mc.Unit{u}} }
	withUser := func(u mc.User) *mc.Config { return &mc.Config{Users: []mc.User{u}} }
	changed := func(change func(*mc.File)) mc.File {
		f := file("/etc/a", "1\n2\n")
		change(&f)
		return f
	}
	for _, test := range []struct {
		name          string
		from, to      *mc.Config
		kind          Kind
		path, want    string
		masked, other bool // other: there are more
	}{
		{"a new file", &mc.Config{}, withFile(file("/etc/a", "1\n")), File, "/etc/a",
			"--- /dev/null\n+++ /etc/a\nmode: 0644\nowner: root:root\n@@ -0,0 +1 @@\n+1\n", false, false},
		{"a node that was never configured", nil, withFile(file("/etc/a", "")), File, "/etc/a",
			"--- /dev/null\n+++ /etc/a\nmode: 0644\nowner: root:root\n", false, false},
		{"a file that goes", withFile(file("/etc/a", "1\n")), &mc.Config{}, File, "/etc/a",
			"--- /etc/a\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n", false, false},
		{"a line", withFile(file("/etc/a", "1\n2\n3\n4\n5\n6\n7\n8\n9\n")), withFile(file("/etc/a", "1\n2\n3\n4\nV\n6\n7\n8\n9\n")),
			File, "/etc/a", "--- /etc/a\n+++ /etc/a\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+V\n 6\n 7\n 8\n", false, false},
		{"the end of the last line", withFile(file("/etc/a", "1")), withFile(file("/etc/a", "1\n")), File, "/etc/a",
			"--- /etc/a\n+++ /etc/a\n@@ -1 +1 @@\n-1\n\\ No newline at end of file\n+1\n", false, false},
		{"mode and owner", withFile(file("/etc/a", "1\n2\n")), withFile(changed(func(f *mc.File) {
			f.Mode, f.Owner = 0o4755, mc.Owner{UID: &id, Group: "wheel"}
		})), File, "/etc/a", "--- /etc/a\n+++ /etc/a\nmode: 0644 -> 4755\nowner: root:root -> 1000:wheel\n", false, false},
		{"what is no text", withFile(file("/etc/a", "1\n")), withFile(file("/etc/a", "\x00\x01")), File, "/etc/a",
			"--- /etc/a\n+++ /etc/a\nnot text: 2 bytes, sha256 4355a46b19d348dc2f57c046f8ef63d4538ebb936000f3c9ee954a27460dd865 -> " +
				"2 bytes, sha256 b413f47d13ee2fe6c845b2ee141af81de858df4ec549a58b7970bb96645bc8d2\n", false, false},
		{"a secret", withFile(changed(func(f *mc.File) { f.Mode = 0o600 })),
			withFile(changed(func(f *mc.File) { f.Mode, f.Contents = 0o600, []byte(secret) })), File, "/etc/a",
			"--- /etc/a\n+++ /etc/a\ncontents masked: 4 bytes -> 23 bytes: its mode 0600 keeps other users from reading it\n", true, false},
		{"what was a secret", withFile(changed(func(f *mc.File) { f.Mode, f.Contents = 0o600, []byte(secret) })),
			withFile(file("/etc/a", "no more")), File, "/etc/a", "--- /etc/a\n+++ /etc/a\nmode: 0600 -> 0644\n" +
				"contents masked: 23 bytes -> 7 bytes: its mode 0600 keeps other users from reading it\n", true, false},
		{"a secret that comes", &mc.Config{}, withFile(file("/etc/a", "password="+secret)), File, "/etc/a",
			"--- /dev/null\n+++ /etc/a\nmode: 0644\nowner: root:root\ncontents masked: nothing -> 32 bytes: " +
				"there is a value in it that is named like a secret\n", true, false},
		{"only the mode of a secret", withFile(file("/etc/a", "password="+secret)),
			withFile(mc.File{Path: "/etc/a", Mode: 0o600, Contents: []byte("password=" + secret)}), File, "/etc/a",
			"--- /etc/a\n+++ /etc/a\nmode: 0644 -> 0600\n", false, false},
		{"a path that is no word", &mc.Config{}, withFile(file("/etc/a\n+++ b", "")), File, "/etc/a\n+++ b",
			"--- /dev/null\n+++ \"/etc/a\\n+++ b\"\nmode: 0644\nowner: root:root\n", false, false},
		{"a directory", &mc.Config{Directories: []mc.Directory{{Path: "/a", Mode: 0o755}}},
			&mc.Config{Directories: []mc.Directory{{Path: "/a", Mode: 0o700}}}, Directory, "/a",
			"--- /a\n+++ /a\nmode: 0755 -> 0700\n", false, false},
		{"a link", &mc.Config{Links: []mc.Link{{Path: "/a", Target: "b"}}},
			&mc.Config{Links: []mc.Link{{Path: "/a", Target: "/c", Hard: true}}}, Link, "/a",
			"--- /a\n+++ /a\nwas link to: b\nhard link to: /c\n", false, false},
		{"a unit", withUnit(mc.Unit{Name: "a.service", Contents: "[Unit]\n"}),
			withUnit(mc.Unit{Name: "a.service", Contents: "[Unit]\nA=b\n", Enabled: new(true), Mask: new(false)}), Unit, "a.service",
			"--- /etc/systemd/system/a.service\n+++ /etc/systemd/system/a.service\nenabled: not said -> yes\n" +
				"masked: not said -> no\n@@ -1 +1,2 @@\n [Unit]\n+A=b\n", false, false},
		{"a new unit", &mc.Config{}, withUnit(mc.Unit{Name: "a.service", Contents: "[Unit]\n", Enabled: new(true)}), Unit, "a.service",
			"--- /dev/null\n+++ /etc/systemd/system/a.service\nenabled: yes\n@@ -0,0 +1 @@\n+[Unit]\n", false, false},
		{"a unit with a secret", withUnit(mc.Unit{Name: "a.service", Contents: "[Unit]\n"}), withUnit(mc.Unit{
			Name: "a.service", Contents: "[Service]\nEnvironment=DB_PASSWORD=" + secret,
		}), Unit, "a.service", "--- /etc/systemd/system/a.service\n+++ /etc/systemd/system/a.service\n" +
			"contents masked: 7 bytes -> 57 bytes: there is a value in it that is named like a secret\n", true, false},
		{"a drop-in", withUnit(mc.Unit{Name: "a.service", Dropins: []mc.Dropin{{Name: "b.conf", Contents: "x\n"}}}),
			withUnit(mc.Unit{Name: "a.service", Dropins: []mc.Dropin{{Name: "b.conf"}}}), Dropin, "a.service/b.conf",
			"--- /etc/systemd/system/a.service.d/b.conf\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", false, false},
		{"keys", withUser(mc.User{Name: "core", Keys: []string{keyA + " a@x"}}),
			withUser(mc.User{Name: "core", Keys: []string{keyA + " a@x", "no-pty,from=\"10.0.0.0/8\" " + keyB}}), SSHKeys, "core",
			"--- SSH keys of core\n+++ SSH keys of core\n@@ -1 +1,2 @@\n ssh-ed25519 " + printA + " a@x\n" +
				"+no-pty,from=\"10.0.0.0/8\" ssh-ed25519 " + printB + "\n", false, false},
		{"a line among keys that is none", withUser(mc.User{Name: "core", Keys: []string{keyA}}),
			withUser(mc.User{Name: "core", Keys: []string{keyA, secret}}), SSHKeys, "core",
			"--- SSH keys of core\n+++ SSH keys of core\ncontents masked: 81 bytes -> 105 bytes: " +
				"a line of the file is not a public key\n", true, false},
		{"a key with a secret among its options", withUser(mc.User{Name: "core", Keys: []string{keyA}}),
			withUser(mc.User{Name: "core", Keys: []string{`environment="A_TOKEN=` + secret + `" ` + keyA}}), SSHKeys, "core",
			"--- SSH keys of core\n+++ SSH keys of core\ncontents masked: 81 bytes -> 127 bytes: " +
				"there is a value in it that is named like a secret\n", true, false},
		{"a password", withUser(mc.User{Name: "core"}), withUser(mc.User{Name: "core", PasswordHash: new("$6$" + secret)}),
			Password, "core", "--- /dev/null\n+++ password of core\ncontents masked: the hash of a password\n", true, false},
		{"a user", &mc.Config{}, withUser(mc.User{Name: "core", Keys: []string{keyB}}), SSHKeys, "core",
			"--- /dev/null\n+++ SSH keys of core\n@@ -0,0 +1 @@\n+ssh-ed25519 " + printB + "\n", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := mustMake(t, test.from, test.to, Options{})
			got := Diffs(test.from, test.to, p.Changes)
			if len(got) != 1 || (len(p.Changes) > 1) != test.other {
				t.Fatalf("%d diffs of %v", len(got), lines(p.Changes))
			}
			check(t, test.name, got[0], Diff{test.kind, test.path, test.want, test.masked})
		})
	}
}

// Changes of the OS are all said in the plan, and what is as it was is nowhere.
func TestWhatHasNoContentsHasNoDiff(t *testing.T) {
	from := &mc.Config{Files: []mc.File{file("/etc/a", "a")}}
	to := &mc.Config{Files: from.Files, KernelArguments: []string{"a"}, KernelType: mc.KernelRealtime, OSImageURL: "r/i@sha256:1",
		Extensions: []string{"usbguard"}}
	p := mustMake(t, from, to, Options{})
	if got := Diffs(from, to, p.Changes); len(p.Changes) != 4 || got == nil || len(got) != 0 {
		t.Errorf("%+v of %v", got, lines(p.Changes))
	}
}

func TestOfWhatIsTooLongOnlyTheSizesAreTold(t *testing.T) {
	from := &mc.Config{Files: []mc.File{file("/etc/a", strings.Repeat("a\n", diffMaxLines))}}
	to := &mc.Config{Files: []mc.File{file("/etc/a", "b\n")}}
	got := Diffs(from, to, mustMake(t, from, to, Options{}).Changes)
	want := fmt.Sprintf("\ntoo long to compare: %d bytes, sha256 ", 2*diffMaxLines)
	if len(got) != 1 || !strings.Contains(got[0].Diff, want) || len(got[0].Diff) > 300 {
		t.Errorf("%+v", got)
	}
}

// FuzzASecretIsInNoDiff: whatever the contents are, before and after, and however much of them is equal.
func FuzzASecretIsInNoDiff(f *testing.F) {
	f.Add("a\nb\n", "a\nc\n", true)
	f.Add("", "\x00", false)
	f.Add("\n\n", "```\r\n", true)
	f.Add("a"+secret, secret+secret+"b", false)
	f.Fuzz(func(t *testing.T, before, after string, was bool) {
		// What is no secret does not hold the secret.
		before, after = strings.ReplaceAll(before, secret, "\n"), strings.ReplaceAll(after, secret, "\n")
		// In one of the two, or in both but not alike.
		old, now := before, after+"\nAPI_TOKEN="+secret+"\n"+before
		if was {
			old, now = now, after+"\npassword: "+secret
		}
		config := func(text string) *mc.Config {
			return &mc.Config{
				Files: []mc.File{file("/etc/a", text), file("/etc/secrets/b", text),
					{Path: "/etc/c", Mode: 0o600, Contents: []byte(text + secret)}},
				Units: []mc.Unit{{Name: "a.service", Contents: text + "\n[Unit]\n", Dropins: []mc.Dropin{{Name: "b", Contents: text}}}},
				Users: []mc.User{{Name: "core", Keys: []string{text}, PasswordHash: new(text)}},
			}
		}
		from, to := config(old), config(now)
		p, err := Make(from, to, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range append(Diffs(from, to, p.Changes), Diffs(nil, to, p.Changes)...) {
			if strings.Contains(d.Diff, secret) || !d.Masked || !strings.HasSuffix(d.Diff, "\n") {
				t.Errorf("%+v", d)
			}
		}
	})
}
