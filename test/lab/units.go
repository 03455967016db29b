// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"

	"github.com/noderefit/noderefit/systemd"
)

// Units returns the services of the host, in its current boot.
func (h *Host) Units() *systemd.Units {
	return &systemd.Units{Connect: func(ctx context.Context) (*systemd.Manager, error) {
		return systemd.ConnectAt(ctx, fmt.Sprintf("/proc/%d/root", h.Leader()))
	}}
}
