// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/progress"
)

func TestKeysAreToldApart(t *testing.T) {
	t.Parallel()
	for data, want := range map[string][]key{
		"jk":                 {"j", "k"},
		"\x1b[A\x1b[B":       {keyUp, keyDown},
		"\x1bOA":             {keyUp},
		"\x1b":               {keyEscape},
		"\x1b[5~q":           {keyPageUp, "q"},
		"\x1b[1;5Cq":         {"q"}, // a key that is not known
		"\x1b[":              nil,   // the terminal was cut off
		"\x1bx":              nil,   // Alt-x
		"\r":                 {keyEnter},
		"\x7f":               {keyBackspace},
		"\x03":               {keyInterrupt},
		"ä\x00\x07":          {"ä"},
		string([]byte{0xff}): nil,
	} {
		if got := keysOf([]byte(data)); !slices.Equal(got, want) {
			t.Errorf("%q: %q instead of %q", data, got, want)
		}
	}
}

func aPool(name string) target {
	return target{progress.Object{Kind: kindPool, Name: name}, name}
}

func aNode(name, pool string) target {
	return target{progress.Object{Kind: kindNode, Name: name}, pool}
}

func TestKeysSelectAskAndRead(t *testing.T) {
	t.Parallel()
	shown := []target{aPool("master"), aPool("worker"), aNode("node-1", "worker")}
	for name, c := range map[string]struct {
		keys   string
		wants  []deed
		mode   mode
		at     int
		bottom string
	}{
		"nothing":                            {at: 0, bottom: "q quit"},
		"down and up":                        {keys: "jjk", at: 1},
		"not beyond the ends":                {keys: "kjjjjj", at: 2},
		"explain the first":                  {keys: "e", wants: []deed{{verbExplain, shown[0]}}, mode: modeDetail},
		"a text is left again":               {keys: "eq", wants: []deed{{verbExplain, shown[0]}}},
		"the difference of a node":           {keys: "jjd", wants: []deed{{verbDiff, shown[2]}}, mode: modeDetail, at: 2},
		"the log of a node":                  {keys: "jjl", wants: []deed{{verbLog, shown[2]}}, mode: modeDetail, at: 2},
		"a pool has no log":                  {keys: "l", bottom: "a log is of a node"},
		"a pause is asked for":               {keys: "jp", mode: modeAsk, at: 1, bottom: "pause pool worker? y/n"},
		"a yes":                              {keys: "jpy", wants: []deed{{verbPause, shown[1]}}, at: 1},
		"whatever else is a no":              {keys: "jpq", at: 1, bottom: "nothing was changed"},
		"the pool of a node is resumed":      {keys: "jjry", wants: []deed{{verbResume, shown[2]}}, at: 2},
		"a filter is typed":                  {keys: "/no", mode: modeFilter, bottom: "nodes with: no_"},
		"keys of a filter are its letters":   {keys: "/pq", mode: modeFilter, bottom: "nodes with: pq_"},
		"a filter is taken back by a letter": {keys: "/no\x7f", mode: modeFilter, bottom: "nodes with: n_"},
		"a filter stays":                     {keys: "/no\r", bottom: `nodes with "no"`},
		"a filter goes":                      {keys: "/no\r\x1b", bottom: "q quit"},
		"quit":                               {keys: "q", wants: []deed{{verb: verbQuit}}},
		"quit from a text":                   {keys: "e\x03", wants: []deed{{verbExplain, shown[0]}, {verb: verbQuit}}, mode: modeDetail},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d desk
			var got []deed
			for _, k := range c.keys {
				for _, pressed := range keysOf([]byte(string(k))) {
					var what deed
					if d, what = d.press(pressed, shown, 10); what != (deed{}) {
						got = append(got, what)
					}
				}
			}
			if !slices.Equal(got, c.wants) || d.mode != c.mode || d.selected(shown) != c.at || !strings.Contains(d.bottom(), c.bottom) {
				t.Errorf("asks for %v, mode %d, line %d, %q", got, d.mode, d.selected(shown), d.bottom())
			}
		})
	}
}

func TestKeysWithoutLinesDoNothing(t *testing.T) {
	t.Parallel()
	for _, k := range []key{"e", "p", keyUp, keyDown, keyEnter} {
		if d, what := (desk{}).press(k, nil, 10); what != (deed{}) || d.mode != modeList {
			t.Errorf("%s: %+v", k, what)
		}
	}
}

func TestASelectedNodeThatIsGoneGivesWayToTheFirstLine(t *testing.T) {
	t.Parallel()
	d := desk{at: aNode("gone", "worker")}
	if _, what := d.press("e", []target{aPool("worker")}, 10); what.about != aPool("worker") {
		t.Errorf("%+v", what)
	}
}

func TestATextIsScrolledWithinItsEnds(t *testing.T) {
	t.Parallel()
	d := desk{mode: modeDetail, text: make([]string, 30)}
	for _, step := range []struct {
		k   key
		top int
	}{{"k", 0}, {"j", 1}, {" ", 11}, {"G", 20}, {"j", 20}, {"b", 10}, {"g", 0}} {
		if d, _ = d.press(step.k, nil, 10); d.top != step.top {
			t.Fatalf("%s: line %d instead of %d", step.k, d.top, step.top)
		}
	}
}

// said answers for a cluster.
type said struct{ asked []string }

func (s *said) say(what, about string) (string, error) {
	s.asked = append(s.asked, what+" "+about)
	if strings.Contains(about, "bad") {
		return "", errors.New("not known")
	}
	return what + " of " + about, nil
}

func (s *said) explainText(_ context.Context, name string) (string, error) {
	return s.say("explain", name)
}
func (s *said) diffText(_ context.Context, name string) (string, error) { return s.say("diff", name) }
func (s *said) logText(_ context.Context, name string) (string, error)  { return s.say("log", name) }
func (s *said) Pause(_ context.Context, name string) (string, error)    { return s.say("pause", name) }
func (s *said) Resume(_ context.Context, name string, _ bool) (string, error) {
	return s.say("resume", name)
}

func TestADeedIsDoneOnItsObject(t *testing.T) {
	t.Parallel()
	s := &said{}
	for _, v := range []verb{verbExplain, verbDiff, verbPause, verbResume, verbLog} {
		about := aPool("worker")
		if v == verbLog {
			about = aNode("node-1", "worker")
		}
		if _, err := do(t.Context(), s, deed{v, about}); err != nil {
			t.Error(err)
		}
	}
	if _, err := do(t.Context(), s, deed{verbExplain, aNode("node-1", "worker")}); err != nil {
		t.Error(err)
	}
	want := []string{"explain pool/worker", "diff pool/worker", "pause worker", "resume worker", "log node-1", "explain node/node-1"}
	if !slices.Equal(s.asked, want) {
		t.Errorf("%q", s.asked)
	}
}

func TestAnAnswerThatNobodyWaitsForIsDropped(t *testing.T) {
	t.Parallel()
	d, what := desk{}.press("e", []target{aPool("worker")}, 10)
	left, _ := d.press("q", nil, 10)
	if left = left.outcome(what, "an answer", nil, 80); left.mode != modeList || left.text != nil {
		t.Errorf("%+v", left)
	}
	if d = d.outcome(what, "an\nanswer\n", nil, 80); !slices.Equal(d.text, []string{"an", "answer"}) {
		t.Errorf("%+v", d)
	}
	if d = d.outcome(what, strings.Repeat("x", 100), nil, 79); len(d.text) != 2 {
		t.Errorf("a long line is cut: %+v", d)
	}
	if d = d.outcome(what, "", errors.New("not allowed"), 80); !slices.Equal(d.text, []string{"error: not allowed"}) {
		t.Errorf("%+v", d)
	}
}

func TestTheDeskIsDrawn(t *testing.T) {
	t.Parallel()
	r := progress.NewReport(twelve())
	rollout := func(p paper) []drawn { return draw(r, r.Pools(), noon, p) }
	d := desk{at: aNode("node-05", "worker")}
	var text []string
	for _, one := range []desk{
		d, {filter: "node-0", mode: modeFilter}, {mode: modeAsk, ask: deed{verbPause, aPool("worker")}},
		{mode: modeDetail, title: "explain Node node-05", text: []string{"Node node-05: Draining", strings.Repeat("long ", 30)}},
	} {
		for _, p := range []paper{{width: 80, height: 12}, {width: 40, height: 8}} {
			lines, shown := one.picture(p, rollout)
			if len(lines) > p.height-1 {
				t.Errorf("%d lines do not fit on %d", len(lines), p.height)
			}
			for _, line := range lines {
				if columns(line) >= p.width {
					t.Errorf("on %d columns: %q", p.width, line)
				}
			}
			if one.mode != modeDetail && len(shown) == 0 {
				t.Error("no line can be selected")
			}
			text = append(text, strings.Join(lines, "\n"))
		}
	}
	golden(t, "watch-keys.txt", strings.Join(text, "\n----\n")+"\n")
}
