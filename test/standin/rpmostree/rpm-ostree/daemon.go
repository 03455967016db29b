// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/test/standin/rpmostree/fault"
)

// Names on the bus.
const (
	busName          = "org.projectatomic.rpmostree1"
	sysrootInterface = busName + ".Sysroot"
	osInterface      = busName + ".OS"
	sysrootPath      = dbus.ObjectPath("/org/projectatomic/rpmostree1/Sysroot")
	osPathPrefix     = "/org/projectatomic/rpmostree1/"

	failedError = "org.projectatomic.rpmostreed.Error.Failed"
	// What GLib makes of its own error that something is busy.
	busyError = "org.gtk.GDBus.UnmappedGError.Quark._g_2dio_2derror_2dquark.Code26"
)

// lingering is how long a finished transaction waits for its clients to go.
const lingering = 30 * time.Second

// letGo is how long it takes at most to notice that a client is gone.
const letGo = 200 * time.Millisecond

// daemon is the service.
type daemon struct {
	bus     *dbus.Conn
	os      string
	sysroot *properties
	osProps *properties
	wake    chan struct{} // whether it is idle may have changed
	dirty   chan struct{} // the deployments may have changed

	mu      sync.Mutex
	clients map[string]string // description by bus name
	txn     *transaction
}

// serveDaemon runs the service until it has been idle for long enough.
func serveDaemon(ctx context.Context) error {
	if err := fault.Pass(ctx, fault.Start); err != nil {
		return err
	}
	configured.read()
	// The unit has a mount namespace of its own, in which the disk can be written.
	for _, at := range []string{"/sysroot", "/boot"} {
		if err := unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("remounting %s: %w", at, err)
		}
	}
	bus, err := dbus.ConnectSystemBus()
	if err != nil {
		return err
	}
	defer bus.Close()
	all, err := readDeployments(ctx)
	if err != nil {
		return err
	}
	booted := bootedDeployment(all)
	if booted == nil {
		return errNotBooted
	}
	d := &daemon{bus: bus, os: booted.os, clients: map[string]string{},
		wake: make(chan struct{}, 1), dirty: make(chan struct{}, 1)}
	if err := d.export(); err != nil {
		return err
	}
	if err := d.reload(ctx); err != nil {
		return err
	}
	if err := d.watch(); err != nil {
		return err
	}
	signals := make(chan *dbus.Signal, 100)
	bus.Signal(signals)
	if err := bus.AddMatchSignal(
		dbus.WithMatchInterface("org.freedesktop.DBus"), dbus.WithMatchMember("NameOwnerChanged")); err != nil {
		return err
	}
	reply, err := bus.RequestName(busName, dbus.NameFlagDoNotQueue)
	if err == nil && reply != dbus.RequestNameReplyPrimaryOwner {
		err = fmt.Errorf("reply %d", reply)
	}
	if err != nil {
		return fmt.Errorf("owning %s: %w", busName, err)
	}
	d.loop(ctx, signals)
	// Clients that come now fail, as they do with the real one, and try again.
	_, err = bus.ReleaseName(busName)
	return err
}

// loop follows the clients, and returns when nothing has been to do for long enough.
func (d *daemon) loop(ctx context.Context, signals <-chan *dbus.Signal) {
	var idle <-chan time.Time
	for {
		d.mu.Lock()
		busy := len(d.clients) > 0 || d.txn != nil
		d.mu.Unlock()
		if timeout := idleTimeout(); busy || timeout == 0 {
			idle = nil
		} else if idle == nil {
			idle = time.After(timeout + time.Duration(rand.IntN(4000))*time.Millisecond)
		}
		select {
		case <-idle:
			return
		case <-d.wake:
		case <-d.dirty:
			if err := d.reload(ctx); err != nil {
				fmt.Fprintln(os.Stderr, "reloading:", err)
			}
		case signal := <-signals:
			if signal != nil && len(signal.Body) == 3 && signal.Body[2] == "" {
				d.gone(fmt.Sprint(signal.Body[0]))
			}
		}
	}
}

// watch sees what others do with the deployments: ostree touches the directory of the deployments after every change.
// As with the original, who asks right after such a change may get what was before.
func (d *daemon) watch() error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	go func() {
		for range watcher.Events {
			poke(d.dirty)
		}
	}()
	return watcher.Add("/ostree/deploy")
}

// idleTimeout is how long the daemon stays with nothing to do, 0 for ever.
func idleTimeout() time.Duration {
	if seconds, err := strconv.Atoi(configured.get("IdleExitTimeout")); err == nil {
		return time.Duration(seconds) * time.Second
	}
	return time.Minute
}

func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// gone forgets a client. A transaction that it did not start any more is over.
func (d *daemon) gone(name string) {
	d.mu.Lock()
	delete(d.clients, name)
	t := d.txn
	d.mu.Unlock()
	poke(d.wake)
	if t == nil || t.sender != name {
		return
	}
	t.mu.Lock()
	never := !t.started
	t.started = true
	t.mu.Unlock()
	if never {
		fmt.Fprintln(os.Stderr, "client disconnected before calling Start; cancelling transaction")
		t.end(errCancelled)
	}
}

// export puts the objects on the bus.
func (d *daemon) export() error {
	osPath := dbus.ObjectPath(osPathPrefix + escapePath(d.os))
	d.sysroot = &properties{bus: d.bus, path: sysrootPath, iface: sysrootInterface, values: map[string]dbus.Variant{
		"Booted":                dbus.MakeVariant(osPath),
		"Path":                  dbus.MakeVariant("/"),
		"ActiveTransaction":     dbus.MakeVariant(noTransaction),
		"ActiveTransactionPath": dbus.MakeVariant(""),
		"AutomaticUpdatePolicy": dbus.MakeVariant("none"),
		"Deployments":           dbus.MakeVariant([]map[string]dbus.Variant{}),
	}}
	none := dbus.MakeVariant(map[string]dbus.Variant{})
	d.osProps = &properties{bus: d.bus, path: osPath, iface: osInterface, values: map[string]dbus.Variant{
		"BootedDeployment":       none,
		"DefaultDeployment":      none,
		"RollbackDeployment":     none,
		"CachedUpdate":           none,
		"HasCachedUpdateRpmDiff": dbus.MakeVariant(false),
		"Name":                   dbus.MakeVariant(d.os),
	}}
	for _, p := range []*properties{d.sysroot, d.osProps} {
		if err := d.bus.Export(p, p.path, propertiesInterface); err != nil {
			return err
		}
	}
	if err := d.bus.Export(sysrootObject{d}, sysrootPath, sysrootInterface); err != nil {
		return err
	}
	return d.bus.Export(osObject{d, osPath}, osPath, osInterface)
}

// escapePath writes a name as an element of an object path.
func escapePath(name string) string {
	var escaped strings.Builder
	for _, c := range []byte(name) {
		if '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
			escaped.WriteByte(c)
		} else {
			fmt.Fprintf(&escaped, "_%02x", c)
		}
	}
	return escaped.String()
}

// active is the property ActiveTransaction: method, sender, path.
type active struct{ Method, Sender, Path string }

var noTransaction = active{}

// reload reads the deployments and says which there are, if they have changed.
func (d *daemon) reload(ctx context.Context) error {
	all, err := readDeployments(ctx)
	if err != nil {
		return err
	}
	list := []map[string]dbus.Variant{}
	none := map[string]dbus.Variant{}
	named := map[string]any{"BootedDeployment": none, "DefaultDeployment": none, "RollbackDeployment": none}
	for i, one := range all {
		m, err := describe(ctx, one)
		if err != nil {
			return fmt.Errorf("%s: %w", one.id(), err)
		}
		list = append(list, m)
		if i == 0 {
			named["DefaultDeployment"] = m
		}
		switch {
		case one.booted:
			named["BootedDeployment"] = m
		case i > 0 && all[i-1].booted:
			named["RollbackDeployment"] = m
		}
	}
	if err := d.sysroot.set(map[string]any{"Deployments": list}); err != nil {
		return err
	}
	return d.osProps.set(named)
}

// sysrootObject has the methods of the interface Sysroot.
type sysrootObject struct{ d *daemon }

func failed(err error) *dbus.Error { return dbus.NewError(failedError, []any{err.Error()}) }

// RegisterClient keeps the daemon for as long as the client is there.
func (s sysrootObject) RegisterClient(options map[string]dbus.Variant, sender dbus.Sender) *dbus.Error {
	if err := fault.Pass(context.Background(), fault.Register); err != nil {
		return failed(err)
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.d.clients[string(sender)] = vardict(options).text("id")
	poke(s.d.wake)
	return nil
}

// UnregisterClient lets the daemon go.
func (s sysrootObject) UnregisterClient(_ map[string]dbus.Variant, sender dbus.Sender) *dbus.Error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	delete(s.d.clients, string(sender))
	poke(s.d.wake)
	return nil
}

// Reload reads the deployments anew. It is what a client calls when it has let go of a transaction, and the original,
// which does one thing after the other, has seen that by then.
func (s sysrootObject) Reload() *dbus.Error {
	s.d.mu.Lock()
	t := s.d.txn
	s.d.mu.Unlock()
	if t != nil && t.over() {
		select {
		case <-t.gone:
		case <-time.After(letGo):
		}
	}
	if err := s.d.reload(context.Background()); err != nil {
		return failed(err)
	}
	return nil
}

// ReloadConfig reads the configuration anew, and says whether it has changed.
func (s sysrootObject) ReloadConfig() (bool, *dbus.Error) {
	changed := configured.read()
	poke(s.d.wake)
	return changed, nil
}

// GetOS is the object of an OS, "" being the booted one.
func (s sysrootObject) GetOS(name string) (dbus.ObjectPath, *dbus.Error) {
	if name != "" && name != s.d.os {
		return "", failed(guess("OS name \"%s\" not found", name))
	}
	return dbus.ObjectPath(osPathPrefix + escapePath(s.d.os)), nil
}

// osObject has those methods of the interface OS that the client calls. The older ones for one kind of change each are
// not here: UpdateDeployment has them all.
type osObject struct {
	d    *daemon
	path dbus.ObjectPath
}

// UpdateDeployment changes packages, or what the OS follows, or both.
func (o osObject) UpdateDeployment(modifiers, options map[string]dbus.Variant, sender dbus.Sender,
) (string, *dbus.Error) {
	u := &update{modifiers: modifiers, options: options}
	return o.begin("UpdateDeployment", sender, updateTitle(u.modifiers, u.options), []any{modifiers, options}, u.run)
}

// KernelArgs changes kernel arguments.
func (o osObject) KernelArgs(existing string, added, replaced, deleted []string, options map[string]dbus.Variant,
	sender dbus.Sender,
) (string, *dbus.Error) {
	v := vardict(options)
	p := patch{deleted, replaced, added, v.list("append-if-missing"), v.list("delete-if-present")}
	return o.begin("KernelArgs", sender, title(v, "kargs"), []any{existing, added, replaced, deleted, options},
		changeArguments(existing, p, v))
}

// Cleanup removes deployments and what nothing needs.
func (o osObject) Cleanup(kinds []string, sender dbus.Sender) (string, *dbus.Error) {
	return o.begin("Cleanup", sender, "cleanup", []any{kinds}, cleanup(kinds))
}

// Rollback changes the order of the deployments.
func (o osObject) Rollback(options map[string]dbus.Variant, sender dbus.Sender) (string, *dbus.Error) {
	return o.begin("Rollback", sender, "rollback", []any{options}, rollBack(options))
}

// FinalizeDeployment unlocks the staged deployment and reboots.
func (o osObject) FinalizeDeployment(options map[string]dbus.Variant, sender dbus.Sender) (string, *dbus.Error) {
	return o.begin("FinalizeDeployment", sender, finalizeName, []any{options}, unlockAndReboot(options))
}

func title(options vardict, otherwise string) string {
	if line := options.text("initiating-command-line"); line != "" {
		return line
	}
	return otherwise
}

// GetDeploymentBootConfig is the boot loader's entry of a deployment or, where pending is true and none is named, of
// the first one.
func (o osObject) GetDeploymentBootConfig(id string, _ bool) (map[string]dbus.Variant, *dbus.Error) {
	all, err := readDeployments(context.Background())
	if err != nil {
		return nil, failed(err)
	}
	for _, one := range all {
		if id == "" || one.id() == id {
			return map[string]dbus.Variant{
				"options": dbus.MakeVariant(one.options), "staged": dbus.MakeVariant(one.staged),
			}, nil
		}
	}
	return nil, failed(guess("Deployment with id='%s' not found", id))
}

// begin makes a transaction, or gives the address of the one that does the very same already.
func (o osObject) begin(method string, sender dbus.Sender, title string, params []any,
	run func(context.Context, *transaction) error,
) (string, *dbus.Error) {
	d := o.d
	unit := d.unitOf(string(sender))
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.txn; t != nil {
		if t.method == method && reflect.DeepEqual(t.params, params) {
			return t.address, nil
		}
		return "", dbus.NewError(busyError, []any{"Transaction in progress: " + t.title +
			"\n You can cancel the current transaction with `rpm-ostree cancel`"})
	}
	if len(rebooting) > 0 {
		return "", failed(original("Reboot initiated, cannot start new transaction"))
	}
	locked, err := sysrootLocked()
	if err != nil {
		return "", failed(err)
	}
	if locked {
		return "", dbus.NewError(busyError, []any{"System transaction in progress"})
	}
	client := fmt.Sprintf("client(id:%s dbus:%s unit:%s uid:0)",
		d.clients[string(sender)], strings.TrimPrefix(string(sender), ":"), unit)
	t := &transaction{method: method, sender: string(sender), path: string(o.path), params: params, title: title,
		client: client, unit: unit, run: run}
	t.closed = func() { d.close(t) }
	if err := t.listen(); err != nil {
		return "", failed(err)
	}
	d.txn = t
	if err := d.busy(active{method, string(sender), string(o.path)}, t.address); err != nil {
		return "", failed(err)
	}
	go func() {
		<-t.finished
		poke(d.dirty)
		time.AfterFunc(lingering, t.closed)
	}()
	return t.address, nil
}

// close forgets a transaction that is over.
func (d *daemon) close(t *transaction) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.txn != t {
		return
	}
	t.close()
	close(t.gone)
	d.txn = nil
	if err := d.busy(noTransaction, ""); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	poke(d.wake)
}

// busy says what is under way.
func (d *daemon) busy(a active, address string) error {
	return d.sysroot.set(map[string]any{"ActiveTransaction": a, "ActiveTransactionPath": address})
}

// unitOf is the systemd unit of a client, "" if it can't be told.
func (d *daemon) unitOf(sender string) string {
	var pid uint32
	if d.bus.BusObject().Call("org.freedesktop.DBus.GetConnectionUnixProcessID", 0, sender).Store(&pid) != nil {
		return ""
	}
	unit, _ := unitOfProcess(d.bus, pid)
	return unit
}

// unitOfProcess is the systemd unit of a process. That it has none is an error, in systemd's words.
func unitOfProcess(bus *dbus.Conn, pid uint32) (string, error) {
	var path dbus.ObjectPath
	err := bus.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").
		Call("org.freedesktop.systemd1.Manager.GetUnitByPID", 0, pid).Store(&path)
	if err != nil {
		return "", err
	}
	unit, err := bus.Object("org.freedesktop.systemd1", path).GetProperty("org.freedesktop.systemd1.Unit.Id")
	if err != nil {
		return "", err
	}
	name, _ := unit.Value().(string)
	return name, nil
}
