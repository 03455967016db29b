// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/rivals"
	"github.com/noderefit/noderefit/systemd"
)

// otherManagers refuses a host on which another manager is at work, unless the configuration turns that manager off.
func (h *Host) otherManagers(ctx context.Context, cfg *machineconfig.Config, boots bool) error {
	if h.services == nil {
		return nil
	}
	s, err := rivals.Read(h.root, h.exists, func(units []string) (states map[string]string, err error) {
		err = h.services.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) (err error) {
			states, err = m.ActiveState(ctx, units...)
			return err
		})
		return states, err
	})
	if err != nil {
		return err
	}
	if who := rivals.Of(s, cfg.TurnsOff, boots); who != "" {
		return &Refused{Err: errors.New(who)}
	}
	return nil
}
