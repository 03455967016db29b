// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
)

// part is an object that another controller makes MachineConfigs from.
type part struct {
	kind, name string
	// pool is the name of the pool that the part is for, where the part names its pool instead of selecting pools.
	pool string
	// selector selects the pools that the part is for. As upstream, a missing or empty selector selects no pool.
	selector *metav1.LabelSelector
	// every is true where the part has no selector and is for all pools.
	every                bool
	generation, observed int64
	created              metav1.Time
	// conditions are in the object's order, the latest last.
	conditions []partCondition
}

type partCondition struct {
	kind, reason, message string
	status                corev1.ConditionStatus
	since                 metav1.Time
}

// waitingFor returns the parts of a pool that are not finished, each with its name, since when, and its own reason.
// refused has the parts that were refused.
func waitingFor(pool *mcfgv1.MachineConfigPool, parts []part) (waiting, refused []string) {
	for _, p := range parts {
		if p.pool != "" && p.pool != pool.Name {
			continue
		}
		why, since := p.unfinished()
		selector, err := metav1.LabelSelectorAsSelector(p.selector)
		if err != nil {
			if why == "" || !p.refused() {
				waiting = append(waiting, fmt.Sprintf("%s/%s: spec.machineConfigPoolSelector: %v", p.kind, p.name, err))
			}
			continue
		}
		if why == "" || !p.every && (selector.Empty() || !selector.Matches(labels.Set(pool.Labels))) {
			continue
		}
		said := fmt.Sprintf("%s/%s since %s: %s", p.kind, p.name, since.UTC().Format(time.RFC3339), why)
		if p.refused() {
			refused = append(refused, said)
		} else {
			waiting = append(waiting, said)
		}
	}
	slices.Sort(waiting)
	slices.Sort(refused)
	return waiting, refused
}

// altered returns the MachineConfigs of templates that were changed since. The template controller is about to put them
// back, and no node shall get the change. Where no MachineConfig is made of templates, no controller puts them back,
// and the result is empty.
func altered(r *rendering, parts []part) []string {
	if r == nil || !slices.ContainsFunc(parts, func(p part) bool { return p.kind == kindControllerConfig }) {
		return nil
	}
	var out []string
	for _, d := range r.selected {
		if source.Altered(d.Object) {
			out = append(out, fmt.Sprintf("MachineConfig/%s: the object was changed, and the template controller has not "+
				"restored the object; is that controller running?", d.Object.Name))
		}
	}
	return out
}

// refused reports whether the controller of a part does not accept the part as it is now, and has left what it made
// before. A refused part holds nothing up. The older condition Failure does, since a controller that writes Failure
// leaves nothing behind.
func (p part) refused() bool {
	if len(p.conditions) == 0 || p.observed < p.generation {
		return false
	}
	last := p.conditions[len(p.conditions)-1]
	return last.kind == string(mcfgv1.KubeletConfigAccepted) && last.status == corev1.ConditionFalse
}

// unfinished returns what a part still lacks, and "" if it is finished. A part is finished when its controller has seen
// the present generation, and the last condition reports success.
func (p part) unfinished() (why string, since metav1.Time) {
	if len(p.conditions) == 0 {
		return "no condition yet; is its controller running?", p.created
	}
	last := p.conditions[len(p.conditions)-1]
	if p.observed < p.generation {
		return fmt.Sprintf("generation %d is not handled yet, %d is", p.generation, p.observed), last.since
	}
	if last.status == corev1.ConditionTrue && finished[last.kind] {
		return "", metav1.Time{}
	}
	why = fmt.Sprintf("%s is %s", last.kind, last.status)
	if text := cmp.Or(last.message, last.reason); text != "" {
		why += ": " + api.ShortReason(text)
	}
	return why, last.since
}

// finished has the conditions that report success. Both KubeletConfigs and ContainerRuntimeConfigs have Success.
var finished = map[string]bool{
	string(mcfgv1.KubeletConfigAccepted):       true,
	string(mcfgv1.KubeletConfigSuccess):        true,
	string(mcfgv1.TemplateControllerCompleted): true,
}

// parts returns what pools are made of besides MachineConfigs, of the kinds that the cluster has.
func (r *reconciler) parts(ctx context.Context) ([]part, error) {
	var out []part
	if r.watching(kindKubeletConfig) {
		list := &mcfgv1.KubeletConfigList{}
		if err := r.cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing KubeletConfigs: %w", err)
		}
		for i := range list.Items {
			out = append(out, kubeletPart(&list.Items[i]))
		}
	}
	if r.watching(kindContainerRuntimeConfig) {
		list := &mcfgv1.ContainerRuntimeConfigList{}
		if err := r.cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing ContainerRuntimeConfigs: %w", err)
		}
		for i := range list.Items {
			out = append(out, runtimePart(&list.Items[i]))
		}
	}
	if r.watching(kindControllerConfig) {
		list := &mcfgv1.ControllerConfigList{}
		if err := r.cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing ControllerConfigs: %w", err)
		}
		for i := range list.Items {
			if cc := &list.Items[i]; cc.Name == api.ControllerConfig && templated(cc) {
				out = append(out, templatePart(cc))
			}
		}
	}
	for _, gvk := range mirrorKinds {
		if !r.watching(gvk.Kind) {
			continue
		}
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err := r.cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing the kind %s: %w", gvk.Kind, err)
		}
		for i := range list.Items {
			out = append(out, mirrorParts(gvk.Kind, &list.Items[i])...)
		}
	}
	return out, nil
}

// mirrorParts returns no part for mirrors that are as they should be. Otherwise it returns one part, or one for each
// pool that lacks the mirrors. What was made of the mirrors before stays, so they hold nothing up.
func mirrorParts(kind string, o *metav1.PartialObjectMetadata) []part {
	if o.Annotations[api.UnmadeKey] == "" || o.DeletionTimestamp != nil {
		return nil
	}
	said, err := api.Decode[api.Unmade](o.Annotations, api.UnmadeKey)
	if err != nil {
		said.Reason = err.Error() // its controller is about to correct the annotation
	}
	p := part{kind: kind, name: o.Name, every: true, created: o.CreationTimestamp, conditions: []partCondition{{
		kind: string(mcfgv1.KubeletConfigAccepted), status: corev1.ConditionFalse, message: said.Reason,
		since: metav1.NewTime(said.Since),
	}}}
	if said.Pools == nil {
		return []part{p}
	}
	var out []part
	for _, pool := range said.Pools {
		p.pool = pool
		out = append(out, p)
	}
	return out
}

// templated reports whether MachineConfigs are made of a ControllerConfig, or are going to be. A pool is not rendered
// with only half of these. Any other ControllerConfig only names the default images, and needs no waiting.
func templated(cc *mcfgv1.ControllerConfig) bool {
	return cc.Annotations[api.Templates] != "" || len(cc.Status.Conditions) > 0
}

func kubeletPart(o *mcfgv1.KubeletConfig) part {
	p := part{
		kind: kindKubeletConfig, name: o.Name, selector: o.Spec.MachineConfigPoolSelector,
		generation: o.Generation, observed: o.Status.ObservedGeneration, created: o.CreationTimestamp,
	}
	for _, c := range o.Status.Conditions {
		p.conditions = append(p.conditions,
			partCondition{string(c.Type), c.Reason, c.Message, c.Status, c.LastTransitionTime})
	}
	return p
}

func runtimePart(o *mcfgv1.ContainerRuntimeConfig) part {
	p := part{
		kind: kindContainerRuntimeConfig, name: o.Name, selector: o.Spec.MachineConfigPoolSelector,
		generation: o.Generation, observed: o.Status.ObservedGeneration, created: o.CreationTimestamp,
	}
	for _, c := range o.Status.Conditions {
		p.conditions = append(p.conditions,
			partCondition{string(c.Type), c.Reason, c.Message, c.Status, c.LastTransitionTime})
	}
	return p
}

// templatePart picks the conditions about templates being finished or failing. A ControllerConfig's conditions are
// independent of each other and in no order.
func templatePart(o *mcfgv1.ControllerConfig) part {
	p := part{
		kind: kindControllerConfig, name: o.Name, every: true,
		generation: o.Generation, observed: o.Status.ObservedGeneration, created: o.CreationTimestamp,
	}
	of := func(kind mcfgv1.ControllerConfigStatusConditionType) {
		for _, c := range o.Status.Conditions {
			if c.Type == kind && (kind == mcfgv1.TemplateControllerCompleted || c.Status == corev1.ConditionTrue) {
				p.conditions = append(p.conditions,
					partCondition{string(c.Type), c.Reason, c.Message, c.Status, c.LastTransitionTime})
			}
		}
	}
	of(mcfgv1.TemplateControllerCompleted)
	of(mcfgv1.TemplateControllerFailing)
	return p
}
