// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// Child is a program that runs beside this process and never outlives it.
type Child struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// StartChild starts a program in a process group of its own. So ^C at a terminal does not end the program; this process
// ends it.
func StartChild(cmd *exec.Cmd) (*Child, error) {
	c := &Child{cmd: cmd, ended: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// When the thread that started a process ends, the kernel treats this as the death of the parent. So the thread
		// stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // ProcessState has the result
			close(c.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// PID returns the number of the process.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Ended returns a channel that is closed when the process has ended.
func (c *Child) Ended() <-chan struct{} { return c.ended }

// Err returns how the process ended, also after success; nil while it runs.
func (c *Child) Err() error {
	select {
	case <-c.ended:
		return errors.New(c.cmd.ProcessState.String())
	default:
		return nil
	}
}

// Stop ends the process by SIGTERM, and waits. The error is of a process that does not end with exit code 0.
func (c *Child) Stop() error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-c.ended
	if !c.cmd.ProcessState.Success() {
		return c.Err()
	}
	return nil
}

// Kill ends the process at once: what the process does at a normal end is not needed. The process may have ended
// already.
func (c *Child) Kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
}
