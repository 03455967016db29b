// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/machineconfig"
)

const (
	group = "apiVersion: machineconfiguration.openshift.io/v1\n"
	role  = "machineconfiguration.openshift.io/role"
)

func config(name, of, path, text string) string {
	return group + "kind: MachineConfig\nmetadata: {name: " + name + ", labels: {" + role + ": " + of + "}}\nspec:\n  config:\n" +
		"    ignition: {version: 3.4.0}\n    storage: {files: [{path: " + path + ", contents: {source: 'data:," + text + "'}}]}\n---\n"
}

func kubelet(name, pool, spec string) string {
	return group + "kind: KubeletConfig\nmetadata: {name: " + name + "}\nspec:\n  machineConfigPoolSelector: {matchLabels: {" +
		"pools.operator.machineconfiguration.openshift.io/" + pool + ": ''}}\n  " + spec + "\n---\n"
}

func runtime(name, spec string) string {
	return group + "kind: ContainerRuntimeConfig\nmetadata: {name: " + name + "}\nspec:\n  machineConfigPoolSelector: " +
		"{matchLabels: {pools.operator.machineconfiguration.openshift.io/worker: ''}}\n  containerRuntimeConfig: " + spec + "\n---\n"
}

func mirror(source, mirror string) string {
	return "apiVersion: config.openshift.io/v1\nkind: ImageDigestMirrorSet\nmetadata: {name: m}\nspec:\n  imageDigestMirrors: " +
		"[{source: " + source + ", mirrors: [" + mirror + "]}]\n---\n"
}

func annotated(document, annotation string) string {
	return strings.Replace(document, "}\nspec", ", annotations: {"+annotation+"}}\nspec", 1)
}

func read(t *testing.T, text string) *machineconfig.Documents {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	docs, _, err := Options{}.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range docs.Others {
		d.Origin = strings.TrimPrefix(d.Origin, filepath.Dir(path)+"/")
	}
	for _, d := range docs.Configs {
		d.Origin = strings.TrimPrefix(d.Origin, filepath.Dir(path)+"/")
	}
	return docs
}

// files renders a pool and returns the paths of its files.
func files(t *testing.T, o Options, pool, text string) (paths string, warnings []string, err error) {
	t.Helper()
	made := o.Make(read(t, text), pool)
	mc, warnings, err := made.Render(pool)
	if err != nil {
		return "", warnings, err
	}
	c, err := machineconfig.Parse(mc)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range c.Files {
		paths += f.Path + " "
	}
	return paths, append(warnings, made.Unsaid(pool, mc)...), nil
}

func TestEachKindHasItsPart(t *testing.T) {
	base := config("50-a", "worker", "/etc/a", "a")
	for name, test := range map[string]struct{ text, want string }{
		"a KubeletConfig":          {base + kubelet("k", "worker", "kubeletConfig: {maxPods: 100}"), "/etc/kubernetes/kubelet.conf.d/"},
		"a ContainerRuntimeConfig": {base + runtime("r", "{pidsLimit: 100}"), "/etc/crio/crio.conf.d/01-ctrcfg-pidsLimit"},
		"mirrors":                  {base + mirror("quay.io", "m.example"), "/etc/containers/registries.conf"},
		"nothing else":             {mirror("quay.io", "m.example"), "/etc/containers/registries.conf"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, pool := range []string{"worker", "infra"} { // infra takes over what is made for worker
				if paths, _, err := files(t, Options{}, pool, test.text); err != nil || !strings.Contains(paths, test.want) {
					t.Errorf("%s: %s, %v", pool, paths, err)
				}
			}
		})
	}
}

// What a namespace asks for is a warning where a pool can't have it, for that pool alone.
func TestAPolicyOfANamespaceIsAWarningForThePoolThatCantHaveIt(t *testing.T) {
	text := config("50-a", "worker", "/etc/a", "a") + config("50-b", "master", "/etc/b", "b") +
		"apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfigPool\nmetadata: {name: master, annotations: " +
		"{noderefit.dev/container-runtime: containerd}}\nspec: {machineConfigSelector: {matchLabels: {" + role + ": master}}}\n---\n"
	for _, namespace := range []string{"one", "two"} { // of the same name
		text += "apiVersion: config.openshift.io/v1\nkind: ImagePolicy\nmetadata: {name: p, namespace: " + namespace + "}\nspec:\n" +
			"  scopes: [quay.io/" + namespace + "]\n  policy: {rootOfTrust: {policyType: PublicKey, publicKey: {keyData: " +
			"LS0tLS1CRUdJTiBQVUJMSUMgS0VZLS0tLS0KQUFBQQotLS0tLUVORCBQVUJMSUMgS0VZLS0tLS0K}}}\n---\n"
	}
	paths, warnings, err := files(t, Options{Runtime: "crio"}, "worker", text)
	if err != nil || len(warnings) > 0 || !strings.Contains(paths, "/etc/crio/policies/one.json /etc/crio/policies/two.json") {
		t.Errorf("worker: %s, %q, %v", paths, warnings, err)
	}
	_, warnings, err = files(t, Options{Runtime: "crio"}, "master", text)
	if said := strings.Join(warnings, "\n"); err != nil || len(warnings) != 2 ||
		!strings.Contains(said, "ImagePolicy/two/p (f.yaml, document 5): MachineConfigPool/master: spec.policy: containerd") {
		t.Errorf("master: %q, %v", warnings, err)
	}
}

func TestWhatTheControllersRefuseIsAnErrorByDocumentObjectAndField(t *testing.T) {
	base := config("50-a", "worker", "/etc/a", "a") + config("50-m", "master", "/etc/m", "m")
	for name, test := range map[string]struct {
		text, want string
		all        bool // every pool is refused
	}{
		"a value that the kubelet can't have": {kubelet("k", "worker", "kubeletConfig: {maxPods: many}"),
			"KubeletConfig/k (f.yaml, document 3): spec.kubeletConfig: maxPods", false},
		"a field that the schema refuses": {kubelet("k", "worker", "logLevel: 99"),
			"KubeletConfig/k (f.yaml, document 3): spec.logLevel", true},
		"a setting of a runtime": {runtime("r", "{logLevel: loud}"),
			"ContainerRuntimeConfig/r (f.yaml, document 3): spec.containerRuntimeConfig.logLevel", false},
		"a mirror with a scheme": {mirror("quay.io", "'https://m'"), "ImageDigestMirrorSet/m (f.yaml, document 3): spec.imageDigestMirrors[0]",
			true},
		"a name that is taken": {config("99-worker-generated-kubelet", "worker", "/etc/x", "x") +
			kubelet("k", "worker", "kubeletConfig: {maxPods: 1}"), "MachineConfig/99-worker-generated-kubelet is there", false},
		"a file that wins over what is made": {config("99-worker-own", "worker", "/etc/containers/registries.conf", "") +
			mirror("quay.io", "m.example"), "MachineConfig/99-worker-own brings /etc/containers/registries.conf too", false},
		"a place that is taken": {annotated(kubelet("k", "worker", "kubeletConfig: {maxPods: 1}"), "machineconfiguration.openshift.io/mc-name-suffix: '1'") +
			annotated(kubelet("l", "worker", "kubeletConfig: {maxPods: 1}"), "machineconfiguration.openshift.io/mc-name-suffix: '1'"), "is taken in MachineConfigPool/worker", false},
		"a document that no cluster has": {"variant: fcos\nversion: 1.4.0\n---\n" + kubelet("k", "worker", "kubeletConfig: {maxPods: 1}"),
			"Ignition config f.yaml, document 3: a cluster has no such document, so KubeletConfig/k (f.yaml, document 4) can't be put on top", true},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := files(t, Options{}, "worker", base+test.text)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v", err)
			}
			if strings.Contains(test.text, "Mirror") {
				return // mirrors are of every pool
			}
			if _, _, err := files(t, Options{}, "master", base+test.text); (err != nil) != test.all {
				t.Errorf("another pool: %v", err)
			}
		})
	}
}

// A host refuses these whatever it has now, so that no pool gets them.
func TestWhatEachHostRefusesIsNotRendered(t *testing.T) {
	other := config("50-m", "master", "/etc/m", "m")
	for path, want := range map[string]string{
		"/run/machine-config-daemon/lock": "MachineConfig/50-a (f.yaml, document 1): storage.files: file /run/machine-config-daemon/lock: " +
			"/run/machine-config-daemon belongs to the agent",
		"/etc/systemd/system/machine-config-daemon-prove.service": "MachineConfig/50-a (f.yaml, document 1): storage.files: file",
		"/etc/a": "",
	} {
		text := config("50-a", "worker", path, "a") + other
		_, _, err := files(t, Options{}, "worker", text)
		if want == "" && err != nil || want != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v; want %q", path, err, want)
		}
		if _, _, err := files(t, Options{}, "master", text); err != nil {
			t.Errorf("another pool: %v", err)
		}
	}
}

// What a cluster learns from its Nodes, or from the order in which objects were made, is asked for only where the
// configuration would be another one.
func TestWhatNoDocumentSaysIsAskedForWhereItMatters(t *testing.T) {
	base := config("50-a", "worker", "/etc/a", "a")
	pool := func(annotation string) string {
		return annotated(group+"kind: MachineConfigPool\nmetadata: {name: worker, labels: {pools.operator.machineconfiguration."+
			"openshift.io/worker: ''}}\nspec:\n  machineConfigSelector: {matchLabels: {"+role+": worker}}\n---\n", annotation)
	}
	two := func(first, second string) string {
		return kubelet("a", "worker", "kubeletConfig: {"+first+"}") + kubelet("b", "worker", "kubeletConfig: {"+second+"}")
	}
	const runtimeMissing, orderMissing = "metadata.annotations[noderefit.dev/container-runtime]: is missing",
		"metadata.annotations[machineconfiguration.openshift.io/mc-name-suffix]: is missing"
	for name, test := range map[string]struct {
		o          Options
		text, want string
	}{
		"no mirrors":                             {Options{}, base, ""},
		"a KubeletConfig":                        {Options{}, base + kubelet("k", "worker", "kubeletConfig: {maxPods: 1}"), ""},
		"mirrors":                                {Options{}, base + mirror("quay.io", "m.example"), runtimeMissing},
		"mirrors of a pool that says it":         {Options{}, pool("noderefit.dev/container-runtime: crio") + base + mirror("quay.io", "m.example"), ""},
		"mirrors, and an option":                 {Options{Runtime: "containerd"}, base + mirror("quay.io", "m.example"), ""},
		"two of one field":                       {Options{}, base + two("maxPods: 1", "maxPods: 2"), orderMissing},
		"two of different fields":                {Options{}, base + two("maxPods: 1", "podPidsLimit: 1024"), ""},
		"a KubeletConfig for a pool that is not": {Options{}, base + kubelet("k", "gpu", "kubeletConfig: {maxPods: 1}"), "no MachineConfigPool has the labels"},
		"a ControllerConfig of another name": {Options{}, base + strings.ReplaceAll(cc(t), "name: machine-config-controller", "name: x"),
			"metadata.name: only the ControllerConfig machine-config-controller counts"},
	} {
		t.Run(name, func(t *testing.T) {
			_, warnings, err := files(t, test.o, "worker", test.text)
			if text := strings.Join(warnings, "\n"); err != nil || (test.want == "") != (text == "") || !strings.Contains(text, test.want) {
				t.Errorf("%q, %v", text, err)
			}
		})
	}
	paths, _, err := files(t, Options{Runtime: "containerd"}, "worker", base+mirror("quay.io", "m.example"))
	if err != nil || !strings.Contains(paths, "/etc/containerd/certs.d/quay.io/hosts.toml") {
		t.Errorf("with containerd: %s, %v", paths, err)
	}
}

func cc(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../packaging/kustomize/templates/controllerconfig.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "---\n"
}

func TestTemplatesAndTheirImagesAreBelowEverything(t *testing.T) {
	images := strings.Replace(cc(t), `baseOSContainerImage: ""`, "baseOSContainerImage: registry.example/os:1", 1)
	made := Options{}.Make(read(t, images+config("50-a", "worker", "/etc/sysctl.d/90-kubernetes.conf", "mine")), "worker")
	mc, _, err := made.Render("worker")
	if err != nil {
		t.Fatal(err)
	}
	c, err := machineconfig.Parse(mc)
	if err != nil || c.OSImageURL != "registry.example/os:1" {
		t.Fatalf("%v, %v", c, err)
	}
	for _, f := range c.Files {
		if f.Path == "/etc/sysctl.d/90-kubernetes.conf" && string(f.Contents) != "mine" {
			t.Errorf("%s: %s", f.Path, f.Contents)
		}
	}
	if len(c.Units) == 0 {
		t.Error("there are no units of the templates")
	}
	for text, want := range map[string]string{
		strings.Replace(images, "kubeadm-1", "nothing-9", 1): "ControllerConfig/machine-config-controller (f.yaml): templates nothing-9: there is no set",
	} {
		if _, _, err := files(t, Options{}, "worker", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
	base := &machineconfig.Document{Object: mc, Origin: "base.yaml"}
	if _, _, err := files(t, Options{Base: base}, "worker", images); err == nil || !strings.Contains(err.Error(), "leave one of them out") {
		t.Errorf("two kinds of default images: %v", err)
	}
}

// streams has the document of the OSImageStream with the streams old, which is the default, and new.
func streams() string {
	image := func(name string) string { return "r.example/" + name + "@sha256:" + strings.Repeat("a", 64) }
	text := group + "kind: OSImageStream\nmetadata: {name: cluster}\nspec: {defaultStream: old}\nstatus:\n  defaultStream: old\n" +
		"  availableStreams:\n"
	for _, name := range []string{"old", "new"} {
		text += "  - {name: " + name + ", osImage: '" + image(name) + "', osExtensionsImage: '" + image(name+"-extensions") + "'}\n"
	}
	return text + "---\n"
}

func TestTheStreamOfAPoolIsBelowEverything(t *testing.T) {
	follows := func(stream string) string {
		return config("50-a", "worker", "/etc/a", "a") + config("50-m", "master", "/etc/m", "m") + group +
			"kind: MachineConfigPool\nmetadata: {name: worker}\nspec:\n  osImageStream: {name: " + stream +
			"}\n  machineConfigSelector: {matchLabels: {" + role + ": worker}}\n---\n"
	}
	images := strings.Replace(cc(t), `baseOSContainerImage: ""`, "baseOSContainerImage: registry.example/os:1", 1)
	for name, test := range map[string]struct{ pool, text, image, wrong string }{
		"its own":                        {pool: "worker", text: streams() + follows("new"), image: "r.example/new@"},
		"its own, and default images":    {pool: "worker", text: images + streams() + follows("new"), image: "r.example/new@"},
		"the default":                    {pool: "master", text: streams() + follows("new"), image: "r.example/old@"},
		"default images":                 {pool: "master", text: images + streams() + follows("new"), image: "registry.example/os:1"},
		"beside a document of no pool":   {pool: "master", text: "variant: fcos\nversion: 1.4.0\n---\n" + streams() + follows("new"), image: "r.example/old@"},
		"one that there is not":          {pool: "worker", text: streams() + follows("newer"), wrong: `MachineConfigPool/worker: spec.osImageStream.name: OSImageStream/cluster has no stream "newer"`},
		"no document of streams":         {pool: "worker", text: follows("new"), wrong: "MachineConfigPool/worker: spec.osImageStream.name: the cluster has no OSImageStream/cluster"},
		"an image that has no digest":    {pool: "worker", text: strings.Replace(streams(), "new@sha256:", "new:", 1) + follows("new"), wrong: "OSImageStream/cluster (f.yaml, document 1): [status.availableStreams[1].osImage"},
		"another pool's is another case": {pool: "master", text: streams() + follows("newer"), image: "r.example/old@"},
	} {
		t.Run(name, func(t *testing.T) {
			mc, warnings, err := Options{}.Make(read(t, test.text), test.pool).Render(test.pool)
			switch {
			case test.wrong != "":
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("%v, want %s", err, test.wrong)
				}
			case err != nil || !strings.HasPrefix(mc.Spec.OSImageURL, test.image):
				t.Errorf("%v, %v", mc, err)
			case strings.HasPrefix(test.image, "r.example/") && !strings.Contains(mc.Spec.BaseOSExtensionsContainerImage, "-extensions@"):
				t.Errorf("the image of extensions is %s, %v", mc.Spec.BaseOSExtensionsContainerImage, warnings)
			}
		})
	}
}

func TestARuntimeThatThereIsNotIsRefused(t *testing.T) {
	if err := (Options{Runtime: "docker"}).Check(); err == nil || !strings.Contains(err.Error(), "neither crio nor containerd") {
		t.Error(err)
	}
}
