// SPDX-License-Identifier: Apache-2.0

package firstboot

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

const repository = "../../.."

// worker is a MachineConfig of the pool worker with a file that others can't read.
const worker = `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig","metadata":{"name":"00-worker",
	"labels":{"machineconfiguration.openshift.io/role":"worker"}},"spec":{` + hostConfig + `}}`

// A machine that comes to a cluster whose pool has proved its configuration: it fetches it with a bootstrap token, is
// completed before its kubelet starts, and is Done as soon as its agent runs, in the one boot that it has had.
func TestAMachineJoinsItsPoolDoneAndWithoutAnotherBoot(t *testing.T) {
	base, ignition := lab.Need(t), needIgnition(t)
	cluster.Need(t)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 8*time.Minute, errors.New("it takes too long"))
	defer cancel()
	f := newFleet(ctx, t, base, fleet.Options{Hosts: []string{"old"}})
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	_, err := f.StartController(ctx)
	must(err, f.Pool(ctx, "worker", "1"), f.Apply(ctx, worker), f.StartAgents(ctx),
		f.WaitPool(ctx, "worker", "the old node has the configuration", fleet.Updated(1)))
	config, err := f.Configuration(ctx, "worker")
	must(err)

	s := clusterServer(ctx, t, f)
	for shown, want := range map[string]int{"": 401, "abcdef.0000000000000000": 401, podToken(ctx, t, f): 403, token: 200} {
		if code, text := s.ask(ctx, t, shown); code != want || code == 401 && shown == "" &&
			!strings.Contains(text, "(/var/lib/example/data): its mode 0600") {
			t.Errorf("who shows %q is told %d %s; want %d", shown, code, text, want)
		}
	}

	var boots int
	n, err := f.Enlist(ctx, base, "new", func(n *fleet.Node) error {
		provisioned(ctx, t, ignition, n.Node, s)
		boots = n.Boots()
		_, err := n.Output(ctx, "systemctl", "start", api.FirstbootUnit)
		return err
	})
	must(err)
	// As its kubelet would have registered.
	taint, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": []corev1.Taint{
		{Key: api.StartupTaint, Effect: corev1.TaintEffectNoSchedule}, {Key: "example.com/other", Effect: corev1.TaintEffectNoSchedule},
	}}})
	must(err)
	_, err = f.Client.CoreV1().Nodes().Patch(ctx, "new", types.MergePatchType, taint, metav1.PatchOptions{})
	must(err, f.StartAgent(ctx, n), f.WaitAt(ctx, config, "new"),
		f.WaitPool(ctx, "worker", "both nodes have the configuration", fleet.Updated(2)))
	must(f.WaitNode(ctx, "new", "without its startup taint", func(o *corev1.Node) bool {
		return !slices.ContainsFunc(o.Spec.Taints, func(t corev1.Taint) bool { return t.Key == api.StartupTaint })
	}))
	says, object, err := f.Says(ctx, "new")
	must(err)
	if says.State != api.Done || says.Current != config || n.Boots() != boots {
		t.Errorf("the node says %+v after %d boots", says, n.Boots()-boots)
	}
	if !slices.ContainsFunc(object.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "example.com/other" }) {
		t.Error("somebody else's taint is gone too")
	}
	if drained := object.Annotations[api.LastAppliedDrain]; strings.HasPrefix(drained, "drain-") {
		t.Errorf("the node was drained: %s", drained)
	}
}

// newFleet starts a fleet that ends with the test.
func newFleet(ctx context.Context, t *testing.T, base *lab.Base, o fleet.Options) *fleet.Fleet {
	t.Helper()
	o.Bin, o.Repository = bin, repository
	f, err := fleet.Start(ctx, base, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, n := range f.Nodes {
			if text, err := n.Journal(context.WithoutCancel(ctx)); err == nil && t.Failed() {
				t.Logf("%s:\n%s", n.Name, text[max(0, len(text)-12000):])
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// clusterServer runs the server with the rights of its account and no others, and makes the token that it takes.
func clusterServer(ctx context.Context, t *testing.T, f *fleet.Fleet, args ...string) server {
	t.Helper()
	if _, err := f.Kubectl(ctx, "apply", "-f", repository+"/packaging/kustomize/server/rbac-server.yaml"); err != nil {
		t.Fatal(err)
	}
	_, kubeconfig, err := f.ServiceAccountConfig(ctx, api.Namespace, api.Server, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.BootstrapToken(ctx, token); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	cert, key := cluster.SelfSigned(t)
	dir := t.TempDir()
	writeFile(t, dir+"/tls.crt", cert)
	writeFile(t, dir+"/tls.key", key)
	s := start(t, cert, append(args, "--kubeconfig="+kubeconfig, "--cert="+dir+"/tls.crt", "--key="+dir+"/tls.key")...)
	// The API server takes a token a moment after its Secret was written.
	if err := fleet.Until(ctx, "the token is taken", func(ctx context.Context) (bool, string, error) {
		code, text := s.ask(ctx, t, token)
		return code == http.StatusOK, text, nil
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

// podToken is one that every pod has.
func podToken(ctx context.Context, t *testing.T, f *fleet.Fleet) string {
	t.Helper()
	config, _, err := f.ServiceAccountConfig(ctx, metav1.NamespaceDefault, "default", "")
	if err != nil {
		t.Fatal(err)
	}
	return config.BearerToken
}

// ask asks as Ignition does.
func (s server) ask(ctx context.Context, t *testing.T, token string) (code int, text string) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.authority)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/config/%s", s.port, s.pool),
		http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/vnd.coreos.ignition+json;version=3.4.0, */*;q=0.1")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}
