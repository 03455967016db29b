// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/transaction"
)

// atRestOn is a node that is done at A.
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
		host     [2]string // what is staged there: the configuration's digest, and the OS
		unread   bool      // the host was not read since
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
			if got := v.aheadDue(); got != c.due {
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

func TestTheHandsPassAnOrderOn(t *testing.T) {
	t.Parallel()
	root, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	order := &api.StageOrder{Config: cfgB, Digest: "sha256:x", MinFreeMebibytes: 512, IOWeight: 10, CPUWeight: 20}
	for _, c := range []struct {
		verb    verb
		order   *api.StageOrder
		ordered bool
	}{{stageVerb, order, true}, {stageVerb, nil, false}, {applyVerb, order, false}} {
		call := &handCall{hands: &HostHands{root: root}, verb: c.verb, request: &Request{Name: cfgB, Order: c.order}}
		dir := fmt.Sprintf("/run/%s-%t", c.verb.name, c.ordered)
		argv, err := call.handOver(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range []string{"--as-staged", "--min-free=512", "--cpu-weight=20", "--io-weight=10"} {
			if slices.Contains(argv, flag) != c.ordered {
				t.Errorf("%s, ordered %t: %v", c.verb.name, c.ordered, argv)
			}
		}
		if goes := c.verb.name == applyVerb.name; slices.Contains(argv, "--approved=sha256:x") != goes {
			t.Errorf("%s is told what was approved: %t; %v", c.verb.name, !goes, argv)
		}
		if unit := call.transient(dir, argv); (unit.IOWeight == 10 && unit.CPUWeight == 20) != c.ordered {
			t.Errorf("%s, ordered %t: %+v", c.verb.name, c.ordered, unit)
		}
	}
}

func TestStagingRefusesADiskBelowItsFloor(t *testing.T) {
	h := openTree(t, t.TempDir())
	cfg := &machineconfig.Config{Name: cfgB, Digest: digestB}
	res, err := h.Stage(t.Context(), cfg, ApplyOptions{MinFree: 1 << 60})
	if !errors.As(err, new(*lowDisk)) || !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), transaction.StateDir) {
		t.Errorf("%v, %+v", err, res)
	}
	if _, err := h.Stage(t.Context(), cfg, ApplyOptions{MinFree: 1}); err != nil {
		t.Errorf("a disk with room: %v", err)
	}
}

// presentComposer is an OS manager that has composed something, and still has it.
type presentComposer struct{ composer }

func (presentComposer) Present(context.Context, ostree.System, ostree.Composed) (bool, error) {
	return true, nil
}

func TestAnOSThatNobodyApprovedIsRefusedBeforeAnythingIsTouched(t *testing.T) {
	h := openTree(t, t.TempDir())
	h.composer = presentComposer{}
	cfg := &machineconfig.Config{Name: cfgB, Digest: digestB}
	kept := staged{Digest: digestB, Booted: "b", Composed: ostree.Composed{Checksum: "c", Base: "sha256:x"}}
	if err := h.keepStaged(kept); err != nil {
		t.Fatal(err)
	}
	for approved, refused := range map[string]bool{"": false, "sha256:x": false, "sha256:y": true, "c": true} {
		res := &Result{Plan: rebootPlan()}
		c, err := h.compose(t.Context(), cfg, "b", &wanted{}, ApplyOptions{Approved: approved}, res)
		if isRefused(err) != refused || refused == (c.Checksum == "c") {
			t.Errorf("approved %q: %+v, %v", approved, c, err)
		}
		if refused && (!strings.Contains(err.Error(), "sha256:x") || !strings.Contains(err.Error(), approved)) {
			t.Errorf("approved %q: %v", approved, err)
		}
	}
	if err := approves(cfg, "c", ostree.Composed{Checksum: "c"}); err != nil {
		t.Errorf("a commit, by its checksum: %v", err)
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
	end(PhaseApply, nil, &Refused{Err: notApproved(cfgB, "y", "x")})
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
		if v.order() != nil || v.stages(h.job) || v.aheadDue() {
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
