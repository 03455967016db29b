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

// What rpm-ostree's daemon is on the system bus.
const (
	busName     = "org.projectatomic.rpmostree1"
	sysrootPath = dbus.ObjectPath("/org/projectatomic/rpmostree1/Sysroot")
)

// Watch gives a value whenever rpm-ostree says that the deployments or the active transaction are others: one for any
// number of changes that have not been received. It closes the channel when ctx is done or the bus goes away. Nothing
// is changed, and the daemon is neither started nor kept from leaving: while it is away nothing is said, and what
// ostree does by itself is seen only when it is back.
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
	// The user's number and nothing else: there may be no accounts where we run.
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

// statusChanges says whether what PropertiesChanged carries is a change that matters: an interface, new values by name,
// and the names of those that have changed without being told.
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
