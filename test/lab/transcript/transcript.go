// SPDX-License-Identifier: Apache-2.0

// Package transcript reads pages that people can follow: the commands that they have readers type, what these print,
// and the files that the commands need. A test types the commands, and the page shows what they really print.
package transcript

import (
	"fmt"
	"slices"
	"strings"
)

// Page is a Markdown page with commands.
type Page struct {
	// Commands are those of all blocks of the language console, in their order.
	Commands []*Command
	// Files are the blocks of other languages whose first line is a comment with a name, such as "# pool.yaml".
	Files map[string]string

	lines []string
}

// Command is a command of a page. In its block it stands behind "$ ", and what it prints stands below.
type Command struct {
	Text, Output string
	// Line is where the command stands, counted from 1. Its output ends before the line end.
	Line, end int
}

const (
	fence  = "```"
	prompt = "$ "
)

// Read reads a page.
func Read(text string) (*Page, error) {
	p := &Page{Files: map[string]string{}, lines: strings.Split(text, "\n")}
	for i := 0; i < len(p.lines); i++ {
		language, begins := strings.CutPrefix(p.lines[i], fence)
		if !begins {
			continue
		}
		length := slices.Index(p.lines[i+1:], fence)
		if length < 0 {
			return nil, fmt.Errorf("line %d: the block does not end: write %s in a line below", i+1, fence)
		}
		block := p.lines[i+1 : i+1+length]
		var err error
		if language == "console" {
			err = p.console(block, i+2)
		} else {
			err = p.file(block, i+2)
		}
		if err != nil {
			return nil, err
		}
		i += length + 1
	}
	return p, nil
}

// console reads a block whose first line has that number.
func (p *Page) console(block []string, first int) error {
	for i, line := range block {
		if text, is := strings.CutPrefix(line, prompt); is {
			p.Commands = append(p.Commands, &Command{Text: text, Line: first + i, end: first + i + 1})
			continue
		}
		if i == 0 {
			return fmt.Errorf("line %d: the block has to begin with a command, behind %q", first, prompt)
		}
		last := p.Commands[len(p.Commands)-1]
		last.Output += line + "\n"
		last.end++
	}
	return nil
}

func (p *Page) file(block []string, first int) error {
	if len(block) == 0 {
		return nil
	}
	name, is := strings.CutPrefix(block[0], "# ")
	if !is || strings.ContainsAny(name, " /") {
		return nil
	}
	if _, twice := p.Files[name]; twice {
		return fmt.Errorf("line %d: there is a file %s above: give this one another name", first, name)
	}
	p.Files[name] = strings.Join(block, "\n") + "\n"
	return nil
}

// String returns the page with the outputs that the commands have now.
func (p *Page) String() string {
	var out []string
	from := 0
	for _, c := range p.Commands {
		out = append(out, p.lines[from:c.Line]...)
		if c.Output != "" {
			out = append(out, strings.Split(strings.TrimSuffix(c.Output, "\n"), "\n")...)
		}
		from = c.end - 1
	}
	return strings.Join(append(out, p.lines[from:]...), "\n")
}
