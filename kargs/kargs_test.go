// SPDX-License-Identifier: Apache-2.0

package kargs

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// same treats nil and empty lists alike.
func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func TestSplitKeepsQuotedSpaces(t *testing.T) {
	for _, c := range []struct {
		line string
		want []string
	}{
		{"", nil},
		{" \t\n", nil},
		{"a=1 b", []string{"a=1", "b"}},
		{"  a=1\t b\n", []string{"a=1", "b"}},
		{`dyndbg="file a.c +p" quiet`, []string{`dyndbg="file a.c +p"`, "quiet"}},
		{`"dyndbg=file a.c +p" quiet`, []string{`"dyndbg=file a.c +p"`, "quiet"}},
		{`a=x"y z"w b`, []string{`a=x"y z"w`, "b"}},
		{`a="" b`, []string{`a=""`, "b"}},
		{`a="b c`, []string{`a="b c`}},
		{"a=ä\u00a0b", []string{"a=ä\u00a0b"}}, // a byte of a letter is no white space
	} {
		same(t, c.line, Split(c.line), c.want)
	}
}

func TestApplyDeletesTheLastOfEqualArguments(t *testing.T) {
	line := Split("a=1 b a=1 c a=1")
	same(t, "one", Apply(line, []string{"a=1"}, []string{"d"}), Split("a=1 b a=1 c d"))
	same(t, "two", Apply(line, []string{"a=1", "a=1"}, nil), Split("a=1 b c"))
	same(t, "what is not there", Apply(line, []string{"x", "a"}, nil), line)
	same(t, "the input", line, Split("a=1 b a=1 c a=1"))
}

func TestDiff(t *testing.T) {
	for _, c := range []struct{ name, old, desired, del, app string }{
		{"nothing", "", "", "", ""},
		{"equal", "a=1 b c=2", "a=1 b c=2", "", ""},
		{"added", "a=1", "a=1 b=2 c", "", "b=2 c"},
		{"removed", "a=1 b=2", "b=2", "a=1", ""},
		{"only what differs moves", "a=1 b=2", "b=2 c=3", "a=1", "c=3"},
		{"changed value", "a=1 b=2", "a=3 b=2", "a=1", "a=3"},
		{"another order of different keys", "a=1 b=2 c", "c b=2 a=1", "", ""},
		{"another order within a key", "console=tty0 console=ttyS0", "console=ttyS0 console=tty0", "console=tty0", "console=tty0"},
		{"inserted before a later value of the key", "console=ttyS0", "console=tty0 console=ttyS0", "console=ttyS0", "console=tty0 console=ttyS0"},
		{"appended to a key", "console=tty0", "console=tty0 console=ttyS0", "", "console=ttyS0"},
		{"first value of a key removed", "console=tty0 console=ttyS0", "console=ttyS0", "console=tty0", ""},
		{"bare argument and one with a value share a key", "rd.x rd.x=1", "rd.x=1 rd.x", "rd.x", "rd.x"},
		{"one duplicate removed", "a=1 a=1", "a=1", "a=1", ""},
		{"duplicate added", "a=1", "a=1 a=1", "", "a=1"},
		{"three to one", "a a a", "a", "a a", ""},
		{"of equal duplicates the last goes", "a=1 a=2 a=1", "a=1 a=2", "a=1", ""},
		{"the first can't go alone", "a=1 a=2 a=1", "a=2 a=1", "a=1 a=1", "a=1"},
		{"quoted value", `a="x y" b`, `a="x z" b`, `a="x y"`, `a="x z"`},
		{"hugepages equal", "hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=512", "hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=512", "", ""},
		{
			"hugepages count changes: the group goes and comes whole",
			"quiet hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=512", "quiet hugepagesz=1G hugepages=8 hugepagesz=2M hugepages=512",
			"hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=512", "hugepagesz=1G hugepages=8 hugepagesz=2M hugepages=512",
		},
		{
			"hugepages pairs change places",
			"hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=512", "hugepagesz=2M hugepages=512 hugepagesz=1G hugepages=4",
			"hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=512", "hugepagesz=2M hugepages=512 hugepagesz=1G hugepages=4",
		},
		{
			"hugepages pair added",
			"hugepagesz=1G hugepages=4", "default_hugepagesz=1G hugepagesz=1G hugepages=4",
			"hugepagesz=1G hugepages=4", "default_hugepagesz=1G hugepagesz=1G hugepages=4",
		},
		{"hugepages removed", "a hugepagesz=1G hugepages=4", "a", "hugepagesz=1G hugepages=4", ""},
		{
			"other arguments between hugepages mean nothing",
			"hugepagesz=1G hugepages=4 a", "a hugepagesz=1G b hugepages=4", "", "b",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, desired := Split(c.old), Split(c.desired)
			del, app := Diff(old, desired)
			same(t, "delete", del, Split(c.del))
			same(t, "append", app, Split(c.app))
			checkDiff(t, old, desired)
		})
	}
}

// checkDiff checks what Diff promises.
func checkDiff(t *testing.T, old, desired []string) {
	t.Helper()
	del, app := Diff(old, desired)
	got := Apply(old, del, app)
	if len(got) != len(desired) {
		t.Fatalf("old %q desired %q: after -%q +%q the line is %q", old, desired, del, app, got)
	}
	wanted, have := byGroup(desired), byGroup(got)
	for name, at := range wanted {
		if w, h := pick(desired, at), pick(got, have[name]); !slices.Equal(w, h) {
			t.Fatalf("old %q desired %q: after -%q +%q group %s is %q", old, desired, del, app, name, h)
		}
	}
	if del, app := Diff(got, desired); len(del)+len(app) > 0 {
		t.Fatalf("old %q desired %q: a second diff is -%q +%q", old, desired, del, app)
	}
}

// fewest is the least number of deletions and additions for one group, by trying every set of deletions.
func fewest(old, desired []string) int {
	best := len(old) + len(desired)
	for set := range 1 << len(old) {
		var del []string
		for i, arg := range old {
			if set&(1<<i) != 0 {
				del = append(del, arg)
			}
		}
		rest := Apply(old, del, nil)
		if len(rest) <= len(desired) && slices.Equal(rest, desired[:len(rest)]) {
			best = min(best, len(del)+len(desired)-len(rest))
		}
	}
	return best
}

// sequences calls f with each sequence of up to most of the given arguments.
func sequences(args []string, most int, f func([]string)) {
	var walk func(prefix []string)
	walk = func(prefix []string) {
		f(slices.Clone(prefix))
		if len(prefix) < most {
			for _, arg := range args {
				walk(append(prefix, arg))
			}
		}
	}
	walk(nil)
}

func TestDiffIsMinimalForEverySmallGroup(t *testing.T) {
	alphabet := []string{"k=1", "k=2", "k"}
	sequences(alphabet, 4, func(old []string) {
		sequences(alphabet, 4, func(desired []string) {
			checkDiff(t, old, desired)
			del, app := Diff(old, desired)
			if want := fewest(old, desired); len(del)+len(app) != want {
				t.Fatalf("old %q desired %q: -%q +%q, but %d changes do", old, desired, del, app, want)
			}
		})
	})
}

func TestOwn(t *testing.T) {
	for _, c := range []struct{ name, cmdline, owned, desired, del, app, now string }{
		{"added to a fresh host", "ro quiet", "", "a=1 b", "", "a=1 b", "a=1 b"},
		{"what the base has is adopted, not added", "ro quiet", "", "quiet a=1", "", "a=1", "a=1"},
		{"what was adopted stays when the configuration lets go", "ro quiet a=1", "a=1", "", "a=1", "", ""},
		{"an equal one that we added goes, the base's stays", "quiet ro quiet", "quiet", "", "quiet", "", ""},
		{"a second one is added where two are wanted", "quiet ro", "", "quiet quiet", "", "quiet", "quiet"},
		{"ours stay while they are wanted", "ro a=1", "a=1", "a=1", "", "", "a=1"},
		{"the base brings what we added: nothing to do", "ro a=1 a=1", "a=1", "a=1", "", "", "a=1"},
		{"somebody removed ours", "ro", "a=1", "a=1", "", "a=1", "a=1"},
		{"somebody removed ours and it is no longer wanted", "ro", "a=1", "", "", "", ""},
		{"the base's order satisfies", "console=tty0 console=ttyS0", "", "console=tty0 console=ttyS0", "", "", ""},
		{"one of the base's values is enough", "console=tty0 console=ttyS0", "", "console=tty0", "", "", ""},
		{"the base's order does not satisfy", "console=tty0 console=ttyS0", "", "console=ttyS0 console=tty0", "", "console=tty0", "console=tty0"},
		{"back to the base's order", "console=tty0 console=ttyS0 console=tty0", "console=tty0", "console=tty0 console=ttyS0", "console=tty0", "", ""},
		{"value of the base overridden", "x=1", "", "x=2", "", "x=2", "x=2"},
		{"override changed", "x=1 x=2", "x=2", "x=3", "x=2", "x=3", "x=3"},
		{"override dropped for the base's own", "x=1 x=2", "x=2", "x=1", "x=2", "", ""},
		{"hugepages of the base adopted", "hugepagesz=1G hugepages=4", "", "hugepagesz=1G hugepages=4", "", "", ""},
		{
			"hugepages of the base in other pairs are no match",
			"hugepagesz=1G hugepages=2 hugepagesz=2M hugepages=4", "", "hugepagesz=1G hugepages=4",
			"", "hugepagesz=1G hugepages=4", "hugepagesz=1G hugepages=4",
		},
		{
			"our hugepages change behind the base's",
			"hugepagesz=2M hugepages=8 hugepagesz=1G hugepages=4", "hugepagesz=1G hugepages=4", "hugepagesz=1G hugepages=5",
			"hugepagesz=1G hugepages=4", "hugepagesz=1G hugepages=5", "hugepagesz=1G hugepages=5",
		},
		{
			"our hugepages go when the base's are wanted",
			"hugepagesz=2M hugepages=8 hugepagesz=1G hugepages=4", "hugepagesz=1G hugepages=4", "hugepagesz=2M hugepages=8",
			"hugepagesz=1G hugepages=4", "", "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			del, app, now := Own(Split(c.cmdline), Split(c.owned), Split(c.desired))
			same(t, "delete", del, Split(c.del))
			same(t, "append", app, Split(c.app))
			same(t, "owned afterwards", now, Split(c.now))
			checkOwn(t, Split(c.cmdline), Split(c.owned), Split(c.desired))
		})
	}
}

// checkOwn checks what Own promises.
func checkOwn(t *testing.T, cmdline, owned, desired []string) {
	t.Helper()
	del, app, now := Own(cmdline, owned, desired)
	after := Apply(cmdline, del, app)
	fail := func(why string) {
		t.Helper()
		t.Fatalf("line %q owned %q desired %q: -%q +%q =%q: %s", cmdline, owned, desired, del, app, now, why)
	}
	if missing := Missing(after, desired); len(missing) > 0 {
		fail("missing " + Join(missing))
	}
	count := func(args []string) map[string]int {
		n := map[string]int{}
		for _, arg := range args {
			n[arg]++
		}
		return n
	}
	was, is, wasOurs, isOurs, wanted := count(cmdline), count(after), count(owned), count(now), count(desired)
	for arg, n := range wasOurs {
		wasOurs[arg] = min(n, was[arg])
	}
	for arg, n := range was {
		if is[arg]-isOurs[arg] != n-wasOurs[arg] {
			fail("the base's " + arg + " did not stay as they were")
		}
	}
	for arg, n := range isOurs {
		if n > wanted[arg] {
			fail("owning " + arg + " without need")
		}
	}
	if del, app, again := Own(after, now, desired); len(del)+len(app) > 0 || !slices.Equal(again, now) {
		fail("not settled: then -" + Join(del) + " +" + Join(app) + " =" + Join(again))
	}
	if del, app, now := Own(after, now, nil); len(app)+len(now) > 0 || len(del) != len(after)-(len(cmdline)-sum(wasOurs)) {
		fail("letting go leaves something behind")
	}
}

func sum(n map[string]int) (all int) {
	for _, v := range n {
		all += v
	}
	return all
}

func TestOwnKeepsItsPromisesForEverySmallGroup(t *testing.T) {
	alphabet := []string{"k=1", "k=2"}
	sequences(alphabet, 4, func(line []string) {
		sequences(alphabet, 2, func(owned []string) {
			sequences(alphabet, 3, func(desired []string) {
				checkOwn(t, line, owned, desired)
			})
		})
	})
}

func TestMissing(t *testing.T) {
	for _, c := range []struct{ cmdline, want, missing string }{
		{"a b c", "", ""},
		{"a b c", "c a", ""},
		{"a b", "a d b e", "d e"},
		{"a=1", "a=1 a=1", "a=1"},
		{"a=1 a=3", "a=1 a=2 a=3", "a=2"},
		{"console=tty0 console=ttyS0", "console=ttyS0 console=tty0", "console=tty0"},
		{"hugepagesz=1G hugepages=2 hugepagesz=2M hugepages=4", "hugepagesz=1G hugepages=4", "hugepagesz=1G hugepages=4"},
		{"x hugepagesz=1G y hugepages=4", "hugepagesz=1G hugepages=4", ""},
	} {
		same(t, c.cmdline+" / "+c.want, Missing(Split(c.cmdline), Split(c.want)), Split(c.missing))
	}
}

func FuzzSplit(f *testing.F) {
	for _, s := range []string{"", "a=1 b", `a="b c" d`, `"a b`, "a\t\"\n\" b", "\xff \xa0x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := Split(line)
		if again := Split(Join(args)); !slices.Equal(again, args) {
			t.Fatalf("%q: split %q, joined and split again %q", line, args, again)
		}
		for i, arg := range args {
			if arg == "" || i < len(args)-1 && strings.Count(arg, `"`)%2 != 0 {
				t.Fatalf("%q: argument %d is %q", line, i, arg)
			}
		}
		strip := strings.NewReplacer(" ", "", "\t", "", "\n", "", "\v", "", "\f", "", "\r", "")
		if strip.Replace(Join(args)) != strip.Replace(line) {
			t.Fatalf("%q: split %q loses text", line, args)
		}
	})
}

func FuzzDiff(f *testing.F) {
	f.Add("a=1 b=2", "b=2 c=3", "ro a=1", "a=1")
	f.Add("hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=512", "hugepagesz=2M hugepages=512 hugepagesz=1G hugepages=4", "hugepages=1", "")
	f.Add("console=tty0 console=ttyS0 console=tty0", "console=tty0 console=tty0", "console=tty0 console=tty1", "console=tty1")
	f.Fuzz(func(t *testing.T, old, desired, cmdline, owned string) {
		if len(old)+len(desired)+len(cmdline)+len(owned) > 400 {
			return
		}
		checkDiff(t, Split(old), Split(desired))
		checkOwn(t, Split(cmdline), Split(owned), Split(desired))
	})
}
