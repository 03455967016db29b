// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"fmt"
	"slices"
)

// Facts are what systemd has made of a unit: of its file and of every drop-in that it has read for it.
type Facts struct {
	Name string
	// Load is its load state: loaded, masked, not-found, bad-setting, error.
	Load string
	// File is where the unit file was found, "" where there is none.
	File string
	// Active is the active state, Result a service's word on how it ended, Queued whether a job waits for it.
	Active, Result string
	Queued         bool
	// Skipped says that a condition or an assertion of it was not met when it was last to start.
	Skipped bool
	// Of a service: the command line, how many others come before it, and as whom it runs in which root.
	Argv       []string
	Before     int
	User, Root string
}

// String says where the unit stands, for people.
func (f Facts) String() string {
	switch {
	case f.Load != "loaded":
		return f.Name + " is " + f.Load
	case f.Active == "failed":
		return fmt.Sprintf("%s failed (%s)", f.Name, f.Result)
	case f.Skipped && f.Active == "inactive":
		return f.Name + " was skipped: a condition of it was not met"
	case f.Queued && f.Active == "inactive":
		return f.Name + " waits for others that start before it"
	case f.Active == "inactive":
		return f.Name + " does not run"
	}
	return f.Name + " is " + f.Active
}

// Moves reports whether the unit runs, or is about to.
func (f Facts) Moves() bool {
	moving := slices.Contains([]string{"activating", "reloading", "deactivating"}, f.Active)
	return f.Load == "loaded" && (f.Queued || moving)
}

// Facts asks for units by name, in that order. One that does not exist has the load state not-found.
func (m *Manager) Facts(ctx context.Context, names ...string) ([]Facts, error) {
	var all []Facts
	for _, name := range names {
		f, err := m.facts(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("asking systemd for %s: %w", name, err)
		}
		all = append(all, f)
	}
	return all, nil
}

func (m *Manager) facts(ctx context.Context, name string) (Facts, error) {
	f := Facts{Name: name}
	props, err := m.conn.GetUnitPropertiesContext(ctx, name)
	if err != nil {
		return f, err
	}
	f.Load, _ = props["LoadState"].(string)
	f.File, _ = props["FragmentPath"].(string)
	f.Active, _ = props["ActiveState"].(string)
	job, _ := props["Job"].([]any)
	if len(job) > 0 {
		id, _ := job[0].(uint32)
		f.Queued = id != 0
	}
	met, known := props["ConditionResult"].(bool)
	at, _ := props["ConditionTimestamp"].(uint64)
	f.Skipped = known && !met && at != 0
	if splitName(name).typ != "service" || f.Load != "loaded" {
		return f, nil
	}
	service, err := m.conn.GetUnitTypePropertiesContext(ctx, name, "Service")
	if err != nil {
		return f, err
	}
	f.Result, _ = service["Result"].(string)
	f.User, _ = service["User"].(string)
	f.Root, _ = service["RootDirectory"].(string)
	for _, key := range []string{"ExecCondition", "ExecStartPre"} {
		commands, _ := service[key].([][]any)
		f.Before += len(commands)
	}
	if commands, _ := service["ExecStart"].([][]any); len(commands) == 1 && len(commands[0]) > 1 {
		f.Argv, _ = commands[0][1].([]string)
	}
	return f, nil
}
