// SPDX-License-Identifier: Apache-2.0

// Package capi tests the extension for Cluster API with Cluster API's own controllers: the core, the kubeadm bootstrap
// and the kubeadm control plane manager, built from their Go module, with their definitions, webhooks and rights. A
// provider of this package hands out hosts of the host lab as machines. One control plane is the management cluster and
// the cluster of the nodes.
//
// Compiling Cluster API takes minutes, so the tests run only where CLUSTER_API_TESTS is set: make test-cluster-api.
package capi

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/fleet"
	"github.com/noderefit/noderefit/test/lab/programs"
)

const (
	repository = "../../.."
	variable   = "CLUSTER_API_TESTS"
	namespace  = "fleet"
	prod       = "prod"
)

// patience is how long a step of a test may take: several reboots, and Cluster API's pauses between its questions.
const patience = 6 * time.Minute

// poll is the interval at which a condition is checked.
const poll = 200 * time.Millisecond

// stand is a control plane with Cluster API, our controllers, the extension and the provider.
type stand struct {
	*fleet.Fleet

	client   client.Client
	dir      string // certificates, logs, documents
	programs string // Cluster API's
	source   string // the folder of Cluster API's module
	cert     []byte // of the servers, which is its own authority
	children []*cluster.Child
	provider *provider
}

// newStand makes all of it. No Cluster is there yet.
func newStand(t *testing.T) *stand {
	t.Helper()
	if os.Getenv(variable) == "" {
		t.Skip("compiling Cluster API takes minutes: set " + variable + ", or make test-cluster-api")
	}
	base := lab.Need(t)
	cluster.Need(t)
	ctx := t.Context()
	l := &stand{dir: t.TempDir()}
	var err error
	l.programs, err = build(ctx)
	must(t, err)
	l.source, err = source(ctx)
	must(t, err)
	bin := t.TempDir()
	for _, name := range []string{"machine-config-daemon", agent.RunProgram, "machine-config-controller"} {
		_, err = programs.Build(ctx, bin, "cmd/"+name)
		must(t, err)
	}
	l.Fleet, err = fleet.Start(ctx, base, fleet.Options{Bin: bin, Repository: repository, Labels: map[string]string{}})
	must(t, err)
	t.Cleanup(func() { l.close(t) })
	ctrl.SetLogger(logr.Discard())
	l.client, err = client.New(l.Config, client.Options{})
	must(t, err)
	l.certificates(t)
	all := managers()
	for _, m := range all {
		m.webhooks, m.health = cluster.FreePort(t), cluster.FreePort(t)
		must(t, l.install(ctx, m))
	}
	must(t, l.serverSide(ctx, "provider", definitions))
	for _, m := range all {
		must(t, l.start(ctx, m))
	}
	_, err = l.StartController(ctx)
	must(t, err, l.extension(ctx, filepath.Join(bin, "machine-config-controller"), cluster.FreeAddress(t)))
	l.provider = startProvider(l, base)
	return l
}

// close ends everything. After a failure it tells what the programs said.
func (l *stand) close(t *testing.T) {
	t.Helper()
	if l.provider != nil {
		l.provider.stop()
	}
	if t.Failed() {
		l.Tell(t.Logf)
		l.tell(t)
	}
	for _, c := range l.children {
		c.Kill()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// tell logs Cluster API's objects, and the ends of the programs' logs.
func (l *stand) tell(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"-n", namespace, "get", "clusters,kubeadmcontrolplanes,machinedeployments,machinesets,machines,labmachines"},
		{"-n", namespace, "get", "clusters,kubeadmcontrolplanes,machinedeployments,machines", "-o", "yaml"},
	} {
		text, err := l.Kubectl(ctx, args...)
		t.Logf("kubectl %v: %v\n%s", args, err, text)
	}
	logs, _ := filepath.Glob(filepath.Join(l.dir, "*.log"))
	for _, log := range logs {
		text, err := os.ReadFile(log)
		t.Logf("%s: %v\n%s", filepath.Base(log), err, text[max(0, len(text)-16000):])
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// until waits for a condition, whose second result says what holds instead.
func until(ctx context.Context, t *testing.T, what string, condition func(context.Context) (bool, string, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	must(t, fleet.Until(ctx, what, condition))
}

// untilAnswers waits until a program answers a request with 200.
func untilAnswers(ctx context.Context, name, url string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the program does not answer"))
	defer cancel()
	return fleet.Until(ctx, name+" answers at "+url, func(ctx context.Context) (bool, string, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return false, "", err
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return false, "", err
		}
		return response.StatusCode == http.StatusOK, response.Status, response.Body.Close()
	})
}

func encoded(text []byte) string { return base64.StdEncoding.EncodeToString(text) }

// certificates writes that of the servers, and that of Cluster API's controllers, which is the authority of clients too.
func (l *stand) certificates(t *testing.T) {
	t.Helper()
	server, serverKey := cluster.SelfSigned(t)
	callers, callersKey := cluster.SelfSigned(t)
	l.cert = server
	for name, text := range map[string][]byte{"tls.crt": server, "tls.key": serverKey, "ca.crt": callers,
		"client.crt": callers, "client.key": callersKey} {
		must(t, os.WriteFile(filepath.Join(l.dir, name), text, 0o600))
	}
}

// extension installs the extension's rights, starts it with its account, and registers it with Cluster API.
func (l *stand) extension(ctx context.Context, program, address string) error {
	_, err := l.Kubectl(ctx, "apply", "-f", repository+"/packaging/kustomize/cluster-api/rbac-cluster-api.yaml")
	if err != nil {
		return err
	}
	_, account, err := l.ServiceAccountConfig(ctx, api.Namespace, "machine-config-cluster-api", "")
	if err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(l.dir, name) }
	if err := l.child("extension", program, "cluster-api", "--cluster="+prod, "--namespace="+namespace,
		"--client-name=machine-config-server", "--kubeconfig="+account, "--bind-address="+address,
		"--cert="+at("tls.crt"), "--key="+at("tls.key"), "--client-ca="+at("ca.crt")); err != nil {
		return err
	}
	return l.Apply(ctx, fmt.Sprintf(extensionConfig, encoded(l.cert), address, namespace))
}

// get reads an object of Cluster API or of the provider.
func (l *stand) get(ctx context.Context, kind, name string) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kinds[kind])
	return o, l.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
}

// list reads all objects of a kind.
func (l *stand) list(ctx context.Context, kind string) ([]unstructured.Unstructured, error) {
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(kinds[kind])
	err := l.client.List(ctx, &list, client.InNamespace(namespace))
	return list.Items, err
}
