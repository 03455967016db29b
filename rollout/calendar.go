// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
	_ "time/tzdata" // the images have none, and a window must not be at another time for that

	"github.com/robfig/cron/v3"
	"github.com/teambition/rrule-go"

	"github.com/noderefit/noderefit/api"
)

const (
	localTime = "2006-01-02T15:04:05"
	localDay  = "2006-01-02"
	// horizon is how far a rule is looked into the future, and oldest the first year in which one may have begun: both
	// bound what a rule that never comes true costs.
	horizon = 5 * 366 * 24 * time.Hour
	oldest  = 2000
	// mostEdges is how many times at which a window opens or closes are looked at for one that changes anything.
	mostEdges = 10_000
	// mostEdgesOpen is the same while a window is open.
	mostEdgesOpen = 100
)

// fiveFields are those of the crontab: no seconds, no @daily, no zone of its own.
var fiveFields = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// schedule is when something begins: Next is the first time after t, zero where there is none.
type schedule interface{ Next(t time.Time) time.Time }

// span is a time that comes once or again and again.
type span struct {
	schedule

	name   string
	length time.Duration
}

// covers says that t is within the span, and until when.
func (s span) covers(t time.Time) (time.Time, bool) {
	begin := s.Next(t.Add(-s.length))
	if begin.IsZero() || begin.After(t) {
		return time.Time{}, false
	}
	return begin.Add(s.length), true
}

// calendar is when nodes may begin.
type calendar struct {
	open, closed []span
	onClose      api.WindowClose
}

// moment is what a calendar says at a time.
type moment struct {
	open bool
	// until is when that changes; zero: it does not, as far as can be seen.
	until time.Time
	// blackout is the name of the one that forbids it; empty: none does, or it has none.
	blackout string
	black    bool
}

// at is what the calendar says at t.
func (c *calendar) at(t time.Time) moment {
	now := c.look(t)
	edge := t
	most := mostEdges
	if now.open {
		most = mostEdgesOpen // at the end of which it is only looked at again
	}
	for range most {
		if end := c.blackUntil(edge); !end.IsZero() {
			edge = end // what begins and ends within a blackout changes nothing
		} else if edge = c.edge(edge); edge.IsZero() {
			return now
		}
		if edge.After(t.Add(horizon)) {
			return now // as good as never
		}
		if c.look(edge).open != now.open {
			break
		}
	}
	now.until = edge // one that changes nothing where windows follow each other for years: it is looked at again then
	return now
}

// blackUntil is when the last of the blackouts at t ends; zero: there is none.
func (c *calendar) blackUntil(t time.Time) time.Time {
	var last time.Time
	for _, s := range c.closed {
		if end, is := s.covers(t); is && end.After(last) {
			last = end
		}
	}
	return last
}

func (c *calendar) look(t time.Time) moment {
	for _, s := range c.closed {
		if _, is := s.covers(t); is {
			return moment{black: true, blackout: s.name}
		}
	}
	for _, s := range c.open {
		if _, is := s.covers(t); is {
			return moment{open: true}
		}
	}
	return moment{open: len(c.open) == 0}
}

// edge is the first time after t at which any span begins or ends; zero: none does.
func (c *calendar) edge(t time.Time) time.Time {
	var first time.Time
	sooner := func(u time.Time) {
		if !u.IsZero() && u.After(t) && (first.IsZero() || u.Before(first)) {
			first = u
		}
	}
	for _, list := range [][]span{c.open, c.closed} {
		for _, s := range list {
			sooner(s.Next(t))
			if end, is := s.covers(t); is {
				sooner(end)
			}
		}
	}
	return first
}

// readCalendar reads the windows of a policy; nil where it has none. The error names the field.
func readCalendar(w *api.RolloutWindows) (*calendar, error) {
	if w == nil {
		return nil, nil
	}
	zone, err := time.LoadLocation(cmp.Or(w.TimeZone, "UTC"))
	if err != nil || w.TimeZone == "Local" {
		return nil, fmt.Errorf("spec.windows.timeZone: there is no time zone %q", w.TimeZone)
	}
	c := &calendar{onClose: cmp.Or(w.OnClose, api.CloseTakesBackServing)}
	var errs []error
	read := func(field string, from []api.Window) (out []span) {
		for i, one := range from {
			s, err := readSpan(one, zone)
			if err != nil {
				errs = append(errs, fmt.Errorf("spec.windows.%s[%d].%w", field, i, err))
			}
			out = append(out, s)
		}
		return out
	}
	c.open, c.closed = read("open", w.Open), read("blackouts", w.Blackouts)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

func readSpan(w api.Window, zone *time.Location) (span, error) {
	s := span{name: w.Name, length: time.Duration(w.DurationMinutes) * time.Minute}
	var err error
	switch {
	case w.Cron != "":
		s.schedule, err = readCron(w.Cron, zone)
	case w.RRule != "":
		s.schedule, err = readRule(w.RRule, w.Start, zone)
	case w.From != "":
		return readOnce(w, zone)
	default:
		err = errors.New("cron: one of cron, rrule and from is needed")
	}
	if err == nil && s.length <= 0 {
		err = errors.New("durationMinutes: has to be 1 or more")
	}
	return s, err
}

func readCron(text string, zone *time.Location) (schedule, error) {
	if strings.Contains(text, "=") {
		return nil, fmt.Errorf("cron: %q: the time zone is said in spec.windows.timeZone", text)
	}
	parsed, err := fiveFields.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("cron: %q: %w", text, err)
	}
	if fields, is := parsed.(*cron.SpecSchedule); is {
		fields.Location = time.UTC // which here stands for what clocks show
	}
	return crontab{parsed, zone}, nil
}

// crontab are the times at which the clocks of a zone show something. The library's own would leave out what clocks do
// not show as they go forward, and a blackout with it, and have twice what they show twice.
type crontab struct {
	shown cron.Schedule
	zone  *time.Location
}

// longestGap is by how much clocks go forward or back at most.
const longestGap = 3 * time.Hour

func (c crontab) Next(t time.Time) time.Time {
	local := t.In(c.zone)
	_, offset := local.Zone()
	for shown := t.Add(time.Duration(offset)*time.Second - longestGap).UTC(); ; {
		if shown = c.shown.Next(shown); shown.IsZero() {
			return shown
		}
		if at := clocksShow(shown, c.zone); at.After(t) {
			return at
		}
	}
}

// clocksShow is when the clocks of a zone show what that time is in UTC: for the first time where they do so twice, and
// as if they had not gone forward yet where they never do, as RFC 5545 has it.
func clocksShow(shown time.Time, zone *time.Location) time.Time {
	by := func(at time.Time) time.Time {
		_, offset := at.In(zone).Zone()
		return shown.Add(-time.Duration(offset) * time.Second).In(zone)
	}
	// No zone is further from UTC than this, and none changes twice in as much time.
	const away = 15 * time.Hour
	before, after := by(shown.Add(-away)), by(shown.Add(away))
	for _, at := range []time.Time{before, after} {
		if _, offset := at.Zone(); shown.Equal(at.Add(time.Duration(offset) * time.Second)) {
			return at
		}
	}
	return before
}

// once is a time that comes once.
type once struct{ begin time.Time }

func (o once) Next(t time.Time) time.Time {
	if o.begin.After(t) {
		return o.begin
	}
	return time.Time{}
}

func readOnce(w api.Window, zone *time.Location) (span, error) {
	from, _, err := readTime(w.From)
	if err != nil {
		return span{}, fmt.Errorf("from: %w", err)
	}
	until, day, err := readTime(w.Until)
	if err != nil {
		return span{}, fmt.Errorf("until: %w", err)
	}
	if day {
		until = until.AddDate(0, 0, 1)
	}
	begin, end := clocksShow(from, zone), clocksShow(until, zone)
	if !end.After(begin) {
		return span{}, fmt.Errorf("until: %s is not after %s", w.Until, w.From)
	}
	return span{schedule: once{begin}, name: w.Name, length: end.Sub(begin)}, nil
}

// readTime reads what clocks show, as if that were UTC, or a day, which is when they show midnight.
func readTime(text string) (shown time.Time, day bool, err error) {
	if shown, err = time.Parse(localDay, text); err == nil {
		return shown, true, nil
	}
	if shown, err = time.Parse(localTime, text); err == nil {
		return shown, false, nil
	}
	return shown, false, fmt.Errorf("%q is neither a day as in 2026-12-20 nor a time as in 2026-12-20T18:00:00", text)
}

// rule is a recurrence rule of RFC 5545. The library counts from the first time whenever it is asked: what it has found
// is kept, from a time on.
type rule struct {
	option rrule.ROption
	from   time.Time
	times  []time.Time
	more   rrule.Next // nil: that was all as far as the horizon
}

// ruleKept is for how far from a time, to both sides, what was found serves.
const ruleKept = 30 * 24 * time.Hour

// Next looks as far as the horizon, so that a rule which never comes true ends.
func (r *rule) Next(t time.Time) time.Time {
	if r.from.IsZero() || t.Before(r.from) || t.After(r.from.Add(2*ruleKept)) {
		r.begin(t)
	}
	for r.more != nil && (len(r.times) == 0 || !r.times[len(r.times)-1].After(t)) {
		at, found := r.more()
		if !found {
			r.more = nil
			break
		}
		r.times = append(r.times, at)
	}
	at := sort.Search(len(r.times), func(i int) bool { return r.times[i].After(t) })
	if at == len(r.times) {
		return time.Time{}
	}
	return r.times[at]
}

// begin has the library begin before t, by as much as what is asked for next may be earlier.
func (r *rule) begin(t time.Time) {
	r.from, r.times, r.more = t.Add(-ruleKept), nil, nil
	o := r.option
	if limit := t.Add(horizon); o.Until.IsZero() || o.Until.After(limit) {
		o.Until = limit
	}
	if o.Until.Before(o.Dtstart) {
		return
	}
	o.Dtstart = skipPast(o, r.from)
	made, err := rrule.NewRRule(o)
	if err != nil {
		return // it was made once already, when it was read
	}
	r.more = made.Iterator()
}

// skipPast is a later first time from which a rule comes to the same times from t on: by so many whole intervals. Where
// times are counted, or come seldom, it is the first.
func skipPast(o rrule.ROption, t time.Time) time.Time {
	days := map[rrule.Frequency]int{rrule.HOURLY: 1, rrule.DAILY: 1, rrule.WEEKLY: 7}[o.Freq] * max(o.Interval, 1)
	if days == 0 || o.Count != 0 {
		return o.Dtstart
	}
	past := int(t.Sub(o.Dtstart).Hours()/24)/days - 1
	// A day on which clocks go forward may not have the hour of the first.
	for n := past; n > 0 && n > past-3; n-- {
		later := o.Dtstart.AddDate(0, 0, n*days)
		if later.Hour() == o.Dtstart.Hour() && later.Minute() == o.Dtstart.Minute() {
			return later
		}
	}
	return o.Dtstart
}

// mostCounted is how many times a rule may count: they are all gone through whenever it is asked.
const mostCounted = 1000

func readRule(text, start string, zone *time.Location) (schedule, error) {
	shown, day, err := readTime(start)
	if err != nil || day {
		return nil, fmt.Errorf("start: %q is no time as in 2026-01-10T22:00:00", start)
	}
	begin := clocksShow(shown, zone)
	if begin.Year() < oldest {
		return nil, fmt.Errorf("start: %s is before the year %d", start, oldest)
	}
	if strings.Contains(text, "DTSTART") {
		return nil, fmt.Errorf("rrule: %q: the first time is said in start", text)
	}
	option, err := rrule.StrToROptionInLocation(text, zone)
	if err != nil {
		return nil, fmt.Errorf("rrule: %q: %w", text, err)
	}
	// The library looks for ever for an hour that its steps never come to, and hour by hour for a month.
	picks := [][]int{
		option.Byhour, option.Bymonth, option.Bymonthday, option.Byyearday, option.Byweekno, option.Bysetpos, option.Byeaster,
	}
	switch {
	case option.Freq == rrule.MINUTELY || option.Freq == rrule.SECONDLY:
		return nil, fmt.Errorf("rrule: %q: a window can't open more often than once in an hour", text)
	case option.Freq == rrule.HOURLY && slices.ContainsFunc(picks, func(p []int) bool { return len(p) > 0 }):
		return nil, fmt.Errorf("rrule: %q: FREQ=HOURLY goes with BYDAY and BYMINUTE alone; say FREQ=DAILY with BYHOUR", text)
	case option.Count > mostCounted:
		return nil, fmt.Errorf("rrule: %q: COUNT may be %d at most; say UNTIL", text, mostCounted)
	}
	option.Dtstart = begin
	if _, err := rrule.NewRRule(*option); err != nil {
		return nil, fmt.Errorf("rrule: %q: %w", text, err)
	}
	return &rule{option: *option}, nil
}
