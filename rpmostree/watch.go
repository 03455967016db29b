// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/godbus/dbus/v5"

	"github.com/noderefit/noderefit/ostree"
)

// The names of rpm-ostree's daemon on the system bus.
const (
	busName     = "org.projectatomic.rpmostree1"
	sysrootPath = dbus.ObjectPath("/org/projectatomic/rpmostree1/Sysroot")
)

// Watch sends a value whenever rpm-ostree reports a change of the deployments or of the active transaction. Several
// changes that have not been received are one value. The channel is closed when ctx is done or the bus goes away. Watch
// changes nothing, and neither starts the daemon nor keeps it running. While the daemon does not run, nothing is sent.
// What ostree changes by itself is seen only when the daemon runs again.
func (r *Driver) Watch(ctx context.Context) (<-chan struct{}, error) {
	changes, err := r.watch(ctx)
	if err != nil {
		return nil, &ostree.Error{Class: ostree.Retryable, Doing: "watching rpm-ostree", Err: err}
	}
	return changes, nil
}

func (r *Driver) watch(ctx context.Context) (<-chan struct{}, error) {
	socket := filepath.Join(r.root, "/run/dbus/system_bus_socket")
	bus, err := dbus.Dial("unix:path="+dbus.EscapeBusAddressValue(socket), dbus.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	// Authenticate with the user's number alone: the place where we run may have no accounts.
	err = bus.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))})
	if err == nil {
		err = bus.Hello()
	}
	signals := make(chan *dbus.Signal, 16)
	bus.Signal(signals)
	if err == nil {
		err = bus.AddMatchSignalContext(ctx, dbus.WithMatchSender(busName), dbus.WithMatchObjectPath(sysrootPath),
			dbus.WithMatchInterface("org.freedesktop.DBus.Properties"), dbus.WithMatchMember("PropertiesChanged"))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connecting to %s: %w", socket, err), bus.Close())
	}
	changes := make(chan struct{}, 1)
	go func() {
		defer close(changes)
		for s := range signals {
			if !statusChanges(s.Body) {
				continue
			}
			select {
			case changes <- struct{}{}:
			default:
			}
		}
	}()
	return changes, nil
}

// statusChanges reports whether a PropertiesChanged signal carries a change that matters. The body is an interface, new
// values by name, and the names of values that have changed without being sent.
func statusChanges(body []any) bool {
	if len(body) != 3 {
		return false
	}
	values, _ := body[1].(map[string]dbus.Variant)
	names, _ := body[2].([]string)
	for _, name := range []string{"Deployments", "ActiveTransaction"} {
		if _, found := values[name]; found || slices.Contains(names, name) {
			return true
		}
	}
	return false
}
