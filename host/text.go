// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/reboots"
	"github.com/noderefit/noderefit/transaction"
)

// lines collects lines and the first error of writing them.
type lines struct {
	w   io.Writer
	err error
}

func (l *lines) printf(format string, args ...any) {
	if l.err == nil {
		_, l.err = fmt.Fprintf(l.w, format+"\n", args...)
	}
}

// WriteText writes the result for people.
func (r *Result) WriteText(w io.Writer) error {
	l := &lines{w: w}
	if r.Plan != nil {
		if err := r.Plan.WriteText(w); err != nil {
			return err
		}
	}
	if d := r.Delivered; d != nil {
		for _, name := range d.Written {
			l.printf("Delivered: %s", name)
		}
		for _, name := range d.Removed {
			l.printf("Removed:   %s", name)
		}
	}
	switch r.Reboot {
	case RebootNeeded:
		next := r.Status.Config.Pending
		if next == "" { // a deployment that was there before has no pending update
			next = r.Plan.Desired
		}
		l.printf("A reboot is needed: the host becomes %s with its next boot.", next)
	case RebootStarted:
		l.printf("The host is rebooting.")
	}
	if l.err != nil {
		return l.err
	}
	return r.Status.WriteText(w)
}

// WriteText writes the status for people.
func (s *Status) WriteText(w io.Writer) error {
	l := &lines{w: w}
	l.printf("State:     %s%s", s.State, since(s.Since))
	if s.Reason != "" {
		l.printf("Reason:    %s", s.Reason)
	}
	l.printf("Committed: %s", s.committed())
	ordered := s.Transaction != nil && s.Transaction.Road == transaction.RoadReboot
	switch {
	case s.NeedsReboot:
		l.printf("Pending:   %s (%s, NeedsReboot: a person boots it)", s.Config.Pending, s.Phase)
	case s.Config.Pending != "" && !ordered:
		l.printf("Pending:   %s (%s)", s.Config.Pending, s.Phase)
	}
	if o := s.Rebooted; o != nil {
		l.printf("Rebooted:  %s", o)
	}
	if s.RebootWay != nil {
		l.printf("Reboot:    %s", s.RebootWay)
	}
	if s.Config.Previous != "" {
		l.printf("Previous:  %s%s", s.Config.Previous, s.apart)
	}
	if s.Pulling != nil {
		l.printf("Pulling:   since %s: %s", s.Pulling.Since, s.Pulling.Says)
	}
	if len(s.Skipped) > 0 {
		l.printf("Skipped:   %s (left out by --skip-os)", strings.Join(s.Skipped, ", "))
	}
	for _, d := range s.Irreconcilable {
		l.printf("Made else: %s, which only a new machine gets", d.Field)
	}
	l.printf("OS:        %s, road: %s", s.OS, s.Road)
	if s.Host != "" {
		l.printf("Host:      %s\nPromises:  %s", s.Host, s.Promises)
	}
	if none, is := strings.CutPrefix(s.BootLimit, "none: "); is {
		l.printf("Boot:      a person has to help when a new kernel never comes up: %s", none)
	} else if s.BootLimit != "" {
		l.printf("Boot:      the boot loader goes back after %s without a verdict", s.BootLimit)
	}
	staged := slices.ContainsFunc(s.Deployments, func(d DeploymentStatus) bool { return d.Staged && !d.Locked })
	for _, d := range s.Deployments {
		var marks []string
		if d.Booted {
			marks = append(marks, "booted")
		}
		switch {
		case d.Staged && d.Locked:
			marks = append(marks, "staged, locked")
		case d.Staged:
			marks = append(marks, "staged, boots next")
		case d.Default && !staged:
			marks = append(marks, "boots next")
		}
		if d.Config != "" {
			marks = append(marks, d.Config)
		}
		l.printf("  %s  %s", d.ID, strings.Join(marks, ", "))
	}
	if t := s.Transaction; t != nil {
		l.printf("Under way: %s, %s, %d of %d steps", t.ID, t.Phase, t.Done, t.Steps)
	}
	wanted := &reboots.Answer{Withheld: s.RebootsWithheld}
	if s.RebootWanted != nil {
		wanted.Reasons = s.RebootWanted.Reasons
	}
	for _, line := range wanted.Lines() {
		l.printf("Reboot wanted: %s", line)
	}
	for _, q := range s.Quarantined {
		l.printf("Quarantined: %s%s: %s", q.Config, since(q.Since.Format("2006-01-02T15:04:05Z07:00")), q.Reason)
	}
	return l.err
}

func since(t string) string {
	if t == "" {
		return ""
	}
	return " since " + t
}

func (s *Status) committed() string {
	if s.Config.Committed == "" && s.State == transaction.Done {
		return "none, as the host was never configured"
	}
	return cmp.Or(s.Config.Committed, "none")
}

// WriteText writes the drift for people.
func (v *Verification) WriteText(w io.Writer) error {
	l := &lines{w: w}
	for _, d := range v.Drift {
		l.printf("%s: %s is %s, should be %s", strings.TrimSpace(d.key()), d.What, d.Found, d.Expected)
	}
	if len(v.Drift) == 0 {
		l.printf("The host matches %s.", v.Config)
	}
	return l.err
}

// Err returns the drift as an error, nil where the host has not drifted.
func (v *Verification) Err() error {
	if len(v.Drift) == 0 {
		return nil
	}
	return &DriftError{Config: v.Config, Drift: v.Drift}
}
