// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"math/rand/v2"
	"regexp/syntax"
	"strings"
	"testing"
	"unicode"
)

// A pattern that does not compile is found here, and not on a host.
func TestEveryPatternOfASecretCompiles(*testing.T) {
	for _, p := range append(secretPatterns(), likelyPaths, plainName, credentialPaths, signature, secretArgument) {
		p.matchString("x")
	}
}

// made is a text that an expression matches, unless an assertion in it fails.
func made(re *syntax.Regexp, chance *rand.Rand) string {
	var out strings.Builder
	times := func(least, most int) {
		for range least + chance.IntN(most-least+1) {
			out.WriteString(made(re.Sub[0], chance))
		}
	}
	switch re.Op {
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			if re.Flags&syntax.FoldCase != 0 {
				for range chance.IntN(4) {
					r = unicode.SimpleFold(r)
				}
			}
			out.WriteRune(r)
		}
	case syntax.OpCharClass:
		at := 2 * chance.IntN(len(re.Rune)/2)
		low, high := re.Rune[at], min(re.Rune[at+1], re.Rune[at]+200)
		out.WriteRune(low + chance.Int32N(high-low+1))
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		out.WriteRune('a' + chance.Int32N(26))
	case syntax.OpStar:
		times(0, 3)
	case syntax.OpPlus:
		times(1, 3)
	case syntax.OpQuest:
		times(0, 1)
	case syntax.OpRepeat:
		if re.Max < 0 {
			times(re.Min, re.Min+2)
		} else {
			times(re.Min, re.Max)
		}
	case syntax.OpCapture:
		times(1, 1)
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			out.WriteString(made(sub, chance))
		}
	case syntax.OpAlternate:
		out.WriteString(made(re.Sub[chance.IntN(len(re.Sub))], chance))
	}
	return out.String()
}

// The words and hints of a pattern only save time: the answer is that of the expression, of which matches are made
// here, in all spellings, whole and broken.
func TestAPatternWithWordsMatchesWhatItsExpressionMatches(t *testing.T) {
	t.Parallel()
	chance := rand.New(rand.NewPCG(1, 2))
	rounds := 400
	if testing.Short() {
		rounds = 100
	}
	const noise = "a.B-_ =:\"'\n/\u017f\u212a{$0"
	for _, p := range secretPatterns() {
		expression := p.compiled().String()
		re, err := syntax.Parse(expression, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		if p.words() == nil {
			t.Errorf("no words are known of %s", expression)
		}
		matches := 0
		for range rounds {
			runes := []rune(made(re, chance))
			if chance.IntN(3) == 0 && len(runes) > 0 {
				runes[chance.IntN(len(runes))] = []rune(noise)[chance.IntN(len([]rune(noise)))]
			}
			text := [...]string{"", "\n", " ", "x", "\xff", "Kind: \u212a\n"}[chance.IntN(6)] + string(runes) +
				[...]string{"", "\n", " ", "x"}[chance.IntN(4)]
			if chance.IntN(2) == 0 { // among many lines, some of them with words
				var lines strings.Builder
				for lines.Len() < short {
					lines.WriteString([...]string{"\n", "token\n", "a line of a log\n", " \t\n", "the key\n"}[chance.IntN(5)])
				}
				text = lines.String()[:chance.IntN(lines.Len())] + text + lines.String()
			}
			want := p.matchString(text)
			if want {
				matches++
			}
			if got := p.match(search(text)); got != want {
				t.Fatalf("%q matches %s: %t, with words %q %t", text, expression, want, p.words(), got)
			}
		}
		if matches < rounds/10 {
			t.Errorf("%d of %d texts match %s: the test shows nothing", matches, rounds, expression)
		}
	}
}

func FuzzAPatternWithWordsMatchesWhatItsExpressionMatches(f *testing.F) {
	for _, text := range []string{"password=x", "to\u212aen: x", "pa\u017fsword=x", "abcdef.0123456789abcdef", "https://a:b@c", "\xffkey=1", "~token\n\n:\n\"\nx~"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ReplaceAll(text, "~", strings.Repeat("a line\n", short/10)) // long texts are looked at in another way
		s := search(text)
		for _, p := range secretPatterns() {
			if got, want := p.match(s), p.matchString(text); got != want {
				t.Fatalf("%q matches %s: %t, with words %t", text, p.compiled().String(), want, got)
			}
		}
	})
}
