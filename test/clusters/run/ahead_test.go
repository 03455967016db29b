// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/fakehost"
)

const (
	osX = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	osY = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// order does what the pool controller does under a policy; nil takes the order back.
func (n *node) order(o *api.StageOrder) {
	n.t.Helper()
	if o == nil {
		n.patch(`{"metadata":{"annotations":{%q:null}}}`, api.OrdersKey)
		return
	}
	n.patch(`{"metadata":{"annotations":{%q:%q}}}`, api.OrdersKey, api.Encode(api.Orders{Stage: o}))
}

// waitStaged waits until the node says that it has staged that OS, while it serves at the configuration that it had.
func (n *node) waitStaged(config, os string) {
	n.t.Helper()
	n.wait("staged ahead", func(o *corev1.Node, a api.Node) bool {
		return a.Staged.Is(config) && a.Staged.Digest == os && a.State == api.Done && !o.Spec.Unschedulable
	})
}

func (n *node) waitEvent(reason, says string) {
	n.t.Helper()
	n.until(fmt.Sprintf("event %s: %s", reason, says), func() bool {
		list, err := n.Client.CoreV1().Events("").List(n.ctx(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + n.name})
		if err != nil {
			return false
		}
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, says) {
				return true
			}
		}
		return false
	})
}

func TestNodeStagesAheadServesOnAndPullsNothingWhenItGoes(t *testing.T) {
	n := newNode(t)
	n.host.Change(func(s *fakehost.Script) { s.OS = osX })
	b := n.render([]string{"quiet"}, "b")
	order := api.StageOrder{Config: b, MinFreeMebibytes: 100, IOWeight: 10, CPUWeight: 20, Bandwidth: 20 << 20}
	n.order(&order)
	n.waitStaged(b, osX)
	n.waitEvent("Staged", osX)
	if got := n.host.Order(); got == nil || *got != order {
		t.Errorf("the host was told %+v", got)
	}

	// Another head, and another boot, find it as it is.
	n.restartAndLook()
	n.waitState(api.Done, n.a)
	time.Sleep(time.Second) //nolint:forbidigo // that nothing happens has no condition to wait for
	n.waitStaged(b, osX)
	if got := n.host.Counts(); got[fakehost.Stage] != 1 || got[fakehost.Unstage] != 0 || n.host.Boots() != 0 {
		t.Errorf("operations %v, %d boots", got, n.host.Boots())
	}

	order.Digest = osX
	n.order(&order)
	n.host.Change(func(s *fakehost.Script) { s.OS = osY }) // what its tag means by now
	n.desire(b)
	n.waitState(api.Done, b)
	if got := n.host.Counts(); got[fakehost.Pull] != 1 {
		t.Errorf("operations %v", got)
	}
	if got := n.host.Order(); got == nil || got.MinFreeMebibytes != 0 || got.IOWeight != 10 || got.Bandwidth != 20<<20 {
		t.Errorf("on its way the host was told %+v", got)
	}
	n.order(nil)
	n.wait("silent of what it had staged", func(_ *corev1.Node, a api.Node) bool { return a.Staged == nil })
}

func TestNodeLetsGoOfWhatIsNotToBeStagedAnyMore(t *testing.T) {
	n := newNode(t)
	n.host.Change(func(s *fakehost.Script) { s.OS = osX })
	b, c := n.render([]string{"quiet"}, "b"), n.render([]string{"quiet"}, "c")
	n.order(&api.StageOrder{Config: b})
	n.waitStaged(b, osX)
	n.order(&api.StageOrder{Config: c})
	n.waitStaged(c, osX)
	n.order(nil)
	n.until("it is let go of", func() bool { return n.host.Staged() == "" })
	n.wait("silent of what it had staged", func(_ *corev1.Node, a api.Node) bool { return a.Staged == nil && a.State == api.Done })

	// One that is at it stops.
	n.host.Change(func(s *fakehost.Script) { s.Delays = map[string]time.Duration{fakehost.Stage: time.Hour} })
	n.order(&api.StageOrder{Config: b})
	n.until("it stages", func() bool { return n.host.Staged() != "" })
	n.order(nil)
	n.until("it is let go of", func() bool { return n.host.Staged() == "" })
	if got := n.host.Counts(); got[fakehost.Apply] != 0 || n.host.Boots() != 0 {
		t.Errorf("operations %v, %d boots", got, n.host.Boots())
	}
}

func TestNodeThatCanNotStageAheadServesAndSaysSo(t *testing.T) {
	n := newNode(t)
	n.host.Change(func(s *fakehost.Script) {
		s.Fault = func(operation, _ string) error {
			if operation == fakehost.Stage {
				return fakehost.ErrBad
			}
			return nil
		}
	})
	b := n.render([]string{"quiet"}, "b")
	n.order(&api.StageOrder{Config: b})
	n.wait("saying why", func(o *corev1.Node, a api.Node) bool {
		return a.Staged.Failed(b) && strings.Contains(a.Staged.Error, fakehost.ErrBad.Error()) && a.Staged.Tries == 1 &&
			a.State == api.Done && !o.Spec.Unschedulable
	})
	n.waitEvent("StagingFailed", fakehost.ErrBad.Error())
	time.Sleep(2 * time.Second) //nolint:forbidigo // that nothing happens has no condition to wait for
	if got := n.host.Counts(); got[fakehost.Stage] != 1 {
		t.Errorf("operations %v", got)
	}
	n.order(nil)
	n.restart()
	n.wait("saying it still", func(_ *corev1.Node, a api.Node) bool { return a.Staged.Failed(b) && a.State == api.Done })
	n.host.Change(func(s *fakehost.Script) { s.Fault = nil })
	n.desire(b)
	n.waitState(api.Done, b)
	n.wait("silent of it", func(_ *corev1.Node, a api.Node) bool { return a.Staged == nil })
}

func TestNodeGoesToNothingElseThanWasApproved(t *testing.T) {
	n := newNode(t)
	n.host.Change(func(s *fakehost.Script) { s.OS = osX })
	b := n.render([]string{"quiet"}, "b")
	n.order(&api.StageOrder{Config: b, Digest: osY})
	n.waitStaged(b, osX)
	n.desire(b)
	n.wait("refusing", func(o *corev1.Node, a api.Node) bool {
		return a.State == api.Degraded && strings.Contains(a.Reason, osY+" was approved") && !o.Spec.Unschedulable
	})
	if got := n.host.Counts(); got[fakehost.Apply] != 0 {
		t.Errorf("operations %v", got)
	}
	n.order(&api.StageOrder{Config: b, Digest: osX})
	n.waitState(api.Done, b)
}
