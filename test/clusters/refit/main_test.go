// SPDX-License-Identifier: Apache-2.0

// Package refit tests the kubectl plugin as people run it: the built program against a real control plane. What the
// controllers and daemons would write, the tests write.
package refit

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/programs"
	"github.com/noderefit/noderefit/test/schemas"
)

var update = flag.Bool("update", false, "write what the program prints to testdata")

var (
	program = sync.OnceValues(build)
	// Without the controller manager nothing but the tests changes anything.
	suite = cluster.Suite{Options: cluster.Options{Audit: true}}
)

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func build() (string, error) {
	return programs.Build(context.Background(), suite.Dir(), "cmd/kubectl-refit")
}

// lab is the cluster, for one test.
type lab struct {
	*cluster.Cluster

	t     *testing.T
	ctx   context.Context //nolint:containedctx // of the test that the lab is for
	began time.Time
}

func newLab(t *testing.T) *lab {
	t.Helper()
	c := suite.Cluster(t)
	if _, err := program(); err != nil { // now, for it takes a time that is none of the test's
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return &lab{c, t, ctx, time.Now()}
}

// must ends the test with an error, unless it says that the object is there already.
func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		l.t.Fatal(err)
	}
}

// ago is a time that reads the same for a minute.
func ago(minutes int) metav1.Time {
	return metav1.NewTime(time.Now().Add(-time.Duration(minutes)*time.Minute - 10*time.Second).UTC().Truncate(time.Second))
}

// config makes a MachineConfig of a pool with one file.
func (l *lab) config(pool, name, path, contents string) *mcfgv1.MachineConfig {
	l.t.Helper()
	const ignition = `{"ignition":{"version":"3.5.0"},"storage":{"files":[{"path":%q,"contents":{"source":"data:,%s"}}]}}`
	mc := &mcfgv1.MachineConfig{
		TypeMeta:   metav1.TypeMeta{APIVersion: mcfgv1.GroupVersion.String(), Kind: "MachineConfig"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.Role: pool}},
	}
	mc.Spec.Config.Raw = fmt.Appendf(nil, ignition, path, contents)
	return mc
}

// render merges MachineConfigs and puts the outcome into the cluster, as the render controller does. It returns its
// name.
func (l *lab) render(pool string, sources ...*mcfgv1.MachineConfig) string {
	l.t.Helper()
	rendered := l.merge(pool, sources...)
	_, err := l.MachineConfigs.MachineconfigurationV1().MachineConfigs().Create(l.ctx, rendered, metav1.CreateOptions{})
	l.must(err)
	return rendered.Name
}

// merge merges MachineConfigs as the render controller does.
func (l *lab) merge(pool string, sources ...*mcfgv1.MachineConfig) *mcfgv1.MachineConfig {
	l.t.Helper()
	docs := &machineconfig.Documents{}
	for _, mc := range sources {
		docs.Configs = append(docs.Configs, &machineconfig.Document{Object: mc})
	}
	rendered, _, err := machineconfig.Render(pool, docs, nil)
	l.must(err)
	return rendered
}

// two renders two configurations of a pool, which differ in the contents of one file.
func (l *lab) two(pool, path, was, is string) (before, after string) {
	l.t.Helper()
	return l.render(pool, l.config(pool, "50-one", path, was)), l.render(pool, l.config(pool, "50-one", path, is))
}

// source puts a MachineConfig into the cluster.
func (l *lab) source(mc *mcfgv1.MachineConfig) {
	l.t.Helper()
	_, err := l.MachineConfigs.MachineconfigurationV1().MachineConfigs().Create(l.ctx, mc, metav1.CreateOptions{})
	l.must(err)
}

// pool makes a pool that shall have one configuration and last had another, with whatever else a test wants.
func (l *lab) pool(name, desired, had string, change func(*mcfgv1.MachineConfigPool)) {
	l.t.Helper()
	pools := l.MachineConfigs.MachineconfigurationV1().MachineConfigPools()
	p := &mcfgv1.MachineConfigPool{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Spec: mcfgv1.MachineConfigPoolSpec{
			MachineConfigSelector: &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: name}},
			NodeSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + name: ""}},
			Configuration:         configuration(desired),
		},
	}
	p.Status.Configuration = configuration(had)
	if change != nil {
		change(p)
	}
	status := p.Status.DeepCopy()
	made, err := pools.Create(l.ctx, p, metav1.CreateOptions{})
	l.must(err)
	made.Status = *status
	_, err = pools.UpdateStatus(l.ctx, made, metav1.UpdateOptions{})
	l.must(err)
}

func configuration(name string) mcfgv1.MachineConfigPoolStatusConfiguration {
	return mcfgv1.MachineConfigPoolStatusConfiguration{ObjectReference: corev1.ObjectReference{Name: name}}
}

func (l *lab) readPool(name string) *mcfgv1.MachineConfigPool {
	l.t.Helper()
	p, err := l.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Get(l.ctx, name, metav1.GetOptions{})
	l.must(err)
	return p
}

// node makes a ready node of a pool that says where it is, and what its daemon says of it.
func (l *lab) node(name, pool, current, desired string, state api.State, change func(*corev1.Node)) {
	l.t.Helper()
	n := cluster.KwokNode(name, map[string]string{api.NodeRole + pool: ""})
	n.Annotations = map[string]string{
		api.CurrentConfig: current, api.DesiredConfig: desired, api.StateKey: string(state),
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if change != nil {
		change(n)
	}
	status := n.Status.DeepCopy()
	made, err := l.Client.CoreV1().Nodes().Create(l.ctx, n, metav1.CreateOptions{})
	l.must(err)
	made.Status = *status
	// Admission taints every new node until somebody says that it is ready.
	made, err = l.Client.CoreV1().Nodes().UpdateStatus(l.ctx, made, metav1.UpdateOptions{})
	l.must(err)
	l.report(made.Name, pool, desired, nil)
}

// report makes the MachineConfigNode of a node, or changes its conditions.
func (l *lab) report(name, pool, desired string, change func(*mcfgv1.MachineConfigNode)) {
	l.t.Helper()
	states := l.MachineConfigs.MachineconfigurationV1().MachineConfigNodes()
	s, err := states.Get(l.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		s, err = states.Create(l.ctx, &mcfgv1.MachineConfigNode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: mcfgv1.MachineConfigNodeSpec{
				Node: mcfgv1.MCOObjectReference{Name: name}, Pool: mcfgv1.MCOObjectReference{Name: pool},
				ConfigVersion: mcfgv1.MachineConfigNodeSpecMachineConfigVersion{Desired: desired},
			},
		}, metav1.CreateOptions{})
	}
	l.must(err)
	if change == nil {
		return
	}
	s.Spec.ConfigVersion.Desired = desired
	change(s)
	status := s.Status.DeepCopy()
	s, err = states.Update(l.ctx, s, metav1.UpdateOptions{})
	l.must(err)
	s.Status = *status
	_, err = states.UpdateStatus(l.ctx, s, metav1.UpdateOptions{})
	l.must(err)
}

// step has a daemon say what it does, and nothing else.
func step(of mcfgv1.StateProgress, since metav1.Time) func(*mcfgv1.MachineConfigNode) {
	return func(s *mcfgv1.MachineConfigNode) {
		s.Status.Conditions = []metav1.Condition{{
			Type: string(of), Status: metav1.ConditionUnknown, Reason: string(of), LastTransitionTime: since,
			Message: "reboot, because of file /etc/motd: no policy covers it",
		}}
	}
}

// annotate changes annotations of a node, as daemons and the pool controller do.
func (l *lab) annotate(node string, annotations map[string]string) {
	l.t.Helper()
	patch := api.Encode(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	_, err := l.Client.CoreV1().Nodes().Patch(l.ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	l.must(err)
}

// workload puts a running pod on a node, and a budget around it that allows nothing.
func (l *lab) workload(namespace, pod, node, budget string) {
	l.t.Helper()
	core := l.Client.CoreV1()
	_, err := core.Namespaces().Create(l.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	l.must(err)
	// Every pod needs one, and its controller does not run.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	_, err = core.ServiceAccounts(namespace).Create(l.ctx, account, metav1.CreateOptions{})
	l.must(err)
	labels := map[string]string{"app": budget}
	p, err := core.Pods(namespace).Create(l.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Labels: labels},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "registry.example/app"}},
			NodeSelector: map[string]string{"router": ""},
		},
	}, metav1.CreateOptions{})
	l.must(err)
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	_, err = core.Pods(namespace).UpdateStatus(l.ctx, p, metav1.UpdateOptions{})
	l.must(err)
	b, err := l.Client.PolicyV1().PodDisruptionBudgets(namespace).Create(l.ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: budget},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}, metav1.CreateOptions{})
	l.must(err)
	b.Status = policyv1.PodDisruptionBudgetStatus{
		ExpectedPods: 1, DesiredHealthy: 1, CurrentHealthy: 1, ObservedGeneration: 1,
	}
	_, err = l.Client.PolicyV1().PodDisruptionBudgets(namespace).UpdateStatus(l.ctx, b, metav1.UpdateOptions{})
	l.must(err)
}

// result is what the program left behind.
type result struct {
	code           int
	stdout, stderr string
}

// refit runs the program as the administrator.
func (l *lab) refit(args ...string) result {
	l.t.Helper()
	r, done := l.start(args...)
	return l.ended(r, done, args)
}

// refitReading is the same with something on the standard input.
func (l *lab) refitReading(stdin string, args ...string) result {
	l.t.Helper()
	r, done := l.startReading(strings.NewReader(stdin), args...)
	return l.ended(r, done, args)
}

// ended waits for the end of the program, and holds the JSON that it has printed to its schema.
func (l *lab) ended(r *result, done <-chan struct{}, args []string) result {
	l.t.Helper()
	<-done
	if err := schemas.CheckPrinted(r.stdout, args...); err != nil {
		l.t.Error(err)
	}
	return *r
}

// start runs the program; the result is there when the channel is closed.
func (l *lab) start(args ...string) (*result, <-chan struct{}) {
	l.t.Helper()
	return l.startReading(nil, args...)
}

func (l *lab) startReading(stdin io.Reader, args ...string) (*result, <-chan struct{}) {
	l.t.Helper()
	r, _, done := l.startWith(stdin, args...)
	return r, done
}

// startProcess is start, with the process for a signal.
func (l *lab) startProcess(args ...string) (*result, *os.Process, <-chan struct{}) {
	l.t.Helper()
	return l.startWith(nil, args...)
}

func (l *lab) startWith(stdin io.Reader, args ...string) (*result, *os.Process, <-chan struct{}) {
	l.t.Helper()
	path, err := program()
	l.must(err)
	cmd := exec.CommandContext(l.ctx, path, append([]string{"--kubeconfig=" + l.Kubeconfig}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	l.must(cmd.Start())
	r, done := &result{}, make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // the exit code says it
		r.code = cmd.ProcessState.ExitCode()
		r.stdout, r.stderr = stdout.String(), stderr.String()
	}()
	return r, cmd.Process, done
}

// ok fails the test unless the program did what it was told, and had nothing to say besides.
func (r result) ok(t *testing.T) result {
	t.Helper()
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	return r
}

// fails checks the exit code, and that the last line of stderr is the one error line and has these words.
func (r result) fails(t *testing.T, code int, words ...string) result {
	t.Helper()
	t.Log("\n" + r.stdout + r.stderr)
	lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
	last := lines[len(lines)-1]
	if r.code != code || !strings.HasPrefix(last, "error: ") || strings.Count(r.stderr, "error: ") != 1 {
		t.Fatalf("exit code %d, want %d\n%s%s", r.code, code, r.stdout, r.stderr)
	}
	for _, w := range words {
		if !strings.Contains(last, w) {
			t.Errorf("%q lacks %q", last, w)
		}
	}
	return r
}

// What depends on when a test runs and how long it takes, and on what other tests have left in the cluster.
var (
	age    = regexp.MustCompile(`\b\d+m\b`)
	moment = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)
	others = regexp.MustCompile(`0 of \d+ nodes could take it: \d+ do not match`)
)

// golden compares an output with a file, with what depends on the circumstances left out.
func (l *lab) golden(name, got string) {
	l.t.Helper()
	l.t.Log("\n" + got) // as it was, for the documentation
	got = moment.ReplaceAllString(got, "<time>")
	got = others.ReplaceAllString(got, "0 of <all> nodes could take it: <all> do not match")
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			l.t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		l.t.Fatal(err)
	}
	got = younger(string(want), got, time.Since(l.began))
	if diff := cmp.Diff(string(want), got); diff != "" {
		l.t.Errorf("%s (run with -update when that is meant):\n%s", path, diff)
	}
}

// younger takes from each age in an output the minutes that the test has taken, where that makes it the one that is
// wanted: on a busy machine a test can take longer than what ago allows for.
func younger(want, got string, took time.Duration) string {
	ages := age.FindAllString(want, -1)
	return age.ReplaceAllStringFunc(got, func(is string) string {
		if len(ages) == 0 {
			return is
		}
		first := ages[0]
		ages = ages[1:]
		more, err := time.ParseDuration(is)
		less, wrong := time.ParseDuration(first)
		if err != nil || wrong != nil || more < less || more-less > took+11*time.Second {
			return is
		}
		return first
	})
}

func TestAgesAreForgivenTheTimeThatATestTakesAndNoMore(t *testing.T) {
	for _, c := range []struct {
		want, got string
		took      time.Duration
		is        string
	}{
		{"a 73m b 90m", "a 74m b 90m", 50 * time.Second, "a 73m b 90m"},
		{"a 73m b 90m", "a 74m b 91m", 40 * time.Second, "a 74m b 91m"},
		{"73m", "72m", time.Hour, "72m"},
		{"73m", "74m 5m", time.Minute, "73m 5m"},
	} {
		if is := younger(c.want, c.got, c.took); is != c.is {
			t.Errorf("%q for %q after %s: %q", c.got, c.want, c.took, is)
		}
	}
}
