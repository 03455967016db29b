// SPDX-License-Identifier: Apache-2.0

// Package clusterapi tests the extension for Cluster API as it is installed: its program and its rights on a control
// plane with the controllers, by the requests that Cluster API makes. Nodes are played.
package clusterapi

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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/programs"
)

const (
	root = "../../.."
	poll = 20 * time.Millisecond
	pool = "worker"
	made = "50-cluster-api-worker"
)

const base = `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: worker}
spec:
  machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: worker}}
  nodeSelector: {matchLabels: {node-role.kubernetes.io/worker: ""}}
---
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata: {name: 00-worker, labels: {machineconfiguration.openshift.io/role: worker}}
spec: {config: {ignition: {version: 3.4.0}}}
`

// lab is a control plane with the controllers and the extension.
type lab struct {
	*cluster.Cluster

	t       *testing.T
	bad     atomic.Pointer[string] // a configuration that fails on each node
	url     string
	client  *http.Client
	account string // the kubeconfig of the extension
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// newCluster is a control plane with the extension's account and its rights, and nothing that runs.
func newCluster(t *testing.T) *lab {
	t.Helper()
	cluster.Need(t)
	l := &lab{Cluster: cluster.New(t, cluster.Options{}), t: t}
	var err error
	_, l.account, err = l.ServiceAccountConfig(t.Context(), api.Namespace, "machine-config-cluster-api", "")
	l.must(err)
	_, err = l.Kubectl(t.Context(), "apply", "-f", root+"/packaging/kustomize/cluster-api/rbac-cluster-api.yaml")
	l.must(err)
	return l
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := newCluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	var agents sync.WaitGroup
	agents.Go(func() { l.agents(ctx) })
	t.Cleanup(func() {
		cancel()
		agents.Wait()
	})
	program, err := programs.Build(t.Context(), t.TempDir(), "cmd/machine-config-controller")
	l.must(err)
	l.run(program, "run", "--kubeconfig="+l.Kubeconfig, "--leader-elect=false", "--metrics-bind-address=0",
		"--health-probe-bind-address=0")
	manifest := filepath.Join(t.TempDir(), "base.yaml")
	l.must(os.WriteFile(manifest, []byte(base), 0o600))
	_, err = l.Kubectl(t.Context(), "apply", "-f", manifest)
	l.must(err)
	l.extension(program)
	return l
}

// extension runs the extension with the account that is installed for it.
func (l *lab) extension(program string) {
	l.t.Helper()
	dir := l.t.TempDir()
	cert, key := cluster.SelfSigned(l.t)
	callers, callersKey := cluster.SelfSigned(l.t)
	for name, text := range map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": callers} {
		l.must(os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	address := cluster.FreeAddress(l.t)
	l.run(program, "cluster-api", "--cluster=prod", "--namespace=fleet", "--client-name=machine-config-server",
		"--kubeconfig="+l.account, "--bind-address="+address,
		"--cert="+dir+"/tls.crt", "--key="+dir+"/tls.key", "--client-ca="+dir+"/ca.crt")
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(cert)
	shown, err := tls.X509KeyPair(callers, callersKey)
	l.must(err)
	l.url = "https://" + address
	l.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: trusted, Certificates: []tls.Certificate{shown}, MinVersion: tls.VersionTLS12}}}
	l.until("the extension answers", func() (bool, any) {
		_, code, err := l.post(l.client, "discovery", []byte("{}"))
		return err == nil && code == http.StatusOK, err
	})
	stranger := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted,
		MinVersion: tls.VersionTLS12}}}
	if _, code, err := l.post(stranger, "discovery", []byte("{}")); err == nil {
		l.t.Errorf("a client without a certificate is answered: %d", code)
	}
}

func (l *lab) until(what string, condition func() (bool, any)) {
	l.t.Helper()
	cluster.Until(l.t.Context(), l.t, what, condition)
}

// run runs a program until the test ends.
func (l *lab) run(program string, args ...string) {
	l.t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	child, err := cluster.StartChild(cmd)
	l.must(err)
	l.t.Cleanup(func() {
		if err := child.Stop(); err != nil {
			l.t.Errorf("SIGTERM ends %s with %v", args[0], err)
		}
		if l.t.Failed() || strings.Contains(log.String(), "panic:") {
			l.t.Errorf("%s said:\n%s", args[0], log.String())
		}
	})
}

// node adds a ready node of a machine.
func (l *lab) node(name, machine string) {
	l.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.NodeRole + pool: ""}},
		Spec: corev1.NodeSpec{ProviderID: "lab://" + machine}}
	n, err := l.Client.CoreV1().Nodes().Create(l.t.Context(), n, metav1.CreateOptions{})
	l.must(err)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	_, err = l.Client.CoreV1().Nodes().UpdateStatus(l.t.Context(), n, metav1.UpdateOptions{})
	l.must(err)
}

// agents play those of all nodes: each goes where it was told to go, or comes back from what fails.
func (l *lab) agents(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(poll) {
		list, err := l.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for i := range list.Items {
			n := progress.ReadNode(&list.Items[i])
			says := map[string]string{api.CurrentConfig: n.Desired, api.StateKey: string(api.Done)}
			switch bad := l.bad.Load(); {
			case n.Desired == "" || n.Current == n.Desired && n.State == api.Done || n.State == api.RolledBack && bad != nil && n.Desired == *bad:
				continue
			case bad != nil && n.Desired == *bad:
				says = map[string]string{api.StateKey: string(api.RolledBack), api.Reason: "example.service failed",
					api.QuarantinedKey: api.Encode([]api.Quarantine{{Config: *bad, Reason: "example.service failed", Since: time.Now()}})}
			}
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": says}})
			if err == nil {
				_, err = l.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			}
			if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
				l.t.Errorf("agent of %s: %v", n.Name, err)
			}
		}
	}
}

// answer has what a test looks at of an answer.
type answer struct {
	Status                       string `json:"status"`
	Message                      string `json:"message"`
	RetryAfterSeconds            int    `json:"retryAfterSeconds"`
	BootstrapConfigTemplatePatch *struct {
		Patch []byte `json:"patch"`
	} `json:"bootstrapConfigTemplatePatch"`
}

func (l *lab) post(client *http.Client, hook string, body []byte) (answer, int, error) {
	var out answer
	r, err := http.NewRequestWithContext(l.t.Context(), http.MethodPost,
		l.url+"/hooks.runtime.cluster.x-k8s.io/v1alpha1/"+hook, bytes.NewReader(body))
	if err != nil {
		return out, 0, err
	}
	response, err := client.Do(r)
	if err != nil {
		return out, 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return out, 0, err
	}
	if response.StatusCode != http.StatusOK {
		return out, response.StatusCode, fmt.Errorf("%d %s", response.StatusCode, text)
	}
	return out, response.StatusCode, json.Unmarshal(text, &out)
}

// ask asks by a request that Cluster API's own types made, changed as a test says.
func (l *lab) ask(hook string, changes ...string) answer {
	l.t.Helper()
	text, err := os.ReadFile(root + "/clusterapi/testdata/" + hook[strings.Index(hook, "/")+1:] + ".json")
	l.must(err)
	out, _, err := l.post(l.client, hook, []byte(strings.NewReplacer(changes...).Replace(string(text))))
	l.must(err)
	return out
}

// configuration returns the pool's, and whether it has a text.
func (l *lab) configuration(text string) (string, bool) {
	l.t.Helper()
	p, err := l.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Get(l.t.Context(), pool, metav1.GetOptions{})
	l.must(err)
	name := p.Spec.Configuration.Name
	if name == "" {
		return "", false
	}
	mc, err := l.MachineConfigs.MachineconfigurationV1().MachineConfigs().Get(l.t.Context(), name, metav1.GetOptions{})
	l.must(err)
	return name, strings.Contains(string(mc.Spec.Config.Raw), text)
}

// pause pauses the pool, or lets it go on.
func (l *lab) pause(yes bool) {
	l.t.Helper()
	_, err := l.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Patch(l.t.Context(), pool, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"paused":%t}}`, yes), metav1.PatchOptions{})
	l.must(err)
}

// of is a MachineConfig of a name, with the role of a pool and an annotation.
func of(name, role, annotation string) string {
	return fmt.Sprintf(`apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: %s
  labels: {machineconfiguration.openshift.io/role: %s}
  annotations: {%s}
spec:
  config: {ignition: {version: 3.4.0}}
`, name, role, annotation)
}

// apply tries to create an object as the extension's account.
func (l *lab) apply(manifest string) (string, error) {
	l.t.Helper()
	file := filepath.Join(l.t.TempDir(), "one.yaml")
	l.must(os.WriteFile(file, []byte(manifest), 0o600))
	return l.Kubectl(l.t.Context(), "--kubeconfig="+l.account, "create", "--dry-run=server", "-f", file)
}
