// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/signature"
)

// imageOverridden is an annotation of rendered configurations, as in OpenShift.
const imageOverridden = "machineconfiguration.openshift.io/os-image-url-overridden"

// unusableError is the error of a rendered configuration that can't be used under its name. Trying again does not help.
type unusableError struct{ error }

func isUnusable(err error) bool {
	_, ok := errors.AsType[unusableError](err)
	return ok
}

// verify parses a rendered configuration, and checks that its content has the digest of its name.
func verify(mc *mcfgv1.MachineConfig) (*machineconfig.Config, error) {
	c, err := machineconfig.Parse(mc)
	if err != nil {
		return nil, unusableError{err}
	}
	if !machineconfig.NamedBy(mc.Name, c.Digest) {
		return nil, unusableError{fmt.Errorf("MachineConfig/%s: its content has the digest %s", mc.Name, c.Digest)}
	}
	return c, nil
}

// take reads a rendered configuration from the API server, with its content.
func (r *reconciler) take(ctx context.Context, name string) (*machineconfig.Config, error) {
	mc := &mcfgv1.MachineConfig{}
	err := r.live.Get(ctx, client.ObjectKey{Name: name}, mc)
	if apierrors.IsNotFound(err) {
		return nil, unusableError{fmt.Errorf("MachineConfig/%s: is not there", name)}
	}
	if err != nil {
		return nil, fmt.Errorf("reading MachineConfig/%s: %w", name, err)
	}
	return verify(mc)
}

// publish makes sure that the rendered object is there, has the content that its name stands for, and belongs to the
// pool.
func (r *reconciler) publish(ctx context.Context, pool *mcfgv1.MachineConfigPool, to *rendering) error {
	osImageURLOverride.WithLabelValues(pool.Name).Set(0)
	if to.overridden() {
		osImageURLOverride.WithLabelValues(pool.Name).Set(1)
	}
	err := r.provide(ctx, pool, to)
	if apierrors.IsAlreadyExists(err) {
		// Another program made the object meanwhile, or the object that was removed is still there. A second look finds out.
		err = r.provide(ctx, pool, to)
	}
	return err
}

func (r *reconciler) provide(ctx context.Context, pool *mcfgv1.MachineConfigPool, to *rendering) error {
	name := to.config.Name
	known := &mcfgv1.MachineConfig{}
	if err := r.cached.Get(ctx, client.ObjectKey{Name: name}, known); err == nil &&
		known.DeletionTimestamp == nil && r.genuine[name] == identify(known) && owns(pool, known) {
		return nil
	}
	found := &mcfgv1.MachineConfig{}
	err := r.live.Get(ctx, client.ObjectKey{Name: name}, found)
	if apierrors.IsNotFound(err) {
		return r.create(ctx, pool, to)
	}
	if err != nil {
		return fmt.Errorf("reading MachineConfig/%s: %w", name, err)
	}
	if found.DeletionTimestamp != nil {
		return leaving(found)
	}
	if _, err := verify(found); err != nil {
		if err := r.refuse(ctx, pool, found, err); err != nil {
			return err
		}
		return r.create(ctx, pool, to)
	}
	r.genuine[name] = identify(found)
	return r.adopt(ctx, pool, found)
}

// carriedPolicy returns the drift policy of a pool as its rendered configurations carry it to the nodes, "" for the
// default. Nodes know their configurations, but not their pool. The policy is not part of the rendered content, so that
// another policy is no rollout. The pool controller reports a policy that can't be read, which is replaced by a careful
// one here.
func carriedPolicy(pool *mcfgv1.MachineConfigPool) string {
	p, err := api.ParseDriftPolicy(pool.Annotations[api.DriftPolicyKey])
	if err != nil {
		p = api.Careful()
	}
	p.Paused = pool.Spec.Paused && p.WritesBack()
	if reflect.DeepEqual(p, api.DriftPolicy{}) {
		return ""
	}
	return api.Encode(p)
}

// carried are the annotations that a pool's rendered configurations carry to its nodes; "" means no annotation. They
// are not part of the rendered content, so that a change of them is no rollout.
type carried map[string]string

// carried returns what the pool's nodes have to know besides their configuration. problem is what is wrong with the
// pool's hooks.
func (r *reconciler) carried(ctx context.Context, pool *mcfgv1.MachineConfigPool) (c carried, problem, err error) {
	get := func(name string) (*api.NodeHook, error) {
		if !r.watching(kindNodeHook) {
			return nil, nil
		}
		hook := &api.NodeHook{}
		got := r.cached.Get(ctx, client.ObjectKey{Name: name}, hook)
		if apierrors.IsNotFound(got) {
			return nil, nil
		}
		if got != nil {
			err = fmt.Errorf("reading NodeHook/%s: %w", name, got)
		}
		return hook, err
	}
	hooks, problem := api.CarryHooks(pool.Annotations[api.HooksKey], get)
	if err != nil {
		return nil, nil, err
	}
	c = carried{api.DriftPolicyKey: carriedPolicy(pool), api.HooksKey: ""}
	if len(hooks) > 0 {
		c[api.HooksKey] = api.Encode(hooks)
	}
	return c, problem, nil
}

// carry writes the annotations to all existing rendered configurations of the pool, since its nodes may be on any of
// them.
func (r *reconciler) carry(
	ctx context.Context, pool *mcfgv1.MachineConfigPool, want carried, signatures []string,
) error {
	list, err := r.list(ctx, func(mc *mcfgv1.MachineConfig) bool {
		return machineconfig.PoolOf(mc.Name) == pool.Name && mc.DeletionTimestamp == nil
	})
	if err != nil {
		return err
	}
	for _, mc := range list {
		annotations := map[string]any{}
		want := maps.Clone(want)
		want[api.SignaturesKey] = signature.Carried(mc.Name, mc.Annotations[api.SignaturesKey], signatures)
		for key, value := range want {
			switch {
			case mc.Annotations[key] == value:
			case value == "":
				annotations[key] = nil // removes the annotation
			default:
				annotations[key] = value
			}
		}
		if len(annotations) == 0 {
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": mc.UID, "annotations": annotations}})
		if err != nil {
			return err
		}
		to := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: mc.Name}}
		to.SetGroupVersionKind(mcfgv1.GroupVersion.WithKind("MachineConfig"))
		if err := r.cached.Patch(ctx, to, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("carrying the drift policy, hooks and signatures to MachineConfig/%s: %w", mc.Name, err)
		}
	}
	return nil
}

// leaving returns the error of a rendered configuration that is being deleted. No node is sent to such a configuration,
// and no new one can be made while it is there. Only a person who knows the purpose of its finalizers can end that.
func leaving(mc *mcfgv1.MachineConfig) error {
	return fmt.Errorf("MachineConfig/%s: is being deleted since %s, and stays until its finalizers are removed: %s",
		mc.Name, mc.DeletionTimestamp.UTC().Format(time.RFC3339), strings.Join(mc.Finalizers, ", "))
}

func (r *reconciler) create(ctx context.Context, pool *mcfgv1.MachineConfigPool, to *rendering) error {
	mc := to.config.Object.DeepCopy()
	metav1.SetMetaDataAnnotation(&mc.ObjectMeta, api.GeneratedBy, r.version)
	for key, value := range to.carried {
		if value != "" {
			mc.Annotations[key] = value
		}
	}
	if signatures := signature.Carried(mc.Name, "", to.signatures); signatures != "" {
		mc.Annotations[api.SignaturesKey] = signatures
	}
	if to.overridden() {
		mc.Annotations[imageOverridden] = "true"
	}
	own(pool, mc)
	if err := r.cached.Create(ctx, mc); err != nil {
		return fmt.Errorf("creating MachineConfig/%s: %w", mc.Name, err)
	}
	r.genuine[mc.Name] = identify(mc)
	logf.FromContext(ctx).Info("rendered", "pool", pool.Name, "config", mc.Name, "sources", len(to.selected))
	r.event(pool, corev1.EventTypeNormal, eventGenerated, "Render",
		fmt.Sprintf("%s successfully generated (controller version: %s)", mc.Name, r.version))
	if to.overridden() {
		r.event(pool, corev1.EventTypeNormal, eventOverridden, "Render",
			fmt.Sprintf("OSImageURL was overridden via machineconfig in %s (was: %s is: %s)", mc.Name, to.base,
				to.config.OSImageURL))
	}
	if len(to.warnings) > 0 {
		r.event(pool, corev1.EventTypeWarning, eventWarning, "Render", strings.Join(to.warnings, "; "))
	}
	return nil
}

// refuse removes an object whose content does not fit its name. No node would take the object. After that, the pool
// that needs the configuration makes it again, or a node that has it gives it back.
func (r *reconciler) refuse(
	ctx context.Context, pool *mcfgv1.MachineConfigPool, mc *mcfgv1.MachineConfig, why error,
) error {
	if err := r.remove(ctx, mc); err != nil {
		return err
	}
	logf.FromContext(ctx).Info("removed what is not what its name says", "config", mc.Name, "because", why.Error())
	if pool != nil {
		r.event(pool, corev1.EventTypeWarning, eventRefused, "Remove", why.Error()+"; the object was removed")
	}
	return nil
}

// remove deletes exactly the version that was looked at.
func (r *reconciler) remove(ctx context.Context, mc *mcfgv1.MachineConfig) error {
	err := r.cached.Delete(ctx, mc, client.Preconditions{UID: &mc.UID, ResourceVersion: &mc.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing MachineConfig/%s: %w", mc.Name, err)
	}
	delete(r.genuine, mc.Name)
	return nil
}

// adopt makes the pool an owner of a rendered configuration.
func (r *reconciler) adopt(ctx context.Context, pool *mcfgv1.MachineConfigPool, mc *mcfgv1.MachineConfig) error {
	if owns(pool, mc) {
		return nil
	}
	changed := mc.DeepCopy()
	own(pool, changed)
	patch := client.MergeFromWithOptions(mc, client.MergeFromWithOptimisticLock{})
	if err := r.cached.Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("adopting MachineConfig/%s: %w", mc.Name, err)
	}
	logf.FromContext(ctx).Info("adopted", "pool", pool.Name, "config", mc.Name)
	return nil
}

func owns(pool *mcfgv1.MachineConfigPool, mc *mcfgv1.MachineConfig) bool {
	return slices.ContainsFunc(mc.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == pool.UID })
}

// own adds the owner reference of a pool, and removes that of an earlier pool of the same name. The reference does not
// block the deletion of the pool. A node that still needs a configuration of a deleted pool gives it back.
func own(pool *mcfgv1.MachineConfigPool, mc *mcfgv1.MachineConfig) {
	mc.OwnerReferences = slices.DeleteFunc(mc.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == "MachineConfigPool" && o.Name == pool.Name
	})
	others := slices.ContainsFunc(mc.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Controller != nil && *o.Controller
	})
	mc.OwnerReferences = append(mc.OwnerReferences, metav1.OwnerReference{
		APIVersion: mcfgv1.GroupVersion.String(), Kind: "MachineConfigPool", Name: pool.Name, UID: pool.UID,
		Controller: new(!others),
	})
}
