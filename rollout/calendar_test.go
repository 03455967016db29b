// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/teambition/rrule-go"

	"github.com/noderefit/noderefit/api"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	when, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return when
}

func TestACalendarSaysWhetherItIsOpenAndUntilWhen(t *testing.T) {
	t.Parallel()
	runTable(t, "windows.txt")
}

func TestWindowsThatMakeNoSenseAreRefusedByField(t *testing.T) {
	t.Parallel()
	runTable(t, "windows-wrong.txt")
}

// What is left out of a rule's past, and kept of what was found, changes no answer.
func TestARuleHasTheTimesThatItHasFromItsBeginning(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	chance := rand.New(rand.NewPCG(1, 2))
	for _, text := range []string{
		"FREQ=HOURLY;INTERVAL=5", "FREQ=HOURLY;INTERVAL=7;BYDAY=SA,SU", "FREQ=DAILY", "FREQ=DAILY;INTERVAL=3;BYHOUR=1,14",
		"FREQ=DAILY;INTERVAL=2;BYDAY=MO,TU", "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,SU", "FREQ=WEEKLY;INTERVAL=3;WKST=SU;BYDAY=SU,MO",
		"FREQ=MONTHLY;BYDAY=-1SA", "FREQ=DAILY;COUNT=40", "FREQ=WEEKLY;UNTIL=20250601T000000Z",
	} {
		schedule, err := readRule(text, "2024-02-29T02:30:00", berlin)
		if err != nil {
			t.Fatal(err)
		}
		r, is := schedule.(*rule)
		if !is {
			t.Fatalf("%T", schedule)
		}
		whole, err := rrule.NewRRule(r.option)
		if err != nil {
			t.Fatal(err)
		}
		from := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
		for range 40 {
			at := from.Add(time.Duration(chance.Int64N(int64(3 * 365 * 24 * time.Hour))))
			for range 3 {
				want := whole.After(at, false)
				if got := r.Next(at); !got.Equal(want) {
					t.Fatalf("%s: after %s comes %s, want %s", text, at, got, want)
				}
				at = at.Add(time.Duration(chance.Int64N(int64(20*24*time.Hour))) - 5*24*time.Hour)
			}
		}
	}
}

// A rule costs by how far it is looked at: one that never comes true, asked in years to come, must come to an end.
func BenchmarkCalendar(b *testing.B) {
	windows := &api.RolloutWindows{
		TimeZone: "Europe/Berlin",
		Open: []api.Window{
			{Cron: "0 22 * * MON-THU", DurationMinutes: 240},
			{RRule: "FREQ=MONTHLY;BYDAY=2SA", Start: "2020-01-11T20:00:00", DurationMinutes: 600},
		},
		Blackouts: []api.Window{{From: "2026-12-20", Until: "2027-01-06"}, {Cron: "0 0 * * FRI", DurationMinutes: 1440}},
	}
	calendar, err := readCalendar(windows)
	if err != nil {
		b.Fatal(err)
	}
	now := time.Date(2026, 12, 19, 0, 0, 0, 0, time.UTC)
	b.ReportAllocs()
	for b.Loop() {
		calendar.at(now)
	}
}
