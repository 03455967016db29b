// SPDX-License-Identifier: Apache-2.0

//go:build manual

package cli

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// addManual adds a command that writes the manual pages of a program, one for each of its commands. Programs that people
// get do not have this command: the converter would make the host's program larger.
func addManual(root *cobra.Command) {
	root.AddCommand(&cobra.Command{
		Use:    "manual DIR",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			root.DisableAutoGenTag = true
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			// The date of the pages is that of SOURCE_DATE_EPOCH.
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "Noderefit " + root.Version, Manual: "Noderefit"},
				args[0])
		},
	})
}
