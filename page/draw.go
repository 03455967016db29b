// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// Pictures are drawn in units of their own, width units from left to right at any size. Each fact in a picture also
// stands beside it in words.
const (
	width = 1000
	// narrow is the least visible width. On a phone it is six pixels, of which the gaps between parts take two.
	narrow = 16
	// ticks is the largest number of arrivals in a picture.
	ticks = 100
)

type (
	// bar is a pool's nodes by phase.
	bar struct {
		Parts []part
		Text  string
	}
	part struct {
		Phase    string
		Count    int
		X, Width int
	}

	// rolloutPart is the course of a rollout. The picture shows the time before its start, its duration, and when nodes
	// arrived. The scale is the longest rollout of the pool.
	rolloutPart struct {
		Config, Short, Outcome, Waited, Took string
		Mood                                 mood
		Wanted                               stamp
		Before, Length                       int
		Arrivals                             []int
	}
)

// phases returns a pool's nodes by phase.
func phases(p progress.Pool) bar {
	count := map[progress.Phase]int{}
	for _, n := range p.Nodes {
		count[n.Phase(p.Target)]++
	}
	var out bar
	var texts []string
	at := 0
	for _, phase := range progress.Phases {
		if count[phase] == 0 {
			continue
		}
		w := max(int(math.Round(float64(count[phase])/float64(len(p.Nodes))*width)), narrow)
		out.Parts = append(out.Parts, part{Phase: string(phase), Count: count[phase], X: at, Width: w})
		texts = append(texts, fmt.Sprintf("%d %s", count[phase], phase))
		at += w
	}
	// The widest part gives up the width that was added to make narrow parts visible.
	if len(out.Parts) > 0 {
		widest := 0
		for i := range out.Parts {
			if out.Parts[i].Width > out.Parts[widest].Width {
				widest = i
			}
		}
		over := at - width
		out.Parts[widest].Width -= over
		for i := widest + 1; i < len(out.Parts); i++ {
			out.Parts[i].X -= over
		}
	}
	out.Text = strings.Join(texts, ", ")
	return out
}

// rollouts returns the pool's last rollouts, the latest first.
func (s *sheet) rollouts(list []api.PastRollout, p progress.Pool) []rolloutPart {
	end := func(r api.PastRollout) time.Time {
		if r.Ended.IsZero() {
			return s.now
		}
		return r.Ended
	}
	longest := time.Second
	for _, r := range list {
		longest = max(longest, end(r).Sub(r.Wanted))
	}
	scale := func(d time.Duration) int { return int(math.Round(max(d, 0).Seconds() / longest.Seconds() * width)) }
	var out []rolloutPart
	for i, r := range list {
		part := rolloutPart{Config: r.Config, Short: short(r.Config), Wanted: s.stamp(r.Wanted)}
		part.Mood, part.Outcome = outcome(r, p)
		began := r.Began
		if began.IsZero() {
			began = end(r)
		} else {
			part.Took = duration.HumanDuration(end(r).Sub(began))
		}
		if waited := began.Sub(r.Wanted); waited >= time.Minute || r.Began.IsZero() {
			part.Waited = duration.HumanDuration(waited)
		}
		part.Before = scale(began.Sub(r.Wanted))
		part.Length = scale(end(r).Sub(began))
		if part.Before+part.Length < narrow {
			part.Length = narrow
		}
		if i == 0 && r.Config == p.Target {
			part.Arrivals = s.arrivals(p, r.Wanted, end(r), scale)
		}
		out = append(out, part)
	}
	return out
}

// outcome returns the outcome of a rollout, in words. About a running rollout, the pool itself has newer facts than the
// record.
func outcome(r api.PastRollout, p progress.Pool) (mood, string) {
	failed := ""
	if r.Failed > 0 {
		failed = fmt.Sprintf(", failed on %d", r.Failed)
	}
	switch {
	case r.Replaced:
		m := waits
		if r.Failed > 0 {
			m = trouble
		}
		return m, fmt.Sprintf("replaced, %d of %d updated", r.Updated, r.Nodes) + failed
	case !r.Ended.IsZero():
		return good, fmt.Sprintf("done, %s", number(r.Nodes, "node")) + failed
	case r.Config != p.Target:
		return waits, "replaced" + failed
	case r.Failed > 0:
		return trouble, fmt.Sprintf("%d of %d updated", p.Updated, p.Machines) + failed
	case r.Began.IsZero():
		return waits, "waits, no node was sent yet"
	}
	return busy, fmt.Sprintf("under way, %d of %d updated", p.Updated, p.Machines)
}

// arrivals returns the places in the picture where nodes arrived, by their own reports. Each place is returned once.
func (s *state) arrivals(p progress.Pool, from, to time.Time, scale func(time.Duration) int) []int {
	var out []int
	for _, n := range p.Nodes {
		if !n.Updated(p.Target) {
			continue
		}
		_, at := s.report.At(n.Name)
		if at.Before(from) || at.After(to) {
			continue
		}
		const apart = width / ticks
		out = append(out, scale(at.Sub(from))/apart*apart)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
