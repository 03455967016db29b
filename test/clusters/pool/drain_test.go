// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/api"
)

func TestABadDrainPolicyIsRefusedByItsField(t *testing.T) {
	l := newLab(t)
	for spec, says := range map[string]string{
		`"drain":{"onTimeout":"Sometimes"}`:                 "spec.drain.onTimeout",
		`"drain":{"onTimeout":"Force"}`:                     "spec.drain: Invalid value",
		`"drain":{"timeoutSeconds":0}`:                      "spec.drain.timeoutSeconds",
		`"drain":{"timeoutSeconds":5,"holdSeconds":5}`:      "holdSeconds belongs to onTimeout Hold",
		`"drain":{"skipPodSelectors":[{}]}`:                 "spec.drain.skipPodSelectors",
		`"drain":{"skipPodSelectors":[{"matchLabels":{}}]}`: "spec.drain.skipPodSelectors",
		`"drain":{"excludeFromLoadBalancersSeconds":7200}`:  "spec.drain.excludeFromLoadBalancersSeconds",
		`"drain":{"waitForVolumeDetachSeconds":-1}`:         "spec.drain.waitForVolumeDetachSeconds",
		`"controlPlane":{"etcd":"Perhaps"}`:                 "spec.controlPlane.etcd",
	} {
		err := l.policy("bad", `{"pools":["worker"],`+spec+`}`)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", spec, err, says)
		}
	}
	l.mustPolicy("good", `{"pools":["worker"],"drain":{"timeoutSeconds":60,"onTimeout":"Hold","holdSeconds":600,
		"skipPodSelectors":[{"matchLabels":{"app":"cache"}}],"waitForVolumeDetachSeconds":60,
		"excludeFromLoadBalancersSeconds":30}}`)
}

// What a policy says of drains is on the nodes that are to go, from before they are told to until they have arrived; a
// policy that makes no sense takes nothing of it back.
func TestNodesAreToldHowToDrain(t *testing.T) {
	l, _ := workers(t, 2, "1")
	l.agents.hold("w-0", true)
	l.mustPolicy("careful", `{"pools":["worker"],"drain":{"timeoutSeconds":60,"onTimeout":"Hold",
		"skipPodSelectors":[{"matchLabels":{"app":"cache"}}]}}`)
	l.target("worker", configB)
	l.until("w-0 is told", func() bool {
		n := l.stand("w-0")
		return n.Desired == configB && n.Orders.Drain != nil && n.Orders.Drain.OnTimeout == api.DrainHolds
	})
	l.mustPolicy("another", `{"pools":["worker"]}`)
	l.heldBy("worker", "PolicyUnusable", "2 RolloutPolicies select pool worker")
	if l.stand("w-0").Orders.Drain == nil {
		t.Error("it is forgotten which pods stay")
	}
	if err := l.Client.CoreV1().RESTClient().Delete().AbsPath(policiesPath, "another").Do(l.ctx).Error(); err != nil {
		t.Fatal(err)
	}
	l.agents.hold("w-0", false)
	l.updated("worker", configB)
	l.until("nobody is asked anything", func() bool {
		return l.stand("w-0").Orders == (api.Orders{}) && l.stand("w-1").Orders == (api.Orders{})
	})
}
