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
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/message"
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

// LockHolder returns who has the lock of the sysroot, and nil if nobody has it. The processes of the unit first, which
// may be "", are looked at before all others.
func (p *Plain) LockHolder(first string) (*Holder, error) {
	file, held, err := p.lockHeld()
	if err != nil || !held {
		return nil, err
	}
	holder := findHolder(p.host("/proc"), file, first)
	return &holder, nil
}

// identity distinguishes a file from all others of the machine.
type identity struct {
	major, minor uint32
	inode        uint64
}

// identify returns the identity of an open file, or of what path leads to. It asks no server of a remote or a FUSE file
// system, which may never answer.
func identify(fd int, path string) (identity, error) {
	flags := unix.AT_STATX_DONT_SYNC
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var stat unix.Statx_t
	err := unix.Statx(fd, path, flags, unix.STATX_INO, &stat)
	return identity{stat.Dev_major, stat.Dev_minor, stat.Ino}, err
}

// lockHeld reports whether a process has the lock of the sysroot, as ostree takes it.
func (p *Plain) lockHeld() (of identity, held bool, err error) {
	file, err := os.Open(p.host(sysrootLock))
	if errors.Is(err, fs.ErrNotExist) {
		return identity{}, false, nil
	}
	if err != nil {
		return identity{}, false, err
	}
	defer file.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return identity{}, false, fmt.Errorf("looking at the lock %s: %w", sysrootLock, err)
	}
	if of, err = identify(int(file.Fd()), ""); err != nil {
		return identity{}, false, fmt.Errorf("looking at %s: %w", sysrootLock, err)
	}
	return of, lock.Type != unix.F_UNLCK, nil
}

// maxShown is how many bytes of a program's or a unit's name are shown. Other people choose these names.
const maxShown = 128

// findHolder looks for the process that has a lock on a file, in the processes of the unit first before all others. The
// kernel names none: the lock belongs to an open file. It is listed with that file, below the processes that have it
// open.
func findHolder(proc string, of identity, first string) Holder {
	dirs, err := filepath.Glob(proc + "/[0-9]*")
	if err != nil {
		return Holder{}
	}
	var own, others []string
	for _, dir := range dirs {
		if first != "" && unitOf(dir) == first {
			own = append(own, dir)
		} else {
			others = append(others, dir)
		}
	}
	for _, dir := range slices.Concat(own, others) {
		pid, err := strconv.Atoi(path.Base(dir))
		if err != nil || !locks(dir, of) {
			continue
		}
		holder := Holder{PID: pid, Name: "a program", Unit: shown(unitOf(dir))}
		if name, err := os.ReadFile(dir + "/comm"); err == nil {
			holder.Name = shown(strings.TrimSpace(string(name)))
		}
		return holder
	}
	return Holder{}
}

// locks reports whether a process, by its directory in /proc, has a file open with a lock that keeps ostree's away.
func locks(dir string, of identity) bool {
	inode := fmt.Appendf(nil, ":%d ", of.inode)
	files, err := os.ReadDir(dir + "/fdinfo")
	if err != nil {
		return false // the process has ended meanwhile
	}
	for _, file := range files {
		text, err := os.ReadFile(dir + "/fdinfo/" + file.Name())
		if err != nil {
			continue // it was closed meanwhile
		}
		for line := range bytes.Lines(text) {
			// Locks of flock(2) and those of fcntl(2) do not see each other.
			if !bytes.HasPrefix(line, []byte("lock:")) || bytes.Contains(line, []byte(" FLOCK ")) ||
				!bytes.Contains(line, inode) {
				continue
			}
			// Every file system has a file of that inode number.
			if is, err := identify(unix.AT_FDCWD, dir+"/fd/"+file.Name()); err == nil && is == of {
				return true
			}
		}
	}
	return false
}

// shown returns a name of other people as a message may have it: printable and short.
func shown(name string) string {
	printable := func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}
	return message.Cut(strings.Map(printable, strings.ToValidUTF8(name, "?")), maxShown)
}

// unitOf returns the unit of a process, by its directory in /proc, and "" if it is in none.
func unitOf(dir string) string {
	groups, err := os.ReadFile(dir + "/cgroup")
	if err != nil {
		return ""
	}
	return unitIn(string(groups))
}

// unitIn returns the unit that the cgroups of a process are of, and "" if they are of none.
func unitIn(groups string) string {
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
		of, held, err := p.lockHeld()
		if err != nil {
			return &Error{Class: Failed, Doing: doing, Err: err}
		}
		if !held {
			return nil
		}
		if say != nil {
			say(fmt.Sprintf("%s, which %s holds", doing, findHolder(p.host("/proc"), of, "")))
			say = nil
		}
		if time.Since(began) >= limit {
			return &Error{Class: Retryable, Doing: doing,
				Err: fmt.Errorf("%s has held it for %s", findHolder(p.host("/proc"), of, ""), limit)}
		}
		select {
		case <-ctx.Done():
			return &Error{Class: Retryable, Doing: doing,
				Err: fmt.Errorf("%s holds it: %w", findHolder(p.host("/proc"), of, ""), context.Cause(ctx))}
		case <-time.After(min(lockPoll, limit-time.Since(began))):
		}
	}
}
