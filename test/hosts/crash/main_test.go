// SPDX-License-Identifier: Apache-2.0

// Package crash cuts updates short: at every point that the agent passes, at random moments, and at the plug of a whole
// host. What it asks afterwards is always the same: is the node wholly on one configuration, does the agent know which,
// and does the next update work?
//
// It ends with the lines of package tally for all of it. CRASH_SEED repeats the random moments of an earlier run.
package crash

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/tally"
)

// counted is what the last lines say.
var counted tally.Tally

// scratch has the agents and the trees. It is in memory where it can be: what a disk loses without a flush is for
// virtual machines to show, and a SIGKILL loses nothing that was written.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if scratch, err = os.MkdirTemp(memory(), "noderefit-crash-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(scratch)
		code := m.Run()
		err = cutPoints.missing(flag.Lookup("test.run").Value.String() == "" && !testing.Short())
		if err != nil {
			fmt.Fprintln(os.Stdout, err)
		}
		fmt.Fprintln(os.Stdout, &counted)
		if code == 0 && (err != nil || counted.Bad()) {
			return 1
		}
		return code
	}())
}

// memory returns a directory in memory that programs may run from, "" where there is none.
func memory() string {
	const dir = "/dev/shm"
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.TMPFS_MAGIC || st.Flags&unix.ST_NOEXEC != 0 ||
		st.Bavail*uint64(st.Bsize) < 1<<30 || unix.Access(dir, unix.W_OK) != nil {
		return ""
	}
	return dir
}

// builder builds the agent once, with build tags.
func builder(tags ...string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		dir := filepath.Join(scratch, "bin-"+strings.Join(tags, "-"))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
		return node.Build(context.Background(), dir, tags...)
	})
}

var (
	faulty = builder("faults")
	plain  = builder()
)

// binary returns the agent. The test cache keeps a result as long as nothing changes that a test has looked at, and
// does not see what the compiler reads; so the sources are looked at here.
func binary(t *testing.T, build func() (string, error)) string {
	t.Helper()
	lab.Sources(t)
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// result is what a command left behind.
type result struct {
	stdout, stderr string
	exit           int // -1 when a signal ended it
	killed         bool
}

func (r result) String() string {
	return fmt.Sprintf("exit %d: %s", r.exit, strings.TrimSpace(r.stderr))
}

// errorLine is what the command said on its error: line, "" where it has none.
func (r result) errorLine() string {
	for line := range strings.Lines(r.stderr) {
		if rest, ok := strings.CutPrefix(line, "error: "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// patience is how long one command may take; far longer than any does.
const patience = time.Minute

// run executes the agent on a tree. fault is a request in the words of the fault points ("apply kill 3"), "" for none.
func run(binary, root, fault string, args ...string) (result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append(args, "--root", root)...)
	cmd.Env = append(os.Environ(), "NODEREFIT_FAULT="+fault)
	return finish(ctx, cmd, func() {})
}

// finish starts a command, calls started, and waits for the end.
func finish(ctx context.Context, cmd *exec.Cmd, started func()) (result, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Start()
	if err == nil {
		started()
		err = cmd.Wait()
	}
	if ctx.Err() != nil {
		return result{}, fmt.Errorf("running %s: %w: %s", strings.Join(cmd.Args[1:], " "), ctx.Err(), stderr.String())
	}
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		return result{}, err
	}
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode(),
		status.Signal() == syscall.SIGKILL}, nil
}

// must runs a command that has to work.
func must(binary, root string, args ...string) (result, error) {
	r, err := run(binary, root, "", args...)
	if err == nil && (r.exit != 0 || r.errorLine() != "") {
		err = fmt.Errorf("%s: %s", args[0], r)
	}
	return r, err
}

// each calls do for 1 to n on all processors, and returns when all calls have.
func each(n int, do func(i int)) {
	var next atomic.Int64
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				do(i)
			}
		})
	}
	wait.Wait()
}

// copies number the trees.
var copies atomic.Int64

// copyTree returns a copy of a tree with everything that a tree can have; the caller removes it.
func copyTree(from string) (string, error) {
	to := filepath.Join(scratch, fmt.Sprintf("tree-%d", copies.Add(1)))
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		return "", fmt.Errorf("copying %s: %w: %s", from, err, out)
	}
	return to, nil
}
