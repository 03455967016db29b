// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// screen shows a picture that changes in the place where it stands. What has not changed is not written again, which
// neither flickers nor fills a slow line.
type screen struct {
	out  io.Writer
	size func() (width, height int)

	mu    sync.Mutex
	paper paper
	shown []string
}

// terminal is the screen of a terminal that can move its cursor; nil: what is written goes somewhere else.
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

// speaksUTF8 asks the variables that say which letters a terminal knows, in the order in which they count.
func speaksUTF8(env func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := strings.ToLower(env(name)); value != "" {
			return strings.Contains(value, "utf-8") || strings.Contains(value, "utf8")
		}
	}
	return false
}

// draw shows what there is to see now, on a terminal of the size that it has now.
func (s *screen) draw(picture func(paper) []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.paper
	s.paper.width, s.paper.height = s.size()
	lines := picture(s.paper)
	var b strings.Builder
	if s.shown != nil && s.paper != was {
		b.WriteString("\x1b[H\x1b[2J") // it has moved what stood there, nobody knows where to
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

// beside is where to write what does not belong to the picture, such as a warning: it takes the picture's place, and
// the next picture stands below it.
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
	return b.out.Write(p)
}
