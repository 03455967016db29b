// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// chooseReboots finds the orders to reboot that nodes have from now on. It comes after configurations and trials. A
// node takes one of the places of maxUnavailable from its order until the order is over. An order that was begun stays
// until then. An order that was not begun goes when nothing asks for the reboot any more, or when the node may not
// begin.
func (c *chooser) chooseReboots() {
	c.reboots = map[*progress.Node]*api.RebootOrder{}
	r := c.pool.Rules.Reboots
	var serving, idle []*progress.Node
	under := 0
	for i := range c.pool.Nodes {
		n := &c.pool.Nodes[i]
		given := n.RebootOrdered()
		under += rank(given != nil || leaving(n) && !n.NeedsReboot() || c.sent[n] > 0)
		switch {
		case given != nil && (n.RebootBegun() || r == nil || c.keepsReboot(n)):
			c.reboots[n] = given
		case given != nil || r == nil || r.Asks[n.Name] == nil || r.Holds[n.Name] != nil || c.goes(n):
		case !n.Serving() && !progress.ControlPlane(c.pool.Name):
			idle = append(idle, n)
		default:
			serving = append(serving, n)
		}
	}
	if r == nil {
		return
	}
	for _, n := range c.rebootLine(idle) {
		if under >= r.MaxUnavailable {
			break
		}
		c.reboot(n)
		under++
	}
	takes := shareOf(&c.pool).taking + c.options.Elsewhere + c.taken + c.occupied()
	for _, n := range c.rebootLine(serving) {
		own := rank(c.pool.Takes(n))
		if takes-own >= r.MaxUnavailable {
			continue
		}
		c.reboot(n)
		takes += 1 - own
		c.taken += 1 - own
	}
}

func (c *chooser) reboot(n *progress.Node) {
	order := c.pool.Rules.Reboots.Asks[n.Name].Order
	c.reboots[n] = &order
}

// goes reports whether the node is sent to another configuration by this decision.
func (c *chooser) goes(n *progress.Node) bool {
	return c.sent[n] > 0 && n.Desired != c.pool.Target || c.back[n] || c.trials[n].Send != ""
}

// keepsReboot reports whether a node that has not begun keeps its order.
func (c *chooser) keepsReboot(n *progress.Node) bool {
	r := c.pool.Rules.Reboots
	hold := r.Holds[n.Name]
	switch {
	case r.Asks[n.Name] == nil || c.goes(n):
		return false
	case hold == nil:
		return true
	}
	switch hold.Verdict {
	case progress.OutsideWindow:
		return !r.TakesBack
	case progress.HeldByPerson, progress.Trying, progress.Paused, progress.RebootFailed, progress.RebootWanted:
		return false
	default:
		return true
	}
}

// occupied counts the nodes that rebooted and use up maxUnavailable still, beside those that do for another cause.
func (c *chooser) occupied() int {
	count := 0
	for i := range c.pool.Nodes {
		n := &c.pool.Nodes[i]
		if slices.Contains(c.pool.Rules.Reboots.Occupied, n.Name) && !c.pool.Takes(n) {
			count++
		}
	}
	return count
}

// rebootLine sorts nodes by when they reboot. The own node comes last.
func (c *chooser) rebootLine(nodes []*progress.Node) []*progress.Node {
	places := c.pool.Rules.Reboots.Places
	slices.SortFunc(nodes, func(a, b *progress.Node) int {
		return cmp.Or(rank(a.Name == c.options.Self)-rank(b.Name == c.options.Self),
			cmp.Compare(places[a.Name], places[b.Name]))
	})
	return nodes
}

// orders adds to a policy's orders for a node whether the node is to reboot, and how it is drained and reboots then.
func (c *chooser) orders(n *progress.Node, o api.Orders) api.Orders {
	if o.Reboot = c.reboots[n]; o.Reboot != nil && c.pool.Rules.Reboots != nil {
		o.Drain = cmp.Or(o.Drain, c.pool.Rules.Reboots.Drain)
		o.RebootMethod = cmp.Or(o.RebootMethod, c.pool.Rules.Reboots.Method)
	}
	return o
}

// tellReboot makes an event of an order to reboot that a node got.
func (r *reconciler) tellReboot(pool *mcfgv1.MachineConfigPool, before, after *corev1.Node, s nodeStep) {
	order := s.Orders.Reboot
	was, _ := api.Decode[api.Orders](before.Annotations, api.OrdersKey) // unreadable orders count as none
	if order == nil || was.Reboot != nil && was.Reboot.ID == order.ID {
		return
	}
	r.events.Eventf(pool, after, corev1.EventTypeNormal, "RebootOrdered", "Reboot", "%s",
		note(fmt.Sprintf("Node %s is to reboot, by %s: %s", s.Node, cmp.Or(order.By, "the pool's RolloutPolicy"), order.Why)))
}

// rebootsCondition returns the condition about hosts that want a reboot. Its reason is RebootFailed while one failed.
func rebootsCondition(p progress.Pool) mcfgv1.MachineConfigPoolCondition {
	failed, wanted := p.RebootTexts()
	var texts []string
	if len(failed) > 0 {
		texts = append(texts, few(failed, "%d more reboots failed")...)
	}
	if len(wanted) > 0 {
		texts = append(texts, few(wanted, "%d more nodes want a reboot")...)
	}
	c := mcfgv1.MachineConfigPoolCondition{Type: api.PoolRebootsWanted, Status: corev1.ConditionFalse}
	if len(texts) == 0 {
		return c
	}
	c.Status, c.Reason = corev1.ConditionTrue, string(progress.RebootWanted)
	if len(failed) > 0 {
		c.Reason = string(progress.RebootFailed)
	}
	for i := range texts {
		texts[i] = api.ShortReason(texts[i])
	}
	c.Message = strings.Join(texts, "; ")
	return c
}
