// SPDX-License-Identifier: Apache-2.0

package template

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

var update = flag.Bool("update", false, "write what the built-in sets render to into testdata; for a new set alone")

// tree is a set of templates, by path.
func tree(files map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range files {
		out[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
	}
	return out
}

func file(path, contents string) string {
	return "path: " + path + "\nmode: 0600\ncontents:\n  inline: " + contents + "\n"
}

// config is a ControllerConfig of a plain cluster with these annotations.
func config(platform string, annotations ...string) *mcfgv1.ControllerConfig {
	cc := &mcfgv1.ControllerConfig{ObjectMeta: metav1.ObjectMeta{Name: api.ControllerConfig}}
	cc.Spec.Platform, cc.Spec.IPFamilies, cc.Spec.ClusterDNSIP = platform, mcfgv1.IPFamiliesIPv4, "10.96.0.10"
	for i := 0; i < len(annotations); i += 2 {
		if cc.Annotations == nil {
			cc.Annotations = map[string]string{}
		}
		cc.Annotations[annotations[i]] = annotations[i+1]
	}
	return cc
}

// contents are those of each MachineConfig's files, by MachineConfig and path, with its units, extensions and arguments.
func contents(t *testing.T, mcs []*mcfgv1.MachineConfig) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, mc := range mcs {
		c, err := machineconfig.Parse(mc)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range c.Files {
			out[mc.Name+":"+f.Path] = string(f.Contents)
		}
		for _, l := range c.Links {
			out[mc.Name+":"+l.Path] = "-> " + l.Target
		}
		for _, u := range c.Units {
			out[mc.Name+":"+u.Name] = u.Contents
		}
		for _, s := range slices.Concat(c.Extensions, c.KernelArguments) {
			out[mc.Name+":"+s] = mc.Labels[api.Role]
		}
	}
	return out
}

func TestLaterLayersOverrideEarlierOnes(t *testing.T) {
	set := tree(map[string]string{
		"values.yaml":                               "a: {about: x, default: one, oneOf: [one, two]}\n",
		"common/_base/files/all.yaml":               file("/etc/all", "common"),
		"common/_base/files/own.yaml":               file("/etc/own", "common"),
		"common/aws/files/all.yaml":                 file("/etc/all", "{{ .Platform }} common"),
		"worker/00-worker/_base/files/own.yaml":     file("/etc/own", "worker"),
		"worker/00-worker/_base/files/base.yaml":    file("/etc/base", "base {{ .Role }} {{ .Values.a }}"),
		"worker/00-worker/_base/files/gone.yaml":    file("/etc/gone", "base"),
		"worker/00-worker/_base/links/l.yaml":       "path: /etc/l\ntarget: all\n",
		"worker/00-worker/_base/units/a.yaml":       "name: a.service\ncontents: |\n  [Service]\n  ExecStart=/a\n",
		"worker/00-worker/_base/extensions/e.yaml":  "- usbguard\n",
		"worker/00-worker/_base/kargs/k.yaml":       "- a=1\n",
		"worker/00-worker/on-prem/files/gone.yaml":  "# nothing\n{{ if eq .Role \"master\" }}path: /x{{ end }}\n",
		"worker/00-worker/on-prem/files/base.yaml":  file("/etc/base", "on-prem"),
		"worker/00-worker/vsphere/files/base.yaml":  file("/etc/base", "vsphere"),
		"worker/00-worker/aws/files/base.yaml":      file("/etc/base", "aws"),
		"worker/00-worker/sno/files/base.yaml":      file("/etc/base", "sno"),
		"worker/00-worker/OWNERS":                   "approvers: []\n",
		"worker/01-worker-x/_base/files/other.yaml": file("/etc/other", "{{ .ClusterDNSIP }}"),
		"infra/00-infra/_base/files/own.yaml":       file("/etc/own", "infra"),
		"worker/..data/_base/files/own.yaml":        "not a template {{",
	})
	single := config("AWS")
	single.Spec.Infra = &configv1.Infrastructure{Status: configv1.InfrastructureStatus{
		PlatformStatus:       &configv1.PlatformStatus{Type: configv1.VSpherePlatformType},
		ControlPlaneTopology: configv1.SingleReplicaTopologyMode,
	}}
	with := func(changes map[string]string) map[string]string {
		out := map[string]string{
			"00-infra:/etc/all": "common", "00-infra:/etc/own": "infra",
			"00-worker:/etc/all": "common", "00-worker:/etc/own": "worker", "00-worker:/etc/base": "base worker one",
			"00-worker:/etc/gone": "base", "00-worker:/etc/l": "-> all", "00-worker:a.service": "[Service]\nExecStart=/a\n",
			"00-worker:usbguard": "worker", "00-worker:a=1": "worker", "01-worker-x:/etc/other": "10.96.0.10",
		}
		for k, v := range changes {
			if out[k] = v; v == "" {
				delete(out, k)
			}
		}
		return out
	}
	for _, test := range []struct {
		what string
		cc   *mcfgv1.ControllerConfig
		want map[string]string
	}{
		{"no platform", config(""), with(nil)},
		{"a value", config("", api.TemplateValue+"a", "two"), with(map[string]string{
			"00-worker:/etc/base": "base worker two",
		})},
		{"a platform", config("AWS"), with(map[string]string{
			"00-worker:/etc/base": "aws", "00-worker:/etc/all": "aws common", "00-infra:/etc/all": "aws common",
		})},
		{"a platform on the premises; what renders to nothing goes", config("vsphere"), with(map[string]string{
			"00-worker:/etc/base": "vsphere", "00-worker:/etc/gone": "",
		})},
		{"another one on the premises", config("nutanix"), with(map[string]string{
			"00-worker:/etc/base": "on-prem", "00-worker:/etc/gone": "",
		})},
		{"the infrastructure's platform, and one node", single, with(map[string]string{
			"00-worker:/etc/base": "sno", "00-worker:/etc/gone": "",
		})},
	} {
		t.Run(test.what, func(t *testing.T) {
			mcs, err := Generate(set, test.cc)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, contents(t, mcs)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}

func TestAnErrorNamesFileAndLineAndShowsNothingOfWhatWasRendered(t *testing.T) {
	const at = "worker/00-worker/_base/files/x.yaml"
	unit := strings.Replace(at, "files", "units", 1)
	for _, test := range []struct {
		what, path, text string
		want             []string
	}{
		{"no template", at, "a\n{{ if }}\n", []string{at + ":2"}},
		{"a function that there is not", at, "a\nb\n{{ etcdServerCertDNSNames . }}", []string{at + ":3"}},
		{"a field that there is not", at, "a\n{{ .KubeAPIServerServingCAData }}", []string{at + ":2:", "KubeAPIServerServingCAData"}},
		{"a pull secret", at, "{{ .PullSecret }}", []string{at + ":1:", "PullSecret"}},
		{"a value that there is not", at, "\n\n\n{{ .Values.b }}", []string{at + ":4:", `"b"`}},
		{"a range over a text", at, "\n{{ range .Values.a }}{{ end }}", []string{at + ":2:", "range can't iterate over this"}},
		{"no YAML", at, "path: /etc/x\n\tmode: hunter2", []string{at, "line ", "as rendered"}},
		{"a wrong type", at, "path: /etc/x\nmode: 0644\noverwrite: hunter2\n", []string{at, "line 3 as rendered"}},
		{"a misspelt field", at, "path: /etc/x\nmoed: 0600\n", []string{at + ": line 2 as rendered", "moed"}},
		{"what is not right", at, "path: hunter2\nmode: 0600\n", []string{at + ": line 1 as rendered: path: "}},
		{"a local file", at, "path: /etc/x\ncontents:\n  local: hunter2\n", []string{at + ": line 3 as rendered"}},
		{"two documents", at, "path: /etc/x\n---\npath: /etc/hunter2\n", []string{at}},
		{"a unit that is none", unit, "name: hunter2\n", []string{unit + ": line 1 as rendered: name: "}},
		{"a list that is none", strings.Replace(at, "files", "kargs", 1), "a: hunter2\n",
			[]string{"kargs/x.yaml: has to be a list of strings"}},
		{"a path twice", at, file("/etc/good", "hunter2"), []string{"worker/00-worker: ", "/etc/good"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			_, err := Generate(tree(map[string]string{
				test.path: test.text, "worker/00-worker/_base/files/good.yaml": file("/etc/good", "good"),
				"values.yaml": "a: {default: hunter2}\n",
			}), config(""))
			if err == nil {
				t.Fatal("it renders")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v\nwhich lacks %s", err, want)
				}
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("shows what was rendered: %v", err)
			}
		})
	}
}

func TestWhatASetDoesNotHaveIsAnError(t *testing.T) {
	good := map[string]string{
		"worker/00-worker/_base/files/x.yaml": file("/etc/x", "x"), "values.yaml": "a: {default: b, oneOf: [b, c]}\n",
	}
	for _, test := range []struct {
		what string
		set  map[string]string
		cc   *mcfgv1.ControllerConfig
		want string
	}{
		{"a value that is misspelt", good, config("", api.TemplateValue+"aa", "b"),
			"annotation templates.noderefit.dev/aa: the set knows no such value; it knows a"},
		{"a value that is not allowed", good, config("", api.TemplateValue+"a", "hunter2"),
			"annotation templates.noderefit.dev/a: has to be one of b, c"},
		{"a platform that leads elsewhere", good, config("../x"), "spec.platform"},
		{"the platform _base", good, config("_base"), "spec.platform"},
		{"a value with a field that there is not", map[string]string{"values.yaml": "a: {standard: b}\n"}, config(""),
			"values.yaml"},
		{"nothing", map[string]string{"values.yaml": "{}"}, config(""), "the set has no template"},
		{"a name twice", map[string]string{
			"master/00-a/_base/files/x.yaml": file("/etc/x", "x"), "worker/00-a/_base/files/x.yaml": file("/etc/x", "x"),
		}, config(""), "worker/00-a: there is master/00-a"},
		{"no name", map[string]string{"worker/00_a/_base/files/x.yaml": file("/etc/x", "x")}, config(""), "worker/00_a"},
	} {
		t.Run(test.what, func(t *testing.T) {
			_, err := Generate(tree(test.set), test.cc)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func TestAMountedConfigMapIsASet(t *testing.T) {
	dir := t.TempDir()
	// The kubelet writes into a folder with a time in its name, which links lead to.
	real := filepath.Join(dir, "..2026_01_01", "own", "worker", "00-worker", "_base", "files")
	if err := os.MkdirAll(real, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(real, "x.yaml"), []byte(file("/etc/x", "x")), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"..data": "..2026_01_01", "own": "..data/own"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	set, err := Sets{Dir: dir}.Open("own")
	if err != nil {
		t.Fatal(err)
	}
	mcs, err := Generate(set, config(""))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"00-worker:/etc/x": "x"}, contents(t, mcs)); diff != "" {
		t.Error(diff)
	}
	if _, err := (Sets{Dir: dir}).Open("onw"); err == nil || !strings.Contains(err.Error(), "there are kubeadm-1, own") {
		t.Errorf("got %v", err)
	}
	if _, err := (Sets{Dir: dir + "/away"}).Open("own"); err == nil || !strings.Contains(err.Error(), dir+"/away") {
		t.Errorf("got %v", err)
	}
}

// variants are the ControllerConfigs that the built-in set is rendered for.
func variants() map[string]*mcfgv1.ControllerConfig {
	out := map[string]*mcfgv1.ControllerConfig{
		"crio":       config(""),
		"containerd": config("", api.TemplateValue+"runtime", "containerd", api.TemplateValue+"kubelet", "/opt/bin/kubelet"),
	}
	out["containerd"].Spec.IPFamilies = mcfgv1.IPFamiliesDualStack
	return out
}

func TestABuiltInSetRendersToWhatItAlwaysDid(t *testing.T) {
	set, err := Sets{}.Open("kubeadm-1")
	if err != nil {
		t.Fatal(err)
	}
	for name, cc := range variants() {
		t.Run(name, func(t *testing.T) {
			mcs, err := Generate(set, cc)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, mc := range mcs {
				c, err := machineconfig.Parse(mc)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&got, "# %s, role %s\n", mc.Name, mc.Labels[api.Role])
				for _, f := range c.Files {
					fmt.Fprintf(&got, "## %s %04o\n%s", f.Path, f.Mode, f.Contents)
				}
				for _, u := range c.Units {
					text, err := yaml.Marshal(map[string]any{"enabled": u.Enabled, "mask": u.Mask})
					if err != nil {
						t.Fatal(err)
					}
					fmt.Fprintf(&got, "## %s\n%s%s", u.Name, text, u.Contents)
					for _, d := range u.Dropins {
						fmt.Fprintf(&got, "### %s\n%s", d.Name, d.Contents)
					}
				}
			}
			golden := filepath.Join("testdata", "kubeadm-1-"+name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("a set that is out is never changed; make kubeadm-2. Was (-), is (+):\n%s", diff)
			}
		})
	}
}

func TestTheBuiltInSetLeavesToKubeadmWhatIsKubeadms(t *testing.T) {
	set, err := Sets{}.Open("kubeadm-1")
	if err != nil {
		t.Fatal(err)
	}
	for name, cc := range variants() {
		mcs, err := Generate(set, cc)
		if err != nil {
			t.Fatal(err)
		}
		for _, mc := range mcs {
			c, err := machineconfig.Parse(mc)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range c.Files {
				if strings.HasPrefix(f.Path, "/var/lib/kubelet/") || strings.HasPrefix(f.Path, "/etc/kubernetes/") ||
					strings.HasPrefix(f.Path, "/etc/sysconfig/") {
					t.Errorf("%s: %s brings %s", name, mc.Name, f.Path)
				}
			}
		}
	}
}

func TestTheRolesOfTheBuiltInSetAreAlike(t *testing.T) {
	set, err := Sets{}.Open("kubeadm-1")
	if err != nil {
		t.Fatal(err)
	}
	mcs, err := Generate(set, config(""))
	if err != nil {
		t.Fatal(err)
	}
	specs := map[string]mcfgv1.MachineConfigSpec{}
	for _, mc := range mcs {
		specs[mc.Name] = mc.Spec
	}
	for name, spec := range specs {
		if other, ok := specs[strings.Replace(name, "master", "worker", 1)]; !ok {
			t.Errorf("workers have nothing like %s", name)
		} else if diff := cmp.Diff(spec, other); diff != "" {
			t.Errorf("%s is another for workers:\n%s", name, diff)
		}
	}
	if len(specs) != 6 {
		t.Errorf("got %d MachineConfigs", len(specs))
	}
}

func TestACustomPoolGetsTheWorkers(t *testing.T) {
	set, err := Sets{}.Open("kubeadm-1")
	if err != nil {
		t.Fatal(err)
	}
	mcs, err := Generate(set, config(""))
	if err != nil {
		t.Fatal(err)
	}
	docs := &machineconfig.Documents{}
	for _, mc := range mcs {
		docs.Configs = append(docs.Configs, &machineconfig.Document{Object: mc})
	}
	for pool, want := range map[string]string{"infra": "worker", "worker": "worker", "master": "master"} {
		selected, err := machineconfig.Select(pool, docs)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, d := range selected {
			names = append(names, d.Object.Name)
		}
		wanted := []string{"00-" + want, "01-" + want + "-container-runtime", "01-" + want + "-kubelet"}
		if !slices.Equal(names, wanted) {
			t.Errorf("pool %s has %v", pool, names)
		}
		if _, _, err := machineconfig.Render(pool, docs, nil); err != nil {
			t.Error(err)
		}
	}
}
