// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
)

// picture returns a rollout on one page: a bar for each pool, and below it lines for its nodes. A node has a line
// unless it is up to date or only waits for its turn. The last line counts the lines that do not fit.
func picture(r *progress.Report, pools []string, now time.Time, p paper) []string {
	drawn := draw(r, pools, now, p)
	out := make([]string, len(drawn))
	for i, l := range drawn {
		out[i] = l.text
	}
	return out
}

// draw returns the lines of a picture.
func draw(r *progress.Report, pools []string, now time.Time, p paper) []drawn {
	names, counts := 0, 0
	for _, name := range pools {
		if pool, ok := r.Pool(name); ok {
			names, counts = max(names, len(name)), max(counts, len(count(pool)))
		}
	}
	names = min(names, p.width/3)
	var lines []drawn
	for _, name := range pools {
		if pool, ok := r.Pool(name); ok {
			about := target{progress.Object{Kind: kindPool, Name: name}, name}
			lines = append(lines, drawn{text: p.pool(r, pool, now, names, counts), pool: true, about: about})
			lines = append(lines, p.nodes(r, pool, now)...)
		}
	}
	return p.fitting(lines)
}

// count returns how many nodes of a pool are up to date.
func count(pool progress.Pool) string { return fmt.Sprintf("%d/%d", pool.Updated, pool.Machines) }

// paper is the space for a picture.
type paper struct {
	width, height int
	// utf8: the paper can show more than ASCII.
	utf8, colours bool
	// only are the labels of the nodes that have lines; nil: all.
	only labels.Selector
	// find is a part of the names of the nodes that have lines, whatever they do; empty: the nodes that need a look.
	find string
	// zone is the time zone of the person who looks; nil: UTC.
	zone *time.Location
	// left returns the time that a pool's rollout still takes, in a few letters; nil: no time is known.
	left func(pool string) string
}

// shown reports whether a watch of the nodes with these labels shows a node. Nil are all.
func shown(only labels.Selector, n progress.Node) bool {
	return only == nil || only.Matches(labels.Set(n.Labels))
}

// drawn is a line of a picture. The nodes with the first verdicts are the last to be left out.
type drawn struct {
	text    string
	pool    bool
	verdict progress.Verdict
	// about is what the line is about; zero: nothing.
	about target
}

// The colours, as codes for a terminal.
const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// span is a part of a line in one colour; empty: the terminal's own.
type span struct{ text, colour string }

// pool returns the line of a pool. names and counts are the columns for its name and for the number of its updated
// nodes.
func (p paper) pool(r *progress.Report, pool progress.Pool, now time.Time, names, counts int) string {
	moving := 0
	for _, n := range pool.Nodes {
		if n.Moving() {
			moving++
		}
	}
	line := []span{{fmt.Sprintf("%-*s ", names, p.middle(pool.Name, names)), bold}}
	line = append(line, p.bar(pool.Machines, pool.Updated, moving, pool.Degraded)...)
	line = append(line, span{fmt.Sprintf(" %*s %3d%%", counts, count(pool), percent(pool.Updated, pool.Machines)), ""})
	if pool.Degraded > 0 {
		line = append(line, span{fmt.Sprintf("  %d failed", pool.Degraded), red})
	}
	if moving > 0 {
		line = append(line, span{fmt.Sprintf("  %d updating", moving), yellow})
	}
	a, _ := r.ExplainPool(pool.Name)
	done, ended := r.Ended(pool.Name)
	says := "  " + string(a.Verdict) + until(now, a.Until, p.zone) + ": " + p.brief(a.Because)
	if p.left != nil && !ended {
		if left := p.left(pool.Name); left != "" {
			line = append(line, span{"  " + left + " left", ""})
		}
	}
	switch {
	case a.Verdict == progress.NoNodes:
		line = append(line, span{"  no nodes", ""})
	case done:
		line = append(line, span{"  updated", green}, span{"  " + short(pool.Target), ""})
	case ended:
		line = append(line, span{says, red})
	case a.OfPool() && a.Verdict != progress.WaitsForTurn:
		line = append(line, span{says, yellow})
	default:
		line = append(line, span{"  to " + short(pool.Target), ""})
	}
	return p.fit(line)
}

// until returns the end of a hold for a line that may be cut, with the date where that is on another day. It is ""
// where the end is not known, or over.
func until(now, at time.Time, zone *time.Location) string {
	if !at.After(now) {
		return ""
	}
	if zone == nil {
		zone = time.UTC
	}
	now, at = now.In(zone), at.In(zone)
	if now.Format(time.DateOnly) == at.Format(time.DateOnly) {
		return at.Format(" until 15:04 MST")
	}
	return at.Format(" until 2006-01-02 15:04 MST")
}

// rendered matches the name of a rendered configuration.
var rendered = regexp.MustCompile(`\brendered-[a-z0-9.-]+-([0-9a-f]{8})[0-9a-f]{24}\b`)

// brief replaces rendered configurations in a text by the short name that stands beside the pool.
func (p paper) brief(s string) string {
	return rendered.ReplaceAllString(message.LocalTimes(s, p.zone), "$1")
}

func percent(part, whole int) int {
	if whole == 0 {
		return 0
	}
	return 100 * part / whole
}

// The smallest and largest number of columns of a bar. The smallest is for a paper of narrow columns or fewer.
const (
	barLeast = 8
	barMost  = 40
	narrow   = 40
)

// bar shows how many of all nodes are done, on their way and failed. The rest have not begun.
func (p paper) bar(all, done, moving, failing int) []span {
	width := min(barLeast+max(p.width-narrow, 0)*2/5, barMost)
	signs, colours := []string{"#", ">", "!", "."}, []string{green, yellow, red, ""}
	if p.utf8 {
		signs = []string{"█", "▒", "×", "·"}
	}
	line := []span{{"[", ""}}
	for i, n := range shares(width, all, []int{done, moving, failing}) {
		line = append(line, span{strings.Repeat(signs[i], n), colours[i]})
	}
	return append(line, span{"]", ""})
}

// shares divides a width among the parts of a whole and, as the last share, the rest. A part that is not zero has at
// least one column, so that the bar is full only when all is done.
func shares(width, all int, parts []int) []int {
	whole := slices.Clone(parts)
	others := all
	for _, n := range parts {
		others -= n
	}
	whole = append(whole, others)
	out := make([]int, len(whole))
	free := width
	for i, n := range whole {
		if n > 0 {
			out[i] = max(n*width/all, 1)
		}
		free -= out[i]
	}
	if all <= 0 {
		out[len(out)-1] = width
		return out
	}
	// The largest share takes the error of rounding.
	largest := 0
	for i := range out {
		if out[i] > out[largest] {
			largest = i
		}
	}
	out[largest] += free
	return out
}

// busy is a node with a line.
type busy struct {
	name, phase, since, why string
	// node is the whole name of the node.
	node    string
	verdict progress.Verdict
	// stops means that the node goes no further until a person acts.
	stops bool
}

// nodes returns the lines of a pool's nodes.
func (p paper) nodes(r *progress.Report, pool progress.Pool, now time.Time) []drawn {
	var all []busy
	phases, ages := 0, 0
	for _, n := range pool.Nodes {
		if !shown(p.only, n) {
			continue
		}
		if !strings.Contains(n.Name, p.find) {
			continue
		}
		if b, ok := look(r, n.Name, now); ok || p.find != "" {
			all = append(all, b)
			phases, ages = max(phases, len(b.phase)), max(ages, len(b.since))
		}
	}
	names := p.names(all)
	lines := make([]drawn, 0, len(all))
	for _, b := range all {
		colour := map[bool]string{true: red, false: yellow}[b.stops]
		text := p.fit([]span{
			{fmt.Sprintf("  %-*s  ", names, p.middle(b.name, names)), ""}, {fmt.Sprintf("%-*s", phases, b.phase), colour},
			{fmt.Sprintf("  %*s  %s", ages, b.since, p.brief(b.why)), ""},
		})
		about := target{progress.Object{Kind: kindNode, Name: b.node}, pool.Name}
		lines = append(lines, drawn{text: text, verdict: b.verdict, about: about})
	}
	return lines
}

// names returns how many columns the names of nodes take, a third of the paper at most. Where that is too little the
// names lose their domains, if they differ without.
func (p paper) names(all []busy) int {
	room := p.width / 3
	longest := 0
	hosts := map[string]bool{}
	for _, b := range all {
		host, _, _ := strings.Cut(b.name, ".")
		hosts[host] = true
		longest = max(longest, len(b.name))
	}
	if longest <= room || len(hosts) < len(all) {
		return min(longest, room)
	}
	longest = 0
	for i := range all {
		all[i].name, _, _ = strings.Cut(all[i].name, ".")
		longest = max(longest, len(all[i].name))
	}
	return min(longest, room)
}

// look returns the line of a node, and whether the node has one.
func look(r *progress.Report, name string, now time.Time) (busy, bool) {
	a, _ := r.ExplainNode(name)
	phase, since := r.At(name)
	if resting(phase) {
		if a.Fine() || a.OfPool() {
			return busy{name: name, node: name, phase: phase, since: age(now, since), verdict: a.Verdict, why: a.Because}, false
		}
		phase, since = string(a.Verdict), a.Since
	}
	if since.IsZero() {
		since = a.Since
	}
	b := busy{name: name, node: name, phase: phase, since: age(now, since), verdict: a.Verdict, stops: a.Stops()}
	if a.Fine() {
		return b, true
	}
	b.why = a.Because
	if a.Blocking != nil && *a.Blocking != (progress.Object{Kind: kindNode, Name: name}) {
		b.why = a.Blocking.String() + ": " + a.Because
	}
	return b, true
}

// resting reports whether a node in this phase neither moves nor has failed.
func resting(phase string) bool {
	return phase == string(progress.PhaseUpdated) || phase == string(progress.PhaseWaiting)
}

// fitting returns as many lines as fit. The cursor waits on the last line of the terminal. The pools come first, then
// the nodes that most need a person.
func (p paper) fitting(lines []drawn) []drawn {
	room := max(p.height-1, 1)
	if len(lines) > room {
		order := make([]int, len(lines))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int {
			if lines[a].pool != lines[b].pool {
				return map[bool]int{true: -1, false: 1}[lines[a].pool]
			}
			return lines[a].verdict.Compare(lines[b].verdict)
		})
		left := order[room-1:]
		nodes := 0
		for _, i := range left {
			if !lines[i].pool {
				nodes++
			}
		}
		kept := order[:room-1]
		slices.Sort(kept)
		shown := make([]drawn, 0, room)
		for _, i := range kept {
			shown = append(shown, lines[i])
		}
		var more []string
		if pools := len(left) - nodes; pools > 0 {
			more = append(more, number(pools, "pool"))
		}
		if nodes > 0 {
			more = append(more, number(nodes, "node"))
		}
		shown = append(shown, drawn{text: p.fit([]span{{"  and " + strings.Join(more, " and ") + " more", ""}})})
		lines = shown
	}
	return lines
}

// fit puts spans on one line of the paper. The last column stays empty, because some terminals begin a new line after
// it.
func (p paper) fit(spans []span) string {
	room, total := p.width-1, 0
	for i := range spans {
		spans[i].text = p.plain(spans[i].text)
		total += columns(spans[i].text)
	}
	more := ""
	if total > room {
		more = p.mark()
		room--
	}
	var b strings.Builder
	for _, s := range spans {
		text := cut(s.text, room)
		room -= columns(text)
		if len(text) < len(s.text) {
			room = 0
		}
		b.WriteString(p.paint(text, s.colour))
	}
	if more == "" {
		return strings.TrimRight(b.String(), " ")
	}
	return b.String() + more
}

// middle shortens a name to the columns for it by cutting out its middle. Names that begin alike end differently, and
// the other way round.
func (p paper) middle(name string, room int) string {
	if len(name) <= room {
		return name
	}
	if room < 3 {
		return cut(name, room)
	}
	begin := (room - 1) / 2
	return name[:begin] + p.mark() + name[len(name)-(room-1-begin):]
}

// mark returns the sign for a cut.
func (p paper) mark() string { return map[bool]string{true: "…", false: "~"}[p.utf8] }

func (p paper) paint(text, colour string) string {
	if !p.colours || colour == "" || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// plain returns a text without characters that a terminal would act on or can't show. Such a character may be in a
// reason, which comes from programs on hosts.
func (p paper) plain(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r), !p.utf8 && r > unicode.MaxASCII:
			return '?'
		}
		return r
	}, text)
}

// wide is the first letter of the scripts whose letters take two columns. The pictures come after them.
const wide = 0x2e80

// columns returns how many columns of a terminal a text takes, at most.
func columns(text string) int {
	n := 0
	for _, r := range text {
		n++
		if r >= wide {
			n++
		}
	}
	return n
}

// cut returns the beginning of a text that fits into the columns.
func cut(text string, room int) string {
	used := 0
	for i, r := range text {
		if used += columns(string(r)); used > room {
			return text[:i]
		}
	}
	return text
}
