// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coreos/ignition/v2/config/v3_5/types"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/vincent-petithory/dataurl"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/containerruntimeconfig"
	"github.com/noderefit/noderefit/controller/imagemirror"
	"github.com/noderefit/noderefit/controller/kubeletconfig"
	"github.com/noderefit/noderefit/controller/template"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// before are the documents of a cluster that is not there yet, of every kind that a configuration is made of. What a
// cluster would learn from its Nodes is said.
const before = `
kind: MachineConfigPool
apiVersion: machineconfiguration.openshift.io/v1
metadata: {name: worker, labels: {pool: worker}, annotations: {noderefit.dev/container-runtime: crio}}
spec:
  machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: worker}}
  nodeSelector: {matchLabels: {node-role.kubernetes.io/worker: ""}}
---
kind: MachineConfigPool
apiVersion: machineconfiguration.openshift.io/v1
metadata: {name: edge, labels: {pool: edge}, annotations: {noderefit.dev/container-runtime: containerd}}
spec:
  machineConfigSelector:
    matchExpressions:
      - {key: machineconfiguration.openshift.io/role, operator: In, values: [worker, edge]}
  nodeSelector: {matchLabels: {node-role.kubernetes.io/edge: ""}}
---
kind: MachineConfig
apiVersion: machineconfiguration.openshift.io/v1
metadata: {name: 60-worker-kubelet, labels: {machineconfiguration.openshift.io/role: worker}}
spec:
  config:
    ignition: {version: 3.4.0}
    storage:
      files:
        - path: /etc/kubernetes/kubelet.conf
          contents: {source: "data:,kind%3A%20KubeletConfiguration%0AapiVersion%3A%20kubelet.config.k8s.io%2Fv1beta1%0AmaxPods%3A%20110%0A"}
        - path: /etc/containers/registries.conf
          contents: {source: "data:,unqualified-search-registries%20%3D%20%5B%22a.example%22%5D%0A"}
---
kind: KubeletConfig
apiVersion: machineconfiguration.openshift.io/v1
metadata: {name: second, annotations: {machineconfiguration.openshift.io/mc-name-suffix: "1"}}
spec:
  machineConfigPoolSelector: {matchLabels: {pool: worker}}
  kubeletConfig: {maxPods: 200, systemReserved: {memory: 1Gi}}
---
kind: KubeletConfig
apiVersion: machineconfiguration.openshift.io/v1
metadata: {name: first, annotations: {machineconfiguration.openshift.io/mc-name-suffix: ""}}
spec:
  machineConfigPoolSelector: {matchLabels: {pool: worker}}
  kubeletConfig: {maxPods: 100}
---
kind: KubeletConfig
apiVersion: machineconfiguration.openshift.io/v1
metadata: {name: of-the-edge}
spec:
  machineConfigPoolSelector: {matchLabels: {pool: edge}}
  kubeletConfig: {podPidsLimit: 1024}
---
kind: ContainerRuntimeConfig
apiVersion: machineconfiguration.openshift.io/v1
metadata: {name: pids}
spec:
  machineConfigPoolSelector: {matchLabels: {pool: worker}}
  containerRuntimeConfig: {pidsLimit: 2048, logLevel: debug}
---
kind: ImageDigestMirrorSet
apiVersion: config.openshift.io/v1
metadata: {name: digests}
spec:
  imageDigestMirrors:
    - {source: registry.example, mirrors: [mirror.example]}
---
kind: ImageTagMirrorSet
apiVersion: config.openshift.io/v1
metadata: {name: tags}
spec:
  imageTagMirrors:
    - {source: quay.io, mirrors: [tags.example], mirrorSourcePolicy: AllowContactingSource}
---
kind: ImageContentSourcePolicy
apiVersion: operator.openshift.io/v1alpha1
metadata: {name: older}
spec:
  repositoryDigestMirrors:
    - {source: older.example, mirrors: [mirror.example]}
---
kind: Image
apiVersion: config.openshift.io/v1
metadata: {name: cluster}
spec:
  registrySources: {insecureRegistries: [mirror.example]}
`

// A first boot is final: what a machine is given before there is a cluster has the name that the cluster gives the same
// documents, byte for byte, so the node's first act there is none.
func TestRenderGivesTheNamesThatTheClusterGives(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"machine-config-controller", "machine-config-server"} {
		if _, err := programs.Build(t.Context(), bin, "cmd/"+name); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	cc, err := os.ReadFile("../../../packaging/kustomize/templates/controllerconfig.yaml")
	if err != nil {
		t.Fatal(err)
	}
	images := strings.Replace(string(cc), `baseOSContainerImage: ""`,
		"baseOSContainerImage: registry.example/os@sha256:"+strings.Repeat("a", 64), 1)
	writeText(t, dir+"/documents.yaml", before)
	writeText(t, dir+"/cc/controllerconfig.yaml", images)

	w := begin(t, cluster.Options{Controllers: true})
	c := w.objects()
	w.control(containerruntimeconfig.Add, imagemirror.Add, kubeletconfig.Add, func(mgr ctrl.Manager, version string) error {
		return template.Options{Version: version}.Add(mgr)
	})
	for _, text := range []string{before, images} {
		for document := range strings.SplitSeq(text, "\n---\n") {
			o := &unstructured.Unstructured{}
			if w.must(yaml.Unmarshal([]byte(document), &o.Object)); len(o.Object) > 0 {
				w.must(c.Create(w.ctx, o))
			}
		}
	}
	serve := serveDirectory(t, bin, dir)
	for _, pool := range []string{"worker", "edge"} {
		var out, said bytes.Buffer
		cmd := exec.CommandContext(t.Context(), bin+"/machine-config-controller", "render", "--strict", "--pool", pool, dir)
		if cmd.Stdout, cmd.Stderr = &out, &said; cmd.Run() != nil || said.Len() > 0 {
			t.Fatalf("rendering %s: %s", pool, &said)
		}
		mc := &mcfgv1.MachineConfig{}
		w.must(yaml.Unmarshal(out.Bytes(), mc))
		w.until("the cluster gives "+pool+" the name "+mc.Name, func() (bool, any) {
			p := w.pool(pool)
			return p.Spec.Configuration.Name == mc.Name, []any{p.Spec.Configuration, p.Status.Conditions}
		})
		w.says(pool, pending, no)
		w.always(pool+" keeps that name", time.Second, func() (bool, any) {
			is := w.pool(pool).Spec.Configuration.Name
			return is == mc.Name, is
		})
		if is := serve(pool); is != mc.Name {
			t.Errorf("the server gives machines of %s %s, and render %s", pool, is, mc.Name)
		}
	}
	if sources := w.pool("edge").Spec.Configuration.Source; len(sources) < 9 {
		t.Errorf("not every kind has its part in edge: %v", sources)
	}

	// What the directory gets later is served as the cluster has it then.
	_, later, _ := strings.Cut(before, "kind: ImageContentSourcePolicy\n")
	later, _, _ = strings.Cut(later, "---\n")
	later = "kind: ImageContentSourcePolicy\n" + strings.ReplaceAll(later, "older", "later")
	writeText(t, dir+"/later.yaml", later)
	o := &unstructured.Unstructured{}
	w.must(yaml.Unmarshal([]byte(later), &o.Object))
	was := w.pool("worker").Spec.Configuration.Name
	w.must(c.Create(w.ctx, o))
	now := w.moved("worker", was)
	w.until("the server has it too", func() (bool, any) {
		is := serve("worker")
		return is == now, is
	})

	// What the controllers refuse is an error, and nothing is printed.
	writeText(t, dir+"/later.yaml", `{"kind": "KubeletConfig", "apiVersion": "machineconfiguration.openshift.io/v1",
		"metadata": {"name": "bad"}, "spec": {"machineConfigPoolSelector": {"matchLabels": {"pool": "worker"}},
		"kubeletConfig": {"maxPods": "many"}}}`)
	var out, said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), bin+"/machine-config-controller", "render", "--pool", "worker", dir)
	cmd.Stdout, cmd.Stderr = &out, &said
	if cmd.Run(); cmd.ProcessState.ExitCode() != 1 || out.Len() > 0 ||
		!strings.Contains(said.String(), "KubeletConfig/bad ("+dir+"/later.yaml): spec.kubeletConfig: maxPods") {
		t.Errorf("exit %d: %s%s", cmd.ProcessState.ExitCode(), &out, &said)
	}
	w.always("the server goes on with what was good", 2*time.Second, func() (bool, any) {
		is := serve("worker")
		return is == now, is
	})
}

func writeText(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// serveDirectory has the server serve a directory until the test ends. The result asks for the configuration of a pool.
func serveDirectory(t *testing.T, bin, dir string) func(pool string) string {
	t.Helper()
	keys := t.TempDir()
	cert, key := cluster.SelfSigned(t)
	writeText(t, keys+"/tls.crt", string(cert))
	writeText(t, keys+"/tls.key", string(key))
	port := cluster.FreePort(t)
	var log bytes.Buffer
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), bin+"/machine-config-server", "--dir", dir,
		"--cert", keys+"/tls.crt", "--key", keys+"/tls.key", "--address=127.0.0.1", "--metrics-bind-address=0",
		fmt.Sprintf("--secure-port=%d", port))
	cmd.Stdout, cmd.Stderr = &log, &log
	child, err := cluster.StartChild(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		child.Kill()
		if t.Failed() {
			t.Logf("the server:\n%s", &log)
		}
	})
	believed := x509.NewCertPool()
	believed.AppendCertsFromPEM(cert)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: believed, MinVersion: tls.VersionTLS12}}}
	return func(pool string) string {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/config/%s", port, pool), nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Accept", "application/vnd.coreos.ignition+json;version=3.5.0")
			answer, err := client.Do(request)
			if err == nil {
				body, err := io.ReadAll(answer.Body)
				_ = answer.Body.Close()
				if err != nil || answer.StatusCode != http.StatusOK {
					t.Fatalf("%s: %d %s %v", pool, answer.StatusCode, body, err)
				}
				return encapsulated(t, body)
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
}

// encapsulated is the name of the MachineConfig that an answer carries for the node's agent. It is that of its content.
func encapsulated(t *testing.T, answer []byte) string {
	t.Helper()
	var config types.Config
	if err := json.Unmarshal(answer, &config); err != nil {
		t.Fatal(err)
	}
	for _, f := range config.Storage.Files {
		if f.Path != api.EncapsulatedPath {
			continue
		}
		text, err := dataurl.DecodeString(*f.Contents.Source)
		if err != nil {
			t.Fatal(err)
		}
		mc := &mcfgv1.MachineConfig{}
		if err := json.Unmarshal(text.Data, mc); err != nil {
			t.Fatal(err)
		}
		c, err := machineconfig.Parse(mc)
		if err != nil || !machineconfig.NamedBy(mc.Name, c.Digest) {
			t.Fatalf("%s has the digest %s, %v", mc.Name, c.Digest, err)
		}
		return mc.Name
	}
	t.Fatal("the answer carries no MachineConfig")
	return ""
}
