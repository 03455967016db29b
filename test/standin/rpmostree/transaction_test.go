// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/rpmostree/fault"
)

// begin starts rpm-ostree and does not wait for it. It can be asked for its answer, and killed.
func (h *host) begin(args ...string) (wait func() answer, kill func(signal string)) {
	h.t.Helper()
	marker := "MARK=" + fmt.Sprint(time.Now().UnixNano())
	done := make(chan answer, 1)
	go func() {
		stdout, stderr, exit, err := h.Exec(h.ctx, nil, append([]string{"env", marker, "rpm-ostree"}, args...)...)
		if err != nil {
			stderr = []byte(err.Error())
		}
		done <- answer{string(stdout), string(stderr), exit}
	}()
	return func() answer { return <-done }, func(signal string) {
		h.t.Helper()
		h.shell("for p in $(pgrep -x rpm-ostree); do grep -qz " + marker + " /proc/$p/environ && kill -" + signal + " $p; done; true")
	}
}

// until waits until a condition holds.
func (h *host) until(what string, condition func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.t.Fatal("waiting until " + what)
		}
	}
}

// waiting waits until so many clients are connected to the transaction.
func (h *host) waiting(n int) {
	h.t.Helper()
	h.until("clients wait", func() bool {
		return h.shell("grep -c /run/rpm-ostree-transaction.sock /proc/net/unix || true") == strconv.Itoa(n+1) // one listens
	})
}

func (h *host) fail(f fault.Fault) {
	h.t.Helper()
	if err := Break(h.Host, f); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) mend(step fault.Step) {
	h.t.Helper()
	if err := Mend(h.Host, step); err != nil {
		h.t.Fatal(err)
	}
}

func TestOneTransactionAtATime(t *testing.T) {
	h := share(t)
	if said := h.ok("cancel"); said != "No active transaction.\n" {
		t.Errorf("cancel with nothing under way said %q", said)
	}
	// The lock that ostree takes, on the file that it takes it on: it is not waited for.
	file, err := os.OpenFile(filepath.Join(h.Sysroot(), "ostree/lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	h.refused("System transaction in progress", "kargs", "--append=x")
	file.Close()
	h.ok("kargs", "--append=kept", lock)
	kept := h.staged().text("id")

	t.Run("busy, joined and cancelled", func(t *testing.T) {
		standIn(t, faults)
		h.fail(fault.Fault{Step: fault.Stage, Action: fault.Hang})
		first, _ := h.begin("kargs", "--append=slow")
		h.until("it is under way", func() bool { return len(h.status().Transaction) == 3 })
		if got := h.status().Transaction; got[0] != "KernelArgs" || !strings.HasPrefix(got[1], ":1.") || got[2] != "/org/projectatomic/rpmostree1/"+lab.OS {
			t.Errorf("the transaction is %q", got)
		}
		if said := h.ok("status"); !strings.Contains(said, "Transaction: kargs --append=slow \n  Initiator: client(id:cli dbus:1.") {
			t.Errorf("status says %q", said)
		}
		h.refused("Transaction in progress: kargs --append=slow \n You can cancel the current transaction with `rpm-ostree cancel`", "kargs", "--append=other")
		h.refused("Transaction in progress: kargs --append=slow \n You can cancel the current transaction with `rpm-ostree cancel`", "cleanup", "-p")
		second, _ := h.begin("kargs", "--append=slow")
		h.waiting(2)
		if said := h.ok("cancel"); said != "Cancelling transaction: kargs --append=slow \nCancelled.\n" {
			t.Errorf("cancel said %q", said)
		}
		for _, wait := range []func() answer{first, second} {
			if a := wait(); a.exit != 1 || a.stderr != "error: Operation was cancelled\n" {
				t.Errorf("cancelled: exit %d: %q", a.exit, a.stderr)
			}
		}
		if h.staged().text("id") != kept {
			t.Error("what was staged before is gone")
		}
		h.mend(fault.Stage)
	})
	t.Run("what is cancelled while it commits says so", func(t *testing.T) {
		standIn(t, faults)
		h.fail(fault.Fault{Step: fault.Compose, Action: fault.Hang, Times: 1})
		wait, _ := h.begin("install", "usbguard")
		h.until("it commits, and hangs", func() bool {
			_, err := os.Stat(h.HostPath(filepath.Join(fault.Dir, string(fault.Compose))))
			return errors.Is(err, fs.ErrNotExist) // the fault has lifted itself
		})
		h.ok("cancel")
		if a := wait(); a.exit != 1 || a.stderr != "error: Committing: Operation was cancelled\n" {
			t.Errorf("cancelled: exit %d: %q", a.exit, a.stderr)
		}
		h.mend(fault.Compose)
	})
	t.Run("a client that is interrupted cancels", func(t *testing.T) {
		standIn(t, faults)
		h.fail(fault.Fault{Step: fault.Stage, Action: fault.Hang})
		wait, kill := h.begin("kargs", "--append=slow")
		h.until("it is under way", func() bool { return h.status().Transaction != nil })
		kill("INT")
		if a := wait(); a.exit != 1 || a.stderr != "error: Operation was cancelled\n" {
			t.Errorf("interrupted: exit %d: %q", a.exit, a.stderr)
		}
		h.mend(fault.Stage)
	})
	t.Run("a client that dies does not matter", func(t *testing.T) {
		standIn(t, faults)
		h.fail(fault.Fault{Step: fault.Stage, Action: fault.Hang})
		first, kill := h.begin("kargs", "--append=orphan")
		h.until("it is under way", func() bool { return h.status().Transaction != nil })
		kill("KILL")
		if a := first(); a.exit == 0 {
			t.Errorf("a killed client: %v", a)
		}
		second, _ := h.begin("kargs", "--append=orphan")
		h.waiting(1)
		h.mend(fault.Stage)
		if a := second(); a.exit != 0 || !strings.HasPrefix(a.stdout, "Attaching to existing transaction: kargs --append=orphan \n") {
			t.Errorf("joined: exit %d: %q%q", a.exit, a.stdout, a.stderr)
		}
		if got := h.arguments(); got != initial+" kept orphan" {
			t.Errorf("the arguments are %q", got)
		}
	})
	t.Run("a daemon that dies leaves what was there", func(t *testing.T) {
		standIn(t, faults)
		before := h.staged().text("id")
		for _, step := range []fault.Step{fault.Begin, fault.Stage, fault.End} {
			h.fail(fault.Fault{Step: step, Action: fault.Vanish, Times: 1})
			a := h.run("rpm-ostree", "kargs", "--append="+string(step))
			if a.exit != 1 || !strings.HasPrefix(a.stderr, "error: Bus owner changed, aborting.") {
				t.Errorf("%s: exit %d: %q", step, a.exit, a.stderr)
			}
			if changed := h.staged().text("id") != before; changed != (step == fault.End) {
				t.Errorf("%s: changed %t", step, changed)
			}
		}
	})
	t.Run("faults", func(t *testing.T) {
		standIn(t, faults)
		before := h.staged().text("id")
		for _, c := range []struct {
			f    fault.Fault
			text string
		}{
			{fault.Fault{Step: fault.Pull, Action: fault.Fail, Text: "While fetching https://ostree.example/config: [28] Timeout was reached", Times: 1},
				"While fetching https://ostree.example/config: [28] Timeout was reached"},
			{fault.Fault{Step: fault.Stage, Action: fault.NoSpace, Times: 2}, "Writing content object: fallocate: No space left on device"},
			{fault.Fault{Step: fault.Stage, Action: fault.NoSpace}, "Writing content object: fallocate: No space left on device"},
		} {
			h.fail(c.f)
			h.refused(c.text, "rebase", lab.RefV2)
		}
		h.mend(fault.Stage)
		if h.staged().text("id") != before {
			t.Error("a failure has left something else staged")
		}
		h.fail(fault.Fault{Step: fault.Begin, Action: fault.Slow, Seconds: 1, Times: 1})
		start := time.Now()
		h.ok("cleanup", "-p")
		if took := time.Since(start); took < time.Second {
			t.Errorf("a slow step took %v", took)
		}
	})
}

func TestDaemonComesAndGoes(t *testing.T) {
	h := share(t)
	h.shell("printf '[Daemon]\\nIdleExitTimeout=1\\n' >/etc/rpm-ostreed.conf; systemctl stop rpm-ostreed")
	active := func() bool { return h.run("systemctl", "is-active", "--quiet", "rpm-ostreed").exit == 0 }
	h.ok("status")
	if !active() {
		t.Error("the daemon is gone at once")
	}
	h.until("the daemon goes for want of clients", func() bool { return !active() })
	h.ok("status")

	t.Run("slow, failing and leaving", func(t *testing.T) {
		standIn(t, faults)
		h.until("the daemon goes for want of clients", func() bool { return !active() })
		h.fail(fault.Fault{Step: fault.Start, Action: fault.Slow, Seconds: 2, Times: 1})
		start := time.Now()
		h.ok("status")
		if took := time.Since(start); took < 2*time.Second {
			t.Errorf("a daemon that is slow to start was there after %v", took)
		}
		h.until("the daemon goes for want of clients", func() bool { return !active() })
		h.fail(fault.Fault{Step: fault.Start, Action: fault.Fail, Text: "error: Couldn't load the sysroot", Times: 1})
		a := h.run("rpm-ostree", "status")
		if a.exit != 1 || !strings.HasPrefix(a.stderr, "Job for rpm-ostreed.service failed") ||
			!strings.HasSuffix(a.stderr, "\nerror: Loading sysroot: exit status: 1\n") {
			t.Errorf("a daemon that does not start: exit %d: %q", a.exit, a.stderr)
		}
		h.shell("systemctl reset-failed rpm-ostreed")
		// One that leaves as the client comes is asked again by the client itself.
		h.ok("status")
		h.fail(fault.Fault{Step: fault.Register, Action: fault.Vanish, Times: 1})
		h.ok("status")
	})
}

func TestRebootIsAskedForAndRefused(t *testing.T) {
	h := boot(t)
	h.refused("No pending staged deployment found", finalizeName, "--allow-missing-checksum")
	h.ok("kargs", "--append=one", lock)
	booted := h.status().Deployments[1].text("checksum")
	a := h.run("rpm-ostree", finalizeName)
	if a.exit != 1 || !strings.HasPrefix(a.stderr, "Usage:\n  rpm-ostree "+finalizeName) ||
		!strings.HasSuffix(a.stderr, "\nerror: usage error: Must provide expected CHECKSUM or --allow-missing-checksum\n") {
		t.Errorf("without a checksum: exit %d: %s", a.exit, a.stderr)
	}
	other := strings.Repeat("0", 64)
	h.refused("Expected staged base checksum "+other+", but found "+booted, finalizeName, other)

	h.shell("systemd-run -q --unit=inhibit systemd-inhibit --what=shutdown --who=upgrade --why=busy --mode=block sleep infinity")
	h.until("the inhibitor is there", func() bool { return strings.Contains(h.shell("systemd-inhibit --list --no-legend"), "busy") })
	blocked := "Reboot blocked by a systemd inhibitor lock in `block` mode\nHeld by: upgrade\nReason: busy"
	h.refused(blocked, finalizeName, booted)
	if !h.locked() {
		t.Error("it is unlocked although the machine must not reboot")
	}
	h.refused(blocked, "kargs", "--append=two", "--reboot")
	if h.arguments() != initial+" one two" {
		t.Errorf("what was to reboot is not staged: %q", h.arguments())
	}
	h.shell("systemctl stop inhibit")
	h.refused("Staged deployment already unlocked", finalizeName, booted)
	h.ok("kargs", "--append=three", lock)
	boots := h.Boots()
	// The client may be stopped with everything else before it can say how it went.
	_, _ = h.Output(h.ctx, "rpm-ostree", finalizeName, booted)
	if err := h.WaitBoot(h.ctx, boots+1); err != nil {
		t.Fatal(err)
	}
	if _, err := h.WaitRunning(h.ctx); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(h.Kargs(), " one two three") {
		t.Errorf("booted with %q", h.Kargs())
	}

	// What is staged becomes real at shutdown, and there is none when the plug is pulled.
	h.ok("kargs", "--append=four")
	if err := h.PowerCut(); err != nil {
		t.Fatal(err)
	}
	if err := h.Start(h.ctx); err != nil {
		t.Fatal(err)
	}
	if d := h.status().Deployments[0]; d.yes("staged") || strings.Contains(h.ok("kargs"), "four") {
		t.Errorf("after a power cut there is %v with %q", d, h.ok("kargs"))
	}
}

func TestUpdateDriverIsAskedFirst(t *testing.T) {
	h := share(t)
	// The driver is the unit that registers.
	h.shell(`mkdir -p /run/systemd/system; printf '[Unit]\nDocumentation=https://driver.example/\n[Service]\nExecStart=/bin/sh -c "` +
		`rpm-ostree deploy \"\" --register-driver=Driver && touch /run/registered; exec sleep infinity"\n' >/run/systemd/system/driver.service
systemctl daemon-reload; systemctl start driver`)
	h.until("the driver is registered", func() bool { return h.run("test", "-e", "/run/registered").exit == 0 })
	if got := h.status().UpdateDriver; got["driver-name"] != "Driver" || got["driver-sd-unit"] != "driver.service" {
		t.Errorf("the driver is %v", got)
	}
	// Programs read the registration without rpm-ostree.
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/run/rpm-ostree/update-driver.gv", h.Leader()))
	if err == nil {
		var texts map[string]string
		texts, err = ostree.Texts(state)
		if texts["driver-name"] != "Driver" || texts["driver-sd-unit"] != "driver.service" {
			t.Errorf("the state of the driver is %q", state)
		}
	}
	if err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{{"rebase", lab.RefV2}, {"upgrade"}, {"deploy", "v1"}} {
		a := h.asUnit(append([]string{"rpm-ostree"}, args...)...)
		want := "error: Updates and deployments are driven by Driver (driver.service)\nSee Driver's documentation at https://driver.example/\n" +
			"Use --bypass-driver to bypass Driver and perform the operation anyways\n"
		if a.exit != 1 || a.stderr != want {
			t.Errorf("%v: exit %d: %q", args, a.exit, a.stderr)
		}
	}
	// rpm-ostree asks for the unit of its caller, to let the driver itself through. Who is in none is refused.
	if a := h.run("rpm-ostree", "upgrade"); a.exit != 1 || !strings.HasSuffix(a.stderr, " does not belong to any loaded unit.\n") {
		t.Errorf("a caller without a unit: exit %d: %q", a.exit, a.stderr)
	}
	h.ok("kargs", "--append=x") // is nobody's business
	h.ok("rebase", lab.RefV2, "--bypass-driver", "--skip-purge")
	h.shell("systemctl stop driver")
	if a := h.asUnit("rpm-ostree", "upgrade"); a.exit != 0 { // a driver that does not run is none
		t.Errorf("with a driver that does not run: exit %d: %s", a.exit, a.stderr)
	}
}

func TestBusShowsWhatIsUnderWay(t *testing.T) {
	h := share(t)
	root := fmt.Sprintf("/proc/%d/root", h.Leader())
	bus, err := dbus.Connect("unix:path=" + root + "/run/dbus/system_bus_socket")
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	const name = "org.projectatomic.rpmostree1"
	sysroot := bus.Object(name, "/org/projectatomic/rpmostree1/Sysroot")
	if err := sysroot.Call(name+".Sysroot.RegisterClient", 0, map[string]dbus.Variant{"id": dbus.MakeVariant("test")}).Err; err != nil {
		t.Fatal(err)
	}
	var path dbus.ObjectPath
	if err := sysroot.Call(name+".Sysroot.GetOS", 0, lab.OS).Store(&path); err != nil || path != "/org/projectatomic/rpmostree1/"+lab.OS {
		t.Fatalf("the OS is at %s, %v", path, err)
	}
	object := bus.Object(name, path)
	if booted, err := sysroot.GetProperty(name + ".Sysroot.Booted"); err != nil || booted.Value() != path {
		t.Errorf("booted is %v, %v", booted, err)
	}
	if err := bus.AddMatchSignal(dbus.WithMatchInterface("org.freedesktop.DBus.Properties"), dbus.WithMatchObjectPath(sysroot.Path())); err != nil {
		t.Fatal(err)
	}
	changes := make(chan *dbus.Signal, 100)
	bus.Signal(changes)

	var config map[string]dbus.Variant
	if err := object.Call(name+".OS.GetDeploymentBootConfig", 0, "", true).Store(&config); err != nil {
		t.Fatal(err)
	}
	existing, _ := config["options"].Value().(string)
	if !strings.HasPrefix(existing, initial) || fmt.Sprint(config["staged"].Value()) != "false" {
		t.Errorf("the boot configuration is %v", config)
	}
	var address string
	options := map[string]dbus.Variant{"final-kernel-args": dbus.MakeVariant("rw only"), "initiating-command-line": dbus.MakeVariant("a test")}
	err = object.Call(name+".OS.KernelArgs", 0, existing, []string{}, []string{}, []string{}, options).Store(&address)
	if err != nil || address != "unix:path=/run/rpm-ostree-transaction.sock" {
		t.Fatalf("the transaction is at %q, %v", address, err)
	}
	err = object.Call(name+".OS.Cleanup", 0, []string{"rollback-deploy"}).Err
	busy, ok := errors.AsType[dbus.Error](err)
	if !ok || busy.Name != "org.gtk.GDBus.UnmappedGError.Quark._g_2dio_2derror_2dquark.Code26" {
		t.Errorf("another transaction: %v", err)
	}
	said := h.follow(root, address, func() {
		// Who stays connected keeps the others away for up to 30 seconds.
		h.refused("Transaction in progress: a test\n You can cancel the current transaction with `rpm-ostree cancel`", "cleanup", "-b")
	})
	if !strings.HasPrefix(said, "Started Task ") || !strings.HasSuffix(said, " Finished:true") {
		t.Errorf("the transaction said %q", said)
	}
	// A client that has let go of a transaction has the daemon look again: until then the daemon may say what was before.
	if err := sysroot.Call(name+".Sysroot.Reload", 0).Err; err != nil {
		t.Fatal(err)
	}
	if got := h.arguments(); got != "rw only" {
		t.Errorf("the arguments are %q", got)
	}
	seen := map[string]bool{}
	for !seen["Deployments"] {
		select {
		case s := <-changes:
			changed, _ := s.Body[1].(map[string]dbus.Variant)
			for key := range changed {
				seen[key] = true
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("the bus has seen changes of %v, and none of Deployments", seen)
		}
	}
	if !seen["ActiveTransaction"] {
		t.Errorf("the bus has seen changes of %v", seen)
	}

	// One that nobody starts is over when its maker goes.
	other, err := dbus.Connect("unix:path=" + root + "/run/dbus/system_bus_socket")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Object(name, path).Call(name+".OS.Cleanup", 0, []string{"rollback-deploy"}).Err; err != nil {
		t.Fatal(err)
	}
	other.Close()
	h.until("the transaction of a client that left is over", func() bool { return h.run("rpm-ostree", "cleanup", "-b").exit == 0 })
}

// follow starts a transaction and returns what its signals were, words between blanks. Before it lets go it calls last.
func (h *host) follow(root, address string, last func()) string {
	t, ctx := h.t, h.ctx
	t.Helper()
	peer, err := dbus.Dial(strings.Replace(address, "path=", "path="+root, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	signals := make(chan *dbus.Signal, 100)
	peer.Signal(signals)
	if err := peer.Auth(nil); err != nil {
		t.Fatal(err)
	}
	object := peer.Object("", "/")
	if title, err := object.GetProperty("org.projectatomic.rpmostree1.Transaction.Title"); err != nil || title.Value() != "a test" {
		t.Errorf("the title is %v, %v", title, err)
	}
	var said []string
	var started bool
	if err := object.Call("org.projectatomic.rpmostree1.Transaction.Start", 0).Store(&started); err != nil {
		t.Fatal(err)
	} else if started {
		said = append(said, "Started")
	}
	for {
		select {
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		case s := <-signals:
			switch member := s.Name[strings.LastIndex(s.Name, ".")+1:]; member {
			case "TaskBegin", "TaskEnd":
				said = append(said, "Task")
			case "Finished":
				last()
				return strings.Join(append(said, fmt.Sprintf("Finished:%v", s.Body[0])), " ")
			}
		}
	}
}
