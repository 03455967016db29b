// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
)

// QueueStart asks systemd to start a unit and does not wait. It is for units that the caller itself holds up, such as a
// boot that waits for the caller, or the caller's own end. A reboot uses it where logind is not up yet, or would
// refuse.
func (m *Manager) QueueStart(ctx context.Context, name string) error {
	mode := "replace"
	if name == "reboot.target" || name == "soft-reboot.target" || name == kexecTarget {
		mode = "replace-irreversibly"
	}
	if _, err := m.conn.StartUnitContext(ctx, name, mode, nil); err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	return nil
}

// RebootByForce makes systemd reboot without its targets: services are killed, file systems unmounted. It is for a host
// that is given up and whose reboot.target can't be started. systemctl reaches systemd with or without a bus.
func RebootByForce(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "systemctl", "reboot", "--force").CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl reboot --force: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// QueueReload asks systemd to make a running unit read its configuration again, and does not wait.
func (m *Manager) QueueReload(ctx context.Context, name string) error {
	if _, err := m.conn.ReloadUnitContext(ctx, name, "replace", nil); err != nil {
		return fmt.Errorf("reloading %s: %w", name, err)
	}
	return nil
}

// QueueRestart asks systemd to restart a unit if the unit runs, and does not wait.
func (m *Manager) QueueRestart(ctx context.Context, name string) error {
	if _, err := m.conn.TryRestartUnitContext(ctx, name, "replace", nil); err != nil {
		return fmt.Errorf("restarting %s: %w", name, err)
	}
	return nil
}

// StartsAfter reports whether a unit is ordered after another unit, directly or through other units. Then its jobs wait
// until the other unit has started.
func (m *Manager) StartsAfter(ctx context.Context, name, other string) (bool, error) {
	next := func(unit, property string) ([]string, error) {
		p, err := m.conn.GetUnitPropertyContext(ctx, unit, property)
		if err != nil {
			return nil, fmt.Errorf("asking systemd for %s of %s: %w", property, unit, err)
		}
		units, _ := p.Value.Value().([]string)
		return units, nil
	}
	// systemd knows the order of the units that it has loaded. The question loads the unit.
	after, err := next(name, "After")
	if err != nil || slices.Contains(after, other) {
		return err == nil, err
	}
	seen := map[string]bool{other: true}
	for queue := []string{other}; len(queue) > 0; queue = queue[1:] {
		units, err := next(queue[0], "Before")
		if err != nil {
			return false, err
		}
		for _, u := range units {
			if u == name {
				return true, nil
			}
			if !seen[u] {
				seen[u] = true
				queue = append(queue, u)
			}
		}
	}
	return false, nil
}
