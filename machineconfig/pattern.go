// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// pattern is a regular expression that is compiled at its first use. Otherwise the start of each command would compile
// fifty of them, which takes milliseconds and a megabyte. Most commands use none.
type pattern struct {
	compiled func() *regexp.Regexp
	// words are texts of which each match of the expression has one, in lower case. They are nil if none is known. To
	// look for words is a hundred times as fast as the expression.
	words func() []string
	// hint reports whether a match can have its word at a place of a text in lower case. It is nil without a hint.
	hint func(lower string, at int) bool
	// near reports whether each match is near its word. Such a match begins in one of the before lines in front of the
	// word's line or in that line, and ends at most nearLines lines after it. Blank lines do not count.
	near   bool
	before int
}

const (
	nearLines = 4
	// A text that is shorter than short is not worth looking for the lines around its words.
	short = 4096
)

// hinted gives a pattern a hint.
func (p *pattern) hinted(hint func(lower string, at int) bool) *pattern {
	p.hint = hint
	return p
}

// worded gives a pattern a word that the hint is for.
func (p *pattern) worded(word string) *pattern {
	p.words = func() []string { return []string{word} }
	return p
}

// newNearPattern returns a pattern of which each match is near its word, and begins in the line of the word or with the
// newline before.
func newNearPattern(expression string) *pattern { return newNearPatternFrom(0, expression) }

// newNearPatternFrom returns a pattern of which each match is near its word, and begins at most so many lines before.
func newNearPatternFrom(before int, expression string) *pattern {
	p := newPattern(expression)
	p.near, p.before = true, before
	return p
}

func newPattern(expression string) *pattern {
	return &pattern{
		compiled: sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) }),
		words: sync.OnceValue(func() []string {
			re, err := syntax.Parse(expression, syntax.Perl)
			if err != nil {
				return nil // compiled panics
			}
			return needed(wordsOf(re))
		}),
	}
}

// matchString reports whether the text has a match of the pattern.
func (p *pattern) matchString(text string) bool { return p.compiled().MatchString(text) }

// match reports whether the text has a match of the pattern.
func (p *pattern) match(t *searched) bool {
	places := t.places(p)
	switch {
	case len(places) == 0 && p.words() != nil:
		return false
	case !p.near || len(t.text) < short || !t.aligned:
		return p.compiled().MatchString(t.text)
	}
	return slices.ContainsFunc(t.around(places, p.before), p.compiled().MatchString)
}

// searched is a text in which several patterns are looked for.
type searched struct {
	text, lower string
	// aligned is true where each letter is at the same place in both.
	aligned bool
	// at has the places of the words of all secretPatterns in lower.
	at map[string][]int
}

func search(text string) *searched {
	lower := fold(text)
	return &searched{text: text, lower: lower, aligned: len(lower) == len(text), at: index().places(lower)}
}

// foreign are the letters of other scripts that an expression takes for a letter of ASCII where case does not matter.
var foreign = strings.NewReplacer("\u017f", "s", "\u212a", "k")

// fold returns a text in which all that an expression takes for one letter of ASCII is one.
func fold(text string) string {
	lower := []byte(text)
	ascii := true
	for i, c := range lower {
		switch {
		case 'A' <= c && c <= 'Z':
			lower[i] = c + 'a' - 'A'
		case c > unicode.MaxASCII:
			ascii = false
		}
	}
	if ascii {
		return string(lower)
	}
	return foreign.Replace(string(lower))
}

// places returns where the text in lower case has a word of the pattern that its hint lets pass, in order.
func (t *searched) places(p *pattern) (places []int) {
	words := p.words()
	for _, word := range words {
		places = append(places, t.find(word)...)
	}
	if len(words) > 1 {
		slices.Sort(places)
	}
	if p.hint != nil && t.aligned {
		places = slices.DeleteFunc(places, func(at int) bool { return !p.hint(t.lower, at) })
	}
	return places
}

// find returns where the text in lower case has a word.
func (t *searched) find(word string) (places []int) {
	if index().known[word] {
		return t.at[word]
	}
	for from := 0; ; {
		next := strings.Index(t.lower[from:], word)
		if next < 0 {
			return places
		}
		places = append(places, from+next)
		from += next + 1
	}
}

// wordIndex has words by their first two bytes, so that one pass over a text finds all of them.
type wordIndex struct {
	begins [1 << 16]bool
	words  map[[2]byte][]string
	known  map[string]bool
}

// index has the words of all secretPatterns that are long enough.
var index = sync.OnceValue(func() *wordIndex {
	x := &wordIndex{words: map[[2]byte][]string{}, known: map[string]bool{}}
	for _, p := range secretPatterns() {
		for _, word := range p.words() {
			if len(word) < 2 || x.known[word] {
				continue
			}
			key := [2]byte{word[0], word[1]}
			x.words[key] = append(x.words[key], word)
			x.begins[uint16(word[0])<<8|uint16(word[1])] = true
			x.known[word] = true
		}
	}
	return x
})

// places returns where a text has which word.
func (x *wordIndex) places(text string) map[string][]int {
	at := map[string][]int{}
	for i := 1; i < len(text); i++ {
		if !x.begins[uint16(text[i-1])<<8|uint16(text[i])] {
			continue
		}
		for _, word := range x.words[[2]byte{text[i-1], text[i]}] {
			if strings.HasPrefix(text[i-1:], word) {
				at[word] = append(at[word], i-1)
			}
		}
	}
	return at
}

// around returns the lines around places in the text, which begin so many lines before a place.
func (t *searched) around(places []int, lines int) (parts []string) {
	begin, end := 0, 0
	for _, i := range places {
		if i < end && t.after(i) <= end {
			continue
		}
		if from := t.before(i, lines); from > end {
			parts = append(parts, t.text[begin:end])
			begin = from
		}
		end = t.after(i)
	}
	return append(parts, t.text[begin:end])
}

// before returns where so many lines before a place in the text begin, with the newline in front of them.
func (t *searched) before(at, most int) int {
	at = strings.LastIndexByte(t.text[:at], '\n') + 1
	for lines := 0; lines < most && at > 0; {
		from := strings.LastIndexByte(t.text[:at-1], '\n') + 1
		if strings.TrimSpace(t.text[from:at]) != "" {
			lines++
		}
		at = from
	}
	return max(0, at-1)
}

// after returns where the lines after a place in the text end.
func (t *searched) after(at int) int {
	for lines := -1; lines < nearLines && at < len(t.text); {
		line, _, whole := strings.Cut(t.text[at:], "\n")
		if lines < 0 || strings.TrimSpace(line) != "" {
			lines++
		}
		if at += len(line); whole {
			at++
		}
	}
	return at
}

// mostWords bounds how many words stand for a part of an expression.
const mostWords = 64

// mostLetters bounds of how many letters one stands at a place of a word.
const mostLetters = 26

// wordsOf returns texts of which each match has one, in lower case, and nil if there are none. Of the parts of an
// expression that all have to match, the words of one are enough.
func wordsOf(re *syntax.Regexp) []string {
	if all := allOf(re); shortest(all) > 0 {
		return all
	}
	switch re.Op {
	case syntax.OpCapture, syntax.OpPlus:
		return wordsOf(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return wordsOf(re.Sub[0])
		}
	case syntax.OpAlternate:
		var all []string
		for _, sub := range re.Sub {
			words := wordsOf(sub)
			if words == nil {
				return nil
			}
			all = append(all, words...)
		}
		return all
	case syntax.OpConcat:
		return wordsOfParts(re.Sub)
	}
	return nil
}

// wordsOfParts returns the words of parts that follow one another. Parts of which all matches are known are joined.
func wordsOfParts(parts []*syntax.Regexp) (best []string) {
	better := func(words []string) {
		if more := shortest(words) - shortest(best); more > 0 || more == 0 && len(words) < len(best) {
			best = words
		}
	}
	joined := []string{""}
	for _, sub := range parts {
		all := allOf(sub)
		if all != nil && len(joined)*len(all) <= mostWords {
			joined = times(joined, all)
			continue
		}
		better(joined)
		better(wordsOf(sub))
		if joined = all; all == nil {
			joined = []string{""}
		}
	}
	better(joined)
	return best
}

// allOf returns all texts that an expression matches, in lower case, and nil where they are too many.
func allOf(re *syntax.Regexp) []string {
	switch re.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText,
		syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return []string{""}
	case syntax.OpLiteral:
		return plain(string(re.Rune))
	case syntax.OpCharClass:
		var all []string
		for i := 0; i < len(re.Rune); i += 2 {
			if re.Rune[i+1]-re.Rune[i] > mostWords {
				return nil
			}
			for r := re.Rune[i]; r <= re.Rune[i+1]; r++ {
				one := plain(string(r))
				if one == nil || len(all) == mostWords {
					return nil
				}
				all = append(all, one...)
			}
		}
		slices.Sort(all)
		if all = slices.Compact(all); len(all) > mostLetters {
			return nil // as good as any
		}
		return all
	case syntax.OpCapture:
		return allOf(re.Sub[0])
	case syntax.OpQuest:
		if all := allOf(re.Sub[0]); all != nil {
			return append([]string{""}, all...)
		}
	case syntax.OpAlternate:
		var all []string
		for _, sub := range re.Sub {
			words := allOf(sub)
			if words == nil || len(all)+len(words) > mostWords {
				return nil
			}
			all = append(all, words...)
		}
		return all
	case syntax.OpConcat:
		all := []string{""}
		for _, sub := range re.Sub {
			words := allOf(sub)
			if words == nil || len(all)*len(words) > mostWords {
				return nil
			}
			all = times(all, words)
		}
		return all
	}
	return nil
}

// needed returns the words without those that have another one in them.
func needed(words []string) []string {
	all := slices.Clone(words)
	return slices.DeleteFunc(slices.Compact(words), func(word string) bool {
		return slices.ContainsFunc(all, func(other string) bool { return other != word && strings.Contains(word, other) })
	})
}

// plain returns a text as searched has it, and nil for one with letters of other scripts.
func plain(text string) []string {
	text = fold(text)
	if strings.IndexFunc(text, func(r rune) bool { return r > unicode.MaxASCII }) >= 0 {
		return nil
	}
	return []string{text}
}

// times returns each text of the one list before each text of the other.
func times(before, after []string) []string {
	all := make([]string, 0, len(before)*len(after))
	for _, b := range before {
		for _, a := range after {
			all = append(all, b+a)
		}
	}
	return all
}

// shortest returns the length of the shortest word, and 0 if there are no words.
func shortest(words []string) int {
	if len(words) == 0 {
		return 0
	}
	return len(slices.MinFunc(words, func(a, b string) int { return len(a) - len(b) }))
}
