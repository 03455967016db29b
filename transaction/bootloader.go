// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// BootLoader writes the files from which later boots have their kernel arguments, on a host without ostree. A change
// has both of its sides: old is the one before it.
type BootLoader interface {
	// Write brings the files to a side, and can be repeated after a cut at any point, on either side. before is called
	// before each file.
	Write(ctx context.Context, change []byte, old bool, before func(path string) error) error
	// State reports whether the files are on a side, and whether the kernel that runs was booted with its arguments.
	State(change []byte, old bool) (written, booted bool, err error)
	// Forget removes what Write has left beside the files.
	Forget(change []byte) error
}

// load brings the boot loader's files to one side of the change that a journal has, if it has one.
func (e *Engine) load(ctx context.Context, j *journal, old bool) error {
	if j == nil || j.Loader == nil {
		return nil
	}
	if e.BootLoader == nil {
		return errors.New("the update changes kernel arguments, and the host has no boot loader that can be given any")
	}
	return e.BootLoader.Write(ctx, j.Loader, old, func(path string) error { return fault("loader " + path) })
}

// stopGrace is how long it may take until this process, too, is told of a shutdown that has ended a program of its own.
const stopGrace = time.Second

// stopped reports whether work has failed because this process is being stopped, as in a shutdown. That says nothing
// about the update.
func stopped(ctx context.Context, err error) bool {
	if err == nil {
		return false
	}
	select {
	case <-ctx.Done():
		return true
	case <-time.After(stopGrace):
		return false
	}
}

// unload takes the change of the boot loader's files back, for an update that is over before it has booted.
func (e *Engine) unload(ctx context.Context, j *journal) error {
	if err := e.load(context.WithoutCancel(ctx), j, true); err != nil {
		return fmt.Errorf("taking the kernel arguments back: %w", err)
	}
	return nil
}

// unbooted returns why the host must boot once more to have the kernel arguments of one side of its update, "" where it
// need not. A cut may come before the boot loader's files are written. A boot loader that reads the disk without its
// journal may have missed a write shortly before. A boot loader that never takes the arguments is told from both by the
// number of boots: then refused is true.
func (e *Engine) unbooted(p *Pending, j *journal, old bool) (why string, refused bool, err error) {
	if j == nil || j.Loader == nil || e.BootLoader == nil {
		return "", false, nil
	}
	written, booted, err := e.BootLoader.State(j.Loader, old)
	if err != nil || booted {
		return "", false, err
	}
	if free := p.Reread == "" && !old; written && !free && p.Attempts >= p.MaxAttempts {
		return "", true, nil
	}
	return "the kernel has other arguments than the boot loader's files are to have", false, nil
}
