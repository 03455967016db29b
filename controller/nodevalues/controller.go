// SPDX-License-Identifier: Apache-2.0

// Package nodevalues judges NodeValues by the schemas of pools, and writes the values that are in force to the Nodes.
// The pool controller and kubectl refit read these values from the Node, as all other values. No other program needs a
// right to NodeValues.
package nodevalues

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
)

// Name is the controller's name.
const Name = "nodevalues"

// pace is the time between two looks without a change of NodeValues. Another client may have changed the annotation of
// a Node meanwhile.
const pace = time.Minute

// Add adds the controller to a manager.
func Add(mgr ctrl.Manager) error {
	if err := errors.Join(mcfgv1.Install(mgr.GetScheme()), api.Install(mgr.GetScheme())); err != nil {
		return fmt.Errorf("adding controller %s: %w", Name, err)
	}
	r := &reconciler{client: mgr.GetClient(), schemas: map[string]compiled{}}
	return source.Controller{Name: Name, Kinds: []client.Object{&api.NodeValues{}}, Look: r.look, Every: pace}.Add(mgr)
}

// reconciler is used by one worker.
type reconciler struct {
	client client.Client
	// schemas are those that were read, by their text.
	schemas map[string]compiled
}

type compiled struct {
	is  *schema
	err error
}

// look does nothing until the cluster has the kind.
func (r *reconciler) look(ctx context.Context, has func(client.Object) bool) error {
	if !has(&api.NodeValues{}) {
		return nil
	}
	var objects api.NodeValuesList
	var nodes corev1.NodeList
	var pools mcfgv1.MachineConfigPoolList
	for kind, list := range map[string]client.ObjectList{"NodeValues": &objects, "Nodes": &nodes, "pools": &pools} {
		if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("listing %s: %w", kind, err)
		}
	}
	used := map[string]compiled{}
	w := world{objects: objects.Items, nodes: nodes.Items, pools: pools.Items}
	to := decide(w, func(text string) (*schema, error) {
		c, known := r.schemas[text]
		if !known {
			c.is, c.err = newSchema(text)
		}
		r.schemas[text], used[text] = c, c
		return c.is, c.err
	})
	r.schemas = used
	var errs []error
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if text := to.entries[n.Name]; text != n.Annotations[api.EntriesKey] {
			errs = append(errs, r.note(ctx, n, text))
		}
	}
	for i := range objects.Items {
		o := &objects.Items[i]
		errs = append(errs, r.say(ctx, o, to.ready[o.Name]))
	}
	return errors.Join(errs...)
}

// note writes what is in force on a Node, and takes it away where nothing is.
func (r *reconciler) note(ctx context.Context, n *corev1.Node, text string) error {
	if err := source.Annotate(ctx, r.client, n, api.EntriesKey, text); err != nil {
		return err
	}
	logf.FromContext(ctx).Info("noted the values of a node", "node", n.Name, "any", text != "")
	return nil
}

// say writes a condition where it has changed.
func (r *reconciler) say(ctx context.Context, o *api.NodeValues, ready metav1.Condition) error {
	status := *o.Status.DeepCopy()
	status.ObservedGeneration = o.Generation
	meta.SetStatusCondition(&status.Conditions, ready)
	if equality.Semantic.DeepEqual(status, o.Status) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.UID}, "status": status})
	if err != nil {
		return err
	}
	is := &api.NodeValues{ObjectMeta: metav1.ObjectMeta{Name: o.Name}}
	err = r.client.Status().Patch(ctx, is, client.RawPatch(types.MergePatchType, patch))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reporting on NodeValues/%s: %w", o.Name, err)
	}
	return nil
}
