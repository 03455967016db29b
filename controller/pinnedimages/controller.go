// SPDX-License-Identifier: Apache-2.0

// Package pinnedimages tells each node which PinnedImageSets it is to have, and reports on the pools how far their
// nodes are. The agents read the sets that they are told of by name, when they are told: they watch nothing for that.
package pinnedimages

import (
	"context"
	"errors"
	"fmt"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/defined"
	"github.com/noderefit/noderefit/controller/source"
)

// Name is the controller's name.
const Name = "pinnedimages"

// pace is the time between two looks without a change of an object: what agents say comes in between.
const pace = 10 * time.Second

// The names of the definitions of PinnedImageSets and of pools.
const (
	policyDefinition = "rolloutpolicies.noderefit.dev"
	setDefinition    = "pinnedimagesets.machineconfiguration.openshift.io"
	poolDefinition   = "machineconfigpools.machineconfiguration.openshift.io"
)

// Add adds the controller to a manager. now is the clock by which windows are open.
func Add(mgr ctrl.Manager, now func() time.Time) error {
	if err := errors.Join(mcfgv1.Install(mgr.GetScheme()), api.Install(mgr.GetScheme())); err != nil {
		return fmt.Errorf("adding controller %s: %w", Name, err)
	}
	r := &reconciler{client: mgr.GetClient(), now: now, defined: defined.NewWatch(mgr.GetAPIReader(), time.Now)}
	return source.Controller{Name: Name, Kinds: []client.Object{&mcfgv1.PinnedImageSet{}, &api.RolloutPolicy{}},
		Look: r.look, Every: pace}.Add(mgr)
}

// reconciler is used by one worker.
type reconciler struct {
	client  client.Client
	now     func() time.Time
	defined *defined.Watch
	said    string
	// missed is since when pools have lacked a policy that they have a note of.
	missed map[string]time.Time
}

// look tells Nodes and pools once. Without the kind PinnedImageSet in the cluster, look does nothing.
func (r *reconciler) look(ctx context.Context, has func(client.Object) bool) error {
	if !has(&mcfgv1.PinnedImageSet{}) {
		return nil
	}
	w, err := r.read(ctx, has(&api.RolloutPolicy{}))
	if err != nil {
		return err
	}
	to := decide(w, r.now())
	why, err := r.away(ctx, w, to)
	if err != nil {
		return err
	}
	errs := []error{r.missPolicies(ctx, to)}
	if r.note(ctx, why); why != "" {
		to.hold(why)
	}
	for i := range w.nodes {
		n := &w.nodes[i]
		if order, known := to.orders[n.Name]; known {
			errs = append(errs, r.tell(ctx, n, order))
		}
	}
	for i := range w.pools {
		errs = append(errs, r.say(ctx, &w.pools[i], to.pools[w.pools[i].Name]))
	}
	return errors.Join(errs...)
}

// away returns why sets or pools are missing although no person decided that nodes let go of their images: sets and
// pools go with their definitions. why is empty if no set or pool is missing so. Without any pool no node is told
// anything.
func (r *reconciler) away(ctx context.Context, w world, to decision) (why string, err error) {
	if len(w.pools) == 0 {
		return "there are no MachineConfigPools", nil
	}
	if name, told := lost(w); name != "" {
		why, _, err = r.defined.Away(ctx, setDefinition, told)
	}
	if err == nil && why == "" && !to.left.IsZero() {
		why, _, err = r.defined.Away(ctx, poolDefinition, to.left)
	}
	return why, err
}

// noteLimit is how long a pool may keep the note of a policy that a person deleted. The pool controller takes the note
// away within moments.
const noteLimit = time.Minute

// missPolicies has pools say that their policy went with its definition, or why that is not known.
func (r *reconciler) missPolicies(ctx context.Context, to decision) error {
	missed := map[string]time.Time{}
	var errs []error
	for name, s := range to.pools {
		if s.policy == nil {
			continue
		}
		if missed[name] = r.missed[name]; missed[name].IsZero() {
			missed[name] = r.now()
		}
		why, _, err := r.defined.Away(ctx, policyDefinition, s.policy.Created)
		switch {
		case err != nil:
			why, errs = err.Error(), append(errs, err)
		case why == "" && r.now().Sub(missed[name]) >= noteLimit:
			why = "the pool keeps the annotation with the policy's name; condition WritesRefused may say why"
		}
		if why != "" {
			s.wrong = fmt.Sprintf("RolloutPolicy/%s is away, so nodes keep their orders to pull images, and no other node "+
				"begins: %s; apply the policy again, or, if the pool shall have no policy any more: kubectl annotate mcp %s %s-",
				s.policy.Name, why, name, api.RolloutPolicyKey)
			to.pools[name] = s
		}
	}
	r.missed = missed
	return errors.Join(errs...)
}

// note logs once why nodes keep their orders.
func (r *reconciler) note(ctx context.Context, why string) {
	if why != r.said && why != "" {
		logf.FromContext(ctx).Info("nodes keep the images that they have", "because", why)
	}
	r.said = why
}

func (r *reconciler) read(ctx context.Context, policies bool) (w world, err error) {
	var sets mcfgv1.PinnedImageSetList
	var nodes corev1.NodeList
	var pools mcfgv1.MachineConfigPoolList
	var rules api.RolloutPolicyList
	lists := map[string]client.ObjectList{"PinnedImageSets": &sets, "Nodes": &nodes, "pools": &pools}
	if policies {
		lists["RolloutPolicies"] = &rules
	}
	for kind, list := range lists {
		if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return w, fmt.Errorf("listing %s: %w", kind, err)
		}
	}
	w.nodes, w.policies = nodes.Items, rules.Items
	for i := range sets.Items {
		if sets.Items[i].DeletionTimestamp == nil {
			w.sets = append(w.sets, sets.Items[i])
		}
	}
	for i := range pools.Items {
		if pools.Items[i].DeletionTimestamp == nil {
			w.pools = append(w.pools, pools.Items[i])
		}
	}
	return w, nil
}

// tell writes the order of a Node where the order has changed.
func (r *reconciler) tell(ctx context.Context, n *corev1.Node, order *api.PinOrder) error {
	value := ""
	if order != nil {
		value = api.Encode(order)
	}
	if value == n.Annotations[api.PinOrderKey] {
		return nil
	}
	return source.Annotate(ctx, r.client, n, api.PinOrderKey, value)
}

// say writes the status of a pool where it has changed.
func (r *reconciler) say(ctx context.Context, pool *mcfgv1.MachineConfigPool, s poolState) error {
	changed := pool.DeepCopy()
	if !show(&changed.Status, s, pool.Generation, r.now()) {
		return nil
	}
	patch := client.MergeFromWithOptions(pool, client.MergeFromWithOptimisticLock{})
	if err := r.client.Status().Patch(ctx, changed, patch); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reporting the pinned images of MachineConfigPool/%s: %w", pool.Name, err)
	}
	return nil
}
