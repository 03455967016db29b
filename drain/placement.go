// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/resource"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// namedNodes is how many nodes a sentence names.
const namedNodes = 3

// Placement returns, in words, whether any of nodes could take pod if pod were not on drained, the node being drained.
// It names how many nodes could, and how many of the others are ruled out by which reason. Each node is counted once,
// by the first of: the pod's node selector, its node affinity, a cordon, a taint, its size. A pod's own rules come
// before a cordon, because uncordoning a node that the pod does not accept is no help.
//
// Placement knows the Node objects alone. Only the scheduler knows the other pods on the nodes, volumes and affinity
// between pods.
func Placement(pod *corev1.Pod, nodes []corev1.Node, drained string) string {
	text, _ := placement(pod, nodes, drained)
	return text
}

// placement returns Placement, and how many nodes could take the pod.
func placement(pod *corev1.Pod, nodes []corev1.Node, drained string) (string, int) {
	var fit []string
	ruled := map[rule][]string{}
	for i := range nodes {
		switch r := ruledOut(pod, &nodes[i], drained); {
		case r == rule{}:
			fit = append(fit, nodes[i].Name)
		case r.kind == cordoned && nodes[i].Name == drained:
			ruled[r] = slices.Insert(ruled[r], 0, drained+", being drained")
		default:
			ruled[r] = append(ruled[r], nodes[i].Name)
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d of %s could take it", len(fit), count(len(nodes), "node"))
	if len(fit) > 0 {
		text.WriteString(" (" + named(fit) + ")")
	}
	rules := slices.SortedFunc(maps.Keys(ruled), func(a, b rule) int {
		if a.kind != b.kind {
			return int(a.kind - b.kind)
		}
		return strings.Compare(a.detail, b.detail)
	})
	for i, r := range rules {
		text.WriteString(separator(i) + r.sentence(ruled[r]))
	}
	return text.String(), len(fit)
}

func separator(i int) string {
	if i == 0 {
		return ": "
	}
	return ", "
}

// kind is the reason that rules out a node, in the order in which a sentence lists the reasons.
type kind int

const (
	none kind = iota
	cordoned
	selector
	affinity
	tainted
	small
)

// rule is the reason that rules out a node. The zero value rules out no node.
type rule struct {
	kind   kind
	detail string
}

func (r rule) sentence(names []string) string {
	n := len(names)
	switch r.kind {
	case cordoned:
		return fmt.Sprintf("%d %s unschedulable (%s)", n, verb(n, "is", "are"), strings.Join(bounded(names), "; "))
	case selector:
		return fmt.Sprintf("%d %s not match the pod's node selector (%s)", n, verb(n, "does", "do"), r.detail)
	case affinity:
		return fmt.Sprintf("%d %s not match the pod's node affinity", n, verb(n, "does", "do"))
	case tainted:
		return fmt.Sprintf("%d %s a taint that the pod does not tolerate (%s)", n, verb(n, "has", "have"), r.detail)
	case small:
		return fmt.Sprintf("%d %s too small for its requests (%s)", n, verb(n, "is", "are"), r.detail)
	case none:
	}
	return ""
}

func ruledOut(pod *corev1.Pod, node *corev1.Node, drained string) rule {
	if !labels.SelectorFromSet(pod.Spec.NodeSelector).Matches(labels.Set(node.Labels)) {
		return rule{selector, selectorText(pod.Spec.NodeSelector)}
	}
	// For the scheduler too, an unreadable affinity matches no node.
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !ok {
		return rule{affinity, ""}
	}
	if (node.Spec.Unschedulable || node.Name == drained) && !tolerates(pod, &cordonTaint) {
		return rule{cordoned, ""}
	}
	hard := func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}
	taint, found := scheduling.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, pod.Spec.Tolerations, hard,
		false)
	if found {
		return rule{tainted, taint.ToString()}
	}
	if lacking := tooSmall(pod, node); lacking != "" {
		return rule{small, lacking}
	}
	return rule{}
}

// cordonTaint is the taint that a pod has to tolerate to get onto cordoned nodes.
var cordonTaint = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

func tolerates(pod *corev1.Pod, taint *corev1.Taint) bool {
	return scheduling.TolerationsTolerateTaint(logr.Discard(), pod.Spec.Tolerations, taint, false)
}

// tooSmall names the resources of which an otherwise empty node has less than the pod requests.
func tooSmall(pod *corev1.Pod, node *corev1.Node) string {
	var lacking []string
	for name, request := range resource.PodRequests(pod, resource.PodResourcesOptions{}) {
		if have := node.Status.Allocatable[name]; !request.IsZero() && have.Cmp(request) < 0 {
			lacking = append(lacking, fmt.Sprintf("%s %s", request.String(), name))
		}
	}
	slices.Sort(lacking)
	return strings.Join(lacking, ", ")
}

func selectorText(want map[string]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if want[key] != "" {
			key += "=" + want[key]
		}
		parts = append(parts, key)
	}
	return strings.Join(parts, ", ")
}

func named(names []string) string { return strings.Join(bounded(names), ", ") }

func bounded(names []string) []string {
	if len(names) <= namedNodes {
		return names
	}
	return append(slices.Clone(names[:namedNodes]), fmt.Sprintf("and %d more", len(names)-namedNodes))
}

func count(n int, noun string) string { return fmt.Sprintf("%d %s", n, verb(n, noun, noun+"s")) }

func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
