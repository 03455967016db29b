// SPDX-License-Identifier: Apache-2.0

// Package cli is the code that the programs below cmd/ share: the signals that end them, the exit code of an error, and
// the one line that reports the error. The main function of a program is
//
//	ctx, stop := cli.Signals()
//	executed, err := command().ExecuteContextC(ctx)
//	stop()
//	os.Exit(cli.End(os.Stderr, executed, err))
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/noderefit/noderefit/message"
)

// Exit codes with the same meaning in all programs (docs/commands.md). exitUnreachable is for a goal that no further
// try can reach.
const (
	exitFailed      = 1
	ExitUsage       = 2
	exitUnreachable = 3
	// signalled is added to the number of a signal.
	signalled = 128
)

// UsageError is the error of a wrong command line. Every other error is a failure.
type UsageError struct{ Err error }

// Usagef returns a UsageError with a text in the format of fmt.Errorf.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

func (e UsageError) Error() string { return e.Err.Error() }

func (e UsageError) Unwrap() error { return e.Err }

// ExitStatus returns ExitUsage.
func (UsageError) ExitStatus() int { return ExitUsage }

// UnreachableError is the error of a goal that no further try can reach, such as a desired state that the nodes can't
// reach from their present one.
type UnreachableError struct{ Err error }

// Unreachablef returns an UnreachableError with a text in the format of fmt.Errorf.
func Unreachablef(format string, args ...any) error {
	return UnreachableError{fmt.Errorf(format, args...)}
}

func (e UnreachableError) Error() string { return e.Err.Error() }

func (e UnreachableError) Unwrap() error { return e.Err }

// ExitStatus returns exitUnreachable.
func (UnreachableError) ExitStatus() int { return exitUnreachable }

// coded is an error with its own exit code.
type coded interface {
	error
	ExitStatus() int
}

// ExitCode returns the exit code of a program that ends with err: the ExitStatus of an error in it, or 1.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	if own, ok := errors.AsType[coded](err); ok {
		return own.ExitStatus()
	}
	return exitFailed
}

// Signals returns a context that ends with the first SIGINT or SIGTERM. After stop a signal ends the process.
func Signals() (ctx context.Context, stop context.CancelFunc) {
	ended, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			cancel(SignalError{s})
		case <-ended.Done():
		}
	}()
	return ended, func() {
		signal.Stop(signals)
		cancel(context.Canceled)
	}
}

// SignalError is the cause of a context that a signal ended.
type SignalError struct{ Signal os.Signal }

func (e SignalError) Error() string { return e.Signal.String() + " signal received" }

// Is reports whether target is context.Canceled: programs that serve end well by a signal, and judge by the cause.
func (SignalError) Is(target error) bool { return target == context.Canceled }

// Code returns the exit code that shells give a program that ends by the signal.
func (e SignalError) Code() int {
	if s, ok := e.Signal.(syscall.Signal); ok {
		return signalled + int(s)
	}
	return exitFailed
}

// Say writes the last line of a program that failed.
func Say(stderr io.Writer, text string) { fmt.Fprintln(stderr, "error:", message.OneLine(text)) }

// End writes the error of a command, if err is one, and returns the exit code of the program.
func End(stderr io.Writer, executed *cobra.Command, err error) int {
	if err != nil {
		Say(stderr, err.Error()+SeeHelp(executed, err))
	}
	return ExitCode(err)
}

// SeeHelp returns the end of an error about the command line, "" for other errors.
func SeeHelp(executed *cobra.Command, err error) string {
	if _, usage := errors.AsType[UsageError](err); !usage || strings.Contains(err.Error(), "--help") {
		return ""
	}
	return "; see " + executed.CommandPath() + " --help"
}

// Root makes a program's command return its errors instead of printing them. A wrong flag is a UsageError. The program
// gets what every program has: --version and the command version, and completion, which help does not list.
func Root(cmd *cobra.Command, version string) {
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(flagError)
	cmd.Version = version
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.AddCommand(versionCommand(version))
	addManual(cmd)
}

// Examples gives a program and its commands what --help shows as examples, by their names.
func Examples(root *cobra.Command, examples map[string]string) {
	root.Example = examples[root.Name()]
	for _, c := range root.Commands() {
		if text := examples[c.Name()]; text != "" {
			c.Example = text
		}
	}
}

func versionCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", cmd.Root().Name(), version)
			return err
		},
	}
}

// NoArgs refuses arguments.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef("unexpected argument %q", args[0])
	}
	return nil
}

// NoCommand refuses the arguments of a root command: they are unknown commands.
func NoCommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		names := []string{}
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
		return Usagef("unknown command %q%s", args[0], DidYouMean(args[0], names))
	}
	return nil
}

// DidYouMean returns the end of an error about a name that there is not: the names that are nearly the same, or "".
func DidYouMean(name string, names []string) string {
	// The library tells near from far for commands alone.
	all := &cobra.Command{SuggestionsMinimumDistance: nearly}
	for _, n := range names {
		all.AddCommand(&cobra.Command{Use: n, Run: func(*cobra.Command, []string) {}})
	}
	near := all.SuggestionsFor(name)
	if len(near) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(near, " or ") + "?"
}

// nearly is how many letters may differ between a name and the one that was meant.
const nearly = 2

// flagError returns a UsageError, with the flags that may be meant.
func flagError(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, "--"+f.Name)
			}
		})
		return Usagef("%w%s", err, DidYouMean("--"+unknown.GetSpecifiedName(), names))
	}
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if why := wanted[wrong.GetFlag().Value.Type()]; why != "" {
			return Usagef("flag --%s: %q is %s", wrong.GetFlag().Name, wrong.GetValue(), why)
		}
	}
	return UsageError{err}
}

// wanted is what a value is not, by the type of a flag. The library has the words of strconv there.
var wanted = map[string]string{
	"bool":     "neither true nor false",
	"duration": "no duration; write, for example, 90s or 4h",
	"int":      "no number",
}

// Formats of a command's output: for people, and for programs.
const (
	Text = "text"
	JSON = "json"
)

// TextOrJSON refuses a format that is neither. flag is the flag's name as people write it.
func TextOrJSON(flag, format string) error {
	if format != Text && format != JSON {
		return Usagef("%s: %q is neither text nor json", flag, format)
	}
	return nil
}

// OneOf refuses a value of a flag that is not in allowed.
func OneOf(flag, value string, allowed ...string) error {
	if !slices.Contains(allowed, value) {
		return Usagef("%s: %q is not one of %s", flag, value, strings.Join(allowed, ", "))
	}
	return nil
}

// WriteJSON writes a value for programs, in a form that people can read too.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
