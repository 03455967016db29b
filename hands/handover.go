// SPDX-License-Identifier: Apache-2.0

package hands

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/transaction"
)

// handoverEnv names the directory that head and hands share for one command: documents go in; the output and the report
// come out. The directory is on the host's /run, which no disk keeps, and only root can read it.
const handoverEnv = "MACHINE_CONFIG_DAEMON_HANDOVER"

// The files of a handover.
const (
	handoverConfig  = "config.json"
	handoverPolicy  = "policy.yaml"
	handoverHooks   = "hooks.json"
	handoverRequest = "request.json"
	handoverOutput  = "output"
	handoverReport  = "report.json"
)

// report is the end of a command in a form that another process can read.
type report struct {
	Exit  int    `json:"exit"`
	Error string `json:"error,omitempty"`
	// Config and Drift are those of a DriftError, Config is also that of a BadConfig.
	Config string       `json:"config,omitempty"`
	Drift  []host.Drift `json:"drift,omitempty"`
	// RolledBack marks a BadConfig: the configuration was applied, did not prove healthy and was rolled back.
	RolledBack bool `json:"rolledBack,omitempty"`
	// Hook is the hook that refused.
	Hook *hooks.Error `json:"hook,omitempty"`
	// Retryable marks an error of the network or of a lock that another process holds: a later try may work.
	Retryable bool `json:"retryable,omitempty"`
}

func reportOf(exit int, err error) report {
	r := report{Exit: exit}
	if err == nil {
		return r
	}
	r.Error = message.OneLine(err.Error())
	if drift, is := errors.AsType[*host.DriftError](err); is {
		r.Config, r.Drift = drift.Config, drift.Drift
	}
	if bad, is := errors.AsType[*transaction.BadConfig](err); is {
		r.Config, r.RolledBack = bad.Config, true
	}
	if no, is := errors.AsType[*hooks.Error](err); is {
		r.Hook = no
	}
	r.Retryable = ostree.ClassOf(err) == ostree.Retryable
	return r
}

// reported is the error with which another process ended. Its text is that process's text.
type reported struct {
	text string
	as   error
}

func (e *reported) Error() string { return e.text }
func (e *reported) Unwrap() error { return e.as }

// err returns the error of the report, with the type that the error had in its own process.
func (r report) err() error {
	plain := errors.New(r.Error)
	switch {
	case r.Exit == 0:
		return nil
	case r.Exit == host.ExitRefused && r.Hook != nil:
		return &host.Refused{Err: r.Hook}
	case r.Exit == host.ExitUnreconcilable:
		return &host.UnreachableError{Err: plain}
	case r.Exit == host.ExitRefused:
		return &host.Refused{Err: plain}
	case r.Exit == host.ExitDrift && len(r.Drift) > 0:
		return &host.DriftError{Config: r.Config, Drift: r.Drift}
	case r.RolledBack:
		return &reported{r.Error, &transaction.BadConfig{Config: r.Config, Err: plain}}
	case r.Retryable:
		return &reported{r.Error, &ostree.Error{Class: ostree.Retryable, Doing: "running on the host", Err: plain}}
	}
	return plain
}

// Handover is the way back to the head for a command that the head has started. For a command that a person has started
// the Handover is nil: its methods do nothing.
type Handover struct{ dir string }

// TakeHandover finds out whether the head started this process, and if so sends the standard output to the head.
// Standard error is for people: the journal keeps it.
func TakeHandover() (*Handover, error) {
	dir := os.Getenv(handoverEnv)
	if dir == "" {
		return nil, nil
	}
	// Programs that this process starts do not belong to the handover.
	if err := os.Unsetenv(handoverEnv); err != nil {
		return nil, err
	}
	out, err := os.OpenFile(filepath.Join(dir, handoverOutput), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the output for the head: %w", err)
	}
	os.Stdout = out
	return &Handover{dir: dir}, nil
}

// Taken removes a document of the head that has been read: it may hold secrets.
func (h *Handover) Taken(path string) error {
	if h == nil || filepath.Dir(path) != h.dir {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing a document of the head: %w", err)
	}
	return nil
}

// Report reports to the head how the command ended. It is the last step of the process: locks are free by then.
func (h *Handover) Report(exit int, err error) error {
	if h == nil {
		return nil
	}
	data, failed := json.Marshal(reportOf(exit, err))
	if failed != nil {
		return failed
	}
	at := filepath.Join(h.dir, handoverReport)
	if err := os.WriteFile(at+".new", data, 0o600); err != nil {
		return fmt.Errorf("reporting to the head: %w", err)
	}
	if err := os.Rename(at+".new", at); err != nil {
		return fmt.Errorf("reporting to the head: %w", err)
	}
	return nil
}

// handoverOf returns the handover directory in a service's environment, "" where the environment has none.
func handoverOf(environment []string) string {
	for _, e := range environment {
		if dir, ok := strings.CutPrefix(e, handoverEnv+"="); ok {
			return dir
		}
	}
	return ""
}
