// SPDX-License-Identifier: Apache-2.0

// Package fault is how a test makes the stand-in for rpm-ostree fail: by a file for each step in Dir, which the daemon
// reads when it comes to that step. The files are on the disk, so they outlive a reboot.
package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Dir is where the faults are, on the host.
const Dir = "/var/lib/rpm-ostree-stand-in/faults"

// Step is a point that every transaction, or the daemon, passes.
type Step string

// The steps, in their order.
const (
	Start    Step = "start"    // the daemon is up and has no bus name yet
	Register Step = "register" // a client says that it is there: the first call of each
	Begin    Step = "begin"    // a transaction was started and has done nothing
	Pull     Step = "pull"     // the base is about to be fetched
	Compose  Step = "compose"  // the packages are about to be layered
	Stage    Step = "stage"    // the commit is there and about to be staged
	End      Step = "end"      // all is done but the word to the client
)

// Action is what goes wrong.
type Action string

// The actions.
const (
	Fail    Action = "fail"    // an error with Text
	NoSpace Action = "nospace" // an error as of a full disk
	Hang    Action = "hang"    // nothing, until the transaction is cancelled or the fault is lifted
	Slow    Action = "slow"    // nothing for Seconds
	Vanish  Action = "vanish"  // the daemon is killed
)

// Fault is one step that goes wrong.
type Fault struct {
	Step    Step    `json:"-"`
	Action  Action  `json:"action"`
	Text    string  `json:"text,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	// Times is how often it happens before it lifts itself, 0 for ever.
	Times int `json:"times,omitempty"`
}

// noSpace is how ostree says it.
var noSpace = "Writing content object: fallocate: No space left on device"

// poll is how often a fault that hangs looks whether it was lifted.
const poll = 20 * time.Millisecond

// Set puts a fault into dir, which is Dir as the caller sees it; it takes the place of another one of that step.
func Set(dir string, f Fault) error {
	data, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("setting a fault: %w", err)
	}
	path := filepath.Join(dir, string(f.Step))
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(path+".new", data, 0o644)); err != nil {
		return fmt.Errorf("setting a fault: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("setting a fault: %w", err)
	}
	return nil
}

// Lift removes the fault of a step, if there is one.
func Lift(dir string, step Step) error {
	if err := os.Remove(filepath.Join(dir, string(step))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lifting a fault: %w", err)
	}
	return nil
}

// Pass passes a step: nil where nothing goes wrong.
func Pass(ctx context.Context, step Step) error {
	path := filepath.Join(Dir, string(step))
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	f := Fault{Step: step}
	if err := json.Unmarshal(data, &f); err != nil {
		return fmt.Errorf("reading the fault of step %s: %w", step, err)
	}
	switch f.Times {
	case 0:
	case 1:
		err = Lift(Dir, step)
	default:
		f.Times--
		err = Set(Dir, f)
	}
	if err != nil {
		return err
	}
	switch f.Action {
	case Fail:
		return errors.New(f.Text)
	case NoSpace:
		return errors.New(noSpace)
	case Hang:
		hanging := f.Times == 1
		for hanging || exists(path) {
			if err := wait(ctx, poll); err != nil {
				return err
			}
		}
	case Slow:
		return wait(ctx, time.Duration(f.Seconds*float64(time.Second)))
	case Vanish:
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
