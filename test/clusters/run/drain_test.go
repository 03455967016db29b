// SPDX-License-Identifier: Apache-2.0

package run

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/fakehost"
)

// orderDrain does what the pool controller does with the drain policy of a pool.
func (n *node) orderDrain(p api.DrainPolicy) {
	n.t.Helper()
	n.patch(`{"metadata":{"annotations":{%q:%q}}}`, api.OrdersKey, api.Encode(api.Orders{Drain: &p}))
}

func TestADrainAtItsLimitIsHeldAndTheNodeServes(t *testing.T) {
	n := newNode(t)
	release := n.block()
	n.orderDrain(api.DrainPolicy{TimeoutSeconds: 2, OnTimeout: api.DrainHolds, HoldSeconds: 3000})
	b := n.render([]string{"quiet"}, "b")
	n.desire(b)
	held := func(o *corev1.Node, a api.Node) bool {
		return a.DrainHeld != nil && !o.Spec.Unschedulable && a.Cordon == nil
	}
	o := n.wait("held", held)
	says, _ := api.ReadNode(o)
	hold := says.DrainHeld
	if says.State != api.Working || hold.Config != b || !hold.Until.Equal(hold.Since.Add(3000*time.Second)) {
		t.Errorf("it says %+v, %+v", says, hold)
	}
	n.until("an event says so", func() bool { return len(n.eventsOf("DrainHeld")) == 1 })

	// Another head goes on with the same hold.
	n.restartAndLook()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		o := n.get()
		says, _ := api.ReadNode(o)
		if !held(o, says) || !says.DrainHeld.Until.Equal(hold.Until) {
			t.Fatalf("another head did not hold it: %v", o.Annotations)
		}
	}

	// Another policy is a reason to try at once.
	n.orderDrain(api.DrainPolicy{TimeoutSeconds: 600, OnTimeout: api.DrainHolds, HoldSeconds: 3000})
	n.wait("drained again", func(o *corev1.Node, a api.Node) bool { return o.Spec.Unschedulable && a.DrainHeld == nil })
	release()
	n.waitState(api.Done, b)
	if n.host.Counts()[fakehost.Apply] != 1 {
		t.Errorf("operations %v", n.host.Counts())
	}
}

func TestAHoldEndsWhenSomebodyTakesItAway(t *testing.T) {
	n := newNode(t)
	release := n.block()
	n.orderDrain(api.DrainPolicy{TimeoutSeconds: 2, OnTimeout: api.DrainHolds, HoldSeconds: 3000})
	b := n.render([]string{"quiet"}, "b")
	n.desire(b)
	n.wait("held", func(o *corev1.Node, a api.Node) bool { return a.DrainHeld != nil && !o.Spec.Unschedulable })
	release()
	n.patch(`{"metadata":{"annotations":{%q:null}}}`, api.DrainHeldKey)
	n.waitState(api.Done, b)
}

func TestAForcedDrainSaysWhatItDeleted(t *testing.T) {
	n := newNode(t)
	release := n.block()
	defer release()
	n.orderDrain(api.DrainPolicy{TimeoutSeconds: 2, OnTimeout: api.DrainForces})
	b := n.render([]string{"quiet"}, "b")
	n.desire(b)
	n.waitState(api.Done, b)
	n.until("events say so", func() bool {
		return len(n.eventsOf("DrainForced")) == 1 && len(n.eventsOf("DrainTimedOut")) == 1
	})
}

func TestANodeLeavesLoadBalancersForItsDrainAndComesBackWhoeverEndsIt(t *testing.T) {
	n := newNode(t)
	n.orderDrain(api.DrainPolicy{ExcludeFromLoadBalancersSeconds: 4})
	n.pod("web", nil)
	b := n.render([]string{"quiet"}, "b")
	n.desire(b)
	out := func(o *corev1.Node) bool { _, is := o.Labels[api.ExcludeLabel]; return is }
	o := n.wait("out of the load balancers", func(o *corev1.Node, a api.Node) bool { return out(o) && a.Excluded != nil })
	since := time.Now()
	if !o.Spec.Unschedulable {
		t.Error("it takes new pods still")
	}
	says, _ := api.ReadNode(o)
	n.restart()
	n.wait("drained", func(_ *corev1.Node, a api.Node) bool { return a.Drained == b || a.Current == b })
	if took := time.Since(says.Excluded.Since); took < 4*time.Second || time.Since(since) > 30*time.Second {
		t.Errorf("it was drained %s after it had left them", took)
	}
	n.waitState(api.Done, b)
	n.wait("back", func(o *corev1.Node, a api.Node) bool { return !out(o) && a.Excluded == nil && !o.Spec.Unschedulable })
}
