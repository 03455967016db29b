// SPDX-License-Identifier: Apache-2.0

//go:build !manual

package cli

import "github.com/spf13/cobra"

// addManual adds nothing: see the file for the build tag manual.
func addManual(*cobra.Command) {}
