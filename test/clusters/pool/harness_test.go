// SPDX-License-Identifier: Apache-2.0

// Package pool tests the pool controller as people run it: its own process on a real control plane. Nodes are kwok's;
// what their agents would write, a small fake writes.
package pool

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/programs"
)

const (
	// poll is how often a condition is looked at that nothing announces.
	poll = 20 * time.Millisecond
	// patience is how long anything here may take on a machine that is busy with something else.
	patience = time.Minute
)

var (
	suite = cluster.Suite{Lent: 2, Options: cluster.Options{Controllers: true, Kwok: true, Audit: true,
		// Longer than any pause of a busy machine: nodes go NotReady here when a test says so.
		GracePeriod: 2 * time.Minute}}
	program = sync.OnceValues(func() (string, error) { return build("machine-config-controller") })
	refit   = sync.OnceValues(func() (string, error) { return build("kubectl-refit") })
)

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// build builds one of our programs, with a clock that a test can set.
func build(name string) (string, error) {
	flags := []string{"-tags", "testclock"}
	if raceDetector {
		flags = append(flags, "-race")
	}
	return programs.Build(context.Background(), suite.Dir(), "cmd/"+name, flags...)
}

// lab is what a test works with: a cluster of its own while it runs, empty at the beginning and the end.
type lab struct {
	*cluster.Cluster

	t      *testing.T
	ctx    context.Context //nolint:containedctx // a lab lives as long as its test
	agents *agents
	eye    *eye
	clock  string // the file that says how far our programs' clock is ahead
	ahead  atomic.Int64
}

// now is the time on our programs' clock.
func (l *lab) now() time.Time { return time.Now().Add(time.Duration(l.ahead.Load())) }

func newLab(t *testing.T) *lab {
	t.Helper()
	c := suite.Borrow(t)
	ctx, cancel := context.WithCancel(t.Context())
	l := &lab{Cluster: c, t: t, ctx: ctx, clock: filepath.Join(t.TempDir(), "ahead")}
	l.agents = startAgents(l)
	l.eye = openEye(l)
	t.Cleanup(func() {
		cancel()
		l.agents.done.Wait()
		l.eye.done.Wait()
		l.clear()
	})
	return l
}

func (l *lab) clear() {
	all, ctx := metav1.ListOptions{}, context.Background()
	if err := errors.Join(
		l.Client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, all),
		l.MachineConfigs.MachineconfigurationV1().MachineConfigPools().DeleteCollection(ctx, metav1.DeleteOptions{}, all),
		l.Client.CoordinationV1().Leases(api.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all),
		l.Client.CoreV1().Events(metav1.NamespaceDefault).DeleteCollection(ctx, metav1.DeleteOptions{}, all),
		l.Client.CoreV1().RESTClient().Delete().AbsPath(policiesPath).Do(ctx).Error(),
		l.Client.CoreV1().RESTClient().Delete().AbsPath(nodeValuesPath).Do(ctx).Error(),
	); err != nil {
		l.t.Error(err)
	}
}

// until waits for a condition, and says what did not come.
func (l *lab) until(what string, condition func() bool) {
	l.t.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(poll) {
		if time.Now().After(end) {
			out, _ := l.Kubectl(context.Background(), "get", "mcp,nodes", "-o",
				"jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.annotations} {.spec} {.status.conditions}{\"\\n\"}{end}")
			l.t.Fatalf("waiting until %s: it did not come\n%s", what, out)
		}
	}
}

// controller is a running machine-config-controller.
type controller struct {
	cmd     *exec.Cmd
	log     string
	metrics string
	stopped bool
}

func (l *lab) controller(args ...string) *controller {
	l.t.Helper()
	path, err := program()
	if err != nil {
		l.t.Fatal(err)
	}
	address := cluster.FreeAddress(l.t)
	c := &controller{metrics: "http://" + address + "/metrics", log: filepath.Join(l.t.TempDir(), "log")}
	log, err := os.Create(c.log)
	if err != nil {
		l.t.Fatal(err)
	}
	defer log.Close()
	c.cmd = exec.Command(path, append([]string{
		"run", "--controllers=pool", "--kubeconfig=" + l.Kubeconfig, "--metrics-bind-address=" + address,
		"--health-probe-bind-address=0",
	}, args...)...)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.Env = append(os.Environ(), "NODEREFIT_TEST_CLOCK="+l.clock)
	if err := c.cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		c.stop(l.t, syscall.SIGTERM)
		text, _ := os.ReadFile(c.log)
		if l.t.Failed() {
			l.t.Logf("log of the controller:\n%s", text)
		}
		if strings.Contains(string(text), "DATA RACE") || strings.Contains(string(text), "panic:") {
			l.t.Errorf("the controller had an accident:\n%s", text)
		}
	})
	return c
}

// alone starts a controller that needs no lease.
func (l *lab) alone(args ...string) *controller {
	l.t.Helper()
	return l.controller(append([]string{"--leader-elect=false"}, args...)...)
}

func (c *controller) stop(t *testing.T, signal os.Signal) {
	t.Helper()
	if c.stopped {
		return
	}
	c.stopped = true
	if err := c.cmd.Process.Signal(signal); err != nil {
		t.Error(err)
	}
	err := c.cmd.Wait()
	if exit := new(exec.ExitError); err != nil && (signal == syscall.SIGTERM || !errors.As(err, &exit)) {
		t.Errorf("the controller ended with %v", err)
	}
}

// metric is the line of a metric, without its name; empty where there is none.
func (c *controller) metric(t *testing.T, series string) string {
	t.Helper()
	answer, err := http.Get(c.metrics)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// measures waits until a metric has a value: it comes after what it counts.
func (l *lab) measures(c *controller, series, want string) {
	l.t.Helper()
	l.until(series+" is "+want, func() bool { return c.metric(l.t, series) == want })
}

// pool makes a pool that selects nodes by their role.
func (l *lab) pool(name, config string, change ...func(*mcfgv1.MachineConfigPool)) {
	l.t.Helper()
	p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + name: ""}}
	p.Spec.Configuration.Name = config
	for _, f := range change {
		f(p)
	}
	_, err := l.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Create(l.ctx, p, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
}

func maxUnavailable(value string) func(*mcfgv1.MachineConfigPool) {
	return func(p *mcfgv1.MachineConfigPool) { p.Spec.MaxUnavailable = new(intstr.Parse(value)) }
}

func (l *lab) getPool(name string) *mcfgv1.MachineConfigPool {
	l.t.Helper()
	pools := l.MachineConfigs.MachineconfigurationV1().MachineConfigPools()
	p, err := pools.Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	return p
}

// change merges a patch into a pool.
func (l *lab) change(pool, patch string) {
	l.t.Helper()
	_, err := l.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Patch(l.ctx, pool, types.MergePatchType,
		[]byte(patch), metav1.PatchOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) target(pool, config string) {
	l.t.Helper()
	l.change(pool, `{"spec":{"configuration":{"name":"`+config+`"}}}`)
}

// condition of a pool, as "status message".
func (l *lab) condition(pool string, kind mcfgv1.MachineConfigPoolConditionType) string {
	l.t.Helper()
	for _, c := range l.getPool(pool).Status.Conditions {
		if c.Type == kind {
			return strings.TrimSpace(string(c.Status) + " " + c.Message)
		}
	}
	return ""
}

func (l *lab) updated(pool, config string) {
	l.t.Helper()
	l.until("pool "+pool+" is updated to "+config, func() bool {
		return l.condition(pool, mcfgv1.MachineConfigPoolUpdated) == "True All nodes are updated with "+config &&
			l.getPool(pool).Status.Configuration.Name == config
	})
}

// node adds a node of a role that proved healthy on a configuration.
func (l *lab) node(name, role, config string, change ...func(*corev1.Node)) {
	l.t.Helper()
	n := cluster.KwokNode(name, map[string]string{api.NodeRole + role: ""})
	n.Annotations = map[string]string{api.CurrentConfig: config, api.DesiredConfig: config, api.StateKey: string(api.Done)}
	for _, f := range change {
		f(n)
	}
	if _, err := l.Client.CoreV1().Nodes().Create(l.ctx, n, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	defer cancel()
	if err := l.WaitReady(ctx, name); err != nil {
		l.t.Fatal(err)
	}
}

func zone(z string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[api.Zone] = z }
}

func (l *lab) getNode(name string) *corev1.Node {
	l.t.Helper()
	n, err := l.Client.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

func (l *lab) stand(name string) *progress.Node {
	l.t.Helper()
	n := progress.ReadNode(l.getNode(name))
	return &n
}

func (l *lab) patchNode(name, patch string, subresources ...string) error {
	_, err := l.Client.CoreV1().Nodes().Patch(l.ctx, name, types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{}, subresources...)
	return err
}

func (l *lab) mustPatchNode(name, patch string, subresources ...string) {
	l.t.Helper()
	if err := l.patchNode(name, patch, subresources...); err != nil {
		l.t.Fatal(err)
	}
}

// agents play the agents of all nodes: cordon, work, prove, uncordon, as the daemon would.
type agents struct {
	l    *lab
	done sync.WaitGroup

	mu sync.Mutex
	// outcomes say how a configuration ends on any node, other than well.
	outcomes map[string]api.State
	// breaks are the nodes on which every configuration that is new to them fails its verdict.
	breaks map[string]bool
	// held nodes stay cordoned and at work, staging ones at work before that.
	held, staging map[string]bool
	ahead         ahead
}

func startAgents(l *lab) *agents {
	a := &agents{
		l: l, outcomes: map[string]api.State{}, breaks: map[string]bool{},
		held: map[string]bool{}, staging: map[string]bool{}, ahead: newAhead(),
	}
	a.done.Go(func() {
		for ; l.ctx.Err() == nil; time.Sleep(poll) {
			list, err := l.Client.CoreV1().Nodes().List(l.ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for i := range list.Items {
				if err := a.turn(&list.Items[i]); err != nil && l.ctx.Err() == nil && !apierrors.IsNotFound(err) {
					l.t.Errorf("agent of %s: %v", list.Items[i].Name, err)
				}
			}
		}
	})
	return a
}

// ends says how a configuration ends on every node.
func (a *agents) ends(config string, how api.State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outcomes[config] = how
}

func (a *agents) breakOn(nodes ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range nodes {
		a.breaks[n] = true
	}
}

// mend has a node prove configurations again.
func (a *agents) mend(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.breaks, node)
}

func (a *agents) hold(node string, yes bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held[node] = yes
}

func (a *agents) stage(node string, yes bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.staging[node] = yes
}

// turn takes one step on a node.
func (a *agents) turn(o *corev1.Node) error {
	n := progress.ReadNode(o)
	if patch := a.stageAhead(n); patch != "" {
		return a.l.patchNode(n.Name, patch)
	}
	if patch, mine := a.reboot(n); mine {
		if patch == "" {
			return nil
		}
		return a.l.patchNode(n.Name, patch)
	}
	a.mu.Lock()
	outcome, held, staging := a.outcomes[n.Desired], a.held[n.Name], a.staging[n.Name]
	if a.breaks[n.Name] {
		outcome = api.RolledBack
	}
	a.mu.Unlock()
	failed := slices.IndexFunc(n.Quarantined, func(q api.Quarantine) bool {
		return api.SameContent(q.Config, n.Desired)
	})
	switch {
	case n.Desired == "" || n.NotReady != "", n.Settled() && n.Cordon == nil:
		return nil
	case n.Current == n.Desired:
		return a.write(n, api.Done, "", false, n.Current, n.Quarantined)
	case failed >= 0:
		return a.refuse(n, failed)
	case outcome != api.RolledBack && n.Failing() && n.State == outcome:
		return nil
	case n.State != api.Working:
		return a.write(n, api.Working, "", n.Cordoned, n.Current, n.Quarantined)
	case !n.Cordoned && staging:
		return nil
	case !n.Cordoned:
		return a.write(n, api.Working, "", true, n.Current, n.Quarantined)
	case held:
		return nil
	case outcome == api.RolledBack:
		const why = "kubelet is down"
		q := append(slices.Clone(n.Quarantined), api.Quarantine{Config: n.Desired, Reason: why, Since: time.Now()})
		return a.write(n, api.RolledBack, why, false, n.Current, q)
	case outcome != "":
		return a.write(n, outcome, "it won't", true, n.Current, n.Quarantined)
	}
	return a.write(n, api.Done, "", false, n.Desired, n.Quarantined)
}

// refuse stays away from what failed here, whatever would become of it now, until it is lifted. A lift serves once.
func (a *agents) refuse(n progress.Node, failed int) error {
	switch {
	case n.Lift == n.Desired:
		return a.write(n, api.Working, "", n.Cordoned, n.Current, slices.Delete(n.Quarantined, failed, failed+1))
	case n.State == api.RolledBack && n.Cordon == nil:
		return nil
	}
	return a.write(n, api.RolledBack, n.Quarantined[failed].Reason, false, n.Current, n.Quarantined)
}

// write is one patch, which uses up the lift that there was. A cordon that is somebody else's stays.
func (a *agents) write(n progress.Node, state api.State, reason string, cordoned bool, current string,
	q []api.Quarantine,
) error {
	annotations := map[string]any{
		api.StateKey: string(state), api.Reason: reason, api.CurrentConfig: current, api.QuarantinedKey: api.Encode(q),
	}
	if n.Lift != "" {
		annotations[api.Lift] = nil
	}
	spec := map[string]any{}
	switch {
	case cordoned && !n.Cordoned:
		annotations[api.CordonKey] = api.Encode(api.Cordon{By: api.Daemon, Config: n.Desired, Since: time.Now()})
		spec["unschedulable"] = true
	case !cordoned && n.Cordon != nil:
		annotations[api.CordonKey] = nil
		spec["unschedulable"] = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}, "spec": spec})
	if err != nil {
		return err
	}
	return a.l.patchNode(n.Name, string(patch))
}

// eye watches the nodes from outside, and misses no state of any.
type eye struct {
	l    *lab
	done sync.WaitGroup

	mu    sync.Mutex
	nodes map[string]progress.Node
	// versions are the latest resource versions of nodes, deleted ones too.
	versions map[string]int64
	// told lists what each node was told to go to, in order, and when is the time of the last on our programs' clock.
	told map[string][]string
	when map[string]time.Time
	// order lists the nodes in the order in which they were told anything.
	order []string
	// most is how many nodes were out of service, or told to be, at one time.
	most int
	// pulls is how many were asked to stage ahead, and had not, at one time.
	pulls int
	// waits are the times from a node's arrival to the next one's being sent.
	waits   []time.Duration
	arrived time.Time
}

func openEye(l *lab) *eye {
	e := &eye{
		l: l, nodes: map[string]progress.Node{}, versions: map[string]int64{}, told: map[string][]string{}, when: map[string]time.Time{},
	}
	list, err := l.Client.CoreV1().Nodes().List(l.ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		l.t.Fatalf("listing nodes, of which there should be none: %d, %v", len(list.Items), err)
	}
	w, err := l.Client.CoreV1().Nodes().Watch(l.ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		l.t.Fatal(err)
	}
	e.done.Go(func() {
		defer w.Stop()
		for event := range w.ResultChan() {
			if n, ok := event.Object.(*corev1.Node); ok {
				e.see(event.Type, progress.ReadNode(n), version(n))
			}
		}
	})
	return e
}

func (e *eye) see(what watch.EventType, n progress.Node, version int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.versions[n.Name] = version
	old, known := e.nodes[n.Name]
	if what == watch.Deleted {
		delete(e.nodes, n.Name)
		return
	}
	e.nodes[n.Name] = n
	if known && old.Desired != n.Desired {
		e.told[n.Name] = append(e.told[n.Name], n.Desired)
		e.order = append(e.order, n.Name)
		e.when[n.Name] = e.l.now()
		if !e.arrived.IsZero() {
			e.waits = append(e.waits, time.Since(e.arrived))
			e.arrived = time.Time{}
		}
	}
	if known && old.Unavailable() && !n.Unavailable() {
		e.arrived = time.Now()
	}
	out := 0
	for _, n := range e.nodes {
		if n.Unavailable() {
			out++
		}
	}
	e.most = max(e.most, out)
	e.pulls = max(e.pulls, pulling(e.nodes))
}

// version is the resource version of a node. The API server counts them.
func version(n *corev1.Node) int64 {
	v, _ := strconv.ParseInt(n.ResourceVersion, 10, 64)
	return v
}

// catchUp waits until the eye has seen all that is on the nodes now: a watch comes later than a read.
func (e *eye) catchUp() {
	list, err := e.l.Client.CoreV1().Nodes().List(e.l.ctx, metav1.ListOptions{})
	if err != nil {
		return // the lab ends
	}
	behind := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return slices.ContainsFunc(list.Items, func(n corev1.Node) bool { return e.versions[n.Name] < version(&n) })
	}
	for end := time.Now().Add(patience); behind(); time.Sleep(poll) {
		if time.Now().After(end) {
			e.l.t.Error("the watch of the nodes has stopped")
			return
		}
	}
}

// sentAt is when a node was told something last, on our programs' clock.
func (e *eye) sentAt(node string) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.when[node]
}

// forget begins anew.
func (e *eye) forget() {
	e.catchUp()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told, e.order, e.most, e.waits, e.arrived = map[string][]string{}, nil, 0, nil, time.Time{}
	clear(e.when)
}

func (e *eye) seen() (told map[string][]string, order []string, most int) {
	e.catchUp()
	e.mu.Lock()
	defer e.mu.Unlock()
	told = map[string][]string{}
	for name, list := range e.told {
		told[name] = slices.Clone(list)
	}
	return told, slices.Clone(e.order), e.most
}
