// SPDX-License-Identifier: Apache-2.0

package rivals

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// Read reads the signs of other managers on a host. states returns the active states of units.
func Read(root *files.Root, exists func(path string) bool,
	states func(units []string) (map[string]string, error)) (Signs, error) {
	s := Signs{Exists: exists, Texts: map[string]string{}}
	units := slices.Concat(osUnits, mcoUnits)
	var err error
	if s.Units, err = states(units); err != nil {
		return s, err
	}
	for _, unit := range units {
		if n, err := root.Inspect(path.Join(systemd.UnitDir, unit)); err == nil && n.Target == "/dev/null" {
			s.Units[unit] = "masked"
		}
	}
	for _, unit := range mcoUnits {
		if text, err := root.ReadFile(path.Join(systemd.UnitDir, unit)); err == nil {
			s.Texts[unit] = string(text)
		}
	}
	if s.Processes, err = processes(root.ReadDir, root.ReadFile); err != nil {
		return s, err
	}
	config, err := root.ReadFile(api.RPMOSTreeConfig)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("looking for other managers of the OS: %w", err)
	}
	s.Automatic = automaticPolicy(string(config))
	current, err := root.Inspect(transaction.ConfigDir + "/currentconfig")
	s.CurrentConfig = err == nil && current.Type == files.Regular
	return s, nil
}
