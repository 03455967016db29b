// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
)

const (
	trialConfig = "rendered-worker-tried"
	trialFrom   = "rendered-worker-a"
)

// trialBegan is when the order of a trial was made.
var trialBegan = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

func TestATrialGoesThroughItsSteps(t *testing.T) {
	at := func(minutes int) time.Time { return trialBegan.Add(time.Duration(minutes) * time.Minute) }
	order := &api.Trial{Config: trialConfig, From: trialFrom, By: "ann", Since: trialBegan, Seconds: 1800}
	begun := api.Tried{Config: trialConfig, From: trialFrom, By: "ann", Ordered: trialBegan, Begun: at(0), Until: at(60)}
	tried := func(change func(*api.Tried)) *api.Tried {
		one := begun
		change(&one)
		return &one
	}
	same := tried(func(*api.Tried) {})
	proved := tried(func(t *api.Tried) { t.Proved, t.Until = at(5), at(35) })
	ended := tried(func(t *api.Tried) { t.Proved, t.Ended, t.Until = at(5), at(35), time.Time{} })
	for name, c := range map[string]struct {
		order            *api.Trial
		tried            *api.Tried
		current, desired string
		state            api.State
		now              int
		change           func(*Pool, *Node)

		send, waits, because string
		begins, over, gone   bool
		begun, until         time.Time
	}{
		"begins": {order: order, current: trialFrom, desired: trialFrom, send: trialConfig, begins: true},
		"waits for a paused pool": {
			order: order, current: trialFrom, desired: trialFrom, waits: "paused", gone: true,
			change: func(p *Pool, _ *Node) { p.Paused = true },
		},
		"waits for a window": {
			order: order, current: trialFrom, desired: trialFrom, waits: "no window is open", gone: true,
			change: func(p *Pool, _ *Node) {
				p.Rules.Hold = &Hold{Verdict: OutsideWindow, Because: "no window is open"}
			},
		},
		"does not wait for a window that is bypassed": {
			order:   &api.Trial{Config: trialConfig, From: trialFrom, Since: trialBegan, Bypass: true},
			current: trialFrom, desired: trialFrom, send: trialConfig, begins: true,
			change: func(p *Pool, _ *Node) { p.Rules.Hold = &Hold{Verdict: OutsideWindow} },
		},
		"waits for a policy that is not valid, bypassed or not": {
			order:   &api.Trial{Config: trialConfig, From: trialFrom, Since: trialBegan, Bypass: true},
			current: trialFrom, desired: trialFrom, waits: "not valid", gone: true,
			change: func(p *Pool, _ *Node) {
				p.Rules.Hold = &Hold{Verdict: PolicyUnusable, Because: "the policy is not valid"}
			},
		},
		"waits for a node that is held": {
			order: order, current: trialFrom, desired: trialFrom, waits: "a person holds", gone: true,
			change: func(_ *Pool, n *Node) { n.Hold = &api.NodeHold{By: "bob"} },
		},
		"waits for a node that is not at its pool's configuration": {
			order: order, current: "rendered-worker-older", desired: "rendered-worker-older", waits: "has not proved", gone: true,
		},
		"never begins for an outdated pool": {
			order: order, current: trialFrom, desired: trialFrom, over: true, because: "try again",
			change: func(p *Pool, _ *Node) { p.Target = "rendered-worker-next" },
		},
		"never begins with a configuration that failed": {
			order: order, current: trialFrom, desired: trialFrom, over: true, because: "quarantined",
			change: func(_ *Pool, n *Node) { n.Quarantined = []api.Quarantine{{Config: trialConfig}} },
		},
		"goes on":   {order: order, tried: same, current: trialFrom, desired: trialConfig, state: api.Working, now: 10},
		"is proved": {order: order, tried: same, current: trialConfig, desired: trialConfig, now: 5},
		"takes too long": {
			order: order, tried: same, current: trialFrom, desired: trialConfig, state: api.Working, now: 61,
			over: true, send: trialFrom, because: "did not prove it",
		},
		"fails": {
			order: order, tried: same, current: trialFrom, desired: trialConfig, state: api.RolledBack, now: 5,
			over: true, send: trialFrom, because: "failed",
		},
		"lasts":        {order: order, tried: proved, current: trialConfig, desired: trialConfig, now: 34},
		"ends in time": {order: order, tried: proved, current: trialConfig, desired: trialConfig, now: 35, over: true, send: trialFrom, because: "its time is over"},
		"ends when a person says so": {
			tried: proved, current: trialConfig, desired: trialConfig, now: 10, over: true, send: trialFrom,
			because: "a person ended",
		},
		"ends when the pool has it": {
			order: order, tried: proved, current: trialConfig, desired: trialConfig, now: 10, over: true,
			because: "the pool has", change: func(p *Pool, _ *Node) { p.Target = trialConfig },
		},
		"goes back": {order: order, tried: ended, current: trialConfig, desired: trialConfig, now: 36, over: true, send: trialFrom},
		"does not go back in a paused pool": {
			order: order, tried: ended, current: trialConfig, desired: trialConfig, now: 36, over: true, waits: "paused",
			change: func(p *Pool, _ *Node) { p.Paused = true },
		},
		"does not go back while etcd is unhealthy": {
			order: order, tried: ended, current: trialConfig, desired: trialConfig, now: 36, over: true, waits: "etcd",
			change: func(p *Pool, n *Node) {
				p.Rules.Holds = map[string]*Hold{n.Name: {Verdict: EtcdUnhealthy, Because: "a member of etcd is down"}}
			},
		},
		"is over in another pool, which has the node from then on": {
			order: order, tried: tried(func(t *api.Tried) { t.Pool = "infra" }), current: trialConfig, desired: trialConfig,
			now: 10, over: true, because: "belongs to pool worker",
		},
		"is on its way back":                     {order: order, tried: ended, current: trialConfig, desired: trialFrom, state: api.Working, now: 36, over: true},
		"does not begin again by the same order": {order: order, tried: ended, current: trialFrom, desired: trialFrom, now: 40, over: true},
		"begins again by another order": {
			order: &api.Trial{Config: trialConfig, From: trialFrom, Since: at(37)}, tried: ended,
			current: trialFrom, desired: trialFrom, now: 40, send: trialConfig, begins: true,
		},
		"does not begin while etcd is unhealthy, bypassed or not": {
			order:   &api.Trial{Config: trialConfig, From: trialFrom, Since: trialBegan, Bypass: true},
			current: trialFrom, desired: trialFrom, waits: "etcd", gone: true,
			change: func(p *Pool, n *Node) {
				p.Rules.Hold = &Hold{Verdict: OutsideWindow, Because: "no window is open"}
				p.Rules.Etcd = map[string]*Hold{n.Name: {Verdict: EtcdUnhealthy, Because: "a member of etcd is down"}}
			},
		},
		"does not begin past a policy that is not valid for the node": {
			order:   &api.Trial{Config: trialConfig, From: trialFrom, Since: trialBegan, Bypass: true},
			current: trialFrom, desired: trialFrom, waits: "not valid", gone: true,
			change: func(p *Pool, n *Node) {
				p.Rules.Hold = &Hold{Verdict: OutsideWindow, Because: "no window is open"}
				p.Rules.Holds = map[string]*Hold{n.Name: {Verdict: PolicyUnusable, Because: "the policy is not valid"}}
			},
		},
		"does not go back while etcd is unhealthy, whatever else the policy says": {
			order: order, tried: ended, current: trialConfig, desired: trialConfig, now: 36, over: true, waits: "etcd",
			change: func(p *Pool, n *Node) {
				p.Rules.Hold = &Hold{Verdict: OutsideWindow, Because: "no window is open"}
				p.Rules.Etcd = map[string]*Hold{n.Name: {Verdict: EtcdUnhealthy, Because: "a member of etcd is down"}}
			},
		},
		"does not begin while the pool goes back": {
			order: order, current: trialFrom, desired: trialFrom, waits: "goes back", gone: true,
			change: func(p *Pool, _ *Node) {
				p.Previous = "rendered-worker-older"
				p.Quarantined = []api.Quarantine{{Config: trialFrom, Gate: "smoke", Reason: "closed"}}
			},
		},
		"takes no longer because a clock was set back before the verdict": {
			order: order, tried: same, current: trialFrom, desired: trialConfig, state: api.Working, now: -600,
			begun: at(-600), until: at(-540),
		},
		"lasts no longer because a clock was set back after the verdict": {
			order: order, tried: proved, current: trialConfig, desired: trialConfig, now: -600,
			begun: at(-600), until: at(-570),
		},
		"is forgotten after a day": {order: order, tried: ended, current: trialFrom, desired: trialFrom, now: 36 + 24*60, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := Node{Name: "a"}
			n.Current, n.Desired, n.State, n.Trial, n.Tried = c.current, c.desired, c.state, c.order, c.tried
			if n.State == "" {
				n.State = api.Done
			}
			p := &Pool{Name: "worker", Target: trialFrom}
			if c.change != nil {
				c.change(p, &n)
			}
			got := p.TrialStep(&n, at(c.now))
			if got.Send != c.send || got.Begins != c.begins || !strings.Contains(got.Waits, c.waits) ||
				(got.Waits == "") != (c.waits == "") {
				t.Errorf("sends %q (begins %t), waits for %q", got.Send, got.Begins, got.Waits)
			}
			if gone := got.Tried == nil; gone != c.gone {
				t.Fatalf("the record: %+v", got.Tried)
			} else if gone {
				return
			}
			if over := !got.Tried.Ended.IsZero(); over != c.over || !strings.Contains(got.Tried.Because, c.because) {
				t.Errorf("the record: %+v", got.Tried)
			}
			if !c.begun.IsZero() && (!got.Tried.Begun.Equal(c.begun) || !got.Tried.Until.Equal(c.until) || !got.Next.Equal(c.until)) {
				t.Errorf("the record: %+v, next %s", got.Tried, got.Next)
			}
		})
	}
}
