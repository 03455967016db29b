// SPDX-License-Identifier: Apache-2.0

// Package cli is the code that the programs below cmd/ share: the signals that end them, the exit code of an error, and
// the one line that reports the error. The main function of a program is
//
//	ctx, stop := cli.Signals()
//	err := command().ExecuteContext(ctx)
//	stop()
//	os.Exit(cli.End(os.Stderr, err))
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

	"github.com/noderefit/noderefit/message"
)

// Exit codes with the same meaning in all programs (docs/commands.md). ExitUnreachable is for a goal that no further
// try can reach.
const (
	exitFailed      = 1
	ExitUsage       = 2
	ExitUnreachable = 3
)

// UsageError is the error of a wrong command line. Every other error is a failure.
type UsageError struct{ Err error }

// Usagef returns a UsageError with a text in the format of fmt.Errorf.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

func (e UsageError) Error() string { return e.Err.Error() }

func (e UsageError) Unwrap() error { return e.Err }

// ExitStatus returns ExitUsage.
func (UsageError) ExitStatus() int { return ExitUsage }

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
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}

// Say writes the last line of a program that failed.
func Say(stderr io.Writer, text string) { fmt.Fprintln(stderr, "error:", message.OneLine(text)) }

// End writes the error, if err is one, and returns the exit code of the program.
func End(stderr io.Writer, err error) int {
	if err != nil {
		Say(stderr, err.Error())
	}
	return ExitCode(err)
}

// Root makes a program's command return its errors instead of printing them. A wrong flag is a UsageError. The program
// gets what every program has: --version and the command version, and completion, which help does not list.
func Root(cmd *cobra.Command, version string) {
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return UsageError{err} })
	cmd.Version = version
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.AddCommand(versionCommand(version))
	addManual(cmd)
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
func NoCommand(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef("unknown command %q", args[0])
	}
	return nil
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
