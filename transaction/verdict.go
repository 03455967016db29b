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
	// Patient checks may fail until the deadline, such as a kubelet that starts slowly. The others end the verdict after
	// impatientTries noes in a row, so that a node with a clearly bad configuration does not wait.
	Patient bool
	// After names a check that has to say yes before this check is asked. A name that no check has is ignored.
	After string
}

// BootCheck is the name of the check that says yes once systemd has started all units of the boot. Check scripts wait
// for it, as with greenboot: they ask for services that may start late in the boot.
const BootCheck = "boot"

const (
	impatientTries = 3
	checkInterval  = 3 * time.Second
	// patientInterval is the time between rounds while only patient checks fail.
	patientInterval = 500 * time.Millisecond
	// soak is how long every check must continue to say yes: a service that was started does not necessarily work.
	soak = 2 * time.Second
	// scriptTimeout bounds one check script: a script that hangs is a no and does not end the verdict.
	scriptTimeout = 2 * time.Minute
)

// Verdict asks the checks until all say yes and still do after a while, or until one has said no for good. A yes counts
// until the soak is over: some checks take long, and others are asked several times a second. The error joins every no
// of the last round.
func Verdict(ctx context.Context, checks []Check, deadline time.Time, say func(phase, what string)) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	noes, yes := map[string]int{}, map[string]time.Time{}
	var since time.Time // when all checks have said yes
	var last []error    // the noes of the last round that the deadline did not cut short
	for {
		var failed []error
		final, interval := false, patientInterval
		no := map[string]bool{}
		for _, c := range checks {
			if no[c.After] {
				no[c.Name] = true // checks after this one are not asked either
				continue
			}
			if time.Since(yes[c.Name]) < soak {
				continue
			}
			err := c.Run(ctx)
			if err == nil {
				noes[c.Name], yes[c.Name] = 0, time.Now()
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
			failed = last // checks that the deadline cut short would hide what is wrong
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

// scriptDirs are greenboot's directories. The scripts that people and images already have are asked, also where another
// program runs them.
var scriptDirs = []string{"/usr/lib/greenboot/check", "/etc/greenboot/check"}

// Scripts returns a check for each executable in greenboot's required.d directories. Scripts in wanted.d are run too,
// and their no is only reported. note is called with the path and the result of each script; nil is a yes.
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

// reasonLimit is the longest reason of a failing script that an error carries, in bytes.
const reasonLimit = 300

// reasonOf returns the last line that a failing script printed, where people put the reason.
func reasonOf(out []byte) string {
	if line := message.LastLine(string(out)); line != "" {
		return ": " + message.Cut(line, reasonLimit)
	}
	return ""
}
