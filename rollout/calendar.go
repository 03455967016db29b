// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"errors"
	"fmt"
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
		if edge = c.edge(edge); edge.IsZero() {
			return now
		}
		if c.look(edge).open != now.open {
			break
		}
	}
	now.until = edge // one that changes nothing where windows follow each other for years: it is looked at again then
	return now
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
		fields.Location = zone
	}
	return parsed, nil
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
	begin, _, err := readTime(w.From, zone)
	if err != nil {
		return span{}, fmt.Errorf("from: %w", err)
	}
	end, day, err := readTime(w.Until, zone)
	if err != nil {
		return span{}, fmt.Errorf("until: %w", err)
	}
	if day {
		end = end.AddDate(0, 0, 1)
	}
	if !end.After(begin) {
		return span{}, fmt.Errorf("until: %s is not after %s", w.Until, w.From)
	}
	return span{schedule: once{begin}, name: w.Name, length: end.Sub(begin)}, nil
}

// readTime reads a local time, or a day, which is the time at which it begins.
func readTime(text string, zone *time.Location) (t time.Time, day bool, err error) {
	if day = len(text) == len(localDay); day {
		if t, err = time.ParseInLocation(localDay, text, zone); err == nil {
			return t, true, nil
		}
	}
	if t, err = time.ParseInLocation(localTime, text, zone); err == nil {
		return t, false, nil
	}
	return t, false, fmt.Errorf("%q is neither a day as in 2026-12-20 nor a time as in 2026-12-20T18:00:00", text)
}

// rule is a recurrence rule of RFC 5545.
type rule struct{ option rrule.ROption }

// Next looks as far as the horizon, so that a rule which never comes true ends.
func (r rule) Next(t time.Time) time.Time {
	o := r.option
	if limit := t.Add(horizon); o.Until.IsZero() || o.Until.After(limit) {
		o.Until = limit
	}
	if o.Until.Before(o.Dtstart) {
		return time.Time{}
	}
	made, err := rrule.NewRRule(o)
	if err != nil {
		return time.Time{} // it was made once already, when it was read
	}
	return made.After(t, false)
}

func readRule(text, start string, zone *time.Location) (schedule, error) {
	begin, day, err := readTime(start, zone)
	if err != nil || day {
		return nil, fmt.Errorf("start: %q is no time as in 2026-01-10T22:00:00", start)
	}
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
	if option.Freq == rrule.MINUTELY || option.Freq == rrule.SECONDLY {
		return nil, fmt.Errorf("rrule: %q: a window can't open more often than once in an hour", text)
	}
	if option.Freq == rrule.HOURLY && len(option.Byhour) > 0 {
		// The library looks for ever for an hour that its steps never come to.
		return nil, fmt.Errorf("rrule: %q: BYHOUR belongs to FREQ=DAILY", text)
	}
	option.Dtstart = begin
	if _, err := rrule.NewRRule(*option); err != nil {
		return nil, fmt.Errorf("rrule: %q: %w", text, err)
	}
	return rule{*option}, nil
}
