// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
)

func TestTheNodeSaysHowLongItsVerdictMayTakeWithTheReboot(t *testing.T) {
	for limit, want := range map[time.Duration]string{api.DefaultVerdictTimeout: "", 45 * time.Minute: "45m0s"} {
		v := stages[PhaseReboot]()
		v.verdict = limit
		value, there := reportNode(v, PhaseReboot).annotations[api.VerdictTimeoutKey]
		switch {
		case !there:
			t.Errorf("%s: nothing is said", limit)
		case want == "" && value != nil, want != "" && (value == nil || *value != want):
			t.Errorf("%s: it says %v", limit, value)
		}
	}
}
