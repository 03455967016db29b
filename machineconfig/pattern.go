// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"regexp"
	"sync"
)

// pattern is a regular expression that is compiled at its first use. Otherwise the start of each command would compile
// fifty of them, which takes milliseconds and a megabyte. Most commands use none.
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
