// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/api"
)

func TestNodesAreAskedToStageAsManyAtATimeAsMay(t *testing.T) {
	t.Parallel()
	runTable(t, "staging.txt")
}

func TestANodeIsToldTheLimits(t *testing.T) {
	t.Parallel()
	runTable(t, "staging-limits.txt")
}

func TestASlipInAPolicyHasNobodyLetGoOfWhatIsStaged(t *testing.T) {
	t.Parallel()
	runTable(t, "staging-slips.txt")
}

func TestANodeWaitsUntilItHasStaged(t *testing.T) {
	t.Parallel()
	runTable(t, "staging-waits.txt")
}

func TestAPoolWaitsForAnApproval(t *testing.T) {
	t.Parallel()
	runTable(t, "approval.txt")
}

func TestWindowsOfStagingThatMakeNoSenseAreRefusedByField(t *testing.T) {
	t.Parallel()
	for field, spec := range map[string]api.RolloutStaging{
		"spec.staging.windows.timeZone": {Windows: &api.RolloutWindows{TimeZone: "Middle/Earth"}},
		"spec.staging.maxConcurrent":    {MaxConcurrent: number("0%")},
	} {
		p := policyOf(api.RolloutPolicySpec{Staging: &spec})
		if err := Check(&p); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
