// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"slices"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// Update is the last update of a node, as its MachineConfigNode records it.
type Update struct {
	// Took is the time from the node's begin until the node had proved the configuration and took pods again. Staging,
	// drain and verdict are included; the wait for the node's turn is not.
	Took time.Duration
	// Rebooted reports whether the node rebooted.
	Rebooted bool
}

// LastUpdate reads how a node's last update went. LastUpdate returns false if the node is not at rest after an update,
// or does not record when the update began. The conditions of all steps are reset at the end of an update, when Updated
// becomes true. The time of the preparation's condition tells an update from a node that was merely unwell for a time.
// The time of the reboot's condition tells whether the node rebooted.
func LastUpdate(state *mcfgv1.MachineConfigNode) (Update, bool) {
	if state == nil || state.Status.ConfigVersion == nil {
		return Update{}, false
	}
	at := func(kind mcfgv1.StateProgress, want metav1.ConditionStatus) time.Time {
		c := meta.FindStatusCondition(state.Status.Conditions, string(kind))
		if c == nil || c.Status != want {
			return time.Time{}
		}
		return c.LastTransitionTime.Time
	}
	// An annotation that cannot be read counts as missing.
	began, _ := api.Decode[api.Update](state.Annotations, api.UpdateKey)
	ended := at(mcfgv1.MachineConfigNodeUpdated, metav1.ConditionTrue)
	if began.Config == "" || began.Config != state.Status.ConfigVersion.Current || !ended.After(began.Since) ||
		!ended.Equal(at(mcfgv1.MachineConfigNodeUpdatePrepared, metav1.ConditionFalse)) {
		return Update{}, false
	}
	return Update{
		Took:     ended.Sub(began.Since),
		Rebooted: ended.Equal(at(mcfgv1.MachineConfigNodeUpdateRebooted, metav1.ConditionFalse)),
	}, true
}

// Estimate is how long a rollout will take, if its nodes take as long as nodes of the pool last did.
type Estimate struct {
	// Nodes is the number of nodes that would go.
	Nodes int
	// Typical assumes the median update for every node, Slowest the longest one.
	Typical, Slowest time.Duration
	// Updates is the number of past updates that the estimate is based on.
	Updates int
}

// Forecast estimates a rollout over a number of nodes that reboot and of nodes that do not, from past updates of the
// same kind. Forecast returns false if a kind that is needed has no past update, or if no node would go.
func Forecast(rebooting, others, atATime int, past []Update) (Estimate, bool) {
	atATime = max(atATime, 1)
	out := Estimate{Nodes: rebooting + others}
	for _, kind := range []struct {
		nodes    int
		rebooted bool
	}{{rebooting, true}, {others, false}} {
		if kind.nodes == 0 {
			continue
		}
		var took []time.Duration
		for _, u := range past {
			if u.Rebooted == kind.rebooted {
				took = append(took, u.Took)
			}
		}
		if len(took) == 0 {
			return Estimate{}, false
		}
		slices.Sort(took)
		rounds := (kind.nodes + atATime - 1) / atATime
		out.Typical += median(took) * time.Duration(rounds)
		out.Slowest += took[len(took)-1] * time.Duration(rounds)
		out.Updates += len(took)
	}
	return out, out.Nodes > 0
}

// median returns the median of a sorted list, which must not be empty.
func median(sorted []time.Duration) time.Duration {
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}
