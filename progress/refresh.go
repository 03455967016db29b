// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"slices"

	"github.com/noderefit/noderefit/api"
)

// Refresh brings what a daemon reported of its drain up to what somebody sees now. live knows all pods that are left,
// and of those that wait only what budgets hold; since when they wait only the report says.
func Refresh(reported, live api.Drain) api.Drain {
	out := reported
	out.Left, out.Waiting = live.Left, nil
	at := func(in []api.WaitingPod, w api.WaitingPod) int {
		return slices.IndexFunc(in, func(x api.WaitingPod) bool { return x.Namespace == w.Namespace && x.Name == w.Name })
	}
	for _, w := range reported.Waiting {
		now := at(live.Waiting, w)
		switch {
		case now >= 0:
			since := w.Since
			w = live.Waiting[now]
			w.Since = since
		case w.Why == api.DrainWaitBudget:
			continue // the budget lets it go by now
		}
		out.Waiting = append(out.Waiting, w)
	}
	for _, w := range live.Waiting {
		if at(out.Waiting, w) < 0 {
			out.Waiting = append(out.Waiting, w)
		}
	}
	out.Waiting = out.Waiting[:min(len(out.Waiting), out.Left)]
	return out
}
