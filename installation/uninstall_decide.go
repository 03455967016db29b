// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
)

// Removal is what people ask of an uninstallation.
type Removal struct {
	Change

	// KeepNodes leaves the hosts and the Nodes as they are.
	KeepNodes bool
	// DeleteConfiguration removes the definitions, and with them all pools, MachineConfigs and policies.
	DeleteConfiguration bool
	// Force goes on where nodes are in the middle of an update.
	Force bool
}

// decideUninstall decides whether an installation may go. nodes are all of the cluster.
func decideUninstall(f *found, nodes []corev1.Node, want Removal) error {
	if err := f.foreign(); err != nil {
		return err
	}
	const then = "and then kubectl refit uninstall, which cleans the nodes"
	switch {
	case f.record != nil:
	case f.helm != nil:
		return fmt.Errorf("release %s of Helm in namespace %s has installed Noderefit here: run helm uninstall %[1]s "+
			"--namespace %[2]s, %s", f.helm.name, f.helm.namespace, then)
	case len(f.others) > 0:
		return fmt.Errorf("kustomize or kubectl apply has installed Noderefit here (%s): remove that with kubectl delete, %s",
			some(f.others), then)
	}
	var busy []string
	for i := range nodes {
		if on := underWay(&nodes[i]); on != "" {
			busy = append(busy, nodes[i].Name+" ("+on+")")
		}
	}
	if len(busy) == 0 || want.Force || want.KeepNodes {
		return nil
	}
	return fmt.Errorf("nodes are in the middle of an update: %s; wait for them, or take the update back with kubectl "+
		"refit rollback; --force leaves such a host alone and removes everything else", some(busy))
}

// underWay says what a node is on its way to, "" for a node that is where it should be.
func underWay(n *corev1.Node) string {
	desired, current := n.Annotations[api.DesiredConfig], n.Annotations[api.CurrentConfig]
	switch state := api.State(n.Annotations[api.StateKey]); {
	case state.Bad():
		return "" // it serves, or waits for a person
	case desired != current && current != "":
		return "on its way to " + desired
	case state == api.Working:
		return string(state)
	}
	return ""
}

// managed reports whether Noderefit has written to a Node.
func managed(n *corev1.Node) bool { return len(ownKeys(n.Annotations)) > 0 }

// ownKeys returns the keys below our prefixes.
func ownKeys(of map[string]string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(of)), func(key string) bool { return !api.Owned(key) })
}

// clean takes from a Node what Noderefit has written there, and reports whether that changed the Node. A cordon and a
// label of somebody else's stay.
func clean(n *corev1.Node) bool {
	before := n.DeepCopy()
	if drain.ReadHold(n) == drain.Ours {
		n.Spec.Unschedulable = false
	}
	if _, ours := n.Annotations[api.ExcludedKey]; ours && n.Labels[api.ExcludeLabel] == "" {
		delete(n.Labels, api.ExcludeLabel)
	}
	for _, key := range ownKeys(n.Annotations) {
		delete(n.Annotations, key)
	}
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == api.StartupTaint || t.Key == api.UpdateInProgressTaint
	})
	return len(n.Annotations) != len(before.Annotations) || len(n.Labels) != len(before.Labels) ||
		len(n.Spec.Taints) != len(before.Spec.Taints) || n.Spec.Unschedulable != before.Spec.Unschedulable
}

// leaves lists what goes, in its order: the last that went in goes first. Definitions and what people own go with the
// definitions alone, and the namespace goes last of all.
func (want *Removal) leaves(noted []reference) (workloads, rest, definitions []reference) {
	for _, ref := range gone(noted, nil) {
		if name := stageName(ref.stage()); slices.Contains([]string{"controller", "agents", "server"}, name) {
			workloads = append(workloads, ref)
		} else {
			rest = append(rest, ref)
		}
	}
	// The controller goes before the agents: it must send no node anywhere meanwhile.
	slices.SortStableFunc(workloads, func(a, b reference) int { return strings.Compare(b.Kind, a.Kind) })
	if want.DeleteConfiguration {
		definitions = slices.DeleteFunc(slices.Clone(noted), func(r reference) bool {
			return r.Kind != "CustomResourceDefinition"
		})
	}
	return workloads, rest, definitions
}

func stageName(at int) string {
	if at < 0 || at >= len(stages) {
		return ""
	}
	return stages[at].name
}

// errLeft is the error of an uninstallation that has left hosts as they were.
func errLeft(why map[string]string) error {
	if len(why) == 0 {
		return nil
	}
	var text []string
	for _, node := range slices.Sorted(maps.Keys(why)) {
		text = append(text, "node "+node+": "+why[node])
	}
	return errors.New("these hosts were left as they are: " + strings.Join(text, "; ") + "; mend what is named, and run " +
		"kubectl refit uninstall again. For a machine that never comes back, delete its Node")
}
