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

	"github.com/noderefit/noderefit/host"
)

// runCommand is replaced by the program that speaks to a cluster. A host that no agent of a cluster runs on as a
// service needs no such program.
func runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Keep this host at the configuration that the cluster wants of its Node",
		// The flags are the other program's, --help too.
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("finding this program: %w", err)
			}
			program := filepath.Join(filepath.Dir(self), host.RunProgram)
			err = unix.Exec(program, os.Args, os.Environ())
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("running in a cluster: %s is not there: put %s of the same release beside %s",
					program, host.RunProgram, self)
			}
			return fmt.Errorf("running %s: %w", program, err)
		},
	}
}
