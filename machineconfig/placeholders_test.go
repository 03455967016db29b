// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/coreos/go-semver/semver"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/values"
)

func namingDocument(t *testing.T, name, placeholders, spec string) *Document {
	t.Helper()
	mc := &mcfgv1.MachineConfig{}
	text := "metadata:\n  name: " + name + "\nspec:\n" + spec
	if err := yaml.Unmarshal([]byte(text), mc); err != nil {
		t.Fatal(err)
	}
	if placeholders != "" {
		mc.Annotations = map[string]string{placeholdersKey: placeholders}
	}
	return &Document{Object: mc}
}

const (
	hostnameSpec = `
  kernelArguments: ["ip=@{address:values/ip}"]
  config:
    ignition: {version: 3.4.0}
    storage:
      files:
      - {path: /etc/hostname, contents: {source: "data:,@%7Bhostname:name%7D"}}
      - {path: "/etc/@{interface:values/nic}.conf", contents: {source: "data:,x"}}
    systemd:
      units:
      - name: a.service
        contents: "[Unit]\nDescription=@{text:zone}\n"
        dropins: [{name: a.conf, contents: "[Unit]\nDescription=@{text:zone}\n"}]
`
	plainSpec = `
  config:
    ignition: {version: 3.4.0}
    storage:
      files:
      - {path: /etc/profile, contents: {source: "data:,@%7BHOME%7D"}}
`
)

func merged(t *testing.T, docs ...*Document) *Config {
	t.Helper()
	c, _, err := Merge("worker", docs, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// of gives values to a rendered configuration, as a host reads it.
func of(t *testing.T, c *Config, given map[string]string) (*Config, error) {
	t.Helper()
	data, err := json.Marshal(With(c.Object, given))
	if err != nil {
		t.Fatal(err)
	}
	mc := &mcfgv1.MachineConfig{}
	if err := json.Unmarshal(data, mc); err != nil {
		t.Fatal(err)
	}
	return ParseRendered(mc)
}

func fileIn(c *Config, path string) string {
	for _, f := range c.Files {
		if f.Path == path {
			return string(f.Contents)
		}
	}
	return "(none)"
}

func TestOnlyTextsThatAskForItGetValues(t *testing.T) {
	t.Parallel()
	c := merged(t, namingDocument(t, "a", "true", hostnameSpec), namingDocument(t, "b", "", plainSpec))
	if !NamedBy(c.Name, c.Digest) || len(c.Placeholders) != 4 {
		t.Fatalf("%s, %v", c.Name, c.Placeholders)
	}
	given := map[string]string{"name": "web-1", "zone": "50%", "values/ip": "10.0.0.7", "values/nic": "eth0"}
	made, err := of(t, c, given)
	if err != nil {
		t.Fatal(err)
	}
	if made.Name != c.Name+"+"+values.Digest(given) || made.Template != c.Digest || made.Digest == c.Digest ||
		len(made.Placeholders) > 0 || PoolOf(made.Name) != "worker" {
		t.Errorf("%s of %s: %s, %s", made.Name, c.Name, made.Digest, made.Template)
	}
	for path, want := range map[string]string{"/etc/hostname": "web-1", "/etc/eth0.conf": "x", "/etc/profile": "@{HOME}"} {
		if got := fileIn(made, path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if !slices.Equal(made.KernelArguments, []string{"ip=10.0.0.7"}) ||
		!strings.Contains(made.Units[0].Contents, "=50%%\n") || !strings.Contains(made.Units[0].Dropins[0].Contents, "=50%%\n") {
		t.Errorf("%v, %v", made.KernelArguments, made.Units)
	}
	again, err := of(t, c, given)
	if err != nil || again.Digest != made.Digest {
		t.Errorf("%v, %v", again, err)
	}
	// The same text is another configuration where it names values.
	literal := merged(t, namingDocument(t, "a", "", hostnameSpec), namingDocument(t, "b", "", plainSpec))
	if literal.Digest == c.Digest || len(literal.Placeholders) > 0 {
		t.Error("the annotation makes no difference")
	}
}

func TestALaterDocumentTakesThePlaceholdersOfAText(t *testing.T) {
	t.Parallel()
	over := namingDocument(t, "b", "", strings.ReplaceAll(plainSpec, "/etc/profile", "/etc/hostname"))
	c := merged(t, namingDocument(t, "a", "true", hostnameSpec), over)
	if slices.Contains(c.Placeholders, values.Placeholder{Type: "hostname", Key: "name"}) {
		t.Errorf("%v", c.Placeholders)
	}
	made, err := of(t, c, map[string]string{"zone": "a", "values/ip": "10.0.0.7", "values/nic": "eth0"})
	if err != nil || fileIn(made, "/etc/hostname") != "@{HOME}" {
		t.Errorf("%v, %v", made, err)
	}
}

func TestValuesThatAreMissingOrHostileAreRefused(t *testing.T) {
	t.Parallel()
	c := merged(t, namingDocument(t, "a", "true", hostnameSpec), namingDocument(t, "b", "", plainSpec))
	_, err := of(t, c, map[string]string{"name": "web-1", "zone": "a"})
	missing, is := errors.AsType[*values.MissingError](err)
	if !is || !slices.Equal(missing.Keys, []string{"values/ip", "values/nic"}) {
		t.Errorf("%v", err)
	}
	good := map[string]string{"name": "web-1", "zone": "a", "values/ip": "10.0.0.7", "values/nic": "eth0"}
	for key, bad := range map[string]string{
		"name": "a\nb", "zone": "a\nExecStart=/bin/sh", "values/ip": "10.0.0.7 init=/bin/sh", "values/nic": "../passwd",
	} {
		given := maps.Clone(good)
		given[key] = bad
		if _, err := of(t, c, given); err == nil || !strings.Contains(err.Error(), key) || strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", key, err)
		}
	}
	clash := namingDocument(t, "c", "true", strings.ReplaceAll(hostnameSpec, "/etc/hostname", "/etc/eth0.conf"))
	if _, err := of(t, merged(t, clash), good); err == nil || !strings.Contains(err.Error(), "two files /etc/eth0.conf") {
		t.Errorf("%v", err)
	}
}

func TestAPlaceholderThatCanNotWorkIsRefusedWhereItIsRendered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ note, old, text, want string }{
		{"true", "@{text:zone}", "@{txet:zone}", "systemd.units[0].contents (a.service): placeholder \"txet:zone\""},
		{"true", "@%7Bhostname:name%7D", "@%7Btext:name%7D", "files[0].contents (/etc/hostname): placeholder text:name"},
		{"true", "values/ip", "secrets/ip", "kernelArguments[0]"},
		{"yes", "", "", "metadata.annotations[noderefit.dev/placeholders]: \"yes\" is not true"},
	} {
		_, _, err := Merge("worker", []*Document{namingDocument(t, "a", c.note, strings.ReplaceAll(hostnameSpec, c.old, c.text))}, nil)
		if c.old == "" {
			_, _, err = Merge("worker", []*Document{namingDocument(t, "a", c.note, hostnameSpec)}, nil)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.want, err)
		}
	}
	directory := namingDocument(t, "a", "true", `
  config:
    ignition: {version: 3.4.0}
    storage: {directories: [{path: "/etc/@{word:zone}"}]}
`)
	if _, _, err := Merge("worker", []*Document{directory}, nil); err == nil || !strings.Contains(err.Error(), "directories[0]") {
		t.Errorf("%v", err)
	}
}

func TestAMachineThatIsNoNodeYetIsMadeWithoutValues(t *testing.T) {
	t.Parallel()
	c := merged(t, namingDocument(t, "a", "true", hostnameSpec), namingDocument(t, "b", "", plainSpec))
	made, err := Parse(WithoutValues(c.Object))
	if err != nil || made.Name != c.Name+"+none" || len(made.Files) != 1 || len(made.Units) > 0 || len(made.KernelArguments) > 0 {
		t.Errorf("%v, %v", made, err)
	}
	served, err := Serve(c.Object)
	if err != nil {
		t.Fatal(err)
	}
	text, err := served.Document(Extra{}, semver.Version{Major: 3, Minor: 5}, false)
	if err != nil || strings.Contains(string(text), "hostname") || !strings.Contains(string(text), "/etc/profile") {
		t.Errorf("%s, %v", text, err)
	}
}
