// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"slices"

	"github.com/noderefit/noderefit/api"
)

// Refresh updates a drain that the daemon reported with what is seen now. live has all pods that are left. Of the
// waiting pods, live has only those that budgets hold. Only the report has since when pods wait.
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
			continue // the budget lets the pod go now
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
