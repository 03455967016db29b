// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"bytes"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// glass is what a terminal shows: it knows what a screen asks of it, and fails the test at anything else.
type glass struct {
	t             *testing.T
	width, height int
	lines         []string
	row           int
	scrolled      []string
	bytes         int // in all
}

var sequence = regexp.MustCompile(`^\x1b\[([0-9]*)([A-Za-z])`)

// Write takes whole lines, as a screen writes them.
func (g *glass) Write(p []byte) (int, error) {
	g.bytes += len(p)
	text := string(p)
	for text != "" {
		if m := sequence.FindStringSubmatch(text); m != nil {
			g.act(m[2], m[1])
			text = text[len(m[0]):]
			continue
		}
		end := strings.IndexAny(text, "\r\n\x1b")
		switch {
		case end < 0:
			end = len(text)
			fallthrough
		case end > 0:
			g.at(g.row)
			if g.lines[g.row] = text[:end]; end >= g.width {
				g.t.Errorf("%q is wider than the glass", text[:end])
			}
			text = text[end:]
		default:
			if text[0] == '\n' {
				g.down()
			}
			text = text[1:]
		}
	}
	return len(p), nil
}

func (g *glass) act(what, number string) {
	switch n, _ := strconv.Atoi(number); what {
	case "A":
		if n > g.row {
			g.t.Errorf("up by %d from line %d", n, g.row)
		}
		g.row = max(g.row-n, 0)
	case "H":
		g.row = 0
	case "J":
		if number == "2" {
			g.lines = nil
		} else {
			g.lines = g.lines[:min(g.row, len(g.lines))]
		}
	case "K": // a line is written as a whole
	default:
		g.t.Errorf("an unknown sequence: %q %q", number, what)
	}
}

func (g *glass) at(row int) {
	for len(g.lines) <= row {
		g.lines = append(g.lines, "")
	}
}

func (g *glass) down() {
	g.at(g.row)
	if g.row++; g.row >= g.height {
		g.scrolled = append(g.scrolled, g.lines[0])
		g.lines = g.lines[1:]
		g.row--
	}
}

func newGlass(t *testing.T, width, height int) (*glass, *screen) {
	t.Helper()
	g := &glass{t: t, width: width, height: height}
	return g, &screen{out: g, size: func() (int, int) { return g.width, g.height }}
}

func show(lines ...string) func(paper) []string { return func(paper) []string { return lines } }

func (g *glass) shows(what string, want ...string) {
	g.t.Helper()
	if got := slices.DeleteFunc(slices.Clone(g.lines), func(l string) bool { return l == "" }); !slices.Equal(got, want) {
		g.t.Errorf("%s:\n%s", what, cmp.Diff(want, got))
	}
}

func TestAPictureStaysInItsPlace(t *testing.T) {
	g, s := newGlass(t, 20, 5)
	g.row = 3 // what was written before stands above
	g.at(2)
	s.draw(show("a 1", "b 1"))
	s.draw(show("a 2", "b 1"))
	s.draw(show("a 2", "b 2", "c 1"))
	g.shows("grown", "a 2", "b 2", "c 1")
	s.draw(show("a 3"))
	g.shows("shrunk", "a 3")
	if n := len(g.scrolled); n != 2 { // to make room below
		t.Errorf("%d lines are scrolled: %q", n, g.scrolled)
	}
	for _, line := range g.scrolled {
		if line != "" {
			t.Errorf("%q is scrolled", line)
		}
	}
}

func TestWhatHasNotChangedIsNotWritten(t *testing.T) {
	g, s := newGlass(t, 100, 50)
	lines := make([]string, 40)
	for i := range lines {
		lines[i] = strings.Repeat("x", 90)
	}
	s.draw(show(lines...))
	whole := g.bytes
	s.draw(show(lines...))
	if g.bytes != whole {
		t.Errorf("the same picture again takes %d bytes", g.bytes-whole)
	}
	lines = slices.Clone(lines)
	lines[20] = "y"
	s.draw(show(lines...))
	if more := g.bytes - whole; more > 100 {
		t.Errorf("a line takes %d bytes, the whole %d", more, whole)
	}
	if g.lines[20] != "y" || g.lines[21] != lines[21] {
		t.Errorf("%q", g.lines)
	}
}

func TestAnotherSizeOfTheTerminalBeginsAnew(t *testing.T) {
	g, s := newGlass(t, 20, 5)
	var sizes [][2]int
	look := func(p paper) []string {
		sizes = append(sizes, [2]int{p.width, p.height})
		return []string{"a", "b"}
	}
	s.draw(look)
	g.width, g.height = 10, 4
	s.draw(look)
	g.shows("smaller", "a", "b")
	if want := [][2]int{{20, 5}, {10, 4}}; !slices.Equal(sizes, want) || g.row != 2 {
		t.Errorf("%v, the cursor is on line %d", sizes, g.row)
	}
}

func TestAWarningStandsAboveThePicture(t *testing.T) {
	g, s := newGlass(t, 20, 6)
	s.draw(show("a", "b"))
	if _, err := s.beside(g).Write([]byte("warning\r\n")); err != nil {
		t.Fatal(err)
	}
	s.draw(show("a", "c"))
	g.shows("both", "warning", "a", "c")
}

func TestATerminalSaysWhichLettersItHas(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want bool
	}{
		{nil, false},
		{map[string]string{"LANG": "C.UTF-8"}, true},
		{map[string]string{"LANG": "en_GB.utf8", "LC_ALL": "C"}, false},
		{map[string]string{"LANG": "C", "LC_CTYPE": "en_GB.UTF-8"}, true},
		{map[string]string{"LANG": "en_GB.ISO-8859-1"}, false},
	} {
		if got := speaksUTF8(func(name string) string { return c.env[name] }); got != c.want {
			t.Errorf("%v: %t", c.env, got)
		}
	}
	if terminal(&bytes.Buffer{}, func(string) string { return "xterm" }) != nil {
		t.Error("a buffer is a terminal")
	}
}
