// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// collected are the files of an archive by name, without their folder.
func collected(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v", file, info.Mode(), err)
	}
	zipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for files := tar.NewReader(zipped); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		out[name] = string(text)
	}
}

const collectedObjects = `
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: worker}
spec:
  machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: worker}}
  nodeSelector: {matchLabels: {node-role.kubernetes.io/worker: ""}}
---
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 50-canary
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  kernelArguments: [quiet, rd.luks.token=c4n4rysecret]
  config:
    ignition: {version: 3.5.0}
    passwd: {users: [{name: core, passwordHash: c4n4rysecret, sshAuthorizedKeys: [ssh-ed25519 c4n4rysecret]}]}
    storage:
      files: [{path: /etc/a, contents: {source: "data:,c4n4rysecret"}}]
    systemd:
      units: [{name: a.service, contents: "[Service]\nEnvironment=TOKEN=c4n4rysecret\n"}]
---
apiVersion: v1
kind: Secret
metadata: {name: pull, namespace: openshift-machine-config-operator}
stringData: {any: c4n4rysecret}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: trust, namespace: openshift-machine-config-operator}
data: {any: c4n4rysecret}
---
apiVersion: v1
kind: Event
metadata: {name: pulled, namespace: openshift-machine-config-operator}
involvedObject: {kind: Pod, name: x, namespace: openshift-machine-config-operator}
message: pulling https://u:c4n4rysecret@registry.example.com/x
reason: Failed
type: Warning
`

func TestAnArchiveForAReportHasNoSecret(t *testing.T) {
	cluster.Need(t)
	c := cluster.New(t, cluster.Options{})
	l := &lab{c, t, t.Context(), time.Now()}
	dir := t.TempDir()
	l.must(os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(collectedObjects), 0o600))
	if _, err := l.Kubectl(l.ctx, "create", "namespace", api.Namespace); err != nil {
		t.Fatal(err)
	}
	// As people do it: the annotation of kubectl has the document once more.
	if out, err := l.Kubectl(l.ctx, "apply", "-f", filepath.Join(dir, "objects.yaml")); err != nil {
		t.Fatal(out, err)
	}
	_, err := l.Client.CoreV1().Nodes().Create(l.ctx, cluster.KwokNode("w0", map[string]string{api.NodeRole + "worker": ""}),
		metav1.CreateOptions{})
	l.must(err)

	file := filepath.Join(dir, "report.tar.gz")
	r := l.refit("collect", "--file", file).ok(t)
	t.Log("\n" + r.stdout)
	files := collected(t, file)
	for name, text := range files {
		if strings.Contains(text, "c4n4rysecret") {
			t.Errorf("%s has the secret:\n%s", name, text)
		}
	}
	for name, part := range map[string]string{
		"objects/machineconfigpools.yaml":   "name: worker",
		"objects/machineconfigs.yaml":       "name: 50-canary",
		"objects/nodes.yaml":                "name: w0",
		"events/" + api.Namespace + ".yaml": "reason: Failed",
		"version.json":                      "\"server\"",
		"check.json":                        "\"checks\"",
		"status.json":                       "\"pools\"",
		"contents.txt":                      "no agent's pod runs on the node",
	} {
		if !strings.Contains(files[name], part) {
			t.Errorf("%s lacks %q:\n%s", name, part, files[name])
		}
	}
	if !strings.Contains(files["objects/machineconfigs.yaml"], "rd.luks.token=(masked)") {
		t.Error(files["objects/machineconfigs.yaml"])
	}

	// Nothing is written over, and nothing half is left behind.
	l.refit("collect", "--file", file).fails(t, 1, "exists; remove it")
	l.refit("collect", "--node", "w1", "--file", filepath.Join(dir, "other")).fails(t, 1, "there is no Node w1")
	l.refit("collect", "--limit", "much").fails(t, 2, "--limit")
	l.refit("collect", "--limit", "-1").fails(t, 2, "--limit")
	left, err := os.ReadDir(dir)
	l.must(err)
	if len(left) != 2 {
		t.Errorf("left behind: %v", left)
	}

	// Missing rights and a limit take parts away, and say which.
	l.must(os.Remove(file))
	r = l.refit("collect", "--limit", "3Ki", "--file", file).ok(t)
	if !strings.Contains(r.stdout, "over the limit; --limit allows more") {
		t.Error(r.stdout)
	}
	l.refit("collect", "--as=nobody", "--file", filepath.Join(dir, "other")).fails(t, 1, "not allowed", "nodes")
}
