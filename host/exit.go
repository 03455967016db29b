// SPDX-License-Identifier: Apache-2.0

package host

import "errors"

// The exit codes, which tell the errors apart (docs/commands.md).
const (
	ExitFailed         = 1
	ExitUsage          = 2
	ExitUnreconcilable = 3
	ExitDrift          = 4
	ExitRefused        = 5
)

// ExitCode returns the exit code of a command that ended with err.
func ExitCode(err error) int {
	var unreachable *UnreachableError
	var drift *DriftError
	var refused *Refused
	switch {
	case err == nil:
		return 0
	case errors.As(err, &unreachable):
		return ExitUnreconcilable
	case errors.As(err, &drift):
		return ExitDrift
	case errors.As(err, &refused):
		return ExitRefused
	}
	return ExitFailed
}
