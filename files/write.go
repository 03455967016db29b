// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// StagePrefix starts the name of everything that a transaction puts beside its targets until it is done.
const StagePrefix = ".noderefit-"

// Stage makes n under name in the existing directory dir, with owner, mode and label. Nothing may be there yet, and
// nothing is there after an error. It is durable only after SyncFS.
func (r *Root) Stage(dir, name string, n Node) error {
	h, err := r.openFor(dir, name)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }()
	return wrapPath("staging", path.Join(dir, name), makeAt(int(h.Fd()), name, n))
}

// makeAt makes n as the entry base of an open directory, or leaves nothing.
func makeAt(dirfd int, base string, n Node) error {
	var err error
	switch n.Type {
	case Regular:
		return createAt(dirfd, base, func(f *os.File) error {
			if _, err := f.Write(n.Data); err != nil {
				return err
			}
			return setMeta(f, n)
		})
	case Symlink:
		err = unix.Symlinkat(n.Target, dirfd, base)
	case Directory:
		err = unix.Mkdirat(dirfd, base, 0o700)
	default:
		err = fmt.Errorf("can't make a node of type %q", n.Type)
	}
	if err != nil {
		return err
	}
	fd, err := unix.Openat(dirfd, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		f := os.NewFile(uintptr(fd), base)
		err = errors.Join(fresh(f, n), f.Close())
	}
	if err != nil {
		_ = removeAt(dirfd, base)
	}
	return err
}

// fresh gives what was just made its owner, mode and label. A user who can write to the directory around it may have
// put something else in its place: a directory of ours with things in it would be given away.
func fresh(f *os.File, n Node) error {
	if n.Type == Directory {
		if err := isEmpty(f); err != nil {
			return err
		}
	}
	return setMeta(f, n)
}

// isEmpty returns EEXIST where the directory of the handle h has entries.
func isEmpty(h *os.File) error {
	dir, err := reopen(h, h.Name(), unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if _, err = dir.Readdirnames(1); errors.Is(err, io.EOF) {
		return nil
	}
	return errors.Join(unix.EEXIST, err)
}

// createAt makes a regular file that only root can read until fill has given it bytes and mode, or leaves nothing.
func createAt(dirfd int, base string, fill func(*os.File) error) error {
	fd, err := unix.Openat(dirfd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	if err := errors.Join(fill(f), f.Close()); err != nil {
		_ = unix.Unlinkat(dirfd, base, 0)
		return err
	}
	return nil
}

// setMeta gives what h refers to the owner, mode and label of n. The order matters: a change of owner clears setuid
// bits. What was put there meanwhile and is of another type is refused.
func setMeta(h *os.File, n Node) error {
	fd := int(h.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if found := typeOf(st.Mode); found != n.Type {
		return fmt.Errorf("found a node of type %q, not %q: %w", found, n.Type, unix.EINVAL)
	}
	if Owners() {
		if err := unix.Fchownat(fd, "", n.UID, n.GID, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if n.Type != Symlink {
		if err := unix.Chmod(procPath(h), n.Mode); err != nil {
			return err
		}
	}
	if n.Label == "" {
		return nil
	}
	return setLabel(h, n.Label)
}

// SetMeta changes owner, mode and label of what is at name, and touches no bytes.
func (r *Root) SetMeta(name string, n Node) error {
	return r.changeMeta(name, n, func(*os.File, unix.Stat_t) bool { return true })
}

// SetMetaOf is SetMeta for an exposed place: it changes only what the owner of before or of n has, no file that has
// another name, and makes none set its user or group. Otherwise a user who can write there could have a file of another
// user given to them by its second name, or one of their own made another user's. A directory of ours that is empty may
// be one that a cut left without its owner.
func (r *Root) SetMetaOf(name string, before, n Node) error {
	return r.changeMeta(name, n, func(h *os.File, st unix.Stat_t) bool {
		switch uid := int(st.Uid); {
		case n.Type == Regular:
			return (uid == before.UID || uid == n.UID) && st.Nlink == 1 && n.Mode&0o6000 == 0
		case n.Type == Directory && uid == os.Geteuid() && uid != before.UID && uid != n.UID:
			return isEmpty(h) == nil
		default:
			return uid == before.UID || uid == n.UID
		}
	})
}

func (r *Root) changeMeta(name string, n Node, may func(*os.File, unix.Stat_t) bool) error {
	h, err := r.openEntry(name)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }()
	var st unix.Stat_t
	if err = unix.Fstat(int(h.Fd()), &st); err == nil && !may(h, st) {
		err = fmt.Errorf("it was exchanged, or has a second name: %w", unix.EPERM)
	}
	if err == nil {
		err = setMeta(h, n)
	}
	return wrapPath("changing mode and owner of", name, err)
}

// SetLabel changes the label of what is at name alone.
func (r *Root) SetLabel(name, label string) error {
	h, err := r.openEntry(name)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }()
	return wrapPath("changing the label of", name, setLabel(h, label))
}

func setLabel(h *os.File, label string) error {
	return unix.Setxattr(procPath(h), labelXattr, append([]byte(label), 0), 0)
}

// Replace renames the entry name of the directory dir to the path to, in one step, over what is there.
func (r *Root) Replace(dir, name, to string) error {
	from, err := r.openFor(dir, name)
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
	to, err := r.openFor(dir, name)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	err = unix.Linkat(int(from.Fd()), base, int(to.Fd()), name, 0)
	return wrapPath("linking "+target+" as", path.Join(dir, name), err)
}

// Preserve keeps what is at target, a file or a symbolic link, under name in the directory dir: the same inode
// where the file system has hard links, and a copy with mode, owner, extended attributes and times elsewhere. A file of
// more than most bytes is not copied (EFBIG).
func (r *Root) Preserve(target, dir, name string, most int64) error {
	err := r.Link(target, dir, name)
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EMLINK),
		errors.Is(err, unix.EXDEV):
	default:
		return err
	}
	from, n, st, err := r.inspect(target)
	if err != nil {
		return err
	}
	if from == nil {
		return pathError("keeping", target, unix.ENOENT)
	}
	defer func() { _ = from.Close() }()
	if st.Size > most {
		return pathError("keeping", target, unix.EFBIG)
	}
	to, err := r.openFor(dir, name)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	at := path.Join(dir, name)
	switch n.Type {
	case Regular:
		err = createAt(int(to.Fd()), name, func(f *os.File) error { return copyFile(f, from, target, n, st.Size) })
	case Symlink:
		err = makeAt(int(to.Fd()), name, n)
	default:
		err = fmt.Errorf("can't copy a node of type %q", n.Type)
	}
	if err != nil {
		return pathError("keeping "+target+" as", at, err)
	}
	return r.setTimes(at, st.Atim, st.Mtim)
}

// copyFile makes to a copy of the regular file of the handle from. Extended attributes come last, because a write and a
// change of owner take a file's capabilities away.
func copyFile(to, from *os.File, name string, n Node, size int64) error {
	src, err := reopen(from, name, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	if _, err := io.CopyN(to, src, size); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := setMeta(to, n); err != nil {
		return err
	}
	return copyXattrs(to, from)
}

// copyXattrs copies what the other file system can hold.
func copyXattrs(to, from *os.File) error {
	list := make([]byte, 64<<10) // XATTR_LIST_MAX, as is the bound of one value
	size, err := unix.Listxattr(procPath(from), list)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimRight(string(list[:max(size, 0)]), "\x00"), "\x00") {
		if name == "" || name == labelXattr {
			continue
		}
		size, err := unix.Getxattr(procPath(from), name, value)
		if err == nil {
			err = unix.Setxattr(procPath(to), name, value[:size], 0)
		}
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("copying attribute %s: %w", name, err)
		}
	}
	return nil
}

// Touch sets the modification time of what is at name back to t; a directory's, after something in it came and
// went.
func (r *Root) Touch(name string, t time.Time) error {
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return err
	}
	return r.setTimes(name, unix.Timespec{Nsec: unix.UTIME_OMIT}, ts)
}

func (r *Root) setTimes(name string, atime, mtime unix.Timespec) error {
	h, err := r.openEntry(name)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }()
	err = unix.UtimesNanoAt(unix.AT_FDCWD, procPath(h), []unix.Timespec{atime, mtime}, 0)
	return wrapPath("setting times of", name, err)
}

// ModTime returns when the directory name, links followed, last changed.
func (r *Root) ModTime(name string) (time.Time, error) {
	_, t, err := r.SizeAndTime(name)
	return t, err
}

// Mkdir makes the directory name with owner, mode and label of n.
func (r *Root) Mkdir(name string, n Node) error {
	dir, base, err := r.openParent(name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	n.Type = Directory
	return wrapPath("making directory", name, makeAt(int(dir.Fd()), base, n))
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
	switch {
	case !errors.Is(err, fs.ErrExist):
		return err
	case r.IsDir(name):
		return nil
	}
	return pathError("making directory", name, unix.ENOTDIR)
}

// Remove unlinks what is at name, a directory only when it is empty. Nothing there is no error.
func (r *Root) Remove(name string) error {
	dir, base, err := r.openParent(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return wrapPath("removing", name, removeAt(int(dir.Fd()), base))
}

func removeAt(dirfd int, base string) error {
	err := unix.Unlinkat(dirfd, base, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(dirfd, base, unix.AT_REMOVEDIR)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		// Where nothing can be removed the kernel says so before it looks whether anything is there.
		var st unix.Stat_t
		if unix.Fstatat(dirfd, base, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT {
			return nil
		}
	}
	return err
}

// RemoveAll removes what is at name, a directory of the agent's own state with everything in it. Links in it are
// removed, not followed. Nothing there is no error.
func (r *Root) RemoveAll(name string) error {
	dir, base, err := r.openParent(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return removeTreeAt(int(dir.Fd()), base, path.Clean("/"+name))
}

func removeTreeAt(dirfd int, base, name string) error {
	err := removeAt(dirfd, base)
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return wrapPath("removing", name, err)
	}
	fd, err := unix.Openat(dirfd, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return pathError("open", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return pathError("read", name, err)
	}
	for _, e := range names {
		if err := removeTreeAt(fd, e, path.Join(name, e)); err != nil {
			return err
		}
	}
	return wrapPath("removing", name, removeAt(dirfd, base))
}

// SyncFS makes everything durable that was written to the file systems of the directories names: one syncfs for each
// file system, however many names lie on it. Names that do not exist are passed over.
func (r *Root) SyncFS(names ...string) error {
	done := map[uint64]bool{}
	for _, name := range names {
		f, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return err
		}
		err = syncfs(int(f.Fd()), done)
		_ = f.Close()
		if err != nil {
			return pathError("syncing the file system of", name, err)
		}
	}
	return nil
}

func syncfs(fd int, done map[uint64]bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || done[st.Dev] {
		return err
	}
	done[st.Dev] = true
	return unix.Syncfs(fd)
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
	err := r.Fsync(dir + tmp)
	if err == nil {
		err = r.Replace(dir, tmp, name)
	}
	if err != nil {
		return errors.Join(err, r.Remove(dir+tmp))
	}
	return r.Fsync(dir)
}

// Overwrite writes data over the beginning of the file name where it is on the disk, and makes it durable: one fsync;
// two and a file that only root can read where there was none. A program that reads the disk without its journal, as a
// boot loader does, sees it at once; what a rename puts there it may not see before the file system is next unmounted.
// Data of no more than a sector are the old or the new ones after a power cut.
func (r *Root) Overwrite(name string, data []byte) error {
	f, err := r.open(name, unix.O_WRONLY|unix.O_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		dir, base := path.Split(path.Clean("/" + name))
		if err := r.Stage(dir, base, Node{Type: Regular, Mode: 0o600, Data: data}); err != nil {
			return err
		}
		return errors.Join(r.Fsync(name), r.Fsync(dir))
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteAt(data, 0); err != nil {
		return wrapPath("writing", name, err)
	}
	return wrapPath("syncing", name, f.Sync())
}

// Fsync makes the file or directory name durable by itself.
func (r *Root) Fsync(name string) error {
	f, err := r.open(name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return wrapPath("syncing", name, f.Sync())
}

// HeldBy stands before the name of the holder in the error of a lock that another one has.
const HeldBy = "held by"

// Lock takes the lock file name for the process's life, or until the returned file, which the caller keeps, is closed.
// Another holder is an error that satisfies errors.Is(err, unix.EWOULDBLOCK) and carries what the holder wrote into the
// file, after HeldBy; a holder that has had the lock for a moment may have written nothing yet.
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
		who, _ := io.ReadAll(io.LimitReader(f, 4096))
		_ = f.Close()
		if len(who) > 0 {
			err = fmt.Errorf("%w: %s %s", err, HeldBy, strings.TrimSpace(string(who)))
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
