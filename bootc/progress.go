// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
)

// progressOption has bootc write its progress, as lines of JSON, to a file descriptor that is a pipe. bootc has the
// option from version 1.1.4 on. The list of its options does not show it.
const progressOption = "--progress-fd"

// progressPause is how long the bytes of one task are not passed on again.
const progressPause = 5 * time.Second

// event is a line of bootc's progress.
type event struct {
	Type string `json:"type"` // Start, ProgressBytes or ProgressSteps
	Task string `json:"task"` // pulling, importing or staging
	// Bytes and Steps are without what was there before.
	Bytes      uint64    `json:"bytes"`
	BytesTotal uint64    `json:"bytesTotal"` // 0 if it is not known
	Steps      uint64    `json:"steps"`
	StepsTotal uint64    `json:"stepsTotal"`
	Subtasks   []subtask `json:"subtasks"`
}

type subtask struct {
	Description string `json:"description"`
	Completed   bool   `json:"completed"`
}

// text returns an event for people, "" if it shows no progress.
func (e event) text() string {
	const mebi = 1 << 20
	total := ""
	switch e.Type {
	case "ProgressBytes":
		if e.BytesTotal > 0 {
			total = fmt.Sprintf(" of %.1f", float64(e.BytesTotal)/mebi)
		}
		text := fmt.Sprintf("%s: %.1f%s MiB", e.Task, float64(e.Bytes)/mebi, total)
		if e.StepsTotal > 0 {
			text += fmt.Sprintf(", %d of %d layers", e.Steps, e.StepsTotal)
		}
		return message.OneLine(text)
	case "ProgressSteps":
		text := e.Task
		if at := slices.IndexFunc(e.Subtasks, func(s subtask) bool { return !s.Completed }); at >= 0 {
			text += ": " + e.Subtasks[at].Description
		}
		return message.OneLine(fmt.Sprintf("%s, %d of %d steps", text, e.Steps, e.StepsTotal))
	}
	return ""
}

// pace passes progress on: every new task and step at once, the bytes of a task from time to time.
type pace struct {
	say  func(text string)
	task string // of the last bytes that were passed on, "" after a step
	at   time.Time
	held string
}

// hear passes on a line of bootc's, or holds it back. A line that can't be read counts as none.
func (p *pace) hear(line []byte, now time.Time) {
	var e event
	if json.Unmarshal(line, &e) != nil {
		return
	}
	text, bytes := e.text(), e.Type == "ProgressBytes"
	switch {
	case text == "":
		return
	case bytes && e.Task == p.task && now.Sub(p.at) < progressPause:
		p.held = text
		return
	case !bytes:
		p.end()
	}
	p.task, p.at, p.held = "", now, ""
	if bytes {
		p.task = e.Task
	}
	p.say(text)
}

// end passes on what is held back.
func (p *pace) end() {
	if p.held != "" {
		p.say(p.held)
		p.held = ""
	}
}

// longestLine bounds a line of progress, which names every layer of an image. A longer line counts as none.
const longestLine = 256 << 10

// listen makes a pipe, and passes on the progress that a program writes into it. If this process ends before the
// program, the program finds the pipe closed, and goes on. The caller calls stop after the program has ended; stop
// closes the pipe.
func listen(say func(text string)) (in *os.File, stop func(), err error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	// systemd holds the pipe open for longer than the program. So the end of the progress is a line.
	const ended = "\x00"
	done := make(chan struct{})
	go func() {
		defer close(done)
		p := &pace{say: say}
		defer p.end()
		lines := bufio.NewReaderSize(out, longestLine)
		for part := false; ; {
			line, more, err := lines.ReadLine()
			whole := !part && !more
			switch {
			case err != nil, whole && string(line) == ended:
				return
			case whole:
				p.hear(line, time.Now())
			}
			part = more
		}
	}()
	return in, func() {
		if _, err := in.WriteString("\n" + ended + "\n"); err != nil {
			_ = out.Close() // nothing more is read then
		}
		<-done
		_ = errors.Join(in.Close(), out.Close()) // the program has ended
	}, nil
}

// runSwitch runs bootc switch in a unit like the given one, and passes on its progress, where systemd and bootc can do
// that. A bootc or systemd that can't refuses before anything is done, and is not asked again.
func (b *Driver) runSwitch(ctx context.Context, like systemd.Command, argv []string) ([]byte, error) {
	if b.Progress != nil && !b.silent {
		if in, stop, err := listen(b.Progress); err == nil {
			heard := like
			heard.Passed = in
			telling := slices.Insert(slices.Clone(argv), 2, progressOption, strconv.Itoa(systemd.PassedFD))
			output, err := b.tools.In(switchUnit, heard)(ctx, telling...)
			stop()
			if !silent(err) {
				return output, err
			}
			b.silent = true
		}
	}
	return b.tools.In(switchUnit, like)(ctx, argv...)
}

// silent reports whether a switch has failed because its progress can't be had.
func silent(err error) bool {
	command, ok := errors.AsType[*ostree.CommandError](err)
	// The texts are the option parser's, and that of a bootc that was given something else for the pipe, by SELinux for
	// example.
	return errors.Is(err, systemd.ErrCannotPass) || ok && (strings.Contains(command.Stderr, "'"+progressOption) ||
		strings.Contains(command.Stderr, "not a pipe"))
}
