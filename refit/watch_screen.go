// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// screen shows a picture that changes in its place. Unchanged lines are not written again. So the screen does not
// flicker, and a slow line is not filled.
type screen struct {
	out  io.Writer
	size func() (width, height int)

	// raw is true where the terminal does not begin a new line at the left by itself.
	raw bool

	mu    sync.Mutex
	paper paper
	shown []string
}

// terminal returns the screen of a terminal that can move its cursor, or nil for any other output.
func terminal(out io.Writer, env func(string) string) *screen {
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || env("TERM") == "" || env("TERM") == "dumb" {
		return nil
	}
	size := func() (int, int) {
		width, height, err := term.GetSize(int(file.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			return 80, 24
		}
		return width, height
	}
	colours := env("NO_COLOR") == "" //nolint:misspell // the variable's name
	return &screen{out: file, size: size, paper: paper{utf8: speaksUTF8(env), colours: colours}}
}

// speaksUTF8 reports whether the terminal's variables name UTF-8, in the order in which they count.
func speaksUTF8(env func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := strings.ToLower(env(name)); value != "" {
			return strings.Contains(value, "utf-8") || strings.Contains(value, "utf8")
		}
	}
	return false
}

// draw shows the present picture, on a terminal of its present size.
func (s *screen) draw(picture func(paper) []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.paper
	s.paper.width, s.paper.height = s.size()
	lines := picture(s.paper)
	var b strings.Builder
	if s.shown != nil && (s.paper.width != was.width || s.paper.height != was.height) {
		b.WriteString("\x1b[H\x1b[2J") // the terminal has moved the old picture to an unknown place
		s.shown = nil
	}
	if n := len(s.shown); n > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", n)
	}
	same := len(lines) == len(s.shown)
	for i, line := range lines {
		if i >= len(s.shown) || s.shown[i] != line {
			same = false
			b.WriteString("\r" + line + "\x1b[K")
		}
		b.WriteString("\r\n")
	}
	if len(lines) < len(s.shown) {
		b.WriteString("\x1b[J")
	}
	if !same {
		fmt.Fprint(s.out, b.String())
	}
	s.shown = lines
}

// beside returns the writer for text outside the picture, such as a warning. The text takes the picture's place, and
// the next picture is drawn below it.
func (s *screen) beside(out io.Writer) io.Writer { return besideScreen{s, out} }

type besideScreen struct {
	screen *screen
	out    io.Writer
}

func (b besideScreen) Write(p []byte) (int, error) {
	b.screen.mu.Lock()
	defer b.screen.mu.Unlock()
	if n := len(b.screen.shown); n > 0 {
		fmt.Fprintf(b.screen.out, "\x1b[%dA\r\x1b[J", n)
		b.screen.shown = nil
	}
	if !b.screen.raw {
		return b.out.Write(p)
	}
	if _, err := b.out.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n"))); err != nil {
		return 0, err
	}
	return len(p), nil
}
