// SPDX-License-Identifier: Apache-2.0

//go:build !testclock

package rollout

import "time"

// Now returns the time by which windows open and soaks end.
func Now() time.Time { return time.Now() }
