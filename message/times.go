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

// LocalTimes puts the times in a text that end with Z into the reader's time zone, in the same format: RFC 3339, with
// the offset of the zone. Times with an offset, such as those of windows, stay as they are. A nil zone is UTC.
func LocalTimes(text string, zone *time.Location) string {
	if zone == nil {
		return text
	}
	var out strings.Builder
	end := 0
	for _, at := range inUTC.FindAllStringIndex(text, -1) {
		t, err := time.Parse(time.RFC3339, text[at[0]:at[1]])
		if err != nil {
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
