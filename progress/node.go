// SPDX-License-Identifier: Apache-2.0

// Package progress says where nodes and pools stand on their way to a configuration. It decides nothing and asks
// nobody: the pool controller decides by it, and what people see is made of it.
package progress

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
)

// Node is what counts about a node.
type Node struct {
	api.Node

	Name    string
	Labels  map[string]string
	Zone    string // empty: the node names none
	Created time.Time
	// Cordoned: no new pods, whoever said so. Node.Cordon is there when it was us.
	Cordoned bool
	// NotReady says why the node is not ready; empty: it is. NotReadySince is when that began, where the node says so.
	NotReady      string
	NotReadySince time.Time
	// ReadySince is when the node became ready, where it says so.
	ReadySince time.Time
	// Tainted: the node has the taint of a rollout.
	Tainted bool
	// Joining: the node keeps pods away until it has its first configuration.
	Joining bool
	// Unread says which annotation can't be read, and why; empty: all can.
	Unread string
	// Said is a digest of all that the node's agent says in its Node.
	Said string
}

// ReadNode takes what counts from a Node.
func ReadNode(n *corev1.Node) Node {
	annotations, err := api.ReadNode(n)
	out := Node{
		Node: annotations, Name: n.Name, Labels: n.Labels, Zone: n.Labels[api.Zone], Created: n.CreationTimestamp.Time,
		Cordoned: n.Spec.Unschedulable, Said: said(n.Annotations),
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

// readySince is when the last of what notReady asks became well.
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

// notReady asks the same three conditions as OpenShift. A node that never reported is not ready.
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
		return "it has never reported its state", time.Time{}
	}
	return "", time.Time{}
}

// Phase is where a node is on its way to its pool's configuration.
type Phase string

// The phases.
const (
	// PhaseUpdated: at the pool's configuration, proved.
	PhaseUpdated Phase = "Updated"
	// PhaseWaiting: settled on another configuration, and not yet told to leave it.
	PhaseWaiting Phase = "Waiting"
	// PhaseUpdating: told to go somewhere, and not there yet.
	PhaseUpdating Phase = "Updating"
	// PhaseDegraded: can't get there, or can't stay, without something changing.
	PhaseDegraded Phase = "Degraded"
	// PhaseRolledBack: the configuration failed here; the node serves on the one before.
	PhaseRolledBack Phase = "RolledBack"
)

// Phases are all phases, in the order in which people want to read them.
var Phases = []Phase{PhaseUpdated, PhaseWaiting, PhaseUpdating, PhaseDegraded, PhaseRolledBack}

// Phase of the node, where target is what its pool wants.
func (n *Node) Phase(target string) Phase {
	switch {
	case n.State == api.RolledBack:
		return PhaseRolledBack
	case n.Failing():
		return PhaseDegraded
	case n.Updated(target):
		return PhaseUpdated
	case n.Settled():
		return PhaseWaiting
	default:
		return PhaseUpdating
	}
}

// Updated says that the node proved healthy at target and is to stay there.
func (n *Node) Updated(target string) bool {
	return target != "" && n.Current == target && n.Desired == target && n.State == api.Done
}

// Settled says that the node is where it was told to be and at rest, or was never told anything.
func (n *Node) Settled() bool {
	if n.Desired == "" {
		return n.Current == "" || n.State == api.Done
	}
	return n.Current == n.Desired && n.State == api.Done
}

// failures are the verdicts that the node reports. One that rolled back and has none for what it came back from, since
// a person went back on the host or its list can't be read, has failed there all the same; when, it does not say.
func (n *Node) failures() []api.Quarantine {
	from := n.unlisted()
	if from == "" && len(n.Quarantined) == 0 {
		return nil // as of most nodes at every look
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

// FailedOn says that the node reports a failure of this content.
func (n *Node) FailedOn(config string) bool {
	return slices.ContainsFunc(n.failures(), func(q api.Quarantine) bool { return api.SameContent(q.Config, config) })
}

// unlisted is the configuration that the node came back from and reports no verdict of; empty: none.
func (n *Node) unlisted() string {
	from := n.RolledBackFrom()
	listed := func(q api.Quarantine) bool { return api.SameContent(q.Config, from) }
	if from == "" || slices.ContainsFunc(n.Quarantined, listed) {
		return ""
	}
	return from
}

// Failing says that the node can't get to where it was told to be, or can't stay there. One whose verdict has not come
// in the time that it can take is failing, whatever it last said.
func (n *Node) Failing() bool { return n.State.Bad() || n.Overdue() }

// Moving says that the node is on its way: told to go, not there, and not given up.
func (n *Node) Moving() bool { return !n.Settled() && !n.Failing() }

// Serving says that the node takes pods.
func (n *Node) Serving() bool { return n.NotReady == "" && !n.Cordoned }

// Unavailable says that the node serves nobody or is about to stop. A node that failed and serves again is available.
func (n *Node) Unavailable() bool { return !n.Serving() || n.Moving() }

// Takes says that the node uses up one of the nodes that its pool may have out of service: it is unavailable, or it
// failed on the very configuration that the rollout is about, which counts against going on with it.
func (n *Node) Takes(target string) bool {
	return n.Unavailable() || n.Failing() && n.Desired == target
}

// Turn compares two nodes by when they are sent in a rollout: nodes that failed before the others, so that they are
// healed, or fail again before anyone else is touched; nodes on which no agent ever spoke last, as they would hold the
// rollout up; then zones by name, nodes without one last, and in a zone the oldest node. Only that the controller's own
// node goes last of all is not known here.
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
