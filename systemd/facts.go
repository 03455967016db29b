// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"fmt"
	"slices"
)

// Facts are the result of systemd's reading of a unit: of its file and of all its drop-ins.
type Facts struct {
	Name string
	// Load is its load state: loaded, masked, not-found, bad-setting, error.
	Load string
	// File is the path of the unit file, "" where the unit has none.
	File string
	// Active is the active state. Result is a service's result. Queued means that a job waits for the unit.
	Active, Result string
	Queued         bool
	// Skipped means that a condition or an assertion of the unit was not met at its last start.
	Skipped bool
	// Of a service: the command line, the number of commands before it, and its user and root.
	Argv       []string
	Before     int
	User, Root string
}

// String returns the state of the unit, for people.
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

// Facts asks for units by name, and returns them in that order. A unit that does not exist has the load state
// not-found.
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
	props, err := m.properties(ctx, name)
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
	f.Result, _ = props["Result"].(string)
	f.User, _ = props["User"].(string)
	f.Root, _ = props["RootDirectory"].(string)
	for _, key := range []string{"ExecCondition", "ExecStartPre"} {
		commands, _ := props[key].([][]any)
		f.Before += len(commands)
	}
	if commands, _ := props["ExecStart"].([][]any); len(commands) == 1 && len(commands[0]) > 1 {
		f.Argv, _ = commands[0][1].([]string)
	}
	return f, nil
}
