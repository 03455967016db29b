// SPDX-License-Identifier: Apache-2.0

// Package conformance drives the built binaries as users and scripts do: command lines in, exit codes, output and the
// error line out. It knows nothing of the code behind them.
package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// binaries is the directory that every command under cmd/ was built into.
var binaries string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	binaries = dir
	if err := programs.All(context.Background(), dir); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// result is what a command left behind.
type result struct {
	code           int
	stdout, stderr string
}

// run executes one of the binaries, with the test's directory as its working directory.
func run(t *testing.T, dir, binary string, args ...string) result {
	t.Helper()
	lab.Sources(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(binaries, binary), args...)
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// lines are those of standard error that begin with a word such as "error:", without it.
func (r result) lines(prefix string) (out []string) {
	for line := range strings.Lines(r.stderr) {
		if rest, ok := strings.CutPrefix(line, prefix+" "); ok {
			out = append(out, strings.TrimSpace(rest))
		}
	}
	return out
}

// ok fails the test unless the command succeeded without an error line.
func (r result) ok(t *testing.T) result {
	t.Helper()
	if r.code != 0 || len(r.lines("error:")) > 0 {
		t.Fatalf("exit code %d: %s", r.code, r.stderr)
	}
	return r
}

// fails checks the exit code, that there is one error line and nothing on standard output, and what the line names.
func (r result) fails(t *testing.T, code int, names ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, should be %d: %s", r.code, code, r.stderr)
	}
	if r.stdout != "" {
		t.Errorf("standard output: %.200s", r.stdout)
	}
	errs := r.lines("error:")
	if len(errs) != 1 {
		t.Fatalf("%d error lines: %s", len(errs), r.stderr)
	}
	for line := range strings.Lines(r.stderr) {
		if !strings.HasPrefix(line, "error: ") && !strings.HasPrefix(line, "warning: ") {
			t.Errorf("a line that is neither error nor warning: %q", line)
		}
	}
	for _, name := range names {
		if !strings.Contains(errs[0], name) {
			t.Errorf("%q is not in the error: %s", name, errs[0])
		}
	}
}

// write makes files by path below a new directory and returns it.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// fromYAML reads a document into plain maps and lists.
func fromYAML(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("not YAML: %v: %.200s", err, text)
	}
	return v
}

// at walks into maps by key and lists by number; nil where there is nothing.
func at(v any, path ...any) any {
	for _, step := range path {
		switch s := step.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[s]
		case int:
			l, _ := v.([]any)
			if s >= len(l) {
				return nil
			}
			v = l[s]
		}
	}
	return v
}
