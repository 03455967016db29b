// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// Command is a program that systemd runs as a service without a unit file, in a cgroup of its own. Units.Start starts
// one that reports by itself; Units.Run runs one to its end.
type Command struct {
	Name        string // of the unit
	Description string
	// Argv is the command line, with the absolute path of the program. systemd expands nothing in it.
	Argv        []string
	Environment []string // NAME=value
	// EnvironmentFiles are read for more of it, where they exist.
	EnvironmentFiles []string
	// Binds are what its mount namespace has elsewhere. Without any it has the host's.
	Binds []Bind
	// Output is where standard output and standard error go; without it each goes to its file, which is written anew, or
	// to the journal.
	Output         *os.File
	Stdout, Stderr string
	// Identifier is what the journal calls it, the program's name where it is empty.
	Identifier string
	// Nice is the scheduling priority, 0 the usual one.
	Nice int
	// Limit bounds how long it may run, 0 for ever. Run holds the limit itself, too: a drop-in for all services may give
	// systemd another one. Grace is how long it has between SIGTERM and SIGKILL, 0 systemd's default.
	Limit, Grace time.Duration
	Weights      Weights
	// Outlives has a command of Run go on when its caller ends. Such a command waits for an earlier run of its unit; any
	// other one stops that.
	Outlives bool
}

// Bind is a path of the host that is seen at another one.
type Bind struct{ Source, At string }

// Weights are the share that a unit gets of processors and disks where others want them too: systemd's CPUWeight and
// IOWeight, 1 to 10000; 0: as any other unit, 100.
type Weights struct{ CPU, IO uint16 }

// exitStatuses is systemd's type of exit statuses and signals that count as success.
type exitStatuses struct{ Statuses, Signals []int32 }

// anyStatus has every exit status count as success: to systemd, whose list of failed units is for units of others.
func anyStatus() dbus.Property {
	var all []int32
	for status := int32(1); status < 256; status++ {
		all = append(all, status)
	}
	return property("SuccessExitStatus", exitStatuses{all, []int32{}})
}

// dbus types of systemd's.
type (
	environmentFile struct {
		Path     string
		Optional bool
	}
	bindPath struct {
		Source, At string
		Optional   bool
		Flags      uint64
	}
)

// properties are what the command is to systemd.
func (c Command) properties() []dbus.Property {
	argv := make([]string, len(c.Argv))
	for i, word := range c.Argv {
		argv[i] = strings.ReplaceAll(word, "$", "$$")
	}
	all := []dbus.Property{
		dbus.PropDescription(c.Description),
		dbus.PropExecStart(argv, false),
		// Not oneshot: its start would be a job for as long as it runs, and a boot is not over while there are jobs.
		dbus.PropType("simple"),
		property("Environment", c.Environment),
	}
	add := func(is bool, name string, value any) {
		if is {
			all = append(all, property(name, value))
		}
	}
	if c.Output != nil {
		fd := godbus.UnixFD(c.Output.Fd())
		all = append(all, property("StandardOutputFileDescriptor", fd), property("StandardErrorFileDescriptor", fd))
	}
	add(c.Stdout != "", "StandardOutputFileToTruncate", c.Stdout)
	add(c.Stderr != "", "StandardErrorFileToTruncate", c.Stderr)
	var environment []environmentFile
	for _, path := range c.EnvironmentFiles {
		environment = append(environment, environmentFile{path, true})
	}
	add(environment != nil, "EnvironmentFiles", environment)
	var binds []bindPath
	for _, b := range c.Binds {
		binds = append(binds, bindPath{b.Source, b.At, false, syscall.MS_REC})
	}
	add(binds != nil, "BindPaths", binds)
	add(c.Identifier != "", "SyslogIdentifier", c.Identifier)
	add(c.Nice != 0, "Nice", int32(c.Nice))
	add(c.Limit > 0, "RuntimeMaxUSec", uint64(c.Limit.Microseconds()))
	add(c.Grace > 0, "TimeoutStopUSec", uint64(c.Grace.Microseconds()))
	add(c.Weights.CPU > 0, "CPUWeight", uint64(c.Weights.CPU))
	add(c.Weights.IO > 0, "IOWeight", uint64(c.Weights.IO))
	return all
}

// reporting are the properties of a command that reports by itself. systemd forgets it when it has ended by itself,
// whatever its exit status; one that was killed stays as failed.
func (c Command) reporting() []dbus.Property {
	return append(c.properties(), property("KillMode", "mixed"), anyStatus())
}

// remaining are the properties of a command whose end is asked for: it remains when it has ended. One that outlives its
// caller remains for as long as that refers to it: alone, it leaves nothing behind, and never counts as failed.
func (c Command) remaining() []dbus.Property {
	if c.Outlives {
		return append(c.properties(), property("CollectMode", "inactive-or-failed"), property("AddRef", true))
	}
	return append(c.properties(), property("RemainAfterExit", true))
}

// refer calls RefUnit or UnrefUnit: systemd keeps a unit that has ended for as long as a connection refers to it.
func (m *Manager) refer(ctx context.Context, method, name string) error {
	if len(m.buses) == 0 {
		return fmt.Errorf("%s of %s: the system bus is not up", method, name)
	}
	manager := m.buses[0].Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	return manager.CallWithContext(ctx, "org.freedesktop.systemd1.Manager."+method, 0, name).Store()
}

// ErrUnitExists says that a unit of that name is there already.
var ErrUnitExists = errors.New("unit exists already")

// ErrGoingDown says that the machine is about to shut down or to reboot, so that nothing is started any more.
var ErrGoingDown = errors.New("the host is going down")

// start starts a service and returns when its command has been started.
func (m *Manager) start(ctx context.Context, name string, properties []dbus.Property) error {
	err := m.job(ctx, "starting", name, func(ctx context.Context, name, _ string, done chan<- string) (int, error) {
		return m.conn.StartTransientUnitContext(ctx, name, "fail", properties, done)
	})
	answer, _ := errors.AsType[godbus.Error](err)
	switch answer.Name {
	case "org.freedesktop.systemd1.UnitExists":
		return fmt.Errorf("%w: %w", ErrUnitExists, err)
	case "org.freedesktop.systemd1.TransactionIsDestructive":
		return fmt.Errorf("%w: %w", ErrGoingDown, err)
	}
	return err
}

func property(name string, value any) dbus.Property {
	return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
}

// Ended is how a command ended. As an error it is one that failed.
type Ended struct {
	// Result is systemd's word: "success", "exit-code", "signal", "timeout", "oom-kill" or another.
	Result string
	// Status is the exit status, or the number of the signal.
	Status int32
}

// Err is nil where the command succeeded, and how it ended otherwise.
func (e Ended) Err() error {
	if e.Result == "success" {
		return nil
	}
	return e
}

func (e Ended) Error() string {
	switch e.Result {
	case "exit-code":
		return fmt.Sprintf("exit status %d", e.Status)
	case "signal", "core-dump":
		return fmt.Sprintf("killed by signal %d", e.Status)
	}
	return e.Result
}

// ErrUnitGone says that nothing is left that could tell how a command ended.
var ErrUnitGone = errors.New("it was killed, or another program has stopped it")

// ended reports whether the command of a service that remains still runs, and if not how it ended.
func (m *Manager) ended(ctx context.Context, name string) (running bool, e Ended, err error) {
	fail := func(err error) (bool, Ended, error) {
		return false, e, fmt.Errorf("asking how %s ended: %w", name, err)
	}
	state, err := m.conn.GetUnitPropertiesContext(ctx, name)
	if err != nil {
		return fail(err)
	}
	active, _ := state["ActiveState"].(string)
	load, _ := state["LoadState"].(string)
	sub, _ := state["SubState"].(string)
	switch {
	case active == "inactive" && load != "loaded":
		return fail(ErrUnitGone)
	case active != "inactive" && active != "failed" && sub != "exited":
		return true, e, nil
	}
	service, err := m.conn.GetUnitTypePropertiesContext(ctx, name, "Service")
	if noSuchUnit(err) {
		err = ErrUnitGone
	}
	if err != nil {
		return fail(err)
	}
	e.Result, _ = service["Result"].(string)
	e.Status, _ = service["ExecMainStatus"].(int32)
	// A status or a signal that systemd takes for success is not one to who asks.
	if code, _ := service["ExecMainCode"].(int32); e.Result == "success" && e.Status != 0 {
		const exited = 1 // CLD_EXITED
		e.Result = "exit-code"
		if code != exited {
			e.Result = "signal"
		}
	}
	return false, e, nil
}
