// SPDX-License-Identifier: Apache-2.0

// Package scale rolls out over many nodes: each is played by kwok, and has the node's real state machine on a host that
// only remembers. Control plane and controllers are real, in processes of their own.
package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	mcclient "github.com/openshift/client-go/machineconfiguration/clientset/versioned"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/daemon"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/kube"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/fakehost"
	"github.com/noderefit/noderefit/test/lab/programs"
	"github.com/noderefit/noderefit/values"
)

// What a host takes for its part. A real one takes minutes; what it costs the cluster does not depend on that.
const (
	stageTime = 200 * time.Millisecond
	bootTime  = time.Second
	proveTime = 200 * time.Millisecond
)

const (
	pool = api.PoolWorker
	// parallel is how many requests prepare the cluster at a time.
	parallel = 32
	poll     = 200 * time.Millisecond
)

// Fleet is a cluster with many nodes.
type Fleet struct {
	*cluster.Cluster

	ctx        context.Context //nolint:containedctx // the fleet lives as long as that
	cancel     context.CancelCauseFunc
	dir        string
	controller *controller
	nodes      []*node
	version    int

	mu    sync.Mutex
	heads sync.WaitGroup // none is added once ctx has ended, which mu sees to

	down, mostDown atomic.Int64
}

// node is one of them: its host, and the head on it.
type node struct {
	name    string
	fleet   *Fleet
	host    *fakehost.Host
	traffic counter
	stop    context.CancelFunc
	ended   chan struct{}
}

// Build builds the controllers into dir and returns the path.
func Build(ctx context.Context, dir string) (string, error) {
	return programs.Build(ctx, dir, "cmd/"+api.Controller)
}

// Start starts a control plane and the controllers, with one pool of which a tenth may be unavailable and no node yet.
// The fleet lives until Close or the end of ctx.
func Start(ctx context.Context, program string) (f *Fleet, err error) {
	// A head that goes down with its machine leaves the client's complaints about it, a thousand times.
	klog.SetLogger(logr.Discard())
	f = &Fleet{}
	f.ctx, f.cancel = context.WithCancelCause(ctx)
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if f.dir, err = os.MkdirTemp("", "noderefit-scale-"); err != nil {
		return f, err
	}
	// Nobody looks at leases, so they need not be renewed often: what they cost is not ours.
	f.Cluster, err = cluster.Start(ctx, cluster.Options{
		Kwok: true, LeaseSeconds: 1200, Dir: filepath.Join(f.dir, "cluster"),
	})
	if err != nil {
		return f, err
	}
	f.MachineConfigs, err = mcclient.NewForConfig(f.Config)
	if err != nil {
		return f, err
	}
	if err := f.furnish(); err != nil {
		return f, err
	}
	f.controller, err = startController(program, f.Kubeconfig, f.dir)
	return f, err
}

// furnish makes what there is besides nodes.
func (f *Fleet) furnish() error {
	_, err := f.Client.CoreV1().Namespaces().Create(f.ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: api.Namespace}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	// Without it no pod is admitted, and there is no controller manager to make it.
	_, err = f.Client.CoreV1().ServiceAccounts("default").Create(f.ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: pool}}
	p.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: pool}}
	p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + pool: ""}}
	tenth := intstr.FromString("10%")
	p.Spec.MaxUnavailable = &tenth
	if _, err := f.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Create(f.ctx, p,
		metav1.CreateOptions{}); err != nil {
		return err
	}
	return f.change()
}

// change writes another version of the pool's one MachineConfig: a file that asks for a reboot, and has the name of its
// node in it, so that figures have what values of nodes cost.
func (f *Fleet) change() error {
	f.version++
	mc := &mcfgv1.MachineConfig{
		ObjectMeta: metav1.ObjectMeta{
			Name: "50-scale", Labels: map[string]string{api.Role: pool},
			Annotations: map[string]string{"noderefit.dev/placeholders": "true"},
		},
		Spec: mcfgv1.MachineConfigSpec{Config: runtime.RawExtension{Raw: fmt.Appendf(nil,
			`{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/scale","contents":{"source":"data:,%d-%s"}}]}}`,
			f.version, "@%7Bhostname:name%7D")}},
	}
	mcs := f.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	_, err := mcs.Create(f.ctx, mc, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		var old *mcfgv1.MachineConfig
		if old, err = mcs.Get(f.ctx, mc.Name, metav1.GetOptions{}); err == nil {
			mc.ResourceVersion = old.ResourceVersion
			_, err = mcs.Update(f.ctx, mc, metav1.UpdateOptions{})
		}
	}
	return err
}

// Grow adds nodes until there are n, each with a pod that has to go before a reboot, and waits until the pool counts
// all of them. They come with the pool's configuration, as machines do that were provisioned with it.
func (f *Fleet) Grow(n int) error {
	if err := f.moved(""); err != nil {
		return err
	}
	mc, err := f.rendered()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(f.ctx)
	group.SetLimit(parallel)
	for i := len(f.nodes); i < n; i++ {
		n := &node{name: fmt.Sprintf("node-%04d", i), fleet: f}
		n.host = fakehost.New(fakehost.Script{
			Delays: map[string]time.Duration{
				fakehost.Stage: stageTime, fakehost.Boot: bootTime, fakehost.Prove: proveTime,
			},
			Gone: n.gone, Back: n.back,
		})
		document, err := json.Marshal(machineconfig.With(mc, n.values()))
		if err != nil {
			return err
		}
		n.host.Commit(n.makes(mc.Name), document)
		f.nodes = append(f.nodes, n)
		group.Go(func() error {
			object := cluster.KwokNode(n.name, map[string]string{api.NodeRole + pool: ""})
			object.Annotations = map[string]string{
				api.CurrentConfig: mc.Name, api.DesiredConfig: mc.Name,
				api.MadeKey:   api.Encode(api.Made{Config: n.makes(mc.Name)}),
				api.ValuesKey: api.Encode(api.ToldValues{Config: mc.Name, Digest: values.Digest(n.values()), Values: n.values()}),
			}
			if _, err := f.Client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
				return err
			}
			return errors.Join(f.place(ctx, n.name), n.start())
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return f.settled()
}

// rendered is the pool's configuration.
func (f *Fleet) rendered() (*mcfgv1.MachineConfig, error) {
	name, err := f.configuration()
	if err != nil {
		return nil, err
	}
	return f.MachineConfigs.MachineconfigurationV1().MachineConfigs().Get(f.ctx, name, metav1.GetOptions{})
}

// values are those of the node that the pool's configuration names.
func (n *node) values() map[string]string { return map[string]string{"name": n.name} }

// makes is the name of what the node makes of a configuration.
func (n *node) makes(config string) string { return api.MadeName(config, values.Digest(n.values())) }

// place puts a pod on a node that nothing brings back.
func (f *Fleet) place(ctx context.Context, on string) error {
	_, err := f.Client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod-" + on},
		Spec: corev1.PodSpec{
			NodeName: on, Containers: []corev1.Container{{Name: "c", Image: "registry.example/app"}},
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// start starts the head, with a client of its own as machine-config-daemon run makes it.
func (n *node) start() error {
	config := rest.CopyConfig(n.fleet.Config)
	config.UserAgent = api.Daemon + "/" + n.name
	config.QPS, config.Burst = 20, 40
	config.Wrap(n.traffic.wrap)
	client, err := kube.New(config)
	if err != nil {
		return err
	}
	head := daemon.NewHead(daemon.HeadOptions{
		Node: n.name, Kube: client, Hands: n.host, Senses: n.host,
		Drainer: &drain.Drainer{Client: client, Node: n.name}, Log: zap.NewNop(),
	})
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	if n.fleet.ctx.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(n.fleet.ctx)
	ended := make(chan struct{})
	n.stop, n.ended = cancel, ended
	n.fleet.heads.Go(func() {
		defer close(ended)
		if err := head.Run(ctx); err != nil {
			n.fleet.cancel(fmt.Errorf("running the head of %s: %w", n.name, err))
		}
	})
	return nil
}

// gone takes the head down with its machine.
func (n *node) gone() {
	n.stop()
	<-n.ended
	down := n.fleet.down.Add(1)
	for most := n.fleet.mostDown.Load(); down > most && !n.fleet.mostDown.CompareAndSwap(most, down); {
		most = n.fleet.mostDown.Load()
	}
}

func (n *node) back() {
	n.fleet.down.Add(-1)
	if err := n.start(); err != nil {
		n.fleet.cancel(fmt.Errorf("starting the head of %s: %w", n.name, err))
	}
}

// settled waits until all nodes have what the pool is to have, and the pool says so.
func (f *Fleet) settled() error {
	var said mcfgv1.MachineConfigPoolStatus
	for {
		p, err := f.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Get(f.ctx, pool, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if done, err := f.done(p); done || err != nil {
			return err
		}
		said = p.Status
		select {
		case <-f.ctx.Done():
			return fmt.Errorf("waiting for %d nodes: %w; the pool has %d, %d updated, %d unavailable, %d degraded: %v",
				len(f.nodes), context.Cause(f.ctx), said.MachineCount, said.UpdatedMachineCount, said.UnavailableMachineCount,
				said.DegradedMachineCount, said.Conditions)
		case <-time.After(poll):
		}
	}
}

// done says that the configuration is that of the present version, and everybody has it.
func (f *Fleet) done(p *mcfgv1.MachineConfigPool) (bool, error) {
	if err := f.controller.Err(); err != nil {
		return false, fmt.Errorf("the controllers have ended: %w", err)
	}
	n, name := int32(len(f.nodes)), p.Spec.Configuration.Name
	if name == "" || p.Status.Configuration.Name != name || p.Status.MachineCount != n ||
		p.Status.UpdatedMachineCount != n || p.Status.ReadyMachineCount != n {
		return false, nil
	}
	for _, n := range f.nodes {
		if n.host.Committed() != n.makes(name) {
			return false, nil
		}
	}
	return true, nil
}

// Rollout is what an update of all nodes took.
type Rollout struct {
	Nodes int
	Wall  time.Duration
	// Traffic is that of all nodes together; Controller what the controllers used meanwhile, with their memory at the
	// end, and how many requests and patches they sent.
	Traffic                   Traffic
	Controller                Usage
	ControllerRequests        int64
	ControllerPatches         int64
	MostDown, Boots, FewBoots int // at a time; of the nodes together; of the node with the fewest
}

// Update changes the pool's MachineConfig and waits until every node has it.
func (f *Fleet) Update() (*Rollout, error) {
	was := map[*node]int{}
	for _, n := range f.nodes {
		if err := f.place(f.ctx, n.name); err != nil {
			return nil, err
		}
		was[n] = n.host.Boots()
		n.traffic.reset()
	}
	f.mostDown.Store(0)
	before, err := UsageOf(f.controller.PID())
	if err != nil {
		return nil, err
	}
	requests, patches, err := f.controller.requests(f.ctx)
	if err != nil {
		return nil, err
	}
	config, err := f.configuration()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := f.change(); err != nil {
		return nil, err
	}
	if err := f.moved(config); err != nil {
		return nil, err
	}
	if err := f.settled(); err != nil {
		return nil, err
	}
	out := &Rollout{Nodes: len(f.nodes), Wall: time.Since(begin), MostDown: int(f.mostDown.Load()), FewBoots: 1 << 30}
	if out.Controller, err = UsageOf(f.controller.PID()); err != nil {
		return nil, err
	}
	out.Controller.CPU -= before.CPU
	allRequests, allPatches, err := f.controller.requests(f.ctx)
	out.ControllerRequests, out.ControllerPatches = allRequests-requests, allPatches-patches
	for _, n := range f.nodes {
		t, boots := n.traffic.read(), n.host.Boots()-was[n]
		out.Traffic.Requests += t.Requests
		out.Traffic.NodePatches += t.NodePatches
		out.Traffic.Bytes += t.Bytes
		out.Traffic.WatchBytes += t.WatchBytes
		out.Boots += boots
		out.FewBoots = min(out.FewBoots, boots)
	}
	return out, err
}

func (f *Fleet) configuration() (string, error) {
	p, err := f.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Get(f.ctx, pool, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return p.Spec.Configuration.Name, nil
}

// moved waits until the pool is to have something else.
func (f *Fleet) moved(from string) error {
	for {
		name, err := f.configuration()
		if err != nil || name != from {
			return err
		}
		select {
		case <-f.ctx.Done():
			return fmt.Errorf("waiting for the pool to leave %s: %w", from, context.Cause(f.ctx))
		case <-time.After(poll):
		}
	}
}

// Close ends everything and leaves nothing.
func (f *Fleet) Close() error {
	f.mu.Lock()
	f.cancel(errors.New("the fleet was closed"))
	f.mu.Unlock()
	f.heads.Wait()
	if f.controller != nil {
		f.controller.Kill()
	}
	var err error
	if f.Cluster != nil {
		err = f.Stop()
	}
	return errors.Join(err, lab.RemoveTree(f.dir))
}
