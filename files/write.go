// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// StagePrefix starts the name of everything that a transaction puts beside its targets until it is done.
const StagePrefix = ".noderefit-"

// Stage makes n under name in the existing directory dir, with owner, mode and label. Nothing may be there yet. It is
// durable only after SyncFS.
func (r *Root) Stage(dir, name string, n Node) error {
	at := path.Join(dir, name)
	h, err := r.openDir(dir)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }()
	fd := int(h.Fd())
	switch n.Type {
	case Regular:
		err = writeAt(fd, name, n.Data)
	case Symlink:
		err = unix.Symlinkat(n.Target, fd, name)
	case Directory:
		err = unix.Mkdirat(fd, name, 0o700)
	default:
		err = fmt.Errorf("can't make a node of type %s", n.Type)
	}
	if err == nil {
		err = setMetaAt(h, name, n)
	}
	return wrapPath("staging", at, err)
}

func writeAt(dirfd int, name string, data []byte) error {
	fd, err := unix.Openat(dirfd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// setMetaAt gives base the owner, mode and label of n. The order matters: a change of owner clears setuid bits.
func setMetaAt(dir *os.File, base string, n Node) error {
	fd := int(dir.Fd())
	if err := unix.Fchownat(fd, base, n.UID, n.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if n.Type != Symlink {
		if err := chmodAt(fd, base, n.Mode); err != nil {
			return err
		}
	}
	return setLabelAt(dir, base, n.Label)
}

// chmodAt changes base itself: a link that was put there meanwhile is refused, not followed.
func chmodAt(dirfd int, base string, mode uint32) error {
	fd, err := unix.Openat(dirfd, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.ELOOP
	}
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode)
}

// SetMeta changes owner, mode and label of what stands at name, and touches no bytes.
func (r *Root) SetMeta(name string, n Node) error {
	dir, base, err := r.openParent(name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return wrapPath("changing mode and owner of", name, setMetaAt(dir, base, n))
}

// Replace renames the entry name of the directory dir to the path to, in one step, over what is there.
func (r *Root) Replace(dir, name, to string) error {
	from, err := r.openDir(dir)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	parent, base, err := r.openParent(to)
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	err = unix.Renameat(int(from.Fd()), name, int(parent.Fd()), base)
	return wrapPath("replacing", to, err)
}

// Link makes name in the directory dir another name of the file or symbolic link at target.
func (r *Root) Link(target, dir, name string) error {
	from, base, err := r.openParent(target)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	to, err := r.openDir(dir)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	err = unix.Linkat(int(from.Fd()), base, int(to.Fd()), name, 0)
	return wrapPath("linking to", target, err)
}

// Preserve keeps what stands at target, a file or a symbolic link, under name in the directory dir: the same inode
// where the file system has hard links, and a copy with mode, owner, label and times elsewhere.
func (r *Root) Preserve(target, dir, name string) error {
	err := r.Link(target, dir, name)
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EMLINK),
		errors.Is(err, unix.EXDEV):
	default:
		return err
	}
	n, st, err := r.inspect(target)
	if err != nil {
		return err
	}
	if n.Type == Regular {
		if n.Data, err = r.Contents(target); err != nil {
			return err
		}
	}
	if err := r.Stage(dir, name, n); err != nil {
		return err
	}
	return r.setTimes(path.Join(dir, name), st.Atim, st.Mtim)
}

// Touch sets the modification time of what stands at name back to t; a directory's, after something in it came and
// went.
func (r *Root) Touch(name string, t time.Time) error {
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return err
	}
	return r.setTimes(name, unix.Timespec{Nsec: unix.UTIME_OMIT}, ts)
}

func (r *Root) setTimes(name string, atime, mtime unix.Timespec) error {
	if path.Clean("/"+name) == "/" {
		return wrapPath("setting times of", name, unix.UtimesNanoAt(unix.AT_FDCWD, procPath(r.dir, "."),
			[]unix.Timespec{atime, mtime}, 0))
	}
	dir, base, err := r.openParent(name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	err = unix.UtimesNanoAt(int(dir.Fd()), base, []unix.Timespec{atime, mtime}, unix.AT_SYMLINK_NOFOLLOW)
	return wrapPath("setting times of", name, err)
}

// ModTime returns when the directory name, links followed, last changed.
func (r *Root) ModTime(name string) (time.Time, error) {
	h, err := r.openDir(name)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = h.Close() }()
	st, err := h.Stat()
	if err != nil {
		return time.Time{}, pathError("stat", name, err)
	}
	return st.ModTime(), nil
}

// Mkdir makes the directory name with owner, mode and label of n.
func (r *Root) Mkdir(name string, n Node) error {
	dir, base, err := r.openParent(name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := unix.Mkdirat(int(dir.Fd()), base, 0o700); err != nil {
		return wrapPath("making directory", name, err)
	}
	return wrapPath("making directory", name, setMetaAt(dir, base, n))
}

// MkdirAll makes name and its missing parents for root with mode; what exists stays as it is.
func (r *Root) MkdirAll(name string, mode uint32) error {
	name = path.Clean("/" + name)
	if r.IsDir(name) {
		return nil
	}
	if err := r.MkdirAll(path.Dir(name), mode); err != nil {
		return err
	}
	err := r.Mkdir(name, Node{Type: Directory, Mode: mode})
	if errors.Is(err, fs.ErrExist) && r.IsDir(name) {
		return nil
	}
	return err
}

// Remove unlinks what stands at name, a directory only when it is empty. Nothing there is no error.
func (r *Root) Remove(name string) error {
	dir, base, err := r.openParent(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	err = unix.Unlinkat(int(dir.Fd()), base, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(int(dir.Fd()), base, unix.AT_REMOVEDIR)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return wrapPath("removing", name, err)
}

// RemoveAll removes the directory name of the agent's own state with everything in it. Links in it are removed, not
// followed.
func (r *Root) RemoveAll(name string) error {
	n, err := r.Inspect(name)
	if err != nil || n.Type == Absent {
		return err
	}
	if n.Type == Directory {
		names, err := r.ReadDir(name)
		if err != nil {
			return err
		}
		for _, e := range names {
			if err := r.RemoveAll(path.Join(name, e)); err != nil {
				return err
			}
		}
	}
	return r.Remove(name)
}

// SyncFS makes everything durable that was written to the file systems of the directories names: one syncfs for each
// file system, however many names lie on it. Names that do not exist are passed over.
func (r *Root) SyncFS(names ...string) error {
	done := map[uint64]bool{}
	for _, name := range names {
		h, err := r.openDir(name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return err
		}
		err = syncfs(h, done)
		_ = h.Close()
		if err != nil {
			return wrapPath("syncing the file system of", name, err)
		}
	}
	return nil
}

func syncfs(h *os.File, done map[uint64]bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(h.Fd()), &st); err != nil || done[st.Dev] {
		return err
	}
	f, err := pathrs.Reopen(h, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	done[st.Dev] = true
	return unix.Syncfs(int(f.Fd()))
}

// WriteRecord writes data to name so that, at any instant and after a power cut, the old or the new bytes are there:
// a file beside it, fsync, rename, fsync of the directory. That is two fsyncs.
func (r *Root) WriteRecord(name string, data []byte, mode uint32) error {
	dir, base := path.Split(path.Clean("/" + name))
	tmp := StagePrefix + base
	if err := r.Remove(dir + tmp); err != nil {
		return err
	}
	if err := r.Stage(dir, tmp, Node{Type: Regular, Mode: mode, Data: data}); err != nil {
		return err
	}
	if err := r.Fsync(dir + tmp); err != nil {
		return err
	}
	if err := r.Replace(dir, tmp, name); err != nil {
		return err
	}
	return r.Fsync(dir)
}

// Fsync makes the file or directory name durable by itself.
func (r *Root) Fsync(name string) error {
	h, err := r.openDir(name)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }()
	f, err := pathrs.Reopen(h, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return pathError("open", name, err)
	}
	defer func() { _ = f.Close() }()
	return wrapPath("syncing", name, f.Sync())
}

// Lock takes the lock file name for the process's life, or until the returned file is closed. Another holder is an
// error that satisfies errors.Is(err, unix.EWOULDBLOCK) and carries what the holder wrote into the file.
func (r *Root) Lock(name, holder string) (*os.File, error) {
	dir, base, err := r.openParent(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	fd, err := unix.Openat(int(dir.Fd()), base, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		who, _ := readAll(f, make([]byte, 0, 128))
		_ = f.Close()
		if len(who) > 0 {
			return nil, fmt.Errorf("%w: held by %s", err, strings.TrimSpace(string(who)))
		}
		return nil, pathError("lock", name, err)
	}
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(holder+"\n"), 0)
	}
	return f, nil
}

func wrapPath(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return pathError(op, name, err)
}
