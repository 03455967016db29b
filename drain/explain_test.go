// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
)

func node(name string, change ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi")}
	for _, f := range change {
		f(&n)
	}
	return n
}

func label(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func cordonedNode(n *corev1.Node) { n.Spec.Unschedulable = true }

func taint(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect}) }
}

func TestPlacementCountsNodesByWhatRulesThemOut(t *testing.T) {
	worker, master := label(api.NodeRole+"worker", ""), label(api.NodeRole+"master", "")
	router := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{api.NodeRole + "worker": ""}}}
	plain := &corev1.Pod{}
	big := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("6"), "nvidia.com/gpu": resource.MustParse("1")}}}}}}
	zoned := &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: api.Zone, Operator: corev1.NodeSelectorOpIn, Values: []string{"east"}}}}}}}}}}
	anywhere := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}}
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		nodes []corev1.Node
		want  string
	}{
		"a router, its worker being drained, and three masters": {
			router,
			[]corev1.Node{
				node("okd-master-01", master), node("okd-master-02", master), node("okd-master-03", master),
				node("okd-worker-01", worker, cordonedNode),
			},
			"0 of 4 nodes could take it: 1 is unschedulable (okd-worker-01, being drained), " +
				"3 do not match the pod's node selector (node-role.kubernetes.io/worker)",
		},
		"before the cordon it is the same": {
			router,
			[]corev1.Node{
				node("okd-master-01", master, taint("x", corev1.TaintEffectNoSchedule)), node("okd-worker-01", worker),
			},
			"0 of 2 nodes could take it: 1 is unschedulable (okd-worker-01, being drained), " +
				"1 does not match the pod's node selector (node-role.kubernetes.io/worker)",
		},
		"room elsewhere": {
			plain, []corev1.Node{node("okd-worker-01"), node("w2"), node("w3"), node("w4"), node("w5"), node("w6")},
			"5 of 6 nodes could take it (w2, w3, w4, and 2 more): 1 is unschedulable (okd-worker-01, being drained)",
		},
		"cordoned by others too": {
			plain, []corev1.Node{node("a", cordonedNode), node("b", cordonedNode), node("okd-worker-01")},
			"0 of 3 nodes could take it: 3 are unschedulable (okd-worker-01, being drained; a; b)",
		},
		"taints": {
			plain,
			[]corev1.Node{
				node("a", taint("infra", corev1.TaintEffectNoSchedule)), node("b", taint("infra", corev1.TaintEffectNoSchedule)),
				node("c", taint("gone", corev1.TaintEffectNoExecute)), node("d", taint("soft", corev1.TaintEffectPreferNoSchedule)),
			},
			"1 of 4 nodes could take it (d): 1 has a taint that the pod does not tolerate (gone:NoExecute), " +
				"2 have a taint that the pod does not tolerate (infra:NoSchedule)",
		},
		"size": {
			big, []corev1.Node{node("a"), node("b")},
			"0 of 2 nodes could take it: 2 are too small for its requests (1 nvidia.com/gpu, 6 cpu)",
		},
		"affinity": {
			zoned, []corev1.Node{node("a", label(api.Zone, "west")), node("b", label(api.Zone, "east"))},
			"1 of 2 nodes could take it (b): 1 does not match the pod's node affinity",
		},
		"what tolerates everything": {
			anywhere, []corev1.Node{node("a", cordonedNode, taint("x", corev1.TaintEffectNoExecute))},
			"1 of 1 node could take it (a)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Placement(c.pod, c.nodes, "okd-worker-01")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestARefusalIsReadFromTheAnswer(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	budget := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	budget.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type:    policyv1.DisruptionBudgetCause,
		Message: "The disruption budget web needs 1 healthy pods and has 1 currently",
	}}
	two := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusInternalServerError,
		Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."}}
	webhook := errors.New(`admission webhook "evictions.example.com" denied the request: not now`)
	busyWebhook := apierrors.NewTooManyRequests(webhook.Error(), 0) // what asks for another try answers so
	policy := apierrors.NewInvalid(schema.GroupKind{Kind: "Eviction"}, "web-0", nil)
	broken := apierrors.NewInternalError(errors.New(`failed calling webhook "evictions.example.com": connection refused`))
	for name, c := range map[string]struct {
		err  error
		want *refusal
	}{
		"evicted": {nil, nil},
		"gone":    {apierrors.NewNotFound(pods, "web-0"), nil},
		"budget": {budget, &refusal{api.DrainWaitBudget, "web",
			"The disruption budget web needs 1 healthy pods and has 1 currently"}},
		"two budgets":      {two, &refusal{api.DrainWaitBudget, "", two.ErrStatus.Message}},
		"webhook":          {apierrors.NewForbidden(pods, "web-0", webhook), &refusal{why: api.DrainWaitRefused}},
		"webhook, later":   {busyWebhook, &refusal{why: api.DrainWaitRefused}},
		"webhook, broken":  {broken, &refusal{why: api.DrainWaitRefused}},
		"policy":           {policy, &refusal{why: api.DrainWaitRefused}},
		"too many clients": {apierrors.NewTooManyRequests("too many requests", 1), &refusal{why: api.DrainWaitError}},
		"another pod":      {apierrors.NewConflict(pods, "web-0", errors.New("UID")), &refusal{why: api.DrainWaitError}},
		"no API server":    {errors.New("connection refused"), &refusal{why: api.DrainWaitError}},
		"etcd away":        {apierrors.NewInternalError(errors.New("etcd")), &refusal{why: api.DrainWaitError}},
	} {
		t.Run(name, func(t *testing.T) {
			got := readRefusal(c.err)
			if c.want != nil && c.want.message == "" {
				c.want.message = c.err.Error()
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(refusal{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// webPod is a running pod of a Deployment.
func webPod(name string, ready bool) *corev1.Pod {
	p := podNamed(name)
	yes, status := true, corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.Labels = map[string]string{"app": "web"}
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "web", Controller: &yes}}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	return p
}

func webBudget(name string, allowed int32) policyv1.PodDisruptionBudget {
	return policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
		Status: policyv1.PodDisruptionBudgetStatus{
			DisruptionsAllowed: allowed, DesiredHealthy: 2, CurrentHealthy: 2 + allowed,
		},
	}
}

func budgets(all ...policyv1.PodDisruptionBudget) []policyv1.PodDisruptionBudget { return all }

func pods(all ...*corev1.Pod) []*corev1.Pod { return all }

func TestAForecastNamesWhatABudgetWillHold(t *testing.T) {
	two := pods(webPod("web-a", true), webPod("web-b", true))
	ending := ending30(webPod("web-c", true))
	finished := webPod("web-d", false)
	finished.Status.Phase = corev1.PodSucceeded
	other := webPod("db", true)
	other.Labels = nil
	starved := webBudget("web", 0)
	starved.Status.CurrentHealthy = 1
	generous := starved
	always := policyv1.AlwaysAllow
	generous.Spec.UnhealthyPodEvictionPolicy = &always
	foreign := webBudget("web", 0)
	foreign.Namespace = "elsewhere"
	nobody := webBudget("web", 0)
	nobody.Spec.Selector = nil
	closed, unready := budgets(webBudget("web", 0)), pods(webPod("web-a", false))
	for name, c := range map[string]struct {
		budgets []policyv1.PodDisruptionBudget
		pods    []*corev1.Pod
		fit     int
		want    []string
	}{
		"nothing allowed":                 {closed, two, 3, []string{"web-a: ", "web-b: "}},
		"enough allowed":                  {budgets(webBudget("web", 2)), two, 0, nil},
		"one at a time, and room":         {budgets(webBudget("web", 1)), two, 1, nil},
		"what is going or finished":       {closed, pods(ending, finished), 0, nil},
		"no budget's":                     {budgets(webBudget("web", 0), foreign, nobody), pods(other), 0, nil},
		"unready, budget met":             {closed, unready, 0, nil},
		"unready, budget not met":         {budgets(starved), unready, 0, []string{"web-a: "}},
		"unready, and always let go":      {budgets(generous), unready, 0, nil},
		"ready, though unready may leave": {budgets(generous), pods(webPod("web-a", true)), 0, []string{"web-a: "}},
		"one at a time, and no room": {
			budgets(webBudget("web", 1)), two, 0,
			[]string{
				"web-a: 2 pods that count against it are on this node, more than it allows to go",
				"web-b: 2 pods that count against it are on this node, more than it allows to go",
			},
		},
		"two budgets": {
			budgets(webBudget("web", 2), webBudget("all", 2)), two[:1], 3,
			[]string{"web-a: more than one disruption budget covers it, which evictions do not support"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			found := holds(c.budgets, c.pods)
			explanations := slices.Repeat([]explained{{fit: c.fit}}, len(found))
			var got []string
			for _, w := range warnings(found, explanations, noon) {
				got = append(got, fmt.Sprintf("%s: %s", w.Name, w.Message))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAnExplanationQuotesTheSchedulerOnTheReplacement(t *testing.T) {
	pending := func(name string, owner types.UID, message string) corev1.Pod {
		p := webPod(name, false)
		p.OwnerReferences[0].UID = owner
		p.Spec.NodeSelector = map[string]string{"new": "selector"}
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: message}}}
		return *p
	}
	space := namespace{
		budgets: []policyv1.PodDisruptionBudget{webBudget("web", 0), webBudget("all", 3)},
		unscheduled: []corev1.Pod{pending("other", "db", "no"), pending("web-b", "web",
			"0/1 nodes are available: 1 node(s) were unschedulable. preemption: 0/1 nodes are available: 1 Preemption.")},
	}
	nodes := []corev1.Node{node("w0")}
	want := explained{
		budgets: "all, web", replacement: "replacement web-b is Pending: 0/1 nodes are available: 1 node(s) were unschedulable",
		placement: "0 of 1 node could take it: 1 does not match the pod's node selector (new=selector)",
	}
	got := explainPod(webPod("web-a", true), space, nodes, "w0")
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(explained{})); diff != "" {
		t.Error(diff)
	}
	space.unscheduled = space.unscheduled[:1]
	want.replacement = ""
	want.placement = "0 of 1 node could take it: 1 is unschedulable (w0, being drained)"
	got = explainPod(webPod("web-a", true), space, nodes, "w0")
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(explained{})); diff != "" {
		t.Error(diff)
	}
}

func TestASentenceSaysWhatHoldsAPod(t *testing.T) {
	w := api.WaitingPod{Namespace: "shop", Name: "web-a", Message: "words"}
	for why, want := range map[string]string{
		api.DrainWaitTerminating: "pod shop/web-a is terminating (words)",
		api.DrainWaitRefused:     "pod shop/web-a was refused eviction (words)",
		api.DrainWaitError:       "pod shop/web-a could not be evicted (words)",
		api.DrainWaitBudget: "pod shop/web-a is held by PodDisruptionBudget web, which allows 0 disruptions now; " +
			"nobody could take it (words)",
	} {
		w.Why = why
		if why == api.DrainWaitBudget {
			w.Budget, w.Placement = "web", "nobody could take it"
		}
		if got := Sentence(w); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		w.Budget, w.Placement = "", ""
	}
}
