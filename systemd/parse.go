// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"fmt"
	"slices"
	"strings"
)

// maxLine is the longest line in bytes that systemd reads (LONG_LINE_MAX).
const maxLine = 1 << 20

// assignment is one Key=Value line of a unit file, continuations joined.
type assignment struct {
	section, key, value string
}

// parse reads a unit file as systemd does. What systemd skips with a warning is skipped: text before the first section,
// and, unless strict, lines without "=". The line in an error counts from 1.
func parse(contents string, strict bool) ([]assignment, error) {
	var (
		all     []assignment
		section string
		pending string // an assignment whose last line ended in a backslash
		joining bool
		first   int
	)
	finish := func(line string, n int) error {
		line = strings.Trim(line, whitespace)
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
		key = strings.Trim(key, whitespace)
		if section == "" {
			return nil
		}
		if !ok || key == "" {
			if strict {
				return fmt.Errorf("line %d: neither a section header nor Key=Value", n)
			}
			return nil
		}
		all = append(all, assignment{section, key, strings.Trim(value, whitespace)})
		return nil
	}

	n := 0
	for line := range strings.Lines(strings.TrimPrefix(contents, "\ufeff")) {
		n++
		if len(line) > maxLine {
			return nil, fmt.Errorf("line %d: longer than %d bytes", n, maxLine)
		}
		if strings.IndexByte(line, 0) >= 0 {
			return nil, fmt.Errorf("line %d: holds a NUL byte", n)
		}
		line = strings.TrimRight(line, "\r\n")
		// A comment between the lines of one assignment does not end it.
		if t := strings.TrimLeft(line, whitespace); t != "" && (t[0] == '#' || t[0] == ';') {
			continue
		}
		if !joining {
			pending, first = "", n
		}
		pending += line
		if len(pending) > maxLine {
			return nil, fmt.Errorf("line %d: longer than %d bytes with its continuations", first, maxLine)
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

// whitespace is systemd's own notion of it, in unit and preset files.
const whitespace = " \t\n\r"

// words splits a list value, with systemd's quotes; ok is false where a quote is not closed.
func words(value string) (list []string, ok bool) {
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
		case strings.ContainsRune(whitespace, c):
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

// Validate says what is wrong with a unit before anything is written: a name that systemd does not take, a drop-in that
// it would never read, contents that do not parse. Errors name the unit, the drop-in and the line. What systemd itself
// only warns about outside of any section passes, as it does upstream.
func Validate(u Unit) error {
	n := splitName(u.Name)
	if n.kind == invalidName {
		return fmt.Errorf("unit %q: not a valid unit name", u.Name)
	}
	if n.kind != plainName && !slices.Contains(templatedTypes, n.typ) {
		return fmt.Errorf("unit %s: a %s unit can't be a template or an instance", u.Name, n.typ)
	}
	if _, err := parse(u.Contents, true); err != nil {
		return fmt.Errorf("unit %s: %w", u.Name, err)
	}
	seen := map[string]bool{}
	for _, d := range u.Dropins {
		base, isConf := strings.CutSuffix(d.Name, ".conf")
		if !isConf || base == "" || len(d.Name) >= maxName || strings.ContainsAny(d.Name, "/\x00") {
			return fmt.Errorf("unit %s: drop-in %q: not a file name that ends in .conf", u.Name, d.Name)
		}
		if seen[d.Name] {
			return fmt.Errorf("unit %s: drop-in %s: given twice", u.Name, d.Name)
		}
		seen[d.Name] = true
		if _, err := parse(d.Contents, true); err != nil {
			return fmt.Errorf("unit %s: drop-in %s: %w", u.Name, d.Name, err)
		}
	}
	return nil
}
