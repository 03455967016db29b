// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"fmt"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// alarm is one reason for an alert: the object, what is wrong with it, and since when, where that is known.
type alarm struct {
	kind, namespace, name, says string
	since                       time.Time
}

// alert is an alert of packaging/alerts/noderefit.rules.yaml.
type alert struct {
	name string
	// lasts is the time for which the cause has to last.
	lasts time.Duration
	// judge finds the causes in objects. It is nil for an alert that only Prometheus can judge.
	judge func(f *facts) []alarm
	// needs are the errors of what judge looks at.
	needs func(f *facts) []error
}

// alerts has each alert once. The metrics behind them are made of the same objects.
var alerts = []alert{
	{"NoderefitNodeRolledBack", 0, nodeStates(api.RolledBack), ofNodes},
	{"NoderefitPoolStopped", 0, poolCondition(api.PoolQuarantined), ofPools},
	{"NoderefitNodeDegraded", 10 * time.Minute, nodeStates(api.Degraded, api.Unreconcilable), ofNodes},
	{"NoderefitRolloutStuck", 0, nil, nil},
	{"NoderefitRebootFailed", time.Minute, rebootsFailed, ofNodes},
	{"NoderefitRebootWanted", 7 * 24 * time.Hour, rebootsWanted, ofNodes},
	{"NoderefitRolloutHeld", 10 * time.Minute, poolHeld, ofPools},
	{"NoderefitNotificationsFail", 30 * time.Minute, notificationsFail,
		func(f *facts) []error { return []error{f.policies.err} }},
	{"NoderefitReleaseSourceAway", time.Hour, sourcesAway, func(f *facts) []error { return []error{f.streams.err} }},
	{"NoderefitPoolPausedForLong", 0, nil, nil},
	{"NoderefitRenderDegraded", 10 * time.Minute, poolCondition(mcfgv1.MachineConfigPoolRenderDegraded), ofPools},
	{"NoderefitRenderPending", 30 * time.Minute, poolPending, ofPools},
	{"NoderefitPoolMisconfigured", 10 * time.Minute, poolCondition("Misconfigured"), ofPools},
	{"NoderefitObjectUnreadable", 0, unreadable, ofPools},
	{"NoderefitNodeOverdue", 5 * time.Minute, overdue, ofNodes},
	{"NoderefitPoliciesMissing", 0, policiesMissing, func(f *facts) []error {
		return []error{f.admission.err,
			f.bindings.err}
	}},
	{"NoderefitDefinitionMissing", 0, definitionsMissing, func(f *facts) []error { return []error{f.definitions.err} }},
	{"NoderefitWatchFails", 0, nil, nil},
	{"NoderefitControllerDown", 15 * time.Minute, controllerDown,
		func(f *facts) []error { return []error{f.deployment.err} }},
	{"MCCDrainError", time.Hour, drainsWait, func(f *facts) []error { return []error{f.states.err} }},
	{"NoderefitDrainHeld", 5 * time.Minute, drainsHeld, ofNodes},
	{"MCDRebootError", 0, nil, nil},
	{"KubeletHealthState", 7 * time.Minute, notReady, ofNodes},
	{"NoderefitConfigDrift", time.Hour, drifted, ofNodes},
	{"NoderefitCertificatesUndelivered", 15 * time.Minute, undelivered, ofNodes},
	{"NoderefitDriftComesBack", 0, nil, nil},
	{"NoderefitPhaseFails", 0, nil, nil},
	{"NoderefitDaemonDown", 15 * time.Minute, podsDown(api.Daemon), ofPods},
	{"NoderefitServerFails", 0, nil, nil},
	{"NoderefitServerDown", 15 * time.Minute, podsDown(serverName), ofPods},
	{"NoderefitServerCertificateEnds", 0, nil, nil},
}

func ofNodes(f *facts) []error { return []error{f.nodes.err, f.pools.err} }
func ofPools(f *facts) []error { return []error{f.pools.err} }
func ofPods(f *facts) []error  { return []error{f.pods.err} }

// judgeAlerts names the alerts that would fire, and those that the cluster's objects do not tell.
func judgeAlerts(f *facts) (string, []Finding) {
	var out []Finding
	var elsewhere, unjudged []string
	firing := map[string]bool{}
	for _, a := range alerts {
		if a.judge == nil {
			elsewhere = append(elsewhere, a.name)
			continue
		}
		if slices.ContainsFunc(a.needs(f), func(err error) bool { return err != nil }) {
			unjudged = append(unjudged, a.name)
			continue
		}
		for _, cause := range a.judge(f) {
			age := f.now.Sub(cause.since)
			severity, tense := Warning, "would fire"
			if !cause.since.IsZero() && age < a.lasts {
				severity, tense = Note, fmt.Sprintf("would fire in %s", (a.lasts-age).Round(time.Second))
			} else {
				firing[a.name] = true
			}
			out = append(out, found(severity, a.do(cause), "%s %s: %s", a.name, tense, cause.says).
				about(cause.kind, cause.namespace, cause.name))
		}
	}
	if len(unjudged) > 0 {
		out = append(out, found(Note, "", "not judged, as their objects cannot be read: %s", strings.Join(unjudged, ", ")))
	}
	return fmt.Sprintf("%s would fire; only Prometheus judges %s", objects(len(firing), "alert"),
		strings.Join(elsewhere, ", ")), out
}

func (a alert) do(cause alarm) string {
	switch cause.kind {
	case "Node", "MachineConfigNode":
		return "kubectl refit explain node/" + cause.name
	case "MachineConfigPool":
		return "kubectl refit explain pool/" + cause.name
	case "OSStream":
		return "kubectl refit streams " + cause.name
	}
	return "see the check of the same object above"
}

// managed calls a function for each node of a pool.
func managed(f *facts, do func(n *corev1.Node, pool string)) {
	members := progress.NewMembership(f.pools.is)
	for i := range f.nodes.is {
		if pool, _ := members.Of(&f.nodes.is[i]); pool != "" {
			do(&f.nodes.is[i], pool)
		}
	}
}

func nodeStates(states ...api.State) func(f *facts) []alarm {
	return func(f *facts) (out []alarm) {
		managed(f, func(n *corev1.Node, _ string) {
			if state := api.State(n.Annotations[api.StateKey]); slices.Contains(states, state) {
				out = append(out, alarm{"Node", "", n.Name, string(state) + ": " + n.Annotations[api.Reason], time.Time{}})
			}
		})
		return out
	}
}

func rebootsFailed(f *facts) (out []alarm) {
	managed(f, func(n *corev1.Node, _ string) {
		read := progress.ReadNode(n)
		if why, since := read.RebootFailure(); !since.IsZero() {
			out = append(out, alarm{"Node", "", n.Name, why, since})
		}
	})
	return out
}

// rebootsWanted leaves out a committed configuration that waits for its reboot, as the alert does.
func rebootsWanted(f *facts) (out []alarm) {
	managed(f, func(n *corev1.Node, _ string) {
		wanted := progress.ReadNode(n).RebootWanted
		if wanted == nil {
			return
		}
		for _, r := range wanted.Reasons {
			if r.Kind != api.RebootConfiguration {
				out = append(out, alarm{"Node", "", n.Name, "the host wants a reboot: " + r.Message, r.Since})
			}
		}
	})
	return out
}

func poolCondition(of mcfgv1.MachineConfigPoolConditionType) func(f *facts) []alarm {
	return func(f *facts) (out []alarm) {
		for i := range f.pools.is {
			if c := condition(&f.pools.is[i], of); c != nil {
				out = append(out, alarm{"MachineConfigPool", "", f.pools.is[i].Name, c.Message, c.LastTransitionTime.Time})
			}
		}
		return out
	}
}

func poolHeld(f *facts) (out []alarm) {
	for i := range f.pools.is {
		c := condition(&f.pools.is[i], "Held")
		if c == nil {
			continue
		}
		switch progress.Verdict(c.Reason) {
		case progress.FailureBudget, progress.GateFailed, progress.PolicyUnusable, progress.EtcdUnhealthy:
			out = append(out, alarm{"MachineConfigPool", "", f.pools.is[i].Name, c.Message, c.LastTransitionTime.Time})
		}
	}
	return out
}

func poolPending(f *facts) (out []alarm) {
	for _, a := range poolCondition(api.PoolRenderPending)(f) {
		i := slices.IndexFunc(f.pools.is, func(p mcfgv1.MachineConfigPool) bool { return p.Name == a.name })
		if condition(&f.pools.is[i], api.PoolRenderPending).Reason != api.NoMachineConfigs {
			out = append(out, a)
		}
	}
	return out
}

func notificationsFail(f *facts) (out []alarm) {
	for i := range f.policies.is {
		p := &f.policies.is[i]
		if c := meta.FindStatusCondition(p.Status.Conditions,
			api.RolloutNotified); c != nil && c.Status == metav1.ConditionFalse {
			out = append(out, alarm{"RolloutPolicy", "", p.Name, c.Message, c.LastTransitionTime.Time})
		}
	}
	return out
}

func sourcesAway(f *facts) (out []alarm) {
	for i := range f.streams.is {
		s := &f.streams.is[i]
		c := meta.FindStatusCondition(s.Status.Conditions, api.StreamSource)
		if c != nil && c.Status == metav1.ConditionFalse {
			out = append(out, alarm{"OSStream", "", s.Name, c.Message, c.LastTransitionTime.Time})
		}
	}
	return out
}

func unreadable(f *facts) (out []alarm) {
	for _, u := range f.unread {
		out = append(out, alarm{u.GVK.Kind, "", u.Name, u.Problem, time.Time{}})
	}
	return out
}

func overdue(f *facts) (out []alarm) {
	managed(f, func(n *corev1.Node, _ string) {
		if read := progress.ReadNode(n); read.Overdue() {
			out = append(out, alarm{"Node", "", n.Name, read.OverdueText(), read.Awaited.Overdue})
		}
	})
	return out
}

func policiesMissing(f *facts) (out []alarm) {
	for _, name := range api.AdmissionPolicies {
		if f.admission.is[name] == nil || f.bindings.is[name] == nil {
			out = append(out, alarm{"ValidatingAdmissionPolicy", "", name, "the policy or its binding is missing", time.Time{}})
		}
	}
	return out
}

func definitionsMissing(f *facts) (out []alarm) {
	for _, name := range sortedNames(ownDefinitions()) {
		if f.definitions.is[name] == nil {
			out = append(out, alarm{"CustomResourceDefinition", "", name, "the definition is missing", time.Time{}})
		}
	}
	return out
}

func controllerDown(f *facts) []alarm {
	if d := f.deployment.is; d == nil || d.Status.ReadyReplicas == 0 {
		var since time.Time
		if d != nil {
			for _, c := range d.Status.Conditions {
				if c.Type == "Available" {
					since = c.LastTransitionTime.Time
				}
			}
		}
		return []alarm{{"Deployment", f.namespace, api.Controller, "no controller is ready", since}}
	}
	return nil
}

func drainsWait(f *facts) (out []alarm) {
	for i := range f.states.is {
		s := &f.states.is[i]
		d, err := api.Decode[*api.Drain](s.Annotations, api.DrainKey)
		if err == nil && d != nil && len(d.Waiting) > 0 {
			out = append(out, alarm{"MachineConfigNode", "", s.Name, fmt.Sprintf("the drain waits for %s", objects(d.Left,
				"pod")), d.Since})
		}
	}
	return out
}

func drainsHeld(f *facts) (out []alarm) {
	managed(f, func(n *corev1.Node, _ string) {
		held, err := api.Decode[*api.DrainHold](n.Annotations, api.DrainHeldKey)
		if err == nil && held != nil && held.Until.After(f.now) {
			out = append(out, alarm{"Node", "", n.Name, "the drain was given up: " + held.Why, held.Since})
		}
	})
	return out
}

func notReady(f *facts) (out []alarm) {
	managed(f, func(n *corev1.Node, _ string) {
		if read := progress.ReadNode(n); read.Dead() {
			out = append(out, alarm{"Node", "", n.Name, read.NotReady, read.NotReadySince})
		}
	})
	return out
}

func drifted(f *facts) (out []alarm) {
	managed(f, func(n *corev1.Node, _ string) {
		d, err := api.Decode[*api.Drift](n.Annotations, api.DriftKey)
		if err != nil || d == nil || len(d.Items) == 0 {
			return
		}
		since := d.Items[0].Since
		for _, i := range d.Items {
			if i.Since.Before(since) {
				since = i.Since
			}
		}
		out = append(out, alarm{"Node", "", n.Name, objects(len(d.Items)+d.More,
			"thing") + " on the host differ from its configuration", since})
	})
	return out
}

func undelivered(f *facts) (out []alarm) {
	managed(f, func(n *corev1.Node, _ string) {
		u, err := api.Decode[*api.Undelivered](n.Annotations, api.UndeliveredKey)
		if err == nil && u != nil {
			out = append(out, alarm{"Node", "", n.Name, u.Reason, u.Since})
		}
	})
	return out
}

// podsDown finds pods of a program that do not answer.
func podsDown(app string) func(f *facts) []alarm {
	return func(f *facts) (out []alarm) {
		for i := range f.pods.is {
			p := &f.pods.is[i]
			if p.Labels["k8s-app"] != app {
				continue
			}
			if d := progress.ReadDaemons([]corev1.Pod{*p})[p.Spec.NodeName]; d.Trouble != "" {
				out = append(out, alarm{"Pod", p.Namespace, p.Name, d.Trouble, d.Since})
			}
		}
		return out
	}
}
