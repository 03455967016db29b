// SPDX-License-Identifier: Apache-2.0

// Package message turns the output of programs and joined errors into one message for a person.
package message

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// OneLine puts the lines of a text on one line, separated by "; ". Scripts read an error line by line, and records and
// annotations hold one line.
func OneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, endsLine), "; ")
}

// LastLine returns the last line of a text that is not blank: programs print the reason of a failure last.
func LastLine(text string) string {
	lines := strings.FieldsFunc(text, endsLine)
	for _, line := range slices.Backward(lines) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return ""
}

// Cut returns at most the first limit bytes of a text, and never a part of a character.
func Cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

func endsLine(r rune) bool { return r == '\n' || r == '\r' }
