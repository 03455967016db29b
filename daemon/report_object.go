// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

// machineConfigNode is our MachineConfigNode: what the object should report, and what it reports as far as known. The
// head reads the object once, and no other process writes it; but it may be deleted.
type machineConfigNode struct {
	wanted, said objectReport
	read         bool
	lookAt       time.Time // when the head checks again that the object exists
	generation   int64
	// update is written along with the desired configuration: a write of its own would be too much.
	update api.Update
}

// objectReport is our part of a MachineConfigNode.
type objectReport struct {
	node             types.UID
	desired, current string
	drain, hook      string // the annotations
	conditions       []metav1.Condition
	irreconcilable   []mcfgv1.IrreconcilableChangeDiff
	pinned           []mcfgv1.MachineConfigNodeStatusPinnedImageSet
}

// want sets the wanted report of the object, from a phase that reports something.
func (m *machineConfigNode) want(h *Head, v *situation, p Phase) {
	node := h.cluster.current()
	if !m.read || !reports(p) || node == nil {
		return // the times of conditions begin with those of the report before
	}
	m.wanted.node = node.UID
	m.wanted.desired, m.wanted.current = api.Rendered(v.node.Desired), api.Rendered(v.host.Config.Committed)
	m.begin(v, p)
	m.wanted.irreconcilable = nil // no list, for the comparison with a status that has none
	for _, d := range v.host.Irreconcilable {
		m.wanted.irreconcilable = append(m.wanted.irreconcilable,
			mcfgv1.IrreconcilableChangeDiff{FieldPath: "spec.config." + d.Field, Diff: d.Diff})
	}
	m.wanted.drain = ""
	waiting := h.waiting()
	if m.said.drain == "" && quiet(waiting, v.now) {
		waiting = nil
	}
	if waiting != nil && (before(p, PhaseApply) || p == PhaseBackoff) {
		m.wanted.drain = api.Encode(waiting)
	}
	m.wanted.hook = ""
	if stop := h.stopped(v, p); stop != nil {
		m.wanted.hook = api.Encode(stop)
	}
	had := m.wanted.conditions
	if len(had) == 0 {
		had = m.said.conditions
	}
	m.wanted.conditions = append(conditions(v, p, waiting, had), pinConditions(v, had)...)
	m.wanted.pinned = h.pins.pinnedSets(v, m.said.pinned)
}

// begin records when an update begins: when the node is first seen away from its desired configuration. A configuration
// that was desired before the object was read began at an unknown earlier time. An update that was called off is
// forgotten, so that the same configuration begins anew when it is desired again.
func (m *machineConfigNode) begin(v *situation, p Phase) {
	switch {
	case v.node.Desired == m.update.Config:
	case p == PhaseDone:
		m.update = api.Update{}
	case api.Rendered(v.node.Desired) != m.said.desired || api.ValuesOf(v.node.Desired) != "":
		m.update = api.Update{Config: v.node.Desired, Since: v.now.UTC().Truncate(time.Second)}
	}
}

// tellObject writes the wanted report to the MachineConfigNode.
func (h *Head) tellObject(ctx context.Context) {
	m := &h.object
	node := h.cluster.current()
	if node == nil || time.Now().Before(h.objectWrites.next) {
		return
	}
	if !m.read {
		h.wrote(&h.objectWrites, "reading the MachineConfigNode", m.readFrom(ctx, h, node))
		return
	}
	if !time.Now().Before(m.lookAt) {
		h.wrote(&h.objectWrites, "looking for the MachineConfigNode", m.look(ctx, h))
	}
	if m.wanted.node == "" || reflect.DeepEqual(m.wanted, m.said) {
		return
	}
	if err := m.tell(ctx, h); ctx.Err() == nil {
		h.wrote(&h.objectWrites, "reporting on the MachineConfigNode", err)
	}
}

// readFrom takes over the report of an earlier head.
func (m *machineConfigNode) readFrom(ctx context.Context, h *Head, node *corev1.Node) error {
	object, err := h.cluster.machineConfigNode(ctx)
	if err != nil {
		return err
	}
	m.read, m.lookAt = true, time.Now().Add(jitter(restPace))
	h.ring()
	if object == nil {
		return nil
	}
	m.generation = object.Generation
	m.said = objectReport{desired: object.Spec.ConfigVersion.Desired, drain: object.Annotations[api.DrainKey],
		hook: object.Annotations[api.HookStopKey], conditions: object.Status.Conditions,
		irreconcilable: object.Status.IrreconcilableChanges, pinned: object.Status.PinnedImageSets}
	if v := object.Status.ConfigVersion; v != nil {
		m.said.current = v.Current
		if v.Desired != m.said.desired {
			m.said.conditions = nil // that status was never written
		}
	}
	if metav1.IsControlledBy(object, node) || ownedBy(object, node) {
		m.said.node = node.UID
	}
	// Values that can't be read count as missing.
	m.update, _ = api.Decode[api.Update](object.Annotations, api.UpdateKey)
	if stop, _ := api.Decode[*api.HookStop](object.Annotations, api.HookStopKey); h.stop == nil {
		h.stop = stop
	}
	last, _ := api.Decode[*api.Drain](object.Annotations, api.DrainKey)
	if last == nil {
		return nil
	}
	if d := h.drain; d != nil && d.Config == last.Config && last.Since.Before(d.Since) {
		earlier := *d
		earlier.Since = last.Since
		last = &earlier
	} else if d != nil {
		return nil
	}
	h.drain = last
	return nil
}

// look makes sure that the object is still there.
func (m *machineConfigNode) look(ctx context.Context, h *Head) error {
	object, err := h.cluster.machineConfigNode(ctx)
	if err != nil {
		return err
	}
	m.lookAt = time.Now().Add(jitter(restPace))
	if object == nil {
		m.said = objectReport{}
	}
	return nil
}

func ownedBy(object metav1.Object, node *corev1.Node) bool {
	for _, o := range object.GetOwnerReferences() {
		if o.UID == node.UID {
			return true
		}
	}
	return false
}

// tell writes the changes: the object itself first, since its status needs the object.
func (m *machineConfigNode) tell(ctx context.Context, h *Head) error {
	w := m.wanted
	pool := cmp.Or(machineconfig.PoolOf(w.desired), "not-yet-set")
	if m.said.node != w.node || m.said.desired != w.desired || m.said.drain != w.drain ||
		m.said.hook != w.hook {
		object := m.applied(h.o.Node)
		object["spec"] = mcfgv1.MachineConfigNodeSpec{
			Node: mcfgv1.MCOObjectReference{Name: h.o.Node}, Pool: mcfgv1.MCOObjectReference{Name: pool},
			ConfigVersion: mcfgv1.MachineConfigNodeSpecMachineConfigVersion{Desired: w.desired},
		}
		after, err := h.cluster.applyMachineConfigNode(ctx, object)
		if err != nil {
			return err
		}
		m.generation, m.said.node, m.said.desired, m.said.drain = after.Generation, w.node, w.desired, w.drain
		m.said.hook = w.hook
		if len(after.Status.Conditions) == 0 {
			m.said.conditions = nil
		}
	}
	if m.said.current == w.current && reflect.DeepEqual(m.said.conditions, w.conditions) &&
		reflect.DeepEqual(m.said.irreconcilable, w.irreconcilable) && slices.Equal(m.said.pinned, w.pinned) {
		return nil
	}
	_, err := h.cluster.applyMachineConfigNode(ctx, m.status(h.o.Node), "status")
	if apierrors.IsNotFound(err) {
		m.said = objectReport{} // the object was deleted
	}
	if err != nil {
		return err
	}
	m.said = w
	return nil
}

// partial is the part of an object that a server-side apply writes. Without a field the API server removes the value
// that we wrote before. So no field may be there with a value that is empty by chance.
type partial map[string]any

func ours(name string, metadata partial) partial {
	metadata["name"] = name
	return partial{"apiVersion": mcfgv1.GroupVersion.String(), "kind": "MachineConfigNode", "metadata": metadata}
}

// applied returns our MachineConfigNode with its metadata alone.
func (m *machineConfigNode) applied(name string) partial {
	annotations := map[string]string{}
	if m.wanted.drain != "" {
		annotations[api.DrainKey] = m.wanted.drain
	}
	if m.update.Config != "" {
		annotations[api.UpdateKey] = api.Encode(m.update)
	}
	if m.wanted.hook != "" {
		annotations[api.HookStopKey] = m.wanted.hook
	}
	metadata := partial{"ownerReferences": []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: name, UID: m.wanted.node}}}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	return ours(name, metadata)
}

// status returns our MachineConfigNode with its status alone.
func (m *machineConfigNode) status(name string) partial {
	version := partial{"desired": m.wanted.desired}
	if m.wanted.current != "" {
		version["current"] = m.wanted.current
	}
	status := partial{"configVersion": version, "observedGeneration": m.generation}
	if len(m.wanted.conditions) > 0 {
		status["conditions"] = m.wanted.conditions
	}
	if len(m.wanted.irreconcilable) > 0 {
		status["irreconcilableChanges"] = m.wanted.irreconcilable
	}
	if len(m.wanted.pinned) > 0 {
		status["pinnedImageSets"] = m.wanted.pinned
	}
	out := ours(name, partial{})
	out["status"] = status
	return out
}
