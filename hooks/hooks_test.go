// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/files"
)

func TestWhichFilesAreHooks(t *testing.T) {
	const program = "#!/bin/sh\n"
	type tree map[string]string // path: contents; "x " before it for an executable, "-> " for a link
	for _, test := range []struct {
		name     string
		tree     tree
		want     []string // path and limit
		warnings []string
	}{
		{"none where there are no directories", tree{}, nil, nil},
		{"by name, whatever directory they are in", tree{
			"/usr/lib/noderefit/hooks/before-drain.d/20-b": "x " + program,
			"/etc/noderefit/hooks/before-drain.d/30-c":     "x " + program,
			"/run/noderefit/hooks/before-drain.d/10-a":     "x " + program,
			"/etc/noderefit/hooks/after-boot.d/00-other":   "x " + program,
		}, []string{
			"/run/noderefit/hooks/before-drain.d/10-a 2m0s", "/usr/lib/noderefit/hooks/before-drain.d/20-b 2m0s",
			"/etc/noderefit/hooks/before-drain.d/30-c 2m0s",
		}, nil},
		{"the admin's goes before what is there until the boot, and that before the image's", tree{
			"/usr/lib/noderefit/hooks/before-drain.d/10-a": "x " + program,
			"/run/noderefit/hooks/before-drain.d/10-a":     "x " + program,
			"/etc/noderefit/hooks/before-drain.d/10-a":     "x " + program,
			"/usr/lib/noderefit/hooks/before-drain.d/20-b": "x " + program,
			"/run/noderefit/hooks/before-drain.d/20-b":     "x " + program,
		}, []string{
			"/etc/noderefit/hooks/before-drain.d/10-a 2m0s", "/run/noderefit/hooks/before-drain.d/20-b 2m0s",
		}, nil},
		{"an empty file and a link to /dev/null mask", tree{
			"/usr/lib/noderefit/hooks/before-drain.d/10-a": "x " + program,
			"/etc/noderefit/hooks/before-drain.d/10-a":     "",
			"/usr/lib/noderefit/hooks/before-drain.d/20-b": "x " + program,
			"/run/noderefit/hooks/before-drain.d/20-b":     "-> /dev/null",
			"/usr/lib/noderefit/hooks/before-drain.d/30-c": "-> /dev/null",
			"/etc/noderefit/hooks/before-drain.d/30-c":     "x " + program,
		}, []string{"/etc/noderefit/hooks/before-drain.d/30-c 2m0s"}, nil},
		{"what can't be run is none, and is said", tree{
			"/etc/noderefit/hooks/before-drain.d/10-a":      program,
			"/etc/noderefit/hooks/before-drain.d/dir/below": "x " + program,
		}, nil, []string{
			"/etc/noderefit/hooks/before-drain.d/10-a is not an executable file, so it is not run as a hook",
			"/etc/noderefit/hooks/before-drain.d/dir is not an executable file, so it is not run as a hook",
		}},
		{"what editors and packages leave is none", tree{
			"/etc/noderefit/hooks/before-drain.d/10-a~":         "x " + program,
			"/etc/noderefit/hooks/before-drain.d/.10-a.swp":     "x " + program,
			"/etc/noderefit/hooks/before-drain.d/10-a.rpmsave":  "x " + program,
			"/etc/noderefit/hooks/before-drain.d/10-a.dpkg-old": "x " + program,
		}, nil, nil},
		{"a link leads to a program", tree{
			"/usr/libexec/program":                     "x " + program,
			"/etc/noderefit/hooks/before-drain.d/10-a": "-> ../../../../usr/libexec/program",
			"/etc/noderefit/hooks/before-drain.d/20-b": "-> /usr/libexec/program",
		}, []string{
			"/etc/noderefit/hooks/before-drain.d/10-a 2m0s", "/etc/noderefit/hooks/before-drain.d/20-b 2m0s",
		}, nil},
		{"a file beside it says how long it may run", tree{
			"/usr/lib/noderefit/hooks/before-drain.d/10-a":         "x " + program,
			"/usr/lib/noderefit/hooks/before-drain.d/10-a.timeout": "5m\n",
			"/usr/lib/noderefit/hooks/before-drain.d/20-b":         "x " + program,
			"/usr/lib/noderefit/hooks/before-drain.d/20-b.timeout": "5m\n",
			"/etc/noderefit/hooks/before-drain.d/20-b.timeout":     "90",
			"/usr/lib/noderefit/hooks/before-drain.d/30-c":         "x " + program,
			"/usr/lib/noderefit/hooks/before-drain.d/30-c.timeout": "5m\n",
			"/etc/noderefit/hooks/before-drain.d/30-c.timeout":     "",
		}, []string{
			"/usr/lib/noderefit/hooks/before-drain.d/10-a 5m0s", "/usr/lib/noderefit/hooks/before-drain.d/20-b 1m30s",
			"/usr/lib/noderefit/hooks/before-drain.d/30-c 2m0s",
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := open(t, test.tree)
			found, warnings, err := Find(root, BeforeDrain)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, h := range found {
				got = append(got, fmt.Sprintf("%s %s", h.Path, h.Limit))
			}
			if diff := cmp.Diff(test.want, got) + cmp.Diff(test.warnings, warnings); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func open(t *testing.T, tree map[string]string) *files.Root {
	t.Helper()
	dir := t.TempDir()
	for name, text := range tree {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if rest, is := strings.CutPrefix(text, "x "); is {
			text, mode = rest, 0o755
		}
		target, link := strings.CutPrefix(text, "-> ")
		var err error
		if link {
			err = os.Symlink(target, at)
		} else {
			err = os.WriteFile(at, []byte(text), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := files.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func TestALimitThatMakesNoSenseNamesItsFile(t *testing.T) {
	root := open(t, map[string]string{
		"/etc/noderefit/hooks/after-boot.d/10-a":         "x #!/bin/sh\n",
		"/etc/noderefit/hooks/after-boot.d/10-a.timeout": "soon",
	})
	_, _, err := Find(root, AfterBoot)
	if err == nil || !strings.Contains(err.Error(), "/etc/noderefit/hooks/after-boot.d/10-a.timeout: \"soon\"") {
		t.Error(err)
	}
}

func TestTimeLimits(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90": 90 * time.Second, "5m\n": 5 * time.Minute, "1h": time.Hour, "1s": time.Second,
		"": 0, "0": 0, "-1": 0, "61m": 0, "soon": 0, "500ms": 0,
	} {
		if got, err := ParseLimit(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}

func TestTheLastWordsAreKept(t *testing.T) {
	many := strings.Repeat("a line\n", 50) + "the last"
	for _, test := range []struct {
		name, output string
		want         []string
	}{
		{"nothing", "", nil},
		{"a line without an end", "no quota", []string{"no quota"}},
		{"blank lines are left out", "one\n\n  \r\ntwo\n", []string{"one", "two"}},
		{"the last ten", many, append(slicesRepeat("a line", 9), "the last")},
		{"nothing that a terminal acts on", "\x1b[31mred\x1b[0m\tand\x07\n\xff\n", []string{"[31mred[0m and", "?"}},
		{"a long line is cut", strings.Repeat("x", 10000), []string{strings.Repeat("x", tailBytes)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tail := &tail{}
			out, in, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				_, _ = in.WriteString(test.output)
				_ = in.Close()
			}()
			tail.readFrom(out)
			if diff := cmp.Diff(test.want, tail.last()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func slicesRepeat(text string, n int) (out []string) {
	for range n {
		out = append(out, text)
	}
	return out
}

func TestANoIsOneSentence(t *testing.T) {
	e := &Error{When: BeforeDrain, Hook: "/etc/x", Why: "exit status 3", Output: []string{"first", "second"}}
	if got := e.Error(); got != "before-drain hook /etc/x: exit status 3: first | second" {
		t.Error(got)
	}
	e.Output = []string{strings.Repeat("x", 1000), "the reason"}
	if got := e.Error(); len(got) > 400 || !strings.HasSuffix(got, "xx | the reason") {
		t.Error(got)
	}
}
