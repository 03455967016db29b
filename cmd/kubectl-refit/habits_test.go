// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/cli"
)

// walk calls a function with each command that people can run, except those that the library makes.
func walk(cmd *cobra.Command, each func(*cobra.Command)) {
	switch cmd.Name() {
	case "completion", "help", "version", "manual":
		return
	}
	if cmd.Runnable() && !cmd.HasSubCommands() {
		each(cmd)
	}
	for _, c := range cmd.Commands() {
		walk(c, each)
	}
}

// words of a line as a shell has them, up to a pipe or a redirection.
func shellWords(line string) []string {
	var out []string
	var word strings.Builder
	quote, began := rune(0), false
	for _, r := range line + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '"' || r == '\'':
			quote, began = r, true
		case r == '|' || r == '>':
			return out
		case r == ' ':
			if began {
				out = append(out, word.String())
			}
			word.Reset()
			began = false
		default:
			began = true
			word.WriteRune(r)
		}
	}
	return out
}

func TestEveryCommandHasExamplesThatCanBeTyped(t *testing.T) {
	t.Parallel()
	walk(root(), func(cmd *cobra.Command) {
		if cmd.Example == "" {
			t.Errorf("%s has no Example", cmd.CommandPath())
		}
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: Short: %q", cmd.CommandPath(), cmd.Short)
		}
		for line := range strings.Lines(cmd.Example) {
			args := shellWords(strings.TrimSpace(line))
			if len(args) < 2 || args[0] != "kubectl" || args[1] != "refit" || !strings.HasPrefix(line, "  ") {
				t.Errorf("%s: %q does not begin with kubectl refit", cmd.CommandPath(), line)
				continue
			}
			fresh := root()
			found, rest, err := fresh.Find(args[2:])
			if err != nil || found.CommandPath() != cmd.CommandPath() {
				t.Errorf("%q is an example of %v, %v", line, found.CommandPath(), err)
				continue
			}
			if err := found.ParseFlags(rest); err != nil {
				t.Errorf("%q: %v", line, err)
				continue
			}
			if err := found.ValidateArgs(found.Flags().Args()); err != nil {
				t.Errorf("%q: %v", line, err)
			}
			if found.PreRunE != nil {
				if err := found.PreRunE(found, found.Flags().Args()); err != nil {
					t.Errorf("%q: %v", line, err)
				}
			}
		}
	})
}

// The help of a command with commands of its own begins with those that people type first.
func TestACommandWithCommandsHasExamplesOfThem(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", "quarantine"} {
		group := root()
		if path != "" {
			group, _, _ = group.Find([]string{path})
		}
		if group.Example == "" {
			t.Errorf("%q has no Example", path)
		}
		for line := range strings.Lines(group.Example) {
			args := shellWords(strings.TrimSpace(line))
			if !slices.Equal(args[:2], []string{"kubectl", "refit"}) {
				t.Errorf("%q does not begin with kubectl refit", line)
				continue
			}
			found, rest, err := root().Find(args[2:])
			if err != nil || found.HasSubCommands() || !strings.HasPrefix(found.CommandPath(), group.CommandPath()) {
				t.Errorf("%q is an example of %s, %v", line, found.CommandPath(), err)
			} else if err := found.ParseFlags(rest); err != nil {
				t.Errorf("%q: %v", line, err)
			} else if err := found.ValidateArgs(found.Flags().Args()); err != nil {
				t.Errorf("%q: %v", line, err)
			}
		}
	}
}

func TestAMistakenWordIsAnsweredWithTheOneThatIsMeant(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"statsu":                  `error: unknown command "statsu"; did you mean status?; see kubectl refit --help`,
		"quarantine lst":          `error: unknown command "lst"; did you mean lift or list?; see kubectl refit quarantine --help`,
		"status --outptu json":    "error: unknown flag: --outptu; did you mean --output?; see kubectl refit status --help",
		"status -o jsn":           `error: unknown output format "jsn": use text, json, yaml, wide, name or jsonpath=TEMPLATE; see kubectl refit status --help`,
		"pause":                   "error: POOL is needed; see kubectl refit pause --help",
		"applaud":                 `error: unknown command "applaud"; see kubectl refit --help`,
		"watch a b":               `error: unexpected argument "b"; see kubectl refit watch --help`,
		"bypass worker":           "error: one of --why TEXT and --end is needed; see kubectl refit bypass --help",
		"hold a":                  "error: flag --why: a reason is needed, for the record; see kubectl refit hold --help",
		"watch --timeout=-1s":     "error: flags --timeout, --settle: a time cannot be negative; write, for example, 30m; see kubectl refit watch --help",
		"status --all-namespcaes": "error: unknown flag: --all-namespcaes; see kubectl refit status --help",
		"status -w -o json":       `error: flag --watch: has no output format "json": use kubectl refit status -o json again and again; see kubectl refit status --help`,
		"":                        "error: a command is needed; see kubectl refit --help",
	} {
		var out, stderr bytes.Buffer
		code := run(t.Context(), strings.Fields(args), &out, &stderr)
		if code != cli.ExitUsage || strings.TrimSpace(stderr.String()) != want || out.Len() != 0 {
			t.Errorf("%q: exit code %d\n%s\nwant\n%s\n%s", args, code, stderr.String(), want, out.String())
		}
	}
}

func TestCompletionIsListedAndKnowsTheValuesOfFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"__complete sta":                              "status\t",
		"__complete comp":                             "completion\t",
		"__complete status -o w":                      "wide\n",
		"__complete status -o jsonp":                  "jsonpath=\n:6",
		"__complete plan worker --diff s":             "short\n",
		"__complete quarantine ":                      "lift\t",
		"__complete status --kubeconfig /nowhere/x w": ":4\n", // no cluster is no error
		"__complete quarantine list a b":              ":4\n",
	} {
		var out, stderr bytes.Buffer
		words := strings.Split(args, " ")
		if code := run(t.Context(), words, &out, &stderr); code != 0 || !strings.Contains(out.String(), want) {
			t.Errorf("%q: exit code %d, %q lacks %q; %s", args, code, out.String(), want, stderr.String())
		}
	}
}
