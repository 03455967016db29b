// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/message"
)

// Check is one question of the verdict. A nil error is a yes.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
	// Patient checks may fail until the deadline, as a kubelet that takes its time to start; the others are asked
	// again only impatientTries times, so that a node with a clearly bad configuration is not kept waiting.
	Patient bool
	// After names a check that has to say yes before this one is asked; where there is none of that name, it is asked.
	After string
}

// BootCheck is the name of the check that says yes once systemd has started all that it starts at boot. Check scripts
// wait for it, as with greenboot: they ask for services of which some are still to come.
const BootCheck = "boot"

const (
	impatientTries = 3
	checkInterval  = 3 * time.Second
	// patientInterval is how often checks that may take their time are asked while nothing else is wrong.
	patientInterval = 500 * time.Millisecond
	// soak is how long every check must go on saying yes: a service that was started is not yet one that works.
	soak = 2 * time.Second
	// scriptTimeout bounds one check script, so that one that hangs is a no and not the end of the verdict.
	scriptTimeout = 2 * time.Minute
)

// Verdict asks the checks until all say yes and still do after a while, or one has said no for good. The error joins
// every no of the last round.
func Verdict(ctx context.Context, checks []Check, deadline time.Time, say func(phase, what string)) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	noes := map[string]int{}
	var since time.Time // when all have said yes
	var last []error    // the noes of the last round that the deadline did not cut short
	for {
		var failed []error
		final, interval := false, patientInterval
		no := map[string]bool{}
		for _, c := range checks {
			if no[c.After] {
				no[c.Name] = true // what comes after it has not been asked for either
				continue
			}
			err := c.Run(ctx)
			if err == nil {
				noes[c.Name] = 0
				continue
			}
			no[c.Name] = true
			failed = append(failed, fmt.Errorf("%s: %w", c.Name, err))
			if noes[c.Name] == 0 {
				say("prove", c.Name+": "+err.Error())
			}
			noes[c.Name]++
			if !c.Patient {
				interval = checkInterval
				final = final || noes[c.Name] >= impatientTries
			}
		}
		if ctx.Err() != nil && len(last) > 0 {
			failed = last // what could not be asked any more hides what is wrong
		}
		last = failed
		switch {
		case len(failed) > 0:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
			interval = soak
		case time.Since(since) >= soak:
			return nil
		}
		if final {
			return errors.Join(failed...)
		}
		select {
		case <-ctx.Done():
			return errors.Join(append(failed, fmt.Errorf("no verdict by the deadline: %w", context.Cause(ctx)))...)
		case <-time.After(interval):
		}
	}
}

// scriptDirs are greenboot's: scripts that people and images have already are asked, also where another program runs
// them.
var scriptDirs = []string{"/usr/lib/greenboot/check", "/etc/greenboot/check"}

// Scripts returns a check for each executable in greenboot's required.d directories. Those in wanted.d are run too,
// and a no of theirs is only said. Note is told what each says, by its path: nil is a yes.
func Scripts(root *files.Root, say func(phase, what string), note func(script string, no error)) ([]Check, error) {
	var out []Check
	for _, kind := range []string{"required.d", "wanted.d"} {
		for _, dir := range scriptDirs {
			names, err := root.ReadDir(path.Join(dir, kind))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("reading check scripts: %w", err)
			}
			for _, n := range names {
				script := path.Join(dir, kind, n)
				if !strings.HasSuffix(n, ".sh") && !executable(root, script) {
					continue
				}
				c := Check{Name: "check script " + script, After: BootCheck}
				c.Run = func(ctx context.Context) error {
					err := runScript(ctx, root, script)
					note(script, err)
					return err
				}
				if kind == "wanted.d" {
					run := c.Run
					c.Run = func(ctx context.Context) error {
						if err := run(ctx); err != nil {
							say("prove", "wanted only: "+script+": "+err.Error())
						}
						return nil
					}
				}
				out = append(out, c)
			}
		}
	}
	return out, nil
}

func executable(root *files.Root, name string) bool {
	n, err := root.Inspect(name)
	return err == nil && n.Type == files.Regular && n.Mode&0o111 != 0
}

func runScript(ctx context.Context, root *files.Root, name string) error {
	ctx, cancel := context.WithTimeout(ctx, scriptTimeout)
	defer cancel()
	argv := []string{path.Join(root.Path(), name)}
	if !executable(root, name) {
		argv = append([]string{"bash"}, argv...) // greenboot runs *.sh whatever their mode
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%w%s", err, reasonOf(out.Bytes()))
	}
	return nil
}

// reasonLimit is how much of the reason of a failing script an error carries, in bytes.
const reasonLimit = 300

// reasonOf is the last line that a failing script printed, where people put the reason.
func reasonOf(out []byte) string {
	if line := message.LastLine(string(out)); line != "" {
		return ": " + message.Cut(line, reasonLimit)
	}
	return ""
}
