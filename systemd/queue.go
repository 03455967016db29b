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
