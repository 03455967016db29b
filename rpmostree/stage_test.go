// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/ostree"
)

// kargs does what rpm-ostree does with a command line of ours: it deletes, of equal ones the first, then appends.
func kargs(t *testing.T, present []string, argv []string) []string {
	t.Helper()
	out := slices.Clone(present)
	for _, word := range argv[2 : len(argv)-1] {
		if a, is := strings.CutPrefix(word, "--delete="); is {
			key, value, _ := strings.Cut(a, "=")
			same := slices.DeleteFunc(slices.Clone(out), func(b string) bool {
				k, _, _ := strings.Cut(b, "=")
				return k != key
			})
			at := slices.Index(out, a)
			if at < 0 || value == "" && len(same) != 1 {
				t.Fatalf("%s of %q", word, out)
			}
			out = slices.Delete(out, at, at+1)
		}
	}
	for _, word := range argv {
		if a, is := strings.CutPrefix(word, "--append="); is {
			out = append(out, a)
		}
	}
	return out
}

func TestKernelArgumentsAreReachedExactlyInOneTransaction(t *testing.T) {
	for _, c := range []struct{ present, wanted, words string }{
		{"a b", "a b", ""},
		{"a b", "a b c", "--append=c"},
		{"a b c", "a c", "--delete=b"},
		{"a b c", "a b", "--delete=c"},
		{"a", "", "--delete=a"},
		{"", "a a=1", "--append=a --append=a=1"},
		// Order means something.
		{"console=tty0 console=ttyS0", "console=ttyS0 console=tty0", "--delete=console=tty0 --append=console=tty0"},
		{"x=1 b x=2", "x=2 b x=1", "--delete=x=1 --delete=b --append=b --append=x=1"},
		// So do duplicates, and of equal ones rpm-ostree deletes the first.
		{"x=1 b x=1", "x=1 b", "--delete=x=1 --delete=b --append=b"},
		{"x=1 b x=1", "b x=1", "--delete=x=1"},
		{"x=1", "x=1 x=1", "--append=x=1"},
		{`q="a b" c`, `c q="d e"`, `--delete=q="a b" --append=q="d e"`},
		// A key alone can be deleted only where it is there once.
		{"quiet quiet=1", "quiet", "--delete=quiet=1"},
		{"quiet b quiet", "quiet b quiet c", "--append=c"},
		{"quiet quiet", "quiet", "impossible"},
		{"quiet quiet=1", "quiet=1", "impossible"},
	} {
		present, wanted := ostree.SplitArguments(c.present), ostree.SplitArguments(c.wanted)
		argv, err := argumentsStep(present, wanted)
		if c.words == "impossible" {
			if err == nil || !strings.Contains(err.Error(), "quiet") {
				t.Errorf("%q to %q: %q, %v", c.present, c.wanted, argv, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q to %q: %v", c.present, c.wanted, err)
			continue
		}
		if c.words == "" {
			if argv != nil {
				t.Errorf("%q is there, and takes %q", c.present, argv)
			}
			continue
		}
		if got := kargs(t, present, argv); !slices.Equal(got, wanted) {
			t.Errorf("%q to %q came to %q", c.present, c.wanted, got)
		}
		if got := strings.Join(argv, " "); got != "rpm-ostree kargs "+c.words+" "+ostree.WithLock {
			t.Errorf("%q to %q: %s", c.present, c.wanted, got)
		}
	}
}

func TestDeploymentsHaveTheSameContentWhateverTheirCommitsAre(t *testing.T) {
	one := deployment{Checksum: "1", Base: "b", Packages: []string{"p", "q"}, Removed: []string{"r"}}
	image := deployment{Checksum: "1", Base: "b", Container: "i", Digest: "sha256:1"}
	for name, c := range map[string]struct {
		a, b deployment
		same bool
	}{
		"itself":                             {one, one, true},
		"composed anew":                      {one, deployment{Checksum: "2", Base: "b", Packages: []string{"q", "p"}, Removed: []string{"r"}}, true},
		"another package":                    {one, deployment{Checksum: "2", Base: "b", Packages: []string{"p"}, Removed: []string{"r"}}, false},
		"another removal":                    {one, deployment{Checksum: "2", Base: "b", Packages: []string{"p", "q"}}, false},
		"another base":                       {one, deployment{Checksum: "2", Base: "c", Packages: []string{"p", "q"}, Removed: []string{"r"}}, false},
		"other bases alone":                  {deployment{Checksum: "1"}, deployment{Checksum: "2"}, false},
		"a base and its layer":               {deployment{Checksum: "b"}, one, false},
		"the base, and requests that it has": {deployment{Checksum: "b"}, deployment{Checksum: "b", Packages: []string{"p"}}, false},
		"an administrator's own package": {one, deployment{Checksum: "2", Base: "b", Packages: []string{"p", "q"}, Removed: []string{"r"},
			localChanges: localChanges{LocalPackages: []string{"l"}}}, false},
		"an image imported anew": {image, deployment{Checksum: "2", Base: "c", Container: "i", Digest: "sha256:1"}, true},
		"another image":          {image, deployment{Checksum: "2", Base: "c", Container: "i", Digest: "sha256:2"}, false},
	} {
		if sameContent(c.a, c.b) != c.same || sameContent(c.b, c.a) != c.same {
			t.Errorf("%s: the same is %t", name, !c.same)
		}
	}
}

// An administrator's request for a package that the base has makes a deployment with the booted commit.
func TestRequestThatChangesNoCommitIsNotTakenForWhatRuns(t *testing.T) {
	one := strings.Repeat("1", 64)
	booted := deployment{OS: "os", Checksum: one, Booted: true}
	theirs := deployment{OS: "os", Checksum: one, Serial: 1, Staged: true, Packages: []string{"bash"}}
	for _, locked := range []bool{false, true} {
		s := hostStatus{Deployments: []deployment{theirs, booted}, listed: []ostree.Deployment{
			{ID: theirs.id(), OS: "os", Checksum: one, Staged: true, Locked: locked, KernelArguments: []string{"theirs"}},
			{ID: booted.id(), OS: "os", Checksum: one, Booted: true, KernelArguments: []string{"a"}},
		}}
		steps, d, err := remainingArguments(s, *s.of(one), []string{"a", "b"})
		want := [][]string{cleanupPending, {"rpm-ostree", "kargs", "--append=b", ostree.WithLock}}
		if err != nil || d.ID != booted.id() || !slices.EqualFunc(steps, want, slices.Equal[[]string]) {
			t.Errorf("locked %t: %q on %s, %v", locked, steps, d.ID, err)
		}
	}
}

func TestDefaultIsMadeByWhatRPMOSTreeChoosesByItself(t *testing.T) {
	const rollback, cleanup = "rpm-ostree rollback", "rpm-ostree cleanup -p"
	// The first that is not staged is the default, * runs, + is staged, and x/ is another OS.
	for _, c := range []struct{ all, id, words, refused string }{
		{all: "A*", id: "A"},
		{all: "A* B", id: "A"},
		{all: "+S A* B", id: "A"},
		{all: "A* B", id: "B", words: rollback},
		{all: "+S A* B", id: "B", words: rollback},
		{all: "B A*", id: "A", words: rollback}, // which has nothing after it, and so is chosen itself
		{all: "B A* O", id: "A", words: cleanup},
		{all: "B A* x/O", id: "A", words: rollback},
		{all: "B A* O", id: "O", words: rollback},
		{all: "B C A*", id: "C", refused: "rpm-ostree can only choose"},
		{all: "A* B C", id: "C", refused: "rpm-ostree can only choose"},
		{all: "+S A* B C", id: "C", refused: "rpm-ostree can only choose"},
		{all: "+S A*", id: "S", refused: "the deployment is staged"},
		{all: "A*", id: "B", refused: "no such deployment"},
		{all: "A B", id: "B", refused: "none of the deployments is the booted one"},
	} {
		var all []ostree.Deployment
		for word := range strings.FieldsSeq(c.all) {
			name, runs := strings.CutSuffix(word, "*")
			name, isStaged := strings.CutPrefix(name, "+")
			os, id, other := strings.Cut(name, "/")
			if !other {
				os, id = "", name
			}
			first := !slices.ContainsFunc(all, func(d ostree.Deployment) bool { return !d.Staged })
			all = append(all, ostree.Deployment{OS: os, ID: id, Booted: runs, Staged: isStaged, Default: first && !isStaged})
		}
		argv, err := defaultStep(all, c.id)
		if strings.Join(argv, " ") != c.words || (err != nil) != (c.refused != "") ||
			err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s of %s: %q, %v", c.id, c.all, argv, err)
		}
	}
}
