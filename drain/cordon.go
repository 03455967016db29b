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
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/noderefit/noderefit/api"
)

// Hold says whose a node's cordon is. The ledger, the annotation api.CordonKey, decides: what it does not claim is
// somebody else's.
type Hold string

const (
	// Free: the node takes pods, and nobody said otherwise.
	Free Hold = "Free"
	// Ours: cordoned, and the ledger says by us.
	Ours Hold = "Ours"
	// Theirs: cordoned, and not by us. It stays so, whatever becomes of the update.
	Theirs Hold = "Theirs"
	// Lost: the ledger says that we cordoned the node, and it takes pods all the same: somebody uncordoned it. Whoever
	// drained it has to cordon and drain it again before anything that its pods would notice.
	Lost Hold = "Lost"
)

// Cordoned says that no pod gets onto the node unless it insists.
func (h Hold) Cordoned() bool { return h == Ours || h == Theirs }

// ReadHold reads whose cordon a Node has. A ledger that can't be read claims nothing: better a node that somebody has
// to uncordon than one that comes back while an administrator works on it.
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

// CordonOwners are those of a Node's managed fields that say who cordoned it: all that ReadHold needs of them.
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

// cordonedByOthers says that the API server knows who cordoned the node, and that it was not us: somebody took our
// cordon off while nobody looked, and the one that is there now is theirs, whatever the ledger says. The API server
// gives a field to whom changed it last, so that no clocks are compared.
func cordonedByOthers(node *corev1.Node) bool {
	owners := CordonOwners(node.ManagedFields)
	return len(owners) > 0 &&
		!slices.ContainsFunc(owners, func(m metav1.ManagedFieldsEntry) bool { return m.Manager == api.Daemon })
}

// Annotations are what else goes into a patch of a Node. A nil value removes the annotation.
type Annotations map[string]*string

// Drained are the annotations that say that the node's pods are gone for config, for those who watch OpenShift's.
// Nothing here reads them: whether a node is drained is asked, not remembered.
func Drained(config string) Annotations {
	token := "drain-" + config
	return Annotations{api.LastAppliedDrain: &token}
}

// Cordon cordons node for entry.Config, and writes extra, in one patch: spec.unschedulable, the ledger and OpenShift's
// desiredDrain. A node that somebody else has cordoned is not claimed; one that is ours already keeps the time at which
// it was cordoned. Nothing is sent where nothing would change.
//
// node may be old, such as from a watch: the patch holds only for the state that it was decided on, and is decided anew
// on the present one where that has moved. It gives the Node as it is now, of which ReadHold is Ours or Theirs.
func Cordon(ctx context.Context, nodes corev1client.NodeInterface, node *corev1.Node, entry api.Cordon,
	extra Annotations) (*corev1.Node, error) {
	node, err := patchNode(ctx, nodes, node, func(n *corev1.Node) change { return cordon(n, entry, extra) })
	if err != nil {
		return node, fmt.Errorf("cordoning node %s: %w", node.Name, err)
	}
	return node, nil
}

// Uncordon takes our cordon off node, if it is ours, together with the ledger, gives the node back to the load
// balancers, if it was us who took it out, and writes extra, in one patch. A cordon of somebody else stays. config is
// what the drain was for. Otherwise it is as Cordon; the hold of the Node that it gives is Free or Theirs.
func Uncordon(ctx context.Context, nodes corev1client.NodeInterface, node *corev1.Node, config string,
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

// exclude takes the node out of the load balancers where extra asks for that, which it need not any more then.
func (c change) exclude(node *corev1.Node, extra Annotations) {
	asked, asks := extra[api.ExcludedKey]
	_, out := node.Labels[api.ExcludeLabel]
	ours, err := api.Decode[*api.Exclusion](node.Annotations, api.ExcludedKey)
	if asks && !out && (ours == nil || err != nil) {
		label := ""
		c.annotations[api.ExcludedKey], c.labels[api.ExcludeLabel] = asked, &label
	}
}

// include gives the node back to them, if it was us who took it out.
func (c change) include(node *corev1.Node) {
	if _, ours := node.Annotations[api.ExcludedKey]; !ours {
		return
	}
	c.annotations[api.ExcludedKey] = nil
	// Ours has no value: one that has is somebody else's by now.
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
	// A node that was not drained owes nobody an uncordon.
	if strings.HasPrefix(node.Annotations[api.DesiredDrain], "drain-") {
		c.annotations.set(api.DesiredDrain, "uncordon-"+config)
		c.annotations.set(api.LastAppliedDrain, "uncordon-"+config)
	}
	return c.with(node, extra)
}

// disclaim drops a ledger whose cordon is gone: it would claim the next one, and be taken for a cordon that was lost.
func (c change) disclaim(node *corev1.Node) {
	if cordonedByOthers(node) {
		c.annotations[api.CordonKey] = nil
	}
}

func (a Annotations) set(key, value string) { a[key] = &value }

// with adds extra and leaves out what the node has already.
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

// patch is the JSON merge patch of c that holds for node's very version only.
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
		panic(err) // strings and a bool
	}
	return data
}

// conflictTries is how often a patch is decided anew when the Node has moved meanwhile. A Node moves every few seconds
// at most, so that a second loss in a row is rare and a fifth means that something else is wrong.
const conflictTries = 5

func patchNode(ctx context.Context, nodes corev1client.NodeInterface, node *corev1.Node,
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
