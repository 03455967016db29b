// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"regexp"
	"sync"
)

// pattern is a regular expression that is compiled at its first use: the start of each command would pay for fifty of
// them otherwise, in milliseconds and in a megabyte, and most commands use none.
type pattern struct {
	compiled func() *regexp.Regexp
}

func newPattern(expression string) *pattern {
	return &pattern{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })}
}

// match reports whether the text has a match of the pattern.
func (p *pattern) match(text []byte) bool { return p.compiled().Match(text) }

// matchString reports whether the text has a match of the pattern.
func (p *pattern) matchString(text string) bool { return p.compiled().MatchString(text) }
