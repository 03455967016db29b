// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"cmp"
	"context"
	"fmt"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// RebootOrder is a person's order that a node, or each node of a pool, reboots once.
type RebootOrder struct {
	// Name is a node or a pool, with its kind before it where both have the name.
	Name, Why    string
	Soft, Bypass bool
	// Cancel takes an earlier order back.
	Cancel bool
}

// Reboot records the order, or takes it back. The pool controller has each node reboot in its turn.
func (c *Cluster) Reboot(ctx context.Context, o RebootOrder) (said string, err error) {
	v, err := c.quarantines(ctx)
	if err != nil {
		return "", err
	}
	v.Follow = c.rulesIfKnown(ctx)
	report := progress.NewReport(v)
	s, err := subject(report, o.Name)
	if err != nil {
		return "", err
	}
	if s.Kind == kindNode {
		node, pool, _ := report.Node(s.Name)
		if o.Cancel {
			return c.cancelReboot(ctx, &node)
		}
		p, _ := report.Pool(pool)
		if err := rebootable(&node, pool, p, o); err != nil {
			return "", err
		}
		return c.rebootNode(ctx, o, s.Name, p)
	}
	return c.changePool(ctx, s.Name, func(p *mcfgv1.MachineConfigPool) (*change, string, error) {
		who, err := c.whoami(ctx)
		if err != nil {
			return nil, "", err
		}
		known, _ := report.Pool(p.Name)
		return rebootPool(p, known, o, who, rollout.Now())
	})
}

// request is the record of the order.
func (o RebootOrder) request(who string, now time.Time) api.RebootRequest {
	return api.RebootRequest{
		By: who, Why: message.OneLine(o.Why), Since: now.UTC().Truncate(time.Second), Soft: o.Soft, Bypass: o.Bypass,
	}
}

// rebootable refuses an order that makes no sense for a node now.
func rebootable(n *progress.Node, pool string, p progress.Pool, o RebootOrder) error {
	switch held := n.Hold; {
	case pool == "":
		return fmt.Errorf("node %s belongs to no MachineConfigPool, so nothing reboots it: see kubectl refit explain node/%s",
			n.Name, n.Name)
	case held.Holds("", rollout.Now()) && held.Config == "":
		return fmt.Errorf("node %s is held by %s: kubectl refit release %s comes first", n.Name,
			cmp.Or(held.By, "somebody"), n.Name)
	case n.OnTrial(p.Target):
		return fmt.Errorf("node %s tries %s: kubectl refit try --node %s --end comes first", n.Name, n.Tried.Config, n.Name)
	case n.RebootOrdered() != nil:
		return fmt.Errorf("node %s was ordered to reboot already (%s), and has not come back: see kubectl refit explain "+
			"node/%s", n.Name, n.RebootOrdered().Why, n.Name)
	case n.Reboot != nil && !n.RebootAnswered():
		return fmt.Errorf("node %s is to reboot already, by %s since %s: %s; kubectl refit reboot %s --cancel takes that "+
			"back", n.Name, n.Reboot.By, n.Reboot.Since.UTC().Format(time.RFC3339), n.Reboot.Why, n.Name)
	case n.Moving() && !n.NeedsReboot():
		return fmt.Errorf("node %s is on its way to %s: order the reboot when it has arrived (kubectl refit explain "+
			"node/%s)", n.Name, n.Desired, n.Name)
	}
	return rebootablePool(p, o)
}

// rebootablePool refuses an order that no node of a pool would carry out.
func rebootablePool(p progress.Pool, o RebootOrder) error {
	switch {
	case p.Paused:
		return fmt.Errorf("pool %s is paused, so no node of it reboots: kubectl refit resume %s comes first", p.Name, p.Name)
	case p.Rules.RebootMode == api.RebootsNever && !o.Bypass:
		return cli.Usagef("RolloutPolicy %s has reboots: Never; with --bypass the order is carried out all the same",
			p.Rules.Policy)
	}
	return nil
}

func (c *Cluster) rebootNode(ctx context.Context, o RebootOrder, node string, p progress.Pool) (string, error) {
	return c.annotate(ctx, node, api.RebootKey, func(n *corev1.Node, who string) (*string, string, error) {
		said := fmt.Sprintf("node %s is to %s: it is drained in its turn, within the maxUnavailable of pool %s%s", n.Name,
			howReboot(o), p.Name, whenReboot(p, o))
		return new(api.Encode(o.request(who, rollout.Now()))), said, nil
	})
}

func howReboot(o RebootOrder) string {
	if o.Soft {
		return "restart its userspace"
	}
	return "reboot"
}

// whenReboot ends the sentence about an order with what the policy says of the time.
func whenReboot(p progress.Pool, o RebootOrder) string {
	switch {
	case p.Rules.Policy == "":
		return ""
	case o.Bypass:
		return fmt.Sprintf(" and without the windows of RolloutPolicy %s", p.Rules.Policy)
	}
	return fmt.Sprintf(" and the windows of RolloutPolicy %s", p.Rules.Policy)
}

// rebootPool records or removes the order for each node of a pool.
func rebootPool(p *mcfgv1.MachineConfigPool, known progress.Pool, o RebootOrder, who string, now time.Time,
) (*change, string, error) {
	_, there := p.Annotations[api.RebootKey]
	switch was := known.Reboot; {
	case o.Cancel && !there:
		return nil, fmt.Sprintf("pool %s is not to reboot", p.Name), nil
	case o.Cancel:
		return &change{annotations: map[string]any{api.RebootKey: nil}}, fmt.Sprintf(
			"pool %s is no longer to reboot; nodes that have begun finish", p.Name), nil
	case was != nil && !known.RebootAnswered():
		return nil, "", fmt.Errorf("pool %s is to reboot already, by %s since %s: %s; kubectl refit reboot %s --cancel "+
			"takes that back", p.Name, was.By, was.Since.UTC().Format(time.RFC3339), was.Why, p.Name)
	case len(known.Nodes) == 0:
		return nil, "", fmt.Errorf("pool %s has no nodes", p.Name)
	}
	if err := rebootablePool(known, o); err != nil {
		return nil, "", err
	}
	r := o.request(who, now)
	return &change{
		annotations: map[string]any{api.RebootKey: api.Encode(r)},
		event:       &event{"RebootAsked", fmt.Sprintf("%s has each node of pool %s reboot once: %s", who, p.Name, r.Why)},
	}, fmt.Sprintf("each node of pool %s is to %s once, in its turn%s", p.Name, howReboot(o), whenReboot(known, o)), nil
}

// cancelReboot takes back a person's order for a node.
func (c *Cluster) cancelReboot(ctx context.Context, node *progress.Node) (string, error) {
	return c.annotate(ctx, node.Name, api.RebootKey, func(n *corev1.Node, _ string) (*string, string, error) {
		switch {
		case node.RebootBegun():
			return nil, "", fmt.Errorf("too late: node %s has begun to reboot", n.Name)
		case n.Annotations[api.RebootKey] == "":
			return nil, fmt.Sprintf("node %s has no order to reboot by a person", n.Name), nil
		}
		return new(""), fmt.Sprintf("node %s is no longer to reboot", n.Name), nil
	})
}

// retryReboot has a node reboot again after an ordered reboot failed there.
func (c *Cluster) retryReboot(ctx context.Context, node *progress.Node, p progress.Pool, why string) (string, error) {
	o := RebootOrder{Name: node.Name, Why: cmp.Or(why, "the reboot failed, and is tried again")}
	if err := rebootable(node, p.Name, p, o); err != nil {
		return "", err
	}
	return c.rebootNode(ctx, o, node.Name, p)
}
