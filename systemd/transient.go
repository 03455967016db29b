// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// ConnectAt opens the system bus of the host whose root is at dir, as a pod sees it, or its systemd alone where the bus
// is not up. ctx bounds the connecting only.
func ConnectAt(ctx context.Context, dir string) (*Manager, error) {
	dial := func(living context.Context, socket string) (*godbus.Conn, error) {
		address := "unix:path=" + godbus.EscapeBusAddressValue(path.Join(dir, socket))
		// The user's number and nothing else: there may be no accounts where we run.
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

// Transient is a service without a unit file. systemd runs its command as it runs its own, in a cgroup of its own, and
// forgets it when it has ended by itself, whatever its exit status; one that was killed stays as failed until Forget.
type Transient struct {
	Name        string
	Description string
	Argv        []string
	Environment []string // NAME=value
	// Identifier is what the journal calls it, the program's name where it is empty.
	Identifier string
	// Nice is the scheduling priority, 0 the usual one.
	Nice int
	// Limit bounds how long it may run, 0 for ever; Grace is how long it has between SIGTERM and SIGKILL.
	Limit, Grace time.Duration
	// CPUWeight and IOWeight are its share of what is contended, 1 to 10000; 0: as any other unit, 100.
	CPUWeight, IOWeight uint64
}

// ErrUnitExists says that a unit of that name is there already.
var ErrUnitExists = errors.New("unit exists already")

// ErrGoingDown says that the machine is about to shut down or to reboot, so that nothing is started any more.
var ErrGoingDown = errors.New("the host is going down")

// exitStatuses is systemd's type of exit statuses and signals that count as success.
type exitStatuses struct{ Statuses, Signals []int32 }

// StartTransient starts the service and returns when its command has been started. What becomes of it is for Service
// to say.
func (m *Manager) StartTransient(ctx context.Context, t Transient) error {
	var own []int32
	for status := int32(1); status < 128; status++ {
		own = append(own, status)
	}
	properties := []dbus.Property{
		dbus.PropDescription(t.Description),
		dbus.PropExecStart(t.Argv, false),
		// Not oneshot: its start would be a job for as long as it runs, and a boot is not over while there are jobs.
		dbus.PropType("simple"),
		property("KillMode", "mixed"),
		property("SuccessExitStatus", exitStatuses{own, []int32{}}),
		property("Environment", t.Environment),
		property("Nice", int32(t.Nice)),
		property("TimeoutStopUSec", uint64(t.Grace.Microseconds())),
	}
	if t.Identifier != "" {
		properties = append(properties, property("SyslogIdentifier", t.Identifier))
	}
	if t.Limit > 0 {
		properties = append(properties, property("RuntimeMaxUSec", uint64(t.Limit.Microseconds())))
	}
	for name, weight := range map[string]uint64{"CPUWeight": t.CPUWeight, "IOWeight": t.IOWeight} {
		if weight > 0 {
			properties = append(properties, property(name, weight))
		}
	}
	err := m.startTransient(ctx, t.Name, properties)
	answer, _ := errors.AsType[godbus.Error](err)
	switch answer.Name {
	case "org.freedesktop.systemd1.UnitExists":
		return fmt.Errorf("%w: %w", ErrUnitExists, err)
	case "org.freedesktop.systemd1.TransactionIsDestructive":
		return fmt.Errorf("%w: %w", ErrGoingDown, err)
	}
	return err
}

func (m *Manager) startTransient(ctx context.Context, name string, properties []dbus.Property) error {
	return m.job(ctx, "starting", name, func(ctx context.Context, name, _ string, done chan<- string) (int, error) {
		return m.conn.StartTransientUnitContext(ctx, name, "fail", properties, done)
	})
}

func property(name string, value any) dbus.Property {
	return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
}

// Service is what systemd says of a service.
type Service struct {
	// State is the active state, "inactive" for one that is not there.
	State string
	// Invocation tells one run of the service from the next.
	Invocation  string
	Environment []string
	// Condition says the state for people, with the result and the exit status.
	Condition string
}

// Ended says whether nothing of it runs any more.
func (s Service) Ended() bool { return s.State == "inactive" || s.State == "failed" }

// Service asks for a service by name; one that does not exist is inactive.
func (m *Manager) Service(ctx context.Context, name string) (Service, error) {
	fail := func(err error) (Service, error) {
		return Service{}, fmt.Errorf("asking for the state of %s: %w", name, err)
	}
	props, err := m.conn.GetUnitPropertiesContext(ctx, name)
	if err != nil {
		return fail(err)
	}
	var s Service
	s.State, _ = props["ActiveState"].(string)
	id, _ := props["InvocationID"].([]byte)
	s.Invocation = hex.EncodeToString(id)
	if s.State == "inactive" {
		return s, nil
	}
	env, err := m.conn.GetUnitTypePropertyContext(ctx, name, "Service", "Environment")
	if noSuchUnit(err) {
		return Service{State: "inactive"}, nil
	}
	if err != nil {
		return fail(err)
	}
	s.Environment, _ = env.Value.Value().([]string)
	if s.State == "failed" {
		s.Condition = strings.TrimPrefix(m.explain(ctx, name), "it is ")
	}
	return s, nil
}

// Stop stops a unit and waits until it has; one that is not there is no error.
func (m *Manager) Stop(ctx context.Context, name string) error {
	err := m.job(ctx, "stopping", name, m.conn.StopUnitContext)
	if noSuchUnit(err) {
		return nil
	}
	return err
}

// Forget lets a failed unit go; one that is not there is no error.
func (m *Manager) Forget(ctx context.Context, name string) error {
	err := m.conn.ResetFailedUnitContext(ctx, name)
	if err == nil || noSuchUnit(err) {
		return nil
	}
	return fmt.Errorf("forgetting %s: %w", name, err)
}
