// SPDX-License-Identifier: Apache-2.0

// Package template makes the MachineConfigs that every node of a role has, from a set of templates and the
// ControllerConfig. The package does so only where the ControllerConfig names a set. The package restores its
// MachineConfigs after changes from outside. Of the ControllerConfig the package writes the status.
package template

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
)

// Name is the controller's name on the command line.
const Name = "template"

const kindControllerConfig = "ControllerConfig"

// The reasons of events on the MachineConfig and about the ControllerConfig.
const (
	eventMade     = "TemplateApplied"
	eventChanged  = "TemplateChanged"
	eventRestored = "TemplateRestored" // a change from outside was undone
	eventGone     = "TemplateRemoved"
)

// dirPace is the time between two looks at a folder of templates. Changes in the folder are not reported otherwise.
const dirPace = time.Minute

// Options are the options of the controller.
type Options struct {
	// Version is the maker's version in MachineConfigs, "unknown" if empty.
	Version string
	Sets    Sets
}

// Add adds the controller to a manager, whose cache should have source.CacheOptions.
func (o Options) Add(mgr ctrl.Manager) error {
	if err := mcfgv1.Install(mgr.GetScheme()); err != nil {
		return fmt.Errorf("adding controller %s: %w", Name, err)
	}
	r := &reconciler{
		client: mgr.GetClient(), events: mgr.GetEventRecorder("machineconfigcontroller-templatecontroller"),
		sets: o.Sets, version: cmp.Or(o.Version, "unknown"),
	}
	kind := &mcfgv1.ControllerConfig{}
	c := source.Controller{Name: Name, Kinds: []client.Object{kind}, Look: func(
		ctx context.Context, has func(client.Object) bool,
	) error {
		if !has(kind) {
			return nil
		}
		return r.look(ctx)
	}}
	if o.Sets.Dir != "" {
		c.Every = dirPace
	}
	return c.Add(mgr)
}

type reconciler struct {
	client  client.Client
	events  events.EventRecorder
	sets    Sets
	version string
}

// look looks at everything: the one ControllerConfig and the MachineConfigs made of it.
func (r *reconciler) look(ctx context.Context) error {
	cc := &mcfgv1.ControllerConfig{}
	err := r.client.Get(ctx, client.ObjectKey{Name: api.ControllerConfig}, cc)
	if apierrors.IsNotFound(err) || err == nil && cc.DeletionTimestamp != nil {
		return nil // Kubernetes' garbage collector removes what was made of it
	}
	if err != nil {
		return fmt.Errorf("reading ControllerConfig/%s: %w", api.ControllerConfig, err)
	}
	set := cc.Annotations[api.Templates]
	if set == "" {
		_, err := r.say(ctx, cc, withdrawn(cc))
		return err
	}
	if err := api.Unreadable(cc); err != nil {
		return r.fail(ctx, cc, outcome{reasonUnreadable, err.Error()})
	}
	wanted, err := r.sets.make(cc, r.version)
	if err != nil {
		return r.fail(ctx, cc, outcome{reasonTemplates, source.OneLine(err)})
	}
	w, err := source.Read(ctx, r.client)
	if err != nil {
		return err
	}
	d := decide(wanted, w.Configs)
	if err := d.refused(); err != nil {
		return r.fail(ctx, cc, outcome{reasonTaken, err.Error()})
	}
	if n := len(d.changes); n > 0 {
		// No pool is rendered meanwhile: a part of a set is not a configuration.
		to := outcome{reasonRunning, fmt.Sprintf("%d of %d MachineConfigs have to be written", n, len(wanted))}
		if cc, err = r.say(ctx, cc, status(cc, to, 0, metav1.Now())); err != nil {
			return err
		}
	}
	for _, c := range d.changes {
		if err := r.apply(ctx, cc, c); source.Behind(err) {
			return err
		} else if err != nil {
			return errors.Join(err, r.fail(ctx, cc, outcome{reasonWrite, source.Untold(err)}))
		}
	}
	_, err = r.say(ctx, cc, status(cc, outcome{}, len(wanted), metav1.Now()))
	return err
}

func (r *reconciler) apply(ctx context.Context, cc *mcfgv1.ControllerConfig, c change) error {
	about, kind := c.to, corev1.EventTypeNormal
	var err error
	if c.to == nil {
		about = c.is
		err = source.Remove(ctx, r.client, c.is)
	} else {
		err = source.Write(ctx, r.client, c.is, c.to)
	}
	if err != nil {
		return err
	}
	if c.event == eventRestored {
		kind = corev1.EventTypeWarning
	}
	r.events.Eventf(about, cc, kind, c.event, "Template", "MachineConfig/%s: %s", about.Name, c.reason)
	return nil
}

// fail reports the error in the ControllerConfig's status. The MachineConfigs stay as they are.
func (r *reconciler) fail(ctx context.Context, cc *mcfgv1.ControllerConfig, o outcome) error {
	_, err := r.say(ctx, cc, status(cc, o, 0, metav1.Now()))
	return err
}

// say writes the status, and returns the ControllerConfig after that.
func (r *reconciler) say(
	ctx context.Context, cc *mcfgv1.ControllerConfig, s mcfgv1.ControllerConfigStatus,
) (*mcfgv1.ControllerConfig, error) {
	if equality.Semantic.DeepEqual(&cc.Status, &s) {
		return cc, nil
	}
	changed := cc.DeepCopy()
	changed.Status = s
	patch := client.MergeFromWithOptions(cc, client.MergeFromWithOptimisticLock{})
	if err := r.client.Status().Patch(ctx, changed, patch); err != nil {
		return cc, fmt.Errorf("setting the status of ControllerConfig/%s: %w", cc.Name, err)
	}
	for _, c := range s.Conditions {
		if c.Type == mcfgv1.TemplateControllerFailing && c.Status == corev1.ConditionTrue {
			logf.FromContext(ctx).Info("templates can't be applied", "reason", c.Reason, "message", c.Message)
		}
	}
	return changed, nil
}
