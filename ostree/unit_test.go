// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// script is a Runner that gives one answer after the other, and what it was asked to run.
type script struct {
	t       *testing.T
	answers []answer
	asked   []string
}

type answer struct {
	to     string // the tool's first words
	output string
	stderr string
	fails  bool
}

var errStatus = errors.New("exit status 1")

func (s *script) run(_ context.Context, argv ...string) ([]byte, error) {
	line := strings.Join(argv, " ")
	s.asked = append(s.asked, line)
	if len(s.answers) == 0 || !strings.HasPrefix(line, s.answers[0].to) {
		s.t.Fatalf("%q was run, expected is %+v", line, s.answers)
	}
	a := s.answers[0]
	s.answers = s.answers[1:]
	if a.fails {
		return []byte(a.output), &CommandError{Argv: argv, Stderr: a.stderr, Err: errStatus}
	}
	return []byte(a.output), nil
}

func TestToolInAUnitGivesWhatItWroteAndHowItEnded(t *testing.T) {
	const used = "Failed to start transient service unit: Unit x.service was already loaded or has a fragment file."
	for _, c := range []struct {
		name    string
		answers []answer
		output  string
		stderr  string
		fails   bool
	}{
		{"it succeeds", []answer{{to: "systemd-run"}, {to: "cat /run/x.stdout", output: "fine"}}, "fine", "", false},
		{"it fails", []answer{{to: "systemd-run", fails: true}, {to: "cat /run/x.stdout", output: "so far"},
			{to: "cat /run/x.stderr", output: "error: no\n"}}, "so far", "error: no", true},
		{"there is no such tool", []answer{{to: "systemd-run", stderr: "Failed to find executable", fails: true}},
			"", "Failed to find executable", true},
		{"another run goes on", []answer{
			{to: "systemd-run", stderr: used, fails: true},
			{to: "systemctl show", output: "ActiveState=active\nDescription=a=b\n"},
			{to: "systemctl show", output: "ActiveState=inactive\nDescription=x.service\n"},
			{to: "systemd-run"}, {to: "cat /run/x.stdout", output: "fine"},
		}, "fine", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{t: t, answers: c.answers}
				output, err := inUnit(s.run, "x", "--description=d")(t.Context(), "tool", "--flag")
				if string(output) != c.output || (err != nil) != c.fails || len(s.answers) != 0 {
					t.Errorf("gave %q, %v; %d answers are left", output, err, len(s.answers))
				}
				if command, ok := errors.AsType[*CommandError](err); c.fails &&
					(!ok || command.Stderr != c.stderr || !slices.Equal(command.Argv, []string{"tool", "--flag"})) {
					t.Errorf("failed with %#v", err)
				}
				if !strings.HasSuffix(s.asked[0], " --description=d -- tool --flag") {
					t.Errorf("ran %q", s.asked[0])
				}
			})
		})
	}
}

func TestWaitForAUnitEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), unitPoll/2)
		defer cancel()
		s := &script{t: t, answers: []answer{{to: "systemctl show", output: "ActiveState=activating\n"}}}
		if err := waitForUnit(ctx, s.run, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("gave %v", err)
		}
	})
}

func TestUnitThatIsNotThereIsStoppedAlready(t *testing.T) {
	s := &script{t: t, answers: []answer{
		{to: "systemctl stop x.service", stderr: "Failed to stop x.service: Unit x.service not loaded.", fails: true},
		{to: "systemctl stop x.service", stderr: "Failed to connect to bus", fails: true},
	}}
	if err := stopUnit(t.Context(), s.run, "x"); err != nil {
		t.Error(err)
	}
	if err := stopUnit(t.Context(), s.run, "x"); err == nil {
		t.Error("a failure to stop it is none")
	}
}

func TestToolInAUnitHasTheWeightsOfItsContext(t *testing.T) {
	s := &script{t: t, answers: []answer{{to: "systemd-run"}, {to: "cat"}, {to: "systemd-run"}, {to: "cat"}}}
	tool := inUnit(s.run, "x", "--nice=1")
	for _, ctx := range []context.Context{WithWeights(t.Context(), Weights{CPU: 20, IO: 10}), t.Context()} {
		if _, err := tool(ctx, "bootc", "switch"); err != nil {
			t.Fatal(err)
		}
	}
	if want := " --nice=1 --property=CPUWeight=20 --property=IOWeight=10 -- bootc switch"; !strings.HasSuffix(s.asked[0], want) {
		t.Errorf("asked: %s", s.asked[0])
	}
	if want := " --nice=1 -- bootc switch"; !strings.HasSuffix(s.asked[2], want) {
		t.Errorf("asked: %s", s.asked[2])
	}
}
