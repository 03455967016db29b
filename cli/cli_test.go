// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
)

func TestAnErrorHasTheExitCodeOfWhatItWraps(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	child := exec.CommandContext(t.Context(), "false").Run()
	if child == nil {
		t.Fatal("false ended well")
	}
	for name, test := range map[string]struct {
		err  error
		want int
	}{
		"none":                        {nil, 0},
		"a failure":                   {broken, exitFailed},
		"usage":                       {Usagef("flag -x: %w", broken), ExitUsage},
		"usage, wrapped":              {fmt.Errorf("reading: %w", Usagef("flag -x")), ExitUsage},
		"unreachable, beside another": {errors.Join(broken, Unreachablef("goal: %w", broken)), exitUnreachable},
		"the exit code of a child":    {fmt.Errorf("running false: %w", child), exitFailed},
	} {
		if got := ExitCode(test.err); got != test.want {
			t.Errorf("%s: exit code %d, want %d", name, got, test.want)
		}
	}
}

func TestAProgramEndsWithOneLineAndAFlagThatCannotBeReadIsUsage(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		err  error
		code int
		text string
	}{
		"all is well":           {nil, nil, 0, ""},
		"a failure":             {nil, errors.New("one\ntwo"), exitFailed, "error: one; two\n"},
		"an unknown flag":       {[]string{"--nix"}, nil, ExitUsage, "error: unknown flag: --nix; see x --help\n"},
		"an argument too many":  {[]string{"x"}, nil, ExitUsage, "error: unexpected argument \"x\"; see x --help\n"},
		"a flag of another one": {[]string{"-o", "yaml"}, nil, ExitUsage, "error: flag -o: \"yaml\" is neither text nor json; see x --help\n"},
		"no duration":           {[]string{"--for", "10"}, nil, ExitUsage, "error: flag --for: \"10\" is no duration; write, for example, 90s or 4h; see x --help\n"},
		"no number":             {[]string{"--port=ten"}, nil, ExitUsage, "error: flag --port: \"ten\" is no number; see x --help\n"},
		"neither of two":        {[]string{"--strict=maybe"}, nil, ExitUsage, "error: flag --strict: \"maybe\" is neither true nor false; see x --help\n"},
		"the version":           {[]string{"version"}, nil, 0, "x v1.2.3\n"},
		"its flag":              {[]string{"--version"}, nil, 0, "x version v1.2.3\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, output string
			cmd := &cobra.Command{Use: "x", Args: NoArgs, RunE: func(*cobra.Command, []string) error {
				return errors.Join(TextOrJSON("flag -o", output), test.err)
			}}
			cmd.Flags().StringVarP(&output, "output", "o", Text, "")
			cmd.Flags().Duration("for", 0, "")
			cmd.Flags().Int("port", 0, "")
			cmd.Flags().Bool("strict", false, "")
			Root(cmd, "v1.2.3")
			var stderr strings.Builder
			cmd.SetArgs(append([]string{}, test.args...))
			cmd.SetErr(&stderr)
			cmd.SetOut(&stderr)
			executed, err := cmd.ExecuteContextC(t.Context())
			code := End(&stderr, executed, err)
			if out = stderr.String(); code != test.code || out != test.text {
				t.Errorf("exit code %d and %q, want %d and %q", code, out, test.code, test.text)
			}
		})
	}
}

func TestAValueThatIsNotAllowedIsNamedWithThoseThatAre(t *testing.T) {
	t.Parallel()
	if err := OneOf("flag --os", "none", "auto", "none"); err != nil {
		t.Error(err)
	}
	err := OneOf("flag --os", "dos", "auto", "none")
	if want := `flag --os: "dos" is not one of auto, none`; err == nil || err.Error() != want || ExitCode(err) != ExitUsage {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestAProgramThatServesEndsWellByASignal(t *testing.T) {
	err := fmt.Errorf("serving: %w", SignalError{Signal: syscall.SIGTERM})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v is no end by a cancelled context", err)
	}
}
