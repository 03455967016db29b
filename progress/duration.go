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

// Update is the last update of a node, by what its MachineConfigNode says.
type Update struct {
	// Took is the time from when the node began to when it had proved the configuration and took pods again: staging,
	// drain and verdict are in it, the wait for its turn is not.
	Took time.Duration
	// Rebooted says that the node did.
	Rebooted bool
}

// LastUpdate reads how a node's last update went; false where the node is not at rest after one, or does not say when
// it began. The conditions of the steps are all put back at the end of an update, when Updated begins to hold: by that
// of the preparation an update is told from a node that merely was not well for a time, and by that of the reboot
// whether there was one.
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
	// What can't be read says nothing.
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
	// Nodes are those that would go.
	Nodes int
	// Typical is with the median of the updates, Slowest with the one that took longest for every node.
	Typical, Slowest time.Duration
	// Updates are how many it is based on.
	Updates int
}

// Forecast estimates a rollout over so many nodes that reboot and so many that do not, each kind by the updates of its
// own. False: there was none of a kind that is needed, or there is nothing to do.
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

// median of a sorted list that is not empty.
func median(sorted []time.Duration) time.Duration {
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}
