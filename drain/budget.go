// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/kube"
)

// nodesEvery is how long a list of the cluster's nodes is used. That list is the only request here that grows with the
// cluster, and is only made while a budget blocks.
const nodesEvery = 5 * time.Minute

// explained is the meaning of a refusal by a budget.
type explained struct {
	budgets     string // the names of the budgets that cover the pod
	allowed     int32  // disruptions that the strictest budget allows now
	placement   string // whether any node could take the pod
	fit         int    // how many nodes could take the pod
	replacement string // the pod's replacement without a node, and the scheduler's message
}

// namespace holds the objects of a pod's namespace that an explanation needs.
type namespace struct {
	budgets     []policyv1.PodDisruptionBudget
	unscheduled []corev1.Pod
}

// explainer asks the cluster for the facts of an explanation. Each time, a blocked namespace costs two lists: its
// budgets, and its pods without a node. All namespaces together cost one list of nodes every nodesEvery.
type explainer struct {
	client  *kube.Client
	node    string
	nodes   []corev1.Node
	nodesAt time.Time
}

func (e *explainer) readNodes(ctx context.Context, now time.Time) ([]corev1.Node, error) {
	if !e.nodesAt.IsZero() && now.Sub(e.nodesAt) < nodesEvery {
		return e.nodes, nil
	}
	// The API server's cache answers: an explanation need not be consistent, so etcd is not asked.
	list, err := e.client.Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	for i := range list.Items {
		n := &list.Items[i] // only the fields that placement reads are kept for minutes
		*n = corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}, Spec: n.Spec,
			Status: corev1.NodeStatus{Allocatable: n.Status.Allocatable},
		}
	}
	e.nodes, e.nodesAt = list.Items, now
	return e.nodes, nil
}

func (e *explainer) readBudgets(ctx context.Context, name string) ([]policyv1.PodDisruptionBudget, error) {
	list, err := e.client.Budgets(name).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("listing the disruption budgets of namespace %s: %w", name, err)
	}
	return list.Items, nil
}

func (e *explainer) readUnscheduled(ctx context.Context, name string) ([]corev1.Pod, error) {
	unscheduled := fields.Set{"spec.nodeName": "", "status.phase": string(corev1.PodPending)}.AsSelector().String()
	list, err := e.client.Pods(name).List(ctx, metav1.ListOptions{FieldSelector: unscheduled})
	if err != nil {
		return nil, fmt.Errorf("listing the pods without a node of namespace %s: %w", name, err)
	}
	return list.Items, nil
}

// explain returns, for each pod that a budget refuses, what the refusal means.
func (e *explainer) explain(ctx context.Context, pods []*corev1.Pod, now time.Time) ([]explained, error) {
	nodes, err := e.readNodes(ctx, now)
	if err != nil {
		return nil, err
	}
	spaces := map[string]namespace{}
	out := make([]explained, len(pods))
	for i, pod := range pods {
		space, ok := spaces[pod.Namespace]
		if !ok {
			if space.budgets, err = e.readBudgets(ctx, pod.Namespace); err != nil {
				return nil, err
			}
			if space.unscheduled, err = e.readUnscheduled(ctx, pod.Namespace); err != nil {
				return nil, err
			}
			spaces[pod.Namespace] = space
		}
		out[i] = explainPod(pod, space, nodes, e.node)
	}
	return out, nil
}

// explainPod returns the reason why a budget holds pod. Where the pod's replacement already waits for a node, placement
// is that of the replacement.
func explainPod(pod *corev1.Pod, space namespace, nodes []corev1.Node, drained string) explained {
	covering := covers(space.budgets, pod)
	var x explained
	names := make([]string, 0, len(covering))
	for i, b := range covering {
		names = append(names, b.Name)
		if i == 0 || b.Status.DisruptionsAllowed < x.allowed {
			x.allowed = b.Status.DisruptionsAllowed
		}
	}
	slices.Sort(names)
	x.budgets = strings.Join(names, ", ")
	asked := pod
	if replacement, words := replacementOf(pod, space.unscheduled); replacement != nil {
		asked = replacement
		x.replacement = fmt.Sprintf("replacement %s is Pending: %s", replacement.Name, words)
	}
	x.placement, x.fit = placement(asked, nodes, drained)
	return x
}

// replacementOf returns the pod of the same controller without a node, and the scheduler's message.
func replacementOf(pod *corev1.Pod, unscheduled []corev1.Pod) (*corev1.Pod, string) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return nil, ""
	}
	for i := range unscheduled {
		other := metav1.GetControllerOf(&unscheduled[i])
		if other == nil || other.UID != owner.UID {
			continue
		}
		for _, c := range unscheduled[i].Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
				return &unscheduled[i], firstSentence(c.Message)
			}
		}
	}
	return nil, ""
}

// firstSentence returns the part of the scheduler's message that rules out the nodes. The rest is about preemption.
func firstSentence(message string) string {
	first, _, _ := strings.Cut(message, ". ")
	return strings.TrimSuffix(first, ".")
}

// covers returns the budgets whose selector matches pod.
func covers(budgets []policyv1.PodDisruptionBudget, pod *corev1.Pod) []*policyv1.PodDisruptionBudget {
	var out []*policyv1.PodDisruptionBudget
	for i := range budgets {
		selector, err := metav1.LabelSelectorAsSelector(budgets[i].Spec.Selector)
		if err == nil && budgets[i].Namespace == pod.Namespace && selector.Matches(labels.Set(pod.Labels)) {
			out = append(out, &budgets[i])
		}
	}
	return out
}

// counts reports whether the budget decides on the eviction of pod, as the API server would decide it.
func counts(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodUnknown {
		return false
	}
	ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	if ready {
		return true
	}
	if policy := b.Spec.UnhealthyPodEvictionPolicy; policy != nil && *policy == policyv1.AlwaysAllow {
		return false
	}
	return b.Status.DesiredHealthy == 0 || b.Status.CurrentHealthy < b.Status.DesiredHealthy
}
