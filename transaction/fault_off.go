// SPDX-License-Identifier: Apache-2.0

//go:build !faults

package transaction

// fault is a point where a build with the tag "faults" can stop, kill or fail the process. In this build the function
// does nothing.
func fault(string) error { return nil }
