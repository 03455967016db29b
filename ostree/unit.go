// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/message"
)

// unitPoll is how often somebody else's run of a unit is looked at: it lasts minutes, and each look is a fork.
const unitPoll = time.Second

// inUnit is a Runner whose tools run in a transient unit of the host, unit being its name without .service and options
// further ones of systemd-run. So what takes long outlives this process, whose end is no reason to throw it away: the
// tool does not even write into a pipe of ours. If an earlier process's run of the unit still goes on, it is waited
// for first. When the context ends, the tool goes on; stopUnit ends it.
//
// The output and the exit status are the tool's. Two forks, three if it fails.
func inUnit(run Runner, unit string, options ...string) Runner {
	stdout, stderr := "/run/"+unit+".stdout", "/run/"+unit+".stderr"
	start := append([]string{"systemd-run", "--quiet", "--wait", "--collect", "--unit=" + unit, "--setenv=LC_ALL=C.UTF-8",
		"--setenv=PATH=" + SearchPath,
		"--property=StandardOutput=truncate:" + stdout, "--property=StandardError=truncate:" + stderr}, options...)
	all := start
	return func(ctx context.Context, argv ...string) ([]byte, error) {
		start := append(append(slices.Clip(all), weights(ctx)...), "--")
		_, err := run(ctx, append(slices.Clip(start), argv...)...)
		for inUse(err) {
			if err := waitForUnit(ctx, run, unit); err != nil {
				return nil, err
			}
			_, err = run(ctx, append(slices.Clip(start), argv...)...)
		}
		command, failed := errors.AsType[*CommandError](err)
		if failed && command.Stderr != "" {
			// systemd-run speaks for itself only when there was no run, so the files are of another one.
			return nil, &CommandError{Argv: argv, Stderr: command.Stderr, Err: command.Err}
		}
		// What was said so far says why it took so long. A run whose output can't be read is judged by its status.
		rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
		defer cancel()
		output, _ := run(rest, "cat", stdout)
		if !failed {
			return output, err
		}
		said, _ := run(rest, "cat", stderr)
		text := &tail{limit: maxStderr}
		_, _ = text.Write(said)
		return output, &CommandError{Argv: argv, Stderr: text.String(), Err: command.Err}
	}
}

// Weights are the share that a unit gets of processors and disks where others want them too: systemd's CPUWeight and
// IOWeight, 1 to 10000; 0: as any other unit.
type Weights struct{ CPU, IO uint16 }

type weightsKey struct{}

// WithWeights has units that are started with the context have these weights.
func WithWeights(ctx context.Context, w Weights) context.Context {
	return context.WithValue(ctx, weightsKey{}, w)
}

// weights are options of systemd-run.
func weights(ctx context.Context) (options []string) {
	w, _ := ctx.Value(weightsKey{}).(Weights)
	if w.CPU > 0 {
		options = append(options, fmt.Sprintf("--property=CPUWeight=%d", w.CPU))
	}
	if w.IO > 0 {
		options = append(options, fmt.Sprintf("--property=IOWeight=%d", w.IO))
	}
	return options
}

// inUse says whether systemd-run failed because there is a unit of that name.
func inUse(err error) bool {
	command, ok := errors.AsType[*CommandError](err)
	return ok && strings.Contains(command.Stderr, "was already loaded or has a fragment file")
}

// unitRuns says whether a transient unit is there, and its description. One fork.
func unitRuns(ctx context.Context, run Runner, unit string) (runs bool, description string, err error) {
	output, err := run(ctx, "systemctl", "show", "--property=ActiveState,Description", unit+".service")
	if err != nil {
		return false, "", err
	}
	for line := range strings.Lines(string(output)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch key {
		case "ActiveState":
			runs = value != "inactive" && value != "failed"
		case "Description":
			description = value
		}
	}
	return runs, description, nil
}

// waitForUnit waits until a unit does not run, or the context ends.
func waitForUnit(ctx context.Context, run Runner, unit string) error {
	for {
		runs, _, err := unitRuns(ctx, run, unit)
		if err != nil || !runs {
			return err
		}
		if err := sleep(ctx, unitPoll); err != nil {
			return err
		}
	}
}

// stopUnit ends a unit and what runs in it, and waits for the end. That there is none is no error. One fork.
func stopUnit(ctx context.Context, run Runner, unit string) error {
	_, err := run(ctx, "systemctl", "stop", unit+".service")
	if command, ok := errors.AsType[*CommandError](err); ok && strings.Contains(command.Stderr, "not loaded") {
		return nil
	}
	return err
}

// followUnit tells progress, if there is one, the last line that a unit of the host at root has written to its standard
// output whenever it is another, until the function that it returns is called.
func followUnit(ctx context.Context, root, unit string, progress func(string)) (stop func()) {
	if progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for last := ""; sleep(ctx, unitPoll) == nil; {
			text, err := fileEnd(filepath.Join(root, "/run/"+unit+".stdout"))
			if err != nil {
				continue // it has not started yet, or nobody can help it
			}
			if line := message.LastLine(text); line != "" && line != last {
				progress(line)
				last = line
			}
		}
	}()
	return func() {
		cancel()
		<-stopped
	}
}
