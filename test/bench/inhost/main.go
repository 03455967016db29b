// SPDX-License-Identifier: Apache-2.0

// Command inhost is the benchmark's part on the host. "measure ARGV" runs a program and prints what it cost, the
// host included; "start ARGV" prints the program's own part alone. "apply FILE" brings the host to a configuration, and
// "verify FILE" compares it with one, the way that a naive agent would.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) >= 2 {
		switch args[0] {
		case "measure":
			return measure(args[1:])
		case "start":
			return start(args[1:])
		case "apply", "verify":
			return naive(args[0], args[1])
		}
	}
	return fmt.Errorf("usage: inhost measure ARGV... | start ARGV... | apply FILE | verify FILE")
}

// Cost is what one run of a program cost.
type Cost struct {
	Wall time.Duration `json:"wall"`
	CPU  time.Duration `json:"cpu"` // of the program and its children
	// Host is the CPU time of everything else that runs on the host: systemd and what it starts to read its units.
	Host time.Duration `json:"host"`
	// RSS is the largest resident set of one process, in bytes; never less than this program's own.
	RSS int64 `json:"rss"`
}

// start runs a program that is over at once, and prints its cost.
func start(argv []string) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	begun := time.Now()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("running %s: %w", strings.Join(argv, " "), err)
	}
	return tell(cmd, Cost{Wall: time.Since(begun)})
}

// tell prints what a command that has ended cost.
func tell(cmd *exec.Cmd, c Cost) error {
	c.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	c.RSS = cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss * 1024
	return json.NewEncoder(os.Stdout).Encode(c)
}

// measure starts from a disk with nothing left to write.
func measure(argv []string) error {
	syscall.Sync()
	before, err := hostCPU()
	if err != nil {
		return err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("running %s: %w", strings.Join(argv, " "), err)
	}
	wall := time.Since(start)
	after, err := hostCPU()
	if err != nil {
		return err
	}
	return tell(cmd, Cost{Wall: wall, Host: after - before})
}

// hostCPU reads the control group of the host. Whatever entered the host's namespaces from outside is in another one.
func hostCPU() (time.Duration, error) {
	text, err := os.ReadFile("/sys/fs/cgroup/cpu.stat")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if used, ok := strings.CutPrefix(line, "usage_usec "); ok {
			usec, err := strconv.ParseInt(strings.TrimSpace(used), 10, 64)
			return time.Duration(usec) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("reading /sys/fs/cgroup/cpu.stat: no usage_usec")
}
