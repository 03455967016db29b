// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/coreos/go-semver/semver"
	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
)

func TestServeSpeaksTheVersionThatIsAskedForOrSaysWhatItCannotSay(t *testing.T) {
	const plain = `{"ignition":{"version":"3.5.0"},"storage":{"files":[{"path":"/etc/a","overwrite":true,"mode":420,
		"contents":{"source":"data:,a"}}]},"systemd":{"units":[{"name":"a.service","enabled":true,
		"contents":"[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"}]},
		"passwd":{"users":[{"name":"core","sshAuthorizedKeys":["ssh-ed25519 AAAA"]}]}}`
	const kargs = `{"ignition":{"version":"3.5.0"},"kernelArguments":{"shouldExist":["foo=bar"]}}`
	const both = `{"ignition":{"version":"3.5.0"},"kernelArguments":{"shouldExist":["foo=bar"],"shouldNotExist":["x"]}}`
	const sticky = `{"ignition":{"version":"3.6.0"},"storage":{"directories":[{"path":"/var/x","mode":1023}]}}`
	const sha256 = `{"ignition":{"version":"3.5.0"},"storage":{"files":[{"path":"/etc/a","contents":{"source":"data:,a",
		"verification":{"hash":"sha256-ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"}}}]}}`
	for _, test := range []struct {
		name, config, version string
		newest                bool
		want, lacks           string
		arguments             string // left for others to set
	}{
		{name: "2.2", config: plain, version: "2.2.0", want: "2.2.0"},
		{name: "3.0", config: plain, version: "3.0.0", want: "3.0.0"},
		{name: "3.1", config: plain, version: "3.1.0", want: "3.1.0"},
		{name: "3.3", config: plain, version: "3.3.0", want: "3.3.0"},
		{name: "3.5", config: plain, version: "3.5.0", newest: true, want: "3.5.0"},
		{name: "arguments in 3.3", config: kargs, version: "3.3.0", want: "3.3.0"},
		{name: "arguments in 3.2", config: kargs, version: "3.2.0", want: "3.2.0", arguments: "foo=bar"},
		{name: "arguments in 2.2", config: kargs, version: "2.2.0", want: "2.2.0", arguments: "foo=bar"},
		{name: "arguments that have to go in 3.2", config: both, version: "3.2.0", lacks: "kernelArguments"},
		{name: "arguments that have to go in 3.3", config: both, version: "3.3.0", want: "3.3.0"},
		{name: "sticky for a client that reads 3.6", config: sticky, version: "3.5.0", newest: true, want: "3.6.0"},
		{name: "sticky in 3.5", config: sticky, version: "3.5.0", lacks: "storage.directories[0].mode (/var/x)"},
		{name: "a digest that 3.0 does not know", config: sha256, version: "3.0.0", lacks: "hash"},
	} {
		t.Run(test.name, func(t *testing.T) {
			mc := newObject("rendered-worker-0")
			mc.Spec.Config.Raw = []byte(test.config)
			before := mc.DeepCopy()
			s, err := Serve(mc)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := s.Document(Extra{}, *semver.New(test.version), test.newest)
			if diff := cmp.Diff(before, mc); diff != "" {
				t.Errorf("the object was changed:\n%s", diff)
			}
			if got := strings.Join(s.Arguments(*semver.New(test.version)), " "); got != test.arguments {
				t.Errorf("arguments %q are left, want %q", got, test.arguments)
			}
			if test.lacks != "" {
				inexpressible, ok := errors.AsType[*InexpressibleError](err)
				if !ok || inexpressible.Version.String() != test.version || !strings.Contains(err.Error(), test.lacks) {
					t.Fatalf("error %v, want one that names %s", err, test.lacks)
				}
				return
			}
			var got struct{ Ignition struct{ Version string } }
			if err := errors.Join(err, json.Unmarshal(raw, &got)); err != nil {
				t.Fatal(err)
			}
			if got.Ignition.Version != test.want {
				t.Errorf("version %s, want %s", got.Ignition.Version, test.want)
			}
			if _, err := readBack(raw); err != nil {
				t.Errorf("what is served is not read back: %v", err)
			}
		})
	}
}

func readBack(raw []byte) (*Config, error) {
	mc := newObject("x")
	mc.Spec.Config.Raw = raw
	return Parse(mc)
}

func TestServedVersionsMeanTheSame(t *testing.T) {
	mc := newObject("x")
	mc.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/b","mode":384,
		"overwrite":true,"contents":{"source":"data:;base64,Yg=="}},{"path":"/etc/c","overwrite":true,
		"contents":{"compression":"gzip","source":"data:;base64,H4sIAAAAAAACA0vmAgCFw9zvAgAAAA=="}}]},
		"passwd":{"users":[{"name":"core","sshAuthorizedKeys":["ssh-ed25519 AAAA"]}]}}`)
	want, err := Parse(mc)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"2.2.0", "3.0.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0", "3.5.0", "3.6.0"} {
		s, err := Serve(mc)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := s.Document(Extra{}, *semver.New(version), false)
		if err != nil {
			t.Errorf("%s: %v", version, err)
			continue
		}
		got, err := readBack(raw)
		if err != nil {
			t.Errorf("%s: %v", version, err)
			continue
		}
		if got.Digest != want.Digest {
			t.Errorf("%s means something else:\n%s", version, cmp.Diff(want.Files, got.Files))
		}
	}
}

// Version 2.2 has no word for a file without contents, and what converts to it leaves such a file out.
func TestAFileWithoutContentsIsServedInEveryVersion(t *testing.T) {
	mc := newObject("x")
	mc.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/var/lib/systemd/linger/core",
		"mode":420},{"path":"/etc/more","append":[{"source":"data:,b"}]}]}}`)
	for _, version := range []string{"2.2.0", "3.0.0", "3.5.0", "3.6.0"} {
		s, err := Serve(mc)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := s.Document(Extra{}, *semver.New(version), false)
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		got, err := readBack(raw)
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		i := slices.IndexFunc(got.Files, func(f File) bool { return f.Path == "/var/lib/systemd/linger/core" })
		if i < 0 || len(got.Files) != 2 {
			t.Errorf("%s: the files are %+v", version, got.Files)
			continue
		}
		if two := version == "2.2.0"; got.Files[i].NoContents == two || len(got.Files[i].Contents) > 0 {
			t.Errorf("%s: %+v", version, got.Files[i])
		}
	}
}

func TestWhatIsAddedReplacesYieldsAndComesLast(t *testing.T) {
	mc := newObject("x")
	mc.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.5.0"},"storage":{"files":[
		{"path":"/z","contents":{"source":"data:,z"}},{"path":"/mine","contents":{"source":"data:,old"}},
		{"path":"/theirs","contents":{"source":"data:,theirs"}}]},
		"systemd":{"units":[{"name":"theirs.service","enabled":false}]}}`)
	extra := Extra{
		Files: []ExtraFile{{Path: "/mine", Mode: 0o600, Contents: []byte("new\x00")},
			{Path: "/theirs", Mode: 0o600, Contents: []byte("no"), Yield: true}, {Path: "/last", Mode: 0o600}},
		Units: []Unit{{Name: "theirs.service", Contents: "[Unit]\n"}, {Name: "mine.service", Contents: "[Unit]\n"}},
	}
	for range 2 {
		s, err := Serve(mc)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := s.Document(extra, *semver.New("3.5.0"), false)
		if err != nil {
			t.Fatal(err)
		}
		d := &Document{Object: newObject("y")}
		d.Object.Spec.Config.Raw = raw
		p, _, err := d.parse(offered)
		if err != nil {
			t.Fatal(err)
		}
		var files, units []string
		for _, f := range p.cfg.Storage.Files {
			files = append(files, f.Path+" "+string(p.contents[f.Contents.Source]))
		}
		for _, u := range p.cfg.Systemd.Units {
			units = append(units, u.Name)
		}
		if diff := cmp.Diff([]string{"/z z", "/theirs theirs", "/mine new\x00", "/last "}, files); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"theirs.service", "mine.service"}, units); diff != "" {
			t.Error(diff)
		}
	}
	mc.Spec = mcfgv1.MachineConfigSpec{}
	mc.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.5.0"},"storage":{"directories":[{"path":"/mine"}]}}`)
	s, err := Serve(mc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Document(extra, *semver.New("3.5.0"), false); err == nil || !strings.Contains(err.Error(), "/mine") {
		t.Errorf("error %v, want one that names /mine", err)
	}
}
