// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/noderefit/noderefit/progress"
)

// key is a key that a person pressed: a letter, or one of the names below.
type key string

const (
	keyUp        key = "up"
	keyDown      key = "down"
	keyPageUp    key = "page up"
	keyPageDown  key = "page down"
	keyEnter     key = "enter"
	keyEscape    key = "escape"
	keyBackspace key = "backspace"
	keyInterrupt key = "interrupt"
)

// sequences are the keys that a terminal sends as several bytes.
var sequences = map[string]key{
	"\x1b[A": keyUp, "\x1bOA": keyUp, "\x1b[B": keyDown, "\x1bOB": keyDown, "\x1b[5~": keyPageUp, "\x1b[6~": keyPageDown,
}

// keysOf returns the keys in what a terminal sent at once. Sequences that are not known are left out.
func keysOf(data []byte) []key {
	var out []key
	for len(data) > 0 {
		if data[0] == '\x1b' && len(data) > 1 {
			end := sequenceEnd(data)
			if k, ok := sequences[string(data[:end])]; ok {
				out = append(out, k)
			}
			data = data[end:]
			continue
		}
		r, size := utf8.DecodeRune(data)
		data = data[size:]
		switch {
		case r == '\x1b':
			out = append(out, keyEscape)
		case r == '\r' || r == '\n':
			out = append(out, keyEnter)
		case r == '\x7f' || r == '\b':
			out = append(out, keyBackspace)
		case r == '\x03':
			out = append(out, keyInterrupt)
		case r != utf8.RuneError && unicode.IsPrint(r):
			out = append(out, key(r))
		}
	}
	return out
}

// sequenceEnd returns the length of the sequence that data begins with, after an escape.
func sequenceEnd(data []byte) int {
	if data[1] != '[' && data[1] != 'O' {
		return 1 + max(1, utf8.RuneLen(rune(data[1]))) // a key with Alt
	}
	for i := 2; i < len(data); i++ {
		if data[i] >= '@' && data[i] <= '~' {
			return i + 1
		}
	}
	return len(data)
}

// target is what a line of the picture is about.
type target struct {
	object progress.Object
	// pool is the pool, or the pool of the node.
	pool string
}

// verb is what a person asks for by a key.
type verb string

const (
	verbQuit    verb = "quit"
	verbExplain verb = "explain"
	verbDiff    verb = "diff"
	verbLog     verb = "log"
	verbPause   verb = "pause"
	verbResume  verb = "resume"
)

// deed is a verb with its target. The zero value asks for nothing.
type deed struct {
	verb  verb
	about target
}

// mode is what the keys of a desk are for.
type mode int

const (
	modeList   mode = iota // select a line
	modeDetail             // read a text
	modeAsk                // answer a question
	modeFilter             // type a filter
)

// desk is what a person who watches has before them besides the rollout. Its methods change nothing but the desk.
type desk struct {
	mode mode
	// at is the selected line. Where the picture does not have it, the first line is selected.
	at target
	// filter is a part of the names of the nodes to show; empty: the picture chooses the nodes.
	filter string
	// title and text are what is read, and top its first line on the screen.
	title string
	text  []string
	top   int
	// ask is what is done after a yes.
	ask deed
	// said is the outcome of the last deed.
	said string
}

// open reports whether the person reads or answers something, so that the watch does not end under their eyes.
func (d desk) open() bool { return d.mode == modeDetail || d.mode == modeAsk }

// selected returns the index of the selected line; -1 without lines.
func (d desk) selected(shown []target) int {
	return min(max(slices.Index(shown, d.at), 0), len(shown)-1)
}

// press returns the desk after a key, and what the key asks for. shown are the lines of the picture, and page is how
// many lines of a text the screen has.
func (d desk) press(k key, shown []target, page int) (desk, deed) {
	if k == keyInterrupt {
		return d, deed{verb: verbQuit}
	}
	switch d.mode {
	case modeDetail:
		return d.read(k, page), deed{}
	case modeAsk:
		return d.answer(k)
	case modeFilter:
		return d.write(k), deed{}
	default:
		return d.choose(k, shown)
	}
}

// read is a key while a text is read.
func (d desk) read(k key, page int) desk {
	step := map[key]int{
		keyUp: -1, "k": -1, keyDown: 1, "j": 1, keyPageUp: -page, "b": -page, keyPageDown: page, " ": page,
	}[k]
	switch k {
	case "q", keyEscape, keyEnter:
		d.mode, d.title, d.text, d.top = modeList, "", nil, 0
		return d
	case "g":
		step = -len(d.text)
	case "G":
		step = len(d.text)
	}
	d.top = max(min(d.top+step, len(d.text)-page), 0)
	return d
}

// answer is a key while a question is open. Whatever is no yes is a no.
func (d desk) answer(k key) (desk, deed) {
	asked := d.ask
	d.mode, d.ask = modeList, deed{}
	if k == "y" {
		d.said = ""
		return d, asked
	}
	d.said = "nothing was changed"
	return d, deed{}
}

// write is a key while a filter is typed.
func (d desk) write(k key) desk {
	switch k {
	case keyEnter:
		d.mode = modeList
	case keyEscape:
		d.mode, d.filter = modeList, ""
	case keyBackspace:
		_, size := utf8.DecodeLastRuneInString(d.filter)
		d.filter = d.filter[:len(d.filter)-size]
	default:
		if utf8.RuneCountInString(string(k)) == 1 {
			d.filter += string(k)
		}
	}
	return d
}

// choose is a key while the picture is looked at.
func (d desk) choose(k key, shown []target) (desk, deed) {
	at := d.selected(shown)
	verbs := map[key]verb{
		"e": verbExplain, keyEnter: verbExplain, "d": verbDiff, "l": verbLog, "p": verbPause, "r": verbResume,
	}
	switch {
	case k == "q":
		return d, deed{verb: verbQuit}
	case k == "/":
		d.mode, d.said = modeFilter, ""
	case k == keyEscape:
		d.filter, d.said = "", ""
	case at < 0:
	case k == keyUp || k == "k":
		d.at = shown[max(at-1, 0)]
	case k == keyDown || k == "j":
		d.at = shown[min(at+1, len(shown)-1)]
	case verbs[k] != "":
		return d.order(deed{verbs[k], shown[at]})
	}
	return d, deed{}
}

// order asks before a pool is changed. What only shows something is done at once.
func (d desk) order(what deed) (desk, deed) {
	d.at, d.said = what.about, ""
	switch what.verb {
	case verbPause, verbResume:
		d.mode, d.ask = modeAsk, what
		return d, deed{}
	case verbLog:
		if what.about.object.Kind != kindNode {
			d.said = "a log is of a node: select one; / shows nodes by a part of their names"
			return d, deed{}
		}
	default:
	}
	d.mode, d.title, d.text, d.top = modeDetail, fmt.Sprintf("%s %s", what.verb, what.about.object), []string{"..."}, 0
	return d, what
}

// outcome puts the result of a deed on the desk, in lines of so many columns. A text that nobody waits for any more is
// dropped.
func (d desk) outcome(of deed, text string, err error, width int) desk {
	if err != nil {
		text = "error: " + Describe(err)
	}
	if of.verb == verbPause || of.verb == verbResume {
		d.said = text
		return d
	}
	if d.mode == modeDetail && d.title == fmt.Sprintf("%s %s", of.verb, of.about.object) {
		d.text, d.top = wrapped(strings.Split(strings.TrimRight(text, "\n"), "\n"), width), 0
	}
	return d
}

// bottom returns the last line: what the keys do, or what is asked or was said.
func (d desk) bottom() string {
	switch {
	case d.mode == modeDetail:
		return "j k scroll  space b page  q back"
	case d.mode == modeAsk:
		return fmt.Sprintf("%s pool %s? y/n", d.ask.verb, d.ask.about.pool)
	case d.mode == modeFilter:
		return "nodes with: " + d.filter + "_"
	case d.said != "":
		return d.said
	case d.filter != "":
		return fmt.Sprintf("nodes with %q (Esc: all)  j k e d l p r / q", d.filter)
	}
	return "j k select  e explain  d diff  l log  p pause  r resume  / find nodes  q quit"
}

// picture returns the lines of the desk and, for a picture of the rollout, their targets.
func (d desk) picture(p paper, rollout func(paper) []drawn) ([]string, []target) {
	p.height-- // for the last line
	if d.mode == modeDetail {
		lines := []string{p.fit([]span{{d.title, bold}}), ""}
		text := wrapped(d.text, p.width-1)
		page := max(p.height-1-len(lines), 1)
		top := max(min(d.top, len(text)-page), 0)
		for _, line := range text[top:min(top+page, len(text))] {
			lines = append(lines, p.fit([]span{{line, ""}}))
		}
		return append(lines, p.fit([]span{{d.bottom(), yellow}})), nil
	}
	inner := p
	inner.width -= len("> ")
	inner.find = d.filter
	drawn := rollout(inner)
	var shown []target
	for _, l := range drawn {
		if l.about != (target{}) {
			shown = append(shown, l.about)
		}
	}
	at := d.selected(shown)
	lines := make([]string, 0, len(drawn)+1)
	for _, l := range drawn {
		mark := "  "
		if at >= 0 && l.about == shown[at] {
			mark = "> "
		}
		lines = append(lines, mark+l.text)
	}
	return append(lines, p.fit([]span{{d.bottom(), yellow}})), shown
}

// wrapped breaks lines to a number of columns.
func wrapped(lines []string, width int) []string {
	var out []string
	for _, line := range lines {
		line = strings.ReplaceAll(line, "\t", "    ")
		for columns(line) > width && width > 1 {
			first := cut(line, width)
			out = append(out, first)
			line = line[len(first):]
		}
		out = append(out, line)
	}
	return out
}
