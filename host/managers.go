// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/rivals"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// otherManagers refuses a host on which another manager is at work, unless the configuration turns that manager off.
func (h *Host) otherManagers(ctx context.Context, cfg *machineconfig.Config, boots bool) error {
	if h.services == nil {
		return nil
	}
	s := rivals.Signs{Exists: h.exists, Texts: map[string]string{}}
	units := slices.Concat(rivals.OSUnits, rivals.MCOUnits)
	err := h.services.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) (err error) {
		s.Units, err = m.ActiveState(ctx, units...)
		return err
	})
	if err != nil {
		return err
	}
	for _, unit := range units {
		if n, err := h.root.Inspect(path.Join(systemd.UnitDir, unit)); err == nil && n.Target == "/dev/null" {
			s.Units[unit] = "masked"
		}
	}
	for _, unit := range rivals.MCOUnits {
		if text, err := h.root.ReadFile(path.Join(systemd.UnitDir, unit)); err == nil {
			s.Texts[unit] = string(text)
		}
	}
	if s.Processes, err = rivals.Processes(h.root.ReadDir, h.root.ReadFile); err != nil {
		return err
	}
	config, err := h.root.ReadFile(api.RPMOSTreeConfig)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking for other managers of the OS: %w", err)
	}
	s.Automatic = rivals.AutomaticPolicy(string(config))
	current, err := h.root.Inspect(transaction.ConfigDir + "/currentconfig")
	s.CurrentConfig = err == nil && current.Type == files.Regular
	off := func(unit string) bool {
		return slices.ContainsFunc(cfg.Units, func(u machineconfig.Unit) bool {
			return u.Name == unit && (u.Enabled != nil && !*u.Enabled || u.Mask != nil && *u.Mask)
		})
	}
	if who := rivals.Of(s, off, boots); who != "" {
		return &Refused{Err: errors.New(who)}
	}
	return nil
}
