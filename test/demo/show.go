// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/term"
)

// width is the longest line that is written, where its words allow.
const width = 92

// show writes what happens, in numbered acts: plain text, with bold and dim where a terminal reads along.
type show struct {
	out     io.Writer
	tty     bool
	started time.Time
	acts    int
	of      int
}

func newShow(out *os.File, acts int) *show {
	plain := os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" //nolint:misspell // the variable's name
	tty := term.IsTerminal(int(out.Fd())) && !plain
	return &show{out: out, tty: tty, started: time.Now(), of: acts}
}

func (s *show) style(code, text string) string {
	if !s.tty {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s *show) line(text string) { fmt.Fprintln(s.out, text) }

// act begins the next act; sentence says what is about to be seen.
func (s *show) act(title, sentence string) {
	s.acts++
	head := fmt.Sprintf("[%d/%d] %s", s.acts, s.of, title)
	at := fmt.Sprintf("%5.1f s", time.Since(s.started).Seconds())
	s.line("")
	s.line(s.style("1", head) + strings.Repeat(" ", max(1, width-len(head)-len(at))) + at)
	s.say(sentence)
}

// say writes a paragraph.
func (s *show) say(text string) {
	for _, l := range wrap(text, "  ", "  ") {
		s.line(l)
	}
}

// typed shows a command as it is typed at that prompt.
func (s *show) typed(prompt, command string) {
	s.line("")
	lines := strings.Split(command, "\n")
	s.line("  " + prompt + " " + s.style("1", lines[0]))
	for _, l := range lines[1:] {
		s.line("  " + strings.Repeat(" ", len(prompt)) + " " + s.style("1", l))
	}
}

// printed shows what a command printed; lines that are too long go on in the next one.
func (s *show) printed(lines []string) {
	for _, l := range lines {
		for _, part := range wrap(short(l), "    ", "      ") {
			s.line(s.style("2", part))
		}
	}
}

// momentary is what nobody waits for, and so is not told.
const momentary = 200 * time.Millisecond

// took ends a command.
func (s *show) took(since time.Time, exit int) {
	took := time.Since(since)
	text := fmt.Sprintf("%.1f s", took.Seconds())
	switch {
	case exit != 0:
		text = fmt.Sprintf("exit code %d, %s", exit, text)
	case took < momentary:
		return
	}
	s.line(fmt.Sprintf("%*s", width, "("+text+")"))
}

// event is something that happened while nobody typed, since being when it began.
func (s *show) event(since time.Time, text string) {
	at := fmt.Sprintf("    +%4.1f s  ", time.Since(since).Seconds())
	for _, l := range wrap(short(text), at, strings.Repeat(" ", len(at))) {
		s.line(l)
	}
}

var (
	sha      = regexp.MustCompile(`\b([0-9a-f]{10})[0-9a-f]{54}\b`)
	rendered = regexp.MustCompile(`\b(rendered-[a-z]+-[0-9a-f]{8})[0-9a-f]{24}\b`)
	// kinds are what kubectl puts before names where it prints several kinds.
	kinds = regexp.MustCompile(`^machineconfigpool\.machineconfiguration\.openshift\.io/`)
	gap   = regexp.MustCompile(` {2,}`)
)

// short cuts SHA-256 digests to what tells them apart.
func short(text string) string { return sha.ReplaceAllString(text, "$1…") }

// tabulated sets tables, which blank lines part, with short names.
func tabulated(lines []string) []string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, l := range lines {
		l = kinds.ReplaceAllString(rendered.ReplaceAllString(short(l), "$1…"), "mcp/")
		if l == "" {
			_ = w.Flush() // into a strings.Builder, which takes everything
		}
		fmt.Fprintln(w, gap.ReplaceAllString(strings.TrimRight(l, " "), "\t"))
	}
	_ = w.Flush()
	return strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
}

// wrap breaks text at spaces. What is indented already keeps its place.
func wrap(text, first, next string) []string {
	body := strings.TrimLeft(text, " ")
	indent := strings.Repeat(" ", len(text)-len(body))
	first, next = first+indent, next+indent
	var out []string
	line := first
	for i, word := range strings.Split(body, " ") {
		if i > 0 && len([]rune(line))+1+len([]rune(word)) > width {
			out = append(out, strings.TrimRight(line, " "))
			line = next + word
			continue
		}
		if i > 0 {
			line += " "
		}
		line += word
	}
	return append(out, strings.TrimRight(line, " "))
}

// alike is how many lines of one sort are shown in a row.
const alike = 3

// collapse leaves the first of many lines that begin with the same two words, and says how many there were.
func collapse(lines []string) []string {
	kind := func(l string) string {
		f := strings.Fields(l)
		if len(f) < 3 || !strings.HasPrefix(l, "  ") || f[0] != "+" && f[0] != "-" && f[0] != "~" {
			return ""
		}
		return f[0] + " " + f[1]
	}
	var out []string
	for i := 0; i < len(lines); {
		n := 1
		for k := kind(lines[i]); k != "" && i+n < len(lines) && kind(lines[i+n]) == k; {
			n++
		}
		shown := n
		if n > alike+1 {
			shown = alike
		}
		out = append(out, lines[i:i+shown]...)
		if shown < n {
			f := strings.Fields(lines[i])
			out = append(out, fmt.Sprintf("  … and %d more %q", n-shown, f[0]+" "+f[1]))
		}
		i += n
	}
	return out
}

// withoutPlan leaves out the plan that apply repeats.
func withoutPlan(lines []string) []string {
	var out []string
	in := false
	for _, l := range lines {
		switch {
		case !in && strings.Contains(l, " -> rendered-") && !strings.HasPrefix(l, " "):
			in = true
			out = append(out, "… (the plan again)")
		case in && (strings.HasPrefix(l, "The host is rebooting") || strings.HasPrefix(l, "A reboot is needed") ||
			strings.HasPrefix(l, "State:")):
			in = false
		}
		if !in {
			out = append(out, l)
		}
	}
	return out
}

// splitLines returns the lines of what a command printed, without blank ones at either end.
func splitLines(text string) []string {
	text = strings.Trim(text, "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// waiting says that something slow goes on: on a terminal in one line that changes, else in a line every ten seconds.
// It is an io.Writer for the slow thing's own output, of which the last line is shown.
type waiting struct {
	show    *show
	what    string
	started time.Time
	stop    chan struct{}
	ended   sync.WaitGroup

	mu   sync.Mutex
	last string
}

func (s *show) wait(what string) *waiting {
	w := &waiting{show: s, what: what, started: time.Now(), stop: make(chan struct{})}
	w.ended.Go(w.run)
	return w
}

// Write notes the last whole line.
func (w *waiting) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if lines := strings.Split(strings.TrimSpace(string(p)), "\n"); len(lines) > 0 {
		w.last = strings.TrimSpace(lines[len(lines)-1])
	}
	return len(p), nil
}

func (w *waiting) run() {
	every := 10 * time.Second
	if w.show.tty {
		every = time.Second
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	drawn := false
	for {
		select {
		case <-w.stop:
			if drawn {
				fmt.Fprint(w.show.out, "\r\x1b[K")
			}
			return
		case <-tick.C:
			w.mu.Lock()
			text := []rune(fmt.Sprintf("    %s, %.0f s: %s", w.what, time.Since(w.started).Seconds(), w.last))
			w.mu.Unlock()
			text = text[:min(len(text), width)]
			if w.show.tty {
				drawn = true
				fmt.Fprint(w.show.out, "\r\x1b[K"+string(text))
			} else {
				w.show.line(string(text))
			}
		}
	}
}

func (w *waiting) done() {
	close(w.stop)
	w.ended.Wait()
}
