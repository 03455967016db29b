// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

func TestTheServerReadsWhatItServesAndNothingElse(t *testing.T) {
	c := installed(t)
	const name = "60-served"
	if err := createMC(name, roleLabel, "")(t.Context(), admin(t, c)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := deleteMC(name)(context.WithoutCancel(t.Context()), admin(t, c)); err != nil {
			t.Error(err)
		}
	})
	server := as(t, c, api.Server, ours)
	allow(t, server, map[string]attempt{
		"watch pools": func(ctx context.Context, who clients) error {
			pools := who.mc.MachineconfigurationV1().MachineConfigPools()
			list, err := pools.List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			w, err := pools.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
			if err == nil {
				w.Stop()
			}
			return err
		},
		"read a configuration": func(ctx context.Context, who clients) error {
			_, err := who.mc.MachineconfigurationV1().MachineConfigs().Get(ctx, name, metav1.GetOptions{})
			return err
		},
		"ask whose a token is": func(ctx context.Context, who clients) error {
			_, err := who.kube.AuthenticationV1().TokenReviews().Create(ctx,
				&authv1.TokenReview{Spec: authv1.TokenReviewSpec{Token: "x"}}, metav1.CreateOptions{})
			return err
		},
	})
	refuse(t, server, "", map[string]attempt{
		"list configurations": func(ctx context.Context, who clients) error {
			_, err := who.mc.MachineconfigurationV1().MachineConfigs().List(ctx, metav1.ListOptions{})
			return err
		},
		"list nodes": func(ctx context.Context, who clients) error {
			_, err := who.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			return err
		},
		"make a pod": func(ctx context.Context, who clients) error {
			_, err := who.kube.CoreV1().Pods(api.Namespace).Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
			return err
		},
		"read secrets":             readSecrets(api.Namespace),
		"read bootstrap tokens":    readSecrets(metav1.NamespaceSystem),
		"change a pool":            patchPool("worker", `{"spec":{"paused":true}}`),
		"make a configuration":     createMC("60-own", roleLabel, ""),
		"change a configuration":   patchMC(name),
		"delete a configuration":   deleteMC(name),
		"change the node it is on": patchNode(ours, `{"spec":{"unschedulable":true}}`),
	})
}

// runServer runs it as its account, until the test ends, has a machine ask it, and returns where its metrics are.
func runServer(t *testing.T, c *cluster.Cluster, programs, pool string) string {
	t.Helper()
	_, kubeconfig, err := c.ServiceAccountConfig(t.Context(), api.Namespace, api.Server, "")
	if err != nil {
		t.Fatal(err)
	}
	const token = "abcdef.0123456789abcdef"
	if err := c.BootstrapToken(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	dir, metrics, address := t.TempDir(), cluster.FreeAddress(t), cluster.FreeAddress(t)
	roots := selfSigned(t, dir)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(programs, api.Server), "--kubeconfig="+kubeconfig, "--cert="+dir+"/tls.crt",
		"--key="+dir+"/tls.key", "--address=127.0.0.1", "--secure-port="+port, "--metrics-bind-address="+metrics)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &log, &log, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the server:\n%s", &log)
		}
	})
	ready(t, "http://"+metrics+"/metrics")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots,
		MinVersion: tls.VersionTLS12}}}
	var said string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/config/"+pool, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", "application/vnd.coreos.ignition+json;version=3.4.0")
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := client.Do(r)
		if err != nil {
			said = err.Error()
			continue
		}
		body, err := io.ReadAll(answer.Body)
		if err := errors.Join(err, answer.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if said = string(body); answer.StatusCode == http.StatusOK {
			return "http://" + metrics + "/metrics"
		}
	}
	t.Fatalf("a machine with a bootstrap token is told %s", said)
	return ""
}

// selfSigned puts a certificate of 127.0.0.1 and its key into a directory.
func selfSigned(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	cert, key := cluster.SelfSigned(t)
	if err := errors.Join(os.WriteFile(dir+"/tls.crt", cert, 0o600), os.WriteFile(dir+"/tls.key", key, 0o600)); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	return roots
}
