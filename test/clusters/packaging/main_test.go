// SPDX-License-Identifier: Apache-2.0

// Package packaging tests what is installed: that a real API server takes it, that it allows what the programs do and
// nothing else, and that images, charts, units, alerts and dashboards are what they say.
package packaging

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mcclient "github.com/openshift/client-go/machineconfiguration/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// root is the project's, as the tests of this folder see it.
const root = "../../.."

// suite has the cluster that the tests share, with what packaging/kustomize/joining installs.
var suite = cluster.Suite{Options: cluster.Options{Controllers: true, NoCRDs: true}, Prepare: install}

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// installed is the shared cluster. What a test makes in it has names of its own.
func installed(t *testing.T) *cluster.Cluster {
	t.Helper()
	inputs(t)
	return suite.Cluster(t)
}

// install installs what packaging/kustomize/joining is.
func install(ctx context.Context, c *cluster.Cluster) error {
	for _, args := range [][]string{
		{"apply", "--server-side", "-k", root + "/packaging/kustomize/crds"},
		{"wait", "--for=condition=Established", "--timeout=1m", "crd", "--all"},
		{"apply", "--server-side", "-k", root + "/packaging/kustomize/joining"},
	} {
		if _, err := kubectl(ctx, c, args...); err != nil {
			return err
		}
	}
	for _, name := range []string{ours, theirs} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := c.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return inForce(ctx, c)
}

// inForce waits until the API server judges by the policies: it reads them a moment after they have been written.
func inForce(ctx context.Context, c *cluster.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, account := range []string{api.Daemon, api.Controller} {
		config := rest.CopyConfig(c.Config)
		config.Impersonate.UserName = "system:serviceaccount:" + api.Namespace + ":" + account
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		for ; ; time.Sleep(20 * time.Millisecond) {
			_, err := client.CoreV1().Nodes().Patch(ctx, ours, types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"x"}}}`),
				metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("waiting for the policies of %s: %w", account, err)
			}
		}
	}
	return nil
}

// The nodes of the shared cluster: the one that the daemon under test is on, and another.
const ours, theirs = "ours", "theirs"

// kubectl runs the kubectl that belongs to the cluster's version, as its administrator.
func kubectl(ctx context.Context, c *cluster.Cluster, args ...string) (string, error) {
	kubebox, err := cluster.Kubebox(ctx, os.Stderr)
	if err != nil {
		return "", err
	}
	return run(exec.CommandContext(ctx, kubebox, append([]string{"kubectl", "--kubeconfig=" + c.Kubeconfig}, args...)...))
}

// tool runs one of the tools that tools/packaging pins. The go command builds it once and keeps it in its cache.
func tool(ctx context.Context, name string, args ...string) (string, error) {
	return goRuns(ctx, append([]string{"tool", "-modfile=" + toolsModule, name}, args...)...)
}

// promtool is tool for the program that needs a build tag, which go tool takes none of. Without the tag promtool brings
// the SDKs of many clouds, whose compilation takes minutes.
func promtool(ctx context.Context, args ...string) (string, error) {
	return goRuns(ctx, append([]string{"run", "-modfile=" + toolsModule, "-tags=remove_all_sd",
		"github.com/prometheus/prometheus/cmd/promtool"}, args...)...)
}

func goRuns(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	return run(cmd)
}

const toolsModule = root + "/tools/packaging/go.mod"

// run returns what a program says on stdout; what it says on stderr is in the error.
func run(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// inputs looks at every file of packaging/, so that a changed one expires what go test has cached: what the programs
// that a test runs look at, the go command does not see.
func inputs(t *testing.T) {
	t.Helper()
	for _, dir := range []string{root + "/packaging", root + "/api", root + "/tools/packaging"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			_, err = os.Stat(path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// clients are what a service account does its work with.
type clients struct {
	config *rest.Config
	kube   kubernetes.Interface
	mc     mcclient.Interface
}

// as is the service account with a token that is bound to a node, or to none.
func as(t *testing.T, c *cluster.Cluster, account, node string) clients {
	t.Helper()
	config, _, err := c.ServiceAccountConfig(t.Context(), api.Namespace, account, node)
	if err != nil {
		t.Fatal(err)
	}
	return clientsOf(t, config)
}

// admin may do everything.
func admin(t *testing.T, c *cluster.Cluster) clients {
	t.Helper()
	return clientsOf(t, rest.CopyConfig(c.Config))
}

func clientsOf(t *testing.T, config *rest.Config) clients {
	t.Helper()
	config.QPS = -1
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	mc, err := mcclient.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return clients{config, kube, mc}
}
