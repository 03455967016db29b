// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"fmt"
)

// QueueStart asks systemd to start a unit and does not wait: for what the caller itself stands in the way of, such as a
// boot that waits for it, or its own end. A reboot goes this way where logind is not up yet, or would refuse.
func (m *Manager) QueueStart(ctx context.Context, name string) error {
	mode := "replace"
	if name == "reboot.target" {
		mode = "replace-irreversibly"
	}
	if _, err := m.conn.StartUnitContext(ctx, name, mode, nil); err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	return nil
}

// QueueStop asks systemd to stop a unit and does not wait. A unit that is not there is stopped already.
func (m *Manager) QueueStop(ctx context.Context, name string) error {
	_, err := m.conn.StopUnitContext(ctx, name, "replace", nil)
	if err != nil && !noSuchUnit(err) {
		return fmt.Errorf("stopping %s: %w", name, err)
	}
	return nil
}
