// SPDX-License-Identifier: Apache-2.0

// Package progress computes where nodes and pools are on their way to a configuration. The package decides nothing and
// sends no requests. The pool controller decides by its results, and what people see is made of them.
package progress

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/values"
)

// Node has the facts about a node on which answers and decisions depend.
type Node struct {
	api.Node

	Name    string
	Labels  map[string]string
	Zone    string // empty: the node has no zone
	Created time.Time
	// Cordoned reports whether the node takes no new pods, by any cordon. Node.Cordon is set if the agent cordoned
	// it.
	Cordoned bool
	// NotReady is why the node is not ready; empty if the node is ready. NotReadySince is when that began, where the node
	// reports it.
	NotReady      string
	NotReadySince time.Time
	// ReadySince is when the node became ready, where the node reports it.
	ReadySince time.Time
	// Tainted reports whether the node has the taint of a rollout.
	Tainted bool
	// Joining reports whether the node keeps pods away until it has its first configuration.
	Joining bool
	// Unread names the annotation that cannot be read, and the error; empty if all can be read.
	Unread string
	// Said is a digest of all reports of the agent on its Node.
	Said string
	// Told are the values that the node is to be told with its pool's target, where that names some. Lacks is why the node
	// can't be told; empty: it can. BadValues reports that the target failed here because of these values.
	Told      api.ToldValues
	Lacks     string
	BadValues bool

	sources values.Node
	made    string
}

// ReadNode reads a Node object.
func ReadNode(n *corev1.Node) Node {
	annotations, err := api.ReadNode(n)
	out := Node{
		Node: annotations, Name: n.Name, Labels: n.Labels, Zone: n.Labels[api.Zone], Created: n.CreationTimestamp.Time,
		Cordoned: n.Spec.Unschedulable, Said: said(n.Annotations), sources: valuesIn(n),
	}
	if err != nil {
		out.Unread = api.ShortReason(err.Error())
	}
	for _, t := range n.Spec.Taints {
		if t.Key == api.UpdateInProgressTaint && t.Effect == corev1.TaintEffectPreferNoSchedule {
			out.Tainted = true
		}
		out.Joining = out.Joining || t.Key == api.StartupTaint
	}
	out.NotReady, out.NotReadySince = notReady(n.Status.Conditions)
	if out.NotReady == "" {
		out.ReadySince = readySince(n.Status.Conditions)
	}
	return out
}

// readySince returns when the last of the conditions that notReady checks became good.
func readySince(conditions []corev1.NodeCondition) time.Time {
	var last time.Time
	for _, c := range conditions {
		switch c.Type {
		case corev1.NodeReady, corev1.NodeDiskPressure, corev1.NodeNetworkUnavailable:
			if c.LastTransitionTime.After(last) {
				last = c.LastTransitionTime.Time
			}
		default:
		}
	}
	return last
}

// notReady checks the same three conditions as OpenShift. A node that never reported is not ready.
func notReady(conditions []corev1.NodeCondition) (string, time.Time) {
	reported := false
	for _, c := range conditions {
		var bad bool
		switch c.Type {
		case corev1.NodeReady:
			reported = true
			bad = c.Status != corev1.ConditionTrue
		case corev1.NodeDiskPressure, corev1.NodeNetworkUnavailable:
			bad = c.Status == corev1.ConditionTrue
		default:
		}
		if bad {
			return strings.TrimSuffix(string(c.Type)+"="+string(c.Status)+": "+c.Message, ": "), c.LastTransitionTime.Time
		}
	}
	if !reported {
		return "the node has never reported its state", time.Time{}
	}
	return "", time.Time{}
}

// Phase is where a node is on its way to its pool's configuration.
type Phase string

// The phases.
const (
	// PhaseUpdated: the node has proved the pool's configuration.
	PhaseUpdated Phase = "Updated"
	// PhaseWaiting: the node is settled on another configuration, and was not yet sent to the target.
	PhaseWaiting Phase = "Waiting"
	// PhaseUpdating: the node was sent to a configuration and has not arrived.
	PhaseUpdating Phase = "Updating"
	// PhaseDegraded: the node can't get to its configuration, or can't stay there, until something changes.
	PhaseDegraded Phase = "Degraded"
	// PhaseRolledBack: the configuration failed here; the node serves on the one before.
	PhaseRolledBack Phase = "RolledBack"
)

// Phases are all phases, in the order in which a bar shows them: what is done, what is under way, what failed, and what
// has not begun.
var Phases = []Phase{PhaseUpdated, PhaseUpdating, PhaseDegraded, PhaseRolledBack, PhaseWaiting}

// Phase returns the node's phase, where target is the configuration that its pool wants.
func (n *Node) Phase(target string) Phase {
	switch {
	case n.State == api.RolledBack:
		return PhaseRolledBack
	case n.Failing():
		return PhaseDegraded
	case n.RebootOrdered() != nil:
		return PhaseUpdating
	case n.Updated(target):
		return PhaseUpdated
	case n.Settled():
		return PhaseWaiting
	default:
		return PhaseUpdating
	}
}

// Updated reports whether the node proved healthy at target and is to stay there.
func (n *Node) Updated(target string) bool {
	return target != "" && n.Current == target && n.Desired == target && n.State == api.Done
}

// Settled reports whether the node is at rest at its desired configuration, or never had a desired one.
func (n *Node) Settled() bool {
	if n.Desired == "" {
		return n.Current == "" || n.State == api.Done
	}
	return n.Current == n.Desired && n.State == api.Done
}

// AtRest reports whether the kubelet reports, and the agent is free for what comes ahead of an update: to stage an OS,
// and to pull images.
func (n *Node) AtRest() bool {
	return n.NotReady == "" && n.Current != "" && n.State != "" && (n.Settled() || n.State == api.RolledBack)
}

// failures returns the failed verdicts that the node reports. A node that rolled back counts as failed even without a
// verdict. A person may have gone back on the host, or the node's list cannot be read. Such a failure has no time.
func (n *Node) failures() []api.Quarantine {
	from := n.unlisted()
	if from == "" && len(n.Quarantined) == 0 {
		return nil // most nodes have none, and every look calls this
	}
	list := slices.Clone(n.Quarantined)
	if from != "" {
		list = append(list, api.Quarantine{Config: from, Reason: n.Reason})
	}
	for i := range list {
		list[i].Node = n.Name
	}
	return list
}

// FailedOn reports whether the node reports a failure of this content.
func (n *Node) FailedOn(config string) bool {
	return slices.ContainsFunc(n.failures(), func(q api.Quarantine) bool { return api.SameContent(q.Config, config) })
}

// unlisted returns the configuration that the node came back from without a verdict; empty if it did not.
func (n *Node) unlisted() string {
	from := n.RolledBackFrom()
	listed := func(q api.Quarantine) bool { return api.SameContent(q.Config, from) }
	if from == "" || slices.ContainsFunc(n.Quarantined, listed) {
		return ""
	}
	return from
}

// Failing reports whether the node can't get to its desired configuration, or can't stay there. A node whose verdict is
// overdue is failing, whatever the node last reported.
func (n *Node) Failing() bool { return n.State.Bad() || n.Overdue() }

// Moving reports whether the node was sent, has not arrived and has not failed.
func (n *Node) Moving() bool { return !n.Settled() && !n.Failing() }

// Serving reports whether the node takes pods.
func (n *Node) Serving() bool { return n.NotReady == "" && !n.Cordoned }

// Dead reports whether the kubelet of the node is not ready, or silent.
func (n *Node) Dead() bool { return strings.HasPrefix(n.NotReady, string(corev1.NodeReady)+"=") }

// Unavailable reports whether the node does not serve, or is about to stop. A node that failed and serves again is
// available, and so is a node whose committed configuration waits for a person's reboot.
func (n *Node) Unavailable() bool {
	return !n.Serving() || n.Moving() && !n.NeedsReboot() || n.RebootOrdered() != nil
}

// Takes reports whether the node uses up one of the nodes that its pool may have out of service. An unavailable node
// does. So does a node that failed on the target itself, since that counts against going on with the rollout.
func (n *Node) Takes(target string) bool {
	return n.Unavailable() || n.Failing() && n.Desired == target
}

// Turn compares two nodes by when a rollout sends them. Nodes that failed before come first, so that they are healed,
// or fail again before any other node is touched. Nodes on which no agent ever reported come last, since they would
// hold the rollout up. Then zones count, by name; nodes without a zone come after them. In a zone the oldest node comes
// first. Turn does not know the controller's own node, which goes last of all.
func Turn(a, b *Node) int {
	if order := cmp.Or(first(a.Failing(), b.Failing()), first(a.State != "", b.State != ""),
		first(a.Zone != "", b.Zone != "")); order != 0 {
		return order
	}
	return cmp.Or(cmp.Compare(a.Zone, b.Zone), a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func rank(b bool) int {
	if b {
		return 1
	}
	return 0
}
