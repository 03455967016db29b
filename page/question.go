// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// The parameters of a page's address.
const (
	paramFind, paramState = "q", "state"
	paramZone             = "tz"
	paramPage             = "page"
	paramRefresh, off     = "refresh", "off"
)

const (
	// stateTrouble is the state of nodes that need a person, whatever their phase.
	stateTrouble = "NeedsPerson"
	// longestFind and longestZone are in bytes.
	longestFind, longestZone = 100, 64
)

// question is what the address of a page asks for. It has all that a browser keeps when it loads the page again.
type question struct {
	path string
	// find are words that a node must have, in lower case, and phase the phase that the node must be in; empty: all
	// nodes.
	find  []string
	text  string // find as it was typed
	phase string
	zone  *time.Location
	// zoneName is the name that was asked for; empty: the default.
	zoneName string
	page     int
	still    bool
}

// readQuestion reads an address. zone is the default for times.
func readQuestion(address *url.URL, zone *time.Location) (question, error) {
	query := address.Query()
	q := question{path: address.EscapedPath(), zone: zone, still: query.Get(paramRefresh) == off}
	q.page, _ = strconv.Atoi(query.Get(paramPage))
	q.page = min(max(q.page, 1), lastPage)
	q.text = strings.TrimSpace(query.Get(paramFind))
	if len(q.text) > longestFind || !utf8.ValidString(q.text) {
		return q, fmt.Errorf("reading %s: a text of up to %d bytes finds nodes", paramFind, longestFind)
	}
	q.find = strings.Fields(strings.ToLower(q.text))
	if q.phase = query.Get(paramState); q.phase != "" && !slices.Contains(states(), q.phase) {
		return q, fmt.Errorf("reading %s: %.40q is none of %s", paramState, q.phase, strings.Join(states(), ", "))
	}
	if name := query.Get(paramZone); name != "" {
		found, err := findZone(name, zone)
		if err != nil {
			return q, err
		}
		q.zone, q.zoneName = found, name
	}
	return q, nil
}

// findZone returns a time zone by its name in the IANA database, such as Europe/Berlin, or the default by its own name.
func findZone(name string, byDefault *time.Location) (*time.Location, error) {
	if name == byDefault.String() {
		return byDefault, nil
	}
	if len(name) <= longestZone {
		if found, err := rollout.Zone(name); err == nil {
			return found, nil
		}
	}
	return nil, fmt.Errorf("reading %s: %.40q is no time zone, such as UTC or Europe/Berlin", paramZone, name)
}

// states are the values of the parameter for a state.
func states() []string {
	out := []string{stateTrouble}
	for _, phase := range progress.Phases {
		out = append(out, string(phase))
	}
	return out
}

// filtered reports whether the page lists only some nodes.
func (q *question) filtered() bool { return len(q.find) > 0 || q.phase != "" }

// kept are the parameters that go along to every page.
func (q *question) kept() url.Values {
	values := url.Values{}
	if q.zoneName != "" {
		values.Set(paramZone, q.zoneName)
	}
	if q.still {
		values.Set(paramRefresh, off)
	}
	return values
}

// all are the parameters of this page.
func (q *question) all() url.Values {
	values := q.kept()
	if q.text != "" {
		values.Set(paramFind, q.text)
	}
	if q.phase != "" {
		values.Set(paramState, q.phase)
	}
	if q.page > 1 {
		values.Set(paramPage, strconv.Itoa(q.page))
	}
	return values
}

// to returns the address of another page.
func (q *question) to(path string) string { return address(path, q.kept()) }

// turned returns the address of this page with another parameter; empty: without the parameter.
func (q *question) turned(name, value string) string {
	values := q.all()
	if value == "" {
		values.Del(name)
	} else {
		values.Set(name, value)
	}
	return address(q.path, values)
}

func address(path string, values url.Values) string {
	return strings.TrimSuffix(path+"?"+values.Encode(), "?")
}
