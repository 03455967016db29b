// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/fleets/scale"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// sizesOfClusters are those whose figures are compared: per node they are to stay as they are.
var sizesOfClusters = []int{100, 300, 1000}

// growth is how much more one node's part may be in the largest cluster than in the smallest.
const growth = 1.25

// onCluster measures what an update costs a cluster, and what an agent costs that has nothing to do.
func onCluster(ctx context.Context, r *report) error {
	if err := errors.Join(cluster.Available(), lab.RegistryAvailable()); err != nil {
		if os.Getenv("LAB") == "require" {
			return err
		}
		fmt.Fprintln(os.Stderr, "bench: nothing is measured in a cluster:", err)
		return nil
	}
	if err := rollouts(ctx, r); err != nil {
		return err
	}
	if err := lab.Available(); err != nil {
		if os.Getenv("LAB") == "require" {
			return err
		}
		fmt.Fprintln(os.Stderr, "bench: no agent is measured at rest:", err)
		return nil
	}
	if err := atRest(ctx, r); err != nil {
		return err
	}
	return inPods(ctx, r)
}

// rollouts updates one growing cluster, whose pool follows the releases of an OS.
func rollouts(ctx context.Context, r *report) (err error) {
	f, err := scale.Start(ctx, filepath.Join(binDir, api.Controller))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	from, err := follow(ctx, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	var all []*scale.Rollout
	for _, n := range sizesOfClusters {
		if err := f.Grow(n); err != nil {
			return err
		}
		out, err := f.Update()
		if err != nil {
			return err
		}
		rollout(r, out)
		all = append(all, out)
	}
	from.polls(r)
	few, many := all[0], all[len(all)-1]
	flat := func(name string, of func(*scale.Rollout) int64) {
		a, b := perNode(few, of(few)), perNode(many, of(many))
		r.note(b <= a*growth, "cluster."+name, fmt.Sprintf("%.1f a node with %d nodes, %.1f with %d", a, few.Nodes, b,
			many.Nodes), true)
	}
	flat("requests", func(o *scale.Rollout) int64 { return o.Traffic.Requests })
	flat("patches", func(o *scale.Rollout) int64 { return o.Traffic.NodePatches })
	flat("bytes", func(o *scale.Rollout) int64 { return o.Traffic.Bytes })
	flat("watchbytes", func(o *scale.Rollout) int64 { return o.Traffic.WatchBytes })
	flat("controller.patches", func(o *scale.Rollout) int64 { return o.ControllerPatches })
	a, b := perNode(few, few.Controller.CPU.Milliseconds()), perNode(many, many.Controller.CPU.Milliseconds())
	r.note(b <= a*growth, "cluster.controller.cpu", fmt.Sprintf("%.1f ms a node with %d nodes, %.1f ms with %d", a,
		few.Nodes, b, many.Nodes), false)
	return nil
}

func perNode(o *scale.Rollout, n int64) float64 { return float64(n) / float64(o.Nodes) }

func rollout(r *report, o *scale.Rollout) {
	figure := func(name string, value float64, unit string) {
		r.figure(fmt.Sprintf("cluster.%s.%dnodes", name, o.Nodes), value, unit)
	}
	figure("wall", o.Wall.Seconds(), "s")
	figure("requests", perNode(o, o.Traffic.Requests), "requests/node")
	figure("patches", perNode(o, o.Traffic.NodePatches), "patches/node")
	figure("bytes", perNode(o, o.Traffic.Bytes)/1e3, "kB/node")
	figure("watchbytes", perNode(o, o.Traffic.WatchBytes)/1e3, "kB/node")
	figure("controller.requests", perNode(o, o.ControllerRequests), "requests/node")
	figure("controller.patches", perNode(o, o.ControllerPatches), "patches/node")
	figure("controller.cpu", milliseconds(o.Controller.CPU)/float64(o.Nodes), "ms/node")
	figure("controller.rss", float64(o.Controller.RSS)/1e6, "MB")
	figure("controller.own", float64(o.Controller.Own)/1e6, "MB")
	figure("controller.peak", float64(o.Controller.Peak)/1e6, "MB")
}

const (
	// restNodes are the sizes of the cluster around an agent at rest.
	restFew, restMany = 10, 1000
	// restSettle is how long an agent gets to come to rest, restWindow how long it is watched then.
	restSettle, restWindow = 10 * time.Second, 30 * time.Second
	// heartbeat is how often each of the other nodes says something, as kubelets do.
	heartbeat = 10 * time.Second
)

// atRest watches one real agent on one real host in a small cluster and in a large one.
func atRest(ctx context.Context, r *report) (err error) {
	base, err := lab.Prepare(ctx, "", os.Stderr)
	if err != nil {
		return err
	}
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	f, err := fleet.Start(ctx, base, fleet.Options{
		Bin: filepath.Join(here, binDir), Repository: here, Hosts: []string{"rest"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := configure(ctx, f); err != nil {
		return err
	}
	var used []scale.Usage
	for others := 0; len(used) < 2; {
		n := []int{restFew, restMany}[len(used)]
		if err := addOthers(ctx, f, others, n-1); err != nil {
			return err
		}
		others = n - 1
		u, err := rest(ctx, f, others)
		if err != nil {
			return err
		}
		r.figure(fmt.Sprintf("cluster.rest.rss.%dnodes", n), float64(u.RSS)/1e6, "MB")
		r.figure(fmt.Sprintf("cluster.rest.own.%dnodes", n), float64(u.Own)/1e6, "MB")
		r.figure(fmt.Sprintf("cluster.rest.cpu.%dnodes", n), milliseconds(u.CPU)/restWindow.Minutes(), "ms/min")
		used = append(used, u)
	}
	few, many := used[0], used[1]
	r.note(float64(few.RSS) <= maxAtRest*1e6, "cluster.rest.rss",
		fmt.Sprintf("%.1f MB of at most %d", float64(few.RSS)/1e6, maxAtRest), true)
	r.note(float64(many.RSS) <= float64(few.RSS)*growth, "cluster.rest.rss", fmt.Sprintf("%.1f MB in a cluster of %d, "+
		"%.1f MB of %d", float64(few.RSS)/1e6, restFew, float64(many.RSS)/1e6, restMany), true)
	return nil
}

// configure gives the host a configuration and waits until it has it.
func configure(ctx context.Context, f *fleet.Fleet) error {
	if err := f.Pool(ctx, api.PoolWorker, "1"); err != nil {
		return err
	}
	err := f.Apply(ctx, `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 50-rest
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  config:
    ignition: {version: 3.4.0}
    systemd:
      units:
      - {name: rest.service, contents: "[Service]\nExecStart=/bin/true\n"}
`)
	if err != nil {
		return err
	}
	if _, err := f.StartController(ctx); err != nil {
		return err
	}
	if err := f.StartAgents(ctx); err != nil {
		return err
	}
	return f.WaitPool(ctx, api.PoolWorker, "updated", fleet.Updated(1))
}

// addOthers adds nodes that are none of the agent's business.
func addOthers(ctx context.Context, f *fleet.Fleet, from, to int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := from; i < to; i++ {
		group.Go(func() error {
			_, err := f.Client.CoreV1().Nodes().Create(ctx,
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: other(i)}}, metav1.CreateOptions{})
			return err
		})
	}
	return group.Wait()
}

func other(i int) string { return fmt.Sprintf("other-%04d", i) }

// rest measures the agent while the other nodes live on.
func rest(ctx context.Context, f *fleet.Fleet, others int) (scale.Usage, error) {
	ctx, stop := context.WithCancel(ctx)
	var beating sync.WaitGroup
	defer beating.Wait()
	defer stop()
	beating.Go(func() { beat(ctx, f, others) })
	if err := sleep(ctx, restSettle); err != nil {
		return scale.Usage{}, err
	}
	before, err := agentUsage(ctx, f)
	if err != nil {
		return before, err
	}
	if err := sleep(ctx, restWindow); err != nil {
		return before, err
	}
	after, err := agentUsage(ctx, f)
	after.CPU -= before.CPU
	return after, err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// beat has each of the other nodes report now and then. That a report is lost does not matter.
func beat(ctx context.Context, f *fleet.Fleet, others int) {
	tick := time.NewTicker(heartbeat / time.Duration(others))
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			patch := fmt.Sprintf(`{"metadata":{"annotations":{"beat":%q}}}`, now.Format(time.RFC3339Nano))
			_, _ = f.Client.CoreV1().Nodes().Patch(ctx, other(i%others), types.MergePatchType, []byte(patch),
				metav1.PatchOptions{})
		}
	}
}

func agentUsage(ctx context.Context, f *fleet.Fleet) (scale.Usage, error) {
	host := f.Nodes[0]
	pid, err := host.Output(ctx, "systemctl", "show", "--property=MainPID", "--value", api.Daemon+".service")
	if err != nil {
		return scale.Usage{}, err
	}
	proc := "/proc/" + strings.TrimSpace(pid) + "/"
	stat, err := host.Output(ctx, "cat", proc+"stat")
	if err != nil {
		return scale.Usage{}, err
	}
	status, err := host.Output(ctx, "cat", proc+"status")
	if err != nil {
		return scale.Usage{}, err
	}
	return scale.ParseUsage(stat, status)
}
