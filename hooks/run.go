// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/noderefit/noderefit/systemd"
)

// Unit is the service that a hook runs as. Only one hook runs at a time.
const Unit = "machine-config-daemon-hook.service"

// Grace is the time that a hook and all its processes have to end at their limit, before they are killed.
const Grace = 5 * time.Second

// Runner is systemd.
type Runner interface {
	Run(ctx context.Context, c systemd.Command) (systemd.Ended, error)
}

// Error is a hook's no.
type Error struct {
	When When   `json:"when"`
	Hook string `json:"hook"`
	// Why is how the hook ended, or why it could not be run.
	Why string `json:"why"`
	// Output are the last lines that the hook printed; see tail.
	Output []string `json:"output,omitempty"`
	// NotRun means that the hook could not be run. Only the process that ran it is told.
	NotRun bool `json:"-"`
}

// lastWords is the length in bytes of the end of the output that an error repeats. People put the reason there.
const lastWords = 300

func (e *Error) Error() string { return fmt.Sprintf("%s hook %s: %s", e.When, e.Hook, e.Said()) }

// Said returns how the hook ended and the end of its output, on one line.
func (e *Error) Said() string {
	text := e.Why
	said := strings.Join(e.Output, " | ")
	if said == "" {
		return text
	}
	if cut := len(said) - lastWords; cut > 0 {
		said = "…" + strings.ToValidUTF8(said[cut:], "")
	}
	return text + ": " + said
}

// Run runs a hook to its end; argv is its command line. A no, or a failure to run the hook, is an *Error; the end of
// ctx is another error. say is called with each line that the hook prints.
func Run(ctx context.Context, r Runner, when When, h Hook, argv, environment []string, say func(line string)) error {
	no := &Error{When: when, Hook: h.Name}
	out, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("running hook %s: %w", h.Name, err)
	}
	defer func() { _ = out.Close() }()
	tail := &tail{say: say}
	read := make(chan struct{})
	go func() {
		defer close(read)
		tail.readFrom(out)
	}()
	ended, err := r.Run(ctx, systemd.Command{Name: Unit, Description: fmt.Sprintf("Noderefit: %s hook %s", when, h.Name),
		Argv: argv, Environment: environment, Output: in, Limit: h.Limit, Grace: Grace})
	_ = in.Close()
	select { // the hook and its processes have ended: this returns at once, unless another process holds the pipe
	case <-read:
	case <-time.After(time.Second):
		_ = out.Close()
		<-read
	}
	no.Output = tail.last()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("running hook %s: %w", h.Name, context.Cause(ctx))
	case err != nil:
		no.Why, no.NotRun = "the hook could not be run: "+err.Error(), true
	case ended.Result == "success":
		return nil
	case ended.Result == "timeout":
		no.Why = fmt.Sprintf("the hook was stopped at its time limit of %s", h.Limit)
	case ended.Result == "signal" || ended.Result == "core-dump":
		no.Why = "the hook was " + ended.Error()
	default:
		no.Why = ended.Error()
	}
	return no
}

// The limits of the output that is kept of a hook.
const (
	tailLines = 10
	tailBytes = 1024
)

// tail keeps the last lines of an output, at most tailLines and tailBytes, without control characters for a terminal.
type tail struct {
	lines []string
	say   func(line string)
}

// longest is the number of bytes of one line that are kept in memory.
const longest = 4096

func (t *tail) readFrom(f *os.File) {
	var line []byte
	buffer := make([]byte, longest)
	for {
		n, err := f.Read(buffer)
		for _, b := range buffer[:n] {
			if b == '\n' || b == '\r' {
				t.add(line)
				line = line[:0]
			} else if len(line) < longest {
				line = append(line, b)
			}
		}
		if err != nil { // the end of the output, or an error
			t.add(line)
			return
		}
	}
}

func (t *tail) add(line []byte) {
	text := strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(bytes.TrimSpace(line)), "?"))
	if text == "" {
		return
	}
	if t.say != nil {
		t.say(text)
	}
	t.lines = append(t.lines, text)
	if len(t.lines) > tailLines {
		t.lines = t.lines[1:]
	}
}

// last returns the last lines.
func (t *tail) last() []string {
	var out []string
	left := tailBytes
	for i := len(t.lines) - 1; i >= 0 && left > 0; i-- {
		line := t.lines[i]
		if len(line) > left {
			line = strings.ToValidUTF8(line[:left], "")
		}
		left -= len(line) + 1
		out = append([]string{line}, out...)
	}
	return out
}
