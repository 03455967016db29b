// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/noderefit/noderefit/test/lab"
)

const emulator = "qemu-system-x86_64"

// emulation works on every machine. cmpxchg16b is left out because QEMU 7.2 sometimes emulates it wrongly, and then the
// kernel panics. With rdrand the kernel has its random numbers at once. Without it, each boot needs a second or two for
// them. QEMU keeps what it has translated until its buffer is full, and a page that holds code of an earlier stage of
// the boot is slow to write. The usual buffer of up to 1 GiB is never full: a kernel that is decompressed over the boot
// loader's code then comes at 110 KB/s. A small buffer forgets such code, and holds all that a kernel runs.
var emulation = []string{"-accel", "tcg,tb-size=128", "-cpu", "qemu64,-cx16,+rdrand"}

var virtualisation = []string{"-accel", "kvm", "-cpu", "host"}

// hardware is the machine without its processor. Without graphics the firmware has its screen on the console. So the
// console shows the boot loader too, and the prompt of one that finds nothing to boot.
var hardware = []string{"-machine", "q35,graphics=off", "-m", "512", "-smp", "1", "-display", "none", "-vga", "none",
	"-no-user-config", "-nodefaults", "-device", "virtio-rng-pci"}

// ovmf is where Debian has UEFI firmware for virtual machines. Before a file's name comes what it is for: the code, or
// the variables of a machine that has never run.
const ovmf = "/usr/share/OVMF/OVMF_"

// firmware returns the arguments for the firmware. Of UEFI the variables are in a file of the machine's own, as in its
// flash memory.
func (o Options) firmware(variables string) []string {
	if o.Loader != SystemdBoot {
		return nil
	}
	return []string{"-drive", "if=pflash,format=raw,readonly=on,file=" + ovmf + "CODE_4M.fd",
		"-drive", "if=pflash,format=raw,file=" + variables}
}

// variables makes the file of the firmware's variables, where the firmware is UEFI.
func (o Options) variables(path string) error {
	if o.Loader != SystemdBoot {
		return nil
	}
	fresh, err := os.ReadFile(ovmf + "VARS_4M.fd")
	if err != nil {
		return err
	}
	return os.WriteFile(path, fresh, 0o600)
}

// probePatience is how long a kernel may take, with hardware virtualisation, to report that it runs.
const probePatience = 10 * time.Second

// accelerator returns the arguments with which machines run on this computer. A /dev/kvm alone proves little, because
// some can't boot a stock kernel. So accelerator boots one.
func (i *Image) accelerator(ctx context.Context) (accel []string, err error) {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return emulation, nil
	}
	dir, err := os.MkdirTemp("", "noderefit-vm-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lab.RemoveTree(dir)) }()
	console := filepath.Join(dir, "console")
	probe, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	args := append(append(append([]string{}, virtualisation...), hardware...),
		"-kernel", filepath.Join(i.dir, "vmlinuz"), "-initrd", filepath.Join(i.dir, "initramfs.img"),
		"-append", "console=ttyS0 quiet lab.probe", "-serial", "file:"+console, "-no-reboot")
	cmd := exec.CommandContext(probe, emulator, args...)
	cmd.Stderr = giveUp(cancel)
	// QEMU ends by itself or is killed. In both cases its output decides.
	_ = cmd.Run()
	text, err := os.ReadFile(console)
	if err == nil && strings.Contains(string(text), "noderefit: the kernel runs") {
		return virtualisation, nil
	}
	fmt.Fprintln(i.log, "vm: /dev/kvm boots no kernel; machines are emulated")
	return emulation, nil
}

// giveUp reads QEMU's output, and is called when QEMU reports that the virtual processor is stuck. QEMU does not end
// then, but waits for a debugger.
type giveUp func()

func (g giveUp) Write(data []byte) (int, error) {
	if bytes.Contains(data, []byte("KVM internal error")) {
		g()
	}
	return len(data), nil
}

// startProcess starts a program that ends with this process, however this process ends. The returned channel is closed
// when the program has ended.
func startProcess(cmd *exec.Cmd) (<-chan struct{}, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ended, started := make(chan struct{}), make(chan error)
	go func() {
		// The signal comes when the thread that started the program ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the caller asks for the state
		}
	}()
	return ended, <-started
}

// monitor is QEMU's control interface, QMP.
type monitor struct {
	conn  net.Conn
	mu    sync.Mutex
	reply chan monitorReply
	event func(name string)
}

type monitorReply struct {
	Return json.RawMessage `json:"return"`
	Event  string          `json:"event"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
}

// newMonitor uses a connection to QMP. It calls event for each event, one after the other.
func newMonitor(conn net.Conn, event func(name string)) (*monitor, error) {
	m := &monitor{conn: conn, reply: make(chan monitorReply), event: event}
	in := bufio.NewScanner(conn)
	in.Buffer(nil, 1<<20)
	if !in.Scan() { // QEMU's greeting
		return nil, errors.Join(errors.New("connecting to QEMU: it went away"), in.Err())
	}
	go func() {
		defer close(m.reply)
		for in.Scan() {
			var r monitorReply
			switch err := json.Unmarshal(in.Bytes(), &r); {
			case err != nil:
				return
			case r.Event != "":
				m.event(r.Event)
			default:
				m.reply <- r
			}
		}
	}()
	return m, m.do("qmp_capabilities", nil, nil)
}

// do sends a command and waits for its answer, which is decoded into out.
func (m *monitor) do(command string, arguments map[string]any, out any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(m.conn).Encode(request); err != nil {
		return fmt.Errorf("asking QEMU to %s: %w", command, err)
	}
	r, ok := <-m.reply
	switch {
	case !ok:
		return fmt.Errorf("asking QEMU to %s: %w", command, net.ErrClosed)
	case r.Error != nil:
		return fmt.Errorf("asking QEMU to %s: %s", command, r.Error.Desc)
	case out != nil:
		return json.Unmarshal(r.Return, out)
	}
	return nil
}

// until asks for a status until the status is not one of passing, and returns it.
func (m *monitor) until(ctx context.Context, query string, passing ...string) (string, error) {
	for {
		var answer struct {
			Status string `json:"status"`
		}
		if err := m.do(query, nil, &answer); err != nil {
			return "", err
		}
		passes := answer.Status == ""
		for _, status := range passing {
			passes = passes || status == answer.Status
		}
		if !passes {
			return answer.Status, nil
		}
		select {
		case <-ctx.Done():
			return answer.Status, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
