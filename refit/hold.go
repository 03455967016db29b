// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// Hold has rollouts leave a node as it is, for a while or, with a zero duration, until Release. Like all changes of a
// node it returns a message for people.
func (c *Cluster) Hold(ctx context.Context, node, why string, long time.Duration) (said string, err error) {
	return c.order(ctx, node, func(n *corev1.Node) (*api.NodeHold, string, error) {
		if err := notHeld(n, "", rollout.Now()); err != nil {
			return nil, "", err
		}
		hold := &api.NodeHold{Why: message.OneLine(why)}
		until := "until kubectl refit release " + n.Name
		if long > 0 {
			hold.Until = rollout.Now().Add(long).UTC().Truncate(time.Second)
			until = "until " + hold.Until.Format(time.RFC3339)
		}
		return hold, fmt.Sprintf("node %s is held: rollouts leave the node as it is %s", n.Name, until), nil
	})
}

// Skip has the present rollout of a node's pool go on without the node. The next configuration includes the node.
func (c *Cluster) Skip(ctx context.Context, node, why string) (said string, err error) {
	return c.order(ctx, node, func(n *corev1.Node) (*api.NodeHold, string, error) {
		p, state, err := c.poolOf(ctx, n.Name)
		if err != nil {
			return nil, "", err
		}
		switch {
		case p.Target == "":
			return nil, "", fmt.Errorf("pool %s has no configuration yet: no rollout is there to skip node %s", p.Name, n.Name)
		case state.Updated(p.Target):
			return nil, "", fmt.Errorf("node %s has %s already: nothing is left to skip", n.Name, p.Target)
		}
		if err := notHeld(n, p.Target, rollout.Now()); err != nil {
			return nil, "", err
		}
		return &api.NodeHold{Why: message.OneLine(why), Config: p.Target}, fmt.Sprintf(
			"node %s is skipped for %s: the rollout of pool %s goes on without the node, and the next configuration "+
				"includes it; kubectl refit retry %s ends that", n.Name, p.Target, p.Name, n.Name), nil
	})
}

// Release ends the hold of a node, or that the node is skipped.
func (c *Cluster) Release(ctx context.Context, node string) (said string, err error) {
	return c.order(ctx, node, func(n *corev1.Node) (*api.NodeHold, string, error) {
		if n.Annotations[api.HoldKey] == "" {
			return nil, fmt.Sprintf("node %s is neither held nor skipped", n.Name), nil
		}
		return &api.NodeHold{}, fmt.Sprintf("node %s is released: the rollouts of its pool include the node again",
			n.Name), nil
	})
}

// Retry has a node try the target of its pool again: the node was skipped, or the target failed there. It has a node
// reboot again where an ordered reboot failed.
func (c *Cluster) Retry(ctx context.Context, node, why string) (said string, err error) {
	p, state, err := c.poolOf(ctx, node)
	if err != nil {
		return "", err
	}
	inForce, failed := state.Hold.Holds(p.Target, rollout.Now()), p.FailedOn(state)
	broken, _ := state.RebootFailure()
	switch {
	case broken != "" && !failed && !inForce:
		return c.retryReboot(ctx, state, p, why)
	case inForce && state.Hold.Config == "":
		return "", fmt.Errorf("node %s is held by %s: kubectl refit release %s comes first", node,
			cmp.Or(state.Hold.By, "somebody"), node)
	case !inForce && !failed && state.Failing():
		return "", fmt.Errorf("nothing has to be done: the agent of node %s, which is %s, tries again by itself; "+
			"kubectl refit explain node/%s names the cause", node, state.State, node)
	case !inForce && !failed:
		return "", fmt.Errorf("nothing is there to try again: node %s is not skipped, and %s did not fail there", node,
			cmp.Or(p.Target, "a configuration"))
	}
	if failed {
		if said, err = c.retryFailed(ctx, p.Name, node, why); err != nil {
			return "", err
		}
	}
	if inForce {
		released, err := c.Release(ctx, node)
		if err != nil {
			return "", err
		}
		said = strings.TrimPrefix(said+"\n"+released, "\n")
	}
	return said, nil
}

// retryFailed lifts the failure of a pool's target on one node. Failures on other nodes stay.
func (c *Cluster) retryFailed(ctx context.Context, pool, node, why string) (string, error) {
	who, err := c.whoami(ctx)
	if err != nil {
		return "", err
	}
	return c.changePool(ctx, pool, func(p *mcfgv1.MachineConfigPool) (*change, string, error) {
		v, err := c.quarantines(ctx)
		if err != nil {
			return nil, "", err
		}
		v.Follow = c.rulesIfKnown(ctx)
		known, _ := progress.NewReport(v).Pool(p.Name)
		left := known
		left.Quarantined, left.Elsewhere = onOthers(known.Quarantined, node), onOthers(known.Elsewhere, node)
		if q := left.Quarantine(); q != nil {
			return nil, "", fmt.Errorf("one node alone cannot try it again: %s; kubectl refit quarantine lift %s is for the "+
				"whole pool", progress.WhyRefused(q), p.Name)
		}
		one := api.Lifted{By: who, Since: rollout.Now().UTC().Truncate(time.Second), Why: message.OneLine(why)}
		known.Quarantined, known.Elsewhere = onNode(known.Quarantined, node), onNode(known.Elsewhere, node)
		ch, _, err := liftConfig(p, known, known.Target, one)
		if err != nil {
			return nil, "", err
		}
		ch.event.note = fmt.Sprintf("%s has node %s try %s again", who, node, known.Target)
		if one.Why != "" {
			ch.event.note += ": " + one.Why
		}
		said := fmt.Sprintf("node %s tries %s again, before all other nodes", node, known.Target)
		if p.Spec.Paused {
			said += ", after kubectl refit resume " + p.Name
		}
		return ch, said, nil
	})
}

func onOthers(list []api.Quarantine, node string) []api.Quarantine {
	return slices.DeleteFunc(slices.Clone(list), func(q api.Quarantine) bool { return q.Node == node })
}

func onNode(list []api.Quarantine, node string) []api.Quarantine {
	return slices.DeleteFunc(slices.Clone(list), func(q api.Quarantine) bool { return q.Node != node })
}

// notHeld returns an error if a node has an order in force for a target. The first record stays.
func notHeld(n *corev1.Node, target string, now time.Time) error {
	state := progress.ReadNode(n)
	hold := state.Hold
	switch {
	case hold.Holds(target, now) && hold.Config == "":
		return fmt.Errorf("node %s is held already by %s: %s; kubectl refit release %s comes first", n.Name,
			cmp.Or(hold.By, "somebody"), hold.Why, n.Name)
	case hold.Holds(target, now) && target != "":
		return fmt.Errorf("node %s is skipped already for %s by %s: %s", n.Name, hold.Config, cmp.Or(hold.By, "somebody"),
			hold.Why)
	}
	return nil
}

// poolOf returns the pool of a node, and the state of the node.
func (c *Cluster) poolOf(ctx context.Context, node string) (progress.Pool, *progress.Node, error) {
	v, err := c.quarantines(ctx)
	if err != nil {
		return progress.Pool{}, nil, err
	}
	v.Follow = c.rulesIfKnown(ctx)
	report := progress.NewReport(v)
	for _, name := range report.Pools() {
		p, _ := report.Pool(name)
		for i := range p.Nodes {
			if p.Nodes[i].Name == node {
				return p, &p.Nodes[i], nil
			}
		}
	}
	return progress.Pool{}, nil, fmt.Errorf("node %s belongs to no MachineConfigPool: see kubectl refit explain node/%s",
		node, node)
}

// order reads a node, lets decide choose the order and the message, and writes the order. A nil order changes nothing,
// and a zero order removes the one that is there.
func (c *Cluster) order(ctx context.Context, name string,
	decide func(*corev1.Node) (*api.NodeHold, string, error),
) (string, error) {
	return c.annotate(ctx, name, api.HoldKey, func(n *corev1.Node, who string) (*string, string, error) {
		hold, said, err := decide(n)
		if err != nil || hold == nil {
			return nil, said, err
		}
		if *hold == (api.NodeHold{}) {
			return new(""), said, nil
		}
		hold.By, hold.Since = who, rollout.Now().UTC().Truncate(time.Second)
		return new(api.Encode(hold)), said, nil
	})
}

// annotate reads a node, lets decide choose the value of an annotation and the message, and writes the value. The
// function gets the name of the person. A nil value changes nothing, and an empty one takes the annotation away.
func (c *Cluster) annotate(ctx context.Context, name, key string,
	decide func(n *corev1.Node, who string) (*string, string, error),
) (said string, err error) {
	who, err := c.whoami(ctx)
	if err != nil {
		return "", err
	}
	err = retry.RetryOnConflict(meanwhile, func() error {
		node, err := c.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading node %s: %w", name, err)
		}
		var chosen *string
		if chosen, said, err = decide(node, who); err != nil || chosen == nil {
			return err
		}
		var value any
		if *chosen != "" {
			value = *chosen
		}
		patch := api.Encode(map[string]any{"metadata": map[string]any{
			"resourceVersion": node.ResourceVersion, "annotations": map[string]any{key: value},
		}})
		_, err = c.kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch),
			metav1.PatchOptions{FieldManager: fieldManager})
		if err != nil {
			return fmt.Errorf("changing node %s: %w", name, err)
		}
		return nil
	})
	return said, err
}
