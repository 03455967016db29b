// SPDX-License-Identifier: Apache-2.0

// Package gitops tests what tools that apply a repository to a cluster live on: that they can see what became of it,
// that nobody fights with them over a field, and that the example repository of the documentation works.
package gitops

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/programs"
)

const (
	// root is the project's, as the tests of this folder see it.
	root = "../../.."
	// manager is who applies, as Flux calls itself.
	manager = "kustomize-controller"
	poll    = 20 * time.Millisecond
	// patience is how long anything here may take on a machine that is busy with something else.
	patience = 90 * time.Second
)

// lab is a control plane with machine-config-controller, whose nodes obey at once, for one test and those within it.
type lab struct {
	*cluster.Cluster

	t       *testing.T
	ctx     context.Context //nolint:containedctx // of the test that the lab is for
	dynamic dynamic.Interface
	obey    *obedience
}

// obedience says whether nodes do what they are told.
type obedience struct {
	mu   sync.Mutex
	held bool
}

func (o *obedience) hold(yes bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = yes
}

func (o *obedience) isHeld() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.held
}

func newLab(t *testing.T) *lab {
	t.Helper()
	cluster.Need(t)
	ctx, cancel := context.WithCancel(t.Context())
	l := &lab{Cluster: cluster.New(t, cluster.Options{}), t: t, ctx: ctx, obey: &obedience{}}
	var err error
	if l.dynamic, err = dynamic.NewForConfig(l.Config); err != nil {
		t.Fatal(err)
	}
	var agents sync.WaitGroup
	agents.Go(func() { l.agents(ctx) })
	t.Cleanup(func() {
		cancel()
		agents.Wait()
	})
	l.control()
	return l
}

// in is the same lab for a test within the test.
func (l *lab) in(t *testing.T) *lab {
	t.Helper()
	inner := *l
	inner.t = t
	return &inner
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// until waits for a condition, whose second result says what holds instead.
func (l *lab) until(what string, condition func() (done bool, instead any)) {
	l.t.Helper()
	cluster.Until(l.ctx, l.t, what, condition)
}

// program builds one of cmd/.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := programs.Build(t.Context(), t.TempDir(), "cmd/"+name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// control runs all controllers as people do.
func (l *lab) control() {
	l.t.Helper()
	log, err := os.Create(filepath.Join(l.t.TempDir(), "log"))
	l.must(err)
	cmd := exec.Command(program(l.t, "machine-config-controller"), "run", "--kubeconfig="+l.Kubeconfig,
		"--leader-elect=false", "--metrics-bind-address=0", "--health-probe-bind-address=0")
	cmd.Stdout, cmd.Stderr = log, log
	l.must(cmd.Start())
	l.t.Cleanup(func() {
		err := cmd.Process.Signal(syscall.SIGTERM)
		if wait := cmd.Wait(); err != nil || wait != nil {
			l.t.Errorf("the controller ended with %v, %v", err, wait)
		}
		text, _ := os.ReadFile(log.Name())
		log.Close()
		if l.t.Failed() || bytes.Contains(text, []byte("panic:")) {
			l.t.Errorf("log of the controller:\n%s", text)
		}
	})
}

// agents play those of all nodes: each is at once where it was told to be.
func (l *lab) agents(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(poll) {
		list, err := l.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil || l.obey.isHeld() {
			continue
		}
		for i := range list.Items {
			n := progress.ReadNode(&list.Items[i])
			if n.Desired == "" || n.Current == n.Desired && n.State == api.Done {
				continue
			}
			patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q,%q:"Done"}}}`, api.CurrentConfig, n.Desired, api.StateKey)
			_, err := l.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			if err != nil && ctx.Err() == nil {
				l.t.Errorf("agent of %s: %v", n.Name, err)
			}
		}
	}
}

// node adds one of a role, ready for good: no node controller runs here.
func (l *lab) node(name, role string) {
	l.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.NodeRole + role: ""}}}
	n, err := l.Client.CoreV1().Nodes().Create(l.ctx, n, metav1.CreateOptions{})
	l.must(err)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	_, err = l.Client.CoreV1().Nodes().UpdateStatus(l.ctx, n, metav1.UpdateOptions{})
	l.must(err)
}

// resources are where the kinds are that people apply.
func resource(kind string) schema.GroupVersionResource {
	switch kind {
	case "ImageDigestMirrorSet":
		return schema.GroupVersionResource{Group: "config.openshift.io", Version: "v1", Resource: "imagedigestmirrorsets"}
	case "MachineConfiguration":
		return schema.GroupVersionResource{Group: "operator.openshift.io", Version: "v1", Resource: "machineconfigurations"}
	}
	return mcfgv1.GroupVersion.WithResource(map[string]string{
		"MachineConfig": "machineconfigs", "MachineConfigPool": "machineconfigpools", "KubeletConfig": "kubeletconfigs",
		"ContainerRuntimeConfig": "containerruntimeconfigs", "ControllerConfig": "controllerconfigs",
	}[kind])
}

// parse reads one object.
func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	raw, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

// apply applies an object as a GitOps tool does, which never takes a field from anybody.
func (l *lab) apply(o *unstructured.Unstructured, options ...metav1.ApplyOptions) *unstructured.Unstructured {
	l.t.Helper()
	how := metav1.ApplyOptions{FieldManager: manager}
	if len(options) > 0 {
		how = options[0]
	}
	out, err := l.dynamic.Resource(resource(o.GetKind())).Apply(l.ctx, o.GetName(), o, how)
	if err != nil {
		l.t.Fatalf("applying %s/%s: %v", o.GetKind(), o.GetName(), err)
	}
	return out
}

func (l *lab) applyText(text string) *unstructured.Unstructured {
	l.t.Helper()
	return l.apply(parse(l.t, text))
}

// get reads an object, nil if there is none.
func (l *lab) get(kind, name string) *unstructured.Unstructured {
	l.t.Helper()
	o, err := l.dynamic.Resource(resource(kind)).Get(l.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	l.must(err)
	return o
}

// verdict is what kstatus reads of an object.
func (l *lab) verdict(o *unstructured.Unstructured) *kstatus.Result {
	l.t.Helper()
	got, err := kstatus.Compute(o)
	l.must(err)
	return got
}

// becomes waits for what kstatus reads of an object.
func (l *lab) becomes(kind, name string, want kstatus.Status) *unstructured.Unstructured {
	l.t.Helper()
	var o *unstructured.Unstructured
	l.until(fmt.Sprintf("%s/%s is %s", kind, name, want), func() (bool, any) {
		o = l.get(kind, name)
		if o == nil {
			return false, "it is not there"
		}
		got := l.verdict(o)
		return got.Status == want, fmt.Sprintf("%s: %s", got.Status, got.Message)
	})
	return o
}

// poolOf has one pool with its nodes' role, whose MachineConfigs have that role too.
func poolText(name string) string {
	return fmt.Sprintf(`
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata:
  name: %[1]s
  labels: {pool: %[1]s}
spec:
  machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: %[1]s}}
  nodeSelector: {matchLabels: {node-role.kubernetes.io/%[1]s: ""}}
`, name)
}

// fileText is a MachineConfig with one file.
func fileText(name, role, path, contents string) string {
	return fmt.Sprintf(`
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: %s
  labels: {machineconfiguration.openshift.io/role: %s}
spec:
  config:
    ignition: {version: 3.4.0}
    storage: {files: [{path: %s, contents: {source: "data:,%s"}}]}
`, name, role, path, contents)
}

func kubeletText(name, pool string, maxPods int) string {
	return fmt.Sprintf(`
apiVersion: machineconfiguration.openshift.io/v1
kind: KubeletConfig
metadata: {name: %s}
spec:
  machineConfigPoolSelector: {matchLabels: {pool: %s}}
  kubeletConfig: {maxPods: %d}
`, name, pool, maxPods)
}
