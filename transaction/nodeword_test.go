// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"cmp"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestNodeIsJudgedByItsClusterOrElseByItsNetwork(t *testing.T) {
	const now, patience = 5 * time.Minute, 5 * time.Minute
	said := func(ready bool, ago time.Duration) *NodeWord {
		return &NodeWord{Ready: ready, Why: "no network plugin", Uptime: now - ago}
	}
	route := Network{Route: true}
	answers := Network{Route: true, Answers: true}
	silent := Network{Route: true, Silent: true}
	var none Network
	for _, c := range []struct {
		what          string
		word          *NodeWord
		early         time.Duration // before the end of patience
		before, after Network
		want          string // part of the refusal; "" for a pass
	}{
		{"ready", said(true, 0), time.Minute, route, route, ""},
		{"ready, whatever the routes say", said(true, 10*time.Second), 0, route, none, ""},
		{"not ready", said(false, 0), 0, route, route, "no network plugin"},
		{"ready, a while ago", said(true, 2*wordLasts), time.Minute, route, route, "has not reported"},
		{"ready a while ago, and the API server is away", said(true, 2*wordLasts), 0, route, route, ""},
		{"not ready a while ago, and the API server is away", said(false, 2*wordLasts), 0, route, route, ""},
		{"nothing yet", nil, time.Second, route, route, "has not reported"},
		{"nothing until the end", nil, 0, route, route, ""},
		{"nothing, on a host that never had a route", nil, 0, none, none, ""},
		{"nothing, and the route is lost", nil, 0, route, none, "default route"},
		{"nothing yet, and the route is lost", nil, time.Second, route, none, "default route"},
		{"nothing, and a route that was not there before", nil, 0, none, route, ""},
		{"nothing, and the router is silent", nil, 0, answers, silent, "router"},
		{"nothing, and nobody has asked the router", nil, 0, answers, route, ""},
		{"nothing, and the router was silent before", nil, 0, silent, silent, ""},
	} {
		err := JudgeNode(c.word, now-c.early, patience, c.before, c.after)
		if c.word != nil {
			w := *c.word
			w.Uptime -= c.early
			err = JudgeNode(&w, now-c.early, patience, c.before, c.after)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// /run outlives a soft reboot, and so does a report from before it.
func TestWordOfTheBootBeforeIsNone(t *testing.T) {
	const booted = time.Hour
	for _, c := range []struct {
		what string
		word *NodeWord
		want string // the refusal; "yes", or "none" for no report at all
		full string // the same for a boot of the kernel, where the answer differs
	}{
		{"nothing", nil, "none", ""},
		{"said before", &NodeWord{Ready: true, Uptime: booted - 1}, "none", ""},
		{"said since, of a kubelet from before", &NodeWord{Ready: true, Uptime: booted + time.Minute, Heard: booted - 2*time.Second}, NotHeard, "yes"},
		{"not ready, of a kubelet from before", &NodeWord{Why: "no", Uptime: booted + time.Minute, Heard: booted - 2*time.Second}, "no", ""},
		{"said since, of a kubelet in the second of the boot", &NodeWord{Ready: true, Uptime: booted + time.Minute, Heard: booted - time.Second/2}, "yes", ""},
		{"said since, and nobody knows of when", &NodeWord{Ready: true, Uptime: booted}, "yes", ""},
		{"said since, and the clock was set forward", &NodeWord{Ready: true, Uptime: booted + time.Minute, Heard: -8760 * time.Hour},
			NotHeard, "yes"},
	} {
		for soft, want := range map[bool]string{true: c.want, false: cmp.Or(c.full, c.want)} {
			got := "none"
			if w := c.word.Since(booted, soft); w != nil && w.Ready {
				got = "yes"
			} else if w != nil {
				got = w.Why
			}
			if got != want {
				t.Errorf("%s, soft %t: %q, want %q", c.what, soft, got, want)
			}
		}
	}
}

func TestOnlyAFreshWordThatTheNodeIsNotHeldCounts(t *testing.T) {
	const now = time.Hour
	for _, c := range []struct {
		what string
		word *heldWord
		want bool // the apply is refused
	}{
		{"nothing was said", nil, false},
		{"it is held", &heldWord{Held: true, Uptime: now}, false},
		{"it is not", &heldWord{Why: "uncordoned", Uptime: now - wordLasts}, true},
		{"it was not, and the head is away since", &heldWord{Why: "uncordoned", Uptime: now - wordLasts - 1}, false},
	} {
		err := judgeHold(c.word, now)
		if errors.Is(err, ErrNotHeld) != c.want || err != nil && !strings.Contains(err.Error(), "uncordoned") {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
