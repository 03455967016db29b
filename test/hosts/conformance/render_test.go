// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const controller = "machine-config-controller"

// mc is a MachineConfig document; each field is a line of its spec as YAML or JSON, "config" an Ignition config.
func mc(name, role string, fields ...string) string {
	out := "---\napiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: \"" + name + "\"\n"
	if role != "" {
		out += "  labels:\n    machineconfiguration.openshift.io/role: " + role + "\n"
	}
	out += "spec:\n"
	for _, f := range fields {
		out += "  " + f + "\n"
	}
	return out
}

func config(rest string) string { return `config: {"ignition":{"version":"3.4.0"}` + rest + `}` }

func file(path, contents string) string {
	return config(fmt.Sprintf(`,"storage":{"files":[{"path":%q,"contents":{"source":"data:,%s"}}]}`, path, contents))
}

func render(t *testing.T, pool, documents string, args ...string) map[string]any {
	t.Helper()
	dir := write(t, map[string]string{"in.yaml": documents})
	return fromYAML(t, run(t, dir, controller, append([]string{"render", "--pool", pool, "in.yaml"}, args...)...).ok(t).stdout)
}

func name(doc map[string]any) string {
	s, _ := at(doc, "metadata", "name").(string)
	return s
}

func TestRenderPrintsAMachineConfig(t *testing.T) {
	doc := render(t, "worker", mc("50-a", "worker", file("/etc/a", "x")))
	if doc["apiVersion"] != "machineconfiguration.openshift.io/v1" || doc["kind"] != "MachineConfig" {
		t.Errorf("%v %v", doc["apiVersion"], doc["kind"])
	}
	if !regexp.MustCompile(`^rendered-worker-[0-9a-f]{32}$`).MatchString(name(doc)) {
		t.Errorf("name %q", name(doc))
	}
	want := map[string]any{
		"ignition": map[string]any{"version": "3.5.0"},
		"storage": map[string]any{"files": []any{map[string]any{
			"path": "/etc/a", "overwrite": true, "contents": map[string]any{"source": "data:,x"},
		}}},
	}
	if diff := cmp.Diff(want, at(doc, "spec", "config")); diff != "" {
		t.Error(diff)
	}
}

func TestRenderOrder(t *testing.T) {
	tests := []struct{ name, documents, want string }{
		{"by name", mc("20-b", "infra", file("/f", "b")) + mc("10-a", "infra", file("/f", "a")), "data:,b"},
		{"worker before a custom role whatever the names", mc("99-z", "worker", file("/f", "worker")) + mc("00-a", "infra", file("/f", "infra")), "data:,infra"},
		{"among workers by name", mc("20-b", "worker", file("/f", "b")) + mc("10-a", "worker", file("/f", "a")), "data:,b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			doc := render(t, "infra", tt.documents)
			if got := at(doc, "spec", "config", "storage", "files", 0, "contents", "source"); got != tt.want {
				t.Errorf("%v, should be %s", got, tt.want)
			}
		})
	}
}

func TestRenderMergesFields(t *testing.T) {
	two := func(low, high string) string { return mc("1", "worker", low) + mc("2", "worker", high) }
	tests := []struct {
		name, documents string
		path            []any
		want            any
	}{
		{"kernel arguments one after the other, repeated ones too", two("kernelArguments: [a, b]", "kernelArguments: [b, c]"), []any{"kernelArguments"}, []any{"a", "b", "b", "c"}},
		{"extensions once, the first place counts", two("extensions: [usbguard, ipsec]", "extensions: [sysstat, usbguard]"), []any{"extensions"}, []any{"usbguard", "ipsec", "sysstat"}},
		{"kernel type of the last that says one", two("kernelType: realtime", "fips: false"), []any{"kernelType"}, "realtime"},
		{"an explicit default resets", two("kernelType: realtime", "kernelType: default"), []any{"kernelType"}, "default"},
		{"kernel type unsaid", two("fips: false", "fips: false"), []any{"kernelType"}, "default"},
		{"fips of any", two("fips: true", "fips: false"), []any{"fips"}, true},
		{"image of the last that names one", two("osImageURL: one", "osImageURL: two"), []any{"osImageURL"}, "two"},
		{"an empty image says nothing", two("osImageURL: one", `osImageURL: ""`), []any{"osImageURL"}, "one"},
		{"extension image", two("baseOSExtensionsContainerImage: one", "fips: false"), []any{"baseOSExtensionsContainerImage"}, "one"},
		{"a file's fields", two(config(`,"storage":{"files":[{"path":"/f","mode":384,"contents":{"source":"data:,1"}}]}`), file("/f", "2")),
			[]any{"config", "storage", "files"}, []any{map[string]any{"path": "/f", "mode": 384.0, "overwrite": true, "contents": map[string]any{"source": "data:,2"}}}},
		{"overwrite where a document says otherwise", two(config(`,"storage":{"files":[{"path":"/f","overwrite":false,"contents":{"source":"data:,1"}}]}`), "fips: false"),
			[]any{"config", "storage", "files", 0, "overwrite"}, false},
		{"a link takes the place of a file", two(file("/f", "1"), config(`,"storage":{"links":[{"path":"/f","target":"/g"}]}`)),
			[]any{"config", "storage"}, map[string]any{"links": []any{map[string]any{"path": "/f", "target": "/g"}}}},
		{"a unit and its drop-ins", two(config(`,"systemd":{"units":[{"name":"a.service","enabled":true,"contents":"[Unit]\nA=1","dropins":[{"name":"b.conf","contents":"[Unit]"}]}]}`),
			config(`,"systemd":{"units":[{"name":"a.service","contents":"[Unit]\nA=2","dropins":[{"name":"a.conf","contents":"[Unit]"}]}]}`)),
			[]any{"config", "systemd", "units"}, []any{map[string]any{"name": "a.service", "enabled": true, "contents": "[Unit]\nA=2", "dropins": []any{
				map[string]any{"name": "a.conf", "contents": "[Unit]"}, map[string]any{"name": "b.conf", "contents": "[Unit]"}}}}},
		{"keys of all, a password of the last", two(config(`,"passwd":{"users":[{"name":"core","passwordHash":"1","sshAuthorizedKeys":["k","l"]}]}`),
			config(`,"passwd":{"users":[{"name":"core","passwordHash":"2","sshAuthorizedKeys":["l","m"]}]}`)),
			[]any{"config", "passwd", "users"}, []any{map[string]any{"name": "core", "passwordHash": "2", "sshAuthorizedKeys": []any{"k", "l", "m"}}}},
		{"the newest version where one needs it", two("fips: false", `config: {"ignition":{"version":"3.6.0"}}`), []any{"config", "ignition", "version"}, "3.6.0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, at(render(t, "worker", tt.documents)["spec"], tt.path...)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRenderNamesByContent(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte("x y")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	one := func(contents string) string {
		return mc("1", "worker", config(`,"storage":{"files":[{"path":"/a","contents":`+contents+`},{"path":"/b"}]}`))
	}
	plain := one(`{"source":"data:,x%20y"}`)
	want := name(render(t, "worker", plain))
	for what, documents := range map[string]string{
		"spelling":      one(`{"source":"data:text/plain;base64,eCB5"}`),
		"compression":   one(`{"source":"data:;base64,` + base64.StdEncoding.EncodeToString(packed.Bytes()) + `","compression":"gzip"}`),
		"order":         mc("1", "worker", config(`,"storage":{"files":[{"path":"/b"},{"path":"/a","contents":{"source":"data:,x%20y"}}]}`)),
		"two documents": mc("2", "worker", config(`,"storage":{"files":[{"path":"/a","contents":{"source":"data:,x%20y"}}]}`)) + mc("3", "worker", config(`,"storage":{"files":[{"path":"/b"}]}`)),
		"version 3.0":   strings.Replace(plain, "3.4.0", "3.0.0", 1),
	} {
		if got := name(render(t, "worker", documents)); got != want {
			t.Errorf("%s changes the name from %s to %s", what, want, got)
		}
	}
	if got := name(render(t, "infra", plain)); strings.TrimPrefix(got, "rendered-infra-") != strings.TrimPrefix(want, "rendered-worker-") {
		t.Errorf("the pool's name changes the digits from %s to %s", want, got)
	}
	if got := name(render(t, "worker", one(`{"source":"data:,x"}`))); got == want {
		t.Error("other contents, same name")
	}
	again := fromYAML(t, run(t, write(t, map[string]string{"in.yaml": plain}), controller, "render", "--pool", "worker", "in.yaml").ok(t).stdout)
	if name(again) != want {
		t.Errorf("a second run says %s, the first %s", name(again), want)
	}
}

func TestRenderBase(t *testing.T) {
	dir := write(t, map[string]string{
		"base.yaml": mc("base", "", "osImageURL: default", "baseOSExtensionsContainerImage: extensions", file("/f", "base"), "kernelArguments: [z]"),
		"in.yaml":   mc("1", "worker", "osImageURL: mine", file("/f", "mine"), "kernelArguments: [a]"),
	})
	spec := fromYAML(t, run(t, dir, controller, "render", "--pool", "worker", "--base", "base.yaml", "in.yaml").ok(t).stdout)["spec"]
	got := []any{at(spec, "osImageURL"), at(spec, "baseOSExtensionsContainerImage"), at(spec, "kernelArguments"), at(spec, "config", "storage", "files", 0, "contents", "source")}
	if diff := cmp.Diff([]any{"mine", "extensions", []any{"z", "a"}, "data:,mine"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestRenderSelects(t *testing.T) {
	arg := func(name, role string) string { return mc(name, role, "kernelArguments: ["+name+"]") }
	pool := func(name, selector string) string {
		return "---\napiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfigPool\nmetadata: {name: " + name + "}\nspec:\n  machineConfigSelector: " + selector + "\n"
	}
	all := arg("a", "worker") + arg("b", "infra") + arg("c", "master") + arg("d", "arbiter") + arg("e", "")
	tests := []struct {
		name, pool, documents string
		want                  []any
	}{
		{"worker by role", "worker", all, []any{"a"}},
		{"master by role", "master", all, []any{"c"}},
		{"arbiter by role", "arbiter", all, []any{"d"}},
		{"a custom pool by role and worker", "infra", all, []any{"a", "b"}},
		{"the pool's selector", "infra", all + pool("infra", "{matchLabels: {machineconfiguration.openshift.io/role: infra}}"), []any{"b"}},
		{"an expression", "infra", all + pool("infra", "{matchExpressions: [{key: machineconfiguration.openshift.io/role, operator: In, values: [master, infra]}]}"), []any{"b", "c"}},
		{"an empty selector", "infra", all + pool("infra", "{}"), []any{"a", "b", "c", "d", "e"}},
		{"another pool's selector", "worker", all + pool("infra", "{}"), []any{"a"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, at(render(t, tt.pool, tt.documents), "spec", "kernelArguments")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRenderReadsWhatPeopleHavePublished(t *testing.T) {
	tests := []struct {
		pool string
		want map[string]string // contents by path, prefix enough
		args []any
		kind string
	}{
		{"infra", map[string]string{"/etc/chrony.conf": "server foo", "/etc/testinfra": "test", "/usr/local/bin/kubeinit_kubevirt_extra_config_script": "#!/usr/bin/bash",
			"/etc/test": "hello%20world", "/etc/containers/registries.conf": "[[registry]]"}, []any{"selinux=0"}, "realtime"},
		{"master", map[string]string{"/etc/containers/registries.conf": "[[registry]]"}, []any{"default_hugepagesz=1G", "hugepagesz=1G", "hugepages=32"}, "default"},
	}
	published, err := filepath.Abs("../../../machineconfig/testdata/published.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.pool, func(t *testing.T) {
			r := run(t, t.TempDir(), controller, "render", "--pool", tt.pool, published).ok(t)
			spec := fromYAML(t, r.stdout)["spec"]
			if diff := cmp.Diff(tt.args, at(spec, "kernelArguments")); diff != "" {
				t.Error(diff)
			}
			if got := at(spec, "kernelType"); got != tt.kind {
				t.Errorf("kernel type %v", got)
			}
			list, _ := at(spec, "config", "storage", "files").([]any)
			if len(list) != len(tt.want) {
				t.Errorf("%d files, should be %d", len(list), len(tt.want))
			}
			for _, f := range list {
				path, _ := at(f, "path").(string)
				source, _ := at(f, "contents", "source").(string)
				_, data, _ := strings.Cut(source, ",")
				if strings.Contains(source, ";base64") {
					decoded, err := base64.StdEncoding.DecodeString(data)
					if err != nil {
						t.Fatal(err)
					}
					data = string(decoded)
				}
				if want := tt.want[path]; want == "" || !strings.HasPrefix(data, want) {
					t.Errorf("%s: %q", path, data)
				}
				if mode := at(f, "mode"); mode != 420.0 && (mode != 493.0 || !strings.HasPrefix(path, "/usr/local/bin")) {
					t.Errorf("%s: mode %v", path, mode)
				}
			}
		})
	}
}

func TestAPublishedDocumentWithoutTheVersionOfIgnitionIsRefusedWithTheOneToWrite(t *testing.T) {
	text, err := os.ReadFile("../../../machineconfig/testdata/published.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documents := strings.Split(string(text), "\n---\n")
	slide := strings.Replace(documents[len(documents)-1], "    ignition:\n      version: 2.2.0\n", "", 1)
	dir := write(t, map[string]string{"test.yaml": slide})
	run(t, t.TempDir(), controller, "render", "--pool", "worker", dir).fails(t, 1,
		"MachineConfig/test-file", "spec.config.ignition.version: is required: write 2.2.0")
}

func TestRenderReadsEveryForm(t *testing.T) {
	arg := func(name string) string { return mc(name, "worker", "kernelArguments: ["+name+"]") }
	asJSON := func(name string) string {
		return fmt.Sprintf(`{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig","metadata":{"name":%q,"labels":{"machineconfiguration.openshift.io/role":"worker"}},"spec":{"kernelArguments":[%q]}}`, name, name)
	}
	dir := write(t, map[string]string{
		"d/1.yaml":      "# only a comment\n" + arg("a") + "---\n" + arg("b"),
		"d/2.yml":       "apiVersion: v1\nkind: List\nitems:\n- " + asJSON("c") + "\n",
		"d/3.json":      asJSON("d") + "\n" + asJSON("e"),
		"d/sub/4.bu":    "variant: openshift\nversion: 4.14.0\nmetadata:\n  name: f\n  labels: {machineconfiguration.openshift.io/role: worker}\nopenshift:\n  kernel_arguments: [f]\nstorage:\n  files:\n  - path: /etc/f\n    contents: {local: f.txt}\n",
		"d/sub/5.bu":    "variant: fcos\nversion: 1.5.0\nstorage:\n  files:\n  - path: /etc/g\n    contents: {inline: g}\n",
		"d/sub/6.ign":   `{"ignition":{"version":"3.1.0"},"storage":{"files":[{"path":"/etc/h"}]}}`,
		"d/sub/f.txt":   "from a file",
		"d/secret.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n",
	})
	r := run(t, dir, controller, "render", "--pool", "worker", "d").ok(t)
	spec := fromYAML(t, r.stdout)["spec"]
	if diff := cmp.Diff([]any{"a", "b", "c", "d", "e", "f"}, at(spec, "kernelArguments")); diff != "" {
		t.Error(diff)
	}
	var paths []any
	list, _ := at(spec, "config", "storage", "files").([]any)
	for _, f := range list {
		paths = append(paths, at(f, "path"))
	}
	if diff := cmp.Diff([]any{"/etc/f", "/etc/g", "/etc/h"}, paths); diff != "" {
		t.Error(diff)
	}
	warnings := strings.Join(r.lines("warning:"), "\n")
	for _, want := range []string{"d/sub/f.txt", "d/secret.yaml", "Secret"} {
		if !strings.Contains(warnings, want) {
			t.Errorf("no warning about %s: %s", want, warnings)
		}
	}
}

func TestRenderRefuses(t *testing.T) {
	good := mc("50-good", "worker", file("/a", "x"))
	tests := []struct {
		name  string
		input string
		names []string
	}{
		{"a misspelt field", good + mc("60-bad", "worker", "kernelArgument: [a]"), []string{"in.yaml", "document 2", "MachineConfig/60-bad", "spec.kernelArgument"}},
		{"a mode that is no number", good + mc("60-bad", "worker", config(`,"storage":{"files":[{"path":"/a"},{"path":"/b","mode":"0644"}]}`)), []string{"in.yaml", "document 2", "MachineConfig/60-bad", "spec.config.storage.files[1].mode"}},
		{"a remote source", mc("60-bad", "worker", config(`,"storage":{"files":[{"path":"/b","contents":{"source":"https://example.com/b"}}]}`)), []string{"in.yaml", "MachineConfig/60-bad", "spec.config.storage.files[0].contents.source", "/b"}},
		{"an extension", mc("60-bad", "worker", "extensions: [emacs]"), []string{"MachineConfig/60-bad", "spec.extensions[0]", "emacs"}},
		{"a kernel type", mc("60-bad", "worker", "kernelType: fast"), []string{"MachineConfig/60-bad", "spec.kernelType", "fast"}},
		{"a version", mc("60-bad", "worker", `config: {"ignition":{"version":"9.0.0"}}`), []string{"MachineConfig/60-bad", "spec.config.ignition.version", "9.0.0"}},
		{"one name twice", good + good, []string{"MachineConfig/50-good", "document 1", "document 2"}},
		{"no name", strings.Replace(good, `"50-good"`, `""`, 1), []string{"in.yaml", "metadata.name"}},
		{"another group", strings.Replace(good, "machineconfiguration.openshift.io/v1\n", "example.com/v1\n", 1), []string{"in.yaml", "apiVersion", "example.com/v1"}},
		{"broken YAML", good + "---\na: [\n", []string{"in.yaml", "document 2"}},
		{"a key twice", mc("60-bad", "worker", "kernelType: default", "kernelType: realtime"), []string{"in.yaml", "kernelType"}},
		{"documents that do not fit each other", good + mc("60-bad", "worker", file("/a/b", "y")), []string{"/a/b", "50-good", "60-bad"}},
		{"a pool that nothing belongs to", mc("60-bad", "master", "fips: true"), []string{"worker", "machineconfiguration.openshift.io/role"}},
		{"a selector that matches nothing", good + "---\napiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfigPool\nmetadata: {name: worker}\nspec: {machineConfigSelector: {matchLabels: {team: such}}}\n", []string{"MachineConfigPool/worker", "team=such"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run(t, write(t, map[string]string{"in.yaml": tt.input}), controller, "render", "--pool", "worker", "in.yaml").fails(t, 1, tt.names...)
		})
	}
}

func TestRenderLeavesUnselectedDocumentsAlone(t *testing.T) {
	render(t, "worker", mc("1", "worker", "fips: false")+mc("2", "master", "kernelType: fast", config(`,"storage":{"files":[{"path":"relative"}]}`))+
		mc("3", "master", `config: {"ignition":{"version":"2.2.0"},"storage":{"files":[{"path":"/a","filesystem":"data"}]}}`))
}

func TestRenderIgnoresUnknownIgnitionKeysAloud(t *testing.T) {
	dir := write(t, map[string]string{"in.yaml": mc("1", "worker", config(`,"storage":{"files":[{"path":"/a","modus":1}]}`))})
	r := run(t, dir, controller, "render", "--pool", "worker", "in.yaml").ok(t)
	if w := strings.Join(r.lines("warning:"), "\n"); !strings.Contains(w, "spec.config.storage.files[0].modus") || !strings.Contains(w, "MachineConfig/1") {
		t.Errorf("warnings: %q", w)
	}
}

func TestControllerUsage(t *testing.T) {
	dir := write(t, map[string]string{"in.yaml": mc("1", "worker", "fips: false")})
	tests := []struct {
		name string
		args []string
		code int
	}{
		{"no command", nil, 2},
		{"unknown command", []string{"refit"}, 2},
		{"unknown flag", []string{"render", "--pool", "worker", "--fast", "in.yaml"}, 2},
		{"no pool", []string{"render", "in.yaml"}, 2},
		{"no files", []string{"render", "--pool", "worker"}, 2},
		{"pool that is no name", []string{"render", "--pool", "a/b", "in.yaml"}, 2},
		{"file that is not there", []string{"render", "--pool", "worker", "nowhere.yaml"}, 1},
		{"base that is not there", []string{"render", "--pool", "worker", "--base", "nowhere.yaml", "in.yaml"}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { run(t, dir, controller, tt.args...).fails(t, tt.code) })
	}
	if r := run(t, dir, controller, "version").ok(t); !strings.HasPrefix(r.stdout, controller+" ") {
		t.Errorf("version: %q", r.stdout)
	}
}
