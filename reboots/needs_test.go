// SPDX-License-Identifier: Apache-2.0

package reboots

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/noderefit/noderefit/files"
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
		a := &asked{}
		_, wants, err := AskNeeds(t.Context(), root, a)
		if wants || (err != nil) != (c.argv != nil) || !slices.Equal(a.argv, c.argv) {
			t.Errorf("%s: %v, %t, %v", c.what, a.argv, wants, err)
		}
		_ = root.Close()
	}
}
