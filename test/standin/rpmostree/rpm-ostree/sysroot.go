// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Where things are on the host.
const (
	bootedFile  = "/run/ostree-booted"
	stagedFile  = "/run/ostree/staged-deployment"
	lockedFile  = "/run/ostree/staged-deployment-locked" // what ostree had before it wrote the lock into stagedFile
	sysrootLock = "/sysroot/ostree/lock"
	repository  = "/ostree/repo"
)

// deployment is one of the sysroot's.
type deployment struct {
	index    int
	os       string
	checksum string
	serial   int
	booted   bool
	staged   bool
	locked   bool
	pinned   bool
	unlocked string
	options  string // of the boot entry; of a staged one what it will have but for ostree=
	origin   *origin
}

func (d *deployment) id() string { return fmt.Sprintf("%s-%s.%d", d.os, d.checksum, d.serial) }
func (d *deployment) dir() string {
	return fmt.Sprintf("/ostree/deploy/%s/deploy/%s.%d", d.os, d.checksum, d.serial)
}

// library is the tool on hosts on which the one that others find has not all of its commands: rpm-ostree has the
// library, and needs none of them.
const library = "/usr/lib/ostree-of-old/ostree"

// ofOld says whether the host is one of before the lock was a part of the staged state.
func ofOld() bool { return exists(library) }

// tool runs ostree; the error is what it said.
func tool(ctx context.Context, argv ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	program := "ostree"
	if ofOld() {
		program = library
	}
	cmd := exec.CommandContext(ctx, program, argv...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		text := strings.TrimPrefix(strings.TrimSpace(stderr.String()), "error: ")
		if text == "" {
			text = err.Error()
		}
		return "", errors.New(text)
	}
	return strings.TrimSpace(stdout.String()), nil
}

var statusLine = regexp.MustCompile(`^([* ]) (\S+) ([0-9a-f]{64})\.([0-9]+)((?: \([^()]*\))*)$`)

// readDeployments reads what ostree has, in the order in which it boots; a staged one is the first.
func readDeployments(ctx context.Context) ([]*deployment, error) {
	text, err := tool(ctx, "admin", "status")
	if err != nil {
		return nil, err
	}
	options, err := bootOptions()
	if err != nil {
		return nil, err
	}
	var all []*deployment
	for line := range strings.Lines(text + "\n") {
		line = strings.TrimRight(line, "\n")
		if !strings.HasPrefix(line, "*") && !strings.HasPrefix(line, " ") {
			line = "  " + line // the first line was trimmed
		}
		if m := statusLine.FindStringSubmatch(line); m != nil {
			d := &deployment{index: len(all), booted: m[1] == "*", os: m[2], checksum: m[3], unlocked: "none"}
			d.serial, _ = strconv.Atoi(m[4]) // digits, by the pattern
			d.staged = strings.Contains(m[5], "(staged)") || strings.Contains(m[5], lockedMark)
			all = append(all, d)
		} else if len(all) > 0 {
			d := all[len(all)-1]
			switch key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key {
			case "Pinned":
				d.pinned = value == "yes"
			case "Unlocked":
				d.unlocked = value
			}
		}
	}
	for _, d := range all {
		text, err := os.ReadFile(d.dir() + ".origin")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		d.origin = parseOrigin(string(text))
		d.options = options[d.dir()]
		if d.staged {
			if err := d.readStaged(); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// readStaged reads what only the state of a staged deployment has.
func (d *deployment) readStaged() error {
	data, err := os.ReadFile(stagedFile)
	if err != nil {
		return err
	}
	value, err := variant("a{sv}", data)
	if err != nil {
		return fmt.Errorf("reading %s: %w", stagedFile, err)
	}
	state := value.(map[string]any)
	arguments, _ := state["kargs"].([]string)
	d.options = strings.Join(arguments, " ")
	d.locked, _ = state["locked"].(bool)
	d.locked = d.locked || exists(lockedFile)
	return nil
}

// bootOptions are the command lines of the boot loader's entries, by deployment directory.
func bootOptions() (map[string]string, error) {
	paths, err := filepath.Glob("/boot/loader/entries/*.conf")
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			options, ok := strings.CutPrefix(strings.TrimSpace(line), "options ")
			if !ok {
				continue
			}
			for _, argument := range splitArguments(options) {
				if link, ok := strings.CutPrefix(argument, "ostree="); ok {
					dir, err := filepath.EvalSymlinks(filepath.Join("/sysroot", link))
					if err != nil {
						return nil, err
					}
					all[strings.TrimPrefix(dir, "/sysroot")] = strings.TrimSpace(options)
				}
			}
		}
	}
	return all, nil
}

// bootedDeployment is the one that runs.
func bootedDeployment(all []*deployment) *deployment {
	if at := slices.IndexFunc(all, func(d *deployment) bool { return d.booted }); at >= 0 {
		return all[at]
	}
	return nil
}

// sysrootLocked says whether another program, such as ostree itself, holds the sysroot's lock. rpm-ostree takes it for
// the length of a transaction; here the ostree that the transaction runs does so, and would wait.
func sysrootLocked() (bool, error) {
	file, err := os.OpenFile(sysrootLock, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, err
	}
	return lock.Type != unix.F_UNLCK, nil
}

// commit is what of a commit matters here.
type commit struct {
	checksum  string
	metadata  map[string]any
	parent    string
	timestamp uint64
}

// readCommit reads a commit of the repository.
func readCommit(checksum string) (*commit, error) {
	if len(checksum) != 64 {
		return nil, original("Invalid checksum %s", checksum)
	}
	data, err := os.ReadFile(filepath.Join(repository, "objects", checksum[:2], checksum[2:]+".commit"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, original("No such metadata object %s.commit", checksum)
	}
	if err != nil {
		return nil, err
	}
	value, err := variant("(a{sv}aya(say)sstayay)", data)
	if err != nil {
		return nil, fmt.Errorf("reading commit %s: %w", checksum, err)
	}
	members := value.([]any)
	c := &commit{checksum: checksum, metadata: members[0].(map[string]any)}
	if parent := members[1].([]byte); len(parent) == 32 {
		c.parent = fmt.Sprintf("%x", parent)
	}
	c.timestamp = bits.ReverseBytes64(members[5].(uint64)) // big-endian, unlike the rest
	return c, nil
}

func (c *commit) text(key string) string {
	text, _ := c.metadata[key].(string)
	return text
}

// layered says whether the commit was composed on this machine.
func (c *commit) layered() bool {
	is, _ := c.metadata[metaLayer].(bool)
	return is
}

// base is the commit below the packages.
func (c *commit) base() string {
	if c.layered() {
		return c.parent
	}
	return c.checksum
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
