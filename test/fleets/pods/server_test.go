// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// beside has the server beside the controllers, and asks it what a new machine asks it.
func beside(ctx context.Context, t *testing.T, s *scene) {
	for _, what := range []string{"deployment/" + api.Controller, "daemonset/" + api.Daemon} {
		_, err := s.Kubectl(ctx, "-n", api.Namespace, "rollout", "status", what)
		must(t, err)
	}
	cert, key := certificate(t)
	_, err := s.Kubectl(ctx, "-n", api.Namespace, "create", "secret", "tls", "machine-config-server-tls",
		"--cert="+cert, "--key="+key)
	must(t, err)
	// No node here is one of the control plane, which is where the server runs otherwise.
	component, err := filepath.Abs(filepath.Join(repository, "packaging/kustomize/server"))
	must(t, err)
	dir := t.TempDir()
	component, err = filepath.Rel(dir, component)
	must(t, err, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil,
		`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
components: [%s]
patches:
- target: {kind: DaemonSet}
  patch: |
    - op: remove
      path: /spec/template/spec/nodeSelector/node-role.kubernetes.io~1control-plane
`, component), 0o600))
	must(t, s.Install(ctx, dir, func(name string) string { return s.images.Ref(name, "v1") }))
	_, err = s.Kubectl(ctx, "-n", api.Namespace, "rollout", "status", "daemonset/"+api.Server)
	must(t, err)

	answer := s.ask(ctx, t, "daemonset/"+api.Server, "22623", "/config/worker")
	if !strings.Contains(answer, "00-worker.conf") || !strings.Contains(answer, s.images.Ref(api.Daemon, "v1")) {
		t.Errorf("a new machine gets %s", answer)
	}
	_, err = s.Kubectl(ctx, "-n", api.Namespace, "delete", "daemonset/"+api.Server)
	must(t, err)
}

// certificate makes a certificate and returns the paths of both files.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	public, private := cluster.SelfSigned(t)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	must(t, os.WriteFile(cert, public, 0o600), os.WriteFile(key, private, 0o600))
	return cert, key
}

// forwarded matches what kubectl port-forward says first.
var forwarded = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)

// ask sends a request through kubectl port-forward, and returns the answer.
func (s *scene) ask(ctx context.Context, t *testing.T, pod, port, path string) string {
	t.Helper()
	cmd, err := s.KubectlCommand(ctx, "-n", api.Namespace, "port-forward", pod, ":"+port)
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	child, err := cluster.StartChild(cmd)
	must(t, err)
	defer child.Kill()
	line, err := bufio.NewReader(out).ReadString('\n')
	at := forwarded.FindStringSubmatch(line)
	if at == nil {
		t.Fatalf("port-forward says %q, %v", line, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+at[1]+path, http.NoBody)
	must(t, err)

	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answer, err := client.Do(request)
	must(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must(t, err)
	if answer.StatusCode != http.StatusOK {
		t.Errorf("%s answers %d", path, answer.StatusCode)
	}
	return string(text)
}
