// SPDX-License-Identifier: Apache-2.0

package page

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/progress"
)

// sheetRules are the declarations of the style sheet for a selector, with the colours of a scheme in place of their
// names.
type sheetRules map[string]map[string]string

var (
	block    = regexp.MustCompile(`([^{}]+)\{([^{}]*)\}`)
	variable = regexp.MustCompile(`var\((--[a-z]+)\)`)
)

// schemes reads the style sheet as it is in the light and in the dark.
func schemes(t *testing.T) map[string]sheetRules {
	t.Helper()
	text := regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(string(style), "")
	light, dark := map[string]string{}, map[string]string{}
	var roots int
	for _, found := range block.FindAllStringSubmatch(text, -1) {
		if !strings.HasSuffix(strings.TrimSpace(found[1]), ":root") {
			continue
		}
		roots++
		for name, value := range declarations(found[2]) {
			if roots == 1 {
				light[name] = value
			}
			dark[name] = value
		}
	}
	if roots != 2 {
		t.Fatalf("the style sheet has %d blocks of colours, not one for each scheme", roots)
	}
	out := map[string]sheetRules{}
	for scheme, colours := range map[string]map[string]string{"light": light, "dark": dark} {
		rules := sheetRules{}
		for _, found := range block.FindAllStringSubmatch(text, -1) {
			for selector := range strings.SplitSeq(found[1], ",") {
				selector = strings.TrimSpace(selector)
				if rules[selector] == nil {
					rules[selector] = map[string]string{}
				}
				for name, value := range declarations(found[2]) {
					rules[selector][name] = variable.ReplaceAllStringFunc(value, func(use string) string {
						return colours[strings.TrimSuffix(strings.TrimPrefix(use, "var("), ")")]
					})
				}
			}
		}
		out[scheme] = rules
	}
	return out
}

func declarations(body string) map[string]string {
	out := map[string]string{}
	for one := range strings.SplitSeq(body, ";") {
		if name, value, is := strings.Cut(one, ":"); is {
			out[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return out
}

// contrast is WCAG's ratio of two colours, such as #fff and #1a7f37.
func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	luminance := func(colour string) float64 {
		hex := strings.TrimPrefix(colour, "#")
		if len(hex) == 3 {
			hex = strings.Join(slices.Collect(func(yield func(string) bool) {
				for _, c := range hex {
					if !yield(string(c) + string(c)) {
						return
					}
				}
			}), "")
		}
		if len(hex) != 6 {
			t.Fatalf("%q is no colour", colour)
		}
		var sum float64
		for i, share := range []float64{.2126, .7152, .0722} {
			n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
			if err != nil {
				t.Fatal(err)
			}
			v := float64(n) / 255
			if v <= .03928 {
				v /= 12.92
			} else {
				v = math.Pow((v+.055)/1.055, 2.4)
			}
			sum += share * v
		}
		return sum
	}
	x, y := luminance(a), luminance(b)
	return (max(x, y) + .05) / (min(x, y) + .05)
}

// Of neighbouring parts of a picture, WCAG 1.4.11 asks a contrast of 3:1. A gap between two parts is a neighbour of
// both.
const enough = 3

func TestPartsOfABarStandOutFromTheirNeighbours(t *testing.T) {
	t.Parallel()
	for scheme, rules := range schemes(t) {
		gap := rules[".bar rect"]["stroke"]
		for _, a := range progress.Phases {
			for _, b := range progress.Phases {
				fillA, fillB := rules["."+string(a)]["fill"], rules["."+string(b)]["fill"]
				if a == b || contrast(t, fillA, fillB) >= enough {
					continue
				}
				if gap == "" || rules[".bar rect"]["stroke-width"] == "" {
					t.Errorf("%s: %s beside %s is %.2f:1, without a gap", scheme, a, b, contrast(t, fillA, fillB))
					continue
				}
				if c := min(contrast(t, gap, fillA), contrast(t, gap, fillB)); c < enough {
					t.Errorf("%s: the gap between %s and %s is %.2f:1", scheme, a, b, c)
				}
			}
		}
		// A part that ends before its picture does has the track beside it, one with a moment in it that moment.
		track, moment, before := rules[".line"]["background"], rules[".arrival"]["fill"], rules[".before"]["fill"]
		if rules[".line rect"]["stroke"] != gap {
			t.Errorf("%s: parts of a rollout's picture have no gap", scheme)
		}
		for _, m := range moods {
			fill := rules["."+string(m)]["fill"]
			for what, other := range map[string]string{"the track": track, "an arrival": moment, "the gap": gap} {
				if c := contrast(t, fill, other); c < enough {
					t.Errorf("%s: %s beside %s is %.2f:1", scheme, m, what, c)
				}
			}
		}
		if c := contrast(t, before, gap); c < enough {
			t.Errorf("%s: the time before a rollout beside the gap is %.2f:1", scheme, c)
		}
	}
}
