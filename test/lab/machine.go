// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// registered is what a host uses of this machine: a directory, and a cgroup while the host runs. A file in the cache
// records both, and is locked as long as the process lives. With that file, a later process can remove what a killed
// process left.
type registered struct {
	id     string
	dir    string
	cgroup string
	record string
	lock   *os.File
}

func register(cache, id, dir string) (registered, error) {
	root, err := cgroupRoot()
	if err != nil {
		return registered{}, err
	}
	r := registered{id: id, dir: dir, cgroup: filepath.Join(root, "noderefit-lab-"+id)}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		entries, readErr := os.ReadDir(dir)
		if readErr != nil || len(entries) > 0 {
			return registered{}, fmt.Errorf("%s is there already, and not an empty directory", dir)
		}
	}
	r.record = filepath.Join(cache, "hosts", id+".host")
	// The file gets its name only after it is locked. So it never looks like the file of a dead process.
	r.lock, err = os.OpenFile(r.record+".new", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return registered{}, err
	}
	if err := errors.Join(
		unix.Flock(int(r.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB),
		os.WriteFile(r.record+".new", []byte(dir+"\n"+r.cgroup+"\n"), 0o644),
		os.Rename(r.record+".new", r.record),
	); err != nil {
		r.lock.Close()
		return registered{}, err
	}
	return r, nil
}

// remove removes everything; no process of the host may run any more. The record is removed last, so that it still
// names what could not be removed.
func (r registered) remove() error {
	for _, step := range []func() error{
		r.removeCgroup,
		func() error { return RemoveTree(r.dir) },
		func() error { return os.Remove(r.record) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return r.lock.Close()
}

// removeStale removes from this cache what the hosts of dead processes left.
func removeStale(cache string) error {
	records, err := filepath.Glob(filepath.Join(cache, "hosts", "*.host"))
	if err != nil {
		return err
	}
	for _, record := range records {
		lock, err := os.OpenFile(record, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			lock.Close()
			continue
		}
		text, err := io.ReadAll(lock)
		if err != nil {
			lock.Close()
			return err
		}
		dir, cgroup, ok := strings.Cut(strings.TrimSuffix(string(text), "\n"), "\n")
		if !ok || !filepath.IsAbs(dir) || !strings.HasPrefix(filepath.Base(cgroup), "noderefit-lab-") {
			lock.Close()
			return fmt.Errorf("removing what an earlier host left: %s is damaged", record)
		}
		r := registered{dir: dir, cgroup: cgroup, record: record, lock: lock}
		// Each step follows only if the step before succeeded: nothing may be removed while a process still uses it.
		for _, step := range []func() error{r.kill, r.waitEmpty, r.remove} {
			if err := step(); err != nil {
				lock.Close()
				return fmt.Errorf("removing what the host at %s left: %w", dir, err)
			}
		}
	}
	return nil
}

// cgroupRoot returns the root of this machine's unified cgroup hierarchy.
func cgroupRoot() (string, error) {
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var stat unix.Statfs_t
		if err := unix.Statfs(path, &stat); err != nil || stat.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		if stat.Flags&unix.ST_RDONLY != 0 {
			return "", fmt.Errorf("%s is read-only", path)
		}
		return path, nil
	}
	return "", errors.New("no unified cgroup hierarchy is mounted at /sys/fs/cgroup or /sys/fs/cgroup/unified")
}

func (r registered) makeCgroup() error {
	if err := os.Mkdir(r.cgroup, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making cgroup: %w", err)
	}
	return nil
}

// kill kills every process of the cgroup at once, if the cgroup exists.
func (r registered) kill() error {
	err := os.WriteFile(filepath.Join(r.cgroup, "cgroup.kill"), []byte("1"), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// waitEmpty waits until the cgroup has no process any more. The processes are already dead or dying.
func (r registered) waitEmpty() error {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(poll) {
		events, err := os.ReadFile(filepath.Join(r.cgroup, "cgroup.events"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		if err != nil {
			return err
		}
		if bytes.Contains(events, []byte("populated 0")) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waiting for the processes in %s to end: some are still there", r.cgroup)
		}
	}
}

// removeCgroup removes the cgroup and the cgroups below it, in all hierarchies.
func (r registered) removeCgroup() error {
	legacy, err := r.legacy()
	if err != nil {
		return err
	}
	for _, dir := range append(legacy, r.cgroup) {
		if err := removeCgroups(dir); err != nil {
			return err
		}
	}
	return nil
}

func removeCgroups(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(dirs) {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// findLeader returns the PID 1 of the container in the cgroup as this process sees it, or 0. That process is two PID
// namespaces below us, and is the first process of the lower one.
func (r registered) findLeader() int {
	leader := 0
	// An unreadable entry is a process or a cgroup that has just ended.
	_ = filepath.WalkDir(r.cgroup, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroup.procs" {
			return nil
		}
		pids, _ := os.ReadFile(path)
		for pid := range strings.FieldsSeq(string(pids)) {
			status, _ := os.ReadFile("/proc/" + pid + "/status")
			_, rest, _ := strings.Cut(string(status), "\nNSpid:")
			line, _, _ := strings.Cut(rest, "\n")
			if ids := strings.Fields(line); len(ids) == 3 && ids[2] == "1" {
				leader, _ = strconv.Atoi(pid)
				return fs.SkipAll
			}
		}
		return nil
	})
	return leader
}

// copySysroot copies a sysroot. Objects and /usr are hard-linked where possible, everything else is copied.
func copySysroot(ctx context.Context, from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if !entry.IsDir() && sharable(rel) {
			err := os.Link(path, target)
			if err == nil {
				return nil
			}
			if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EMLINK) {
				return err
			}
		}
		return copyNode(path, target, entry)
	})
}

// sharable reports whether the host never writes to a path below the sysroot, but only replaces or removes it.
func sharable(rel string) bool {
	// This includes all repositories, because programs have more of them in /var.
	if strings.Contains(rel, "/repo/objects/") {
		return true
	}
	parts := strings.SplitN(rel, "/", 7)
	return len(parts) == 7 && parts[1] == "deploy" && parts[3] == "deploy" && parts[5] == "usr"
}

// copyNode copies one directory (without its entries), file or link, with mode, owner and time.
func copyNode(from, to string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Lstat(from, &stat); err != nil {
		return err
	}
	switch {
	case info.IsDir():
		err = os.MkdirAll(to, 0o755)
	case info.Mode()&fs.ModeSymlink != 0:
		var target string
		if target, err = os.Readlink(from); err == nil {
			err = os.Symlink(target, to)
		}
	case info.Mode().IsRegular():
		err = copyFile(from, to)
	default:
		err = fmt.Errorf("copying %s: neither file, directory nor link", from)
	}
	if err != nil {
		return err
	}
	if err := os.Lchown(to, int(stat.Uid), int(stat.Gid)); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		if err := unix.Chmod(to, stat.Mode&0o7777); err != nil {
			return err
		}
	}
	times := []unix.Timespec{stat.Atim, stat.Mtim}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, times, unix.AT_SYMLINK_NOFOLLOW)
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		target.Close()
		return err
	}
	return target.Close()
}

// immutable is the inode flag that ostree sets on a deployment's directory (FS_IMMUTABLE_FL).
const immutable = 0x10

func setImmutable(dir string, on bool) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer file.Close()
	return setFlags(file, func(flags int) int {
		if on {
			return flags | immutable
		}
		return flags &^ immutable
	})
}

// setFlags changes the inode flags of an open file, if its file system supports them.
func setFlags(file *os.File, change func(int) int) error {
	flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // on such a file system ostree does not use the flags either
	}
	if err != nil {
		return fmt.Errorf("reading the flags of %s: %w", file.Name(), err)
	}
	changed := change(flags)
	if changed == flags {
		return nil
	}
	if err := unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, changed); err != nil {
		return fmt.Errorf("setting the flags of %s: %w", file.Name(), err)
	}
	return nil
}
