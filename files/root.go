// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Root is a directory that looks like a host. Every path given to its methods is absolute and means a path of that
// host. Each path is resolved below the directory: nothing outside is reached, whatever the links are and whichever
// program changes them meanwhile. Links are not followed in a directory that other users than root can write to: see
// ExposedError.
type Root struct {
	dir   *os.File
	path  string
	owner unix.Stat_t // of the directory, see exposed
}

// Open returns the host at dir, "/" for the host that this process runs on.
func Open(dir string) (*Root, error) {
	dir, err := absolute(dir)
	if err != nil {
		return nil, fmt.Errorf("opening root: %w", err)
	}
	f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening root: %w", err)
	}
	return newRoot(f, dir)
}

func newRoot(f *os.File, dir string) (*Root, error) {
	r := &Root{dir: f, path: dir}
	if err := unix.Fstat(int(f.Fd()), &r.owner); err != nil {
		return nil, errors.Join(fmt.Errorf("opening root %s: %w", dir, err), f.Close())
	}
	return r, nil
}

// OpenWritable returns the tree at dir through a private, writable mount, for a tree that the host mounts read-only
// (/sysroot). The host's own mounts do not change, and Close removes the private mount. Mounts below dir are not part
// of the tree. It needs Linux 5.12 and CAP_SYS_ADMIN.
func OpenWritable(dir string) (*Root, error) {
	dir, err := absolute(dir)
	if err != nil {
		return nil, fmt.Errorf("opening root: %w", err)
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cloning the mount of %s: %w", dir, err)
	}
	r, err := newRoot(os.NewFile(uintptr(fd), dir), dir)
	if err != nil {
		return nil, err
	}
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr)
	if err == nil && !r.IsDir("/") {
		err = unix.ENOTDIR
	}
	if err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("making a writable mount of %s: %w", dir, err)
	}
	return r, nil
}

// OpenRemounted does the work of OpenWritable for a tree whose file system may be mounted read-only too, as /boot is on
// some hosts. The file system becomes writable and stays so, below mounts of the host that stay read-only. ostree does
// the same to /boot.
func OpenRemounted(dir string) (*Root, error) {
	r, err := OpenWritable(dir)
	if err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	err = unix.Fstatfs(int(r.dir.Fd()), &st)
	if err == nil && st.Flags&unix.ST_RDONLY != 0 {
		err = r.remount()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making the file system of %s writable: %w", dir, err), r.Close())
	}
	return r, nil
}

func (r *Root) remount() error {
	fd, err := unix.Fspick(int(r.dir.Fd()), "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.FsconfigSetFlag(fd, "rw"); err != nil {
		return err
	}
	return unix.FsconfigReconfigure(fd)
}

// absolute makes a root's directory independent of the working directory. An empty name is an error, because a flag may
// have been left unset; it does not mean the working directory.
func absolute(dir string) (string, error) {
	if dir == "" {
		return "", pathError("open", dir, unix.ENOENT)
	}
	return filepath.Abs(dir)
}

// Close releases the root.
func (r *Root) Close() error { return r.dir.Close() }

// Path returns the directory that the root was opened with, absolute, for messages and for tools that take a path.
func (r *Root) Path() string { return r.path }

// open opens name inside the root. Links are followed, the last one only without O_NOFOLLOW, and none in an exposed
// directory (see ExposedError). A path without links, as nearly all paths are, costs one call.
func (r *Root) open(name string, flags int) (*os.File, error) {
	name = path.Clean("/" + name)
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	}
	for {
		fd, err := unix.Openat2(int(r.dir.Fd()), name, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), name), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			return nil, pathError("open", name, err)
		}
		break
	}
	h, err := r.openWalked(name, flags)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return h, nil
}

// procPath returns a path of the node that an open handle refers to, for calls that need a path. The kernel goes
// straight to the node: a handle of a symbolic link means the link.
func procPath(h *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(h.Fd())) }

// reopen turns a handle into an open file of the same inode, even if the name has another inode by now. It waits for no
// other process: where a process holds a lease of the file (fcntl), it returns EAGAIN at once and does not wait 45
// seconds.
func reopen(h *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Open(procPath(h), flags&^unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openDir returns a handle of the directory name, links followed.
func (r *Root) openDir(name string) (*os.File, error) {
	return r.open(name, unix.O_PATH|unix.O_DIRECTORY)
}

// openEntry returns a handle of the node at name itself, and opens nothing: no device wakes up, no FIFO blocks.
func (r *Root) openEntry(name string) (*os.File, error) {
	return r.open(name, unix.O_PATH|unix.O_NOFOLLOW)
}

// openParent returns a handle of the directory that holds name, and the last component.
func (r *Root) openParent(name string) (*os.File, string, error) {
	name = path.Clean("/" + name)
	if name == "/" {
		return nil, "", pathError("changing", name, unix.EBUSY)
	}
	dir, err := r.openDir(path.Dir(name))
	return dir, path.Base(name), err
}

// openFor returns a handle of the directory dir for an entry name. name must be one component, so that the entry is in
// dir.
func (r *Root) openFor(dir, name string) (*os.File, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsRune(name, '/') {
		return nil, pathError(fmt.Sprintf("using %q as a file name in", name), dir, unix.EINVAL)
	}
	return r.openDir(dir)
}

// ReadFile returns the contents of the regular file name, links followed.
func (r *Root) ReadFile(name string) ([]byte, error) {
	h, err := r.open(name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.Close() }()
	return contents(h, name, math.MaxInt64)
}

// Contents returns the bytes of the regular file that is at name itself: a link there is not followed.
func (r *Root) Contents(name string) ([]byte, error) {
	h, err := r.openEntry(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.Close() }()
	return contents(h, name, math.MaxInt64)
}

// Map returns the bytes of the regular file name, links followed, without reading them: the kernel reads the pages that
// are used. The bytes must not be written to, and stay until the process ends. Only root may be able to change such a
// file. The result is never nil without an error.
func (r *Root) Map(name string) ([]byte, error) {
	f, err := r.open(name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, pathError("stat", name, err)
	case !st.Mode().IsRegular():
		return nil, pathError("read", name, errors.New("not a regular file"))
	case st.Size() == 0:
		return []byte{}, nil
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, pathError("map", name, err)
	}
	return data, nil
}

// Read returns the node at name itself, with the bytes of a regular file. All of it is of one inode, also when the file
// is exchanged meanwhile. A file in an exposed place with more than MostExposed bytes gives the error EFBIG.
func (r *Root) Read(name string) (Node, error) {
	h, n, st, err := r.inspect(name)
	if err != nil || h == nil {
		return n, err
	}
	defer func() { _ = h.Close() }()
	if n.Type != Regular {
		return n, nil
	}
	if st.Size > MostExposed && r.Exposed(name) != "" {
		return n, pathError("read", name, unix.EFBIG)
	}
	n.Data, err = contents(h, name, st.Size)
	return n, err
}

// contents limits its read to most bytes: a file may grow meanwhile, and files of /proc have no size.
func contents(h *os.File, name string, most int64) ([]byte, error) {
	st, err := h.Stat()
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	if !st.Mode().IsRegular() {
		return nil, pathError("read", name, errors.New("not a regular file"))
	}
	f, err := reopen(h, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var b bytes.Buffer
	b.Grow(int(min(st.Size(), most, 1<<20)) + bytes.MinRead) // the size may have changed by now
	if _, err := b.ReadFrom(io.LimitReader(f, most)); err != nil {
		return nil, pathError("read", name, err)
	}
	return b.Bytes(), nil
}

// ReadDir returns the sorted names in the directory name, links followed.
func (r *Root) ReadDir(name string) ([]string, error) {
	f, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, pathError("read", name, err)
	}
	slices.Sort(names)
	return names, nil
}

// EachName calls do with each name in the directory name, links followed, until do returns an error. It reads and sorts
// few names at a time: a user can make millions.
func (r *Root) EachName(name string, do func(entry string) error) error {
	f, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for {
		names, err := f.Readdirnames(1024)
		slices.Sort(names)
		for _, entry := range names {
			if err := do(entry); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return pathError("read", name, err)
		}
	}
}

// Empty reports whether the directory name has no entries. It reads one entry at most: a user can make millions.
func (r *Root) Empty(name string) (bool, error) {
	f, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	_, err = f.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, wrapPath("read", name, err)
}

// IsDir reports whether name is a directory, links followed.
func (r *Root) IsDir(name string) bool {
	h, err := r.openDir(name)
	if err != nil {
		return false
	}
	_ = h.Close()
	return true
}

// Inspect returns the node at name, without contents; the last link is not followed. A path that does not exist, or
// that lies below a node that is not a directory, is Absent.
func (r *Root) Inspect(name string) (Node, error) {
	h, n, _, err := r.inspect(name)
	if h != nil {
		_ = h.Close()
	}
	return n, err
}

// InspectSized returns the node of Inspect and the size in bytes of a regular file: type and size are of one inode.
func (r *Root) InspectSized(name string) (Node, int64, error) {
	h, n, st, err := r.inspect(name)
	if h != nil {
		_ = h.Close()
	}
	if n.Type != Regular {
		return n, 0, err
	}
	return n, st.Size, err
}

// inspect returns the node of Inspect, a handle, nil for an absent node, and the kernel's answer to stat.
func (r *Root) inspect(name string) (*os.File, Node, unix.Stat_t, error) {
	var st unix.Stat_t
	h, err := r.openEntry(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, Node{Type: Absent}, st, nil
	}
	if err != nil {
		return nil, Node{}, st, err
	}
	n, err := nodeOf(h, name, &st)
	if err == nil {
		return h, n, st, nil
	}
	_ = h.Close()
	if err = r.inTheWay(name, err); errors.As(err, new(*ExposedError)) {
		return nil, Node{Type: Absent}, st, nil // an entry that root can't look at exists only for its user
	}
	return nil, Node{}, st, err
}

func nodeOf(h *os.File, name string, st *unix.Stat_t) (Node, error) {
	if err := unix.Fstat(int(h.Fd()), st); err != nil {
		return Node{}, pathError("stat", name, err)
	}
	n := Node{Type: typeOf(st.Mode), Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid)}
	if n.Type == Symlink {
		n.Mode = 0
		var err error
		if n.Target, err = readlink(h); err != nil {
			return Node{}, pathError("readlink", name, err)
		}
	}
	var err error
	if n.Label, err = labelOf(h); err != nil {
		return Node{}, pathError("reading label of", name, err)
	}
	return n, nil
}

func typeOf(mode uint32) Type {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return Regular
	case unix.S_IFDIR:
		return Directory
	case unix.S_IFLNK:
		return Symlink
	}
	return Other
}

// readlink returns the target of the link that a handle refers to.
func readlink(h *os.File) (string, error) {
	buf := make([]byte, unix.PathMax)
	size, err := unix.Readlinkat(int(h.Fd()), "", buf)
	if err != nil {
		return "", err
	}
	return string(buf[:size]), nil
}

// Space is the free space of a file system for an ordinary writer.
type Space struct {
	Device uint64 // the file system's device number
	Bytes  uint64
	Total  uint64 // what the file system has, free or not
	Inodes uint64 // a large number where the file system does not count inodes
}

// Space returns the free space of the file system that holds the directory name.
func (r *Root) Space(name string) (Space, error) {
	h, err := r.openDir(name)
	if err != nil {
		return Space{}, err
	}
	defer func() { _ = h.Close() }()
	var st unix.Stat_t
	var sf unix.Statfs_t
	if err := unix.Fstat(int(h.Fd()), &st); err != nil {
		return Space{}, pathError("stat", name, err)
	}
	if err := unix.Fstatfs(int(h.Fd()), &sf); err != nil {
		return Space{}, pathError("statfs", name, err)
	}
	s := Space{Device: st.Dev, Bytes: sf.Bavail * uint64(sf.Frsize), Inodes: sf.Ffree,
		Total: sf.Blocks * uint64(sf.Frsize)}
	if sf.Files == 0 {
		s.Inodes = 1 << 62 // btrfs and vfat make inodes as needed
	}
	return s, nil
}

// Changeable returns an error where no program can change the node at name, whatever its permissions. Reasons are a
// read-only mount and the attributes immutable and append-only (chattr). A directory that can't be changed takes no new
// entries.
func (r *Root) Changeable(name string) error {
	h, err := r.openEntry(name)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }()
	var sf unix.Statfs_t
	if err := unix.Fstatfs(int(h.Fd()), &sf); err != nil {
		return pathError("statfs", name, err)
	}
	if sf.Flags&unix.ST_RDONLY != 0 {
		return pathError("changing", name, unix.EROFS)
	}
	var sx unix.Statx_t
	if err := unix.Statx(int(h.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, 0, &sx); err != nil {
		return pathError("statx", name, err)
	}
	switch {
	case sx.Attributes&unix.STATX_ATTR_IMMUTABLE != 0:
		return fmt.Errorf("%s is immutable (chattr): %w", name, unix.EPERM)
	case sx.Attributes&unix.STATX_ATTR_APPEND != 0:
		return fmt.Errorf("%s is append-only (chattr): %w", name, unix.EPERM)
	}
	return nil
}

// Ancestor returns the deepest existing directory on the way to name, links followed; in the last resort "/". A node on
// the way that is not a directory gives an error that names it.
func (r *Root) Ancestor(name string) (string, error) {
	for dir := path.Dir(path.Clean("/" + name)); ; dir = path.Dir(dir) {
		h, err := r.openDir(dir)
		if err == nil {
			return dir, h.Close()
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return "", err
		}
		n, inspectErr := r.Inspect(dir)
		switch {
		case inspectErr != nil:
			return "", inspectErr
		case n.Type == Symlink:
			return "", pathError("using as a directory", dir, fmt.Errorf("link to %s: %w", n.Target, errors.Unwrap(err)))
		case n.Type != Absent:
			return "", pathError("using as a directory", dir, unix.ENOTDIR)
		}
	}
}

func pathError(op, name string, err error) error {
	var pe *fs.PathError
	var le *os.LinkError
	switch {
	case errors.As(err, &pe):
		err = pe.Err
	case errors.As(err, &le):
		err = le.Err
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// Stamps returns a text for each path below the directory dir. The text changes whenever bytes, owner, mode or
// attributes of the node do.
func (r *Root) Stamps(dir string) (map[string]string, error) {
	out := map[string]string{}
	return out, r.stamps(dir, out)
}

func (r *Root) stamps(dir string, out map[string]string) error {
	h, err := r.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return nil
	case errors.Is(err, unix.ENAMETOOLONG) && r.Exposed(dir) != "":
		return nil // no program can name this path, and a user can make it
	case err != nil:
		return err
	}
	defer func() { _ = h.Close() }()
	names, err := h.Readdirnames(-1)
	if err != nil {
		return pathError("read", dir, err)
	}
	slices.Sort(names)
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(int(h.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			return pathError("stat", path.Join(dir, name), err)
		}
		at := path.Join(dir, name)
		out[at] = fmt.Sprintf("%d %d.%d", st.Ino, st.Ctim.Sec, st.Ctim.Nsec)
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if err := r.stamps(at, out); err != nil {
				return err
			}
		}
	}
	return nil
}

// SizeAndTime returns the size in bytes and the modification time of the file at name, links followed.
func (r *Root) SizeAndTime(name string) (int64, time.Time, error) {
	h, err := r.open(name, unix.O_PATH)
	if err != nil {
		return 0, time.Time{}, err
	}
	defer func() { _ = h.Close() }()
	st, err := h.Stat()
	if err != nil {
		return 0, time.Time{}, pathError("stat", name, err)
	}
	return st.Size(), st.ModTime(), nil
}
