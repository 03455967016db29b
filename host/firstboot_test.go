// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

// bootJobs is a systemd that is still booting.
type bootJobs struct {
	after, active bool
	fails         error
	did           []string
}

func (b *bootJobs) do(what, name string) error {
	b.did = append(b.did, what+" "+name)
	return b.fails
}

func (b *bootJobs) StartsAfter(context.Context, string, string) (bool, error) { return b.after, nil }

func (b *bootJobs) ActiveState(_ context.Context, names ...string) (map[string]string, error) {
	return map[string]string{names[0]: map[bool]string{true: "active", false: "inactive"}[b.active]}, nil
}

func (b *bootJobs) QueueReload(_ context.Context, name string) error {
	return b.do("queue reload", name)
}
func (b *bootJobs) QueueRestart(_ context.Context, name string) error {
	return b.do("queue restart", name)
}
func (b *bootJobs) ReloadUnit(_ context.Context, name string) error  { return b.do("reload", name) }
func (b *bootJobs) RestartUnit(_ context.Context, name string) error { return b.do("restart", name) }

func TestFirstBootWaitsForNothingThatWaitsForIt(t *testing.T) {
	reload := plan.Action{Type: plan.ActionReload, Service: "a.service"}
	restart := plan.Action{Type: plan.ActionRestart, Service: "a.service"}
	late := fmt.Errorf("reloading a.service: %w", context.DeadlineExceeded)
	for _, c := range []struct {
		name   string
		jobs   bootJobs
		action plan.Action
		did    []string
		fails  bool
		late   bool
	}{
		{"one before it", bootJobs{}, reload, []string{"reload a.service"}, false, false},
		{"a restart of one before it", bootJobs{active: true}, restart, []string{"restart a.service"}, false, false},
		{"one before it that fails", bootJobs{fails: errors.New("x")}, reload, []string{"reload a.service"}, true, false},
		{"one that takes its time", bootJobs{fails: late}, reload, []string{"reload a.service"}, false, true},
		{"one that is to start", bootJobs{after: true}, reload, nil, false, true},
		{"a restart of one that is to start", bootJobs{after: true}, restart, nil, false, true},
		{"one that runs already", bootJobs{after: true, active: true}, reload, []string{"queue reload a.service"}, false, true},
		{"a restart of one that runs already", bootJobs{after: true, active: true}, restart,
			[]string{"queue restart a.service"}, false, true},
	} {
		e := &early{unit: api.FirstbootUnit, say: func(string, string) {}}
		err := e.act(t.Context(), &c.jobs, c.action)
		if (err != nil) != c.fails || !slices.Equal(c.jobs.did, c.did) || e.late("a.service") != c.late {
			t.Errorf("%s: %v: %v, late %t", c.name, err, c.jobs.did, e.late("a.service"))
		}
	}
}

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
