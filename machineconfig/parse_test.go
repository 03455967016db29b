// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_6"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/butane"
)

// withConfig is a MachineConfig named x around an Ignition config without its version.
func withConfig(version, rest string) *mcfgv1.MachineConfig {
	mc := newObject("x")
	mc.Spec.Config.Raw = []byte(`{"ignition":{"version":"` + version + `"}` + rest + `}`)
	return mc
}

func files(list string) string { return `,"storage":{"files":[` + list + `]}` }
func units(list string) string { return `,"systemd":{"units":[` + list + `]}` }
func users(list string) string { return `,"passwd":{"users":[` + list + `]}` }

func mustParse(t testing.TB, mc *mcfgv1.MachineConfig) *Config {
	t.Helper()
	c, err := Parse(mc)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestParseNamesWhatIsWrong(t *testing.T) {
	spec := func(set func(*mcfgv1.MachineConfigSpec)) *mcfgv1.MachineConfig {
		mc := newObject("x")
		set(&mc.Spec)
		return mc
	}
	elsewhere := newObject("x")
	elsewhere.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.2.0","config":{"merge":[{"source":"https://example.com/"}]}}}`)
	tests := []struct {
		name string
		mc   *mcfgv1.MachineConfig
		want []string
	}{
		{"version unknown", withConfig("4.0.0", ""), []string{"spec.config.ignition.version", "4.0.0"}},
		{"version experimental", withConfig("3.7.0-experimental", ""), []string{"spec.config.ignition.version"}},
		{"version not one", withConfig("new", ""), []string{"spec.config.ignition.version", "new"}},
		{"type of a field", withConfig("3.2.0", files(`{"path":"/a"},{"path":"/b","mode":"0644"}`)), []string{"spec.config.storage.files[1].mode"}},
		{"type of a field in version 2", withConfig("2.2.0", files(`{"path":"/a","filesystem":"root","mode":"0644"}`)), []string{"spec.config.storage.files[0].mode"}},
		{"mode out of range", withConfig("3.2.0", files(`{"path":"/a","mode":32768}`)), []string{"spec.config.storage.files[0].mode", "/a"}},
		{"a user id below 0", withConfig("3.2.0", files(`{"path":"/a","user":{"id":-1}}`)), []string{"spec.config.storage.files[0].user.id", "/a", "-1"}},
		{"the user id that means none", withConfig("3.2.0", files(`{"path":"/a","user":{"id":4294967295}}`)), []string{"spec.config.storage.files[0].user.id", "/a"}},
		{"a group id below 0", withConfig("3.2.0", files(`{"path":"/a","group":{"id":-5}}`)), []string{"spec.config.storage.files[0].group.id", "/a"}},
		{"a user id in version 2", withConfig("2.2.0", files(`{"path":"/a","filesystem":"root","user":{"id":-1}}`)), []string{"spec.config.storage.files[0].user.id", "/a"}},
		{"a directory's group id", withConfig("3.2.0", `,"storage":{"directories":[{"path":"/d"},{"path":"/e","group":{"id":4294967296}}]}`), []string{"spec.config.storage.directories[1].group.id", "/e"}},
		{"a link's user id", withConfig("3.2.0", `,"storage":{"links":[{"path":"/l","target":"/x","user":{"id":-1}}]}`), []string{"spec.config.storage.links[0].user.id", "/l"}},
		{"a user's id", withConfig("3.2.0", users(`{"name":"core","uid":-1}`)), []string{"spec.config.passwd.users[0].uid", "core"}},
		{"a group's id", withConfig("3.2.0", `,"passwd":{"groups":[{"name":"g","gid":-1}]}`), []string{"spec.config.passwd.groups[0].gid", "(g)"}},
		{"a mode below 0", withConfig("3.2.0", files(`{"path":"/a","mode":-1}`)), []string{"spec.config.storage.files[0].mode", "/a"}},
		{"a directory's mode below 0", withConfig("3.2.0", `,"storage":{"directories":[{"path":"/d","mode":-1}]}`), []string{"spec.config.storage.directories[0].mode", "/d"}},
		{"special bits before 3.6", withConfig("3.5.0", files(`{"path":"/a","mode":2541}`)), []string{"spec.config.storage.files[0].mode", "/a"}},
		{"special bits of a directory before 3.6", withConfig("3.5.0", `,"storage":{"directories":[{"path":"/a","mode":1023}]}`), []string{"spec.config.storage.directories[0].mode", "/a"}},
		{"special bits in version 2", withConfig("2.2.0", files(`{"path":"/a","filesystem":"root","mode":2541}`)), []string{"spec.config.storage.files[0].mode", "/a"}},
		{"remote contents", withConfig("3.2.0", files(`{"path":"/a","contents":{"source":"https://example.com/a"}}`)), []string{"spec.config.storage.files[0].contents.source", "/a"}},
		{"remote append", withConfig("3.2.0", files(`{"path":"/a","append":[{"source":"https://example.com/a"}]}`)), []string{"spec.config.storage.files[0].append[0].source", "/a"}},
		{"compression", withConfig("3.2.0", files(`{"path":"/a","contents":{"source":"data:,x","compression":"xz"}}`)), []string{"spec.config.storage.files[0].contents.compression", "/a"}},
		{"gzip that is none", withConfig("3.2.0", files(`{"path":"/a","contents":{"source":"data:,x","compression":"gzip"}}`)), []string{"spec.config.storage.files[0].contents.compression", "/a"}},
		{"base64 that is none", withConfig("3.2.0", files(`{"path":"/a","contents":{"source":"data:;base64,!!"}}`)), []string{"spec.config.storage.files[0].contents.source", "/a"}},
		{"hash", withConfig("3.2.0", files(`{"path":"/a","contents":{"source":"data:,x","verification":{"hash":"sha256-`+strings.Repeat("0", 64)+`"}}}`)), []string{"spec.config.storage.files[0].contents.verification.hash", "/a"}},
		{"one path twice", withConfig("3.2.0", files(`{"path":"/a"},{"path":"/a"}`)), []string{"spec.config.storage.files[1]", "/a"}},
		{"a file and a link at one path", withConfig("3.2.0", `,"storage":{"files":[{"path":"/a"}],"links":[{"path":"/a","target":"/b"}]}`), []string{"spec.config.storage.links[0]", "/a"}},
		{"path relative", withConfig("3.2.0", files(`{"path":"a"}`)), []string{"spec.config.storage.files[0].path"}},
		{"path not clean", withConfig("3.2.0", files(`{"path":"/a/../b"}`)), []string{"spec.config.storage.files[0].path", "/a/../b"}},
		{"file at the root", withConfig("3.2.0", files(`{"path":"/"}`)), []string{"spec.config.storage.files[0].path"}},
		{"file below a file", withConfig("3.2.0", files(`{"path":"/a"},{"path":"/a/b"}`)), []string{"spec.config.storage.files[1].path", "/a/b"}},
		{"file below a link", withConfig("3.2.0", `,"storage":{"files":[{"path":"/a/b"}],"links":[{"path":"/a","target":"/c"}]}`), []string{"spec.config.storage.files[0]", "/a/b"}},
		{"force file", withConfig("3.2.0", files(`{"path":"/run/machine-config-daemon-force"}`)), []string{"spec.config.storage.files[0].path", forceFile}},
		{"link without target", withConfig("3.2.0", `,"storage":{"links":[{"path":"/a","target":""}]}`), []string{"spec.config.storage.links[0].target"}},
		{"other file system in version 2", withConfig("2.2.0", files(`{"path":"/a","filesystem":"data"}`)), []string{"spec.config.storage.files[0].filesystem", "/a"}},
		{"unit with a slash", withConfig("3.2.0", units(`{"name":"a/b.service"}`)), []string{"spec.config.systemd.units[0].name", "a/b.service"}},
		{"drop-in with a slash", withConfig("3.2.0", units(`{"name":"a.service","dropins":[{"name":"../b.conf"}]}`)), []string{"spec.config.systemd.units[0].dropins[0].name", "../b.conf"}},
		{"unit type", withConfig("3.2.0", units(`{"name":"a.blah"}`)), []string{"spec.config.systemd.units[0].name", "a.blah"}},
		{"unit syntax", withConfig("3.2.0", units(`{"name":"a.service","contents":"[Unit"}`)), []string{"spec.config.systemd.units[0].contents", "a.service"}},
		{"drop-in syntax", withConfig("3.2.0", units(`{"name":"a.service","dropins":[{"name":"b.conf","contents":"[Unit"}]}`)), []string{"spec.config.systemd.units[0].dropins[0].contents"}},
		{"a unit and a file at its path", withConfig("3.2.0", files(`{"path":"/etc/systemd/system/a.service"}`)+units(`{"name":"a.service","contents":"[Unit]\n"}`)), []string{"spec.config.storage.files[0].path"}},
		{"second user", withConfig("3.2.0", users(`{"name":"core"},{"name":"a b"}`)), []string{"spec.config.passwd.users[1].name", "a b"}},
		{"password hash that breaks shadow", withConfig("3.2.0", users(`{"name":"core","passwordHash":"a:b"}`)), []string{"spec.config.passwd.users[0].passwordHash"}},
		{"config that lies elsewhere", elsewhere, []string{"spec.config.ignition.config.merge[0].source"}},
		{"kernel type", spec(func(s *mcfgv1.MachineConfigSpec) { s.KernelType = "fast" }), []string{"spec.kernelType", "fast"}},
		{"extension", spec(func(s *mcfgv1.MachineConfigSpec) { s.Extensions = []string{"usbguard", "emacs"} }), []string{"spec.extensions[1]", "emacs"}},
		{"kernel-devel with realtime", spec(func(s *mcfgv1.MachineConfigSpec) { s.Extensions = []string{"kernel-devel"}; s.KernelType = "realtime" }), []string{"spec.extensions[0]", "realtime"}},
		{"kernel argument with half a quote", spec(func(s *mcfgv1.MachineConfigSpec) { s.KernelArguments = []string{"a", `b="c`} }), []string{"spec.kernelArguments[1]"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse(tt.mc)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range append(tt.want, "MachineConfig/x") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

func TestParseAccepts(t *testing.T) {
	tests := []struct {
		name  string
		mc    *mcfgv1.MachineConfig
		check func(*Config) bool
	}{
		{"nothing", newObject("x"), func(c *Config) bool {
			return c.KernelType == KernelDefault && len(c.Files)+len(c.Units)+len(c.Users) == 0
		}},
		{"special bits in 3.6", withConfig("3.6.0", files(`{"path":"/a","mode":2541}`)), func(c *Config) bool { return c.Files[0].Mode == 0o4755 }},
		{"defaults of modes", withConfig("3.1.0", `,"storage":{"files":[{"path":"/a"}],"directories":[{"path":"/b"}]}`), func(c *Config) bool {
			return c.Files[0].Mode == 0o644 && c.Directories[0].Mode == 0o755
		}},
		{"append", withConfig("3.2.0", files(`{"path":"/a","append":[{"source":"data:,b"},{"source":"data:;base64,Yw=="}]}`)), func(c *Config) bool {
			return c.Files[0].Append && string(c.Files[0].Contents) == "bc"
		}},
		{"the largest id", withConfig("3.2.0", files(`{"path":"/a","user":{"id":4294967294}}`)), func(c *Config) bool { return *c.Files[0].Owner.UID == 4294967294 }},
		{"no contents", withConfig("3.2.0", files(`{"path":"/a","mode":384}`)), func(c *Config) bool { return c.Files[0].NoContents }},
		{"empty contents", withConfig("3.2.0", files(`{"path":"/a","contents":{"source":"data:,"}}`)), func(c *Config) bool { return !c.Files[0].NoContents }},
		{"what is appended is contents", withConfig("3.2.0", files(`{"path":"/a","append":[{"source":"data:,b"}]}`)), func(c *Config) bool { return !c.Files[0].NoContents }},
		// Version 2 makes an empty file where a source is not given.
		{"no contents in version 2", withConfig("2.2.0", files(`{"path":"/a","filesystem":"root","mode":384}`)), func(c *Config) bool { return !c.Files[0].NoContents }},
		{"append in version 2", withConfig("2.2.0", files(`{"path":"/a","filesystem":"root","append":true,"contents":{"source":"data:,b"}}`)), func(c *Config) bool {
			return c.Files[0].Append && string(c.Files[0].Contents) == "b"
		}},
		{"a hash that fits the decompressed contents", withConfig("3.2.0", files(`{"path":"/a","contents":{"source":"data:;base64,H4sIAAAAAAACA6sCAK930mIBAAAA","compression":"gzip","verification":{"hash":"sha256-594e519ae499312b29433b7dd8a97ff068defcba9755b6d5d00e84c524d67b06"}}}`)), func(c *Config) bool {
			return string(c.Files[0].Contents) == "z"
		}},
		{"several users with keys and hashes", withConfig("3.2.0", users(`{"name":"core","sshAuthorizedKeys":["ssh-ed25519 A a\n","ssh-ed25519 B b"],"passwordHash":"$6$x"},{"name":"admin","shell":"/bin/zsh","uid":7}`)), func(c *Config) bool {
			return c.Users[0].Name == "admin" && string(c.Users[0].Other["shell"]) == `"/bin/zsh"` && string(c.Users[0].Other["uid"]) == "7" && len(c.Users[0].Other) == 2 &&
				c.Users[0].PasswordHash == nil && *c.Users[1].PasswordHash == "$6$x" && c.Users[1].Keys[0] == "ssh-ed25519 A a" && len(c.Users[1].Other) == 0
		}},
		{"what only a new machine gets", withConfig("3.4.0", `,"kernelArguments":{"shouldExist":["a"]},"passwd":{"groups":[{"name":"g"}]},"storage":{"disks":[{"device":"/dev/sdb"}],"luks":[{"name":"l","device":"/dev/sdc"}]}`), func(c *Config) bool {
			return len(c.Provision) == 4 && string(c.Provision["storage.disks"]) == `[{"device":"/dev/sdb"}]` && string(c.Provision["kernelArguments"]) == `{"shouldExist":["a"]}` &&
				c.Provision["storage.luks"] != nil && c.Provision["passwd.groups"] != nil
		}},
		{"repeated entries in version 2", withConfig("2.2.0", files(`{"path":"/a","filesystem":"root","contents":{"source":"data:,1"}},{"path":"/a","filesystem":"root","contents":{"source":"data:,2"}}`)+
			units(`{"name":"a.service","contents":"[Unit]\n","dropins":[{"name":"1.conf"}]},{"name":"a.service","enable":true,"contents":"[Service]\n","dropins":[{"name":"2.conf"}]}`)+
			users(`{"name":"core","sshAuthorizedKeys":["a"]},{"name":"core","sshAuthorizedKeys":["b","a"]}`)), func(c *Config) bool {
			return len(c.Files) == 1 && string(c.Files[0].Contents) == "2" && len(c.Units) == 1 && c.Units[0].Contents == "[Service]\n" && *c.Units[0].Enabled &&
				len(c.Units[0].Dropins) == 2 && len(c.Users) == 1 && len(c.Users[0].Keys) == 2
		}},
		{"a unit that is masked or unmasked", withConfig("3.2.0", units(`{"name":"b.service","mask":false},{"name":"a.service","mask":true}`)), func(c *Config) bool {
			return *c.Units[0].Mask && !*c.Units[1].Mask && c.Units[0].Enabled == nil
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if c := mustParse(t, tt.mc); !tt.check(c) {
				t.Errorf("wrong: %+v", c)
			}
		})
	}
}

func TestKernelArgumentsSplitAsTheKernelDoes(t *testing.T) {
	mc := newObject("x")
	mc.Spec.KernelArguments = []string{"a  b=1", `c="d e" f`, "console=ttyS0", "console=tty0", "a"}
	want := []string{"a", "b=1", `c="d e"`, "f", "console=ttyS0", "console=tty0", "a"}
	if diff := cmp.Diff(want, mustParse(t, mc).KernelArguments); diff != "" {
		t.Error(diff)
	}
}

func TestDigestIgnoresSpelling(t *testing.T) {
	digest := func(config string) string { return mustParse(t, withConfig("3.2.0", config)).Digest }
	want := digest(files(`{"path":"/a","mode":420,"contents":{"source":"data:,z"}},{"path":"/b"}`))
	for name, same := range map[string]string{
		"base64":            files(`{"path":"/a","contents":{"source":"data:text/plain;charset=utf-8;base64,eg=="}},{"path":"/b"}`),
		"escape":            files(`{"path":"/a","contents":{"source":"data:,%7A"}},{"path":"/b"}`),
		"compression":       files(`{"path":"/a","contents":{"source":"data:;base64,H4sIAAAAAAACA6sCAK930mIBAAAA","compression":"gzip"}},{"path":"/b"}`),
		"order":             files(`{"path":"/b"},{"path":"/a","contents":{"source":"data:,z"}}`),
		"owner":             files(`{"path":"/b","user":{"id":0}},{"path":"/a","group":{"name":"root"},"contents":{"source":"data:,z"}}`),
		"overwrite":         files(`{"path":"/b"},{"path":"/a","overwrite":true,"contents":{"source":"data:,z"}}`),
		"media type quoted": files(`{"path":"/b"},{"path":"/a","contents":{"source":"data:text/plain;charset=\"utf-8\",z"}}`),
	} {
		if got := digest(same); got != want {
			t.Errorf("%s changes the digest", name)
		}
	}
	for name, other := range map[string]string{
		"contents": files(`{"path":"/a","contents":{"source":"data:,y"}},{"path":"/b"}`),
		"mode":     files(`{"path":"/a","mode":384,"contents":{"source":"data:,z"}},{"path":"/b"}`),
		"owner":    files(`{"path":"/a","user":{"id":1},"contents":{"source":"data:,z"}},{"path":"/b"}`),
		"group":    files(`{"path":"/a","group":{"id":1},"contents":{"source":"data:,z"}},{"path":"/b"}`),
		"path":     files(`{"path":"/c","contents":{"source":"data:,z"}},{"path":"/b"}`),
		"moved":    files(`{"path":"/b","contents":{"source":"data:,z"}},{"path":"/a"}`),
		"keep":     files(`{"path":"/a","overwrite":false,"contents":{"source":"data:,z"}},{"path":"/b"}`),
		"empty":    files(`{"path":"/a","contents":{"source":"data:,z"}},{"path":"/b","contents":{"source":"data:,"}}`),
		"unit":     files(`{"path":"/a","contents":{"source":"data:,z"}},{"path":"/b"}`) + units(`{"name":"a.service"}`),
	} {
		if got := digest(other); got == want {
			t.Errorf("%s does not change the digest", name)
		}
	}
}

// A file without contents was once named as an empty one. What was rendered then goes on to be known by its name, and a
// host's copy of it by its digest.
func TestAConfigurationIsKnownByTheNameThatItWasGiven(t *testing.T) {
	const name = "rendered-worker-1a4ed0ea8bab136e5dd773929f3e66c2" // by a version that took it for an empty file
	bare, empty := files(`{"path":"/a","mode":384}`), files(`{"path":"/a","mode":384,"contents":{"source":"data:,"}}`)
	parse := func(name, config string) *Config {
		mc := withConfig("3.5.0", config)
		mc.Name = name
		mc.Spec.KernelType = KernelDefault
		return mustParse(t, mc)
	}
	if c := parse(name, bare); !NamedBy(name, c.Digest) {
		t.Errorf("%s is not known by its name: its digest is %s", name, c.Digest)
	}
	if c := parse("mine", bare); NamedBy(name, c.Digest) || !NamedBy(name, c.Former) {
		t.Errorf("under its own name the digest is %s, the former one %s", c.Digest, c.Former)
	}
	if c := parse("mine", empty); c.Former != "" {
		t.Errorf("an empty file has the former digest %s, which is the one it has", c.Former)
	}
	if c := parse("rendered-worker-"+strings.Repeat("0", 32), bare); NamedBy(c.Name, c.Digest) {
		t.Error("a name that is no digest of the content is believed")
	}
}

// verdicts are configs for every corner in which the versions differ or the short way could differ from the library.
var verdicts = []string{
	``, `,"storage":{"files":[]}`, `,"unknown":1`, `,"Storage":{"files":[{"path":"/a"}]}`,
	files(`{"path":"/a","contents":{"source":"data:,a%20b"}}`),
	files(`{"path":"/a","contents":{"source":"data:,a b"}}`),
	files(`{"path":"/a","contents":{"source":"data:,a%2"}}`),
	files(`{"path":"/a","contents":{"source":"data:;base64,YQ=="}}`),
	files(`{"path":"/a","contents":{"source":"data:;base64,YQ="}}`),
	files(`{"path":"/a","contents":{"source":"data:;base64,Y\nQ=="}}`),
	files(`{"path":"/a","contents":{"source":"data:;base64,"}}`),
	files(`{"path":"/a","contents":{"source":"data:text/plain;charset=\"utf-8\",a"}}`),
	files(`{"path":"/a","contents":{"source":"data:text/plain;charset=\"u\n\",a"}}`),
	files(`{"path":"/a","contents":{"source":"data:bogus/x;base64,YQ=="}}`),
	files(`{"path":"/a","contents":{"source":"data:a"}}`), files(`{"path":"/a","contents":{"source":"DATA:,a"}}`),
	files(`{"path":"/a","contents":{"source":""}}`), files(`{"path":"/a","overwrite":true}`),
	files(`{"path":"/a","contents":{"compression":"gzip"}}`), files(`{"path":"/a","contents":{"compression":"xz","source":"data:,"}}`),
	files(`{"path":"/a","contents":{"source":"data:,","httpHeaders":[{"name":"a","value":"b"}]}}`),
	files(`{"path":"/a","contents":{"source":"data:,a","verification":{"hash":"sha256-ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"}}}`),
	files(`{"path":"/a","contents":{"source":"data:,a","verification":{"hash":"md5-00"}}}`),
	files(`{"path":"/a","mode":2541}`), files(`{"path":"/a","mode":-1}`), files(`{"path":"/a","mode":4096}`),
	files(`{"path":"/a","mode":420.5}`), files(`{"path":1}`), files(`{"path":"/a/"}`), files(`{}`),
	files(`{"path":"/a"},{"path":"/a"}`), files(`{"path":"/a","user":{"id":1,"name":"b"}}`), files(`{"path":"/a","group":{"id":1}}`),
	files(`{"path":"/a","path":"/b"}`), files(`{"path":"/a","append":[{"source":"data:,a"}]}`), files(`{"path":"/a","append":[{"source":"x"}]}`),
	`,"storage":{"directories":[{"path":"/a","mode":1023},{"path":"/a"}]}`,
	`,"storage":{"links":[{"path":"/a","target":"/b"},{"path":"/a/c","target":"/b"}]}`,
	`,"storage":{"links":[{"path":"/a"}]}`, `,"storage":{"links":[{"path":"/a","target":""}]}`,
	`,"storage":{"links":[{"path":"/a","target":"/d","hard":true,"user":{"id":1}}],"directories":[{"path":"/d"}]}`,
	`,"storage":{"disks":[{"device":"/dev/sda","partitions":[{"number":1,"resize":true}]}],"luks":[{"name":"l","device":"/dev/sdb","discard":true,"clevis":{"tpm2":true}}]}`,
	`,"storage":{"filesystems":[{"device":"/dev/sda","path":"/var","format":"xfs","mountOptions":["ro"]}],"raid":[{"name":"r","level":"raid1","devices":["/dev/a","/dev/b"]}]}`,
	`,"kernelArguments":{"shouldExist":["a"]}`, `,"kernelArguments":5`,
	users(`{"name":"a","shouldExist":false}`), users(`{"name":"a"},{"name":"a"}`), users(`{"name":"a","sshAuthorizedKeys":["k","k"]}`), users(`{"name":"a","groups":["g","g"]}`),
	users(`{"name":"a","uid":1,"passwordHash":"x","sshAuthorizedKeys":["k"]}`), `,"passwd":{"groups":[{"name":"g","shouldExist":true}]}`,
	units(`{"name":"a.service"},{"name":"a.service"}`), units(`{"name":"a.service","contents":"[Unit"}`), units(`{"name":"a"}`),
	units(`{"name":"a.service","enabled":true,"contents":"[Unit]\nDescription=a\n"}`), units(`{"name":"a.service","dropins":[{"name":"b.conf"},{"name":"b.conf"}]}`),
	units(`{"name":"a@.service","contents":"[Unit]\n"},{"name":"a@b.service","enabled":true}`), units(`{"name":"a.service","dropins":[{"name":"b"}]}`),
	units(`{"name":"a.service","contents":"[Unit]\n"}`) + files(`{"path":"/etc/systemd/system/a.service"}`),
}

// TestReadsIgnitionAsIgnitionDoes holds the short way of reading to the library's, for every version: the same verdict,
// the same config.
func TestReadsIgnitionAsIgnitionDoes(t *testing.T) {
	exact := 0
	for minor := range 7 {
		for _, rest := range verdicts {
			raw := []byte(fmt.Sprintf(`{"ignition":{"version":"3.%d.0"}%s}`, minor, rest))
			exact += likeLibrary(t, raw)
		}
		raw := []byte(fmt.Sprintf(`{"ignition":{"version":"3.%d.0","proxy":{"httpProxy":"http://p"},"timeouts":{"httpTotal":3}}}`, minor))
		exact += likeLibrary(t, raw)
	}
	exact += likeLibrary(t, newGenerator().large().Spec.Config.Raw)
	if exact < 100 {
		t.Errorf("only %d configs took the short way", exact)
	}
}

func likeLibrary(t *testing.T, raw []byte) (exact int) {
	t.Helper()
	want, rpt, wantErr := v3_6.ParseCompatibleVersion(raw)
	ign, err := decodeIgnition(raw)
	if err != nil {
		if wantErr == nil {
			t.Errorf("%.200s: refused (%v), the library accepts", raw, err)
		}
		return 0
	}
	if !ign.exact {
		return 0 // the library itself is asked
	}
	_, known, _ := decodeContents(&ign.cfg)
	got := validateIgnition(&ign.cfg, known)
	if got.IsFatal() != (wantErr != nil) {
		t.Errorf("%.200s: verdict %q, the library's %q", raw, got, rpt)
		return 1
	}
	if wantErr != nil {
		return 1
	}
	if len(got.Entries) != len(rpt.Entries) {
		t.Errorf("%.200s: warnings %q, the library's %q", raw, got, rpt)
	}
	ign.cfg.Ignition.Version = want.Ignition.Version
	if diff := cmp.Diff(want, ign.cfg, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%.200s: %s", raw, diff)
	}
	return 1
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"a.yaml", "b.bu", "c.ign"} {
		for _, rest := range verdicts {
			f.Add(name, []byte(`{"ignition":{"version":"3.4.0"}`+rest+`}`))
			f.Add(name, []byte(`{"ignition":{"version":"2.2.0"}`+rest+`}`))
		}
	}
	seeds, err := filepath.Glob("testdata/*")
	if err != nil || len(seeds) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, path := range seeds {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(path, data)
	}
	large, err := json.Marshal(machineConfig("small", map[string]any{
		"ignition": map[string]any{"version": "3.2.0"},
		"storage":  map[string]any{"files": []any{newGenerator().file("/etc/a", 300, true), newGenerator().file("/etc/b", 200, false)}},
		"systemd":  map[string]any{"units": []any{newGenerator().unit("a.service", 2)}},
	}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("large.json", large)
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		r := &reader{translate: butane.Translate}
		// A Butane config may include files; there are none in a directory that does not exist.
		if err := r.data("/nonexistent/"+filepath.Base(name), data); err != nil {
			return
		}
		for _, d := range r.docs.Configs {
			c, err := Parse(d.Object)
			if err != nil {
				continue
			}
			stored, err := c.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			var mc mcfgv1.MachineConfig
			if err := json.Unmarshal(stored, &mc); err != nil {
				t.Fatal(err)
			}
			again, err := Parse(&mc)
			if err != nil {
				t.Fatalf("not accepted again: %v", err)
			}
			if again.Digest != c.Digest {
				t.Fatalf("digest %s became %s", c.Digest, again.Digest)
			}
			merged, _, err := Merge("p", []*Document{d}, nil)
			if err != nil {
				t.Fatalf("valid, but not when merged with nothing: %v", err)
			}
			if merged.Digest != c.Digest {
				t.Fatalf("digest %s became %s by merging with nothing", c.Digest, merged.Digest)
			}
			if again := mustParse(t, merged.Object); again.Digest != merged.Digest {
				t.Fatalf("rendered digest %s became %s", merged.Digest, again.Digest)
			}
		}
	})
}
