// SPDX-License-Identifier: Apache-2.0

package run

import (
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab/fakehost"
)

// holds makes the host's hooks say no for as long as it is true.
func (n *node) holds() *atomic.Bool {
	held := &atomic.Bool{}
	held.Store(true)
	n.host.Change(func(s *fakehost.Script) {
		s.Fault = func(operation, _ string) error {
			if operation != fakehost.Ask || !held.Load() {
				return nil
			}
			return &host.Refused{Err: &hooks.Error{When: hooks.BeforeDrain, Hook: "/etc/noderefit/hooks/before-drain.d/10-gate",
				Why: "exit status 3", Output: []string{"looked", "not today"}}}
		}
	})
	return held
}

// carries gives a rendered configuration the hooks that the render controller carries there.
func (n *node) carries(config string, carried ...api.Hook) {
	n.t.Helper()
	patch := []byte(`{"metadata":{"annotations":{"` + api.HooksKey + `":` + api.Encode(api.Encode(carried)) + `}}}`)
	_, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigs().Patch(n.ctx(), config, types.MergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
}

// stopped waits until the MachineConfigNode names the hook that holds the update; nil: none does.
func (n *node) stopped(what string, is func(*api.HookStop) bool) {
	n.t.Helper()
	n.until(what, func() bool {
		object, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigNodes().Get(n.ctx(), n.name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		stop, err := api.Decode[*api.HookStop](object.Annotations, api.HookStopKey)
		return err == nil && is(stop)
	})
}

func TestAHookHoldsAnUpdateWhileTheNodeServes(t *testing.T) {
	n := newNode(t)
	held := n.holds()
	b := n.render([]string{"b=1"}, "b")
	gate := api.Hook{Name: "gate", NodeHookSpec: api.NodeHookSpec{When: api.HookBeforeDrain, Path: "/bin/gate"}}
	n.carries(b, gate)
	n.desire(b)
	o := n.wait("held", func(_ *corev1.Node, a api.Node) bool { return strings.Contains(a.Reason, "10-gate") })
	says, _ := api.ReadNode(o)
	if says.State != api.Working || o.Spec.Unschedulable || !strings.HasSuffix(says.Reason, "exit status 3: looked | not today") {
		t.Errorf("%+v", says)
	}
	n.stopped("its words are there", func(s *api.HookStop) bool {
		return s != nil && s.Config == b && s.Why == "exit status 3" && strings.Join(s.Output, ",") == "looked,not today"
	})
	n.until("an event names it", func() bool { return len(n.eventsOf("UpdateHeldByHook")) == 1 })
	if told := n.host.Told(); told.Node != n.name || len(told.Hooks) != 1 || told.Hooks[0].Name != "gate" {
		t.Errorf("the host was told %+v", told)
	}

	// Another head says the same, and nothing twice; and it asks again.
	n.kill()
	asked := n.host.Counts()[fakehost.Ask]
	n.start()
	n.until("it is asked again", func() bool { return n.host.Counts()[fakehost.Ask] > asked })
	if c := n.host.Counts(); c[fakehost.Apply] != 0 || len(n.eventsOf("UpdateHeldByHook")) != 1 {
		t.Errorf("%v, events %q", c, n.eventsOf("UpdateHeldByHook"))
	}

	held.Store(false)
	gate.Path = "/bin/other" // a change of the hooks is a reason to ask at once
	n.carries(b, gate)
	n.waitState(api.Done, b)
	n.stopped("nothing holds it", func(s *api.HookStop) bool { return s == nil })
	n.until("an event says that it goes on", func() bool { return len(n.eventsOf("HooksAgree")) == 1 })
	if told := n.host.Told(); len(told.Hooks) != 1 || told.Hooks[0].Path != "/bin/other" {
		t.Errorf("the apply was told %+v", told)
	}
}

func TestWhoeverIsHeldByAHookMayGoElsewhere(t *testing.T) {
	n := newNode(t)
	n.holds()
	b := n.render([]string{"b=1"}, "b")
	n.desire(b)
	n.wait("held", func(_ *corev1.Node, a api.Node) bool { return strings.Contains(a.Reason, "10-gate") })
	n.desire(n.a)
	o := n.waitState(api.Done, n.a)
	if o.Spec.Unschedulable || n.host.Boots() != 0 {
		t.Errorf("%+v, %d boots", o.Spec, n.host.Boots())
	}
	n.stopped("nothing holds it", func(s *api.HookStop) bool { return s == nil })
}

func TestNoUpdateBeginsWhileNobodyKnowsWhatIsToBeAsked(t *testing.T) {
	n := newNode(t)
	b := n.render([]string{"b=1"}, "b")
	n.carries(b, api.Hook{Name: "gate", Problem: "NodeHook/gate: is not there"})
	n.desire(b)
	n.wait("held", func(o *corev1.Node, a api.Node) bool {
		return a.State == api.Working && strings.Contains(a.Reason, "NodeHook/gate: is not there") && !o.Spec.Unschedulable
	})
	if c := n.host.Counts(); c[fakehost.Ask] != 0 {
		t.Errorf("%v", c)
	}
	n.carries(b)
	n.waitState(api.Done, b)
}
