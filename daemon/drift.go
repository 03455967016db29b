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

// The paces of what is done about drift.
const (
	touchDebounce = time.Second // what is changed in one go is looked at once
	touchSlowest  = time.Minute // between two looks while somebody goes on changing things
	touchShare    = 5           // a look is followed by a pause of that many times its own length
	touchCalm     = time.Minute // without a change makes the next one the first again

	repairFirst  = time.Minute      // between a repair and the next of the same thing, doubled each time
	repairWaits  = 10 * time.Minute // between tries at most, as long as something else keeps them from beginning
	repairLast   = time.Hour
	repairForget = 6 * time.Hour // after which what stayed repaired is nobody's fight any more
)

// touchPace decides when the host is looked at after something there was touched. A single change is seen at once;
// who changes things without end can't have the host compare itself without end.
type touchPace struct {
	last  time.Time // the latest touch
	burst int       // looks that followed closely upon each other
	ended time.Time // of the latest look
	took  time.Duration
}

// touched returns when a look is due because of a touch at now, given when one is due already.
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

// looked notes a look that ended.
func (p *touchPace) looked(now time.Time, took time.Duration) {
	if now.Sub(p.last) <= touchCalm {
		p.burst++
	}
	p.ended, p.took = now, min(took, touchSlowest/touchShare)
}

// driftState is what the head knows of what on the host is not as it should be.
type driftState struct {
	known  bool   // the host was asked; before that the Node says what is known
	config string // whose paths are watched
	items  []api.DriftItem
	report *api.Drift
	forced bool
	pace   touchPace
	fights map[string]fight // by subject
	// mended are the subjects that we wrote back, of which people were told.
	mended map[string]bool
	blind  string // what was last logged of changes that may go unseen
	unseen bool   // something was touched on the way to something else
	// Tries that came to nothing, in a row, and before when there is no other.
	tries int
	after time.Time
}

// fight is what was written back, and may be changed again.
type fight struct {
	times  int
	last   time.Time
	failed string
}

// next is when it is written back again.
func (f fight) next() time.Time {
	if f.times == 0 {
		return time.Time{}
	}
	return f.last.Add(min(repairFirst<<min(f.times-1, 10), repairLast))
}

// recall takes what a head before us has said.
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

// found takes what the host says.
func (s *driftState) found(v *host.Verification, policy api.DriftPolicy, now time.Time) {
	s.known, s.forced = true, v.Forced
	for subject, f := range s.fights {
		if now.Sub(f.last) > repairForget || f.last.After(now) { // the clock was set back since
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
		delete(s.mended, item.Subject()) // it is changed again
	}
	s.report = api.NewDrift(v.Config, s.items)
}

// due are the subjects that are to be written back now, and when there are more. A force file asks for everything, at
// once; but no sooner than a try that came to nothing has it.
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

// spared notes a try to write back that wrote nothing, for a reason that is no fault of what it was to write.
func (s *driftState) spared(now time.Time) {
	s.tries++
	s.after = now.Add(jitter(min(repairFirst<<min(s.tries-1, 10), repairWaits)))
}

// repaired notes what became of writing back.
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

// driftItems are what the host found, a thing each, in the order of their names. What was known keeps its time.
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

// driftNames is how many things an event or a reason names.
const driftNames = 5

// driftReason is why an update waits.
func driftReason(d *host.DriftError) string {
	return fmt.Sprintf("the host does not match %s: %s; the updates of its pool wait for that (annotation %s): undo it "+
		"on the host, and the update goes on at once, or have updates overwrite it", d.Config,
		api.NewDrift(d.Config, driftItems(d.Drift, nil, time.Time{})).Names(driftNames), api.DriftPolicyKey)
}

// driftEvents are what people are told when the Node says something else of drift than before: of each change once.
// mended are the subjects that were written back, of which they were told.
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
			"; undo it, or put it into a MachineConfig; the next update overwrites it and keeps a copy on the host")
	}
	return warnings, ""
}

// fightEvents name what was written back and is changed again.
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
		text := fmt.Sprintf("%s was written back %s and is changed again: something on the host keeps changing it",
			i.Subject(), times(i.Repairs))
		if i.Failed != "" {
			text = fmt.Sprintf("%s could not be written back: %s", i.Subject(), i.Failed)
		}
		out = append(out, text+"; it is tried again at "+i.Again.UTC().Format(time.RFC3339))
	}
	return out[:min(len(out), driftNames)]
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// repairText says what was written back.
func repairText(subjects []string, res *host.Result) string {
	names := subjects[:min(len(subjects), driftNames)]
	text := "Wrote back what had drifted: " + strings.Join(names, ", ")
	if more := len(subjects) - len(names); more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	text += "; what stood there is kept on the host, below /var/lib/machine-config-daemon/drift"
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
