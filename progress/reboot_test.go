// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
)

// What people read of a reboot that is wanted, ordered, waits or failed.
func TestAWantedRebootIsExplained(t *testing.T) {
	wanted := api.Encode(wantsReboot(api.RebootPackages))
	rules := func(mode api.RebootMode, hold *Hold) func([]*Pool) {
		return func(pools []*Pool) {
			for _, p := range pools {
				ask := &RebootAsk{Order: api.RebootOrder{ID: "one", Why: "CVE", By: "ann"}, Since: began}
				p.Rules = Rules{Policy: "careful", RebootMode: mode, Reboots: &Reboots{
					Asks: map[string]*RebootAsk{"a": ask}, Holds: map[string]*Hold{},
				}}
				if hold != nil {
					p.Rules.Reboots.Holds["a"] = hold
				}
			}
		}
	}
	for name, c := range map[string]struct {
		change       func(*world)
		verdict      Verdict
		because, do  string
		until, empty bool
	}{
		"shown": {
			change:  func(w *world) { w.a.Annotations[api.RebootWantedKey] = wanted },
			verdict: RebootWanted,
			because: "its host wants a reboot: a newer one is installed (libc6, linux-image and 3 more)",
			do:      "kubectl refit reboot a --why TEXT",
		},
		"never": {
			change: func(w *world) {
				w.a.Annotations[api.RebootWantedKey] = wanted
				w.Follow = func(pools []*Pool) {
					pools[0].Rules = Rules{Policy: "careful", RebootMode: api.RebootsNever}
				}
			},
			verdict: RebootWanted, because: "wants a reboot", do: "RolloutPolicy careful has reboots: Never",
		},
		"waits for a window": {
			change: func(w *world) {
				w.a.Annotations[api.RebootWantedKey] = wanted
				w.Follow = rules(api.RebootsRoll, &Hold{
					Verdict: OutsideWindow, Because: "no window is open", Until: began.Add(time.Hour), Do: "wait",
				})
			},
			verdict: RebootWanted, because: "it is to reboot, by ann since " + began.UTC().Format(time.RFC3339) +
				" (CVE), and waits: no window is open", do: "wait",
			until: true,
		},
		"waits for its turn": {
			change: func(w *world) {
				w.a.Annotations[api.RebootWantedKey] = wanted
				w.Follow = rules(api.RebootsRoll, nil)
			},
			verdict: RebootWanted, because: "and waits for its turn", do: "wait",
		},
		"ordered": {
			change:  func(w *world) { w.a.Annotations[api.OrdersKey] = `{"reboot":{"id":"one","why":"CVE","by":"ann"}}` },
			verdict: Updating, because: "the node is to reboot, by ann: CVE; its agent has not begun",
		},
		"under way": {
			change: func(w *world) {
				w.a.Annotations[api.OrdersKey] = `{"reboot":{"id":"one","why":"CVE"}}`
				w.a.Annotations[api.RebootedKey] = api.Encode(api.Rebooted{ID: "one", Begun: began})
				notReadyNow(w.a)
			},
			verdict: Rebooting, because: "the node reboots, and has not reported since; CVE", do: "wait",
		},
		"over": {
			change: func(w *world) {
				w.a.Annotations[api.OrdersKey] = `{"reboot":{"id":"one","why":"CVE"}}`
				w.a.Annotations[api.RebootedKey] = api.Encode(api.Rebooted{ID: "one", Begun: began, Ended: began})
			},
			verdict: UpToDate, because: "the node has",
		},
		"failed": {
			change: func(w *world) {
				w.a.Annotations[api.RebootedKey] = api.Encode(api.Rebooted{
					ID: "one", Begun: began, Ended: began, Failed: "the kubelet is down", TakenBack: true,
				})
			},
			verdict: RebootFailed,
			because: "the reboot that was ordered failed: the kubelet is down; the host went back to the deployment before",
			do:      "kubectl refit retry a",
		},
		"garbage": {
			change: func(w *world) {
				w.a.Annotations[api.RebootWantedKey] = `{"reasons":[{"kind":"Sun","message":"x","since":"2026-01-01T00:00:00Z"}]}`
			},
			verdict: UpToDate, because: "the node has",
		},
		"not to be read": {
			change:  func(w *world) { w.a.Annotations[api.RebootWantedKey] = `{` },
			verdict: Misconfigured, because: "annotation noderefit.dev/reboot-wanted", do: "take that annotation away",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.at(w.a, renderedB, renderedB, api.Done, "")
			w.at(w.b, renderedB, renderedB, api.Done, "")
			w.at(w.c, renderedB, renderedB, api.Done, "")
			c.change(w)
			r := NewReport(w.View)
			a, _ := r.ExplainNode("a")
			if a.Verdict != c.verdict || !strings.Contains(a.Because, c.because) || !strings.Contains(a.Do, c.do) ||
				c.until == a.Until.IsZero() {
				t.Errorf("%+v", a)
			}
			if p, _ := r.ExplainPool("worker"); p.Verdict != c.verdict && c.verdict != Updating && c.verdict != Rebooting {
				t.Errorf("the pool says %+v", p)
			}
		})
	}
}

func TestExplainSaysWhichWayARebootHasTaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		way    string
		warns  string
		unread string
	}{
		{`{"asked":"Kexec","started":"Kexec","took":"Kexec"}`, "", ""},
		{`{"asked":"Kexec","started":"Full","took":"Full","why":"no kexec\nhere"}`,
			"the latest reboot: Full, and not Kexec: no kexec; here", ""},
		{`{"asked":"Command","started":"Full","why":"exit status 7"}`,
			"the latest reboot: Full, which is under way, and not Command: exit status 7", ""},
		{`{"asked":"Teleport","started":"Full","took":"Full","why":"x"}`, "", ""},
		{`{`, "", api.RebootWayKey},
	} {
		w := newWorld()
		w.at(w.a, renderedA, renderedA, api.Done, "")
		w.a.Annotations[api.RebootWayKey] = c.way
		a, _ := NewReport(w.View).ExplainNode("a")
		if strings.Join(a.Warnings, "; ") != c.warns {
			t.Errorf("%s: %q, want %q", c.way, a.Warnings, c.warns)
		}
		if n := ReadNode(w.a); !strings.Contains(n.Unread, c.unread) {
			t.Errorf("%s: %q", c.way, n.Unread)
		}
	}
}

// A hostile node fills up nothing, and sends no line breaks to people.
func TestWhatANodeSaysOfRebootsIsBounded(t *testing.T) {
	w := newWorld()
	reasons := wantsReboot(api.RebootPackages)
	reasons.Reasons[0].Message = strings.Repeat("x\n", 5000)
	for range 100 {
		reasons.Reasons[0].Packages = append(reasons.Reasons[0].Packages, strings.Repeat("p", 5000))
		reasons.Reasons = append(reasons.Reasons, reasons.Reasons[0])
	}
	w.a.Annotations[api.RebootWantedKey] = api.Encode(reasons)
	w.a.Annotations[api.RebootedKey] = api.Encode(api.Rebooted{ID: "one", Failed: strings.Repeat("y\n", 5000), Begun: began})
	n := ReadNode(w.a)
	if text := n.rebootReasons(); len(n.RebootWanted.Reasons) != 1 || len(text) > 8000 || strings.Contains(text, "\n") ||
		!strings.Contains(text, " and 85 more)") {
		t.Errorf("%d reasons, %d bytes: %.100s ... %s", len(n.RebootWanted.Reasons), len(text), text, text[max(0, len(text)-30):])
	}
	if len(n.Rebooted.Failed) > 600 || strings.Contains(n.Rebooted.Failed, "\n") {
		t.Errorf("%q", n.Rebooted.Failed)
	}
	w.a.Annotations[api.RebootedKey] = api.Encode(api.Rebooted{ID: strings.Repeat("i", 5000)})
	if n := ReadNode(w.a); n.Rebooted != nil || !strings.Contains(n.Unread, "an id of 1 to 128 bytes is needed") {
		t.Errorf("%+v: %s", n.Rebooted, n.Unread)
	}
	w.a.Annotations[api.RebootKey] = `{"by":"ann"}`
	if n := ReadNode(w.a); n.Reboot != nil {
		t.Errorf("an order without a time counts: %+v", n.Reboot)
	}
}
