// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

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

// What a pool has already says more than that its MachineConfigs can't be rendered now.
func TestAPoolIsJudgedByItsTargetBeforeItsMachineConfigsAreRendered(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{"x": "pool worker has x already", "z": "the pool has z now", "a": "rendering it"} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/machineconfigpools/worker") {
				http.Error(w, "not now", http.StatusForbidden)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"metadata":{"name":"worker"},"spec":{"configuration":{"name":%q}}}`, target)
		}))
		t.Cleanup(s.Close)
		c, err := Connect(&rest.Config{Host: s.URL}, Options{Warnings: io.Discard})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := c.endKept(t.Context(), &out, "worker", &api.Trial{Config: "x", From: "a"}, nil); err != nil {
			out.WriteString(err.Error())
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("the pool has %s: %q", target, out.String())
		}
	}
}
