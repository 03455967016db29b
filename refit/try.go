// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

const (
	// keepGrace is how much longer a node keeps what it tries where this program is to hand it to the pool.
	keepGrace = 5 * time.Minute
	// keepPoll is how often the node is read until the configuration is handed to the pool.
	keepPoll = 2 * time.Second
)

// TryOrder is a configuration for one node.
type TryOrder struct {
	Node string
	// Files have the documents that the configuration has besides those of the node's pool.
	Files []string
	// For is how long the node keeps the configuration after the verdict.
	For    time.Duration
	Why    string
	Bypass bool
	// Keep has Try wait until For is over, and then hand the documents to the pool.
	Keep bool
	Out  io.Writer
}

// Try has one node go to its pool's configuration with other documents. The node goes back by itself.
func (c *Cluster) Try(ctx context.Context, o TryOrder) error {
	docs, pool, desired, err := c.trial(ctx, o)
	if err != nil {
		return err
	}
	if err := c.publish(ctx, pool, desired); err != nil {
		return err
	}
	order, err := c.orderTrial(ctx, o, pool, desired.Name)
	if err != nil || !o.Keep {
		return err
	}
	return c.keepTried(ctx, o, pool.Name, order, docs)
}

// trial reads the documents, and checks that the node can try what they make.
func (c *Cluster) trial(ctx context.Context, o TryOrder) (
	docs *machineconfig.Documents, pool *mcfgv1.MachineConfigPool, desired *mcfgv1.MachineConfig, err error,
) {
	p, state, err := c.poolOf(ctx, o.Node)
	if err != nil {
		return nil, nil, nil, err
	}
	if state.Hold.Holds(p.Target, rollout.Now()) {
		return nil, nil, nil, fmt.Errorf("node %s is held by %s: kubectl refit release %s comes first", o.Node,
			cmp.Or(state.Hold.By, "somebody"), o.Node)
	}
	doc, docs, err := c.proposed(p.Name, Proposal{Files: o.Files})
	if err != nil {
		return nil, nil, nil, err
	}
	if pool, err = c.pool(ctx, p.Name); err != nil {
		return nil, nil, nil, err
	}
	if err := triable(docs, pool); err != nil {
		return nil, nil, nil, err
	}
	present, err := c.render(ctx, &PlanDocument{}, pool, &machineconfig.Documents{}, Proposal{})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("rendering pool %s as it is: %w", p.Name, err)
	}
	if desired, err = c.render(ctx, doc, pool, docs, Proposal{}); err != nil {
		return nil, nil, nil, err
	}
	switch {
	case state.OnTrial(p.Target) && state.Tried.Config == desired.Name:
		return docs, pool, desired, nil // orderTrial says what is wrong with that, if anything
	case present.Name != p.Target:
		err = fmt.Errorf("pool %s has %s, and its MachineConfigs make %s: the node would get more than the files; wait "+
			"until the pool has caught up (kubectl refit explain pool/%s)", p.Name, cmp.Or(p.Target, "no configuration"),
			present.Name, p.Name)
	case desired.Name == p.Target:
		err = fmt.Errorf("nothing is there to try: with these files pool %s has %s still", p.Name, p.Target)
	case !state.Updated(p.Target):
		err = fmt.Errorf("node %s has not proved %s: it can try another configuration after that (kubectl refit explain "+
			"node/%s)", o.Node, p.Target, o.Node)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	return docs, pool, desired, c.reaches(ctx, doc, p, state, desired)
}

// triable refuses documents that one node alone cannot try.
func triable(docs *machineconfig.Documents, pool *mcfgv1.MachineConfigPool) error {
	if len(docs.Pools) > 0 {
		return fmt.Errorf("MachineConfigPool %s: a node tries MachineConfigs; leave the pool out of the files",
			docs.Pools[0].Object.Name)
	}
	if len(docs.Configs) == 0 {
		return errors.New("the files have no MachineConfig")
	}
	selector, err := metav1.LabelSelectorAsSelector(pool.Spec.MachineConfigSelector)
	if err != nil {
		return fmt.Errorf("MachineConfigPool %s: spec.machineConfigSelector: %w", pool.Name, err)
	}
	for _, d := range docs.Configs {
		if !selector.Matches(labels.Set(d.Object.Labels)) {
			return fmt.Errorf("MachineConfig %s: pool %s does not select it (%s); give it these labels", d.Object.Name,
				pool.Name, selector)
		}
	}
	return nil
}

// reaches refuses a configuration that the node can't reach from its own, before the node is sent.
func (c *Cluster) reaches(ctx context.Context, doc *PlanDocument, p progress.Pool, state *progress.Node,
	desired *mcfgv1.MachineConfig,
) error {
	policy, err := c.policy(ctx)
	if err != nil {
		return err
	}
	if doc.nodes, err = c.nodes(ctx); err != nil {
		return err
	}
	doc.Desired, doc.refused = desired.Name, p.Refuses(desired.Name) || state.FailedOn(desired.Name)
	one := p
	one.Nodes = []progress.Node{*state}
	if err := c.groups(ctx, doc, one, desired, policy, false); err != nil {
		return err
	}
	return doc.obstacle()
}

// publish makes the rendered configuration, as the render controller would.
func (c *Cluster) publish(ctx context.Context, pool *mcfgv1.MachineConfigPool, mc *mcfgv1.MachineConfig) error {
	configs := c.refit.MachineconfigurationV1().MachineConfigs()
	present, err := configs.Get(ctx, pool.Spec.Configuration.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading MachineConfig %s: %w", pool.Spec.Configuration.Name, err)
	}
	made := mc.DeepCopy()
	made.Annotations = map[string]string{}
	// The node has the drift policy and the hooks of its pool also while it tries a configuration.
	for _, key := range []string{api.GeneratedBy, api.DriftPolicyKey, api.HooksKey} {
		if value := present.Annotations[key]; value != "" {
			made.Annotations[key] = value
		}
	}
	made.Annotations[api.GeneratedBy] = cmp.Or(made.Annotations[api.GeneratedBy], fieldManager)
	made.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: mcfgv1.GroupVersion.String(), Kind: "MachineConfigPool", Name: pool.Name, UID: pool.UID,
		Controller: new(true),
	}}
	_, err = configs.Create(ctx, made, metav1.CreateOptions{FieldManager: fieldManager})
	if apierrors.IsAlreadyExists(err) {
		_, err = c.rendered(ctx, mc.Name) // has the content of its name
		return err
	}
	if err != nil {
		return fmt.Errorf("creating MachineConfig %s: %w", mc.Name, err)
	}
	return nil
}

// orderTrial writes the order on the Node, unless the node tries the same already and the person has come to keep it.
func (c *Cluster) orderTrial(ctx context.Context, o TryOrder, pool *mcfgv1.MachineConfigPool, config string,
) (*api.Trial, error) {
	var order *api.Trial
	long := o.For
	if o.Keep {
		long += keepGrace
	}
	said, err := c.annotate(ctx, o.Node, api.TrialKey, func(n *corev1.Node, who string) (*string, string, error) {
		state := progress.ReadNode(n)
		known, running := state.Trial, state.OnTrial(pool.Spec.Configuration.Name)
		pending := known != nil && (state.Tried == nil || !state.Tried.Ordered.Equal(known.Since))
		switch {
		case o.Keep && (running || pending) && known != nil && known.Config == config:
			order = known
			return nil, fmt.Sprintf("node %s tries %s already, by %s", n.Name, config, cmp.Or(known.By, "somebody")), nil
		case running || pending:
			by, what := "somebody", config
			if known != nil {
				by, what = cmp.Or(known.By, by), known.Config
			}
			return nil, "", fmt.Errorf("node %s tries %s already, by %s: kubectl refit try --node %s --end comes first", n.Name,
				what, by, n.Name)
		}
		order = &api.Trial{
			Config: config, From: pool.Spec.Configuration.Name, By: who, Why: message.OneLine(o.Why),
			Since: rollout.Now().UTC().Truncate(time.Second), Seconds: int(long / time.Second), Bypass: o.Bypass,
		}
		after := "after the verdict"
		if o.For > 0 {
			after = duration.HumanDuration(o.For) + " after the verdict"
		}
		if o.Keep {
			after += ", unless this program hands it to pool " + pool.Name + " then"
		}
		return new(api.Encode(order)), fmt.Sprintf("node %s is to try %s, and goes back to %s by itself %s\nfollow it: "+
			"kubectl refit explain node/%s; end it: kubectl refit try --node %s --end", n.Name, config, order.From, after,
			n.Name, n.Name), nil
	})
	if err != nil {
		return nil, err
	}
	if pool.Spec.Paused {
		said += fmt.Sprintf("\nthe trial begins after kubectl refit resume %s", pool.Name)
	}
	_, err = fmt.Fprintln(o.Out, said)
	return order, err
}

// EndTrial takes the order of a trial back, so that the node goes back.
func (c *Cluster) EndTrial(ctx context.Context, node string) (said string, err error) {
	return c.annotate(ctx, node, api.TrialKey, func(n *corev1.Node, _ string) (*string, string, error) {
		if n.Annotations[api.TrialKey] == "" {
			return nil, fmt.Sprintf("node %s has no order to try a configuration", n.Name), nil
		}
		state := progress.ReadNode(n)
		said := fmt.Sprintf("node %s does not try a configuration any more", n.Name)
		if t := state.Tried; t != nil && t.Ended.IsZero() {
			said = fmt.Sprintf("node %s goes back to %s", n.Name, t.From)
		}
		return new(""), said, nil
	})
}

// keepTried waits until the node has proved and kept the configuration, and hands the documents to the pool.
func (c *Cluster) keepTried(ctx context.Context, o TryOrder, pool string, order *api.Trial,
	docs *machineconfig.Documents,
) error {
	told := ""
	for {
		n, err := c.kube.CoreV1().Nodes().Get(ctx, o.Node, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("nothing was handed to pool %s: node %s is gone", pool, o.Node)
		case err != nil && ctx.Err() == nil:
			c.warn("reading node %s: %s; trying again", o.Node, Describe(err))
		case err == nil:
			state := progress.ReadNode(n)
			said, over, err := keeping(&state, order, o.For, pool, rollout.Now())
			if err != nil {
				return err
			}
			if over {
				return c.endKept(ctx, o.Out, pool, order, docs)
			}
			if said != told {
				told = said
				fmt.Fprintln(o.Out, said)
			}
		}
		select {
		case <-ctx.Done():
			return kept(ctx, o.Node, pool)
		case <-time.After(keepPoll):
		}
	}
}

// keeping returns how far a node is whose pool is to get what it tries, and whether the wait is over: the node kept
// the configuration for its time, or stays on it for another reason. It fails where that can't come any more.
func keeping(n *progress.Node, order *api.Trial, long time.Duration, pool string, now time.Time,
) (said string, over bool, err error) {
	t := n.Tried
	switch {
	case t == nil || !t.Ordered.Equal(order.Since):
		if n.Trial == nil || !n.Trial.Since.Equal(order.Since) {
			return "", false, fmt.Errorf("nothing was handed to pool %s: somebody took the order back from node %s before it "+
				"began", pool, n.Name)
		}
		return fmt.Sprintf("node %s has not begun", n.Name), false, nil
	case !t.Ended.IsZero() && !t.Kept:
		return "", false, fmt.Errorf("nothing was handed to pool %s: the trial on node %s has ended: %s", pool, n.Name,
			t.Because)
	case !t.Ended.IsZero():
		return "", true, nil
	case t.Proved.IsZero():
		return fmt.Sprintf("node %s is on its way to %s", n.Name, t.Config), false, nil
	case now.Before(t.Proved.Add(long)):
		return fmt.Sprintf("node %s has proved %s; pool %s gets it %s after that", n.Name, t.Config, pool,
			duration.HumanDuration(long)), false, nil
	}
	return "", true, nil
}

// endKept hands the documents to the pool, unless the pool or its MachineConfigs are others meanwhile: with these no
// node has tried the documents, and what somebody else has written is not written over.
func (c *Cluster) endKept(ctx context.Context, out io.Writer, name string, order *api.Trial,
	docs *machineconfig.Documents,
) error {
	pool, err := c.pool(ctx, name)
	if err != nil {
		return err
	}
	target := pool.Spec.Configuration.Name
	if target != order.Config && target != order.From {
		return fmt.Errorf("nothing was handed to pool %s: the pool has %s now, and the node tried the documents with %s: "+
			"try again", name, target, order.From)
	}
	if target == order.From {
		present, err := c.render(ctx, &PlanDocument{}, pool, &machineconfig.Documents{}, Proposal{})
		if err != nil {
			return fmt.Errorf("nothing was handed to pool %s: rendering it as it is: %w", name, err)
		}
		target = present.Name
	}
	switch target {
	case order.Config:
		_, err := fmt.Fprintf(out, "pool %s has %s already; follow the rollout: kubectl refit watch %s\n", name, order.Config,
			name)
		return err
	case order.From:
		return c.handOver(ctx, out, name, docs)
	}
	return fmt.Errorf("nothing was handed to pool %s: the MachineConfigs of the pool have changed and make %s now, and "+
		"the node tried the documents with %s: try again", name, target, order.From)
}

// kept is the error of a program that ends before it could hand the documents to the pool.
func kept(ctx context.Context, node, pool string) error {
	cause := context.Cause(ctx)
	text := fmt.Sprintf("nothing was handed to pool %s: node %s goes back by itself; run the command again to keep what "+
		"it tries", pool, node)
	if s, ok := errors.AsType[cli.SignalError](cause); ok {
		return InterruptedError{s.Code(), "ended by signal (" + s.Signal.String() + "); " + text}
	}
	return fmt.Errorf("%w; %s", cause, text)
}

// handOver writes the documents as MachineConfigs of the cluster.
func (c *Cluster) handOver(ctx context.Context, out io.Writer, pool string, docs *machineconfig.Documents) error {
	configs := c.refit.MachineconfigurationV1().MachineConfigs()
	var names []string
	for _, d := range docs.Configs {
		want := d.Object
		have, err := configs.Get(ctx, want.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			made := want.DeepCopy()
			made.ResourceVersion, made.UID = "", ""
			_, err = configs.Create(ctx, made, metav1.CreateOptions{FieldManager: fieldManager})
		case err == nil:
			have.Spec = *want.Spec.DeepCopy()
			have.Labels = merged(have.Labels, want.Labels)
			have.Annotations = merged(have.Annotations, want.Annotations)
			_, err = configs.Update(ctx, have, metav1.UpdateOptions{FieldManager: fieldManager})
		}
		if err != nil {
			return fmt.Errorf("writing MachineConfig %s: %w; written before: %s", want.Name, err,
				cmp.Or(strings.Join(names, ", "), "none"))
		}
		names = append(names, want.Name)
	}
	_, err := fmt.Fprintf(out, "pool %s gets it: MachineConfig %s written; follow the rollout: kubectl refit watch %s\n",
		pool, strings.Join(names, ", "), pool)
	return err
}

func merged(have, want map[string]string) map[string]string {
	if len(want) == 0 {
		return have
	}
	out := maps.Clone(have)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, want)
	return out
}
