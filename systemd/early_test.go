// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
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
	const reload, restart = false, true
	late := fmt.Errorf("reloading a.service: %w", context.DeadlineExceeded)
	for _, c := range []struct {
		name    string
		jobs    bootJobs
		restart bool
		did     []string
		fails   bool
		late    bool
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
		e := &Early{Unit: "boot.service", Say: func(string, string) {}}
		err := e.Act(t.Context(), &c.jobs, "a.service", c.restart)
		if (err != nil) != c.fails || !slices.Equal(c.jobs.did, c.did) || e.Late("a.service") != c.late {
			t.Errorf("%s: %v: %v, late %t", c.name, err, c.jobs.did, e.Late("a.service"))
		}
	}
}
