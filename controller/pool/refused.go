// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"slices"
	"time"

	"github.com/noderefit/noderefit/api"
)

// refusedLong is how long writes are refused before people are told. An API server that is away for a moment is no
// matter for people.
const refusedLong = 5 * time.Second

// refusals are the pools whose writes are refused, by name. The entry of a pool goes with the pool.
type refusals map[string]refusal

type refusal struct {
	since time.Time
	// told is what an event has said.
	told string
}

// text is what is to be said of errors at a time, as those of a pool; empty: nothing.
func (r refusals) text(pool string, errs []error, now time.Time) string {
	i := slices.IndexFunc(errs, func(err error) bool { return !conflicts(err) })
	known, is := r[pool]
	if i < 0 || !is || now.Sub(known.since) < refusedLong {
		return ""
	}
	return api.ShortReason("writes have failed since " + known.since.UTC().Format(time.RFC3339) + ": " + errs[i].Error())
}

// note remembers since when a pool has errors, and returns what is to be said of them for the first time.
func (r refusals) note(pool string, errs []error, now time.Time) string {
	if !slices.ContainsFunc(errs, func(err error) bool { return !conflicts(err) }) {
		delete(r, pool)
		return ""
	}
	known, is := r[pool]
	if !is {
		known = refusal{since: now}
		r[pool] = known
	}
	text := r.text(pool, errs, now)
	if text == "" || text == known.told {
		return ""
	}
	known.told = text
	r[pool] = known
	return text
}
