// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
)

// counts are the system calls that one run of a program and its children made, failed ones left out, and how often
// systemd read its units again meanwhile.
type counts struct {
	Fsyncs  int // fsync and fdatasync
	SyncFS  int // syncfs and sync
	Renames int
	Opens   int // for writing, outside of /dev, /proc, /run and /sys
	// Writes are all calls that change something outside of these: bytes, names, modes, owners, times.
	Writes  int
	Forks   int // processes, not threads
	Reloads int

	Programs map[string]int // what was executed, by its base name; the traced program itself is left out
	Own      int            // of Fsyncs and SyncFS, those of the traced program itself
	Changed  []string       // the first few of Writes, as strace shows them
}

// durable is everything that waits for the disk.
func (c *counts) durable() int { return c.Fsyncs + c.SyncFS }

func (c *counts) programs() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c.Programs)) {
		all = append(all, fmt.Sprintf("%s %d", name, c.Programs[name]))
	}
	return strings.Join(all, ", ")
}

// traced are the calls that are counted. A question mark passes over what an architecture has not.
var traced = []string{
	"fsync", "fdatasync", "syncfs", "sync", "sync_file_range", "msync",
	"?open", "openat", "openat2", "?creat", "write", "pwrite64", "writev", "pwritev", "pwritev2", "truncate",
	"ftruncate", "fallocate", "copy_file_range", "sendfile", "splice",
	"?rename", "?renameat", "renameat2", "?mkdir", "mkdirat", "?mknod", "mknodat", "?unlink", "unlinkat", "?rmdir",
	"?link", "linkat", "?symlink", "symlinkat", "?chmod", "fchmod", "fchmodat", "?fchmodat2", "?chown", "?lchown",
	"fchown", "fchownat", "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr", "utimensat",
	"?utimes", "?utime", "?futimesat", "?fork", "?vfork", "clone", "clone3", "execve", "execveat",
}

// trace runs argv on the host under strace and counts. An exit status other than 0 is an error.
func trace(ctx context.Context, n *node.Node, argv ...string) (counts, error) {
	const dir = "/var/tmp/trace"
	at := n.HostPath(dir)
	if err := lab.RemoveTree(at); err != nil {
		return counts{}, err
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return counts{}, err
	}
	before, err := countReloads(ctx, n)
	if err != nil {
		return counts{}, err
	}
	// A file a thread: what two threads do at once is not mixed up.
	strace := []string{"strace", "-ff", "-qq", "-y", "-s", "8", "-e", "trace=" + strings.Join(traced, ","),
		"-e", "signal=none", "-o", dir + "/t", "--"}
	if _, err := n.Output(ctx, append(strace, argv...)...); err != nil {
		return counts{}, err
	}
	after, err := countReloads(ctx, n)
	if err != nil {
		return counts{}, err
	}
	names, err := filepath.Glob(filepath.Join(at, "t.*"))
	if err != nil {
		return counts{}, err
	}
	c := counts{Reloads: after - before, Programs: map[string]int{}}
	threads := map[string]*thread{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return c, err
		}
		th := &thread{}
		threads[strings.TrimPrefix(filepath.Ext(name), ".")] = th
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSuffix(line, "\n")
			waited := c.durable()
			c.count(line)
			th.durable += c.durable() - waited
			th.follow(line)
		}
	}
	program := path.Base(argv[0])
	if c.Programs[program]--; c.Programs[program] < 0 {
		return c, fmt.Errorf("tracing %s: strace did not see it run", argv[0])
	}
	c.Own = own(threads, program)
	maps.DeleteFunc(c.Programs, func(_ string, n int) bool { return n == 0 })
	return c, nil
}

// thread is one file of strace: what it executed, if anything, which threads and processes it started, and how often it
// waited for the disk.
type thread struct {
	program  string
	children []string
	durable  int
}

func (th *thread) follow(line string) {
	m := callPattern.FindStringSubmatch(line)
	if m == nil || strings.HasPrefix(m[3], "-") {
		return
	}
	switch m[1] {
	case "execve", "execveat":
		if q := quoted.FindStringSubmatch(m[2]); q != nil {
			th.program = path.Base(q[1])
		}
	case "fork", "vfork", "clone", "clone3":
		th.children = append(th.children, m[3])
	}
}

// own adds up what the program's threads waited for, and not the programs that it started.
func own(threads map[string]*thread, program string) int {
	var sum func(th *thread) int
	sum = func(th *thread) int {
		total := th.durable
		for _, id := range th.children {
			if child := threads[id]; child != nil && child.program == "" {
				total += sum(child)
			}
		}
		return total
	}
	total := 0
	for _, th := range threads {
		if th.program == program {
			total += sum(th)
		}
	}
	return total
}

// countReloads is how often PID 1 of the host has read its units again since it booted.
func countReloads(ctx context.Context, n *node.Node) (int, error) {
	if _, err := n.Output(ctx, "journalctl", "--sync"); err != nil {
		return 0, err
	}
	text, err := n.Output(ctx, "journalctl", "--boot", "--no-pager", "--output=cat", "_PID=1")
	if err != nil {
		return 0, err
	}
	count := 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "Reloading finished in ") {
			count++
		}
	}
	return count, nil
}

var (
	callPattern = regexp.MustCompile(`^([a-z0-9_]+)\((.*)\) += (-?\d+|0x[0-9a-f]+)(?:<(.*?)>)?(?: .*)?$`)
	handle      = regexp.MustCompile(`^(?:AT_FDCWD|\d+)<([^>]*)>(?:\(deleted\))?`)
	quoted      = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
)

// count takes one line of strace and says whether it was a call that succeeded.
func (c *counts) count(line string) bool {
	m := callPattern.FindStringSubmatch(line)
	if m == nil || strings.HasPrefix(m[3], "-") {
		return false
	}
	name, args, opened := m[1], m[2], m[4]
	switch name {
	case "fsync", "fdatasync":
		c.Fsyncs++
	case "syncfs", "sync":
		c.SyncFS++
	case "sync_file_range", "msync": // of no use for durability; nobody should lean on it
		c.Fsyncs++
	case "fork", "vfork", "clone", "clone3":
		if !strings.Contains(args, "CLONE_THREAD") {
			c.Forks++
		}
	case "execve", "execveat":
		if q := quoted.FindStringSubmatch(args); q != nil {
			c.Programs[path.Base(q[1])]++
		}
	case "open", "openat", "openat2", "creat":
		if name != "creat" && !strings.Contains(args, "O_WRONLY") && !strings.Contains(args, "O_RDWR") &&
			!strings.Contains(args, "O_CREAT") && !strings.Contains(args, "O_TRUNC") {
			return true
		}
		if outside(opened) {
			c.Opens++
			c.wrote(line)
		}
	default:
		target := targetOf(name, args)
		if strings.HasPrefix(name, "rename") && outside(target) {
			c.Renames++
		}
		if outside(target) {
			c.wrote(line)
		}
	}
	return true
}

const keepChanged = 20

func (c *counts) wrote(line string) {
	c.Writes++
	if len(c.Changed) < keepChanged {
		c.Changed = append(c.Changed, line)
	}
}

// targetOf is the path that a changing call is about, "" where it is no file. What is named through /proc/self/fd could
// be anything, and counts as a path.
func targetOf(name, args string) string {
	dir := ""
	if h := handle.FindStringSubmatch(args); h != nil {
		dir = h[1]
	}
	switch name {
	case "write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate", "fallocate", "fchmod", "fchown",
		"fsetxattr", "fremovexattr":
		return dir
	case "copy_file_range", "sendfile", "splice":
		if h := handle.FindAllStringSubmatch(strings.ReplaceAll(args, ", ", "\n"), -1); len(h) > 0 {
			return "/" // where it goes differs by call: to be safe, to a file
		}
	case "symlink", "symlinkat":
		// The first argument is the target, which is not touched.
		_, args, _ = strings.Cut(args, `", `)
		dir = ""
		if h := handle.FindStringSubmatch(args); h != nil {
			dir = h[1]
		}
	}
	if q := quoted.FindStringSubmatch(args); q != nil {
		if strings.HasPrefix(q[1], "/proc/self/fd/") {
			return "/"
		}
		if path.IsAbs(q[1]) {
			return path.Clean(q[1])
		}
		return path.Join(dir, q[1])
	}
	return dir
}

// outside says whether a path is on a disk rather than in a file system that is gone after the boot.
func outside(name string) bool {
	if !path.IsAbs(name) {
		return false
	}
	for _, dir := range []string{"/dev", "/proc", "/run", "/sys"} {
		if name == dir || strings.HasPrefix(name, dir+"/") {
			return false
		}
	}
	return true
}
