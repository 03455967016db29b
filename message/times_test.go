// SPDX-License-Identifier: Apache-2.0

package message

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTimesAreThoseOfTheReaderAndWindowsThoseOfThePolicy(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"held since 2026-03-01T23:30:00Z, until 2026-07-01T12:00:00Z":        "held since 2026-03-02T00:30:00+01:00, until 2026-07-01T14:00:00+02:00",
		"no window is open; the next one opens at 2026-03-01T21:00:00+00:00": "no window is open; the next one opens at 2026-03-01T21:00:00+00:00",
		"the next one opens at 2026-03-01T16:00:00-05:00":                    "the next one opens at 2026-03-01T16:00:00-05:00",
		"2026-02-31T12:00:00Z is no day":                                     "2026-02-31T12:00:00Z is no day",
		"image:2026-03-01 rendered-a":                                        "image:2026-03-01 rendered-a",
		"":                                                                   "",
	} {
		if got := LocalTimes(text, berlin); got != want {
			t.Errorf("%q: %q; want %q", text, got, want)
		}
		if got := LocalTimes(text, time.UTC); got != text {
			t.Errorf("%q in UTC: %q", text, got)
		}
	}
	var out strings.Builder
	text := "a: 2026-03-01T12:00:00Z\n"
	if n, err := fmt.Fprint(Local(&out, berlin), text); n != len(text) || err != nil || out.String() != "a: 2026-03-01T13:00:00+01:00\n" {
		t.Errorf("%d, %v, %q", n, err, out.String())
	}
}
