// SPDX-License-Identifier: Apache-2.0

package reboots

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/systemd"
)

// asked is a systemd that runs nothing.
type asked struct{ argv []string }

func (a *asked) Run(_ context.Context, c systemd.Command) (systemd.Ended, error) {
	a.argv = c.Argv
	return systemd.Ended{}, errors.New("not run")
}

func TestWhichProgramIsAskedForRestarts(t *testing.T) {
	const program, dnf = "usr/bin/needs-restarting", "usr/bin/dnf"
	for _, c := range []struct {
		what  string
		files []string
		argv  []string
	}{
		{"Debian", nil, nil},
		{"dnf without the plugin", []string{dnf, "usr/lib/python3.9/site-packages/dnf-plugins/copr.py"}, nil},
		{"the plugin of Rocky", []string{dnf, "usr/lib/python3.9/site-packages/dnf-plugins/needs_restarting.py"},
			[]string{"/usr/bin/dnf", "needs-restarting", "-r"}},
		{"yum-utils", []string{program, dnf, "usr/lib/python3.9/site-packages/dnf-plugins/needs_restarting.py"},
			[]string{"/usr/bin/needs-restarting", "-r"}},
		{"the plugin without dnf", []string{"usr/lib/python3/dist-packages/dnf-plugins/needs_restarting.py"}, nil},
	} {
		dir := t.TempDir()
		for _, name := range c.files {
			name = filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, nil, 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		root, err := files.OpenWritable(dir)
		if err != nil {
			t.Fatal(err)
		}
		// The program is not run, and takes back nothing of what it had said. A host without it has no answer of it.
		a, said := &asked{}, Answers{NeedsReboot: true, Needs: []string{"glibc"}, Hook: "h"}
		err = said.AskNeeds(t.Context(), root, a)
		want := Answers{Hook: "h"}
		if c.argv != nil {
			want = Answers{NeedsReboot: true, Needs: []string{"glibc"}, Hook: "h"}
		}
		if (err != nil) != (c.argv != nil) || !slices.Equal(a.argv, c.argv) || !cmp.Equal(said, want) {
			t.Errorf("%s: %v, %+v, %v", c.what, a.argv, said, err)
		}
		_ = root.Close()
	}
}

// A hook's no is an answer. A hook that could not be run has given none, and the hooks after it are not asked either.
func TestAHookThatCouldNotBeRunHasNotSaidNo(t *testing.T) {
	all := []hooks.Hook{{Name: "10-one"}, {Name: "20-two"}}
	for _, c := range []struct {
		what string
		no   error
		hook string
		fail bool
	}{
		{"a no", &hooks.Error{Hook: "10-one", Why: "exit status 1"}, "20-two", false},
		{"not run", &hooks.Error{Hook: "10-one", NotRun: true}, "", true},
		{"the end of the question", errors.New("over"), "", true},
	} {
		hook, _, err := AskHooks(all, func(one hooks.Hook, _ func(string)) error {
			if one.Name == "10-one" {
				return c.no
			}
			return nil
		})
		if hook != c.hook || (err != nil) != c.fail {
			t.Errorf("%s: %q, %v", c.what, hook, err)
		}
	}
}
