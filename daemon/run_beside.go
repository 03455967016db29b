// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"strings"
	"time"

	"github.com/noderefit/noderefit/drain"
)

// besidePace is the time between two plans while an update waits for bootc-operator. What bootc-operator stages and
// boots is seen by a plan alone.
const besidePace = 2 * time.Minute

// beside returns why an update waits on a node whose OS bootc-operator manages; "": it does not wait. A node has one
// drain and one reboot at a time. An update that has begun on the host goes on.
func (v *situation) beside() string {
	if !v.node.Bootc || v.pending() || v.applying || v.leaving() || v.plan == nil {
		return ""
	}
	switch {
	case v.plan.Reboot && len(v.plan.Lost) > 0:
		return "the update waits for the reboot of bootc-operator, which has staged " + strings.Join(v.plan.Lost, ", ") +
			": a reboot by the agent would remove that"
	case v.disrupts() && v.hold == drain.Theirs:
		return "the update waits until the node is uncordoned: bootc-operator manages the node's OS, and may be draining it"
	}
	return ""
}

func (h *Head) besideDue(v *situation) time.Time {
	return v.from(h.phase == PhaseBeside && v.plan != nil && len(v.plan.Lost) > 0, h.entered.Add(besidePace))
}

// lookAgain has the next turn plan anew.
func (h *Head) lookAgain(context.Context, *situation) { h.way.plan = nil }
