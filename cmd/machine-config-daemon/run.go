// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/agent"
)

// runCommand is replaced by the program that talks to a cluster. A host needs that program only where an agent of a
// cluster runs on it as a service.
func runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Keep this host at the configuration that the cluster wants of its Node",
		Long: `run is a program of its own, machine-config-daemon-run, in the same directory; its flags are in
docs/cluster-reference.md.`,
		// The flags are those of the other program, --help too.
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("finding this program: %w", err)
			}
			program := filepath.Join(filepath.Dir(self), agent.RunProgram)
			if err := cmd.Context().Err(); err != nil {
				return err // a signal that came before: the other program would not see that signal
			}
			err = unix.Exec(program, os.Args, os.Environ())
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("running in a cluster: %s is not there: put %s of the same release beside %s",
					program, agent.RunProgram, self)
			}
			return fmt.Errorf("running %s: %w", program, err)
		},
	}
}
