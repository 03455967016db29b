// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/noderefit/noderefit/pace"
)

// Runner runs a tool on the host and returns its standard output. If the tool fails, Runner returns a *CommandError and
// the output so far.
type Runner func(ctx context.Context, argv ...string) ([]byte, error)

// CommandError is the error of a tool that could not be run, was stopped, or failed.
type CommandError struct {
	Argv   []string
	Stderr string // the end of it, without surrounding space
	Err    error  // *exec.ExitError, or the context's cause
}

func (e *CommandError) Error() string {
	text := fmt.Sprintf("running %s: %v", strings.Join(e.Argv, " "), e.Err)
	if e.Stderr != "" {
		text += ": " + e.Stderr
	}
	return text
}

func (e *CommandError) Unwrap() error { return e.Err }

// SearchPath is where the host's tools and their children are looked for. The OS's own directories come first.
// /usr/local belongs to people and to configurations, even on an OS whose /usr is read-only. A program there must not
// replace a tool of the same name. A tool that the OS lacks may be there.
const SearchPath = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"

// Limits bound how long tools run. So a tool that hangs becomes an error with a reason, while time is left to try
// again.
type Limits struct {
	Ask    time.Duration // a question, which takes well below a second
	Change time.Duration // a change of the host's disk, which takes a sync
	Deploy time.Duration // a deployment, which takes a checkout and a kernel, or the removal of some
	Pull   time.Duration // a copy from elsewhere, over any line
}

// UsualLimits are the limits of the host's tools.
var UsualLimits = Limits{Ask: time.Minute, Change: 3 * time.Minute, Deploy: 30 * time.Minute, Pull: 6 * time.Hour}

// of returns the limit of a command.
func (l Limits) of(argv []string) time.Duration {
	switch {
	case len(argv) < 2 || argv[0] != "ostree":
		return l.Change
	case argv[1] == "pull":
		return l.Pull
	case argv[1] == "ls": // of all modules of a kernel, on any disk
		return l.Change
	case argv[1] != "admin" || len(argv) < 3 || argv[2] == "status":
		return l.Ask
	case argv[2] == "deploy", argv[2] == "cleanup":
		return l.Deploy
	}
	return l.Change
}

// Bounded returns a Runner that limits how long each tool runs. Where a tool was stopped while another program had the
// lock of the sysroot, the error names that program.
func (p *Plain) Bounded(run Runner, limits Limits) Runner {
	return func(ctx context.Context, argv ...string) ([]byte, error) {
		limit := limits.of(argv)
		ctx, cancel := context.WithTimeoutCause(ctx, limit,
			fmt.Errorf("it did not end within %s: %w", limit, context.DeadlineExceeded))
		defer cancel()
		output, err := run(ctx, argv...)
		command, failed := errors.AsType[*CommandError](err)
		if !failed || ctx.Err() == nil {
			return output, err
		}
		if holder, lockErr := p.LockHolder(""); lockErr == nil && holder != nil {
			return output, &CommandError{Argv: command.Argv, Stderr: command.Stderr,
				Err: fmt.Errorf("%s %s: %w", holder, holdsLock, command.Err)}
		}
		return output, err
	}
}

// maxStderr is how much of a tool's standard error an error carries, in bytes. It is enough for ostree's messages, and
// small enough for an annotation or an event.
const maxStderr = 2048

// stopGrace is how long a tool has between SIGTERM and SIGKILL. ostree leaves either the old or the new state whenever
// it dies. Its helper needs the time to thaw /boot.
const stopGrace = 10 * time.Second

// Exec is the Runner for the machine that this process runs on. The tool speaks English and has a process group of its
// own. So a signal from a terminal does not reach the tool, and its children end with it.
func Exec(ctx context.Context, argv ...string) ([]byte, error) {
	var stdout bytes.Buffer
	stderr := &tail{limit: maxStderr}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(append(os.Environ(), pace.Environment(ctx)...), "LC_ALL=C")
	cmd.Stdout, cmd.Stderr = &stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	err := cmd.Run()
	if err == nil {
		return stdout.Bytes(), nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return stdout.Bytes(), &CommandError{Argv: argv, Stderr: stderr.String(), Err: err}
}

// tail keeps the last limit bytes that are written to it.
type tail struct {
	limit int
	kept  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - t.limit; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(strings.ToValidUTF8(string(t.kept), "")) }

// Class is what can be done about an error.
type Class string

// The classes of an Error.
const (
	Retryable  Class = "retryable"      // it may work later by itself: the network, another program's lock
	Invalid    Class = "invalid"        // the request can't be met: no such ref, a malformed argument
	NeedsAdmin Class = "needs an admin" // the host prevents it: too old, out of space
	Failed     Class = "failed"         // the cause is not known
)

// Error is what the methods of Plain return: the action, its object, and the error's Class.
type Error struct {
	Class Class
	Doing string // "staging os/stable", without the colon
	Err   error
}

func (e *Error) Error() string { return e.Doing + ": " + e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of an error of this package, and Failed for any other error.
func ClassOf(err error) Class {
	if typed, ok := errors.AsType[*Error](err); ok {
		return typed.Class
	}
	return Failed
}

// WaitingForLock is ostree's message while another process holds the sysroot's lock. ostree waits without a limit.
const WaitingForLock = "Waiting for sysroot lock"

// holdsLock is in the error of a tool that was stopped while another program had the lock of the sysroot.
const holdsLock = "holds the lock of the sysroot"

// Failing makes an Error of a tool's error. ostree's message decides the class.
func Failing(doing string, output []byte, err error) error {
	if err == nil {
		return nil
	}
	class, text := Failed, err.Error()
	if command, ok := errors.AsType[*CommandError](err); ok {
		text = command.Stderr
	}
	stopped := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	switch {
	case stopped && !strings.Contains(err.Error(), holdsLock) &&
		(strings.Contains(text, WaitingForLock) || bytes.Contains(output, []byte(WaitingForLock))):
		class, err = Retryable, fmt.Errorf("another program holds the lock of the sysroot: %w", err)
	case stopped:
		class = Retryable
	case NetworkTrouble(text):
		class = Retryable
	case strings.Contains(text, "No space left on device"),
		strings.Contains(text, "would be exceeded, at least"): // min-free-space-percent, min-free-space-size
		class = NeedsAdmin
	case slices.ContainsFunc(invalidTexts, func(part string) bool { return strings.Contains(text, part) }):
		class = Invalid
	}
	return &Error{Class: class, Doing: doing, Err: err}
}

// NetworkTrouble reports whether ostree failed in a way that ends by itself. NetworkTrouble looks at libcurl's code in
// brackets after "While fetching", or at the server's status.
func NetworkTrouble(text string) bool {
	if !strings.Contains(text, "While fetching") && !strings.Contains(text, "Server returned HTTP") {
		return false
	}
	return slices.ContainsFunc(networkTexts, func(part string) bool { return strings.Contains(text, part) })
}

// networkTexts are what ostree says of a network that may be better later.
var networkTexts = []string{
	"[5]", "[6]", // names
	"[7]", "[18]", "[28]", "[52]", "[55]", "[56]", "[92]", "[95]", // connections that fail, stall or break off
	"[35]", // TLS hand-shakes that break off; a certificate that is wrong has another code
	"HTTP 408", "HTTP 425", "HTTP 429", "HTTP 500", "HTTP 502", "HTTP 503", "HTTP 504",
}

// invalidTexts are what ostree says of an image that is not there.
var invalidTexts = []string{
	"not found", "No such branch", "No such stateroot", "No such metadata object",
	"Server returned HTTP 403", "Server returned HTTP 404", "Invalid refspec", "Invalid ref name",
	".commit: linkat: No such file or directory", // a remote on a file system
}

// Retry tries again after each of the delays as long as the error is Retryable. say, which may be nil, is told of each
// further attempt. The error is that of the last attempt.
func Retry(ctx context.Context, delays []time.Duration, say func(text string), try func() error) error {
	for {
		err := try()
		if err == nil || ClassOf(err) != Retryable || len(delays) == 0 || ctx.Err() != nil {
			return err
		}
		if say != nil {
			say("trying again: " + err.Error())
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(delays[0]):
		}
		delays = delays[1:]
	}
}
