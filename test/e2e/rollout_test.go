// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/noderefit/noderefit/test/fleet"
)

func TestAConfigurationReachesEveryNodeWithinTheBudgets(t *testing.T) {
	ctx, f := start(t, fleet.Options{Hosts: []string{"w0", "w1"}})
	if err := f.Apply(ctx, motd("50-change", "second")); err != nil {
		t.Fatal(err)
	}
	if err := f.WaitPool(ctx, "worker", "everybody has the second configuration", fleet.Updated(2)); err != nil {
		t.Fatal(err)
	}
}
