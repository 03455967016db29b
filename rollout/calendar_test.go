// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"math/rand/v2"
	"strings"
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
		"a blackout that begins at a time which clocks skip": {
			api.RolloutWindows{TimeZone: "Europe/Berlin", Blackouts: []api.Window{{Cron: "30 2 * * *", DurationMinutes: 600}}},
			"2026-03-29T08:00:00Z", false, "2026-03-29T11:30:00Z", "",
		},
		"a blackout of the day on which midnight is skipped": {
			api.RolloutWindows{TimeZone: "Africa/Cairo", Blackouts: []api.Window{{Cron: "0 0 * * FRI", DurationMinutes: 1440}}},
			"2026-04-24T08:00:00Z", false, "2026-04-24T22:00:00Z", "",
		},
		"a day that begins when midnight is skipped": {
			api.RolloutWindows{TimeZone: "America/Santiago", Blackouts: []api.Window{{From: "2026-09-05", Until: "2026-09-05"}}},
			"2026-09-06T03:30:00Z", false, "2026-09-06T04:00:00Z", "",
		},
		"what clocks show twice begins once": {
			api.RolloutWindows{TimeZone: "Europe/Berlin", Open: []api.Window{{Cron: "30 2 * * *", DurationMinutes: 15}}},
			"2026-10-25T01:00:00Z", false, "2026-10-26T01:30:00Z", "",
		},
		"a rule's time that clocks skip": {
			api.RolloutWindows{TimeZone: "Europe/Berlin", Open: []api.Window{{
				RRule: "FREQ=DAILY", Start: "2026-01-01T02:30:00", DurationMinutes: 60,
			}}},
			"2026-03-29T01:00:00Z", false, "2026-03-29T01:30:00Z", "",
		},
		"an hourly window behind a long blackout": {
			api.RolloutWindows{
				Open:      []api.Window{{RRule: "FREQ=HOURLY", Start: "2001-01-01T00:10:00", DurationMinutes: 20}},
				Blackouts: []api.Window{{Name: "long", From: "2026-03-01", Until: "2027-03-01"}},
			},
			"2026-03-02T00:00:00Z", false, "2027-03-02T00:10:00Z", "long",
		},
		"a blackout without an end": {
			api.RolloutWindows{Blackouts: []api.Window{{RRule: "FREQ=DAILY", Start: "2026-01-01T00:00:00", DurationMinutes: 1440}}},
			"2026-03-02T00:00:00Z", false, "", "",
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
		"spec.windows.timeZone":                         {TimeZone: "Middle/Earth"},
		"spec.windows.open[0].cron":                     {Open: []api.Window{{Cron: "61 * * * *", DurationMinutes: 1}}},
		"spec.windows.open[1].cron: \"CRON_TZ":          {Open: []api.Window{{Cron: "1 * * * *", DurationMinutes: 1}, {Cron: "CRON_TZ=UTC 1 * * * *", DurationMinutes: 1}}},
		"spec.windows.open[0].rrule":                    {Open: []api.Window{{RRule: "FREQ=SOMETIMES", Start: "2026-01-10T20:00:00", DurationMinutes: 1}}},
		"spec.windows.open[0].rrule: \"FREQ=MINU":       {Open: []api.Window{{RRule: "FREQ=MINUTELY", Start: "2026-01-10T20:00:00", DurationMinutes: 1}}},
		"spec.windows.open[0].rrule: \"FREQ=HOUR":       {Open: []api.Window{{RRule: "FREQ=HOURLY;INTERVAL=2;BYHOUR=3", Start: "2026-01-10T20:00:00", DurationMinutes: 1}}},
		"spec.windows.open[0].rrule: \"FREQ=HOURLY;BYM": {Open: []api.Window{{RRule: "FREQ=HOURLY;BYMONTH=2;BYMONTHDAY=30", Start: "2026-01-10T20:00:00", DurationMinutes: 1}}},
		"spec.windows.open[0].rrule: \"FREQ=DAILY;CO":   {Open: []api.Window{{RRule: "FREQ=DAILY;COUNT=1001", Start: "2026-01-10T20:00:00", DurationMinutes: 1}}},
		"spec.windows.open[0].start":                    {Open: []api.Window{{RRule: "FREQ=DAILY", Start: "2026-01-10", DurationMinutes: 1}}},
		"spec.windows.open[0].durationMinutes":          {Open: []api.Window{{Cron: "1 * * * *"}}},
		"spec.windows.blackouts[0].until":               {Blackouts: []api.Window{{From: "2026-01-10", Until: "2026-01-09"}}},
		"spec.windows.blackouts[0].from":                {Blackouts: []api.Window{{From: "Christmas", Until: "2026-01-09"}}},
	} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			if _, err := readCalendar(&w); err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("got %v, want an error that names %s", err, field)
			}
		})
	}
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
