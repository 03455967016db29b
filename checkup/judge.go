// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"fmt"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

const install = "install Noderefit, or apply its manifests again"

func judgeVersions(f *facts) (string, []Finding) {
	v := readVersions(f)
	var out []Finding
	for _, s := range v.skews() {
		out = append(out, found(Warning, s.Do, "%s", s))
	}
	return v.String(), out
}

func judgeAdmission(f *facts) (string, []Finding) {
	for what, err := range map[string]error{"the admission policies": f.admission.err, "their bindings": f.bindings.err} {
		if err != nil {
			return "the admission policies", []Finding{unknown(what, err)}
		}
	}
	var out []Finding
	say := func(kind, name, format string, args ...any) {
		out = append(out, found(Failed, install, format, args...).about(kind, "", name))
	}
	const policyKind, bindingKind = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
	for _, name := range api.AdmissionPolicies {
		p, b := f.admission.is[name], f.bindings.is[name]
		switch {
		case p == nil:
			say(policyKind, name, "the policy is missing: %s", withoutPolicy(name))
		case p.Spec.FailurePolicy != nil && *p.Spec.FailurePolicy != admissionv1.Fail:
			say(policyKind, name, "failurePolicy is %s, so the policy lets requests through that it cannot judge",
				*p.Spec.FailurePolicy)
		}
		switch {
		case p == nil && b == nil:
		case b == nil:
			say(bindingKind, name, "the binding is missing, so the policy is not in force: %s", withoutPolicy(name))
		case b.Spec.PolicyName != name:
			say(bindingKind, name, "the binding is for the policy %s", b.Spec.PolicyName)
		case !slices.Contains(b.Spec.ValidationActions, admissionv1.Deny):
			say(bindingKind, name, "the binding does not deny: validationActions is %v", b.Spec.ValidationActions)
		case b.Spec.MatchResources != nil:
			say(bindingKind, name, "the binding is restricted by matchResources, so the policy is not in force everywhere")
		}
	}
	if len(out) > 0 {
		return "admission policies are not in force", out
	}
	return fmt.Sprintf("all %d admission policies are in force", len(api.AdmissionPolicies)), nil
}

func withoutPolicy(name string) string {
	if strings.HasPrefix(name, "readable-") {
		return "the API server takes objects that the controllers cannot read"
	}
	return "the credentials of any node can change objects of others"
}

func judgeController(f *facts) (string, []Finding) {
	d := f.deployment.is
	switch {
	case f.deployment.err != nil:
		return "the controller", []Finding{unknown("the controller", f.deployment.err)}
	case d == nil:
		return "there is no controller", []Finding{found(Failed, install+"; -n names another namespace",
			"there is no controller").about("Deployment", f.namespace, api.Controller)}
	}
	var out []Finding
	wanted := int32(1)
	if d.Spec.Replicas != nil {
		wanted = *d.Spec.Replicas
	}
	says := fmt.Sprintf("%d of %d controllers are ready", d.Status.ReadyReplicas, wanted)
	describe := fmt.Sprintf("kubectl -n %s describe deployment %s", f.namespace, api.Controller)
	say := func(s Severity, format string, args ...any) {
		out = append(out, found(s, describe, format, args...).about("Deployment", f.namespace, api.Controller))
	}
	switch {
	case wanted == 0:
		say(Failed, "the Deployment has no replicas, so no change reaches a node")
	case d.Status.ReadyReplicas == 0:
		say(Failed, "no controller is ready, so no change reaches a node")
	case d.Status.ReadyReplicas < wanted:
		say(Warning, "%d of %d controllers are ready", d.Status.ReadyReplicas, wanted)
	}
	if f.pods.err != nil {
		return says, append(out, unknown("the controller's pods", f.pods.err))
	}
	return says, append(out, podTroubles(f.pods.is, api.Controller, Warning)...)
}

// podTroubles names the pods of a program that do not work, and why.
func podTroubles(pods []corev1.Pod, app string, severity Severity) []Finding {
	var out []Finding
	for i := range pods {
		p := &pods[i]
		if p.Labels["k8s-app"] != app || p.Status.Phase == corev1.PodSucceeded {
			continue
		}
		if text := podTrouble(p); text != "" {
			do := fmt.Sprintf("kubectl -n %s describe pod %s", p.Namespace, p.Name)
			out = append(out, found(severity, do, "%s", text).about("Pod", p.Namespace, p.Name))
		}
	}
	return out
}

// podTrouble is why a pod does not work; empty if the pod works. An image that can't be pulled is named.
func podTrouble(p *corev1.Pod) string {
	for _, s := range p.Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil && pullFailures[w.Reason] {
			return fmt.Sprintf("the image %s cannot be pulled: %s", s.Image, w.Message)
		}
		if l := s.LastTerminationState.Terminated; l != nil && s.State.Waiting != nil {
			return fmt.Sprintf("container %s ended with exit code %d: %s", s.Name, l.ExitCode, l.Message)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "no node takes the pod: " + c.Message
		}
	}
	one := progress.ReadDaemons([]corev1.Pod{*p})
	return one[p.Spec.NodeName].Trouble
}

// leaseGrace is how long past its duration a lease may be before the check calls it stale.
const leaseGrace = 10 * time.Second

func judgeLeader(f *facts) (string, []Finding) {
	const kind = "Lease"
	logs := fmt.Sprintf("see the log of the controllers: kubectl -n %s logs -l k8s-app=%s", f.namespace, api.Controller)
	l := f.lease.is
	if f.lease.err != nil {
		return "the leader", []Finding{unknown("which controller leads", f.lease.err)}
	}
	if l == nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return "no controller leads", []Finding{found(Failed, logs, "no controller leads, so no change reaches a node").
			about(kind, f.namespace, api.Controller)}
	}
	if l.Spec.RenewTime != nil && l.Spec.LeaseDurationSeconds != nil {
		limit := time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second + leaseGrace
		if age := f.now.Sub(l.Spec.RenewTime.Time); age > limit {
			return "no controller leads", []Finding{found(Failed, logs, "the leader %s has not renewed its lease for %s",
				*l.Spec.HolderIdentity, age.Round(time.Second)).about(kind, f.namespace, api.Controller)}
		}
	}
	return *l.Spec.HolderIdentity + " leads", nil
}

func judgeAgents(f *facts) (string, []Finding) {
	for what, err := range map[string]error{"the nodes": f.nodes.err, "the agents' pods": f.pods.err,
		"the pools":             f.pools.err,
		"the agents' DaemonSet": f.daemonSet.err} {
		if err != nil {
			return "the agents", []Finding{unknown(what, err)}
		}
	}
	pods := map[string]*corev1.Pod{}
	for i := range f.pods.is {
		p := &f.pods.is[i]
		if p.Labels["k8s-app"] != api.Daemon {
			continue
		}
		if old := pods[p.Spec.NodeName]; old == nil || podTrouble(old) != "" {
			pods[p.Spec.NodeName] = p
		}
	}
	var out []Finding
	if f.daemonSet.is == nil {
		out = append(out, found(Note, "", "there is no DaemonSet of the agents: the agents have to be services of the hosts").
			about("DaemonSet", f.namespace, api.Daemon))
	}
	states := map[string]*mcfgv1.MachineConfigNode{}
	for i := range f.states.is {
		states[f.states.is[i].Name] = &f.states.is[i]
	}
	members := progress.NewMembership(f.pools.is)
	managed, well := 0, 0
	for i := range f.nodes.is {
		n := &f.nodes.is[i]
		if pool, _ := members.Of(n); pool == "" {
			continue
		}
		managed++
		if finding, ok := judgeAgent(f, n, pods[n.Name], states[n.Name]); ok {
			well++
		} else {
			out = append(out, finding)
		}
	}
	if managed == 0 {
		out = append(out, found(Note, "put nodes into pools: kubectl label node NAME "+api.NodeRole+"worker=",
			"no pool has a node"))
	}
	return fmt.Sprintf("%d of %s in pools report", well, objects(managed, "node")), out
}

const ifItLasts = "check again after some seconds; if the agent still says nothing: "

// judgeAgent judges the agent of a node in a pool. A node that was told nothing yet has nothing to report.
func judgeAgent(f *facts, n *corev1.Node, pod *corev1.Pod, state *mcfgv1.MachineConfigNode) (Finding, bool) {
	about := func(s Severity, do, format string, args ...any) (Finding, bool) {
		return found(s, do, format, args...).about("Node", "", n.Name), false
	}
	told := n.Annotations[api.DesiredConfig]
	service := f.daemonSet.is == nil || !selects(f, n)
	switch {
	case pod == nil && service && n.Annotations[api.StateKey] != "":
		return Finding{}, true // the agent is a service of the host
	case pod == nil && service:
		return about(Failed, "systemctl status machine-config-daemon on the host", "no agent reports from the node, and the "+
			"DaemonSet leaves the node out")
	case pod == nil:
		return about(Failed, fmt.Sprintf("kubectl -n %s describe daemonset %s", f.namespace, api.Daemon),
			"no pod of the agent runs on the node")
	}
	describe := fmt.Sprintf("kubectl -n %s describe pod %s", f.namespace, pod.Name)
	if text := podTrouble(pod); text != "" {
		return about(Failed, describe, "the agent does not run: %s", text)
	}
	logs := fmt.Sprintf("kubectl -n %s logs %s", f.namespace, pod.Name)
	switch {
	case told == "":
		return Finding{}, true
	// A first report follows within a moment: the check may just have come in between.
	case n.Annotations[api.StateKey] == "":
		return about(Warning, ifItLasts+logs, "the node was told %s; its agent has not reported its state yet", told)
	case f.states.err == nil && state == nil:
		return about(Warning, ifItLasts+logs, "the node was told %s; its agent has not made the MachineConfigNode yet", told)
	case state != nil && state.Spec.ConfigVersion.Desired != told:
		return about(Warning, logs, "the agent still reports on %s, and the node was told %s",
			state.Spec.ConfigVersion.Desired, told)
	}
	return Finding{}, true
}

// selects reports whether the DaemonSet is to have a pod on a node.
func selects(f *facts, n *corev1.Node) bool {
	spec := f.daemonSet.is.Spec.Template.Spec
	ok, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: spec}).Match(n)
	return err != nil || ok
}

func judgePolicies(f *facts) (string, []Finding) {
	if f.policies.err != nil {
		return "the RolloutPolicies", []Finding{unknown("the RolloutPolicies", f.policies.err)}
	}
	var out []Finding
	for i := range f.policies.is {
		p := &f.policies.is[i]
		see := "kubectl get rolloutpolicy " + p.Name + " -o yaml"
		say := func(s Severity, format string, args ...any) {
			out = append(out, found(s, see, format, args...).about("RolloutPolicy", "", p.Name))
		}
		ready := meta.FindStatusCondition(p.Status.Conditions, api.RolloutReady)
		switch {
		case ready == nil:
			say(Warning, "no controller has judged the policy")
		case ready.Status != metav1.ConditionTrue:
			say(Failed, "the policy is not in force (%s): %s", ready.Reason, ready.Message)
		case ready.ObservedGeneration != 0 && ready.ObservedGeneration < p.Generation:
			say(Warning, "no controller has judged the latest change of the policy")
		}
		if told := meta.FindStatusCondition(p.Status.Conditions,
			api.RolloutNotified); told != nil && told.Status == metav1.ConditionFalse {
			say(Warning, "notifications are not delivered: %s", told.Message)
		}
	}
	return objects(len(f.policies.is), "RolloutPolicy") + " ready", out
}

// poolTroubles are conditions of a pool that mean that something is wrong, and how much.
var poolTroubles = []struct {
	of       mcfgv1.MachineConfigPoolConditionType
	severity Severity
}{
	{api.PoolQuarantined, Failed},
	{mcfgv1.MachineConfigPoolRenderDegraded, Failed},
	{"Misconfigured", Failed},
	{"WritesRefused", Failed},
	{mcfgv1.MachineConfigPoolNodeDegraded, Warning},
	{api.PoolRenderWarning, Warning},
	{api.PoolDrifted, Warning},
	{mcfgv1.MachineConfigPoolPinnedImageSetsDegraded, Warning},
}

func judgePools(f *facts) (string, []Finding) {
	if f.pools.err != nil {
		return "the pools", []Finding{unknown("the pools", f.pools.err)}
	}
	var out []Finding
	rendered := 0
	for i := range f.pools.is {
		p := &f.pools.is[i]
		explain := "kubectl refit explain pool/" + p.Name
		say := func(s Severity, format string, args ...any) {
			out = append(out, found(s, explain, format, args...).about("MachineConfigPool", "", p.Name))
		}
		pending := condition(p, api.PoolRenderPending)
		switch {
		case p.Spec.Configuration.Name != "":
			rendered++
		case pending != nil && pending.Reason == api.NoMachineConfigs:
			say(Note, "the pool waits for its first MachineConfig")
		default:
			say(Warning, "the pool has no configuration yet")
		}
		for _, t := range poolTroubles {
			if c := condition(p, t.of); c != nil {
				say(t.severity, "%s: %s", t.of, c.Message)
			}
		}
		if p.Status.ObservedGeneration < p.Generation {
			say(Warning, "no controller has seen the latest change of the pool")
		}
	}
	for _, u := range f.unread {
		out = append(out, found(Failed, "correct the field with kubectl edit", "a field cannot be read: %s", u.Problem).
			about(u.GVK.Kind, "", u.Name))
	}
	if len(f.pools.is) == 0 {
		out = append(out, found(Warning, "apply the pools: packaging/kustomize/pools, or pools.create of the chart",
			"there are no MachineConfigPools"))
	}
	return fmt.Sprintf("%d of %s have a configuration", rendered, objects(len(f.pools.is), "pool")), out
}

// condition returns a condition of a pool that is true, or nil.
func condition(p *mcfgv1.MachineConfigPool,
	of mcfgv1.MachineConfigPoolConditionType) *mcfgv1.MachineConfigPoolCondition {
	for i, c := range p.Status.Conditions {
		if c.Type == of && c.Status == corev1.ConditionTrue {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}
