// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/packaging"
)

const (
	// cleanLabel marks the pods that take the agent from a host.
	cleanLabel = "noderefit.dev/uninstall"
	// cleanTime is how long such a pod may take, with its image. Its kubelet ends it then.
	cleanTime = 4 * time.Minute
	// cleanMost is how many hosts are cleaned at a time.
	cleanMost = 20
)

// removalScript is what such a pod runs in the host's root. The agent's own pod is given time to go: the kubelet has a
// folder of it until then.
const removalScript = `n=0
while [ $n -lt 100 ] && ls -d /var/lib/kubelet/pods/*/containers/machine-config-daemon >/dev/null 2>&1; do
	n=$((n + 1))
	sleep 1
done
(
	set -- purge
%s
)
if [ -e /var/lib/machine-config-daemon ]; then
	exit 1
fi
`

// cleanPod makes the pod that takes the agent from the host of a node, of the agent's own pod: the same rights, and
// nothing more.
func cleanPod(objects []*unstructured.Unstructured, node string) (*corev1.Pod, error) {
	var agents []*unstructured.Unstructured
	if agents = inStage("agents", objects); len(agents) == 0 {
		return nil, errors.New("the release has no agents")
	}
	var ds appsv1.DaemonSet
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(agents[0].Object, &ds); err != nil {
		return nil, fmt.Errorf("reading the release's %s: %w", nameOf(agents[0]), err)
	}
	script, err := packaging.HostRemoval()
	if err != nil {
		return nil, err
	}
	spec := ds.Spec.Template.Spec
	no, deadline, zero := false, int64(cleanTime.Seconds()), int64(0)
	spec.NodeName, spec.NodeSelector, spec.ServiceAccountName = node, nil, ""
	spec.AutomountServiceAccountToken, spec.EnableServiceLinks = &no, &no
	spec.RestartPolicy, spec.ActiveDeadlineSeconds, spec.TerminationGracePeriodSeconds = corev1.RestartPolicyNever,
		&deadline, &zero
	agent := &spec.Containers[0]
	agent.Name, agent.Args, agent.Env, agent.LivenessProbe, agent.Ports = "uninstall", nil, nil, nil, nil
	agent.Command = []string{"chroot", "/rootfs", "/bin/sh", "-c", fmt.Sprintf(removalScript, script)}
	agent.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	spec.Containers = spec.Containers[:1]
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "noderefit-uninstall-", Namespace: api.Namespace,
			Labels: map[string]string{cleanLabel: "", partOfLabel: partOfValue}},
		Spec: spec,
	}, nil
}

// cleanHosts takes the agent from hosts, and its traces from their Nodes. It writes into left why a host was left as it
// is, by node.
func (c *Cluster) cleanHosts(
	ctx context.Context, nodes []corev1.Node, objects []*unstructured.Unstructured, left map[string]string,
) error {
	pods := c.kube.CoreV1().Pods(api.Namespace)
	all := metav1.ListOptions{LabelSelector: cleanLabel}
	sweep := func(ctx context.Context) error {
		now := int64(0)
		if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, all); err != nil {
			return fmt.Errorf("removing the pods of an uninstallation: %w", err)
		}
		return nil
	}
	if err := sweep(ctx); err != nil { // those of a command that was killed
		return err
	}
	var reached []string
	for i := range nodes {
		switch n := &nodes[i]; {
		case !managed(n):
		case !nodeReady(n):
			left[n.Name] = cmp.Or(left[n.Name], "it is not ready")
		default:
			reached = append(reached, n.Name)
		}
	}
	done := 0
	for some := range slices.Chunk(reached, cleanMost) {
		err := c.cleanSome(ctx, some, objects, left)
		err = errors.Join(err, sweep(context.WithoutCancel(ctx)))
		if err != nil {
			return err
		}
		done += len(some)
		c.say("hosts: %d of %d looked after", done, len(reached))
	}
	return nil
}

// cleanSome takes the agent from some hosts, and writes into left what stays.
func (c *Cluster) cleanSome(
	ctx context.Context, nodes []string, objects []*unstructured.Unstructured, left map[string]string,
) error {
	open := map[string]bool{}
	pods := c.kube.CoreV1().Pods(api.Namespace)
	for _, node := range nodes {
		pod, err := cleanPod(objects, node)
		if err != nil {
			return err
		}
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("making a pod that takes the agent from the host of node %s: %w", node, err)
		}
		open[node] = true
	}
	began := time.Now()
	return c.await(ctx, "hosts", func(ctx context.Context) (bool, string, error) {
		list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: cleanLabel})
		if err != nil {
			return false, "", err
		}
		for i := range list.Items {
			p := &list.Items[i]
			if !open[p.Spec.NodeName] {
				continue
			}
			why, ended := cleaned(p)
			if !ended && time.Since(began) > cleanTime+time.Minute {
				why, ended = cmp.Or(why, "pod "+p.Name+" is "+string(p.Status.Phase)), true
			}
			if !ended {
				continue
			}
			if why != "" {
				left[p.Spec.NodeName] = why
			} else if err := c.cleanNode(ctx, p.Spec.NodeName); err != nil {
				return false, "", err
			}
			delete(open, p.Spec.NodeName)
		}
		return len(open) == 0, fmt.Sprintf("%d under way", len(open)), nil
	})
}

// cleaned reports whether a pod has ended, and why it left the host as it is; "": it did not.
func cleaned(p *corev1.Pod) (why string, ended bool) {
	for _, s := range p.Status.ContainerStatuses {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			return cmp.Or(strings.TrimSpace(t.Message), fmt.Sprintf("pod %s: exit code %d", p.Name, t.ExitCode)), true
		}
		if w := s.State.Waiting; w != nil && noImage(w.Reason) {
			return w.Reason + ": " + cmp.Or(w.Message, s.Image), true
		}
	}
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		return "", true
	case corev1.PodFailed:
		return cmp.Or(p.Status.Message, p.Status.Reason, "pod "+p.Name+" failed"), true
	}
	return "", false
}

// noImage reports whether a container waits because its image can't be had.
func noImage(reason string) bool {
	return strings.HasPrefix(reason, "ErrImage") || reason == "ImagePullBackOff" || reason == "InvalidImageName"
}

// cleanNode takes from a Node what Noderefit has written there.
func (c *Cluster) cleanNode(ctx context.Context, name string) error {
	for {
		node, err := c.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil && !clean(node) {
			return nil
		}
		if err == nil {
			_, err = c.kube.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{FieldManager: manager})
		}
		if err == nil || !apierrors.IsConflict(err) {
			return wrap(err, "cleaning Node "+name)
		}
	}
}

func wrap(err error, doing string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}
