// SPDX-License-Identifier: Apache-2.0

package run

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/fakehost"
)

func TestWhatWasStagedIsLetGoOfWhenTheNodeIsSentBack(t *testing.T) {
	t.Parallel()
	stall := func(s *fakehost.Script) { s.Delays = map[string]time.Duration{fakehost.Stage: time.Hour} }
	staging := func(n *node) { n.until("it stages", func() bool { return n.host.Staged() != "" }) }
	for _, c := range []struct {
		name   string
		script func(*fakehost.Script)
		blocks bool // the drain
		reach  func(*node)
		away   bool // no head is there when the node is sent back
	}{
		{"stage", stall, false, staging, false},
		{"stage-without-head", stall, false, staging, true},
		{"drain", nil, true, func(n *node) {
			n.wait("cordoned", func(o *corev1.Node, _ api.Node) bool { return o.Spec.Unschedulable })
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			if c.script != nil {
				n.host.Change(c.script)
			}
			if c.blocks {
				defer n.block()()
			}
			n.desire(n.render([]string{"quiet"}, "b"))
			c.reach(n)
			if c.away {
				n.kill()
			}
			n.desire(n.a)
			if c.away {
				n.start()
			}
			n.until("it is let go of", func() bool { return n.host.Staged() == "" })
			n.wait("given back", func(o *corev1.Node, a api.Node) bool {
				return a.State == api.Done && !o.Spec.Unschedulable && a.Cordon == nil
			})
			time.Sleep(time.Second) //nolint:forbidigo // that nothing happens has no condition to wait for
			if got := n.host.Counts(); got[fakehost.Unstage] != 1 || got[fakehost.Apply] != 0 || n.host.Boots() != 0 {
				t.Errorf("operations %v, %d boots", got, n.host.Boots())
			}
		})
	}
}

func TestWhatWasStagedIsLetGoOfOnANodeThatCameBack(t *testing.T) {
	n := newNode(t)
	b, c := n.render([]string{"quiet"}, "b"), n.render([]string{"quiet"}, "c")
	n.host.Change(func(s *fakehost.Script) {
		s.Fault = func(operation, _ string) error {
			if operation == fakehost.Prove {
				return fakehost.ErrBad
			}
			return nil
		}
	})
	n.desire(b)
	n.waitState(api.RolledBack, n.a)
	n.host.Change(func(s *fakehost.Script) { s.Delays = map[string]time.Duration{fakehost.Stage: time.Hour} })
	n.desire(c)
	n.until("it stages", func() bool { return n.host.Staged() != "" })
	n.desire(b)
	n.until("it is let go of", func() bool { return n.host.Staged() == "" })
	o := n.waitState(api.RolledBack, n.a)
	if read, _ := api.ReadNode(o); !strings.Contains(read.Reason, fakehost.ErrBad.Error()) || n.host.Boots() != 2 {
		t.Errorf("reason %q, %d boots", read.Reason, n.host.Boots())
	}
}

func TestNodeIsDoneWhateverCanNotBeLetGoOf(t *testing.T) {
	n := newNode(t)
	n.host.Change(func(s *fakehost.Script) {
		s.Delays = map[string]time.Duration{fakehost.Stage: time.Hour}
		s.Fault = func(operation, _ string) error {
			if operation == fakehost.Unstage {
				return fakehost.ErrBad
			}
			return nil
		}
	})
	n.desire(n.render([]string{"quiet"}, "b"))
	n.until("it stages", func() bool { return n.host.Staged() != "" })
	n.desire(n.a)
	n.until("it was tried", func() bool { return n.host.Counts()[fakehost.Unstage] == 1 })
	n.waitState(api.Done, n.a)
	time.Sleep(3 * time.Second) //nolint:forbidigo // that nothing happens has no condition to wait for
	if read, err := api.ReadNode(n.get()); err != nil || read.State != api.Done || n.host.Counts()[fakehost.Unstage] != 1 {
		t.Errorf("state %q, operations %v, %v", read.State, n.host.Counts(), err)
	}
}
