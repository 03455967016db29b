// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const example = "../../../packaging/kustomize/templates/controllerconfig.yaml"

// What the built-in templates make is a configuration that the agent takes: to the unit files and what enables them.
func TestTheTemplatesForKubeadmApply(t *testing.T) {
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	for _, runtime := range []string{"crio", "containerd"} {
		t.Run(runtime, func(t *testing.T) {
			tr := newTree(t)
			cc := strings.Replace(string(text), "    noderefit.dev/templates: kubeadm-1\n",
				"    noderefit.dev/templates: kubeadm-1\n    templates.noderefit.dev/runtime: "+runtime+"\n", 1)
			for name, unit := range map[string]string{
				"kubelet":    "[Service]\nExecStart=/vendor\n",
				"crio":       "[Service]\nExecStart=/usr/bin/crio\n[Install]\nWantedBy=multi-user.target\n",
				"containerd": "[Service]\nExecStart=/usr/bin/containerd\n[Install]\nWantedBy=multi-user.target\n",
				"zincati":    "[Service]\nExecStart=/usr/libexec/zincati\n",
			} {
				tr.put("usr/lib/systemd/system/"+name+".service", unit, 0o644)
			}
			const joined = "what kubeadm join wrote"
			theirs := []string{
				"var/lib/kubelet/config.yaml", "var/lib/kubelet/kubeadm-flags.env", "etc/kubernetes/kubelet.conf",
			}
			for _, path := range theirs {
				tr.put(path, joined, 0o600)
			}
			dir := write(t, map[string]string{"cc.yaml": cc})
			mcs := run(t, dir, controller, "templates", "cc.yaml").ok(t).stdout
			rendered := run(t, write(t, map[string]string{"in.yaml": mcs}), controller, "render", "--pool", "infra",
				"in.yaml").ok(t).stdout
			document, err := yaml.YAMLToJSON([]byte(rendered))
			if err != nil {
				t.Fatal(err)
			}
			tr.apply(string(document))
			tr.verified()
			const units = "etc/systemd/system/"
			tr.has(map[string]string{
				units + "zincati.service":                                 "link 0:0 -> /dev/null",
				units + "multi-user.target.wants/kubelet.service":         "link 0:0 -> /etc/systemd/system/kubelet.service",
				units + "multi-user.target.wants/" + runtime + ".service": "link 0:0 -> /usr/lib/systemd/system/" + runtime + ".service",
				units + "kubelet.service.d/05-container-runtime.conf":     "file 0644 0:0 [Unit]\nWants=" + runtime + ".service\nAfter=" + runtime + ".service\n",
				"etc/modules-load.d/kubernetes.conf":                      "file 0644 0:0 overlay\nbr_netfilter\n",
			})
			for _, path := range theirs {
				if is := tr.read(path); is != joined {
					t.Errorf("%s is %q", path, is)
				}
			}
		})
	}
}

func TestTemplatesRefusesWhatItCanNotRead(t *testing.T) {
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	cc := string(text)
	dir := write(t, map[string]string{
		"cc.yaml": cc, "own.yaml": strings.Replace(cc, "kubeadm-1", "own", 1),
		"none.yaml": strings.Replace(cc, "noderefit.dev/templates", "example.com/templates", 1),
		"typo.yaml": strings.Replace(cc, "ipFamilies", "ipFamily", 1),
		"sets/own/worker/00-worker/_base/files/a.yaml": "path: /etc/a\n{{ .PullSecret }}\n",
	})
	for _, test := range []struct {
		what string
		code int
		args []string
		says []string
	}{
		{"no file", 2, nil, []string{"ControllerConfig"}},
		{"a file that is not there", 1, []string{"away.yaml"}, []string{"away.yaml"}},
		{"no set named", 1, []string{"none.yaml"}, []string{"none.yaml", "noderefit.dev/templates"}},
		{"a field that there is not", 1, []string{"typo.yaml"}, []string{"typo.yaml", "ipFamily"}},
		{"a set that there is not", 1, []string{"own.yaml"}, []string{"own", "kubeadm-1"}},
		{"a secret in a template", 1, []string{"own.yaml", "--templates", "sets"},
			[]string{"worker/00-worker/_base/files/a.yaml:2", "PullSecret"}},
		{"no such folder", 1, []string{"own.yaml", "--templates", "away"}, []string{"away"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			run(t, dir, controller, append([]string{"templates"}, test.args...)...).fails(t, test.code, test.says...)
		})
	}
}
