// SPDX-License-Identifier: Apache-2.0

//go:build testclock

package rollout

import (
	"os"
	"strings"
	"time"
)

// Now is a clock that the tests set: the file that $NODEREFIT_TEST_CLOCK names says by how much it is ahead, as in
// 36h10m. Without the file it is the machine's. What is built for people has it not.
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
