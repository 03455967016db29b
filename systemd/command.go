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

// Command is a program that systemd runs as a service without a unit file, in a cgroup of its own. Units.Start starts a
// command that reports by itself; Units.Run runs a command to its end.
type Command struct {
	Name        string // of the unit
	Description string
	// Documentation are URLs.
	Documentation []string
	// Argv is the command line, with the absolute path of the program. systemd expands nothing in it.
	Argv        []string
	Environment []string // NAME=value
	// EnvironmentFiles are files with more environment variables, read where they exist.
	EnvironmentFiles []string
	// Binds are the paths that the command's mount namespace has elsewhere. Without Binds the command has the host's
	// namespace.
	Binds []Bind
	// Output is where standard output and standard error go. Without Output they go to the files Stdout and Stderr, which
	// are truncated first, or to the journal.
	Output         *os.File
	Stdout, Stderr string
	// Passed is what the command has open as file descriptor PassedFD. A systemd before version 257 can't pass it on: then
	// the error is ErrCannotPass.
	Passed *os.File
	// Identifier is the command's name in the journal; "" is the program's name.
	Identifier string
	// Nice is the scheduling priority; 0 is the usual priority.
	Nice int
	// Limit bounds the run time; 0: no limit. Run enforces the limit itself too, because a drop-in for all services may
	// give systemd another one. Grace is the time between SIGTERM and SIGKILL; 0: systemd's default.
	Limit, Grace time.Duration
	Weights      Weights
	// Outlives means that a command of Run continues when its caller ends. Such a command waits for an earlier run of its
	// unit; any other command stops the earlier run.
	Outlives bool
}

// PassedFD is the number of the first file descriptor that systemd passes to a command.
const PassedFD = 3

// Bind makes a path of the host visible at another path.
type Bind struct{ Source, At string }

// Weights are a unit's share of processors and disks where other units compete for them. They are systemd's CPUWeight
// and IOWeight, 1 to 10000; 0 is the weight of any other unit, 100.
type Weights struct{ CPU, IO uint16 }

// exitStatuses is systemd's D-Bus type of exit statuses and signals that count as success.
type exitStatuses struct{ Statuses, Signals []int32 }

// anyStatus makes every exit status count as success for systemd, whose list of failed units is for the units of
// others.
func anyStatus() dbus.Property {
	var all []int32
	for status := int32(1); status < 256; status++ {
		all = append(all, status)
	}
	return property("SuccessExitStatus", exitStatuses{all, []int32{}})
}

// systemd's D-Bus types.
type (
	environmentFile struct {
		Path     string
		Optional bool
	}
	passedFile struct {
		FD   godbus.UnixFD
		Name string
	}
	bindPath struct {
		Source, At string
		Optional   bool
		Flags      uint64
	}
)

// properties returns the properties that systemd needs to run the command.
func (c Command) properties() []dbus.Property {
	argv := make([]string, len(c.Argv))
	for i, word := range c.Argv {
		argv[i] = strings.ReplaceAll(word, "$", "$$")
	}
	all := []dbus.Property{
		dbus.PropDescription(c.Description),
		dbus.PropExecStart(argv, false),
		// Not oneshot: the start would be a job for as long as the command runs, and a boot is not over while jobs are left.
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
	if c.Passed != nil {
		// The variables are those of socket activation, by which some programs become servers.
		all = append(all, property(passedFiles, []passedFile{{godbus.UnixFD(c.Passed.Fd()), "passed"}}),
			property("UnsetEnvironment", []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID"}))
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
	add(c.Documentation != nil, "Documentation", c.Documentation)
	add(c.Identifier != "", "SyslogIdentifier", c.Identifier)
	add(c.Nice != 0, "Nice", int32(c.Nice))
	add(c.Limit > 0, "RuntimeMaxUSec", uint64(c.Limit.Microseconds()))
	add(c.Grace > 0, "TimeoutStopUSec", uint64(c.Grace.Microseconds()))
	add(c.Weights.CPU > 0, "CPUWeight", uint64(c.Weights.CPU))
	add(c.Weights.IO > 0, "IOWeight", uint64(c.Weights.IO))
	return all
}

// reporting returns the properties of a command that reports by itself. systemd forgets a command that ended by itself,
// whatever its exit status. A command that was killed stays as failed.
func (c Command) reporting() []dbus.Property {
	return append(c.properties(), property("KillMode", "mixed"), anyStatus())
}

// remaining returns the properties of a command whose end is asked for: its unit remains after its end. The unit of a
// command that outlives its caller remains only while the caller refers to it. Without a caller it leaves nothing
// behind, and never counts as failed.
func (c Command) remaining() []dbus.Property {
	if c.Outlives {
		return append(c.properties(), property("CollectMode", "inactive-or-failed"), property("AddRef", true))
	}
	return append(c.properties(), property("RemainAfterExit", true))
}

// refer calls RefUnit or UnrefUnit. systemd keeps an ended unit for as long as a connection refers to it.
func (m *Manager) refer(ctx context.Context, method, name string) error {
	if len(m.buses) == 0 {
		return fmt.Errorf("%s of %s: the system bus is not up", method, name)
	}
	manager := m.buses[0].Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	return manager.CallWithContext(ctx, "org.freedesktop.systemd1.Manager."+method, 0, name).Store()
}

// ErrUnitExists is the error of starting a unit whose name is already taken.
var ErrUnitExists = errors.New("unit exists already")

// ErrGoingDown is the error of starting a unit while the machine is about to shut down or reboot.
var ErrGoingDown = errors.New("the host is going down")

// ErrCannotPass is the error of starting a command with an open file, where systemd can't pass the file on.
var ErrCannotPass = errors.New("systemd can't pass an open file to a command")

// passedFiles is systemd's property of the files that it passes to a command.
const passedFiles = "ExtraFileDescriptors"

// start starts a service, and returns once its command has been started.
func (m *Manager) start(ctx context.Context, name string, properties []dbus.Property) error {
	err := m.job(ctx, "starting", name, func(ctx context.Context, name, _ string, done chan<- string) (int, error) {
		return m.conn.StartTransientUnitContext(ctx, name, "fail", properties, done)
	})
	return startError(err)
}

// startError wraps the errors of a start that callers tell from others.
func startError(err error) error {
	answer, _ := errors.AsType[godbus.Error](err)
	switch answer.Name {
	case "org.freedesktop.systemd1.UnitExists":
		return fmt.Errorf("%w: %w", ErrUnitExists, err)
	case "org.freedesktop.systemd1.TransactionIsDestructive":
		return fmt.Errorf("%w: %w", ErrGoingDown, err)
	case "org.freedesktop.DBus.Error.PropertyReadOnly": // "Cannot set property …, or unknown property."
		if strings.Contains(err.Error(), passedFiles) {
			return fmt.Errorf("%w: %w", ErrCannotPass, err)
		}
	}
	return err
}

func property(name string, value any) dbus.Property {
	return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
}

// Ended is how a command ended. As an error it means that the command failed.
type Ended struct {
	// Result is systemd's result: "success", "exit-code", "signal", "timeout", "oom-kill" or another.
	Result string
	// Status is the exit status, or the number of the signal.
	Status int32
}

// Err returns nil where the command succeeded, and e otherwise.
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

// ErrUnitGone is the error of asking how a command ended when its unit is gone.
var ErrUnitGone = errors.New("it was killed, or another program has stopped it")

// ended reports whether the command of a service that remains still runs. Where it does not, ended returns how it
// ended.
func (m *Manager) ended(ctx context.Context, name string) (running bool, e Ended, err error) {
	fail := func(err error) (bool, Ended, error) {
		return false, e, fmt.Errorf("asking how %s ended: %w", name, err)
	}
	service, err := m.properties(ctx, name)
	if err != nil {
		return fail(err)
	}
	active, _ := service["ActiveState"].(string)
	load, _ := service["LoadState"].(string)
	sub, _ := service["SubState"].(string)
	switch {
	case active == "inactive" && load != "loaded":
		return fail(ErrUnitGone)
	case active != "inactive" && active != "failed" && sub != "exited":
		return true, e, nil
	}
	e.Result, _ = service["Result"].(string)
	e.Status, _ = service["ExecMainStatus"].(int32)
	// A status or a signal that systemd counts as success is a failure for the caller.
	if code, _ := service["ExecMainCode"].(int32); e.Result == "success" && e.Status != 0 {
		const exited = 1 // CLD_EXITED
		e.Result = "exit-code"
		if code != exited {
			e.Result = "signal"
		}
	}
	return false, e, nil
}
