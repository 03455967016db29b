// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/noderefit/noderefit/pace"
	"github.com/noderefit/noderefit/systemd"
)

// script is a systemd that does one thing after the other, and what it was asked to run.
type script struct {
	t     *testing.T
	root  string
	runs  []scriptedRun
	asked []systemd.Command
}

// scriptedRun is what a command writes, and how it ends.
type scriptedRun struct {
	output, stderr string
	ended          systemd.Ended
	fails          error
}

func (s *script) Run(_ context.Context, c systemd.Command) (systemd.Ended, error) {
	s.asked = append(s.asked, c)
	if len(s.runs) == 0 {
		s.t.Fatalf("%q was run", c.Argv)
	}
	r := s.runs[0]
	s.runs = s.runs[1:]
	for path, text := range map[string]string{c.Stdout: r.output, c.Stderr: r.stderr} {
		if err := os.WriteFile(filepath.Join(s.root, path), []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	return r.ended, r.fails
}

func (s *script) Service(context.Context, string) (systemd.Service, error) {
	return systemd.Service{State: "activating"}, nil
}

func (s *script) ActiveState(context.Context, string) (string, error) { return "inactive", nil }
func (s *script) Kill(context.Context, string, syscall.Signal) error  { return nil }
func (s *script) Stop(context.Context, string) error                  { return nil }
func (s *script) tools() *Tools                                       { return &Tools{Units: s, Root: s.root} }
func newScript(t *testing.T, programs []string, runs ...scriptedRun) *script {
	t.Helper()
	root := t.TempDir()
	for _, p := range append([]string{"run/x"}, programs...) {
		at := filepath.Join(root, p)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, nil, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	return &script{t: t, root: root, runs: runs}
}

var (
	errStatus = errors.New("exit status 1")
	succeeds  = systemd.Ended{Result: "success"}
	failed    = systemd.Ended{Result: "exit-code", Status: 1}
)

func TestToolInAUnitGivesWhatItWroteAndHowItEnded(t *testing.T) {
	for _, c := range []struct {
		name    string
		program string
		run     scriptedRun
		output  string
		stderr  string
		fails   error
	}{
		{"it succeeds", "usr/bin/tool", scriptedRun{output: "fine", ended: succeeds}, "fine", "", nil},
		{"it fails", "usr/bin/tool", scriptedRun{output: "so far", stderr: "error: no\n", ended: failed}, "so far", "error: no", failed},
		{"it is an admin's", "usr/local/bin/tool", scriptedRun{output: "fine", ended: succeeds}, "fine", "", nil},
		{"there is no such tool", "usr/bin/another", scriptedRun{}, "", "", exec.ErrNotFound},
		{"it is killed", "usr/bin/tool", scriptedRun{stderr: "working\n", fails: systemd.ErrUnitGone}, "", "working", systemd.ErrUnitGone},
		{"systemd does not answer", "usr/bin/tool", scriptedRun{stderr: "of an earlier run", fails: errStatus}, "", "", errStatus},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript(t, []string{c.program}, c.run)
			output, err := s.tools().In("x", systemd.Command{Description: "d"})(t.Context(), "tool", "--flag")
			if string(output) != c.output || !errors.Is(err, c.fails) {
				t.Errorf("gave %q, %v", output, err)
			}
			if command, ok := errors.AsType[*CommandError](err); c.fails != nil &&
				(!ok || command.Stderr != c.stderr || !slices.Equal(command.Argv, []string{"tool", "--flag"})) {
				t.Errorf("failed with %#v", err)
			}
			if len(s.asked) == 0 {
				return
			}
			if a := s.asked[0]; a.Name != "x.service" || a.Description != "d" || !a.Outlives ||
				!slices.Equal(a.Argv, []string{"/" + c.program, "--flag"}) || a.Environment[0] != "LC_ALL=C.UTF-8" {
				t.Errorf("ran %+v", a)
			}
		})
	}
}

func TestWaitForAUnitEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), UnitPoll/2)
		defer cancel()
		if err := newScript(t, nil).tools().Wait(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("gave %v", err)
		}
	})
}

func TestToolInAUnitHasTheWeightsOfItsContext(t *testing.T) {
	s := newScript(t, []string{"usr/bin/bootc"}, scriptedRun{ended: succeeds}, scriptedRun{ended: succeeds})
	tools := s.tools()
	run := tools.In("x", systemd.Command{Nice: 1})
	for _, w := range []systemd.Weights{{CPU: 20, IO: 10}, {}} {
		tools.Weights = w
		if _, err := run(t.Context(), "bootc", "switch"); err != nil {
			t.Fatal(err)
		}
		if got := s.asked[len(s.asked)-1]; got.Weights != w || got.Nice != 1 || strings.Join(got.Argv, " ") != "/usr/bin/bootc switch" {
			t.Errorf("asked: %+v", got)
		}
	}
}

func TestAToolIsRunWithTheBandwidthOfItsContext(t *testing.T) {
	p, err := pace.Listen(t.Context(), 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := newScript(t, []string{"usr/bin/bootc"}, scriptedRun{ended: succeeds})
	run := s.tools().In("x", systemd.Command{EnvironmentFiles: []string{"/etc/mco/proxy.env"}})
	if _, err := run(p.In(t.Context()), "bootc", "switch"); err != nil {
		t.Fatal(err)
	}
	// The last file counts. The password is where everyone may look neither in the command line nor in the unit.
	variables := pace.Environment(p.In(t.Context()))
	got := s.asked[0]
	path := filepath.Join(s.root, "run/x.env")
	if !slices.Equal(got.Argv, []string{"/usr/bin/bootc", "switch"}) || len(got.Environment) != 2 ||
		!slices.Equal(got.EnvironmentFiles, []string{"/etc/mco/proxy.env", "/run/x.env"}) {
		t.Errorf("asked: %+v", got)
	}
	text, err := os.ReadFile(path)
	if want := strings.Join(variables, "\n") + "\n"; err != nil || string(text) != want {
		t.Errorf("the file is %q, %v, want %q", text, err, want)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	out, err := Exec(p.In(t.Context()), "sh", "-c", "env | grep -i _proxy= | sort")
	slices.Sort(variables)
	if err != nil || strings.TrimSpace(string(out)) != strings.Join(variables, "\n") {
		t.Errorf("a tool of this process has %s, %v, want %q", out, err, variables)
	}
}

func TestLastLineOfAUnitIsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := hostTree(t, map[string]string{"run/x.stdout": "one\ntwo\n"})
		var said []string
		stop := (&Tools{Root: root}).Follow(t.Context(), "x", func(text string) { said = append(said, text) })
		time.Sleep(3 * UnitPoll) //nolint:forbidigo // it is the bubble's time
		synctest.Wait()
		if err := os.WriteFile(filepath.Join(root, "run/x.stdout"), []byte("one\ntwo\nthree\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(UnitPoll) //nolint:forbidigo // it is the bubble's time
		synctest.Wait()
		stop()
		if !slices.Equal(said, []string{"two", "three"}) {
			t.Errorf("it said %q", said)
		}
	})
}
