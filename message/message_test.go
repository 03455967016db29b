// SPDX-License-Identifier: Apache-2.0

package message

import "testing"

func TestAMessageIsOneLineWhateverEndsItsLines(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "",
		"one":                     "one",
		"one\ntwo\n":              "one; two",
		"10 %\r20 %\r\n\nfailed":  "10 %; 20 %; failed",
		"a path with \\n in it\n": "a path with \\n in it",
	} {
		if got := OneLine(text); got != want {
			t.Errorf("OneLine(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestTheReasonIsTheLastLineThatIsNotBlank(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "",
		" \n\t\n":                 "",
		"why":                     "why",
		"start\n why \n\n":        "why",
		"fetching 1 %\rno space":  "no space",
		"one\r\nno such device\r": "no such device",
	} {
		if got := LastLine(text); got != want {
			t.Errorf("LastLine(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestACutLeavesWholeCharacters(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{
		{"plain", 10, "plain"},
		{"plain", 5, "plain"},
		{"plain", 3, "pla"},
		{"größe", 3, "gr"},
		{"größe", 4, "grö"},
		{"€", 2, ""},
	} {
		if got := Cut(c.text, c.limit); got != c.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", c.text, c.limit, got, c.want)
		}
	}
}
