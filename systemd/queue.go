// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
)

// QueueStart asks systemd to start a unit and does not wait: for what the caller itself stands in the way of, such as a
// boot that waits for it, or its own end. A reboot goes this way where logind is not up yet, or would refuse.
func (m *Manager) QueueStart(ctx context.Context, name string) error {
	mode := "replace"
	if name == "reboot.target" || name == "soft-reboot.target" {
		mode = "replace-irreversibly"
	}
	if _, err := m.conn.StartUnitContext(ctx, name, mode, nil); err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	return nil
}

// RebootByForce has systemd reboot without its targets: services are killed, file systems unmounted. It is for a host
// that is given up and whose reboot.target can't be started; systemctl finds systemd whether there is a bus or not.
func RebootByForce(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "systemctl", "reboot", "--force").CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl reboot --force: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// QueueReload asks systemd to have a unit that runs read its configuration again, and does not wait; QueueRestart to
// restart one.
func (m *Manager) QueueReload(ctx context.Context, name string) error {
	if _, err := m.conn.ReloadUnitContext(ctx, name, "replace", nil); err != nil {
		return fmt.Errorf("reloading %s: %w", name, err)
	}
	return nil
}

// QueueRestart is QueueReload for a restart, of a unit that runs only.
func (m *Manager) QueueRestart(ctx context.Context, name string) error {
	if _, err := m.conn.TryRestartUnitContext(ctx, name, "replace", nil); err != nil {
		return fmt.Errorf("restarting %s: %w", name, err)
	}
	return nil
}

// StartsAfter says that a unit is ordered after another one, if only by others between: its jobs wait as long as that
// starts.
func (m *Manager) StartsAfter(ctx context.Context, name, other string) (bool, error) {
	next := func(unit, property string) ([]string, error) {
		p, err := m.conn.GetUnitPropertyContext(ctx, unit, property)
		if err != nil {
			return nil, fmt.Errorf("asking systemd for %s of %s: %w", property, unit, err)
		}
		units, _ := p.Value.Value().([]string)
		return units, nil
	}
	// systemd knows the order of what it has loaded, which asking for it does.
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
