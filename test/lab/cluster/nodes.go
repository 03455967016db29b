// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KwokLabel selects the nodes that kwok simulates.
const KwokLabel = kwokKey + "=" + kwokValue

const kwokKey, kwokValue = "kwok.x-k8s.io/node", "fake"

// KwokNode returns a node for kwok to simulate.
func KwokNode(name string, labels map[string]string) *corev1.Node {
	all := map[string]string{kwokKey: kwokValue, corev1.LabelHostname: name, corev1.LabelOSStable: "linux"}
	maps.Copy(all, labels)
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: all}}
}

// KwokNodes returns n such nodes, with the names PREFIX-0 and so on.
func KwokNodes(prefix string, n int, labels map[string]string) []*corev1.Node {
	nodes := make([]*corev1.Node, n)
	for i := range nodes {
		nodes[i] = KwokNode(fmt.Sprintf("%s-%d", prefix, i), labels)
	}
	return nodes
}

// AddNode adds a node that kwok simulates, and waits until the node is ready.
func (c *Cluster) AddNode(ctx context.Context, name string, labels map[string]string) error {
	return c.AddNodes(ctx, KwokNode(name, labels))
}

// AddNodes adds all nodes and then waits until they are ready.
func (c *Cluster) AddNodes(ctx context.Context, nodes ...*corev1.Node) error {
	creating, within := errgroup.WithContext(ctx)
	creating.SetLimit(16)
	for _, node := range nodes {
		creating.Go(func() error {
			if _, err := c.Client.CoreV1().Nodes().Create(within, node, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("adding node %s: %w", node.Name, err)
			}
			return nil
		})
	}
	if err := creating.Wait(); err != nil {
		return err
	}
	for _, node := range nodes {
		if err := c.WaitReady(ctx, node.Name); err != nil {
			return err
		}
	}
	return nil
}

// Ready reports whether a node is ready.
func Ready(n *corev1.Node) bool {
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// WaitReady waits until a node is ready and has none of the taints of Kubernetes that end by themselves.
func (c *Cluster) WaitReady(ctx context.Context, name string) error {
	return c.WaitNode(ctx, name, "ready", func(n *corev1.Node) bool {
		for _, taint := range n.Spec.Taints {
			if strings.HasPrefix(taint.Key, "node.kubernetes.io/") && taint.Key != corev1.TaintNodeUnschedulable {
				return false
			}
		}
		return Ready(n)
	})
}

// WaitNode waits until a node meets the condition. what describes the condition for the error.
func (c *Cluster) WaitNode(ctx context.Context, name, what string, condition func(*corev1.Node) bool) error {
	for {
		node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil && condition(node) {
			return nil
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = fmt.Errorf("conditions %+v, taints %+v", node.Status.Conditions, node.Spec.Taints)
			}
			return fmt.Errorf("waiting for node %s to be %s: %w; at the end: %w", name, what, context.Cause(ctx), err)
		case <-time.After(poll):
		}
	}
}

// Kubectl runs kubectl as the administrator and returns the standard output. An error has the standard error.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (stdout string, err error) {
	cmd, err := c.KubectlCommand(ctx, args...)
	if err != nil {
		return "", err
	}
	var out, errout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errout
	err = cmd.Run()
	if status := new(exec.ExitError); errors.As(err, &status) {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(errout.Bytes()))
	}
	return out.String(), err
}

// KubectlCommand returns the command that Kubectl runs.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) (*exec.Cmd, error) {
	kubebox, err := box()
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, kubebox, append([]string{"kubectl", "--kubeconfig=" + c.Kubeconfig}, args...)...), nil
}
