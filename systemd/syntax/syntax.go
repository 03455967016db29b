// SPDX-License-Identifier: Apache-2.0

// Package syntax reads unit files and the words in them as systemd does. It is pure.
package syntax

import (
	"fmt"
	"strings"
)

// MaxLine is the length in bytes of the longest line that systemd reads (LONG_LINE_MAX).
const MaxLine = 1 << 20

// Assignment is one Key=Value line of a unit file, with its continuations joined.
type Assignment struct {
	Section, Key, Value string
}

// Parse reads a unit file as systemd does. It skips what systemd skips with a warning: text before the first section,
// and, unless strict, lines without "=". The line in an error counts from 1.
func Parse(contents string, strict bool) ([]Assignment, error) {
	var (
		all     []Assignment
		section string
		pending string // an assignment whose last line ended in a backslash
		joining bool
		first   int
	)
	finish := func(line string, n int) error {
		line = strings.Trim(line, Whitespace)
		if line == "" {
			return nil
		}
		if line[0] == '[' {
			if !strings.HasSuffix(line, "]") || len(line) == 2 {
				return fmt.Errorf("line %d: %q is not a section header", n, line)
			}
			section = line[1 : len(line)-1]
			return nil
		}
		key, value, ok := strings.Cut(line, "=")
		key = strings.Trim(key, Whitespace)
		if section == "" {
			return nil
		}
		if !ok || key == "" {
			if strict {
				return fmt.Errorf("line %d: neither a section header nor Key=Value", n)
			}
			return nil
		}
		all = append(all, Assignment{section, key, strings.Trim(value, Whitespace)})
		return nil
	}

	n := 0
	for line := range strings.Lines(strings.TrimPrefix(contents, "\ufeff")) {
		n++
		if len(line) > MaxLine {
			return nil, fmt.Errorf("line %d: longer than %d bytes", n, MaxLine)
		}
		if strings.IndexByte(line, 0) >= 0 {
			return nil, fmt.Errorf("line %d: holds a NUL byte", n)
		}
		line = strings.TrimRight(line, "\r\n")
		// A comment between the lines of one assignment does not end it.
		if t := strings.TrimLeft(line, Whitespace); t != "" && (t[0] == '#' || t[0] == ';') {
			continue
		}
		if !joining {
			pending, first = "", n
		}
		pending += line
		if len(pending) > MaxLine {
			return nil, fmt.Errorf("line %d: longer than %d bytes with its continuations", first, MaxLine)
		}
		backslashes := len(line) - len(strings.TrimRight(line, `\`))
		if joining = backslashes%2 == 1; joining {
			pending = pending[:len(pending)-1] + " "
			continue
		}
		if err := finish(pending, first); err != nil {
			return nil, err
		}
	}
	if joining {
		if err := finish(pending, first); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Whitespace is the set of blanks that systemd knows in unit and preset files.
const Whitespace = " \t\n\r"

// Words splits a list value, with systemd's quotes; ok is false where a quote is not closed.
func Words(value string) (list []string, ok bool) {
	var (
		word   strings.Builder
		inWord bool
		quote  rune
		escape bool
	)
	for _, c := range value {
		switch {
		case escape:
			// Backslashes stay: they are part of unit names.
			word.WriteRune(c)
			escape = false
		case c == '\\':
			word.WriteRune(c)
			inWord, escape = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '"' || c == '\'':
			inWord, quote = true, c
		case strings.ContainsRune(Whitespace, c):
			if inWord {
				list = append(list, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteRune(c)
			inWord = true
		}
	}
	if inWord {
		list = append(list, word.String())
	}
	return list, quote == 0
}
