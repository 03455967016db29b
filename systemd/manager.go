// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// Manager talks to the running systemd and logind over the system bus. Its methods are safe for concurrent use. A
// cancelled context ends the wait, not the job that systemd has accepted.
type Manager struct {
	conn  *dbus.Conn
	buses []*godbus.Conn // the connections in conn: first the one for calls, then the one for signals
	stop  context.CancelFunc
}

// explainTimeout bounds the questions after a failed job, whose own context may have ended.
const explainTimeout = 5 * time.Second

// answerTimeout bounds the answer of a bus, and of logind on it, to a question that is quick to answer. It is at most a
// third of the time that the callers here have in total, systemd's own answer included.
const answerTimeout = 10 * time.Second

// caTrustUnit is the target of actions in OpenShift's default policies. Only older Fedora-based systems have the unit.
const caTrustUnit = "coreos-update-ca-trust.service"

// crioUnit is the target of actions in OpenShift's default policies. Hosts with another container runtime do not have
// the unit.
const crioUnit = "crio.service"

// Connect opens the system bus (DBUS_SYSTEM_BUS_ADDRESS, else the well-known socket), or a connection to systemd alone
// where the bus is not up. ctx bounds only the connecting.
func Connect(ctx context.Context) (*Manager, error) {
	return connect(ctx, func(living context.Context) (*godbus.Conn, error) {
		return godbus.ConnectSystemBus(godbus.WithContext(living))
	}, dbus.NewSystemdConnectionContext)
}

// connect makes a Manager of the bus that the function bus connects to, or of systemd's own socket. The connections
// live for as long as the context that they are made with.
func connect(ctx context.Context, bus func(context.Context) (*godbus.Conn, error),
	systemd func(context.Context) (*dbus.Conn, error)) (*Manager, error) {
	type result struct {
		m   *Manager
		err error
	}
	// The handshake has no deadline of its own, and a deadline in the connection's context would close the connection
	// later.
	living, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan result, 1)
	go func() {
		m := &Manager{}
		conn, err := dbus.NewConnection(func() (*godbus.Conn, error) {
			c, err := bus(living)
			if err == nil {
				m.buses = append(m.buses, c)
			}
			return c, err
		})
		if err == nil {
			m.conn = conn
			if err = conn.Subscribe(); err != nil {
				conn.Close()
			}
		}
		done <- result{m, err}
	}()
	select {
	case <-ctx.Done():
		stop()
		return nil, fmt.Errorf("connecting to the system bus: %w", ctx.Err())
	case <-time.After(answerTimeout): // the bus may answer later; systemd itself may answer now
		stop()
		return connectEarly(ctx, fmt.Errorf("it did not answer in %s", answerTimeout), systemd)
	case r := <-done:
		if r.err != nil {
			stop()
			return connectEarly(ctx, r.err, systemd)
		}
		r.m.stop = stop
		return r.m, nil
	}
}

// connectEarly talks to systemd alone, as systemctl does while the system bus is not up yet, early in the boot. The
// Manager can't ask logind anything.
func connectEarly(ctx context.Context, why error, systemd func(context.Context) (*dbus.Conn, error)) (*Manager, error) {
	living, stop := context.WithCancel(context.WithoutCancel(ctx))
	conn, err := systemd(living)
	if err != nil {
		stop()
		return nil, fmt.Errorf("connecting to the system bus: %w; and to systemd itself: %w", why, err)
	}
	return &Manager{conn: conn, stop: stop}, nil
}

// ErrNoLogind is the answer to a question for logind where logind can't run or does not answer. The reason can be that
// the bus lets no question through to logind, or is not up. Then no program can have asked logind for anything.
var ErrNoLogind = errors.New("logind does not answer")

// lost returns a channel that is closed when the connection for job results is lost. With systemd itself at the other
// end it is never closed.
func (m *Manager) lost() <-chan struct{} {
	if len(m.buses) == 0 {
		return nil
	}
	return m.buses[1].Context().Done()
}

// Close closes the connection.
func (m *Manager) Close() {
	m.conn.Close()
	m.stop()
}

// Reload makes systemd read its unit files again (daemon-reload), and returns once systemd has done so.
func (m *Manager) Reload(ctx context.Context) error {
	if err := m.conn.ReloadContext(ctx); err != nil {
		return fmt.Errorf("reloading systemd: %w", err)
	}
	return nil
}

// RestartUnit restarts a unit, or starts a unit that does not run, and waits until systemd has finished. Where
// coreos-update-ca-trust.service does not exist, RestartUnit runs that unit's command. A crio.service that does not
// exist, or is masked, is no error.
func (m *Manager) RestartUnit(ctx context.Context, name string) error {
	err := m.job(ctx, "restarting", name, m.conn.RestartUnitContext)
	if needless(name, err) {
		return nil
	}
	if name != caTrustUnit || !noSuchUnit(err) {
		return err
	}
	out, err := exec.CommandContext(ctx, "update-ca-trust", "extract").CombinedOutput()
	if err != nil {
		return fmt.Errorf("updating the CA trust in place of %s: update-ca-trust extract: %w: %s",
			name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// ReloadUnit asks a running unit to read its configuration again, and waits until the unit has. A unit that does not
// run or can't reload is an error, except for a crio.service that does not exist or is masked. Without extensions
// systemd-sysext.service and systemd-confext.service do not run: they are started then.
func (m *Manager) ReloadUnit(ctx context.Context, name string) error {
	reload := m.conn.ReloadUnitContext
	if slices.Contains(extending, name) {
		reload = m.conn.ReloadOrRestartUnitContext
	}
	err := m.job(ctx, "reloading", name, reload)
	if needless(name, err) {
		return nil
	}
	return err
}

// extending are the units that merge extensions of the system.
var extending = []string{"systemd-sysext.service", "systemd-confext.service"}

type jobFunc func(ctx context.Context, name, mode string, result chan<- string) (int, error)

func (m *Manager) job(ctx context.Context, doing, name string, enqueue jobFunc) error {
	done := make(chan string, 1)
	if _, err := enqueue(ctx, name, "replace", done); err != nil {
		return fmt.Errorf("%s %s: %w", doing, name, err)
	}
	select {
	case result := <-done:
		if result == "done" {
			return nil
		}
		return fmt.Errorf("%s %s: the job ended as %q: %s", doing, name, result, m.explain(ctx, name))
	case <-ctx.Done():
		return fmt.Errorf("%s %s: %w: %s", doing, name, ctx.Err(), m.explain(ctx, name))
	case <-m.lost():
		return fmt.Errorf("%s %s: the connection to the system bus was lost", doing, name)
	}
}

// condition is the state of a unit in systemd, for people.
type condition struct {
	load, active, sub string
	result            string // why the unit failed: exit-code, timeout, oom-kill, ...; "" where its type has no result
	exitStatus        int32  // of a service's main process
}

func (c condition) String() string {
	if c.load != "" && c.load != "loaded" {
		return "its unit file is " + c.load
	}
	s := fmt.Sprintf("it is %s (%s)", c.active, c.sub)
	if c.result != "" && c.result != "success" {
		s += ", result " + c.result
		if c.exitStatus != 0 {
			s += fmt.Sprintf(", main process exited with %d", c.exitStatus)
		}
	}
	return s
}

// explain returns the state of a unit, in words. It returns no error of its own, because the caller already has one to
// report.
func (m *Manager) explain(ctx context.Context, name string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainTimeout)
	defer cancel()
	props, err := m.properties(ctx, name)
	if err != nil {
		return fmt.Sprintf("its state is unknown (%v)", err)
	}
	var c condition
	c.load, _ = props["LoadState"].(string)
	c.active, _ = props["ActiveState"].(string)
	c.sub, _ = props["SubState"].(string)
	c.result, _ = props["Result"].(string)
	c.exitStatus, _ = props["ExecMainStatus"].(int32)
	return c.String()
}

func noSuchUnit(err error) bool {
	var e godbus.Error
	return errors.As(err, &e) && e.Name == "org.freedesktop.systemd1.NoSuchUnit"
}

// Unstartable reports whether an error means that a unit does not exist or is masked.
func Unstartable(err error) bool {
	var e godbus.Error
	return noSuchUnit(err) || errors.As(err, &e) && e.Name == "org.freedesktop.systemd1.UnitMasked"
}

// needless reports whether the unit needs no action: CRI-O, where the host does not have it.
func needless(name string, err error) bool {
	return name == crioUnit && Unstartable(err)
}

// FailedUnits returns the sorted names of the units that are in the state failed.
func (m *Manager) FailedUnits(ctx context.Context) ([]string, error) {
	units, err := m.conn.ListUnitsByPatternsContext(ctx, []string{"failed"}, []string{})
	if err != nil {
		return nil, fmt.Errorf("listing failed units: %w", err)
	}
	var names []string
	for _, u := range units {
		names = append(names, u.Name)
	}
	slices.Sort(names)
	return names, nil
}

// Settled reports whether systemd has finished booting, with or without failures, and is not shutting down. Otherwise
// waiting has the sorted names of the units that have jobs.
func (m *Manager) Settled(ctx context.Context) (settled bool, waiting []string, err error) {
	p, err := m.conn.SystemStateContext(ctx)
	if err != nil {
		return false, nil, fmt.Errorf("asking systemd for its state: %w", err)
	}
	if s, _ := p.Value.Value().(string); s == "running" || s == "degraded" {
		return true, nil, nil
	}
	jobs, err := m.conn.ListJobsContext(ctx)
	if err != nil {
		return false, nil, fmt.Errorf("listing systemd's jobs: %w", err)
	}
	for _, j := range jobs {
		waiting = append(waiting, j.Unit)
	}
	slices.Sort(waiting)
	return false, slices.Compact(waiting), nil
}

// ActiveState returns the active state of each unit by name: active, reloading, inactive, failed, activating or
// deactivating. The state of a unit that systemd does not know is not-found.
func (m *Manager) ActiveState(ctx context.Context, names ...string) (map[string]string, error) {
	units, err := m.conn.ListUnitsByNamesContext(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("asking for the state of %s: %w", strings.Join(names, ", "), err)
	}
	states := map[string]string{}
	for _, n := range names {
		states[n] = "not-found"
	}
	for _, u := range units {
		if u.LoadState != "not-found" {
			states[u.Name] = u.ActiveState
		}
	}
	return states, nil
}

const (
	loginName    = "org.freedesktop.login1"
	loginPath    = "/org/freedesktop/login1"
	loginManager = loginName + ".Manager."
)

// Inhibitor is a request to logind to prevent an action.
type Inhibitor struct {
	What string // shutdown:sleep:...
	Who  string
	Why  string
	Mode string // block, block-weak or delay
	UID  uint32
	PID  uint32
}

// blocksShutdown reports whether i blocks a shutdown. logind itself waits for delays, so they do not count.
func (i Inhibitor) blocksShutdown() bool {
	return strings.HasPrefix(i.Mode, "block") && slices.Contains(strings.Split(i.What, ":"), "shutdown")
}

func (i Inhibitor) String() string { return fmt.Sprintf("%s (pid %d): %s", i.Who, i.PID, i.Why) }

// InhibitedError is the error of a reboot that inhibitors block.
type InhibitedError struct{ By []Inhibitor }

func (e *InhibitedError) Error() string {
	var by []string
	for _, i := range e.By {
		by = append(by, i.String())
	}
	return "a reboot is inhibited by " + strings.Join(by, "; ")
}

// BlockInhibitors returns the inhibitors that block a shutdown or reboot, in logind's order.
func (m *Manager) BlockInhibitors(ctx context.Context) ([]Inhibitor, error) {
	const doing = "listing logind's inhibitors"
	if len(m.buses) == 0 {
		return nil, fmt.Errorf("%s: %w: the system bus is not up", doing, ErrNoLogind)
	}
	limited, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var all []Inhibitor
	login := m.buses[0].Object(loginName, loginPath)
	err := login.CallWithContext(limited, loginManager+"ListInhibitors", 0).Store(&all)
	if err != nil && ctx.Err() == nil && (limited.Err() != nil || denied(err) || !m.owned(limited, loginName)) {
		return nil, fmt.Errorf("%s: %w: %w", doing, ErrNoLogind, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return slices.DeleteFunc(all, func(i Inhibitor) bool { return !i.blocksShutdown() }), nil
}

// denied reports whether a policy of the bus refused root's call. Then no program can have asked the service behind the
// bus for anything.
func denied(err error) bool {
	answer, is := errors.AsType[godbus.Error](err)
	return is && answer.Name == "org.freedesktop.DBus.Error.AccessDenied"
}

// owned reports whether a running service has the name on the bus. A call starts a service that does not run. So after
// a failed call the answer tells whether the service can run at all: it may be masked, removed, or fail.
func (m *Manager) owned(ctx context.Context, name string) bool {
	var is bool
	err := m.buses[0].BusObject().CallWithContext(ctx, "org.freedesktop.DBus.NameHasOwner", 0, name).Store(&is)
	return err == nil && is
}

// Reboot asks logind for an orderly reboot and returns once it is under way. logind lets root pass most inhibitors, so
// Reboot asks for them first: an InhibitedError means that nothing was done. The shutdown waits for this process to
// end, so that the process can still report its work. It waits for as long as logind allows (five seconds, unless an
// admin has set another time).
func (m *Manager) Reboot(ctx context.Context) error {
	return m.goDown(ctx, "rebooting", "reboot.target", "Reboot", false)
}

// loginSoftReboot is SD_LOGIND_SOFT_REBOOT: a root that is mounted at /run/nextroot becomes the next root.
const loginSoftReboot uint64 = 1 << 2

// SoftReboot reboots only the userspace, into the root that is mounted at /run/nextroot.
func (m *Manager) SoftReboot(ctx context.Context) error {
	return m.goDown(ctx, "rebooting the userspace", "soft-reboot.target", "RebootWithFlags", loginSoftReboot)
}

// loginKexec is SD_LOGIND_REBOOT_VIA_KEXEC: where a kernel is loaded, that kernel is started.
const loginKexec uint64 = 1 << 1

const kexecTarget = "kexec.target"

// Kexec reboots into the kernel that is loaded, without the firmware and the boot loader. A logind that knows no kexec
// refuses: the caller reboots fully then, by the same logind, which waits for the programs that delay a shutdown.
func (m *Manager) Kexec(ctx context.Context) error {
	return m.goDown(ctx, "starting the loaded kernel", kexecTarget, "RebootWithFlags", loginKexec)
}

func (m *Manager) goDown(ctx context.Context, doing, target, method string, argument any) error {
	by, err := m.BlockInhibitors(ctx)
	if errors.Is(err, ErrNoLogind) {
		return m.QueueStart(ctx, target)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if len(by) > 0 {
		return fmt.Errorf("%s: %w", doing, &InhibitedError{By: by})
	}
	m.DelayShutdown(ctx)
	login := m.buses[0].Object(loginName, loginPath)
	limited, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	err = login.CallWithContext(limited, loginManager+method, 0, argument).Store()
	if err == nil || wentDown(err) {
		return nil
	}
	if ctx.Err() != nil || target == kexecTarget {
		return fmt.Errorf("%s: %w", doing, err)
	}
	// Nothing blocks the reboot, and only logind has failed. systemd can still take the host down.
	if queued := m.QueueStart(ctx, target); queued != nil {
		return fmt.Errorf("%s: %w; and logind: %w", doing, queued, err)
	}
	return nil
}

// DelayShutdown has a shutdown wait for this process to end, for as long as logind allows. The lock is the descriptor,
// which stays open on purpose. Without a lock the shutdown goes on undelayed.
func (m *Manager) DelayShutdown(ctx context.Context) {
	if len(m.buses) == 0 {
		return
	}
	limited, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var lock godbus.UnixFD
	_ = m.buses[0].Object(loginName, loginPath).CallWithContext(limited, loginManager+"Inhibit", 0, "shutdown",
		"machine-config-daemon", "saying what was done", "delay").Store(&lock)
}

// Preparing reports whether logind has begun a shutdown, which may still be delayed.
func (m *Manager) Preparing(ctx context.Context) bool {
	if len(m.buses) == 0 {
		return false
	}
	limited, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var is bool
	err := m.buses[0].Object(loginName, loginPath).CallWithContext(limited, "org.freedesktop.DBus.Properties.Get", 0,
		strings.TrimSuffix(loginManager, "."), "PreparingForShutdown").Store(&is)
	return err == nil && is
}

// ErrNoSoftReboots is the error of a systemd before version 254, which can't restart the userspace alone.
var ErrNoSoftReboots = errors.New("systemd knows no soft reboot")

// SoftReboots returns the number of soft reboots since the kernel was started. It asks systemd itself, which answers
// from the first moment of the boot on. ctx bounds the whole call.
func SoftReboots(ctx context.Context) (uint32, error) {
	conn, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return 0, fmt.Errorf("connecting to systemd: %w", err)
	}
	defer conn.Close()
	const property = "SoftRebootsCount"
	text, err := conn.GetManagerProperty(property)
	if answer, is := errors.AsType[godbus.Error](err); is && strings.HasSuffix(answer.Name, ".UnknownProperty") {
		return 0, ErrNoSoftReboots
	}
	if err != nil {
		return 0, fmt.Errorf("asking systemd for its %s: %w", property, err)
	}
	// The text has D-Bus's form: the type, and the number.
	count, err := strconv.ParseUint(text[strings.LastIndexByte(text, ' ')+1:], 10, 32)
	if err != nil {
		return 0, fmt.Errorf("reading systemd's %s: %w", property, err)
	}
	return uint32(count), nil
}

// wentDown reports whether the bus, or logind, went away before it answered, because the reboot has begun.
func wentDown(err error) bool {
	var answer godbus.Error
	return errors.Is(err, io.EOF) || errors.Is(err, godbus.ErrClosed) ||
		errors.As(err, &answer) && answer.Name == "org.freedesktop.DBus.Error.NoReply"
}

// Stopping reports whether a shutdown has begun. It asks systemd itself, which answers after the bus has ended. ctx
// bounds the whole call.
func Stopping(ctx context.Context) bool {
	conn, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return false
	}
	defer conn.Close()
	state, err := conn.SystemStateContext(ctx)
	return err == nil && state.Value.Value() == "stopping"
}
