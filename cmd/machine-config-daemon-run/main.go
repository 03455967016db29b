// SPDX-License-Identifier: Apache-2.0

// Command machine-config-daemon-run is what "machine-config-daemon run" becomes: the node's side of a cluster. It is a
// program of its own so that the program on the host, which runs in every boot and for every verb, has no Kubernetes
// client in it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/ostree"
)

// version is set by the build.
var version = "dev"

// usageError is a command line that can't be meant.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// Where the reader of the log is gone, a write fails. A failed write must not end an update.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	err := os.Setenv("PATH", ostree.SearchPath) // the caller of this process has another one
	if err == nil {
		err = root().ExecuteContext(ctx)
	}
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "error:", message.OneLine(err.Error()))
	if errors.As(err, new(usageError)) {
		os.Exit(host.ExitUsage)
	}
	os.Exit(host.ExitCode(err))
}

// root is named like the program that people type.
func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "machine-config-daemon",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("the command run is needed; see machine-config-daemon run --help")}
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.AddCommand(runCommand())
	return cmd
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}
