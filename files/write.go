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

// StagePrefix starts the name of every node that a transaction stages beside its target.
const StagePrefix = ".noderefit-"

// Stage makes n under name in the existing directory dir, with owner, mode and label. name must not exist yet, and does
// not exist after an error. The new node is durable only after SyncFS.
func (r *Root) Stage(dir, name string, n Node) error {
	h, err := r.openFor(dir, name)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }()
	return wrapPath("staging", path.Join(dir, name), makeAt(int(h.Fd()), name, n))
}

// makeAt makes n as the entry base of an open directory. After an error the entry does not exist.
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

// fresh gives a node that was just made its owner, mode and label. A user who can write to the directory around it may
// have exchanged the node. A directory of ours with contents must not be given away in this way.
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

// createAt makes a regular file that only root can read until fill has written bytes and mode. After an error the file
// does not exist.
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

// setMeta sets owner, mode and label of the node that h refers to. The order matters: a change of owner clears setuid
// bits. A node of another type, put there meanwhile, is refused.
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

// SetMeta changes owner, mode and label of the node at name, and touches no bytes.
func (r *Root) SetMeta(name string, n Node) error {
	return r.changeMeta(name, n, func(*os.File, unix.Stat_t) bool { return true })
}

// SetMetaOf does the work of SetMeta for an exposed place. It changes only a node that belongs to the owner of before
// or of n. It changes no file that has a second name, and sets no setuid or setgid bit. Otherwise a user who can write
// there could get another user's file by its second name, or turn their own file into another user's. An empty
// directory of ours is allowed too: a cut may have left it without its owner.
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

// SetLabel changes only the label of the node at name.
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

// Replace renames the entry name of the directory dir to the path to, in one step, over any node that is there.
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

// Hold keeps what the file name has on the disk until release is called, also when the file is removed or replaced. A
// file that is not there is held as well. Without a hold, a file system such as vfat frees the place of a replaced file
// before the directory on the disk has the new one.
func (r *Root) Hold(name string) (release func() error, err error) {
	f, err := r.open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		return func() error { return nil }, nil
	}
	if err != nil {
		return nil, err
	}
	return f.Close, nil
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

// Preserve keeps the file or symbolic link at target under name in the directory dir. That is the same inode where the
// file system has hard links, elsewhere a copy with mode, owner, extended attributes and times. A file of more than
// most bytes is not copied (EFBIG).
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

// copyFile copies the regular file of the handle from to the file to. Extended attributes come last, because a write
// and a change of owner remove a file's capabilities.
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

// copyXattrs copies the extended attributes that the other file system can hold.
func copyXattrs(to, from *os.File) error {
	list := make([]byte, 64<<10) // XATTR_LIST_MAX, which is also the limit of one value
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

// Touch sets the modification time of the node at name back to t. It is for directories in which an entry came and
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

// MkdirAll makes name and its missing parents for root with mode. Existing directories do not change.
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

// Remove unlinks the node at name, a directory only when it is empty. An absent node is no error.
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
		// Where nothing can be removed, the kernel reports that before it looks whether the entry exists.
		var st unix.Stat_t
		if unix.Fstatat(dirfd, base, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT {
			return nil
		}
	}
	return err
}

// RemoveAll removes the node at name: a directory of the agent's own state, with all its contents. Links in it are
// removed, not followed. An absent node is no error.
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

// SyncFS makes durable everything that was written to the file systems of the directories names: one syncfs for each
// file system, however many names are on it. Names that do not exist are skipped.
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

// WriteRecord writes data to name. At any instant, and after a power cut, the file has the old or the new bytes. The
// steps are a file beside it, fsync, rename, and fsync of the directory: two fsyncs.
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

// Overwrite writes data over the beginning of the file name in its place on the disk, and makes it durable with one
// fsync. A missing file is made, readable for root alone, with two fsyncs. A program that reads the disk without its
// journal, such as a boot loader, sees the data at once. It may see a rename only after the file system is next
// unmounted. After a power cut, data of no more than a sector are either old or new.
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

// Grow opens the file name for reading and for writing at its end, and makes a missing file, which only root can read.
func (r *Root) Grow(name string) (*os.File, error) {
	dir, base, err := r.openParent(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_APPEND | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(dir.Fd()), base, flags, 0o600)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
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

// HeldBy precedes the name of the holder in the error of a lock that another process holds.
const HeldBy = "held by"

// Lock takes the lock file name until the process ends, or until the caller closes the returned file. A lock that
// another process holds gives an error that satisfies errors.Is(err, unix.EWOULDBLOCK). The error has, after HeldBy,
// the text that the holder wrote into the file. A holder that has just taken the lock may have written nothing yet.
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

// OverwriteRemounted does the work of Overwrite for a file of the host, on a file system that may be mounted read-only.
// name is a path of the host and not a link.
func OverwriteRemounted(name string, data []byte) error {
	root, err := OpenRemounted(path.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(root.Overwrite(path.Base(name), data), root.Close())
}

// ReplaceRemounted replaces a file of the host that boot loaders read, by one rename, on a file system that may be
// mounted read-only. At any instant, and after a power cut, the file has the old or the new bytes. The name in between
// is none that a boot loader reads. name is no link.
func ReplaceRemounted(name string, data []byte) error {
	const between = StagePrefix + "entry"
	root, err := OpenRemounted(path.Dir(name))
	if err != nil {
		return err
	}
	err = root.Remove("/" + between)
	if err == nil {
		err = root.Stage("/", between, Node{Type: Regular, Mode: 0o644, Data: data})
	}
	if err == nil {
		err = root.Fsync("/" + between)
	}
	if err == nil {
		err = root.Replace("/", between, "/"+path.Base(name))
	}
	if err == nil {
		err = root.Fsync("/")
	}
	return errors.Join(err, root.Close())
}
