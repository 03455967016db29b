// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/host"
)

// The intervals of the work on drift.
const (
	touchDebounce = time.Second // changes within this time are examined together
	touchSlowest  = time.Minute // between two comparisons while changes continue
	touchShare    = 5           // a comparison is followed by a pause of that many times its own length
	touchCalm     = time.Minute // without a change makes the next change a first one again

	repairFirst  = time.Minute      // between two repairs of the same subject, doubled each time
	repairWaits  = 10 * time.Minute // between tries at most, as long as other work keeps them from beginning
	repairLast   = time.Hour
	repairForget = 6 * time.Hour // after which a change to a repaired subject counts as a new one
)

// touchPace decides when the host is compared after a change there. A single change is noticed at once; endless changes
// must not make the host compare itself endlessly.
type touchPace struct {
	last  time.Time // the latest change
	burst int       // comparisons that followed closely upon each other
	ended time.Time // the end of the latest comparison
	took  time.Duration
}

// touched returns when a comparison is due because of a change at now; due is the time of one that is planned already.
func (p *touchPace) touched(now, due time.Time) time.Time {
	if now.Sub(p.last) > touchCalm {
		p.burst = 0
	}
	p.last = now
	pause := min(touchDebounce<<min(p.burst, 10), touchSlowest)
	next := now.Add(touchDebounce)
	if least := p.ended.Add(max(pause, touchShare*p.took)); !p.ended.IsZero() && least.After(next) {
		next = least
	}
	if due.Before(next) && due.After(now) {
		return due
	}
	return next
}

// looked records the end of a comparison.
func (p *touchPace) looked(now time.Time, took time.Duration) {
	if now.Sub(p.last) <= touchCalm {
		p.burst++
	}
	p.ended, p.took = now, min(took, touchSlowest/touchShare)
}

// driftState is what the head knows about the host's drift.
type driftState struct {
	known  bool   // the host has answered; before that the Node's annotations count
	config string // the configuration whose paths are watched
	items  []api.DriftItem
	report *api.Drift
	forced bool
	pace   touchPace
	fights map[string]fight // by subject
	// mended are the subjects that we wrote back and announced.
	mended map[string]bool
	blind  string // the last log line about changes that may go unnoticed
	unseen bool   // a path changed while an update was under way
	// tries counts unsuccessful tries in a row; there is no other try before after.
	tries int
	after time.Time
}

// fight is the history of a subject that was written back, and may be changed again.
type fight struct {
	times  int
	last   time.Time
	failed string
}

// next returns when the subject is written back again.
func (f fight) next() time.Time {
	if f.times == 0 {
		return time.Time{}
	}
	return f.last.Add(min(repairFirst<<min(f.times-1, 10), repairLast))
}

// recall takes over the report of an earlier head.
func (s *driftState) recall(said *api.Drift) {
	if said == nil || s.known {
		return
	}
	s.items, s.report, s.fights = said.Items, said, map[string]fight{}
	for _, i := range said.Items {
		if i.Repairs > 0 {
			f := fight{times: i.Repairs, failed: i.Failed}
			f.last = i.Again.Add(-f.next().Sub(f.last))
			s.fights[i.Subject()] = f
		}
	}
}

// found takes over the host's comparison.
func (s *driftState) found(v *host.Verification, policy api.DriftPolicy, now time.Time) {
	s.known, s.forced = true, v.Forced
	for subject, f := range s.fights {
		if now.Sub(f.last) > repairForget || f.last.After(now) { // the clock was set back meanwhile
			delete(s.fights, subject)
		}
	}
	s.items = driftItems(v.Drift, s.items, now)
	for i := range s.items {
		item := &s.items[i]
		f, fought := s.fights[item.Subject()]
		if fought && policy.Repairs(item.Kind, item.Name) {
			item.Repairs, item.Again, item.Failed = f.times, f.next().UTC().Truncate(time.Second), f.failed
		}
		delete(s.mended, item.Subject()) // the subject has changed again
	}
	s.report = api.NewDrift(v.Config, s.items)
}

// due returns the subjects to write back now, and when more subjects are due. A force file asks for everything at once,
// but not before the pause after an unsuccessful try is over.
func (s *driftState) due(policy api.DriftPolicy, now time.Time) (subjects []string, next time.Time) {
	if !s.known {
		return nil, next
	}
	all := api.DriftPolicy{Policy: api.DriftRepair}
	for _, i := range s.items {
		if s.forced && all.Repairs(i.Kind, i.Name) {
			subjects = append(subjects, i.Subject())
			continue
		}
		if !policy.Repairs(i.Kind, i.Name) {
			continue
		}
		at := s.fights[i.Subject()].next()
		if !now.Before(at) {
			subjects = append(subjects, i.Subject())
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if now.Before(s.after) && (len(subjects) > 0 || s.forced || !next.IsZero() && next.Before(s.after)) {
		return nil, s.after
	}
	return subjects, next
}

// spared records a try that wrote nothing back, for a reason that is no fault of the subjects.
func (s *driftState) spared(now time.Time) {
	s.tries++
	s.after = now.Add(jitter(min(repairFirst<<min(s.tries-1, 10), repairWaits)))
}

// repaired records the result of a repair.
func (s *driftState) repaired(subjects []string, failed string, now time.Time) {
	if failed == "" {
		s.tries, s.after = 0, time.Time{}
	}
	if s.fights == nil {
		s.fights = map[string]fight{}
	}
	for _, subject := range subjects {
		f := s.fights[subject]
		s.fights[subject] = fight{times: f.times + 1, last: now, failed: failed}
		if failed == "" {
			if s.mended == nil {
				s.mended = map[string]bool{}
			}
			s.mended[subject] = true
		}
	}
}

// driftItems returns the drift that the host found, with one item for each subject, sorted by name. Known items keep
// their time.
func driftItems(found []host.Drift, known []api.DriftItem, now time.Time) []api.DriftItem {
	var out []api.DriftItem
	at := map[string]int{}
	for _, d := range found {
		item := api.DriftItem{Kind: d.Kind, Name: d.Subject(), Since: now.UTC().Truncate(time.Second)}
		i, is := at[item.Subject()]
		if !is {
			i = len(out)
			at[item.Subject()] = i
			out = append(out, item)
		}
		if !slices.Contains(out[i].What, d.What) {
			out[i].What = append(out[i].What, d.What)
		}
	}
	for i := range out {
		slices.Sort(out[i].What)
		for _, k := range known {
			if k.Subject() == out[i].Subject() {
				out[i].Since = k.Since
			}
		}
	}
	slices.SortFunc(out, func(a, b api.DriftItem) int { return cmp.Compare(a.Subject(), b.Subject()) })
	return out
}

// driftNames is the number of subjects that an event or a reason names.
const driftNames = 5

// driftReason returns the reason why an update waits.
func driftReason(d *host.DriftError) string {
	return fmt.Sprintf("the host does not match %s: %s; updates wait while a host differs (the pool's annotation %s): "+
		"undo the change on the host, and the update continues at once, or have updates overwrite the change", d.Config,
		api.NewDrift(d.Config, driftItems(d.Drift, nil, time.Time{})).Names(driftNames), api.DriftPolicyKey)
}

// driftEvents returns the events about a change of the drift that the Node reports: each change once. mended are the
// subjects that were written back, which other events have announced.
func driftEvents(was, is *api.Drift, mended map[string]bool) (warnings []string, gone string) {
	if is == nil {
		if was == nil {
			return nil, ""
		}
		undone := *was
		undone.Items = slices.DeleteFunc(slices.Clone(was.Items), func(i api.DriftItem) bool { return mended[i.Subject()] })
		if len(undone.Items) > 0 {
			gone = "The host matches " + was.Config + " again: " + undone.Names(driftNames)
		}
		return nil, gone
	}
	if !is.SameAs(was) {
		warnings = append(warnings, "The host does not match "+is.Config+": "+is.Names(driftNames)+
			"; undo the change, or put it into a MachineConfig; the next update overwrites the change and keeps a "+
			"copy on the host")
	}
	return warnings, ""
}

// fightEvents returns events about subjects that were written back and have changed again.
func fightEvents(was, is *api.Drift) []string {
	var out []string
	if is == nil {
		return nil
	}
	for _, i := range is.Items {
		if i.Repairs == 0 || was != nil && slices.ContainsFunc(was.Items, func(w api.DriftItem) bool {
			return w.Subject() == i.Subject() && w.Repairs == i.Repairs
		}) {
			continue
		}
		text := fmt.Sprintf("%s was written back %s and is changed again: a program on the host keeps changing it",
			i.Subject(), times(i.Repairs))
		if i.Failed != "" {
			text = fmt.Sprintf("%s could not be written back: %s", i.Subject(), i.Failed)
		}
		out = append(out, text+"; the next try is at "+i.Again.UTC().Format(time.RFC3339))
	}
	return out[:min(len(out), driftNames)]
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// repairText names the subjects that were written back.
func repairText(subjects []string, res *host.Result) string {
	names := subjects[:min(len(subjects), driftNames)]
	text := "Repaired drift: " + strings.Join(names, ", ")
	if more := len(subjects) - len(names); more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	text += "; the former contents are kept on the host, below /var/lib/machine-config-daemon/drift"
	if res == nil {
		return text
	}
	for _, w := range res.Warnings {
		if !strings.HasPrefix(w, "wrote back ") {
			text += "; " + w
		}
	}
	return text
}
