// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
)

// client is one run of the command line.
type client struct {
	out     io.Writer
	bus     *dbus.Conn
	sysroot dbus.BusObject
	os      dbus.BusObject
}

// errNotBooted is what every command says where there is no ostree.
var errNotBooted = original("This system was not booted via libostree. " +
	"Currently, most rpm-ostree commands only work on ostree-based host systems.")

// errVanished is the client's word for a daemon that died.
var errVanished = guess("Bus owner changed, aborting. " +
	"This likely means the daemon crashed; check logs with `journalctl -xe`.")

// connect finds the daemon, started if need be, and stays registered for as long as the process runs.
func connect(ctx context.Context, out io.Writer) (*client, error) {
	if _, err := os.Stat(bootedFile); err != nil {
		return nil, errNotBooted
	}
	// Started this way a daemon that can't start says why, and the bus need not be waited for.
	if exec.CommandContext(ctx, "systemctl", "is-active", "--quiet", "rpm-ostreed").Run() != nil {
		start := exec.CommandContext(ctx, "systemctl", "start", "rpm-ostreed")
		start.Stderr = os.Stderr // the reasons
		if err := start.Run(); err != nil {
			return nil, original("Loading sysroot: %s", strings.Replace(err.Error(), "exit status ", "exit status: ", 1))
		}
	}
	bus, err := dbus.ConnectSystemBus()
	if err != nil {
		return nil, err
	}
	c := &client{out: out, bus: bus, sysroot: bus.Object(busName, sysrootPath)}
	id := os.Getenv("RPMOSTREE_CLIENT_ID")
	if id == "" {
		id = "cli"
	}
	// A daemon that is just about to leave does not answer; the next one does.
	for attempt := 0; ; attempt++ {
		err := c.sysroot.CallWithContext(ctx, sysrootInterface+".RegisterClient", 0,
			map[string]dbus.Variant{"id": dbus.MakeVariant(id)}).Err
		if err == nil {
			break
		}
		typed, ok := errors.AsType[dbus.Error](err)
		if !ok || !strings.HasPrefix(typed.Name, "org.freedesktop.DBus.Error.") || attempt == 5 {
			return nil, plainError(err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
	booted, err := c.sysroot.GetProperty(sysrootInterface + ".Booted")
	if err != nil {
		return nil, plainError(err)
	}
	path, _ := booted.Value().(dbus.ObjectPath)
	c.os = bus.Object(busName, path)
	return c, nil
}

// plainError is an error of the bus without its name.
func plainError(err error) error {
	if typed, ok := errors.AsType[dbus.Error](err); ok && len(typed.Body) > 0 {
		return fmt.Errorf("%v", typed.Body[0])
	}
	return err
}

// transact calls a method that makes a transaction, runs that to its end, and shows what it says meanwhile.
func (c *client) transact(ctx context.Context, method string, args ...any) error {
	var address string
	if err := c.os.CallWithContext(ctx, osInterface+"."+method, 0, args...).Store(&address); err != nil {
		return plainError(err)
	}
	return c.follow(ctx, address)
}

// follow starts the transaction at an address, or attaches to it.
func (c *client) follow(ctx context.Context, address string) error {
	peer, err := dbus.Dial(address)
	if err != nil {
		return err
	}
	defer peer.Close()
	signals := make(chan *dbus.Signal, 1000)
	peer.Signal(signals)
	if err := peer.Auth(nil); err != nil {
		return err
	}
	object := peer.Object("", "/")
	var started bool
	if err := object.CallWithContext(ctx, transactionInterface+".Start", 0).Store(&started); err != nil {
		return plainError(err)
	}
	if !started {
		title, _ := object.GetProperty(transactionInterface + ".Title")
		fmt.Fprintf(c.out, "Attaching to existing transaction: %v\n", title.Value())
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT)
	defer signal.Stop(interrupted)
	for {
		select {
		case <-interrupted:
			if err := object.CallWithContext(ctx, transactionInterface+".Cancel", 0).Err; err != nil {
				return plainError(err)
			}
		case <-peer.Context().Done():
			return errVanished
		case s, ok := <-signals:
			if !ok {
				return errVanished
			}
			if over, err := c.show(s); over {
				// Whoever listens keeps the next transaction away, and what the daemon shows has to be what there is now.
				peer.Close()
				reloaded := plainError(c.sysroot.CallWithContext(ctx, sysrootInterface+".Reload", 0).Err)
				return cmp.Or(err, reloaded)
			}
		}
	}
}

// show shows a signal, and says whether it was the last.
func (c *client) show(s *dbus.Signal) (over bool, err error) {
	switch strings.TrimPrefix(s.Name, transactionInterface+".") {
	case "Finished":
		if success, _ := s.Body[0].(bool); success {
			return true, nil
		}
		return true, fmt.Errorf("%v", s.Body[1])
	case "Message":
		fmt.Fprintln(c.out, s.Body[0])
	case "TaskBegin":
		fmt.Fprintf(c.out, "%v... ", s.Body[0])
	case "TaskEnd":
		fmt.Fprintln(c.out, s.Body[0])
	}
	return false, nil
}

// deployments is the property Deployments.
func (c *client) deployments() ([]map[string]dbus.Variant, error) {
	value, err := c.sysroot.GetProperty(sysrootInterface + ".Deployments")
	if err != nil {
		return nil, plainError(err)
	}
	all, _ := value.Value().([]map[string]dbus.Variant)
	return all, nil
}

// first is the deployment that is or becomes the default.
func (c *client) first() (string, error) {
	all, err := c.deployments()
	if err != nil || len(all) == 0 {
		return "", err
	}
	return vardict(all[0]).text("id"), nil
}

// driven refuses what is the update driver's, unless we are part of it or it does not run.
func (c *client) driven() error {
	driver, err := readDriver()
	if err != nil || driver == nil || driver.Name == "" {
		return err
	}
	own, err := unitOfProcess(c.bus, uint32(os.Getpid()))
	if err != nil {
		return plainError(err)
	}
	if own == driver.Unit {
		return nil
	}
	var path dbus.ObjectPath
	systemd := c.bus.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	if systemd.Call("org.freedesktop.systemd1.Manager.GetUnit", 0, driver.Unit).Store(&path) != nil {
		return nil //nolint:nilerr // not loaded, so not active
	}
	unit := c.bus.Object("org.freedesktop.systemd1", path)
	state, err := unit.GetProperty("org.freedesktop.systemd1.Unit.ActiveState")
	active, _ := state.Value().(string)
	if err != nil || !slices.Contains([]string{"active", "activating", "reloading", "failed"}, active) {
		return plainError(err)
	}
	text := fmt.Sprintf("Updates and deployments are driven by %s (%s)\nSee %s's documentation",
		driver.Name, driver.Unit, driver.Name)
	docs, err := unit.GetProperty("org.freedesktop.systemd1.Unit.Documentation")
	if urls, _ := docs.Value().([]string); err == nil && len(urls) > 0 {
		text += " at " + strings.Join(urls, ", ")
	}
	return fmt.Errorf("%s\nUse --bypass-driver to bypass %s and perform the operation anyways", text, driver.Name)
}
