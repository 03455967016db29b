// SPDX-License-Identifier: Apache-2.0

// Command machine-config-daemon-run is the node's side of a cluster: "machine-config-daemon run" executes it. It is a
// program of its own, so that the program on the host has no Kubernetes client in it. That program runs in every boot
// and for every verb.
package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/ostree"
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := cli.Signals()
	// Where the reader of the log is gone, a write fails. A failed write must not end an update.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	var executed *cobra.Command
	err := os.Setenv("PATH", ostree.SearchPath) // the caller of this process has another PATH
	if err == nil {
		executed, err = root().ExecuteContextC(ctx)
	}
	stop()
	os.Exit(cli.End(os.Stderr, executed, err))
}

// root has the name of the program that people type.
func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:  "machine-config-daemon",
		Args: cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return cli.Usagef("the command run is needed; see machine-config-daemon run --help")
		},
	}
	cli.Root(cmd, version)
	cmd.AddCommand(runCommand())
	return cmd
}
