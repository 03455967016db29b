// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"
)

// Child is a program that runs beside this process and never outlives it.
type Child struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// StartChild starts a program. It gets a process group of its own, so that ^C at a terminal leaves it to us to end it.
func StartChild(cmd *exec.Cmd) (*Child, error) {
	c := &Child{cmd: cmd, ended: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The death of the thread that started a process counts as the parent's, so this one stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // what it would say is in ProcessState
			close(c.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// PID is the number of its process.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Ended is closed when it has ended.
func (c *Child) Ended() <-chan struct{} { return c.ended }

// Err says how it ended, however that was; nil while it runs.
func (c *Child) Err() error {
	select {
	case <-c.ended:
		return errors.New(c.cmd.ProcessState.String())
	default:
		return nil
	}
}

// Kill ends it at once: nothing that it would do on a gentle end is of use to anybody. It may have ended already.
func (c *Child) Kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
}
