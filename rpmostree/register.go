// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
)

const (
	// driverName is the agent's name in rpm-ostree's refusals.
	driverName = "Noderefit"
	// driverUnit is the service that the registration names. It has no process, and is active while the agent is in
	// charge. rpm-ostree ignores a driver whose unit is not active. packaging/packages/postremove.sh stops the service.
	driverUnit = "noderefit-update-driver.service"
	// driverState is the file in which rpm-ostree keeps the registration. The file is gone after a reboot.
	driverState = "/run/rpm-ostree/update-driver.gv"
	// bypass has rpm-ostree ignore the registered driver. Every rpm-ostree that registers drivers knows the flag.
	bypass = "--bypass-driver"
)

// services are what Register needs of the host's systemd.
type services interface {
	ActiveState(ctx context.Context, unit string) (string, error)
	// Keep runs a command, and keeps its unit active after a success.
	Keep(ctx context.Context, c systemd.Command) error
}

// Register registers the agent as the update driver of a host with rpm-ostree. From then on rpm-ostree refuses an
// upgrade, rebase or deploy of other programs, unless they bypass the driver. read reads a file of the host. Register
// runs nothing where the agent is registered, and leaves the registration of another active driver alone.
func Register(ctx context.Context, read func(path string) ([]byte, error), units services) error {
	const doing = "registering as rpm-ostree's update driver"
	now, err := registered(read)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if now.Unit != "" {
		state, err := units.ActiveState(ctx, now.Unit)
		if err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		if state == "active" || now.Unit != driverUnit && slices.Contains(ruling, state) {
			return nil
		}
	}
	err = units.Keep(ctx, systemd.Command{
		Name: driverUnit, Description: "Noderefit updates this host, and rpm-ostree knows it",
		Documentation: []string{"https://github.com/noderefit/noderefit"},
		Argv:          []string{"/usr/bin/env", "rpm-ostree", "deploy", "", "--register-driver=" + driverName},
		Environment:   []string{"RPMOSTREE_CLIENT_ID=" + clientID, "LC_ALL=C.UTF-8"},
		Limit:         registerLimit,
	})
	if err != nil {
		return fmt.Errorf("%s: %w: journalctl --unit %s has the reason", doing, err, driverUnit)
	}
	return nil
}

// registerLimit is how long a registration may take. rpm-ostree's daemon may have to start for it, which takes minutes
// on a slow disk.
const registerLimit = 6 * time.Minute

// ruling are the states in which rpm-ostree heeds a driver. A driver that has crashed is one too.
var ruling = []string{"active", "activating", "reloading", "failed"}

// registered returns the update driver that is registered, the zero value if none is.
func registered(read func(path string) ([]byte, error)) (updateDriver, error) {
	data, err := read(driverState)
	if errors.Is(err, fs.ErrNotExist) {
		return updateDriver{}, nil
	}
	var texts map[string]string
	if err == nil {
		texts, err = ostree.Texts(data)
	}
	if err != nil {
		return updateDriver{}, fmt.Errorf("reading %s: %w", driverState, err)
	}
	return updateDriver{Name: texts["driver-name"], Unit: texts["driver-sd-unit"]}, nil
}

// bypassing returns a step as it is run. Only the agent's own registration is bypassed. The other commands that a step
// may be do not look for a driver, and do not know the flag. The registration is read here, and not in the status: the
// agent may register between the status and the step.
func (r *Driver) bypassing(step []string) ([]string, error) {
	if len(step) < 2 || step[1] != "rebase" {
		return step, nil
	}
	driver, err := registered(func(path string) ([]byte, error) { return os.ReadFile(r.host(path)) })
	if err != nil || driver.Unit != driverUnit {
		return step, err
	}
	return append(slices.Clone(step), bypass), nil
}

// withoutBypass returns the words of a command line without the flag that bypassing adds.
func withoutBypass(words string) string { return strings.TrimSuffix(words, " "+bypass) }
