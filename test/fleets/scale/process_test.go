// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"os"
	"testing"
	"time"
)

func TestUsageIsReadWhateverTheProgramIsCalled(t *testing.T) {
	stat := "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0"
	status := "Name:\ta) b\nVmHWM:\t  30 kB\nVmRSS:\t  20 kB\nRssAnon:\t  10 kB\nThreads:\t7\n"
	got, err := ParseUsage(stat, status)
	if want := (Usage{CPU: 2 * time.Second, RSS: 20 << 10, Own: 10 << 10, Peak: 30 << 10}); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := ParseUsage("7 (a) S", ""); err == nil {
		t.Error("takes half a file")
	}
	if got, err := UsageOf(os.Getpid()); err != nil || got.RSS == 0 || got.Own == 0 || got.Peak == 0 {
		t.Errorf("of this process: %+v, %v", got, err)
	}
}
