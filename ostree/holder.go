// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sysrootLock is the file on which ostree, and all that uses it, takes the lock of the sysroot.
	sysrootLock = "/ostree/lock"
	// lockPoll is how often the lock is looked at.
	lockPoll = 500 * time.Millisecond
)

// Holder is a process that has the lock of the sysroot.
type Holder struct {
	PID  int    // 0 if the process can't be seen
	Name string // of its program
	Unit string // of systemd, "" if it is in none
}

func (h Holder) String() string {
	switch {
	case h.PID == 0:
		return "another program"
	case h.Unit == "":
		return fmt.Sprintf("%s (process %d)", h.Name, h.PID)
	}
	return fmt.Sprintf("%s (process %d of %s)", h.Name, h.PID, h.Unit)
}

// LockHolder returns who has the lock of the sysroot, and nil if nobody has it.
func (p *Plain) LockHolder() (*Holder, error) {
	info, held, err := p.lockHeld()
	if err != nil || !held {
		return nil, err
	}
	holder := findHolder(p.host("/proc"), info)
	return &holder, nil
}

// lockHeld reports whether a process has the lock of the sysroot, as ostree takes it.
func (p *Plain) lockHeld() (info fs.FileInfo, held bool, err error) {
	file, err := os.Open(p.host(sysrootLock))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer file.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return nil, false, fmt.Errorf("looking at the lock %s: %w", sysrootLock, err)
	}
	info, err = file.Stat()
	return info, lock.Type != unix.F_UNLCK, err
}

// findHolder looks for the process that has a lock on a file. The kernel names none: the lock belongs to an open file.
// It is listed with that file, below the processes that have it open.
func findHolder(proc string, info fs.FileInfo) Holder {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return Holder{}
	}
	inode := []byte(fmt.Sprintf(":%d ", stat.Ino))
	files, err := filepath.Glob(proc + "/[0-9]*/fdinfo/*")
	if err != nil {
		return Holder{}
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it was closed meanwhile
		}
		for line := range bytes.Lines(text) {
			if !bytes.HasPrefix(line, []byte("lock:")) || !bytes.Contains(line, inode) {
				continue
			}
			of := path.Dir(path.Dir(file))
			holder := Holder{Name: "a program"}
			if holder.PID, err = strconv.Atoi(path.Base(of)); err != nil {
				continue
			}
			if name, err := os.ReadFile(of + "/comm"); err == nil {
				holder.Name = strings.TrimSpace(string(name))
			}
			if group, err := os.ReadFile(of + "/cgroup"); err == nil {
				holder.Unit = unitOf(string(group))
			}
			return holder
		}
	}
	return Holder{}
}

// unitOf returns the unit of a process from its cgroups, "" if it is in none.
func unitOf(groups string) string {
	for line := range strings.Lines(groups) {
		name := path.Base(strings.TrimSpace(line))
		if kind := path.Ext(name); kind == ".service" || kind == ".scope" {
			return name
		}
	}
	return ""
}

// AwaitLock waits until no process has the lock of the sysroot, at most for limit. say, which may be nil, is told once
// what is waited for. The error is an *Error of the class Retryable that names the holder.
func (p *Plain) AwaitLock(ctx context.Context, limit time.Duration, say func(text string)) error {
	const doing = "waiting for the lock of the sysroot"
	for began := time.Now(); ; {
		info, held, err := p.lockHeld()
		if err != nil {
			return &Error{Class: Failed, Doing: doing, Err: err}
		}
		if !held {
			return nil
		}
		if say != nil {
			say(fmt.Sprintf("%s, which %s holds", doing, findHolder(p.host("/proc"), info)))
			say = nil
		}
		if time.Since(began) >= limit {
			return &Error{Class: Retryable, Doing: doing,
				Err: fmt.Errorf("%s has held it for %s", findHolder(p.host("/proc"), info), limit)}
		}
		select {
		case <-ctx.Done():
			return &Error{Class: Retryable, Doing: doing,
				Err: fmt.Errorf("%s holds it: %w", findHolder(p.host("/proc"), info), context.Cause(ctx))}
		case <-time.After(min(lockPoll, limit-time.Since(began))):
		}
	}
}
