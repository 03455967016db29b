// SPDX-License-Identifier: Apache-2.0

// Package page tests the web page as people use it: the built controller, with the account and the rights that are
// installed, on a real control plane, and a real browser in front of it. What the daemons would write, the tests write.
package page

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// pictures is where to put pictures of the page.
var pictures = flag.String("pictures", "", "put pictures of the page into this directory, as docs/ has them")

const (
	root = "../../.."
	// poll is how often a condition is looked at that nothing announces, patience how long one may take to come.
	poll     = 100 * time.Millisecond
	patience = time.Minute
	// pageRole is what docs/web-page.md has people bind.
	pageRole = "noderefit-page"
)

var (
	// Without the controller manager nothing but the tests and the controllers changes anything.
	suite   = cluster.Suite{Options: cluster.Options{NoCRDs: true}, Prepare: install}
	program = sync.OnceValues(func() (string, error) {
		return programs.Build(context.Background(), suite.Dir(), "cmd/"+api.Controller)
	})
	plugin = sync.OnceValues(func() (string, error) {
		return programs.Build(context.Background(), suite.Dir(), "cmd/kubectl-refit")
	})
)

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// install installs what packaging/kustomize/paged is, without its pools: the tests have their own.
func install(ctx context.Context, c *cluster.Cluster) error {
	for _, args := range [][]string{
		{"apply", "--server-side", "-k", root + "/packaging/kustomize/crds"},
		{"wait", "--for=condition=Established", "--timeout=1m", "crd", "--all"},
		{"apply", "--server-side", "-k", root + "/packaging/kustomize/paged"},
		{"delete", "mcp", "--all"},
	} {
		if _, err := c.Kubectl(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// lab is the cluster, for one test.
type lab struct {
	*cluster.Cluster

	t   *testing.T
	ctx context.Context //nolint:containedctx // of the test that the lab is for
}

func newLab(t *testing.T) *lab {
	t.Helper()
	c := suite.Cluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	l := &lab{c, t, ctx}
	t.Cleanup(l.clear)
	return l
}

func (l *lab) clear() {
	_, err := l.Kubectl(context.Background(), "delete", "nodes,mcp,machineconfignodes,machineconfigs,rolloutpolicies", "--all")
	if err != nil {
		l.t.Error(err)
	}
	if _, err := l.Kubectl(context.Background(), "delete", "leases", "-n", api.Namespace, "--all"); err != nil {
		l.t.Error(err)
	}
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// until waits for a condition, which says what there is instead as long as it has not come.
func (l *lab) until(what string, condition func() string) {
	l.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(poll) {
		instead := condition()
		if instead == "" {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("waiting until %s: it did not come, but\n%s", what, instead)
		}
	}
}

// controller is a running machine-config-controller that serves the page.
type controller struct {
	address, health string
	log             string
}

// controller starts one as an account of the cluster.
func (l *lab) controller(account string, args ...string) *controller {
	l.t.Helper()
	path, err := program()
	l.must(err)
	_, kubeconfig, err := l.ServiceAccountConfig(l.ctx, api.Namespace, account, "")
	l.must(err)
	c := &controller{address: cluster.FreeAddress(l.t), health: cluster.FreeAddress(l.t), log: filepath.Join(l.t.TempDir(), "log")}
	log, err := os.Create(c.log)
	l.must(err)
	defer log.Close()
	cmd := exec.Command(path, append([]string{
		"run", "--controllers=pool", "--kubeconfig=" + kubeconfig, "--metrics-bind-address=0",
		"--health-probe-bind-address=" + c.health, "--page-bind-address=" + c.address,
	}, args...)...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	l.must(cmd.Start())
	l.t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
			l.t.Errorf("the controller ended with %v", err)
		}
		if l.t.Failed() {
			text, _ := os.ReadFile(c.log)
			l.t.Logf("log of the controller:\n%s", text)
		}
	})
	return c
}

// ready says "" once a probe of the kubelet's would be content.
func (c *controller) ready() string {
	response, err := http.Get("http://" + c.health + "/readyz")
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		return string(text)
	}
	return ""
}

// answer is what came of a request.
type answer struct {
	code   int
	header http.Header
	text   string
}

// ask is one request, with whatever in its header. Without roots any certificate will do.
func (c *controller) ask(ctx context.Context, roots *x509.CertPool, method, path string, change func(*http.Request)) (answer, error) {
	client := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, RootCAs: roots, InsecureSkipVerify: roots == nil,
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	r, err := http.NewRequestWithContext(ctx, method, "https://"+c.address+path, http.NoBody)
	if err != nil {
		return answer{}, err
	}
	change(r)
	response, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(text)}, err
}

func bearer(token string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

// viewer is the token of an account, which may what the role says.
func (l *lab) viewer(name, role string) string {
	l.t.Helper()
	config, _, err := l.ServiceAccountConfig(l.ctx, "default", name, "")
	l.must(err)
	if role != "" {
		l.bind(name+"-"+role, role, "default", name)
	}
	return config.BearerToken
}

func (l *lab) bind(name, role, namespace, account string) {
	l.t.Helper()
	bindings := l.Client.RbacV1().ClusterRoleBindings()
	_, err := bindings.Create(l.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	}, metav1.CreateOptions{})
	l.must(err)
	l.t.Cleanup(func() {
		if err := bindings.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			l.t.Error(err)
		}
	})
}

// page waits for a page that has a text, and returns it.
func (l *lab) page(c *controller, token, path, want string) string {
	l.t.Helper()
	var last string
	l.until("the page says "+want, func() string {
		got, err := c.ask(l.ctx, nil, http.MethodGet, path, bearer(token))
		if err != nil {
			return err.Error()
		}
		if last = got.text; got.code != http.StatusOK || !strings.Contains(last, want) {
			return fmt.Sprintf("%d\n%s", got.code, last)
		}
		return ""
	})
	return last
}

// poolObject is a pool of nodes by their role.
func poolObject(name, target string, change ...func(*mcfgv1.MachineConfigPool)) *mcfgv1.MachineConfigPool {
	p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
	p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + name: ""}}
	p.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: name}}
	p.Spec.Configuration.Name = target
	for _, f := range change {
		f(p)
	}
	return p
}

// pool makes a pool of nodes by their role.
func (l *lab) pool(name, target, had string, change ...func(*mcfgv1.MachineConfigPool)) {
	l.t.Helper()
	p := poolObject(name, target, change...)
	pools := l.MachineConfigs.MachineconfigurationV1().MachineConfigPools()
	made, err := pools.Create(l.ctx, p, metav1.CreateOptions{})
	l.must(err)
	made.Status.Configuration.Name = had
	_, err = pools.UpdateStatus(l.ctx, made, metav1.UpdateOptions{})
	l.must(err)
	l.config(target)
	if had != target {
		l.config(had)
	}
}

// config makes a configuration: of what is in it nobody asks here.
func (l *lab) config(name string) {
	l.t.Helper()
	mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: name}}
	mc.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.5.0"}}`)
	_, err := l.MachineConfigs.MachineconfigurationV1().MachineConfigs().Create(l.ctx, mc, metav1.CreateOptions{})
	l.must(err)
}

// stand is where a node is, and what its daemon says of that.
type stand struct {
	current, desired string
	state            api.State
	cordoned         bool
	notReady         string
	condition        mcfgv1.StateProgress
	status           metav1.ConditionStatus
	since            time.Time
	node, daemon     map[string]string // annotations
}

// objects are a node of a pool, and its MachineConfigNode.
func (s *stand) objects(name, pool string) (*corev1.Node, *mcfgv1.MachineConfigNode) {
	n := cluster.KwokNode(name, map[string]string{api.NodeRole + pool: ""})
	n.Annotations = map[string]string{
		api.CurrentConfig: s.current, api.DesiredConfig: s.desired, api.StateKey: string(s.state),
	}
	maps.Copy(n.Annotations, s.node)
	n.Spec.Unschedulable = s.cordoned
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	if s.notReady != "" {
		ready.Status, ready.Message, ready.LastTransitionTime = corev1.ConditionUnknown, s.notReady, metav1.NewTime(s.since)
	}
	n.Status.Conditions = []corev1.NodeCondition{ready}
	said := &mcfgv1.MachineConfigNode{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: s.daemon},
		Spec: mcfgv1.MachineConfigNodeSpec{
			Node: mcfgv1.MCOObjectReference{Name: name}, Pool: mcfgv1.MCOObjectReference{Name: pool},
			ConfigVersion: mcfgv1.MachineConfigNodeSpecMachineConfigVersion{Desired: s.desired},
		},
	}
	said.Status.Conditions = []metav1.Condition{{
		Type: string(s.condition), Status: s.status, Reason: string(s.condition), LastTransitionTime: metav1.NewTime(s.since),
	}}
	return n, said
}

// node makes a node of a pool, and its MachineConfigNode.
func (l *lab) node(name, pool string, s stand) {
	l.t.Helper()
	n, said := s.objects(name, pool)
	made, err := l.Client.CoreV1().Nodes().Create(l.ctx, n, metav1.CreateOptions{})
	l.must(err)
	made.Status.Conditions = n.Status.Conditions
	_, err = l.Client.CoreV1().Nodes().UpdateStatus(l.ctx, made, metav1.UpdateOptions{})
	l.must(err)

	states := l.MachineConfigs.MachineconfigurationV1().MachineConfigNodes()
	status := said.Status
	said, err = states.Create(l.ctx, said, metav1.CreateOptions{})
	l.must(err)
	said.Status = status
	_, err = states.UpdateStatus(l.ctx, said, metav1.UpdateOptions{})
	l.must(err)
}

// done is a node that is where it shall be.
func done(config string, since time.Time) stand {
	return stand{
		current: config, desired: config, state: api.Done, condition: mcfgv1.MachineConfigNodeUpdated,
		status: metav1.ConditionTrue, since: since,
	}
}

// annotate changes annotations of a node, as its daemon does.
func (l *lab) annotate(node string, annotations map[string]string) {
	l.t.Helper()
	patch := api.Encode(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	_, err := l.Client.CoreV1().Nodes().Patch(l.ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	l.must(err)
}
