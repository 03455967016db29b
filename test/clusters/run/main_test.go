// SPDX-License-Identifier: Apache-2.0

// Package run drives the head of the daemon on a real API server, with a host that is played.
package run

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/daemon"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/kube"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/fakehost"
)

// soon is what a test waits at most for anything: much longer than it takes, on a machine that does other things too.
const soon = 40 * time.Second

// unhurried is how long a head may take on such a machine for what it has to do at once.
const unhurried = 15 * time.Second

// suite has the control plane that the tests share: nodes are a test's own.
var suite = cluster.Suite{Options: cluster.Options{Controllers: true, Kwok: true, Audit: true}}

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// node is a node of the cluster, with its host and the head that runs on it.
type node struct {
	*cluster.Cluster

	t    *testing.T
	name string
	host *fakehost.Host
	a    string // the configuration that it has
	// via is how the head reaches the API server; nil: as the test does.
	via *rest.Config

	stop context.CancelFunc
	done chan struct{}
	logs *counter
	// pinner is the node's container runtime; nil: the head has none.
	pinner daemon.Pinner
	gets   *counter // reads of the Node, answered or not
}

// counter counts what happens.
type counter struct {
	sync.Mutex

	n int
}

func (c *counter) add() {
	c.Lock()
	defer c.Unlock()
	c.n++
}

func (c *counter) line(zapcore.Entry) error {
	c.add()
	return nil
}

func (c *counter) total() int {
	c.Lock()
	defer c.Unlock()
	return c.n
}

// reads counts how often a node is read by its name.
type reads struct {
	next  http.RoundTripper
	node  string
	count *counter
}

func (r *reads) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method == http.MethodGet && q.URL.Path == "/api/v1/nodes/"+r.node {
		r.count.add()
	}
	return r.next.RoundTrip(q)
}

// newNode is a node at a configuration of its own, at rest. The test runs beside others from then on: a node waits for
// most of its time.
func newNode(t *testing.T) *node {
	t.Helper()
	t.Parallel()
	return settled(t, suite.Cluster(t), strings.ToLower(strings.NewReplacer("Test", "", "/", "-", "_", "-").Replace(t.Name())))
}

func settled(t *testing.T, c *cluster.Cluster, name string) *node {
	t.Helper()
	n := freshNode(t, c, name)
	n.a = n.render(nil, "a")
	n.host.Commit(n.a, n.document(n.a))
	n.desire(n.a)
	n.start()
	n.waitState(api.Done, n.a)
	return n
}

// freshNode is a node that nobody has configured, without a head.
func freshNode(t *testing.T, c *cluster.Cluster, name string) *node {
	t.Helper()
	n := &node{Cluster: c, t: t, name: name, host: fakehost.New(fakehost.Script{}), logs: &counter{}, gets: &counter{}}
	if err := n.AddNode(n.ctx(), n.name, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.kill()
		_ = n.Client.CoreV1().Nodes().Delete(context.Background(), n.name, metav1.DeleteOptions{})
	})
	return n
}

// silence makes the node one whose kubelet says nothing.
func (n *node) silence() {
	n.t.Helper()
	nodes := n.Client.CoreV1().Nodes()
	if err := nodes.Delete(n.ctx(), n.name, metav1.DeleteOptions{}); err != nil {
		n.t.Fatal(err)
	}
	bare := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
	if _, err := nodes.Create(n.ctx(), bare, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(n.t.Context(), soon)
	n.t.Cleanup(cancel)
	return ctx
}

// start runs a head, as a pod that starts would.
func (n *node) start() {
	config := rest.CopyConfig(n.Config)
	if n.via != nil {
		config = rest.CopyConfig(n.via)
	}
	config.UserAgent = "head-" + n.name
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &reads{next: next, node: n.name, count: n.gets} })
	client, err := kube.New(config)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	log := zaptest.NewLogger(n.t, zaptest.WrapOptions(zap.Hooks(n.logs.line)), zaptest.Level(level()))
	head := daemon.NewHead(daemon.HeadOptions{Node: n.name, Kube: client, Hands: n.host, Senses: n.host, Verifier: n.host, Monitor: n.host, Asker: n.host, Rebooter: n.host, Pinner: n.pinner,
		Drainer: &drain.Drainer{Client: client, Node: n.name}, Log: log})
	n.stop, n.done = stop, make(chan struct{})
	go func() {
		defer close(n.done)
		if err := head.Run(ctx); err != nil {
			n.t.Error(err)
		}
	}()
}

func level() zapcore.Level {
	if testing.Verbose() {
		return zapcore.InfoLevel
	}
	return zapcore.ErrorLevel
}

// kill ends the head, and says how long that took.
func (n *node) kill() time.Duration {
	if n.stop == nil {
		return 0
	}
	begin := time.Now()
	n.stop()
	<-n.done
	n.stop = nil
	return time.Since(begin)
}

func (n *node) restart() {
	n.kill()
	n.start()
}

// restartAndLook has another head look at the host.
func (n *node) restartAndLook() {
	n.t.Helper()
	n.kill()
	before := n.host.Counts()[fakehost.Status]
	n.start()
	n.until("the new head has looked", func() bool { return n.host.Counts()[fakehost.Status] > before })
}

// keeps holds the host in an operation until the returned function is called.
func (n *node) keeps(operation string) (goOn func()) {
	on := make(chan struct{})
	n.host.Change(func(s *fakehost.Script) {
		s.Fault = func(begun, _ string) error {
			if begun == operation {
				<-on
			}
			return nil
		}
	})
	goOn = sync.OnceFunc(func() { close(on) })
	n.t.Cleanup(goOn)
	return goOn
}

// render makes a rendered configuration with a file of these contents, and stores it.
func (n *node) render(kargs []string, contents string) string {
	n.t.Helper()
	mc := rendered(n.t, kargs, n.name+"-"+contents)
	_, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigs().Create(n.ctx(), mc, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return mc.Name
}

func rendered(t *testing.T, kargs []string, contents string) *mcfgv1.MachineConfig {
	t.Helper()
	ignition, err := json.Marshal(map[string]any{"ignition": map[string]any{"version": "3.4.0"}, "storage": map[string]any{"files": []any{
		map[string]any{"path": "/etc/test.conf", "mode": 420, "contents": map[string]any{"source": "data:," + contents}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: "x"},
		Spec: mcfgv1.MachineConfigSpec{Config: runtime.RawExtension{Raw: ignition}, KernelArguments: kargs}}
	cfg, err := machineconfig.Parse(mc.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	mc.Name = "rendered-worker-" + cfg.Digest[:32]
	return mc
}

func (n *node) document(name string) []byte {
	n.t.Helper()
	mc, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigs().Get(n.ctx(), name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	mc.TypeMeta = metav1.TypeMeta{APIVersion: mcfgv1.GroupVersion.String(), Kind: "MachineConfig"}
	data, err := json.Marshal(mc)
	if err != nil {
		n.t.Fatal(err)
	}
	return data
}

func (n *node) patch(format string, args ...any) {
	n.t.Helper()
	_, err := n.Client.CoreV1().Nodes().Patch(n.ctx(), n.name, types.MergePatchType, fmt.Appendf(nil, format, args...), metav1.PatchOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
}

// desire does what the pool controller does.
func (n *node) desire(config string) {
	n.t.Helper()
	n.patch(`{"metadata":{"annotations":{%q:%q}}}`, api.DesiredConfig, config)
}

func (n *node) get() *corev1.Node {
	n.t.Helper()
	object, err := n.Client.CoreV1().Nodes().Get(n.ctx(), n.name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return object
}

// wait waits for the node to be as a condition wants it.
func (n *node) wait(what string, condition func(*corev1.Node, api.Node) bool) *corev1.Node {
	n.t.Helper()
	var last *corev1.Node
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		object, err := n.Client.CoreV1().Nodes().Get(n.ctx(), n.name, metav1.GetOptions{})
		if err != nil {
			continue
		}
		last = object
		read, err := api.ReadNode(object)
		if err == nil && condition(object, read) {
			return object
		}
	}
	n.t.Fatalf("node %s never was %s; annotations at the end: %v, unschedulable %t, host %v", n.name, what, last.Annotations,
		last.Spec.Unschedulable, n.host.Counts())
	return nil
}

func (n *node) waitState(state api.State, current string) *corev1.Node {
	n.t.Helper()
	return n.wait(fmt.Sprintf("%s on %s", state, current), func(_ *corev1.Node, a api.Node) bool {
		return a.State == state && a.Current == current
	})
}

// until waits for anything else.
func (n *node) until(what string, condition func() bool) {
	n.t.Helper()
	n.within(soon, what, condition)
}

func (n *node) within(limit time.Duration, what string, condition func() bool) {
	n.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if condition() {
			return
		}
	}
	n.t.Fatalf("waiting until %s: it never was so; host %v", what, n.host.Counts())
}

// mcn returns the status of a condition of the MachineConfigNode.
func (n *node) mcn(kind mcfgv1.StateProgress) metav1.Condition {
	object, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigNodes().Get(n.ctx(), n.name, metav1.GetOptions{})
	if err != nil {
		return metav1.Condition{}
	}
	for _, c := range object.Status.Conditions {
		if c.Type == string(kind) {
			return c
		}
	}
	return metav1.Condition{}
}

// block puts a pod on the node that a budget holds there, and returns what lets it go.
func (n *node) block() (release func()) {
	n.t.Helper()
	n.pod("held", map[string]string{"held": n.name})
	_, err := n.Kubectl(n.ctx(), "create", "poddisruptionbudget", n.name, "--selector=held="+n.name, "--min-available=1")
	if err != nil {
		n.t.Fatal(err)
	}
	n.until("the budget counts its pod", func() bool {
		b, err := n.Client.PolicyV1().PodDisruptionBudgets("default").Get(n.ctx(), n.name, metav1.GetOptions{})
		return err == nil && b.Status.CurrentHealthy == 1 && b.Status.ObservedGeneration == b.Generation
	})
	return func() {
		if err := n.Client.PolicyV1().PodDisruptionBudgets("default").Delete(n.ctx(), n.name, metav1.DeleteOptions{}); err != nil {
			n.t.Error(err)
		}
	}
}

// pod puts a pod on the node and waits for it to run.
func (n *node) pod(name string, labels map[string]string) {
	n.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: n.name + "-" + name, Namespace: "default", Labels: labels},
		Spec: corev1.PodSpec{NodeName: n.name, Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
	if _, err := n.Client.CoreV1().Pods("default").Create(n.ctx(), pod, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	n.until("pod "+pod.Name+" runs", func() bool {
		p, err := n.Client.CoreV1().Pods("default").Get(n.ctx(), pod.Name, metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning
	})
}

// renamed is the name for what a configuration holds now.
func renamed(t *testing.T, mc *mcfgv1.MachineConfig) string {
	t.Helper()
	cfg, err := machineconfig.Parse(mc.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	return "rendered-worker-" + cfg.Digest[:32]
}
