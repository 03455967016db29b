// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
)

func TestAnAnswerHasTheTimesOfWhoReads(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	a := progress.Answer{
		Subject: progress.Object{Kind: kindPool, Name: "worker"}, Verdict: progress.OutsideWindow, Since: noon, Until: noon.Add(time.Hour),
		Because: "held since 2026-03-01T12:00:00Z; the next one opens at 2026-03-01T08:00:00-05:00",
		Images:  "2 of 30 images are missing, and are being pulled",
	}
	if err := WriteAnswer(message.Local(&out, zone(t, "Europe/Berlin")), a, noon); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"OutsideWindow since 2026-03-01T13:00:00+01:00", "held since 2026-03-01T13:00:00+01:00",
		"opens at 2026-03-01T08:00:00-05:00", "until:    2026-03-01T14:00:00+01:00", "\n  images:   2 of 30 images are missing",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

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
