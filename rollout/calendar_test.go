// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"strings"
	"testing"
	"time"

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
	nightly := []api.Window{{Cron: "0 22 * * *", DurationMinutes: 240}}
	for name, c := range map[string]struct {
		windows api.RolloutWindows
		at      string
		open    bool
		until   string // empty: never
		black   string
	}{
		"in a nightly window": {
			api.RolloutWindows{Open: nightly}, "2026-03-02T23:00:00Z", true, "2026-03-03T02:00:00Z", "",
		},
		"the first moment belongs to it": {
			api.RolloutWindows{Open: nightly}, "2026-03-02T22:00:00Z", true, "2026-03-03T02:00:00Z", "",
		},
		"the last moment does not": {
			api.RolloutWindows{Open: nightly}, "2026-03-03T02:00:00Z", false, "2026-03-03T22:00:00Z", "",
		},
		"by day": {
			api.RolloutWindows{Open: nightly}, "2026-03-03T12:00:00Z", false, "2026-03-03T22:00:00Z", "",
		},
		"in a time zone": {
			api.RolloutWindows{Open: nightly, TimeZone: "America/New_York"}, "2026-03-03T02:59:00Z", false,
			"2026-03-03T03:00:00Z", "",
		},
		"in a time zone after its clocks were put forward": {
			api.RolloutWindows{Open: nightly, TimeZone: "America/New_York"}, "2026-03-09T01:00:00Z", false,
			"2026-03-09T02:00:00Z", "",
		},
		"the second Saturday of a month": {
			api.RolloutWindows{Open: []api.Window{{
				RRule: "FREQ=MONTHLY;BYDAY=2SA", Start: "2026-01-10T20:00:00", DurationMinutes: 60,
			}}},
			"2026-03-01T00:00:00Z", false, "2026-03-14T20:00:00Z", "",
		},
		"within the second Saturday's": {
			api.RolloutWindows{Open: []api.Window{{
				RRule: "FREQ=MONTHLY;BYDAY=2SA", Start: "2026-01-10T20:00:00", DurationMinutes: 60,
			}}},
			"2026-03-14T20:59:59Z", true, "2026-03-14T21:00:00Z", "",
		},
		"a rule that has ended": {
			api.RolloutWindows{Open: []api.Window{{
				RRule: "FREQ=DAILY;COUNT=2", Start: "2026-01-10T20:00:00", DurationMinutes: 60,
			}}},
			"2026-03-01T00:00:00Z", false, "", "",
		},
		"a rule that never comes true": {
			api.RolloutWindows{Open: []api.Window{{
				RRule: "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", Start: "2026-01-10T20:00:00", DurationMinutes: 60,
			}}},
			"2026-03-01T00:00:00Z", false, "", "",
		},
		"windows that touch are one": {
			api.RolloutWindows{Open: []api.Window{
				{Cron: "0 22 * * *", DurationMinutes: 120}, {Cron: "0 0 * * *", DurationMinutes: 60},
			}},
			"2026-03-02T23:00:00Z", true, "2026-03-03T01:00:00Z", "",
		},
		"a blackout ends what is open": {
			api.RolloutWindows{Open: nightly, Blackouts: []api.Window{
				{Name: "quarter end", From: "2026-03-03T00:00:00", Until: "2026-03-03T12:00:00"},
			}},
			"2026-03-02T23:00:00Z", true, "2026-03-03T00:00:00Z", "",
		},
		"a blackout of days covers the last of them": {
			api.RolloutWindows{Open: nightly, Blackouts: []api.Window{
				{Name: "holidays", From: "2026-12-20", Until: "2027-01-06"},
			}},
			"2027-01-06T23:30:00Z", false, "2027-01-07T00:00:00Z", "holidays",
		},
		"blackouts alone leave the rest open": {
			api.RolloutWindows{Blackouts: []api.Window{{From: "2026-12-20", Until: "2027-01-06"}}},
			"2026-12-19T00:00:00Z", true, "2026-12-20T00:00:00Z", "",
		},
		"after the last blackout it is open for good": {
			api.RolloutWindows{Blackouts: []api.Window{{From: "2026-12-20", Until: "2027-01-06"}}},
			"2027-02-01T00:00:00Z", true, "", "",
		},
		"a weekly blackout": {
			api.RolloutWindows{Blackouts: []api.Window{{Name: "Fridays", Cron: "0 0 * * FRI", DurationMinutes: 1440}}},
			"2026-03-06T10:00:00Z", false, "2026-03-07T00:00:00Z", "Fridays",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calendar, err := readCalendar(&c.windows)
			if err != nil {
				t.Fatal(err)
			}
			got := calendar.at(at(t, c.at))
			if got.open != c.open || got.blackout != c.black {
				t.Errorf("open %v, blackout %q; want %v, %q", got.open, got.blackout, c.open, c.black)
			}
			until := ""
			if !got.until.IsZero() {
				until = got.until.UTC().Format(time.RFC3339)
			}
			if until != c.until {
				t.Errorf("until %q, want %q", until, c.until)
			}
		})
	}
}

func TestWindowsThatMakeNoSenseAreRefusedByField(t *testing.T) {
	t.Parallel()
	for field, w := range map[string]api.RolloutWindows{
		"spec.windows.timeZone":                   {TimeZone: "Middle/Earth"},
		"spec.windows.open[0].cron":               {Open: []api.Window{{Cron: "61 * * * *", DurationMinutes: 1}}},
		"spec.windows.open[1].cron: \"CRON_TZ":    {Open: []api.Window{{Cron: "1 * * * *", DurationMinutes: 1}, {Cron: "CRON_TZ=UTC 1 * * * *", DurationMinutes: 1}}},
		"spec.windows.open[0].rrule":              {Open: []api.Window{{RRule: "FREQ=SOMETIMES", Start: "2026-01-10T20:00:00", DurationMinutes: 1}}},
		"spec.windows.open[0].rrule: \"FREQ=MINU": {Open: []api.Window{{RRule: "FREQ=MINUTELY", Start: "2026-01-10T20:00:00", DurationMinutes: 1}}},
		"spec.windows.open[0].rrule: \"FREQ=HOUR": {Open: []api.Window{{RRule: "FREQ=HOURLY;INTERVAL=2;BYHOUR=3", Start: "2026-01-10T20:00:00", DurationMinutes: 1}}},
		"spec.windows.open[0].start":              {Open: []api.Window{{RRule: "FREQ=DAILY", Start: "2026-01-10", DurationMinutes: 1}}},
		"spec.windows.open[0].durationMinutes":    {Open: []api.Window{{Cron: "1 * * * *"}}},
		"spec.windows.blackouts[0].until":         {Blackouts: []api.Window{{From: "2026-01-10", Until: "2026-01-09"}}},
		"spec.windows.blackouts[0].from":          {Blackouts: []api.Window{{From: "Christmas", Until: "2026-01-09"}}},
	} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			if _, err := readCalendar(&w); err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("got %v, want an error that names %s", err, field)
			}
		})
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
