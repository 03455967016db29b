// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

func TestTheWaitToKeepATrialEndsWhateverBecomesOfTheTrial(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	order := &api.Trial{Config: "x", From: "a", Since: at}
	other := &api.Trial{Config: "y", From: "a", Since: at.Add(time.Second)}
	tried := api.Tried{Config: "x", From: "a", Ordered: at, Begun: at}
	with := func(change func(*api.Tried)) *api.Tried {
		one := tried
		change(&one)
		return &one
	}
	for name, c := range map[string]struct {
		order        *api.Trial
		tried        *api.Tried
		said, failed string
		over         bool
	}{
		"not begun":        {order: order, said: "has not begun"},
		"one before it":    {order: order, tried: with(func(t *api.Tried) { t.Ordered = at.Add(-time.Hour) }), said: "has not begun"},
		"taken back":       {failed: "took the order back"},
		"another order":    {order: other, failed: "took the order back"},
		"on its way":       {order: order, tried: &tried, said: "is on its way to x"},
		"kept for a while": {order: order, tried: with(func(t *api.Tried) { t.Proved = at.Add(59 * time.Minute) }), said: "has proved x"},
		"kept for long":    {order: order, tried: with(func(t *api.Tried) { t.Proved = at }), over: true},
		"failed": {
			order: order, tried: with(func(t *api.Tried) { t.Ended, t.Because = at, "it failed" }), failed: "it failed",
		},
		"the pool has it, before the verdict": {
			order: order, tried: with(func(t *api.Tried) { t.Ended, t.Kept = at, true }), over: true,
		},
	} {
		n := progress.Node{Name: "n-1", Node: api.Node{Trial: c.order, Tried: c.tried}}
		said, over, err := keeping(&n, order, 30*time.Minute, "worker", at.Add(time.Hour))
		if !strings.Contains(said, c.said) || (said == "") != (c.said == "") || over != c.over || (err == nil) != (c.failed == "") ||
			err != nil && !strings.Contains(err.Error(), c.failed) {
			t.Errorf("%s: %q, over %t, %v", name, said, over, err)
		}
	}
}
