// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/host"
)

// atRestOn returns a node that is done on configuration A.
func atRestOn() *situation {
	v := updating()
	v.node.Desired, v.node.State = cfgA, api.Done
	return v
}

var digestB = strings.Repeat("b", 64)

func TestWhatIsOrderedIsStagedOnceWhileTheNodeRests(t *testing.T) {
	t.Parallel()
	failed := func(config string, ago time.Duration) *api.Staged {
		return &api.Staged{Config: config, Error: "no", Tries: 2, Since: then.Add(-ago)}
	}
	ready := &api.Staged{Config: cfgB, Digest: "x", Since: then}
	for name, c := range map[string]struct {
		order    string
		desired  string
		said     *api.Staged
		host     [2]string // what is staged on the host: the configuration's digest, and the OS
		unread   bool      // the host was not read since the last operation
		due      bool
		says     *api.Staged
		leftover bool
	}{
		"nothing is ordered":               {},
		"an order":                         {order: cfgB, due: true},
		"it is staged":                     {order: cfgB, said: ready, host: [2]string{digestB, "x"}, says: ready},
		"the host has let go of it":        {order: cfgB, said: ready, due: true},
		"the host has another OS of it":    {order: cfgB, said: ready, host: [2]string{digestB, "y"}, due: true},
		"the host is about to be read":     {order: cfgB, said: ready, unread: true, says: ready},
		"the host only has begun":          {order: cfgB, host: [2]string{digestB, ""}, due: true},
		"no OS was staged":                 {order: cfgB, said: &api.Staged{Config: cfgB}, says: &api.Staged{Config: cfgB}},
		"something else was staged":        {order: cfgC, said: ready, host: [2]string{digestB, "x"}, due: true, leftover: true},
		"the order was taken back":         {said: ready, host: [2]string{digestB, "x"}, leftover: true},
		"it is where the node is":          {order: cfgA},
		"it is where the node is sent":     {order: cfgB, desired: cfgB, said: ready, host: [2]string{digestB, "x"}, says: ready},
		"it failed":                        {order: cfgB, said: failed(cfgB, 119*time.Second), says: failed(cfgB, 119*time.Second)},
		"it failed a while ago":            {order: cfgB, said: failed(cfgB, 2*time.Minute), says: failed(cfgB, 2*time.Minute), due: true},
		"it failed by another clock":       {order: cfgB, said: failed(cfgB, -time.Hour), says: failed(cfgB, -time.Hour), due: true},
		"something else failed":            {order: cfgB, said: failed(cfgC, time.Second), due: true},
		"it failed and was taken back":     {said: failed(cfgB, time.Second), says: failed(cfgB, time.Second)},
		"it failed and the node got there": {said: failed(cfgA, time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := atRestOn()
			if c.desired != "" {
				v.node.Desired = c.desired
			}
			v.node.Staged = c.said
			if c.order != "" {
				v.node.Orders.Stage = &api.StageOrder{Config: c.order}
			}
			v.host.Staged, v.host.StagedOS = c.host[0], c.host[1]
			s := &aheadState{}
			s.see(v, !c.unread)
			if got := isDue(v.aheadDue(), v.now); got != c.due {
				t.Errorf("due: %t", got)
			}
			if (v.ahead == nil) != (c.says == nil) || v.ahead != nil && *v.ahead != *c.says {
				t.Errorf("says %+v, want %+v", v.ahead, c.says)
			}
			if got := v.leftover(); got != c.leftover {
				t.Errorf("leftover: %t", got)
			}
			r := reportNode(v, PhaseDone)
			if said, is := r.annotations[api.StagedKey]; !is || (said == nil) != (c.says == nil) {
				t.Errorf("the Node says %v", said)
			}
		})
	}
}

func TestOnlyWhatWasApprovedIsGoneTo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		approved, staged string
		refused          bool
	}{{"x", "x", false}, {"x", "y", true}, {"", "y", false}, {"x", "", false}} {
		err := unapproved(&api.StageOrder{Config: cfgB, Digest: c.approved}, &api.Staged{Config: cfgB, Digest: c.staged})
		if (err != nil) != c.refused {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestANodeThatFindsAnotherOSThanWasApprovedStagesAgainAndServes(t *testing.T) {
	h, _ := quietHead(t)
	h.way = way{from: cfgA, to: cfgB, plan: rebootPlan(), staged: true, asked: true, drained: then}
	end := func(p Phase, staged *api.Staged, err error) {
		h.finish(jobEnd{job: &job{phase: p, config: cfgB, approved: "x", cancel: func(error) {}}, err: err, staged: staged})
	}
	end(PhaseApply, nil, errors.New("no space"))
	if !h.way.staged {
		t.Error("it is staged again for whatever reason")
	}
	end(PhaseApply, nil, &host.Refused{Err: host.NotApproved(cfgB, "y", "x")})
	if h.way.staged {
		t.Error("it is not staged again")
	}
	staged := &api.Staged{Config: cfgB, Digest: "y"}
	end(PhaseStage, staged, unapproved(&api.StageOrder{Config: cfgB, Digest: "x"}, staged))
	v := updating().cordoned()
	v.failure = h.way.failure
	v.now = v.failure.retry.Add(-time.Millisecond)
	p := decide(v).name
	r := reportNode(v, p)
	text := said(nil, r)
	if p != PhaseBackoff || r.cordon != dropCordon || !strings.Contains(text[api.Reason], "x was approved") ||
		text[api.StateKey] != string(api.Degraded) || v.failure.tries != 3 {
		t.Errorf("%s, cordon %d, %d tries: %v", p, r.cordon, v.failure.tries, text)
	}
}

func TestAHostThatCanNotBeReadCarriesOutNoOrder(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*situation){
		"its host can't be read": func(v *situation) { v.host = nil },
		"its Node is gone":       func(v *situation) { v.host, v.exists = nil, false },
	} {
		v := atRestOn()
		v.node.Orders.Stage = &api.StageOrder{Config: cfgB}
		change(v)
		cancelled := false
		h := &Head{read: true, job: &job{phase: phaseAhead, config: cfgB, cancel: func(error) { cancelled = true }}}
		if v.order() != nil || v.stages(h.job) || !v.aheadDue().IsZero() {
			t.Errorf("%s: it has an order", name)
		}
		if h.clear(v, decide(v)) || !cancelled {
			t.Errorf("%s: what it stages goes on", name)
		}
	}
}

func TestCertificatesAreDeliveredWhileTheNodeStagesAhead(t *testing.T) {
	t.Parallel()
	for phase, may := range map[Phase]bool{"": true, phaseAhead: true, PhaseStage: true, PhaseDrain: true, PhaseApply: false,
		phaseVerify: false, phaseRepair: false, phaseUnstage: false} {
		h := &Head{}
		if phase != "" {
			h.job = &job{phase: phase, config: cfgB}
		}
		if got := h.mayDeliver(atRestOn()); got != may {
			t.Errorf("%q: %t", phase, got)
		}
	}
}
