// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"context"
	"fmt"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/progress"
)

// view reads all objects for an explanation. What is not known is written as a warning.
func (c *Cluster) view(ctx context.Context) (progress.View, error) {
	v, unknown, err := c.View(ctx)
	for _, text := range unknown {
		c.warn("%s", text)
	}
	return v, err
}

// View reads all objects for an explanation, six lists at once. A list that some users may not read is left out, and
// unknown has a line for it.
func (c *Cluster) View(ctx context.Context) (v progress.View, unknown []string, err error) {
	var exists map[string]bool
	g, inner := errgroup.WithContext(ctx)
	g.Go(func() (err error) { v.Pools, err = c.pools(inner); return err })
	g.Go(func() (err error) { v.Nodes, err = c.nodes(inner); return err })
	var failures [4]error
	g.Go(func() error { v.States, failures[0] = c.states(inner); return nil })
	g.Go(func() error { v.Daemons, failures[1] = c.daemons(inner); return nil })
	g.Go(func() error { exists, failures[2] = c.configs(inner); return nil })
	g.Go(func() error { v.Follow, failures[3] = c.rules(inner); return nil })
	if err := g.Wait(); err != nil {
		return v, nil, err
	}
	for i, what := range []string{
		"the steps of nodes", "whether daemons run", "which configurations exist", "what RolloutPolicies say",
	} {
		if failures[i] != nil {
			unknown = append(unknown, fmt.Sprintf("%s: not known: %s", what, Describe(failures[i])))
		}
	}
	if exists != nil {
		v.Missing = progress.MissingConfigs(v.Pools, v.Nodes, exists)
	}
	return v, unknown, nil
}

func (c *Cluster) nodes(ctx context.Context) ([]corev1.Node, error) {
	all, err := c.kube.CoreV1().Nodes().List(ctx, fromCache)
	if err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	return all.Items, nil
}

// NodesWith returns the names of the nodes with labels. No node is an error.
func (c *Cluster) NodesWith(ctx context.Context, selector labels.Selector) ([]string, error) {
	all, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	if len(all.Items) == 0 {
		return nil, fmt.Errorf("no node has the labels %s", selector)
	}
	names := make([]string, len(all.Items))
	for i := range all.Items {
		names[i] = all.Items[i].Name
	}
	return names, nil
}

func (c *Cluster) states(ctx context.Context) (map[string]*mcfgv1.MachineConfigNode, error) {
	all, err := c.refit.MachineconfigurationV1().MachineConfigNodes().List(ctx, fromCache)
	if err != nil {
		return nil, fmt.Errorf("listing MachineConfigNodes: %w", err)
	}
	states := make(map[string]*mcfgv1.MachineConfigNode, len(all.Items))
	for i := range all.Items {
		states[all.Items[i].Name] = &all.Items[i]
	}
	return states, nil
}

// daemons returns the daemon's pods by node. It is nil where the cluster has no such pods, because the daemon is a
// service of the hosts.
func (c *Cluster) daemons(ctx context.Context) (map[string]progress.Daemon, error) {
	pods, err := c.kube.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "k8s-app=" + api.Daemon, ResourceVersion: fromCache.ResourceVersion,
	})
	if err != nil {
		return nil, fmt.Errorf("listing the daemon's Pods: %w", err)
	}
	if len(pods.Items) == 0 && c.namespace != api.Namespace {
		return nil, fmt.Errorf("namespace %s has none of the daemon's Pods; -n names the namespace of these Pods, and is "+
			"%s where it is left out", c.namespace, api.Namespace)
	}
	return progress.ReadDaemons(pods.Items), nil
}

// configs returns the names of all MachineConfigs. Their contents, which are megabytes, are not read.
func (c *Cluster) configs(ctx context.Context) (map[string]bool, error) {
	resource := mcfgv1.GroupVersion.WithResource("machineconfigs")
	all, err := c.meta.Resource(resource).List(ctx, fromCache)
	if err != nil {
		return nil, fmt.Errorf("listing MachineConfigs: %w", err)
	}
	names := make(map[string]bool, len(all.Items))
	for i := range all.Items {
		names[all.Items[i].Name] = true
	}
	return names, nil
}

// report reads the cluster and makes a report.
func (c *Cluster) report(ctx context.Context) (*progress.Report, error) {
	v, err := c.view(ctx)
	if err != nil {
		return nil, err
	}
	return progress.NewReport(v), nil
}

// drainNow asks the cluster itself what a reported drain of a node would wait for at this moment.
func (c *Cluster) drainNow(ctx context.Context, node string, policy *api.DrainPolicy, reported api.Drain,
) (*api.Drain, error) {
	live, err := (&drain.Drainer{Client: c.drains, Node: node}).Forecast(ctx, policy)
	if err != nil {
		return nil, err
	}
	now := progress.Refresh(reported, live)
	return &now, nil
}
