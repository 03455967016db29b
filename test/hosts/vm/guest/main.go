// SPDX-License-Identifier: Apache-2.0

// Command guest is the lab's program inside a virtual machine.
//
//	guest serve             runs the commands that the lab sends over the serial port, until the machine goes down
//	guest snapshot PATH...  prints {PATH: a picture of the tree below PATH}, without paths that do not exist
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/test/hosts/vm/wire"
	"github.com/noderefit/noderefit/test/lab/snapshot"
)

// portName is the lab's name for the serial port.
const portName = "noderefit"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "serve":
		return serve()
	case len(args) > 1 && args[0] == "snapshot":
		return pictures(args[1:])
	default:
		return errors.New("usage: guest serve, or guest snapshot and paths")
	}
}

func pictures(paths []string) error {
	out := map[string]snapshot.Tree{}
	for _, path := range paths {
		tree, err := snapshot.Take(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		out[path] = tree
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

// port is the serial port. Reads and writes block in the kernel; an empty read means that the lab is not connected.
type port int

func openPort() (port, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return 0, err
		}
		if strings.TrimSpace(string(text)) == portName {
			for {
				fd, err := unix.Open("/dev/"+filepath.Base(filepath.Dir(name)), unix.O_RDWR|unix.O_CLOEXEC, 0)
				if !errors.Is(err, unix.EBUSY) {
					return port(fd), err
				}
				<-time.After(20 * time.Millisecond) // after a soft reboot the guest of the boot before may still be ending
			}
		}
	}
	return 0, fmt.Errorf("opening port %s: there is none", portName)
}

func (p port) Read(buf []byte) (int, error) {
	for {
		n, err := unix.Read(int(p), buf)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n > 0:
			return n, nil
		default:
			<-time.After(20 * time.Millisecond) // nothing announces a connection
		}
	}
}

func (p port) Write(data []byte) (int, error) {
	for done := 0; done < len(data); {
		n, err := unix.Write(int(p), data[done:])
		if err != nil && !errors.Is(err, unix.EINTR) {
			return done, err
		}
		done += max(n, 0)
	}
	return len(data), nil
}

// server runs commands. A program that a command starts may outlive the command, and is not stopped at shutdown.
type server struct {
	boot wire.Boot
	out  sync.Mutex
	port port

	mu       sync.Mutex
	commands map[uint32]*command
}

type command struct {
	stdin io.WriteCloser
	pid   int
}

// searchPath is the PATH of guest and of the commands that it starts.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func serve() error {
	if err := os.Setenv("PATH", searchPath); err != nil {
		return err
	}
	boot, err := wire.NewBoot()
	if err != nil {
		return err
	}
	p, err := openPort()
	if err != nil {
		return err
	}
	s := &server{boot: boot, port: p, commands: map[uint32]*command{}}
	if err := s.send(wire.Hello, 0, nil); err != nil {
		return err
	}
	for in := wire.NewReader(p); ; {
		m, err := in.Next()
		if err != nil {
			return err
		}
		if err := s.take(m); err != nil {
			return err
		}
	}
}

func (s *server) send(kind wire.Kind, number uint32, data []byte) error {
	s.out.Lock()
	defer s.out.Unlock()
	return wire.Write(s.port, wire.Message{Boot: s.boot, Kind: kind, Number: number, Data: data})
}

func (s *server) take(m wire.Message) error {
	if m.Kind == wire.Ping {
		return s.send(wire.Hello, 0, nil)
	}
	if m.Boot != s.boot {
		return nil
	}
	s.mu.Lock()
	c := s.commands[m.Number]
	s.mu.Unlock()
	switch {
	case m.Kind == wire.Exec:
		if err := s.start(m); err != nil {
			return errors.Join(s.send(wire.Err, m.Number, []byte(err.Error()+"\n")),
				s.send(wire.Exit, m.Number, []byte("127")))
		}
	case c == nil: // the command has ended
	case m.Kind == wire.Kill:
		_ = syscall.Kill(-c.pid, syscall.SIGKILL)
	case m.Kind == wire.In && len(m.Data) == 0:
		_ = c.stdin.Close()
	case m.Kind == wire.In:
		_, _ = c.stdin.Write(m.Data) // a command need not read its input
	}
	return nil
}

func (s *server) start(m wire.Message) error {
	var what wire.Command
	if err := json.Unmarshal(m.Data, &what); err != nil {
		return err
	}
	if len(what.Argv) == 0 {
		return errors.New("no command")
	}
	cmd := exec.Command(what.Argv[0], what.Argv[1:]...)
	cmd.Env = []string{"PATH=" + searchPath, "HOME=/root", "USER=root", "LANG=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	cmd.Stdout = &stream{s, wire.Out, m.Number}
	cmd.Stderr = &stream{s, wire.Err, m.Number}
	// A program that the command leaves running may hold the output open.
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	s.mu.Lock()
	s.commands[m.Number] = &command{stdin, cmd.Process.Pid}
	s.mu.Unlock()
	go func() {
		_ = cmd.Wait() // the exit status has the failure
		s.mu.Lock()
		delete(s.commands, m.Number)
		s.mu.Unlock()
		if err := s.send(wire.Exit, m.Number, []byte(strconv.Itoa(cmd.ProcessState.ExitCode()))); err != nil {
			fmt.Fprintln(os.Stderr, "guest:", err)
		}
	}()
	return nil
}

// stream sends the output of a command.
type stream struct {
	server *server
	kind   wire.Kind
	number uint32
}

func (w *stream) Write(data []byte) (int, error) {
	for done := 0; done < len(data); {
		piece := data[done:min(len(data), done+wire.MaxData)]
		if err := w.server.send(w.kind, w.number, piece); err != nil {
			return done, err
		}
		done += len(piece)
	}
	return len(data), nil
}
