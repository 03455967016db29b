// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/noderefit/noderefit/ostree"
)

// guestRemote is the path on a host of the archive that the host's remote names.
const guestRemote = "/run/lab/remote"

// poll is the interval at which a condition is checked whose changes are not announced. It is at most an eighth of the
// quickest boot.
const poll = 10 * time.Millisecond

// ErrOff is the error of calls that need a running host, on a host that is switched off.
var ErrOff = errors.New("the host is switched off")

// Options are the settings in which hosts may differ. The zero value is a host like Fedora CoreOS.
type Options struct {
	// Name is used in texts and in the names of files, and is the host name where Hostname is empty. An empty Name means
	// "host".
	Name     string
	Hostname string
	// WritableSysroot mounts /sysroot and /boot read-write. Otherwise both are read-only, and ostree remounts them in a
	// mount namespace of its own.
	WritableSysroot bool
	// WithoutOSTree makes a host of packages: the same tree with an /etc that lasts, and nothing that shows ostree. /usr
	// stays read-only, because hosts share its files.
	WithoutOSTree bool
	// Loader is the boot loader of a host without ostree, whose Base is that of NeedPackages. Without a Loader the kernel
	// arguments of such a host are always the same.
	Loader Loader
	// HostNetwork leaves the host in this machine's network. Otherwise the host has only a loopback interface and what
	// Connect connects.
	HostNetwork bool
	// Fuse gives the host this machine's /dev/fuse.
	Fuse bool
	// Firmware is the time from the end of one boot to the start of the next. On real machines this is a minute or more,
	// so long that it can't be overlooked. A test that does not depend on this time may use less.
	Firmware time.Duration
}

// Host is one machine. A Host is safe for concurrent use.
type Host struct {
	base    *Base
	dir     string
	options Options
	machine registered
	network *network // nil with HostNetwork
	fixed   *Entry   // what a host without ostree boots, with the arguments of a fresh host
	closing sync.Once

	mu      sync.Mutex
	changed chan struct{} // closed and replaced whenever something below changes
	on      bool          // from power on to power off, reboots included
	cut     bool          // the plug is pulled: no further boot
	entry   int           // number of the boot loader's entry for the next boot
	leader  int           // PID 1 of the running boot, as this process sees it; 0 between boots
	up      bool          // the running boot answers on D-Bus
	boots   int
	booted  Entry
	failure error // the reason why the host went off by itself, except after a power off
}

// NewHost makes a host in dir, which it creates. The host is switched off. An empty dir means one in the cache, which
// is the quickest. Close removes the host. Hosts share files that no host writes: the objects of the repository, and
// /usr. These are hard links to the Base where the file system allows. So a test must not remount /usr of a host and
// write into it.
func (b *Base) NewHost(ctx context.Context, dir string, options Options) (*Host, error) {
	if options.Name == "" {
		options.Name = "host"
	}
	if options.Hostname == "" {
		options.Hostname = options.Name
	}
	id := newID(options.Name)
	if dir == "" {
		dir = filepath.Join(b.cache, "hosts", id)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("making host %s: %w", options.Name, err)
	}
	machine, err := register(b.cache, id, dir)
	if err != nil {
		return nil, fmt.Errorf("making host %s: %w", options.Name, err)
	}
	h := &Host{base: b, dir: dir, options: options, machine: machine, changed: make(chan struct{})}
	if err := h.furnish(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("making host %s: %w", options.Name, err), h.Close())
	}
	return h, nil
}

// Boot makes a host as NewHost does, in the cache, and starts the host.
func (b *Base) Boot(ctx context.Context, options Options) (*Host, error) {
	h, err := b.NewHost(ctx, "", options)
	if err != nil {
		return nil, err
	}
	if err := h.Start(ctx); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// furnish copies the sysroot, and makes what the firmware needs around it.
func (h *Host) furnish(ctx context.Context) error {
	for _, dir := range []string{"empty", "boot", "boot.work"} {
		if err := os.MkdirAll(filepath.Join(h.dir, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(h.dir, "booted"), nil, 0o644); err != nil {
		return err
	}
	if !h.options.HostNetwork {
		var err error
		if h.network, err = newNetwork(); err != nil {
			return err
		}
	}
	if err := copySysroot(ctx, h.base.sysroot, h.Sysroot()); err != nil {
		return err
	}
	entry, err := DefaultEntry(h.Sysroot())
	if err != nil {
		return err
	}
	etc := filepath.Join(h.Sysroot(), entry.Dir, "etc")
	digest := sha256.Sum256([]byte(h.machine.id))
	machineID := hex.EncodeToString(digest[:16])
	if err := os.WriteFile(filepath.Join(etc, "machine-id"), []byte(machineID+"\n"), 0o444); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(etc, "hostname"), []byte(h.options.Hostname+"\n"), 0o644); err != nil {
		return err
	}
	if h.options.WithoutOSTree {
		if err := h.furnishLoader(entry, machineID); err != nil {
			return err
		}
	}
	return setImmutable(filepath.Join(h.Sysroot(), entry.Dir), true)
}

// Base returns the host as a Base from which other hosts start. Each of these gets its own name and machine ID. The
// host must never have been on, must not be changed any more, and is closed after the last of the others was made.
func (h *Host) Base() *Base {
	return &Base{cache: h.base.cache, sysroot: h.Sysroot(), remote: h.base.remote, containers: h.base.containers}
}

// Sysroot returns the root of the host's disk as this machine sees it: ostree/, boot/.
func (h *Host) Sysroot() string { return filepath.Join(h.dir, "sysroot") }

// HostPath returns the path on this machine of a path of the host, running or not. Paths outside /boot, /ostree,
// /sysroot and /var are those of the booted deployment. On a host that is off, they are those of the deployment that
// would boot. A transient /etc is that of the boot, as long as the host runs. Paths that are not on the disk, such as
// /run, are not found.
func (h *Host) HostPath(path string) string {
	path = filepath.Clean("/" + path)
	for _, place := range []struct{ at, on string }{
		{"/sysroot", ""},
		{"/boot", "boot"},
		{"/ostree", "ostree"},
		{"/var", "ostree/deploy/" + OS + "/var"},
		{"/home", "ostree/deploy/" + OS + "/var/home"},
		{"/root", "ostree/deploy/" + OS + "/var/roothome"},
		{"/opt", "ostree/deploy/" + OS + "/var/opt"},
		{"/srv", "ostree/deploy/" + OS + "/var/srv"},
		{"/mnt", "ostree/deploy/" + OS + "/var/mnt"},
		{"/usr/local", "ostree/deploy/" + OS + "/var/usrlocal"},
	} {
		if path == place.at || strings.HasPrefix(path, place.at+"/") {
			return filepath.Join(h.Sysroot(), place.on, strings.TrimPrefix(path, place.at))
		}
	}
	h.mu.Lock()
	entry, leader := h.booted, h.leader
	h.mu.Unlock()
	if leader == 0 {
		if next, err := h.next(0); err == nil {
			entry = next
		}
	} else if transient, err := transientEtc(h.Sysroot(), entry); err == nil && transient && under(path, "/etc") {
		return filepath.Join("/proc", strconv.Itoa(leader), "root", path)
	}
	return filepath.Join(h.Sysroot(), entry.Dir, path)
}

func under(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// transientEtc reports whether the image of a deployment asks for an /etc that each boot makes anew.
func transientEtc(sysroot string, entry Entry) (bool, error) {
	text, err := os.ReadFile(filepath.Join(sysroot, entry.Dir, "usr/lib/ostree/prepare-root.conf"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return ostree.ParseKeyFile(string(text))["etc"]["transient"] == "true", err
}

// Boots returns how many times the host has begun to boot.
func (h *Host) Boots() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boots
}

// BootedDeployment returns the deployment of the latest boot as OS/CHECKSUM.SERIAL, "" before the first boot.
func (h *Host) BootedDeployment() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.booted.Deployment
}

// Kargs returns the kernel command line of the latest boot, as the boot loader passed it.
func (h *Host) Kargs() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.booted.Options
}

// Leader returns PID 1 of the running host as this machine sees it, 0 if the host is off.
func (h *Host) Leader() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leader
}

// PowerOn switches the host on and does not wait.
func (h *Host) PowerOn() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.on {
		return fmt.Errorf("switching on %s: it is on", h.options.Name)
	}
	h.on, h.cut, h.failure = true, false, nil
	go h.firmware()
	return nil
}

// PowerOnFallback switches the host on as PowerOn does, but with a boot loader whose counter for the default entry has
// reached zero. For this one boot, the boot loader takes the entry after the default.
func (h *Host) PowerOnFallback() error {
	h.mu.Lock()
	if !h.on {
		h.entry = 1
	}
	h.mu.Unlock()
	return h.PowerOn()
}

// Start switches the host on and waits until everything that starts at boot has started or failed.
func (h *Host) Start(ctx context.Context) error {
	next := h.Boots() + 1
	if err := h.PowerOn(); err != nil {
		return err
	}
	if err := h.WaitBoot(ctx, next); err != nil {
		return err
	}
	_, err := h.WaitRunning(ctx)
	return err
}

// WaitBoot waits until boot number n (the first is 1) or a later boot answers on D-Bus. Services may still be starting.
// WaitBoot fails when the host goes off.
func (h *Host) WaitBoot(ctx context.Context, n int) error {
	err := h.wait(ctx, func() (bool, error) {
		if h.boots >= n && h.up {
			return true, nil
		}
		if !h.on {
			return false, errors.Join(ErrOff, h.failure)
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for boot %d of %s: %w", n, h.options.Name, err)
	}
	return nil
}

// WaitRunning waits until the start-up of the present boot is over. It returns systemd's state then: running, or
// degraded when something failed.
func (h *Host) WaitRunning(ctx context.Context) (string, error) {
	stdout, stderr, _, err := h.Exec(ctx, nil, "systemctl", "is-system-running", "--wait")
	state := strings.TrimSpace(string(stdout))
	if err != nil {
		return "", err
	}
	if state != "running" && state != "degraded" {
		return state, fmt.Errorf("waiting for %s to be running: state %q: %s", h.options.Name, state, bytes.TrimSpace(stderr))
	}
	return state, nil
}

// WaitOff waits until the host is off, for any reason.
func (h *Host) WaitOff(ctx context.Context) error {
	err := h.wait(ctx, func() (bool, error) { return !h.on, nil })
	if err != nil {
		return fmt.Errorf("waiting for %s to be off: %w", h.options.Name, err)
	}
	return nil
}

// Reboot asks systemd for an orderly reboot and waits as Start does.
func (h *Host) Reboot(ctx context.Context) error {
	next := h.Boots() + 1
	// The shutdown may stop systemctl before it can report a result.
	_, stderr, exit, err := h.Exec(ctx, nil, "systemctl", "reboot", "--no-block")
	if err != nil {
		return fmt.Errorf("rebooting %s: %w", h.options.Name, err)
	}
	if exit > 0 && len(stderr) > 0 {
		return fmt.Errorf("rebooting %s: %s", h.options.Name, bytes.TrimSpace(stderr))
	}
	if err := h.WaitBoot(ctx, next); err != nil {
		return err
	}
	_, err = h.WaitRunning(ctx)
	return err
}

// PowerCut pulls the plug: everything that runs is killed at once, and the host stays off. PowerCut returns when no
// process of the host is left.
func (h *Host) PowerCut() error {
	h.mu.Lock()
	if !h.on {
		h.mu.Unlock()
		return nil
	}
	h.mu.Unlock()
	h.update(func() { h.cut = true })
	// The processes of a boot that is just beginning are not in the cgroup yet. So the cgroup is killed until the firmware
	// has seen the end.
	for {
		if err := h.machine.kill(); err != nil {
			return fmt.Errorf("pulling the plug of %s: %w", h.options.Name, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*poll)
		err := h.WaitOff(ctx)
		cancel()
		if err == nil {
			return nil
		}
	}
}

// Close pulls the plug and removes everything that belongs to the host. Further calls do nothing.
func (h *Host) Close() (err error) {
	h.closing.Do(func() {
		if err = h.PowerCut(); err != nil {
			return
		}
		if h.network != nil {
			h.network.close()
		}
		if err = h.machine.remove(); err != nil {
			err = fmt.Errorf("removing %s: %w", h.options.Name, err)
		}
	})
	return err
}

// inside runs its arguments as a child in the host's PID namespace, and ends as the child ends. The shell is needed
// because an nsenter that forks itself stops when its child is stopped. At shutdown systemd stops every process before
// it kills them. Then no process would reap the child, and so the namespace and the host would never end. The shell is
// the OS's own, not one from /usr/local.
const inside = `"$@"; s=$?; [ $s -le 128 ] || kill -$((s - 128)) $$; exit $s`

// Command returns a command that runs argv on the host as root, with a clean environment in which TERM is ours. The
// caller connects and starts the command. On a host that is off, Command fails at once with ErrOff.
//
// The command has the capabilities of the host's root, and not those of this machine: it can't set the clock or load a
// module. The host's filter of system calls does not apply. So a test must not use what only that filter refuses: the
// keyrings of the machine, and swap.
func (h *Host) Command(ctx context.Context, argv ...string) (*exec.Cmd, error) {
	leader := h.Leader()
	if leader == 0 {
		return nil, fmt.Errorf("running %s on %s: %w", argv[0], h.options.Name, ErrOff)
	}
	bounding, err := capabilities(leader)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		err = ErrOff // the host has just gone off
	}
	if err != nil {
		return nil, fmt.Errorf("running %s on %s: %w", argv[0], h.options.Name, err)
	}
	args := append([]string{"--bounding-set=" + bounding, "--", "nsenter", "--target=" + strconv.Itoa(leader),
		"--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--no-fork", "--", "/bin/sh", "-c", inside, "sh"}, argv...)
	cmd := exec.CommandContext(ctx, "setpriv", args...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "USER=root", "LANG=C.UTF-8", "TERM=" + os.Getenv("TERM")}
	return cmd, nil
}

// capabilities returns the capabilities that a process and its children can ever have, in the syntax of setpriv.
func capabilities(pid int) (string, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "", err
	}
	_, rest, _ := strings.Cut(string(status), "\nCapBnd:")
	line, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		return "", fmt.Errorf("reading the capabilities of process %d: %w", pid, err)
	}
	var words strings.Builder
	words.WriteString("-all")
	for n := range 64 {
		if set&(1<<n) != 0 {
			words.WriteString(",+cap_" + strconv.Itoa(n))
		}
	}
	return words.String(), nil
}

// Exec runs argv on the host as root, with a clean environment, and returns the output and the exit status. A failing
// program is no error. The status of a killed program is -1, as when the host goes down meanwhile.
func (h *Host) Exec(ctx context.Context, stdin io.Reader, argv ...string) (stdout, stderr []byte, exit int, err error) {
	cmd, err := h.Command(ctx, argv...)
	if err != nil {
		return nil, nil, -1, err
	}
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	// The program is a child of the process that is started here. So the whole group must be killed, and not only that
	// process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	var status *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return out.Bytes(), errs.Bytes(), -1, fmt.Errorf("running %s on %s: %w", argv[0], h.options.Name, context.Cause(ctx))
	case errors.As(err, &status):
		return out.Bytes(), errs.Bytes(), status.ExitCode(), nil
	case err != nil:
		return out.Bytes(), errs.Bytes(), -1, fmt.Errorf("running %s on %s: %w", argv[0], h.options.Name, err)
	}
	return out.Bytes(), errs.Bytes(), 0, nil
}

// Output runs argv as Exec does, and returns the standard output. A failing program is an error that has its standard
// error.
func (h *Host) Output(ctx context.Context, argv ...string) (string, error) {
	stdout, stderr, exit, err := h.Exec(ctx, nil, argv...)
	if err != nil {
		return string(stdout), err
	}
	if exit != 0 {
		return string(stdout), fmt.Errorf("running %s on %s: exit status %d: %s",
			strings.Join(argv, " "), h.options.Name, exit, bytes.TrimSpace(stderr))
	}
	return string(stdout), nil
}

// Journal returns what all boots of the host have logged so far, on a running host or not.
func (h *Host) Journal(ctx context.Context) (string, error) {
	output, err := exec.CommandContext(ctx, "journalctl", "--directory="+h.HostPath("/var/log/journal"),
		"--no-pager", "--output=short-precise").Output()
	if err != nil {
		return "", fmt.Errorf("reading the journal of %s: %w", h.options.Name, err)
	}
	return string(output), nil
}

// Console returns what the boots of the host have written to the console.
func (h *Host) Console() (string, error) {
	text, err := os.ReadFile(filepath.Join(h.dir, "console.log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("reading the console of %s: %w", h.options.Name, err)
	}
	return string(text), nil
}

// wait blocks until condition is true or fails. condition is called after every change, with the lock held.
func (h *Host) wait(ctx context.Context, condition func() (bool, error)) error {
	for {
		h.mu.Lock()
		done, err := condition()
		changed := h.changed
		h.mu.Unlock()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// update changes the state and wakes all waiting calls.
func (h *Host) update(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
	close(h.changed)
	h.changed = make(chan struct{})
}

// The exit status of nspawn when a container asks for another boot.
const exitReboot = 133

// firmware boots the entry that the boot loader's entries select, again and again until the host goes off.
func (h *Host) firmware() {
	var failure error
	for failure == nil {
		exit, err := h.boot()
		h.mu.Lock()
		cut := h.cut
		h.mu.Unlock()
		if cut || err == nil && exit == 0 {
			break
		}
		if err == nil && exit != exitReboot {
			err = fmt.Errorf("the container ended with status %d", exit)
		}
		if err != nil {
			console, _ := h.Console()
			failure = fmt.Errorf("%w; the console's end: %s", err, console[max(0, len(console)-2000):])
			continue
		}
		if !h.powerOnSelfTest() {
			break
		}
	}
	h.update(func() { h.on, h.failure = false, failure })
}

// powerOnSelfTest waits for the time that the firmware needs. It returns false when the plug is pulled meanwhile.
func (h *Host) powerOnSelfTest() bool {
	ctx, cancel := context.WithTimeout(context.Background(), h.options.Firmware)
	defer cancel()
	return h.wait(ctx, func() (bool, error) { return h.cut, nil }) != nil
}

// nspawnScript is PID 1 of the namespaces around one boot. When it or the process that started it is killed, the host
// is killed too. Every mount that is made here ends with the mount namespace.
//
// ostree freezes and thaws the file system of /boot. On an overlay the freezing fails harmlessly, and ostree falls back
// to syncfs. On the directory itself it would freeze this machine's own disk, for ever if the plug is pulled between
// the two steps.
//
// A deployment whose image asks for a transient /etc gets one as ostree's initramfs makes it: an overlay of the image's
// /usr/etc in memory. The name and the ID of the machine, which are in that /etc from the start, stand for what an
// initramfs or the kernel arguments of a real machine set.
const nspawnScript = `
set -e
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /run/systemd
mount -t tmpfs -o mode=0755 lab /run/systemd
mkdir /run/systemd/lab /run/systemd/remote
mount --rbind "$1" /run/systemd/lab
mount --rbind "$2" /run/systemd/remote
mount -t tmpfs lab /tmp
cd /run/systemd/lab
mount -t overlay -o lowerdir=empty,upperdir=sysroot/boot,workdir=boot.work overlay boot
cd /
shift 2
if [ "$1" ]; then
	mkdir /run/systemd/legacy
	for controllers in $1; do
		mkdir "/run/systemd/legacy/$controllers"
		options=$controllers
		[ "$controllers" != systemd ] || options=none,name=systemd
		mount -t cgroup -o "$options" cgroup "/run/systemd/legacy/$controllers"
	done
	mkdir /run/systemd/legacy/unified
fi
shift
if [ "$1" ]; then
	mkdir -p /run/ostree
	mount -t tmpfs -o mode=0755 lab /run/ostree
	mkdir -p /run/ostree/transient-etc/upper /run/ostree/transient-etc/work /run/ostree/transient-etc/etc
	for name in machine-id hostname; do
		cp -p "$1/etc/$name" /run/ostree/transient-etc/upper/
	done
	cd /run/ostree/transient-etc
	mount -t overlay -o "lowerdir=$1/usr/etc,upperdir=/run/ostree/transient-etc/upper,workdir=work" overlay etc
	cd /
fi
shift
if [ -e /proc/self/fd/3 ]; then
	: >/run/systemd/network-namespace
	mount --bind /proc/self/fd/3 /run/systemd/network-namespace
	exec 3>&-
fi
systemd-nspawn "$@" &
wait $! || exit $?
`

// boot boots the default entry, and returns the container's exit status when the container ends.
func (h *Host) boot() (int, error) {
	h.mu.Lock()
	number := h.entry
	h.entry = 0
	h.mu.Unlock()
	entry, err := h.next(number)
	if err != nil {
		return 0, err
	}
	console, err := os.OpenFile(filepath.Join(h.dir, "console.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer console.Close()
	if err := h.machine.makeCgroup(); err != nil {
		return 0, err
	}
	defer h.machine.removeCgroup()
	cgroup, err := os.Open(h.machine.cgroup)
	if err != nil {
		return 0, err
	}
	defer cgroup.Close()

	cmd, err := h.container(entry)
	if err != nil {
		return 0, err
	}
	cmd.Stdout, cmd.Stderr = console, console
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig:   syscall.SIGKILL,
		UseCgroupFD: true,
		CgroupFD:    int(cgroup.Fd()),
		Setpgid:     true,
	}
	// When the thread that started a process ends, the kernel treats this as the death of the parent. So the thread stays.
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			// ProcessState has everything that the error would have.
			_ = cmd.Wait()
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		return 0, fmt.Errorf("starting the container: %w", err)
	}
	h.update(func() { h.boots, h.booted = h.boots+1, entry })
	h.follow(ended)
	<-ended
	h.update(func() { h.leader, h.up = 0, false })
	if err := h.machine.waitEmpty(); err != nil {
		return 0, err
	}
	return cmd.ProcessState.ExitCode(), nil
}

// container returns the command that boots an entry.
func (h *Host) container(entry Entry) (*exec.Cmd, error) {
	const here = "/run/systemd/lab"
	disk, root := here+"/sysroot", here+"/sysroot/"+entry.Dir
	bind := "--bind-ro="
	if h.options.WritableSysroot {
		bind = "--bind="
	}
	var legacy, controllers []string
	if h.base.containers {
		var err error
		if legacy, err = h.machine.makeLegacy(); err != nil {
			return nil, err
		}
		for _, dir := range legacy {
			controllers = append(controllers, filepath.Base(filepath.Dir(dir)))
		}
	}
	transient := ""
	if etc, err := transientEtc(h.Sysroot(), entry); err != nil {
		return nil, err
	} else if etc {
		transient = root
	}
	args := []string{"unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--cgroup", "--",
		"sh", "-c", nspawnScript, "sh", h.dir, h.base.remote, strings.Join(controllers, " "), transient,
		"--quiet", "--boot", "--register=no", "--keep-unit", "--console=pipe",
		"--link-journal=no", "--resolv-conf=off", "--timezone=off",
		"--machine=" + h.options.Hostname, "--directory=" + root,
		"--bind=" + disk + "/ostree/deploy/" + entry.OS() + "/var:/var:norbind",
		"--bind-ro=" + root + "/usr:/usr:norbind",
		"--bind-ro=/run/systemd/remote:" + guestRemote,
	}
	if h.options.WithoutOSTree {
		args = append(args, "--bind="+here+"/boot:/boot")
	} else {
		args = append(args, bind+disk+":/sysroot:norbind", bind+here+"/boot:/boot",
			"--bind-ro="+here+"/booted:/run/ostree-booted")
	}
	if transient != "" {
		args = append(args, "--bind=/run/ostree/transient-etc/etc:/etc")
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "SYSTEMD_NSPAWN_LOCK=0", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1"}
	var inherited []*os.File
	if h.network != nil {
		// As with --private-network the host controls its network, including sysctls.
		args = append(args, "--network-namespace-path=/run/systemd/network-namespace", "--capability=CAP_NET_ADMIN")
		env = append(env, "SYSTEMD_NSPAWN_API_VFS_WRITABLE=network")
		inherited = append(inherited, h.network.namespace)
	}
	if h.options.Fuse {
		args = append(args, "--bind=/dev/fuse")
	}
	if h.base.containers {
		// runc makes a keyring for each container, and its devices' rules.
		args = append(args, "--system-call-filter=add_key keyctl bpf", "--capability=CAP_BPF,CAP_PERFMON",
			"--bind=/run/systemd/legacy:/run/lab/cgroup")
		args = slices.Concat([]string{"sh", "-euc", intoCgroups, "sh", strings.Join(legacy, " ")}, args)
	}
	args = append(args, "--")
	args = append(args, splitOptions(entry.Options)...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.ExtraFiles = inherited
	cmd.Env = env
	return cmd, nil
}

// follow finds the leader of the boot, and waits until the boot answers on D-Bus.
func (h *Host) follow(ended <-chan struct{}) {
	leader := 0
	for {
		if leader == 0 {
			if leader = h.machine.findLeader(); leader != 0 {
				h.update(func() { h.leader = leader })
			}
		}
		if leader != 0 {
			bus, err := net.Dial("unix", fmt.Sprintf("/proc/%d/root/run/dbus/system_bus_socket", leader))
			if err == nil {
				bus.Close()
				h.update(func() { h.up = true })
				return
			}
		}
		select {
		case <-ended:
			return
		case <-time.After(poll):
		}
	}
}
