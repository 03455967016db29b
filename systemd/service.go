// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// ConnectAt opens the system bus of the host whose root is at dir, as a pod sees it. Where the bus is not up, it
// connects to the host's systemd alone. ctx bounds only the connecting.
func ConnectAt(ctx context.Context, dir string) (*Manager, error) {
	dial := func(living context.Context, socket string) (*godbus.Conn, error) {
		address := "unix:path=" + godbus.EscapeBusAddressValue(path.Join(dir, socket))
		// Only the user's number: this process may run where no accounts exist.
		user := godbus.AuthExternal(strconv.Itoa(os.Getuid()))
		c, err := godbus.Dial(address, godbus.WithContext(living))
		if err != nil {
			return nil, err
		}
		if err := c.Auth([]godbus.Auth{user}); err != nil {
			_ = c.Close()
			return nil, err
		}
		return c, nil
	}
	return connect(ctx, func(living context.Context) (*godbus.Conn, error) {
		c, err := dial(living, "/run/dbus/system_bus_socket")
		if err != nil {
			return nil, err
		}
		if err := c.Hello(); err != nil {
			_ = c.Close()
			return nil, err
		}
		return c, nil
	}, func(living context.Context) (*dbus.Conn, error) {
		return dbus.NewConnection(func() (*godbus.Conn, error) { return dial(living, "/run/systemd/private") })
	})
}

// Service is the state of a service in systemd.
type Service struct {
	// State is the active state, "inactive" for a service that does not exist.
	State string
	// Exited is set for a service whose command has ended, and that remains so that its end can be asked for.
	Exited      bool
	Description string
	// Invocation distinguishes one run of the service from the next.
	Invocation  string
	Environment []string
	// Condition is the state for people, with the result and the exit status.
	Condition string
}

// Ended reports whether no process of the service runs any more.
func (s Service) Ended() bool { return s.Exited || s.State == "inactive" || s.State == "failed" }

// properties returns all properties of a unit as they are in one moment. Two questions would not do: systemd forgets a
// unit that has ended, and answers the second question for a unit without settings.
func (m *Manager) properties(ctx context.Context, name string) (map[string]any, error) {
	return m.conn.GetAllPropertiesContext(ctx, name)
}

// service returns a service by name. A service that does not exist is inactive.
func (m *Manager) service(ctx context.Context, name string) (Service, error) {
	fail := func(err error) (Service, error) {
		return Service{}, fmt.Errorf("asking for the state of %s: %w", name, err)
	}
	props, err := m.properties(ctx, name)
	if err != nil {
		return fail(err)
	}
	var s Service
	s.State, _ = props["ActiveState"].(string)
	s.Description, _ = props["Description"].(string)
	sub, _ := props["SubState"].(string)
	s.Exited = s.State == "active" && sub == "exited"
	id, _ := props["InvocationID"].([]byte)
	s.Invocation = hex.EncodeToString(id)
	s.Environment, _ = props["Environment"].([]string)
	if s.State == "failed" {
		s.Condition = strings.TrimPrefix(m.explain(ctx, name), "it is ")
	}
	return s, nil
}

// Stop stops a unit and waits for the end of the stop. A missing unit is no error.
func (m *Manager) Stop(ctx context.Context, name string) error {
	err := m.job(ctx, "stopping", name, m.conn.StopUnitContext)
	if noSuchUnit(err) {
		return nil
	}
	return err
}

// Forget makes systemd forget a failed unit. A missing unit is no error.
func (m *Manager) Forget(ctx context.Context, name string) error {
	err := m.conn.ResetFailedUnitContext(ctx, name)
	if err == nil || noSuchUnit(err) {
		return nil
	}
	return fmt.Errorf("forgetting %s: %w", name, err)
}

// kill sends a signal to all processes of a unit. A missing unit is no error.
func (m *Manager) kill(ctx context.Context, name string, signal syscall.Signal) error {
	err := m.conn.KillUnitWithTarget(ctx, name, dbus.All, int32(signal))
	if err == nil || noSuchUnit(err) {
		return nil
	}
	return fmt.Errorf("sending %s to %s: %w", signal, name, err)
}
