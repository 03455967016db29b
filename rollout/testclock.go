// SPDX-License-Identifier: Apache-2.0

//go:build testclock

package rollout

import (
	"os"
	"strings"
	"time"
)

// Now returns the time of a clock that the tests set. The file named by $NODEREFIT_TEST_CLOCK has by how much the clock
// is ahead, as in 36h10m. Without the file, Now returns the machine's time. Programs for users are built without this
// clock.
func Now() time.Time {
	text, err := os.ReadFile(os.Getenv("NODEREFIT_TEST_CLOCK"))
	if err != nil {
		return time.Now()
	}
	ahead, err := time.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil {
		return time.Now()
	}
	return time.Now().Add(ahead)
}
