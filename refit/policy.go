// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"context"
	"fmt"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// ownClient makes a client for the kinds of package api.
func ownClient(cfg *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := api.Install(scheme); err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion, cfg.APIPath = &api.GroupVersion, "/apis"
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientFor(cfg)
}

// policies returns the cluster's RolloutPolicies. The list is empty where the cluster does not have the kind.
func (c *Cluster) policies(ctx context.Context) ([]api.RolloutPolicy, error) {
	var list api.RolloutPolicyList
	err := c.own.Get().Resource("rolloutpolicies").Do(ctx).Into(&list)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing RolloutPolicies: %w", err)
	}
	return list.Items, nil
}

// rules reads what the cluster's policies allow now. It does not ask for the controller's own node, which goes last.
func (c *Cluster) rules(ctx context.Context) (func([]*progress.Pool), error) {
	policies, err := c.policies(ctx)
	if err != nil {
		return nil, err
	}
	c.read.Store(&policies)
	book, now := rollout.NewBook(policies, rollout.Reported(policies)), rollout.Now()
	book.Lose(rollout.LostAsReported)
	var etcd *progress.Etcd
	if len(policies) > 0 {
		if etcd, err = c.etcd(ctx); err != nil {
			return nil, err
		}
	}
	return func(pools []*progress.Pool) {
		for _, p := range pools {
			p.Etcd = etcd
		}
		book.Follow(pools, now, "")
	}, nil
}

// etcd returns what is known of etcd: its members, and without members the API server's own answer. A user without the
// right to ask gets the answers that need neither.
func (c *Cluster) etcd(ctx context.Context) (*progress.Etcd, error) {
	var pods []corev1.Pod
	for _, at := range progress.EtcdPlaces {
		some, err := c.kube.CoreV1().Pods(at.Namespace).List(ctx, metav1.ListOptions{
			LabelSelector: at.Label + "=" + at.Value, ResourceVersion: fromCache.ResourceVersion,
		})
		if apierrors.IsForbidden(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("listing the members of etcd in namespace %s: %w", at.Namespace, err)
		}
		pods = append(pods, some.Items...)
	}
	e := progress.ReadEtcd(pods)
	if len(e.Members) == 0 {
		data, err := c.kube.CoreV1().RESTClient().Get().AbsPath(progress.EtcdReadyPath).DoRaw(ctx)
		if !apierrors.IsForbidden(err) {
			e.Trouble = progress.EtcdTrouble(data, err)
		}
	}
	return e, nil
}

// rulesIfKnown returns the rules, or nil with a warning where they can't be read.
func (c *Cluster) rulesIfKnown(ctx context.Context) func([]*progress.Pool) {
	rules, err := c.rules(ctx)
	if err != nil {
		c.warn("%s", rulesUnknown(err))
	}
	return rules
}

func rulesUnknown(err error) string {
	return "the rules of RolloutPolicies are not known: " + Describe(err)
}

// Bypass lets the pool's desired configuration through without most of its RolloutPolicy.
func (c *Cluster) Bypass(ctx context.Context, pool, why string) (said string, err error) {
	return c.changePool(ctx, pool, func(p *mcfgv1.MachineConfigPool) (*change, string, error) {
		who, err := c.whoami(ctx)
		if err != nil {
			return nil, "", err
		}
		state, err := c.staged(ctx, p.Name)
		if err == nil {
			err = bypassable(p, state)
		} else {
			c.warn("whether there is anything to bypass is not known: %s", Describe(err))
			err = nil // in an emergency the right to list things must not be missing
		}
		if err != nil {
			return nil, "", err
		}
		return bypass(p, who, why, rollout.Now())
	})
}

// EndBypass makes a pool follow its RolloutPolicy again.
func (c *Cluster) EndBypass(ctx context.Context, pool string) (said string, err error) {
	return c.changePool(ctx, pool, func(p *mcfgv1.MachineConfigPool) (*change, string, error) {
		if p.Annotations[api.BypassKey] == "" {
			return nil, fmt.Sprintf("pool %s has no bypass", p.Name), nil
		}
		return &change{annotations: map[string]any{api.BypassKey: nil}},
			fmt.Sprintf("pool %s follows its RolloutPolicy again", p.Name), nil
	})
}

// pinned returns the configuration to which a person rolled the pool back, or nil. The render controller may not have
// acted on it yet.
func pinned(p *mcfgv1.MachineConfigPool) (*api.Pin, error) {
	pin, err := api.Decode[*api.Pin](p.Annotations, api.PinKey)
	if err != nil {
		return nil, fmt.Errorf("MachineConfigPool %s: %w", p.Name, err)
	}
	return pin, nil
}

// bypassable returns an error where there is nothing to bypass: a record of an emergency that was none.
func bypassable(p *mcfgv1.MachineConfigPool, state progress.Pool) error {
	pin, err := pinned(p)
	if err != nil {
		return err
	}
	switch {
	case state.Rules.Policy == "" && state.Rules.Hold == nil && state.Noted == nil && state.Reported == nil:
		return fmt.Errorf("nothing is to be bypassed: no RolloutPolicy is in force for pool %s", p.Name)
	case state.Machines > 0 && state.Complete() && state.Rules.Unproved == nil && !state.Rendering &&
		(pin == nil || pin.Config == state.Target):
		return fmt.Errorf("nothing is to be bypassed: all nodes of pool %s have %s", p.Name, state.Target)
	}
	return nil
}

// bypass records the bypass for the pool's desired configuration. After a rollback that is the pin's, even before the
// pool has it.
func bypass(p *mcfgv1.MachineConfigPool, who, why string, now time.Time) (*change, string, error) {
	pin, err := pinned(p)
	if err != nil {
		return nil, "", err
	}
	target := p.Spec.Configuration.Name
	if pin != nil {
		target = pin.Config
	}
	if target == "" {
		return nil, "", fmt.Errorf("pool %s has no configuration yet", p.Name)
	}
	was, err := api.Decode[*api.Bypass](p.Annotations, api.BypassKey)
	if err == nil && was != nil && was.Config == target {
		return nil, fmt.Sprintf("pool %s takes %s without the rules of its RolloutPolicy already, by %s at %s (%s); that "+
			"record stays", p.Name, target, was.By, was.Since.UTC().Format(time.RFC3339), was.Why), nil
	}
	b := api.Bypass{Config: target, By: who, Why: message.OneLine(why), Since: now.UTC().Truncate(time.Second)}
	return &change{annotations: map[string]any{api.BypassKey: api.Encode(b)}}, fmt.Sprintf(
		"pool %s takes %s without the %s of its RolloutPolicy; kubectl refit bypass %s --end takes that back",
		p.Name, target, progress.Bypassed, p.Name), nil
}
