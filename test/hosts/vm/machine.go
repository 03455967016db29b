// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/noderefit/noderefit/test/hosts/vm/wire"
	"github.com/noderefit/noderefit/test/lab"
)

// ErrDown is the error of calls that need a running machine, when the machine is off or between two boots.
var ErrDown = errors.New("the machine does not run")

// BootLimit is far longer than a boot or an orderly reboot takes.
const BootLimit = 15 * time.Minute

// slots limit how many machines run at a time: one for each processor that the tests may use.
var slots = make(chan struct{}, runtime.GOMAXPROCS(0))

// Machine is one virtual machine. A Machine is safe for concurrent use, but only one goroutine should switch it on and
// off.
type Machine struct {
	image *Image
	name  string
	dir   string
	disk  *disk
	from  *Saved // the state that the next start resumes, nil to boot
	// clock is the time that the hardware clock shows at the next start, zero for the right time.
	clock time.Time

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced whenever something below changes
	power    *power        // nil while it is off
	boot     wire.Boot     // of the latest boot that sent a message
	up       bool          // that boot still runs
	boots    int
	number   uint32
	commands map[uint32]*command
}

// power has what runs while a machine is on.
type power struct {
	qemu     *exec.Cmd
	ended    <-chan struct{} // closed when QEMU has ended
	disk     net.Listener
	port     net.Conn
	sending  sync.Mutex
	monitor  *monitor
	errors   bytes.Buffer // QEMU's messages
	diskDone chan error
}

// command is a command that runs in the machine.
type command struct {
	exit chan int // gets one status; closed without a status when the machine went down

	mu             sync.Mutex
	stdout, stderr io.Writer
}

// write passes on what the machine sends, until the caller of the command stops waiting.
func (c *command) write(kind wire.Kind, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.stdout
	if kind == wire.Err {
		w = c.stderr
	}
	_, _ = w.Write(data)
}

func (c *command) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stdout, c.stderr = io.Discard, io.Discard
}

// Saved is a machine that was stopped while it ran: its memory and disk.
type Saved struct {
	memory string // file
	disk   map[int64]*block
}

// New makes a machine that is off. The machine is fresh, or resumes the state of a saved machine. Close removes it.
func (i *Image) New(name string, from *Saved) (*Machine, error) {
	var durable map[int64]*block
	if from != nil {
		durable = from.disk
	}
	return i.with(name, from, durable, nil)
}

// Off makes a machine that is off. Its disk, cache included, is as the recorded one was when a request came.
func (i *Image) Off(name string, r *recording, request int) (*Machine, error) {
	durable, cached := r.before(request)
	return i.with(name, nil, durable, cached)
}

func (i *Image) with(name string, from *Saved, durable, cached map[int64]*block) (*Machine, error) {
	base, err := os.Open(filepath.Join(i.dir, "disk.img"))
	if err != nil {
		return nil, fmt.Errorf("making machine %s: %w", name, err)
	}
	d, err := newDisk(base, durable, cached)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making machine %s: %w", name, err), base.Close())
	}
	// The path of a socket must be short.
	dir, err := os.MkdirTemp("", "noderefit-vm-")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making machine %s: %w", name, err), base.Close())
	}
	m := &Machine{image: i, name: name, dir: dir, disk: d, from: from, changed: make(chan struct{}),
		commands: map[uint32]*command{}}
	if err := i.options.variables(m.at("variables")); err != nil {
		return nil, errors.Join(fmt.Errorf("making machine %s: %w", name, err), m.Close())
	}
	return m, nil
}

// at is the path of a file of the machine's own on this computer.
func (m *Machine) at(name string) string { return filepath.Join(m.dir, name) }

// Booted makes a machine that has just booted, and switches it on.
func (i *Image) Booted(ctx context.Context, name string) (*Machine, error) {
	return i.Resume(ctx, name, i.booted)
}

// Resume makes a machine that resumes the state of a saved machine, and switches it on.
func (i *Image) Resume(ctx context.Context, name string, from *Saved) (*Machine, error) {
	m, err := i.New(name, from)
	if err != nil {
		return nil, err
	}
	if err := m.Start(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// update changes the state and wakes all waiting calls.
func (m *Machine) update(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	close(m.changed)
	m.changed = make(chan struct{})
}

// wait blocks until condition is true or fails. condition is called after every change, with the lock held.
func (m *Machine) wait(ctx context.Context, condition func() (bool, error)) error {
	for {
		m.mu.Lock()
		done, err := condition()
		changed := m.changed
		m.mu.Unlock()
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

// PowerOn switches the machine on, and does not wait for the boot. It waits while the largest number of machines runs.
func (m *Machine) PowerOn(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("switching on %s: %w", m.name, context.Cause(ctx))
	case slots <- struct{}{}:
	}
	p, err := m.launch(ctx)
	if err != nil {
		<-slots
		return fmt.Errorf("switching on %s: %w", m.name, err)
	}
	go m.listen(p)
	return nil
}

func (m *Machine) launch(ctx context.Context) (_ *power, err error) {
	p := &power{diskDone: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.cut())
		}
	}()
	var config net.ListenConfig
	if p.disk, err = config.Listen(ctx, "unix", m.at("disk")); err != nil {
		return nil, err
	}
	go func() {
		conn, err := p.disk.Accept()
		if err == nil {
			err = serveDisk(conn, m.disk)
		}
		p.diskDone <- err
	}()
	args := slices.Concat(m.image.accel, hardware, m.image.options.firmware(m.at("variables")))
	args = append(args, "-name", m.name,
		"-blockdev", "driver=nbd,node-name=disk,server.type=unix,server.path="+m.at("disk"),
		"-device", "virtio-blk-pci,drive=disk,bootindex=0",
		"-chardev", "file,id=console,append=on,path="+m.at("console"), "-serial", "chardev:console",
		"-chardev", "socket,id=port,server=on,wait=off,path="+m.at("port"),
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=port,name=noderefit",
		"-qmp", "unix:"+m.at("monitor")+",server=on,wait=off")
	if !m.clock.IsZero() {
		args = append(args, "-rtc", "base="+m.clock.UTC().Format("2006-01-02T15:04:05"))
	}
	if m.from != nil {
		args = append(args, "-incoming", "exec:cat '"+m.from.memory+"'")
	}
	p.qemu = exec.Command(emulator, args...)
	p.qemu.Stderr = &p.errors
	if p.ended, err = startProcess(p.qemu); err != nil {
		p.ended = nil
		return nil, err
	}
	if p.port, err = p.dial(ctx, m.at("port")); err != nil {
		return nil, err
	}
	conn, err := p.dial(ctx, m.at("monitor"))
	if err != nil {
		return nil, err
	}
	if p.monitor, err = newMonitor(conn, func(name string) {
		if name == "RESET" {
			m.update(func() { m.down(p) })
		}
	}); err != nil {
		return nil, err
	}
	if m.from != nil {
		if _, err := p.monitor.until(ctx, "query-status", "inmigrate"); err != nil {
			return nil, err
		}
		if err := p.monitor.do("cont", nil, nil); err != nil {
			return nil, err
		}
		if err := p.send(wire.Message{Kind: wire.Ping}); err != nil {
			return nil, err
		}
	}
	m.update(func() { m.power = p })
	return p, nil
}

// dial connects to one of QEMU's sockets as soon as the socket exists.
func (p *power) dial(ctx context.Context, path string) (net.Conn, error) {
	for {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "unix", path)
		if err == nil {
			return conn, nil
		}
		select {
		case <-p.ended:
			return nil, fmt.Errorf("QEMU ended: %s", bytes.TrimSpace(p.errors.Bytes()))
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (p *power) send(message wire.Message) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	return wire.Write(p.port, message)
}

// cut kills QEMU, and returns when all of it has ended.
func (p *power) cut() error {
	var err error
	if p.ended != nil {
		err = p.qemu.Process.Kill()
		if errors.Is(err, os.ErrProcessDone) {
			err = nil
		}
		<-p.ended
	}
	// QEMU's ends of the connections are already closed.
	if p.disk != nil {
		_ = p.disk.Close()
	}
	if p.port != nil {
		_ = p.port.Close()
	}
	if p.monitor != nil {
		_ = p.monitor.conn.Close()
	}
	return err
}

// down ends the present boot, with the lock held.
func (m *Machine) down(p *power) {
	m.up = false
	for number, c := range m.commands {
		close(c.exit)
		delete(m.commands, number)
	}
	// A write could block for ever, because the reader may be gone.
	_ = p.port.SetWriteDeadline(time.Now())
}

// listen reads the machine's messages until the machine is off.
func (m *Machine) listen(p *power) {
	for in := wire.NewReader(p.port); ; {
		message, err := in.Next()
		if err != nil {
			break
		}
		m.take(p, message)
	}
	<-p.ended
	<-slots
	m.update(func() {
		m.down(p)
		m.power = nil
	})
}

func (m *Machine) take(p *power, message wire.Message) {
	m.mu.Lock()
	c := m.commands[message.Number]
	current := m.up && m.boot == message.Boot
	m.mu.Unlock()
	switch {
	case message.Kind == wire.Hello && !current:
		m.update(func() {
			m.down(p)
			_ = p.port.SetWriteDeadline(time.Time{})
			if m.boot != message.Boot {
				m.boots++
			}
			m.boot, m.up = message.Boot, true
		})
	case c == nil || !current:
	case message.Kind == wire.Out, message.Kind == wire.Err:
		c.write(message.Kind, message.Data)
	case message.Kind == wire.Exit:
		status, err := strconv.Atoi(string(message.Data))
		if err != nil {
			status = -1
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.commands[message.Number] == c {
			delete(m.commands, message.Number)
			c.exit <- status
		}
	}
}

// Start switches the machine on and waits until everything that starts at boot has started or failed.
func (m *Machine) Start(ctx context.Context) error {
	next, resumed := m.Boots()+1, m.from != nil
	if err := m.PowerOn(ctx); err != nil {
		return err
	}
	if err := m.WaitBoot(ctx, next); err != nil {
		return err
	}
	m.from = nil
	if resumed { // the clock of a resumed machine shows the time of the saving
		_, err := m.Output(ctx, "date", "-u", "-s", "@"+strconv.FormatInt(time.Now().Unix(), 10))
		return err
	}
	_, err := m.WaitRunning(ctx)
	return err
}

// Boots returns how many times the machine was seen to boot, or to resume.
func (m *Machine) Boots() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boots
}

// WaitBoot waits until boot number n (the first is 1) or a later boot takes commands. Services may still be starting.
// WaitBoot fails when the machine goes off.
func (m *Machine) WaitBoot(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, BootLimit, fmt.Errorf("it did not come up within %v", BootLimit))
	defer cancel()
	err := m.wait(ctx, func() (bool, error) {
		if m.power == nil {
			return false, ErrDown
		}
		return m.boots >= n && m.up, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for boot %d of %s: %w; its console ends: %s", n, m.name, err, m.consoleEnd())
	}
	return nil
}

// WaitRunning waits until the start-up of the present boot is over. It returns systemd's state then: running, or
// degraded when something failed.
func (m *Machine) WaitRunning(ctx context.Context) (string, error) {
	var stdout, stderr bytes.Buffer
	if _, err := m.Run(ctx, nil, &stdout, &stderr, "systemctl", "is-system-running", "--wait"); err != nil {
		return "", err
	}
	state := strings.TrimSpace(stdout.String())
	if state != "running" && state != "degraded" {
		return state, fmt.Errorf("waiting for %s to be running: state %q: %s", m.name, state, bytes.TrimSpace(stderr.Bytes()))
	}
	return state, nil
}

// Reboot asks systemd for an orderly reboot and waits as Start does.
func (m *Machine) Reboot(ctx context.Context) error {
	next := m.Boots() + 1
	if _, err := m.Run(ctx, nil, io.Discard, io.Discard, "systemctl", "reboot", "--no-block"); err != nil {
		return fmt.Errorf("rebooting %s: %w", m.name, err)
	}
	if err := m.WaitBoot(ctx, next); err != nil {
		return err
	}
	_, err := m.WaitRunning(ctx)
	return err
}

// Reset acts as the reset button, or as a watchdog: the machine starts again at its firmware, in any state. The content
// of the disk stays.
func (m *Machine) Reset() error {
	m.mu.Lock()
	p := m.power
	m.mu.Unlock()
	if p == nil {
		return fmt.Errorf("resetting %s: %w", m.name, ErrDown)
	}
	if err := p.monitor.do("system_reset", nil, nil); err != nil {
		return fmt.Errorf("resetting %s: %w", m.name, err)
	}
	return nil
}

// Cut is the result of a power cut for the disk.
type Cut struct {
	Unflushed, Lost int // blocks that were written and not flushed, and how many of them are lost
}

// Cut kills the machine at once. The disk loses what was not flushed: everything, or with a source a random part.
func (m *Machine) Cut(source *rand.Rand) (Cut, error) {
	m.mu.Lock()
	p := m.power
	m.mu.Unlock()
	if p != nil {
		if err := p.cut(); err != nil {
			return Cut{}, fmt.Errorf("cutting the power of %s: %w", m.name, err)
		}
		if err := m.wait(context.Background(), func() (bool, error) { return m.power != p, nil }); err != nil {
			return Cut{}, err
		}
		if err := <-p.diskDone; err != nil && !errors.Is(err, net.ErrClosed) {
			return Cut{}, fmt.Errorf("cutting the power of %s: %w", m.name, err)
		}
	}
	unflushed, lost := m.disk.lose(source)
	return Cut{unflushed, lost}, nil
}

// Silence makes the disk serve no write request from number n on, counted from the disk's first request (see Traffic).
// The returned channel is closed when request n comes. From then on the machine does nothing that lasts.
func (m *Machine) Silence(n int) <-chan struct{} { return m.disk.silence(n) }

// Record has the disk record what it serves until stop is called.
func (m *Machine) Record() (stop func() *recording) { return m.disk.record() }

// Traffic returns what the machine has written since it was made.
func (m *Machine) Traffic() Traffic { return m.disk.traffic() }

// Close switches the machine off and removes it.
func (m *Machine) Close() error {
	_, err := m.Cut(nil)
	return errors.Join(err, m.disk.base.Close(), lab.RemoveTree(m.dir))
}

// Run runs argv in the machine as root, with a clean environment, and returns the exit status. A failing program is no
// error. The status of a killed program is -1, as when the machine goes down meanwhile.
func (m *Machine) Run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, argv ...string) (int, error) {
	fail := func(err error) (int, error) {
		return -1, fmt.Errorf("running %s on %s: %w", argv[0], m.name, err)
	}
	what, err := json.Marshal(wire.Command{Argv: argv})
	if err != nil {
		return fail(err)
	}
	c := &command{stdout: stdout, stderr: stderr, exit: make(chan int, 1)}
	defer c.leave()
	m.mu.Lock()
	m.number++
	p, boot, number, up := m.power, m.boot, m.number, m.up
	if up {
		m.commands[number] = c
	}
	m.mu.Unlock()
	if !up {
		return fail(ErrDown)
	}
	send := func(kind wire.Kind, data []byte) error {
		return p.send(wire.Message{Boot: boot, Kind: kind, Number: number, Data: data})
	}
	err = send(wire.Exec, what)
	if stdin != nil {
		for buf := make([]byte, wire.MaxData); err == nil; {
			var n int
			if n, err = stdin.Read(buf); n > 0 {
				err = errors.Join(err, send(wire.In, buf[:n]))
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err == nil {
		err = send(wire.In, nil)
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, net.ErrClosed) {
		return fail(err)
	}
	select {
	case status, ok := <-c.exit:
		if !ok {
			return -1, nil
		}
		return status, nil
	case <-ctx.Done():
		_ = send(wire.Kill, nil)
		return fail(context.Cause(ctx))
	}
}

// Output runs argv as Run does, and returns the standard output. A failing program is an error that has its standard
// error.
func (m *Machine) Output(ctx context.Context, argv ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	exit, err := m.Run(ctx, nil, &stdout, &stderr, argv...)
	if err == nil && exit != 0 {
		err = fmt.Errorf("running %s on %s: exit status %d: %s", strings.Join(argv, " "), m.name, exit,
			bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), err
}

// Put writes a file of the machine, with a rename and without a flush.
func (m *Machine) Put(ctx context.Context, path string, data []byte, perm os.FileMode) error {
	var stderr bytes.Buffer
	const script = `mkdir -p "$(dirname "$1")" && cat >"$1.new" && chmod "$2" "$1.new" && mv "$1.new" "$1"`
	exit, err := m.Run(ctx, bytes.NewReader(data), io.Discard, &stderr,
		"sh", "-c", script, "sh", path, strconv.FormatUint(uint64(perm), 8))
	if err == nil && exit != 0 {
		err = fmt.Errorf("writing %s on %s: exit status %d: %s", path, m.name, exit, bytes.TrimSpace(stderr.Bytes()))
	}
	return err
}

// Read reads a file of the machine.
func (m *Machine) Read(ctx context.Context, path string) (string, error) {
	return m.Output(ctx, "cat", path)
}

// Console returns what the boots of the machine have written to the console.
func (m *Machine) Console() (string, error) {
	text, err := os.ReadFile(m.at("console"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("reading the console of %s: %w", m.name, err)
	}
	return string(text), nil
}

func (m *Machine) consoleEnd() string {
	text, err := m.Console()
	if err != nil {
		return err.Error()
	}
	return text[max(0, len(text)-2000):]
}
