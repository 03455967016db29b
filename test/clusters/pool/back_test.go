// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"testing"

	"github.com/noderefit/noderefit/api"
)

func TestARolloutThatIsTakenBackWaitsForNoWindow(t *testing.T) {
	l, _ := workers(t, 4, "1")
	l.setClock(evening(22, 1))
	l.governed("nightly", `{"pools":["worker"],"windows":{"open":[{"cron":"0 22 * * *","durationMinutes":60}]}}`)
	l.agents.hold("w-1", true)
	l.target("worker", configB)
	l.until("one has it, and one is in its drain", func() bool {
		return l.stand("w-0").Updated(configB) && l.stand("w-1").Cordoned
	})
	l.setClock(evening(23, 1))
	l.heldBy("worker", "OutsideWindow", "no window is open")
	l.target("worker", configA)
	l.agents.hold("w-1", false)
	l.updated("worker", configA)
	l.told(map[string][]string{"w-0": {configB, configA}, "w-1": {configB, configA}})
}

func TestACanaryThatIsNotThereHoldsThePoolUntilOneIs(t *testing.T) {
	l, c := workers(t, 2, "1")
	l.mustPolicy("typo", `{"pools":["worker"],"stages":[
		{"name":"canary","nodeSelector":{"matchLabels":{"tier":"canry"}},"soakSeconds":1}]}`)
	l.until("the policy says so", func() bool { return l.ready("typo") == "False "+api.RolloutNoNodes })
	l.target("worker", configB)
	l.holds(c, "typo", "PolicyUnusable", "stage canary has no node in pool worker: none matches its nodeSelector, tier=canry", "w-1")
	l.told(map[string][]string{})
	l.mustPatchNode("w-1", `{"metadata":{"labels":{"tier":"canry"}}}`)
	l.updated("worker", configB)
	if got := l.ready("typo"); got != "True "+api.RolloutInForce {
		t.Errorf("the policy says %s", got)
	}
}
