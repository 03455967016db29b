// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"slices"
	"time"

	"github.com/noderefit/noderefit/api"
)

// refusedLong is how long writes are refused before people are told. A short absence of the API server is not worth
// telling.
const refusedLong = 5 * time.Second

// refusals has the pools whose writes are refused, by name. The entry of a pool goes with the pool.
type refusals map[string]refusal

type refusal struct {
	since time.Time
	// told is the text that an event had already.
	told string
}

// text returns what to report of a pool's errors at a time, and "" if there is nothing to report.
func (r refusals) text(pool string, errs []error, now time.Time) string {
	i := slices.IndexFunc(errs, func(err error) bool { return !conflicts(err) })
	known, is := r[pool]
	if i < 0 || !is || now.Sub(known.since) < refusedLong {
		return ""
	}
	return api.ShortReason("writes have failed since " + known.since.UTC().Format(time.RFC3339) + ": " + errs[i].Error())
}

// note remembers since when a pool has errors, and returns what to report of them for the first time.
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
