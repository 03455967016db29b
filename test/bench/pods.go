// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/fleets/pods"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// inPods measures the memory of the agent's pod, as the runtime's cgroup counts it.
func inPods(ctx context.Context, r *report) (err error) {
	if err := lab.ContainersAvailable(); err != nil {
		if os.Getenv("LAB") == "require" {
			return err
		}
		fmt.Fprintln(os.Stderr, "bench: no pod is measured:", err)
		return nil
	}
	base, err := lab.PrepareContainers(ctx, "", os.Stderr)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "noderefit-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.RemoveTree(dir)) }()
	images, err := pods.Serve(ctx, ".", dir)
	if err != nil {
		return err
	}
	defer images.Close()
	if err := images.Build(ctx, "bench", api.Daemon, api.Controller); err != nil {
		return err
	}
	f, err := images.Start(ctx, base, "bench", fleet.Options{Hosts: []string{"pod"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Pool(ctx, api.PoolWorker, "1"); err != nil {
		return err
	}
	return podMemory(ctx, r, f)
}

// podMemory has the pod at rest, and updates its node until the node reboots.
func podMemory(ctx context.Context, r *report, f *fleet.Fleet) error {
	// The first configuration brings the program to the host, and the pod to its ordinary life after a reboot.
	for _, text := range []string{"first", "second"} {
		before, err := f.Configuration(ctx, api.PoolWorker)
		if err != nil {
			return err
		}
		if err := f.Apply(ctx, fmt.Sprintf(`apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 50-pod
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  config:
    ignition: {version: 3.4.0}
    storage:
      files:
      - {path: /etc/pod.conf, mode: 420, overwrite: true, contents: {source: "data:,%s"}}
`, text)); err != nil {
			return err
		}
		after, err := f.Render(ctx, api.PoolWorker, before)
		if err != nil {
			return err
		}
		peak, err := peakUntilBoot(ctx, f)
		if err != nil {
			return err
		}
		if err := f.WaitAt(ctx, after, f.Nodes[0].Name); err != nil {
			return err
		}
		if text == "second" {
			r.figure("pod.update.peak", float64(peak)/1e6, "MB")
		}
	}
	if err := sleep(ctx, restSettle); err != nil {
		return err
	}
	pod, err := agentPod(ctx, f)
	if err != nil {
		return err
	}
	m, err := pods.MemoryOf(ctx, f.Nodes[0], pod.UID)
	if err != nil {
		return err
	}
	r.figure("pod.rest.used", float64(m.Used)/1e6, "MB")
	r.figure("pod.rest.working", float64(m.Working)/1e6, "MB")
	return nil
}

// peakUntilBoot returns the most that the pod used until its node boots.
func peakUntilBoot(ctx context.Context, f *fleet.Fleet) (int64, error) {
	n := f.Nodes[0]
	var peak int64
	for boots := n.Boots(); n.Boots() == boots; {
		// While the pod starts, or the host goes down, there is nothing to read.
		if pod, err := agentPod(ctx, f); err == nil {
			if m, err := pods.MemoryOf(ctx, n, pod.UID); err == nil {
				peak = max(peak, m.Peak)
			}
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return 0, err
		}
	}
	if peak == 0 {
		return 0, errors.New("measuring the pod: it was never seen")
	}
	return peak, nil
}

func agentPod(ctx context.Context, f *fleet.Fleet) (*corev1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: "k8s-app=" + api.Daemon}
	list, err := f.Client.CoreV1().Pods(api.Namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	if len(list.Items) != 1 {
		return nil, fmt.Errorf("looking for the agent's pod: there are %d", len(list.Items))
	}
	return &list.Items[0], nil
}
