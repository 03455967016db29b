// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/pace"
	"github.com/noderefit/noderefit/systemd"
)

// UnitPoll is how often a command that takes minutes is looked at.
const UnitPoll = time.Second

// ComposedRef is the ref in the host's repository that holds the composed commit. A staged deployment is removed as
// soon as another one is made, and a prune would then remove its objects.
const ComposedRef = "noderefit/composed"

// Units are the services of the host.
type Units interface {
	Run(ctx context.Context, c systemd.Command) (systemd.Ended, error)
	Service(ctx context.Context, name string) (systemd.Service, error)
	ActiveState(ctx context.Context, name string) (string, error)
	Kill(ctx context.Context, name string, signal syscall.Signal) error
	Stop(ctx context.Context, name string) error
}

// Tools runs the host's slow tools, each in a unit of the host. The unit outlives this process, so the work is not lost
// when this process ends. The tool does not write into a pipe of this process.
type Tools struct {
	Units Units
	// Root is where this process finds the host's files.
	Root string
	// Weights are the weights of tools that are started from now on.
	Weights systemd.Weights
}

// In returns a Runner whose tools run in a unit, named without .service. The other fields of like apply to each
// command, and so does the bandwidth of the context. If the unit still runs for an earlier process, the Runner waits
// for that first. When the context ends, the tool goes on. Stop ends the tool.
//
// The output and the exit status are the tool's.
func (t *Tools) In(unit string, like systemd.Command) Runner {
	stdout, stderr := "/run/"+unit+".stdout", "/run/"+unit+".stderr"
	return func(ctx context.Context, argv ...string) ([]byte, error) {
		program, err := t.Find(argv[0])
		if err != nil {
			return nil, &CommandError{Argv: argv, Err: err}
		}
		c := like
		c.Name, c.Outlives, c.Weights = unit+".service", true, t.Weights
		c.Argv = append([]string{program}, argv[1:]...)
		if proxied := pace.Environment(ctx); proxied != nil {
			// Everyone may read a unit's own variables, and these have a password. Of two files the last one counts. The file
			// stays, as the output does: when the context ends, systemd may not have read it yet.
			path := "/run/" + unit + ".env"
			err := os.WriteFile(filepath.Join(t.Root, path), []byte(strings.Join(proxied, "\n")+"\n"), 0o600)
			if err != nil {
				return nil, &CommandError{Argv: argv, Err: err}
			}
			c.EnvironmentFiles = append(slices.Clone(like.EnvironmentFiles), path)
		}
		c.Environment = append([]string{"LC_ALL=C.UTF-8", "PATH=" + SearchPath}, like.Environment...)
		c.Stdout, c.Stderr = stdout, stderr
		ended, err := t.Units.Run(ctx, c)
		if err != nil && ctx.Err() == nil && !errors.Is(err, systemd.ErrUnitGone) {
			return nil, &CommandError{Argv: argv, Err: err} // the unit did not run, so the files belong to another run
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else if err == nil {
			err = ended.Err()
		}
		// The output so far tells why the tool took so long. A run whose output can't be read is judged by its status.
		output, _ := os.ReadFile(filepath.Join(t.Root, stdout))
		if err == nil {
			return output, nil
		}
		said, _ := fileEnd(filepath.Join(t.Root, stderr))
		return output, &CommandError{Argv: argv, Stderr: strings.TrimSpace(said), Err: err}
	}
}

// Has reports whether the host has a program.
func (t *Tools) Has(name string) bool {
	_, err := t.Find(name)
	return err == nil
}

// Find returns the path of a program of the host.
func (t *Tools) Find(name string) (string, error) {
	for dir := range strings.SplitSeq(SearchPath, ":") {
		path := filepath.Join(dir, name)
		// A link of the host may lead elsewhere when followed from here.
		info, err := os.Lstat(filepath.Join(t.Root, path))
		if err == nil && (info.Mode()&fs.ModeSymlink != 0 || info.Mode().IsRegular() && info.Mode()&0o111 != 0) {
			return path, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}

// Running returns the description of what runs in a unit, or "" if nothing does.
func (t *Tools) Running(ctx context.Context, unit string) (string, error) {
	s, err := t.Units.Service(ctx, unit+".service")
	if err != nil || !s.Ended() {
		return s.Description, err
	}
	return "", nil
}

// Wait returns when nothing runs in a unit, or the context has ended.
func (t *Tools) Wait(ctx context.Context, unit string) error {
	return systemd.Wait(ctx, t.Units, unit+".service")
}

// Stop ends a unit and what runs in it, and waits for the end.
func (t *Tools) Stop(ctx context.Context, unit string) error {
	return t.Units.Stop(ctx, unit+".service")
}

// Follow passes to progress, unless it is nil, the last line that a unit has written to its standard output, whenever
// the line changes. Follow ends when the function that it returns is called.
func (t *Tools) Follow(ctx context.Context, unit string, progress func(string)) (stop func()) {
	if progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(UnitPoll)
		defer tick.Stop()
		for last := ""; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			text, err := fileEnd(filepath.Join(t.Root, "/run/"+unit+".stdout"))
			if err != nil {
				continue // the unit has not started yet, or the file can't be read
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

// fileEnd returns the end of a file.
func fileEnd(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	text := make([]byte, min(info.Size(), maxStderr))
	if _, err := file.ReadAt(text, info.Size()-int64(len(text))); err != nil && err != io.EOF {
		return "", err
	}
	return strings.ToValidUTF8(string(text), ""), nil
}
