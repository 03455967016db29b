// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"cmp"
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// behind returns the nodes without a pod of the DaemonSet's present template that works, those that are not ready apart
// from the others.
func behind(pods []corev1.Pod, nodes []corev1.Node, revision string) (absent, missing []string) {
	works := map[string]bool{}
	wanted := map[string]bool{}
	for i := range pods {
		p := &pods[i]
		wanted[p.Spec.NodeName] = true
		if p.Labels[appsv1.ControllerRevisionHashLabelKey] == revision && podReady(p) {
			works[p.Spec.NodeName] = true
		}
	}
	for i := range nodes {
		n := &nodes[i]
		switch {
		case works[n.Name] || !wanted[n.Name]:
		case nodeReady(n):
			missing = append(missing, n.Name)
		default:
			absent = append(absent, n.Name)
		}
	}
	slices.Sort(absent)
	slices.Sort(missing)
	return absent, missing
}

func podReady(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// absent returns the nodes that are not ready and lack a pod of a DaemonSet, which wants that many, and whether no
// other node lacks one: a machine that is off keeps nobody waiting. It is nil where the person may not look.
func (c *Cluster) absent(ctx context.Context, app string, want int64) (nodes []string, alone bool) {
	pods, errPods := c.kube.CoreV1().Pods(api.Namespace).List(ctx, appPods(app))
	all, errNodes := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	revisions, errRevisions := c.kube.AppsV1().ControllerRevisions(api.Namespace).List(ctx, appPods(app))
	if errPods != nil || errNodes != nil || errRevisions != nil || len(revisions.Items) == 0 {
		return nil, false
	}
	latest := slices.MaxFunc(revisions.Items, func(a, b appsv1.ControllerRevision) int {
		return cmp.Compare(a.Revision, b.Revision)
	})
	absent, missing := behind(pods.Items, all.Items, latest.Labels[appsv1.ControllerRevisionHashLabelKey])
	return absent, len(absent) > 0 && len(missing) == 0 && int64(len(pods.Items)) >= want
}
