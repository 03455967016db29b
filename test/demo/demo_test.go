// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// built is the directory with the demo and what it demonstrates, as make demo would find them.
var built string

func TestMain(m *testing.M) {
	code := func() int {
		dir, err := os.MkdirTemp("", "noderefit-built-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		built = dir
		_, err = programs.Build(context.Background(), dir, "test/demo")
		if err := errors.Join(err, os.Chmod(dir, 0o755), programs.All(context.Background(), dir)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}()
	os.Exit(code)
}

// start begins the demo as a user would from within the repository, with its temporary files below dir.
func start(ctx context.Context, t *testing.T, dir string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(built, "demo"), append([]string{"-bin", built}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

// runDemo runs the demo to its end and returns what it showed.
func runDemo(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	cmd, out := start(t.Context(), t, dir, args...)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	nothingLeft(t, dir)
	if bytes.Contains(out.Bytes(), []byte("\x1b")) {
		t.Error("the output has escape sequences although nobody looks at a terminal")
	}
	return out.String()
}

func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		t.Errorf("the demo left %s behind", e.Name())
	}
}

// inOrder checks that every pattern is found, each after the one before.
func inOrder(t *testing.T, out string, patterns ...string) {
	t.Helper()
	// Lines are broken to fit; what is looked for may lie across.
	text := regexp.MustCompile(`\s+`).ReplaceAllString(out, " ")
	for _, p := range patterns {
		at := regexp.MustCompile("(?U)" + p).FindStringIndex(text)
		if at == nil {
			t.Fatalf("nothing matches %q after what came before in\n%s", p, out)
		}
		text = text[at[1]:]
	}
}

func TestTreeIsShownWithWhatItLeavesOut(t *testing.T) {
	lab.Sources(t)
	inOrder(t, runDemo(t, "-tree"),
		`leaves out the reboot, kernel arguments`,
		`rendered-infra-[0-9a-f]{32}`,
		`plan --root`, `kernelArguments: .*selinux=0 default_hugepagesz=1G hugepagesz=1G hugepages=32`, `exit code 3`,
		`apply .*--skip-os`, `State: Done`, `Skipped: kargs`,
		`server foo\.example\.net`, `test`,
		`The host matches rendered-infra-`,
		`verify`, `/etc/chrony\.conf: contents is`, `exit code 4`,
		`warning: drift: file /etc/chrony\.conf`, `server my\.own\.example`,
		`50-debug\.conf`, `rollback`, `State: Done`,
		`Where to look next`,
	)
}

// whole is what the demo showed of all its parts, which is run once for the tests of the parts.
var whole string

func runWhole(t *testing.T) string {
	t.Helper()
	lab.Need(t)
	cluster.Need(t)
	if whole == "" {
		whole = runDemo(t)
	}
	return whole
}

func TestPartsComeInTheOrderOfWhatTheyNeed(t *testing.T) {
	out := runWhole(t)
	inOrder(t, out, `Part 1 of 3: a directory`, `verify --root`, `Part 2 of 3: one host`, `host# machine-config-daemon`,
		`Part 3 of 3: a pool`, `kubectl refit watch`, `Where to look next`)
	if n := strings.Count(out, "Where to look next"); n != 1 {
		t.Errorf("the end is told %d times", n)
	}
}

func TestAPartThatTheMachineCannotShowIsNamed(t *testing.T) {
	lab.Sources(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string][]string{
		"":      {`Part 1 of 3`, `State: Done`, `This machine cannot show more: .*needs root`, `Where to look next`},
		"-pool": {`error: .*needs root; go run \./test/demo -tree`},
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(built, "demo"), append([]string{"-bin", built},
			strings.Fields(args)...)...)
		cmd.Env = append(os.Environ(), "TMPDIR="+dir, "HOME="+dir)
		cmd.SysProcAttr = unprivileged()
		out, err := cmd.CombinedOutput()
		if failed := args != ""; (err != nil) != failed {
			t.Errorf("demo %s: %v", args, err)
		}
		inOrder(t, string(out), want...)
	}
	nothingLeft(t, dir)
}

// unprivileged has a command run as a user who is not root. The user may read all files, since the sources may lie
// anywhere.
func unprivileged() *syscall.SysProcAttr {
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: 65534, Gid: 65534},
		AmbientCaps: []uintptr{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH},
	}
}

func TestHostGoesForwardAndComesBack(t *testing.T) {
	out := runWhole(t)
	// The way back is seen before the reboot that it needs, or after it: the demo looks now and then.
	inOrder(t, out, `boot 3`, `going back: .*crio\.service`, `RolledBack`)
	inOrder(t, out,
		`Committed: none`,
		`plan --desired`, `append selinux=0 default_hugepagesz=1G hugepagesz=1G hugepages=32`, `Reboot, because of`,
		`host# machine-config-daemon apply`, `The host is rebooting`, `boot 2`, `proving`, `Done`,
		`Committed: rendered-infra-`,
		`server foo\.example\.net`, `kubeinit_kubevirt_extra_config_script`,
		`selinux=0 default_hugepagesz=1G hugepagesz=1G hugepages=32 ostree=`,
		`The host matches rendered-infra-`,
		`A bad configuration`, `dropin crio\.service/50-debug\.conf`, `boot 3`,
		`boot 4`, `RolledBack`,
		`State: RolledBack`, `Reason: .*crio\.service`, `Quarantined: rendered-infra-`,
		`\bactive\b`, `The host matches rendered-infra-`,
		`error: try-once-more is quarantined`, `exit code 3`,
		`Where to look next`,
	)
}

func TestPoolGoesForwardAndStopsAtAMistake(t *testing.T) {
	inOrder(t, runWhole(t),
		`worker-0 +Ready`,
		`kubectl apply -f .*10-pool`, `worker +rendered-worker-[0-9a-f]{8}… +True +False +False +3 +3 +3 +0`,
		`kubectl refit plan worker`, `kernel arguments: append selinux=0`, `Reboot, because of`, `Order, at most 1 at a time`,
		`kubectl refit watch worker`, `worker 1/3`, `worker 2/3`, `worker 3/3`,
		`never fewer than [23] of its 3 pods ready`,
		`A bad configuration`, `failSwapOn`, `RolledBack`, `Quarantined`, `exit code 1`,
		`kubectl refit explain worker`, `kubelet`, `do: `,
		`kubectl delete machineconfig 70-worker-kubelet`, `True +False +False +3 +3 +3 +0`,
		`Where to look next`,
	)
}

func TestInterruptedDemoCleansUp(t *testing.T) {
	for name, args := range map[string][]string{"tree": {"-tree"}, "host": {"-host"}, "cluster": nil} {
		t.Run(name, func(t *testing.T) {
			if name != "tree" {
				lab.Need(t)
			}
			if name == "cluster" {
				cluster.Need(t)
			}
			dir := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd, out := start(ctx, t, dir, args...)
			// The directory is there from the first moment, and a signal is as good then as later.
			for {
				if left, err := os.ReadDir(dir); err != nil || ctx.Err() != nil {
					t.Fatal(err, ctx.Err())
				} else if len(left) > 0 {
					break
				}
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
				t.Errorf("%v\n%s", err, out)
			}
			nothingLeft(t, dir)
		})
	}
}

func TestBaseIsRealisticAndAlwaysTheSame(t *testing.T) {
	files, units := nodeFiles(), nodeUnits()
	if len(files) != baseFiles || len(units) != baseUnits {
		t.Errorf("%d files and %d units, not %d and %d", len(files), len(units), baseFiles, baseUnits)
	}
	seen := map[string]bool{}
	for _, f := range files {
		if seen[f.path] {
			t.Errorf("%s is there twice", f.path)
		}
		seen[f.path] = true
	}
	var texts []string
	for range 2 {
		dir := t.TempDir()
		if err := writeBase(dir); err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			data, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal(data, &object{}); err != nil {
				t.Errorf("%s: %v", e.Name(), err)
			}
			all.Write(data)
		}
		texts = append(texts, all.String())
	}
	if texts[0] != texts[1] {
		t.Error("two calls wrote different documents")
	}
}

func TestManyChangesOfOneSortAreCounted(t *testing.T) {
	got := collapse([]string{"Changes:", "  + file /a", "  + file /b", "  + file /c", "  + file /d", "  + file /e",
		"  ~ file /f", "  + unit u"})
	want := "Changes:|  + file /a|  + file /b|  + file /c|  … and 2 more \"+ file\"|  ~ file /f|  + unit u"
	if strings.Join(got, "|") != want {
		t.Errorf("got %q", got)
	}
}

func TestLinesAreBrokenAtSpaces(t *testing.T) {
	long := strings.Repeat("word ", 40)
	for _, l := range wrap(long, "  ", "    ") {
		if len(l) > width {
			t.Errorf("%d columns: %q", len(l), l)
		}
	}
	if got := wrap("  keeps its place", "", ""); len(got) != 1 || got[0] != "  keeps its place" {
		t.Errorf("got %q", got)
	}
}
