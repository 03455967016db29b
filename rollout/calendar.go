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
	_ "time/tzdata" // the container images have no time zones, and windows depend on them

	"github.com/robfig/cron/v3"
	"github.com/teambition/rrule-go"

	"github.com/noderefit/noderefit/api"
)

const (
	localTime = "2006-01-02T15:04:05"
	localDay  = "2006-01-02"
	// horizon is how far a rule is followed into the future. oldest is the first year in which a rule may have begun. Both
	// limit the cost of a rule that never comes true.
	horizon = 5 * 366 * 24 * time.Hour
	oldest  = 2000
	// mostEdges is how many begins and ends of spans are looked at to find one that changes anything.
	mostEdges = 10_000
	// mostEdgesOpen is the same limit while a window is open.
	mostEdgesOpen = 100
)

// fiveFields parses the five fields of a crontab: no seconds, no @daily and no zone.
var fiveFields = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// schedule is when something begins. Next returns the first time after t, or zero if there is none.
type schedule interface{ Next(t time.Time) time.Time }

// span is a period of time that comes once or repeatedly.
type span struct {
	schedule

	name   string
	length time.Duration
}

// covers reports whether t is within the span, and when that ends.
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
	// zone is the time zone in which people wrote the windows.
	zone *time.Location
}

// moment is the state of a calendar at a time.
type moment struct {
	open bool
	// until is when the state changes; zero if no change can be foreseen.
	until time.Time
	// blackout is the name of the blackout in force; empty if none is, or if the blackout has no name.
	blackout string
	black    bool
}

// at returns the state of the calendar at t.
func (c *calendar) at(t time.Time) moment {
	now := c.look(t)
	edge := t
	most := mostEdges
	if now.open {
		most = mostEdgesOpen // the caller only looks again at the end of it
	}
	for range most {
		if end := c.blackUntil(edge); !end.IsZero() {
			edge = end // spans that begin and end within a blackout change nothing
		} else if edge = c.edge(edge); edge.IsZero() {
			return now
		}
		if edge.After(t.Add(horizon)) {
			return now // too far away to matter
		}
		if c.look(edge).open != now.open {
			break
		}
	}
	now.until = edge // this may change nothing, where windows follow each other for years: the caller looks again then
	return now
}

// blackUntil returns when the last of the blackouts in force at t ends; zero if no blackout is in force.
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

// edge returns the first time after t at which any span begins or ends; zero if no span does.
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

// Zone returns a time zone by its name in the IANA database. A name of the local time is refused: the controllers, the
// web page and the machines of people would each read another time zone.
func Zone(name string) (*time.Location, error) {
	if name == "Local" || name == "localtime" {
		return nil, fmt.Errorf("%q is another time zone for each reader; write an IANA name, such as UTC or Europe/Berlin",
			name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("there is no time zone %q", name)
	}
	return zone, nil
}

// readCalendar reads the windows of a policy. readCalendar returns nil if the policy has none. The error names the
// field.
func readCalendar(w *api.RolloutWindows) (*calendar, error) {
	if w == nil {
		return nil, nil
	}
	zone, err := Zone(cmp.Or(w.TimeZone, "UTC"))
	if err != nil {
		return nil, fmt.Errorf("spec.windows.timeZone: %w", err)
	}
	c := &calendar{onClose: cmp.Or(w.OnClose, api.CloseTakesBackServing), zone: zone}
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
		return nil, fmt.Errorf("cron: %q: set the time zone in spec.windows.timeZone", text)
	}
	parsed, err := fiveFields.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("cron: %q: %w", text, err)
	}
	if fields, is := parsed.(*cron.SpecSchedule); is {
		fields.Location = time.UTC // UTC represents what clocks show here
	}
	return crontab{parsed, zone}, nil
}

// crontab is the times at which the clocks of a zone show certain times. The library's own zones would leave out times
// that clocks skip when they go forward, and a blackout with them. Times that clocks show twice would come twice.
type crontab struct {
	shown cron.Schedule
	zone  *time.Location
}

// longestGap is the most by which clocks go forward or back.
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

// clocksShow returns when the clocks of a zone show the time that shown has in UTC. If the clocks show it twice, the
// first time counts. If the clocks never show it, they count as not having gone forward yet, as in RFC 5545.
func clocksShow(shown time.Time, zone *time.Location) time.Time {
	by := func(at time.Time) time.Time {
		_, offset := at.In(zone).Zone()
		return shown.Add(-time.Duration(offset) * time.Second).In(zone)
	}
	// No zone is further from UTC than away, and no zone changes its offset twice within away.
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

// readTime reads what clocks show, as if it were UTC. A day alone means midnight.
func readTime(text string) (shown time.Time, day bool, err error) {
	if shown, err = time.Parse(localDay, text); err == nil {
		return shown, true, nil
	}
	if shown, err = time.Parse(localTime, text); err == nil {
		return shown, false, nil
	}
	return shown, false, fmt.Errorf("%q is neither a day such as 2026-12-20 nor a time such as 2026-12-20T18:00:00", text)
}

// rule is a recurrence rule of RFC 5545. The library counts from the first time at every question, so the times that it
// has found are kept, from a certain time on.
type rule struct {
	option rrule.ROption
	from   time.Time
	times  []time.Time
	more   rrule.Next // nil: no more times up to the horizon
}

// ruleKept is how far before and after a time the kept times serve.
const ruleKept = 30 * 24 * time.Hour

// Next looks no further than the horizon, so that a rule which never comes true ends.
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

// begin starts the library ruleKept before t, since the next question may be about an earlier time.
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
		return // readRule has made the same rule without an error
	}
	r.more = made.Iterator()
}

// skipPast returns a later first time from which a rule comes to the same times from t on. skipPast skips whole
// intervals. A rule that counts its times, or whose times are rare, keeps its first time.
func skipPast(o rrule.ROption, t time.Time) time.Time {
	days := map[rrule.Frequency]int{rrule.HOURLY: 1, rrule.DAILY: 1, rrule.WEEKLY: 7}[o.Freq] * max(o.Interval, 1)
	if days == 0 || o.Count != 0 {
		return o.Dtstart
	}
	past := int(t.Sub(o.Dtstart).Hours()/24)/days - 1
	// A day on which clocks go forward may not have the hour of the first time.
	for n := past; n > 0 && n > past-3; n-- {
		later := o.Dtstart.AddDate(0, 0, n*days)
		if later.Hour() == o.Dtstart.Hour() && later.Minute() == o.Dtstart.Minute() {
			return later
		}
	}
	return o.Dtstart
}

// mostCounted is how many times a rule may count. The library goes through all of them at every question.
const mostCounted = 1000

func readRule(text, start string, zone *time.Location) (schedule, error) {
	shown, day, err := readTime(start)
	if err != nil || day {
		return nil, fmt.Errorf("start: %q is not a time such as 2026-01-10T22:00:00", start)
	}
	begin := clocksShow(shown, zone)
	if begin.Year() < oldest {
		return nil, fmt.Errorf("start: %s is before the year %d", start, oldest)
	}
	if strings.Contains(text, "DTSTART") {
		return nil, fmt.Errorf("rrule: %q: set the first time in start", text)
	}
	option, err := rrule.StrToROptionInLocation(text, zone)
	if err != nil {
		return nil, fmt.Errorf("rrule: %q: %w", text, err)
	}
	// The library searches without end for an hour that its steps never reach, and searches for a month hour by hour.
	picks := [][]int{
		option.Byhour, option.Bymonth, option.Bymonthday, option.Byyearday, option.Byweekno, option.Bysetpos, option.Byeaster,
	}
	switch {
	case option.Freq == rrule.MINUTELY || option.Freq == rrule.SECONDLY:
		return nil, fmt.Errorf("rrule: %q: a window can't open more often than once in an hour", text)
	case option.Freq == rrule.HOURLY && slices.ContainsFunc(picks, func(p []int) bool { return len(p) > 0 }):
		return nil, fmt.Errorf("rrule: %q: FREQ=HOURLY allows only BYDAY and BYMINUTE; use FREQ=DAILY with BYHOUR", text)
	case option.Count > mostCounted:
		return nil, fmt.Errorf("rrule: %q: COUNT may be %d at most; use UNTIL", text, mostCounted)
	}
	option.Dtstart = begin
	if _, err := rrule.NewRRule(*option); err != nil {
		return nil, fmt.Errorf("rrule: %q: %w", text, err)
	}
	return &rule{option: *option}, nil
}
