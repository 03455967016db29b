// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/progress"
)

func TestAnAnswerSaysUntilWhen(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)
	a := progress.Answer{
		Subject: progress.Object{Kind: kindPool, Name: "worker"}, Verdict: progress.OutsideWindow, Because: "it is closed",
		Until: now.Add(14 * time.Hour),
	}
	text := func() string {
		var out strings.Builder
		if err := WriteAnswer(&out, a, now); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := text(); !strings.Contains(got, "\n  until:    2026-03-02T22:00:00Z (in 14h)\n") {
		t.Errorf("it says\n%s", got)
	}
	data, err := json.Marshal(a)
	if err != nil || !strings.Contains(string(data), `"until":"2026-03-02T22:00:00Z"`) {
		t.Errorf("%s, %v", data, err)
	}
	now = a.Until.Add(time.Second)
	if got := text(); !strings.Contains(got, "until:    2026-03-02T22:00:00Z\n") {
		t.Errorf("when that is over it says\n%s", got)
	}
	a.Until = time.Time{}
	if got := text(); strings.Contains(got, "until") {
		t.Errorf("where nobody knows it says\n%s", got)
	}
	a.Warnings = []string{"MachineConfig/50-a: spec.config.storage.file: there is no such field"}
	if got := text(); !strings.Contains(got, "\n  warning:  MachineConfig/50-a: spec.config.storage.file: ") {
		t.Errorf("with a doubt it says\n%s", got)
	}
}
