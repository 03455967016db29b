// SPDX-License-Identifier: Apache-2.0

package run

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/fakehost"
)

func (n *node) orders(o api.Orders) {
	n.t.Helper()
	n.patch(`{"metadata":{"annotations":{%q:%q}}}`, api.OrdersKey, api.Encode(o))
}

// rebooted returns what the Node says of the latest ordered reboot.
func rebooted(o *corev1.Node) api.Rebooted {
	r, _ := api.Decode[api.Rebooted](o.Annotations, api.RebootedKey)
	return r
}

func TestOrderedRebootIsCarriedOutOnceWithDrainAndVerdict(t *testing.T) {
	n := newNode(t)
	n.host.Change(func(s *fakehost.Script) {
		s.Wanted = &api.RebootWanted{Reasons: []api.RebootReason{{Kind: api.RebootPackages, Message: "libc6",
			Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}}
	})
	n.host.Touch()
	n.wait("the reboot wanted", func(o *corev1.Node, a api.Node) bool {
		return a.State == api.Done && strings.Contains(o.Annotations[api.RebootWantedKey], "libc6")
	})
	n.waitEvent("RebootWanted", "libc6")
	cordoned := make(chan bool, 1)
	n.host.Change(func(s *fakehost.Script) {
		s.Gone = func() { cordoned <- n.get().Spec.Unschedulable }
		s.Back = func() { n.host.Change(func(s *fakehost.Script) { s.Wanted = nil }) }
	})
	order := api.Orders{Reboot: &api.RebootOrder{ID: "one", Why: "libc6 was upgraded"}}
	n.orders(order)
	n.wait("a healthy end", func(o *corev1.Node, a api.Node) bool {
		r := rebooted(o)
		return r.ID == "one" && !r.Ended.IsZero() && r.Failed == "" && a.State == api.Done && !o.Spec.Unschedulable &&
			o.Annotations[api.RebootWantedKey] == "" && a.Current == n.a
	})
	if !<-cordoned {
		t.Error("the node was not cordoned when its host went down")
	}
	n.waitEvent("Rebooted", "libc6 was upgraded")

	// Another head finds the order carried out.
	n.restartAndLook()
	n.waitState(api.Done, n.a)
	time.Sleep(time.Second) //nolint:forbidigo // that nothing happens has no condition to wait for
	if got := n.host.Counts(); got[fakehost.Reboot] != 1 || n.host.Boots() != 1 || got[fakehost.Ask] != 1 {
		t.Errorf("operations %v, %d boots", got, n.host.Boots())
	}
}

func TestUnhealthyBootIsSaidAndTheNodeStaysCordoned(t *testing.T) {
	n := newNode(t)
	n.host.Change(func(s *fakehost.Script) {
		s.Fault = func(operation, _ string) error {
			if operation == fakehost.Prove || operation == fakehost.Apply {
				return errors.New("kubelet: kubelet.service is failed")
			}
			return nil
		}
	})
	n.orders(api.Orders{Reboot: &api.RebootOrder{ID: "two", Why: "a person asked"}})
	n.wait("the failure", func(o *corev1.Node, a api.Node) bool {
		return strings.Contains(rebooted(o).Failed, "kubelet.service is failed") && a.State == api.Degraded &&
			strings.Contains(a.Reason, "kubelet.service is failed") && o.Spec.Unschedulable
	})
	n.waitEvent("RebootFailed", "kubelet.service is failed")
	n.host.Change(func(s *fakehost.Script) { s.Fault = nil })
	n.wait("recovery", func(o *corev1.Node, a api.Node) bool { return a.State == api.Done && !o.Spec.Unschedulable })
	if n.host.Boots() != 1 {
		t.Errorf("%d boots", n.host.Boots())
	}
}

func TestManualRebootIsLeftToPeopleUntilItIsOrdered(t *testing.T) {
	n := newNode(t)
	b := n.render([]string{"quiet"}, "b")
	n.host.Change(func(s *fakehost.Script) { s.Delays = map[string]time.Duration{fakehost.Apply: time.Second} })
	n.orders(api.Orders{ManualReboots: true})
	n.desire(b)
	waits := func(config string) {
		t.Helper()
		n.wait("NeedsReboot", func(o *corev1.Node, a api.Node) bool {
			return a.State == api.Working && strings.HasPrefix(a.Reason, api.ReasonNeedsReboot+config) &&
				!o.Spec.Unschedulable && a.Current == n.a
		})
	}
	waits(b)
	if got := n.host.Counts(); got[fakehost.Ask] != 0 || got[fakehost.Apply] != 1 || n.host.Boots() != 0 || n.hasEvents("Cordon") {
		t.Errorf("operations %v, %d boots, was cordoned: %t", got, n.host.Boots(), n.hasEvents("Cordon"))
	}
	n.desire(n.a) // a changed mind
	n.waitState(api.Done, n.a)
	n.desire(b)
	waits(b)
	n.orders(api.Orders{ManualReboots: true, Reboot: &api.RebootOrder{ID: "three", Why: "the window is open"}})
	n.wait("the configuration, proved", func(o *corev1.Node, a api.Node) bool {
		r := rebooted(o)
		return a.State == api.Done && a.Current == b && r.ID == "three" && !r.Ended.IsZero() && r.Failed == ""
	})
	if got := n.host.Counts(); got[fakehost.Ask] == 0 || n.host.Boots() != 1 {
		t.Errorf("operations %v, %d boots", got, n.host.Boots())
	}
}
