// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/lab"
)

// ran is what a command of the agent's left behind.
type ran struct {
	exit int
	said string
}

// run runs the agent, by other programs where there are any.
func run(t *testing.T, by []string, args ...string) ran {
	t.Helper()
	program, err := agent()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	argv := append(append(slices.Clip(by), program), args...)
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		t.Fatal(err)
	}
	r := ran{said: strings.TrimSpace(string(out))}
	if status != nil {
		r.exit = status.ExitCode()
	}
	return r
}

// treeOnA is a directory that has settled on a, with a user of the configuration; the documents lie beside it.
func treeOnA(t *testing.T) (root string, document func(string) string) {
	t.Helper()
	dir := t.TempDir()
	root = filepath.Join(dir, "root")
	document = func(name string) string { return filepath.Join(dir, name+".json") }
	if err := errors.Join(
		os.MkdirAll(filepath.Join(root, "etc"), 0o755),
		os.MkdirAll(filepath.Join(root, "usr/lib"), 0o755),
		os.MkdirAll(filepath.Join(root, "var/lib"), 0o755),
		os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0:root:/root:/bin/sh\n"), 0o644),
		os.WriteFile(filepath.Join(root, "etc/group"), []byte("root:x:0:\n"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		d := base(name)
		d.kargs = nil // a tree has no kernel
		d.file("/etc/lab.d/same", "in both\n")
		if err := os.WriteFile(document(name), d.render(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if r := run(t, nil, "apply", "--config", document("a"), "--root", root); r.exit != 0 {
		t.Fatalf("going to a: exit %d: %s", r.exit, r.said)
	}
	return root, document
}

// Of a disk that can't read one file any more the agent says which, the host is on a or b afterwards, and both can be
// reached once the disk is well.
func TestFileThatCannotBeReadIsNamedAndNoObstacleLater(t *testing.T) {
	lab.Sources(t)
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip(err)
	}
	start, document := treeOnA(t)
	var paths []string
	if err := filepath.WalkDir(start, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			paths = append(paths, strings.TrimPrefix(path, start+"/"))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "root")
			if out, err := exec.CommandContext(t.Context(), "cp", "-a", start, root).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			bad := []string{"strace", "--follow-forks", "--quiet=all", "--output=/dev/null", "--trace-path=" + filepath.Join(root, path),
				"--trace=read,pread64", "--inject=read,pread64:error=EIO"}
			for _, args := range [][]string{{"status"}, {"verify"}, {"plan", "--desired", document("b")},
				{"apply", "--config", document("b")}} {
				r := run(t, bad, append(args, "--root", root)...)
				if r.exit != 0 {
					failed++
				}
				if r.exit != 0 && !strings.Contains(r.said, filepath.Base(path)) {
					t.Errorf("%s: exit %d, without the file's name: %s", args[0], r.exit, r.said)
				}
			}
			if r := run(t, nil, "recover", "--root", root); r.exit != 0 {
				t.Errorf("recover: exit %d: %s", r.exit, r.said)
			}
			if r := run(t, nil, "verify", "--root", root); r.exit != 0 {
				t.Errorf("between the two: verify: exit %d: %s", r.exit, r.said)
			}
			for _, to := range []string{"b", "a"} {
				if r := run(t, nil, "apply", "--config", document(to), "--root", root); r.exit != 0 {
					t.Errorf("going to %s: exit %d: %s", to, r.exit, r.said)
				}
				if r := run(t, nil, "verify", "--root", root); r.exit != 0 {
					t.Errorf("on %s: verify: exit %d: %s", to, r.exit, r.said)
				}
			}
		})
	}
	t.Logf("%d files, %d commands failed", len(paths), failed)
	if failed < 4 {
		t.Error("hardly a command failed: that tests nothing")
	}
}
