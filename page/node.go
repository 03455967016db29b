// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// The content of a node's page.
type (
	nodePage struct {
		nodePart

		Answer answerPart
		// From is the configuration that the node has, To the one that it shall have, and Target its pool's.
		From, To, Target string
		Facts            []fact
		Pods             []podPart
		MorePods         int // those that are not in Pods
		Conditions       []conditionPart
		History          []momentPart
		Quarantined      []quarantinePart
	}

	// podPart is a pod that a drain waits for.
	podPart struct {
		Name, Why, Placement string
		Since                stamp
	}

	conditionPart struct {
		Type, Status, Reason, Message string
		Mood                          mood
		Since                         stamp
	}

	// momentPart is something that happened.
	momentPart struct {
		At   stamp
		Text string
	}
)

// nodePage returns the page of a node.
func (s *sheet) nodePage(name string) *nodePage {
	n, pool, _ := s.report.Node(name)
	out := &nodePage{
		Answer: s.answer(s.answers[name]), nodePart: s.node(name), From: n.Current, To: cmp.Or(n.Desired, n.Current),
		Facts: s.nodeFacts(n),
	}
	if pool != "" {
		out.Pool, out.PoolLink = pool, s.to(s.poolPath(pool))
		out.Target = s.objects[pool].Spec.Configuration.Name
	}
	for _, q := range n.Quarantined {
		out.Quarantined = append(out.Quarantined, quarantinePart{q.Config, name, q.Reason, s.stamp(q.Since)})
	}
	said := s.view.States[name]
	if said != nil {
		out.Conditions = s.conditions(said)
		if d := drainOf(said, n.Desired); d != nil {
			out.Pods, out.MorePods = s.pods(d), max(d.Left-len(d.Waiting), 0)
		}
	}
	out.History = s.history(n, pool, said)
	return out
}

// drainOf returns the drain that a node's agent reports for a configuration; nil: it reports none.
func drainOf(said *mcfgv1.MachineConfigNode, config string) *api.Drain {
	// A drain that cannot be read counts as missing, as in package progress.
	d, _ := api.Decode[*api.Drain](said.Annotations, api.DrainKey)
	if d == nil || d.Config != config {
		return nil
	}
	return d
}

func (s *sheet) nodeFacts(n progress.Node) []fact {
	out := []fact{{"Agent's state", cmp.Or(string(n.State), "not reported yet")}}
	add := func(name, text string) {
		if text != "" {
			out = append(out, fact{name, text})
		}
	}
	add("Agent's reason", n.Reason)
	add("Not ready", n.NotReady)
	switch {
	case n.Cordon != nil:
		add("Cordoned", "by "+n.Cordon.By+": "+n.Cordon.Reason)
	case n.Cordoned:
		add("Cordoned", "by somebody else")
	}
	if h := n.Hold; h != nil {
		text := "by " + h.By + ": " + h.Why
		if !h.Until.IsZero() {
			text += ", until " + s.stamp(h.Until).Full
		}
		add("Held", text)
	}
	if n.Drift != nil {
		add("Drifted", number(len(n.Drift.Items)+n.Drift.More, "difference"))
	}
	if d := n.DrainHeld; d != nil {
		add("Drain given up", d.Why+"; again at "+s.stamp(d.Until).Full)
	}
	if staged := n.Staged; staged != nil {
		add("Staged ahead", cmp.Or(staged.Error, staged.Digest, short(staged.Config)))
	}
	if n.Undelivered != nil {
		add("Certificates missing", n.Undelivered.Reason)
	}
	add("Zone", n.Zone)
	return out
}

func (s *sheet) pods(d *api.Drain) []podPart {
	var out []podPart
	for _, w := range d.Waiting {
		why := w.Why
		if w.Budget != "" {
			why += fmt.Sprintf(": PodDisruptionBudget %s allows %d", w.Budget, w.Allowed)
		}
		if w.Message != "" {
			why += ": " + w.Message
		}
		out = append(out, podPart{w.Namespace + "/" + w.Name, s.said(why), w.Placement, s.stamp(w.Since)})
	}
	return out
}

// conditions returns what a node's agent reports, in the agent's own order.
func (s *sheet) conditions(said *mcfgv1.MachineConfigNode) []conditionPart {
	var out []conditionPart
	for _, c := range said.Status.Conditions {
		out = append(out, conditionPart{
			Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: s.said(c.Message), Mood: conditionMood(c),
			Since: s.stamp(c.LastTransitionTime.Time),
		})
	}
	return out
}

// conditionMood returns the mood of a condition. A step of an update is False before and after the update.
func conditionMood(c metav1.Condition) mood {
	switch {
	case c.Status == metav1.ConditionUnknown:
		return busy
	case c.Status == metav1.ConditionFalse:
		return waits
	case c.Type == string(mcfgv1.MachineConfigNodeNodeDegraded):
		return trouble
	}
	return good
}

// history returns what the objects know of a node's past, the latest first.
func (s *sheet) history(n progress.Node, pool string, said *mcfgv1.MachineConfigNode) []momentPart {
	type moment struct {
		at   time.Time
		text string
	}
	var all []moment
	add := func(at time.Time, text string) {
		if !at.IsZero() {
			all = append(all, moment{at, text})
		}
	}
	add(n.Created, "The Node was made.")
	add(n.NotReadySince, "The node became not ready.")
	add(n.ReadySince, "The node became ready.")
	if n.Cordon != nil {
		add(n.Cordon.Since, n.Cordon.By+" cordoned the node: "+n.Cordon.Reason+".")
	}
	if n.Hold != nil {
		add(n.Hold.Since, n.Hold.By+" held the node: "+n.Hold.Why+".")
	}
	if n.Staged != nil {
		add(n.Staged.Since, "Staged "+short(n.Staged.Config)+" ahead.")
	}
	if n.DrainHeld != nil {
		add(n.DrainHeld.Since, "The drain was given up: "+n.DrainHeld.Why+".")
	}
	for _, q := range n.Quarantined {
		add(q.Since, short(q.Config)+" failed: "+q.Reason+".")
	}
	add(n.Arrived.Since, "Arrived at "+short(n.Arrived.Config)+" in a rollout.")
	if said != nil {
		// What cannot be read counts as missing, as in package progress.
		if u, err := api.Decode[api.Update](said.Annotations, api.UpdateKey); err == nil {
			add(u.Since, "The update to "+short(u.Config)+" began.")
		}
		if d := drainOf(said, n.Desired); d != nil {
			add(d.Since, "The drain began.")
		}
		for _, c := range said.Status.Conditions {
			switch c.Status {
			case metav1.ConditionTrue:
				add(c.LastTransitionTime.Time, c.Type+" became true.")
			case metav1.ConditionUnknown:
				add(c.LastTransitionTime.Time, c.Type+" is under way.")
			case metav1.ConditionFalse:
			}
		}
	}
	if object := s.objects[pool]; object != nil {
		if known, _ := api.Decode[[]api.PastRollout](object.Annotations, api.RolloutsKey); len(known) > 0 {
			add(known[0].Wanted, "Pool "+pool+" was to have "+short(known[0].Config)+".")
		}
	}
	slices.SortStableFunc(all, func(a, b moment) int { return b.at.Compare(a.at) })
	out := make([]momentPart, len(all))
	for i, m := range all {
		out[i] = momentPart{s.stamp(m.at), m.text}
	}
	return out
}
