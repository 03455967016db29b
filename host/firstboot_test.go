// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/transaction"
)

func TestMachineIsCompletedOnlyWhereItHasBooted(t *testing.T) {
	cfg := &machineconfig.Config{Name: "rendered-worker-a", Digest: "a"}
	on := func(digest, deployment string) *transaction.Revision {
		return &transaction.Revision{Digest: digest, Deployment: deployment}
	}
	pending := func(digest, deployment string, p transaction.Phase) *transaction.Pending {
		return &transaction.Pending{Revision: *on(digest, deployment), Phase: p}
	}
	for _, c := range []struct {
		name   string
		record transaction.Record
		want   bool
	}{
		{"a new machine", transaction.Record{}, false},
		{"completed", transaction.Record{Committed: on("a", "1")}, true},
		{"completed, and updated", transaction.Record{Committed: on("b", "1")}, true},
		{"/var of an installation before", transaction.Record{Committed: on("b", "0")}, false},
		{"of the same configuration", transaction.Record{Committed: on("a", "0")}, false},
		{"of one that had begun something", transaction.Record{Committed: on("b", "0"),
			Pending: pending("c", "9", transaction.PhaseProve)}, false},
		{"before its boot", transaction.Record{Pending: pending("a", "2", transaction.PhaseBoot)}, false},
		{"after its boot", transaction.Record{Pending: pending("a", "1", transaction.PhaseProve)}, true},
		{"on its way to something else", transaction.Record{Committed: on("a", "1"),
			Pending: pending("b", "2", transaction.PhaseBoot)}, true},
		{"booted into something else", transaction.Record{Committed: on("a", "0"),
			Pending: pending("b", "1", transaction.PhaseProve)}, true},
	} {
		if got := completed(&c.record, cfg, "1"); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
