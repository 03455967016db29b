// SPDX-License-Identifier: Apache-2.0

// Package operators tests the built controllers and real heads against two operators that expect OpenShift's pools: the
// SR-IOV network operator and the node tuning operator. Clients of this package make the operators' calls, in the
// operators' order, with the client library that both use. Nodes are simulated by kwok, and their hosts are played.
package operators

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/daemon"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/kube"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/fakehost"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// suite has the control plane of all tests. The controller manager collects what an operator's object has owned.
var suite = cluster.Suite{Options: cluster.Options{
	Controllers: true, Kwok: true, GracePeriod: 2 * time.Minute,
}}

// controllers is the process of machine-config-controller.
var controllers struct {
	child *cluster.Child
	log   string
}

func TestMain(m *testing.M) { os.Exit(main(m)) }

func main(m *testing.M) int {
	suite.Prepare = prepare
	defer func() {
		if controllers.child != nil {
			controllers.child.Kill()
		}
	}()
	return suite.Main(m)
}

// prepare starts the controllers as an installation does, and makes pool worker with its MachineConfigs.
func prepare(ctx context.Context, c *cluster.Cluster) error {
	program, err := programs.Build(ctx, suite.Dir(), "cmd/"+api.Controller)
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(suite.Dir(), "controller.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(program, "run", "--kubeconfig="+c.Kubeconfig, "--leader-elect=false",
		"--metrics-bind-address=0", "--health-probe-bind-address=0")
	cmd.Stdout, cmd.Stderr = log, log
	controllers.log = log.Name()
	if controllers.child, err = cluster.StartChild(cmd); err != nil {
		return err
	}
	cl, err := newClient(c)
	if err != nil {
		return err
	}
	for _, o := range []client.Object{
		pool(api.PoolWorker),
		config("00-worker", api.PoolWorker, `{"ignition":{"version":"3.4.0"}}`),
		config("01-worker-kubelet", api.PoolWorker, baseKubelet),
	} {
		if err := cl.Create(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func newClient(c *cluster.Cluster) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := mcfgv1.Install(scheme); err != nil {
		return nil, err
	}
	return client.New(c.Config, client.Options{Scheme: scheme})
}

// pool returns a pool as both operators' documentation has people make one: a custom pool selects the MachineConfigs of
// worker too, and has its role as a label.
func pool(name string) *mcfgv1.MachineConfigPool {
	p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.Role: name}}}
	p.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: api.Role, Operator: metav1.LabelSelectorOpIn, Values: slices.Compact([]string{api.PoolWorker, name}),
	}}}
	p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + name: ""}}
	return p
}

func config(name, role, ignition string) *mcfgv1.MachineConfig {
	return &mcfgv1.MachineConfig{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.Role: role}},
		Spec:       mcfgv1.MachineConfigSpec{Config: runtime.RawExtension{Raw: []byte(ignition)}},
	}
}

// file returns Ignition with one file. data is what comes after "data:" in a data URL.
func file(path, data string) string {
	return fmt.Sprintf(`{"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":%q,"contents":{"source":"data:%s"}}]}}`,
		path, data)
}

// lab is what a test works with: a pool of its own, with nodes of its own.
type lab struct {
	*cluster.Cluster
	client.Client

	t     *testing.T
	ctx   context.Context //nolint:containedctx // of the test that the lab is for
	pool  string
	hosts map[string]*fakehost.Host
}

// newLab makes a pool with nodes, which join with the pool's configuration as machines do that the server provisioned.
func newLab(t *testing.T, name string, nodes ...string) *lab {
	t.Helper()
	c := suite.Cluster(t)
	l := &lab{Cluster: c, t: t, ctx: cluster.UntilTheEnd(t), pool: name, hosts: map[string]*fakehost.Host{}}
	var err error
	l.Client, err = newClient(c)
	l.must(err)
	t.Cleanup(func() {
		if text, err := os.ReadFile(controllers.log); err != nil || strings.Contains(string(text), "panic:") || t.Failed() {
			t.Logf("log of the controllers (%v):\n%s", err, text)
		}
	})
	l.add(pool(name))
	var rendered string
	l.until("the pool has a configuration", func() (bool, any) {
		p := l.getPool()
		rendered = p.Spec.Configuration.Name
		return rendered != "", p.Status.Conditions
	})
	mc := &mcfgv1.MachineConfig{}
	l.must(l.Get(l.ctx, client.ObjectKey{Name: rendered}, mc))
	mc.TypeMeta = metav1.TypeMeta{APIVersion: mcfgv1.GroupVersion.String(), Kind: "MachineConfig"}
	document, err := json.Marshal(mc)
	l.must(err)
	for _, node := range nodes {
		l.join(node, rendered, document)
	}
	l.updated(rendered)
	return l
}

// in returns the lab for a test within the test.
func (l *lab) in(t *testing.T) *lab {
	t.Helper()
	inner := *l
	inner.t = t
	return &inner
}

// add creates an object that goes with the test.
func (l *lab) add(o client.Object) {
	l.t.Helper()
	l.must(l.Create(l.ctx, o))
	l.t.Cleanup(func() { l.must(client.IgnoreNotFound(l.Delete(context.WithoutCancel(l.ctx), o))) })
}

// join adds a node with a head that runs as long as the test.
func (l *lab) join(name, rendered string, document []byte) {
	l.t.Helper()
	host := fakehost.New(fakehost.Script{})
	host.Commit(rendered, document)
	l.hosts[name] = host
	node := cluster.KwokNode(name, map[string]string{api.NodeRole + l.pool: "", api.NodeRole + api.PoolWorker: ""})
	node.Annotations = map[string]string{api.CurrentConfig: rendered, api.DesiredConfig: rendered}
	l.must(l.AddNodes(l.ctx, node))
	agents, err := kube.New(l.Config)
	l.must(err)
	head := daemon.NewHead(daemon.HeadOptions{
		Node: name, Kube: agents, Hands: host, Senses: host,
		Drainer: &drain.Drainer{Client: agents, Node: name}, Log: zap.NewNop(),
	})
	ctx, stop := context.WithCancel(context.WithoutCancel(l.ctx))
	var running sync.WaitGroup
	running.Go(func() {
		if err := head.Run(ctx); err != nil {
			l.t.Errorf("head of %s: %v", name, err)
		}
	})
	l.t.Cleanup(func() {
		stop()
		running.Wait()
		l.must(client.IgnoreNotFound(l.Delete(context.WithoutCancel(l.ctx), node)))
	})
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

func (l *lab) getPool() *mcfgv1.MachineConfigPool {
	l.t.Helper()
	p := &mcfgv1.MachineConfigPool{}
	l.must(l.Get(l.ctx, client.ObjectKey{Name: l.pool}, p))
	return p
}

func (l *lab) getNode(name string) *corev1.Node {
	l.t.Helper()
	n := &corev1.Node{}
	l.must(l.Get(l.ctx, client.ObjectKey{Name: name}, n))
	return n
}

// condition returns the status of a pool's condition as the operators read it, Unknown for one that is not there.
func condition(p *mcfgv1.MachineConfigPool, kind mcfgv1.MachineConfigPoolConditionType) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

// conditions returns what operators read of a pool's conditions, in one line.
func conditions(p *mcfgv1.MachineConfigPool) string {
	var said []string
	for _, kind := range []mcfgv1.MachineConfigPoolConditionType{
		mcfgv1.MachineConfigPoolUpdated, mcfgv1.MachineConfigPoolUpdating, mcfgv1.MachineConfigPoolDegraded,
		mcfgv1.MachineConfigPoolNodeDegraded, mcfgv1.MachineConfigPoolRenderDegraded,
	} {
		said = append(said, fmt.Sprintf("%s=%s", kind, condition(p, kind)))
	}
	return strings.Join(said, " ")
}

const (
	atRest   = "Updated=True Updating=False Degraded=False NodeDegraded=False RenderDegraded=False"
	updating = "Updated=False Updating=True Degraded=False NodeDegraded=False RenderDegraded=False"
)

// updated waits until all nodes have a configuration, by all that operators read of it.
func (l *lab) updated(config string) {
	l.t.Helper()
	n := int32(len(l.hosts))
	l.until("all nodes have "+config, func() (bool, any) {
		p := l.getPool()
		s := p.Status
		return p.Spec.Configuration.Name == config && s.Configuration.Name == config && conditions(p) == atRest &&
			s.MachineCount == n && s.UpdatedMachineCount == n && s.ReadyMachineCount == n &&
			s.UnavailableMachineCount == 0 && s.DegradedMachineCount == 0, s
	})
	for name := range l.hosts {
		l.until("node "+name+" has "+config, func() (bool, any) {
			a := l.getNode(name).Annotations
			return a[api.CurrentConfig] == config && a[api.DesiredConfig] == config && a[api.StateKey] == string(api.Done) &&
				a[api.DesiredDrain] == a[api.LastAppliedDrain], a
		})
	}
}

// pickedUp waits until a MachineConfig is part of the pool's desired configuration, and returns that one's name.
func (l *lab) pickedUp(config string) string {
	l.t.Helper()
	var name string
	l.until("the pool has picked up "+config, func() (bool, any) {
		p := l.getPool()
		name = p.Spec.Configuration.Name
		return has(p.Spec.Configuration, config), p.Spec.Configuration.Source
	})
	return name
}

// has reports whether a MachineConfig is among the sources of a configuration, as a complete reference.
func has(c mcfgv1.MachineConfigPoolStatusConfiguration, name string) bool {
	return slices.ContainsFunc(c.Source, func(o corev1.ObjectReference) bool {
		return o.Name == name && o.Kind == "MachineConfig" && o.APIVersion == mcfgv1.GroupVersion.String()
	})
}

// moved waits until the pool is to have another configuration than its nodes have.
func (l *lab) moved(from string) (to string) {
	l.t.Helper()
	l.until("the pool is to leave "+from, func() (bool, any) {
		p := l.getPool()
		to = p.Spec.Configuration.Name
		return to != from && p.Status.Configuration.Name == from, p.Spec.Configuration
	})
	return to
}

// annotate writes an annotation as both operators do: a merge patch against the object that it has read.
func (l *lab) annotate(o client.Object, key, value string) {
	l.t.Helper()
	old, _ := o.DeepCopyObject().(client.Object)
	all := maps.Clone(o.GetAnnotations())
	if all == nil {
		all = map[string]string{}
	}
	all[key] = value
	o.SetAnnotations(all)
	l.must(l.Patch(l.ctx, o, client.MergeFrom(old)))
}

// holdUpdates has all hosts wait before they have applied a configuration, until the returned function is called.
func (l *lab) holdUpdates() (let func()) {
	l.t.Helper()
	held := make(chan struct{})
	let = sync.OnceFunc(func() { close(held) })
	l.t.Cleanup(let)
	for _, host := range l.hosts {
		host.Change(func(s *fakehost.Script) {
			s.Fault = func(operation, _ string) error {
				if operation == fakehost.Apply {
					<-held
				}
				return nil
			}
		})
	}
	return let
}

// gone reports whether an object is not there.
func (l *lab) gone(o client.Object, name string) bool {
	l.t.Helper()
	err := l.Get(l.ctx, client.ObjectKey{Name: name}, o)
	l.must(client.IgnoreNotFound(err))
	return apierrors.IsNotFound(err)
}
