// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
)

// Hold is the owner of a node's cordon. The ledger, the annotation api.CordonKey, decides: a cordon that it does not
// claim is not ours.
type Hold string

const (
	// Free: the node takes pods, and no ledger claims a cordon.
	Free Hold = "Free"
	// Ours: the node is cordoned, and the ledger claims the cordon for us.
	Ours Hold = "Ours"
	// Theirs: the node is cordoned, and not by us. It stays cordoned after the update.
	Theirs Hold = "Theirs"
	// Lost: the ledger claims that we cordoned the node, but the node takes pods: another program or an admin uncordoned
	// it. The drain must cordon and drain the node again before any step that its pods would notice.
	Lost Hold = "Lost"
)

// Cordoned reports whether the node takes only pods that tolerate the cordon.
func (h Hold) Cordoned() bool { return h == Ours || h == Theirs }

// ReadHold returns the owner of a Node's cordon. An unreadable ledger claims nothing. A node that an admin has to
// uncordon is better than a node that comes back while an admin works on it.
func ReadHold(node *corev1.Node) Hold {
	entry, err := api.Decode[*api.Cordon](node.Annotations, api.CordonKey)
	claimed := err == nil && entry != nil
	switch {
	case node.Spec.Unschedulable && claimed && !cordonedByOthers(node):
		return Ours
	case node.Spec.Unschedulable:
		return Theirs
	case claimed:
		return Lost
	}
	return Free
}

// CordonOwners returns the managed fields of a Node that name the owner of its cordon. ReadHold needs no others.
func CordonOwners(managed []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	var out []metav1.ManagedFieldsEntry
	for _, m := range managed {
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, ok := fields.Spec["f:unschedulable"]; ok {
			out = append(out, m)
		}
	}
	return out
}

// cordonedByOthers reports whether the API server knows the owner of the cordon, and the owner is not us. Then our
// cordon was removed unseen, and the present cordon is theirs, whatever the ledger claims. The API server names the
// last writer as the owner of a field, so no clocks are compared.
func cordonedByOthers(node *corev1.Node) bool {
	owners := CordonOwners(node.ManagedFields)
	return len(owners) > 0 &&
		!slices.ContainsFunc(owners, func(m metav1.ManagedFieldsEntry) bool { return m.Manager == api.Daemon })
}

// Annotations are further annotations of a patch of a Node. A nil value removes the annotation.
type Annotations map[string]*string

// Drained returns the annotations that report that the node's pods are gone for config. They are for programs that
// watch OpenShift's annotations. No program here reads them: a drain is always checked, never remembered.
func Drained(config string) Annotations {
	token := "drain-" + config
	return Annotations{api.LastAppliedDrain: &token}
}

// nodeClient reads and patches Nodes, as each client of client-go does.
type nodeClient interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Node, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions,
		subresources ...string) (*corev1.Node, error)
}

// Cordon cordons node for entry.Config and writes extra, in one patch: spec.unschedulable, the ledger and OpenShift's
// desiredDrain. It does not claim a node that was cordoned by another owner. A node that is ours already keeps the time
// of its cordon. Without a change no request is sent.
//
// node may be old, for example from a watch. The patch is valid only for the state on which it was decided. Where the
// Node has changed, the patch is decided again on the present state. Cordon returns the Node as it is now, and ReadHold
// of that Node is Ours or Theirs.
func Cordon(ctx context.Context, nodes nodeClient, node *corev1.Node, entry api.Cordon,
	extra Annotations) (*corev1.Node, error) {
	node, err := patchNode(ctx, nodes, node, func(n *corev1.Node) change { return cordon(n, entry, extra) })
	if err != nil {
		return node, fmt.Errorf("cordoning node %s: %w", node.Name, err)
	}
	return node, nil
}

// Uncordon removes our cordon from node together with the ledger, and writes extra, in one patch. It gives the node
// back to the load balancers, if we took it out. A cordon of another owner stays. config is what the drain was for. In
// all else Uncordon is like Cordon. The hold of the returned Node is Free or Theirs.
func Uncordon(ctx context.Context, nodes nodeClient, node *corev1.Node, config string,
	extra Annotations) (*corev1.Node, error) {
	node, err := patchNode(ctx, nodes, node, func(n *corev1.Node) change { return uncordon(n, config, extra) })
	if err != nil {
		return node, fmt.Errorf("uncordoning node %s: %w", node.Name, err)
	}
	return node, nil
}

// change is what a patch of a Node sets.
type change struct {
	unschedulable *bool
	annotations   Annotations
	labels        map[string]*string
}

func cordon(node *corev1.Node, entry api.Cordon, extra Annotations) change {
	c := change{annotations: Annotations{}, labels: map[string]*string{}}
	switch ReadHold(node) {
	case Free, Lost:
		yes := true
		c.unschedulable = &yes
		c.annotations.set(api.CordonKey, api.Encode(entry))
	case Ours:
		if before, err := api.Decode[*api.Cordon](node.Annotations, api.CordonKey); err == nil && before != nil {
			entry.Since = before.Since
		}
		c.annotations.set(api.CordonKey, api.Encode(entry))
	case Theirs:
		c.disclaim(node)
	}
	c.annotations.set(api.DesiredDrain, "drain-"+entry.Config)
	c.exclude(node, extra)
	return c.with(node, extra)
}

// exclude takes the node out of the load balancers where extra asks for that and the node is still in them.
func (c change) exclude(node *corev1.Node, extra Annotations) {
	asked, asks := extra[api.ExcludedKey]
	_, out := node.Labels[api.ExcludeLabel]
	ours, err := api.Decode[*api.Exclusion](node.Annotations, api.ExcludedKey)
	if asks && !out && (ours == nil || err != nil) {
		label := ""
		c.annotations[api.ExcludedKey], c.labels[api.ExcludeLabel] = asked, &label
	}
}

// include gives the node back to the load balancers, if we took it out.
func (c change) include(node *corev1.Node) {
	if _, ours := node.Annotations[api.ExcludedKey]; !ours {
		return
	}
	c.annotations[api.ExcludedKey] = nil
	// Our label has no value: a label with a value belongs to another owner by now.
	if value, out := node.Labels[api.ExcludeLabel]; out && value == "" {
		c.labels[api.ExcludeLabel] = nil
	}
}

func uncordon(node *corev1.Node, config string, extra Annotations) change {
	c := change{annotations: Annotations{}, labels: map[string]*string{}}
	switch ReadHold(node) {
	case Ours:
		no := false
		c.unschedulable = &no
		c.annotations[api.CordonKey] = nil
	case Lost:
		c.annotations[api.CordonKey] = nil
	case Theirs:
		c.disclaim(node)
	case Free:
	}
	c.include(node)
	// A node that was not drained needs no uncordon.
	if strings.HasPrefix(node.Annotations[api.DesiredDrain], "drain-") {
		c.annotations.set(api.DesiredDrain, "uncordon-"+config)
		c.annotations.set(api.LastAppliedDrain, "uncordon-"+config)
	}
	return c.with(node, extra)
}

// disclaim drops a ledger whose cordon is gone. Otherwise the ledger would claim the next cordon, and would look like a
// lost cordon.
func (c change) disclaim(node *corev1.Node) {
	if cordonedByOthers(node) {
		c.annotations[api.CordonKey] = nil
	}
}

func (a Annotations) set(key, value string) { a[key] = &value }

// with adds extra and leaves out the values that the node has already.
func (c change) with(node *corev1.Node, extra Annotations) change {
	for key, value := range extra {
		if key != api.ExcludedKey {
			c.annotations[key] = value
		}
	}
	for key, value := range c.annotations {
		have, ok := node.Annotations[key]
		if value == nil && !ok || value != nil && ok && have == *value {
			delete(c.annotations, key)
		}
	}
	return c
}

func (c change) empty() bool {
	return c.unschedulable == nil && len(c.annotations) == 0 && len(c.labels) == 0
}

// patch returns the JSON merge patch of c. It is valid only for node's present version.
func (c change) patch(node *corev1.Node) []byte {
	meta := map[string]any{"resourceVersion": node.ResourceVersion}
	if len(c.annotations) > 0 {
		meta["annotations"] = c.annotations
	}
	if len(c.labels) > 0 {
		meta["labels"] = c.labels
	}
	body := map[string]any{"metadata": meta}
	if c.unschedulable != nil {
		body["spec"] = map[string]any{"unschedulable": *c.unschedulable}
	}
	data, err := json.Marshal(body)
	if err != nil {
		panic(err) // c holds only strings and a bool
	}
	return data
}

// conflictTries is how often a patch is decided again when the Node has changed meanwhile. A Node changes every few
// seconds at most. So a second conflict in a row is rare, and a fifth means that something else is wrong.
const conflictTries = 5

func patchNode(ctx context.Context, nodes nodeClient, node *corev1.Node,
	decide func(*corev1.Node) change) (*corev1.Node, error) {
	for try := 1; ; try++ {
		c := decide(node)
		if c.empty() {
			return node, nil
		}
		options := metav1.PatchOptions{FieldManager: api.Daemon}
		patched, conflict := nodes.Patch(ctx, node.Name, types.MergePatchType, c.patch(node), options)
		if conflict == nil {
			return patched, nil
		}
		if !apierrors.IsConflict(conflict) || try == conflictTries {
			return node, conflict
		}
		fresh, err := nodes.Get(ctx, node.Name, metav1.GetOptions{})
		if err != nil {
			return node, err
		}
		if fresh.UID != node.UID {
			return node, fmt.Errorf("it was deleted and came back: %w", conflict)
		}
		node = fresh
	}
}
