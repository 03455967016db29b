// SPDX-License-Identifier: Apache-2.0

package capi

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// capiModule is Cluster API's Go module. The module in managers/ pins its version.
const capiModule = "sigs.k8s.io/cluster-api"

// manager is one of Cluster API's programs. Its folder in the module has a main package, and the kustomization that is
// installed.
type manager struct {
	name      string // of the file that is built
	folder    string
	namespace string
	account   string
	gates     string
	extension bool // it asks extensions, and so shows them a certificate
	webhooks  int  // the port of its webhooks
	health    int
}

// managers returns Cluster API's programs, with the feature gates of updates in place.
func managers() []*manager {
	const gates = "RuntimeSDK=true,InPlaceUpdates=true"
	return []*manager{
		{name: "core", folder: "", namespace: "capi-system", account: "capi-manager", gates: gates, extension: true},
		{name: "bootstrap", folder: "bootstrap/kubeadm", namespace: "capi-kubeadm-bootstrap-system",
			account: "capi-kubeadm-bootstrap-manager"},
		{name: "controlplane", folder: "controlplane/kubeadm", namespace: "capi-kubeadm-control-plane-system",
			account: "capi-kubeadm-control-plane-manager", gates: "InPlaceUpdates=true", extension: true},
	}
}

// source returns the folder of Cluster API's module.
func source(ctx context.Context) (string, error) {
	command := func(args ...string) *exec.Cmd {
		return exec.CommandContext(ctx, "go", append([]string{"-C", "managers"}, args...)...)
	}
	if text, err := command("mod", "download", capiModule).CombinedOutput(); err != nil {
		return "", fmt.Errorf("downloading Cluster API: %w: %s", err, text)
	}
	text, err := command("list", "-m", "-f", "{{.Dir}}", capiModule).Output()
	if err != nil {
		return "", fmt.Errorf("finding Cluster API: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// build builds Cluster API's programs, and returns their folder. The go command leaves a program alone that is up to
// date.
func build(ctx context.Context) (string, error) {
	cache, err := lab.CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "cluster-api")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, m := range managers() {
		cmd := exec.CommandContext(ctx, "go", "-C", "managers", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w",
			"-o", filepath.Join(dir, m.name), strings.TrimSuffix(capiModule+"/"+m.folder, "/"))
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("building %s of Cluster API: %w: %s", m.name, err, text)
		}
	}
	return dir, nil
}

// runsBeside reports whether an object is of what runs managers as pods and makes their certificates. Here they run
// beside the control plane.
func runsBeside(kind string) bool {
	switch kind {
	case "Deployment", "Service", "Certificate", "Issuer":
		return true
	}
	return false
}

// beside has the webhooks of an object be asked at a port of this machine.
func beside(o *unstructured.Unstructured, port int, authority []byte) error {
	at := func(path string) map[string]any {
		u := url.URL{Scheme: "https", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Path: path}
		return map[string]any{"url": u.String(), "caBundle": encoded(authority)}
	}
	switch o.GetKind() {
	case "CustomResourceDefinition":
		conversion := []string{"spec", "conversion", "webhook", "clientConfig"}
		if _, has, err := unstructured.NestedMap(o.Object, conversion...); !has || err != nil {
			return err
		}
		return unstructured.SetNestedMap(o.Object, at("/convert"), conversion...)
	case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
		webhooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
		if err != nil {
			return err
		}
		for _, w := range webhooks {
			hook, _ := w.(map[string]any)
			path, _, err := unstructured.NestedString(hook, "clientConfig", "service", "path")
			if err != nil {
				return err
			}
			hook["clientConfig"] = at(path)
		}
		return unstructured.SetNestedSlice(o.Object, webhooks, "webhooks")
	}
	return nil
}

// install installs what Cluster API's own kustomization of a manager has, the manager's pods aside: definitions,
// webhooks, rights.
func (l *stand) install(ctx context.Context, m *manager) error {
	text, err := l.Kubectl(ctx, "kustomize", filepath.Join(l.source, m.folder, "config/default"))
	if err != nil {
		return fmt.Errorf("reading what Cluster API installs for %s: %w", m.name, err)
	}
	var out strings.Builder
	for document := range strings.SplitSeq(text, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			return err
		}
		if len(o.Object) == 0 || runsBeside(o.GetKind()) {
			continue
		}
		if err := beside(o, m.webhooks, l.cert); err != nil {
			return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			return err
		}
		out.WriteString("---\n" + string(text))
	}
	return l.serverSide(ctx, m.name, out.String())
}

// serverSide applies documents as the server merges them: some are too large for kubectl's annotation.
func (l *stand) serverSide(ctx context.Context, name, documents string) error {
	file := filepath.Join(l.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(documents), 0o600); err != nil {
		return err
	}
	_, err := l.Kubectl(ctx, "apply", "--server-side", "-f", file)
	return err
}

// start starts a manager with the rights of its account, and returns when its webhooks answer.
func (l *stand) start(ctx context.Context, m *manager) error {
	_, kubeconfig, err := l.ServiceAccountConfig(ctx, m.namespace, m.account, "")
	if err != nil {
		return err
	}
	health := net.JoinHostPort("127.0.0.1", strconv.Itoa(m.health))
	args := []string{"--kubeconfig=" + kubeconfig, "--webhook-port=" + strconv.Itoa(m.webhooks),
		"--webhook-cert-dir=" + l.dir, "--health-addr=" + health, "--diagnostics-address=0", "--v=4"}
	if m.gates != "" {
		args = append(args, "--feature-gates="+m.gates)
	}
	if m.extension {
		args = append(args, "--runtime-extension-client-cert-file="+filepath.Join(l.dir, "client.crt"),
			"--runtime-extension-client-key-file="+filepath.Join(l.dir, "client.key"))
	}
	if err := l.child(m.name, filepath.Join(l.programs, m.name), args...); err != nil {
		return err
	}
	return untilAnswers(ctx, m.name, "http://"+health+"/readyz")
}

// child runs a program beside the control plane until the lab is closed. Its log is a file of its name.
func (l *stand) child(name, program string, args ...string) error {
	log, err := os.Create(filepath.Join(l.dir, name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	child, err := cluster.StartChild(cmd)
	if err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	l.children = append(l.children, child)
	return nil
}
