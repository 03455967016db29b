// SPDX-License-Identifier: Apache-2.0

package daemon

import (
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
	order := &api.StageOrder{Config: cfgB, MinFreeMebibytes: 512, IOWeight: 10, CPUWeight: 20}
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
