// SPDX-License-Identifier: Apache-2.0

package message

import (
	"io"
	"regexp"
	"strings"
	"time"
)

// inUTC matches a time of RFC 3339 in UTC.
var inUTC = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// opens stands before the time at which a window opens. The time is in the time zone of the policy, in which people
// have written the window.
const opens = "opens at "

// LocalTimes puts the times in a text, which are in UTC, into the reader's time zone, in the same format: RFC 3339,
// with the offset of the zone. The times of windows stay as they are. A nil zone is UTC.
func LocalTimes(text string, zone *time.Location) string {
	if zone == nil {
		return text
	}
	var out strings.Builder
	end := 0
	for _, at := range inUTC.FindAllStringIndex(text, -1) {
		t, err := time.Parse(time.RFC3339, text[at[0]:at[1]])
		if err != nil || strings.HasSuffix(text[:at[0]], opens) {
			continue
		}
		out.WriteString(text[end:at[0]])
		out.WriteString(t.In(zone).Format(time.RFC3339))
		end = at[1]
	}
	out.WriteString(text[end:])
	return out.String()
}

// Local returns a writer of text for a reader in a time zone. Every Write has whole lines, or no time at its ends.
func Local(w io.Writer, zone *time.Location) io.Writer { return local{w, zone} }

type local struct {
	to   io.Writer
	zone *time.Location
}

func (l local) Write(text []byte) (int, error) {
	if _, err := io.WriteString(l.to, LocalTimes(string(text), l.zone)); err != nil {
		return 0, err //nolint:wrapcheck // this writer stands for the other
	}
	return len(text), nil
}
