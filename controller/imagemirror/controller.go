// SPDX-License-Identifier: Apache-2.0

// Package imagemirror makes MachineConfigs of the objects that say where images come from and which images are
// accepted: ImageDigestMirrorSets, ImageTagMirrorSets, ImageContentSourcePolicies, the Image, ClusterImagePolicies and
// ImagePolicies. The MachineConfigs bring each pool's registries.conf and policy.json, merged with those of the pool's
// other MachineConfigs, where signatures are, and the files in which containerd looks for mirrors. An annotation
// reports what is wrong with an object, and conditions do where the kind has them.
package imagemirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	operatorv1alpha1 "github.com/openshift/api/operator/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/registries"
)

// Name is the controller's name.
const Name = "imagemirror"

// eventUnmade is the warning on an object from which nothing is made.
const eventUnmade = "ImageMirrorsUnmade"

// noteLimit is the longest note of an event that the API takes, in bytes.
const noteLimit = 1000

// Add adds the controller to a manager. The MachineConfigs that it makes name version as their maker, "unknown" if
// empty. The manager's cache should have source.CacheOptions.
func Add(mgr ctrl.Manager, version string) error {
	scheme := mgr.GetScheme()
	err := errors.Join(mcfgv1.Install(scheme), configv1.Install(scheme), operatorv1alpha1.Install(scheme))
	if err != nil {
		return fmt.Errorf("adding controller %s: %w", Name, err)
	}
	r := &reconciler{
		client: mgr.GetClient(), events: mgr.GetEventRecorder("machineconfigcontroller-imagemirror"),
		version: cmp.Or(version, "unknown"), told: map[types.UID]string{},
	}
	return source.Controller{Name: Name, Kinds: Kinds(), Look: r.look}.Add(mgr)
}

type reconciler struct {
	client client.Client
	events events.EventRecorder
	// version is the version of this program that the MachineConfigs name.
	version string
	// told has what events said of objects that count, by the object.
	told map[types.UID]string
}

// look brings the cluster to what decide returns. It reports what is wrong first, and withdraws such reports last.
func (r *reconciler) look(ctx context.Context, has func(client.Object) bool) error {
	w, err := source.Read(ctx, r.client)
	if err != nil {
		return err
	}
	origins, err := r.origins(ctx, has)
	if err != nil {
		return err
	}
	out := decide(origins, w, r.version)
	var errs []error
	for _, o := range origins {
		r.aside(o)
		if o.unmade() {
			errs = append(errs, r.say(ctx, o))
		}
	}
	for _, mc := range out.write {
		errs = append(errs, source.Write(ctx, r.client, w.Config(mc.Name), mc))
	}
	for _, mc := range out.remove {
		errs = append(errs, source.Remove(ctx, r.client, mc))
	}
	for _, o := range origins {
		if !o.unmade() {
			errs = append(errs, r.say(ctx, o))
		}
	}
	return source.Worst(errs)
}

func (r *reconciler) origins(ctx context.Context, has func(client.Object) bool) ([]*origin, error) {
	var out []*origin
	for _, k := range kinds {
		if !has(k.object) {
			continue
		}
		list, ok := k.list.DeepCopyObject().(client.ObjectList)
		if !ok {
			return nil, fmt.Errorf("listing %T: the value is no list", k.list)
		}
		if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing %T: %w", list, err)
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			if object, ok := item.(client.Object); ok && object.GetDeletionTimestamp() == nil {
				out = append(out, originOf(object))
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("listing %T: %w", list, err)
		}
	}
	return out, nil
}

func (o *origin) unmade() bool { return o.err != nil || len(o.pools) > 0 }

// note returns the annotation that an object should have; "" means no annotation.
func (o *origin) note(now time.Time) string {
	if !o.unmade() {
		return ""
	}
	said := api.Unmade{Generation: o.object.GetGeneration(), Since: now}
	err := o.err
	if err == nil {
		said.Pools = slices.Sorted(maps.Keys(o.pools))
		var errs []error
		for _, pool := range said.Pools {
			errs = append(errs, o.pools[pool])
		}
		err = errors.Join(errs...)
	}
	said.Reason = api.ShortReason(err.Error())
	was, _ := api.Decode[*api.Unmade](o.object.GetAnnotations(), api.UnmadeKey)
	if was != nil && was.Reason == said.Reason {
		said.Since = was.Since
	}
	return api.Encode(said)
}

// say writes what became of an object, where that has changed: its conditions where the kind has them, and its
// annotation. An object of a tenant has no annotation, since pools report that, and no event, since the controller may
// write none in other namespaces.
func (r *reconciler) say(ctx context.Context, o *origin) error {
	err := r.setConditions(ctx, o)
	if o.tenant() {
		return err
	}
	return errors.Join(err, r.annotate(ctx, o))
}

func (r *reconciler) annotate(ctx context.Context, o *origin) error {
	note := o.note(time.Now().UTC().Truncate(time.Second))
	if o.object.GetAnnotations()[api.UnmadeKey] == note {
		return nil
	}
	changed, ok := o.object.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("recording the failure of %s: the value is no Kubernetes object", o)
	}
	annotations := maps.Clone(changed.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	delete(annotations, api.UnmadeKey)
	if note != "" {
		annotations[api.UnmadeKey] = note
	}
	changed.SetAnnotations(annotations)
	if err := r.client.Patch(ctx, changed, client.MergeFrom(o.object)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("recording the failure of %s: %w", o, err)
	}
	logf.FromContext(ctx).Info("recorded the outcome", "object", o.String(), "unmade", note)
	if note != "" {
		text := note
		if said, err := api.Decode[*api.Unmade](annotations, api.UnmadeKey); err == nil && said != nil {
			text = said.Reason
		}
		r.warn(o, text)
	}
	return nil
}

// warn sends the event about an object of which something has no effect.
func (r *reconciler) warn(o *origin, text string) {
	if len(text) > noteLimit {
		text = strings.ToValidUTF8(text[:noteLimit], "")
	}
	r.events.Eventf(o.object, nil, corev1.EventTypeWarning, eventUnmade, "Make", "%s", text)
}

// aside sends an event about the part of an object that has no effect while the rest counts, once for each text.
// Objects with conditions get no event.
func (r *reconciler) aside(o *origin) {
	text := ""
	if o.beside != nil && o.demand == nil {
		text = o.beside.Error()
	}
	if uid := o.object.GetUID(); r.told[uid] != text {
		r.told[uid] = text
		if text != "" {
			r.warn(o, text)
		}
	}
}

// Sources returns the mirrors that the objects of a cluster ask for. A wrong object asks for none. has reports whether
// the cluster has one of the kinds.
func Sources(ctx context.Context, from client.Client, has func(client.Object) bool) ([]registries.Source, error) {
	origins, err := (&reconciler{client: from}).origins(ctx, has)
	if err != nil {
		return nil, err
	}
	return sources(counting(arrange(origins), nil)), nil
}

// kinds are the kinds that MachineConfigs are made of, and their lists.
var kinds = []struct {
	object client.Object
	list   client.ObjectList
}{
	{&configv1.ImageDigestMirrorSet{}, &configv1.ImageDigestMirrorSetList{}},
	{&configv1.ImageTagMirrorSet{}, &configv1.ImageTagMirrorSetList{}},
	{&operatorv1alpha1.ImageContentSourcePolicy{}, &operatorv1alpha1.ImageContentSourcePolicyList{}},
	{&configv1.Image{}, &configv1.ImageList{}},
	{&configv1.ClusterImagePolicy{}, &configv1.ClusterImagePolicyList{}},
	{&configv1.ImagePolicy{}, &configv1.ImagePolicyList{}},
}

// Kinds are the kinds that MachineConfigs are made of.
func Kinds() []client.Object {
	out := make([]client.Object, 0, len(kinds))
	for _, k := range kinds {
		out = append(out, k.object)
	}
	return out
}
