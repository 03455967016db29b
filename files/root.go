// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// Root is a directory that looks like a host. Every path given to its methods is absolute and means a path of that
// host; the kernel resolves it below the directory (openat2 with RESOLVE_IN_ROOT), so that nothing outside is reached
// whatever the links say and whoever changes them meanwhile.
type Root struct {
	dir  *os.File
	path string
}

// Open returns the host at dir, "/" for the one we run on.
func Open(dir string) (*Root, error) {
	f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening root: %w", err)
	}
	return &Root{dir: f, path: dir}, nil
}

// OpenWritable returns the tree at dir through a private, writable mount of it, for a tree that the host mounts
// read-only (/sysroot). The host's own mounts stay as they are, and the private one is gone with Close. Mounts below
// dir are not part of it. It needs Linux 5.12 and CAP_SYS_ADMIN.
func OpenWritable(dir string) (*Root, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cloning the mount of %s: %w", dir, err)
	}
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("making a writable mount of %s: %w", dir, err)
	}
	return &Root{dir: os.NewFile(uintptr(fd), dir), path: dir}, nil
}

// Close releases the root.
func (r *Root) Close() error { return r.dir.Close() }

// Path is the directory that the root was opened with, for messages and for tools that take a path of ours.
func (r *Root) Path() string { return r.path }

// Resolve returns name with every link in its parent directories followed, as a path of the host. The last component
// is not followed; components that do not exist stay as they are. It says where a path leads; access goes through the
// other methods, which resolve again on their own.
func (r *Root) Resolve(name string) (string, error) {
	name = path.Clean("/" + name)
	if name == "/" {
		return name, nil
	}
	dir, err := securejoin.SecureJoin(r.path, path.Dir(name))
	if err != nil {
		return "", fmt.Errorf("resolving %s: %w", name, err)
	}
	rel := strings.TrimPrefix(dir, strings.TrimSuffix(r.path, "/"))
	return path.Join("/", rel, path.Base(name)), nil
}

// openDir returns a handle of the directory name, links followed.
func (r *Root) openDir(name string) (*os.File, error) {
	f, err := pathrs.OpenatInRoot(r.dir, strings.TrimPrefix(path.Clean("/"+name), "/"))
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return f, nil
}

// openParent returns a handle of the directory that holds name, and the last component.
func (r *Root) openParent(name string) (*os.File, string, error) {
	name = path.Clean("/" + name)
	if name == "/" {
		return nil, "", pathError("open", name, unix.EBUSY)
	}
	dir, err := r.openDir(path.Dir(name))
	return dir, path.Base(name), err
}

// ReadFile returns the contents of the regular file name, links followed.
func (r *Root) ReadFile(name string) ([]byte, error) {
	h, err := r.openDir(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.Close() }()
	st, err := h.Stat()
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	if !st.Mode().IsRegular() {
		return nil, pathError("read", name, errors.New("not a regular file"))
	}
	f, err := pathrs.Reopen(h, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, 0, st.Size()+1)
	return readAll(f, b)
}

// readAll is io.ReadAll into a buffer of the expected size.
func readAll(f io.Reader, b []byte) ([]byte, error) {
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := f.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
}

// ReadDir returns the sorted names in the directory name, links followed.
func (r *Root) ReadDir(name string) ([]string, error) {
	h, err := r.openDir(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.Close() }()
	f, err := pathrs.Reopen(h, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, pathError("read", name, err)
	}
	slices.Sort(names)
	return names, nil
}

// IsDir says whether name is a directory, links followed.
func (r *Root) IsDir(name string) bool {
	h, err := r.openDir(name)
	if err != nil {
		return false
	}
	defer func() { _ = h.Close() }()
	st, err := h.Stat()
	return err == nil && st.IsDir()
}

// Inspect returns what stands at name, the last link not followed, without contents. A path that does not exist, or
// that lies below something that is not a directory, is Absent.
func (r *Root) Inspect(name string) (Node, error) {
	n, _, err := r.inspect(name)
	return n, err
}

func (r *Root) inspect(name string) (Node, unix.Stat_t, error) {
	var st unix.Stat_t
	dir, base, err := r.openParent(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return Node{Type: Absent}, st, nil
	}
	if err != nil {
		return Node{}, st, err
	}
	defer func() { _ = dir.Close() }()
	return inspectAt(dir, base, name)
}

func inspectAt(dir *os.File, base, name string) (Node, unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return Node{Type: Absent}, st, nil
	}
	if err != nil {
		return Node{}, st, pathError("stat", name, err)
	}
	n := Node{Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid)}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.Type = Regular
	case unix.S_IFDIR:
		n.Type = Directory
	case unix.S_IFLNK:
		n.Type, n.Mode = Symlink, 0
		if n.Target, err = readlinkAt(dir, base); err != nil {
			return Node{}, st, pathError("readlink", name, err)
		}
	default:
		n.Type = Other
	}
	n.Label, err = labelAt(dir, base)
	if err != nil {
		return Node{}, st, pathError("reading label of", name, err)
	}
	return n, st, nil
}

func readlinkAt(dir *os.File, base string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), base, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// Contents returns the bytes of the regular file that stands at name itself: a link there is not followed.
func (r *Root) Contents(name string) ([]byte, error) {
	dir, base, err := r.openParent(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	fd, err := unix.Openat(int(dir.Fd()), base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	if !st.Mode().IsRegular() {
		return nil, pathError("read", name, errors.New("not a regular file"))
	}
	return readAll(f, make([]byte, 0, st.Size()+1))
}

// Space is what is free on a file system for an ordinary writer.
type Space struct {
	Device uint64 // the file system's device number
	Bytes  uint64
	Inodes uint64 // a large number where the file system does not count them
}

// Space returns what is free on the file system that holds the directory name.
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
	s := Space{Device: st.Dev, Bytes: sf.Bavail * uint64(sf.Bsize), Inodes: sf.Ffree}
	if sf.Files == 0 {
		s.Inodes = 1 << 62 // btrfs and vfat make them as needed
	}
	return s, nil
}

// Ancestor returns the deepest directory on the way to name that exists, links followed, "/" at the least. Something
// on the way that exists and is not a directory is an error that names it.
func (r *Root) Ancestor(name string) (string, error) {
	for dir := path.Dir(path.Clean("/" + name)); ; dir = path.Dir(dir) {
		h, err := r.openDir(dir)
		switch {
		case err == nil:
			st, err := h.Stat()
			_ = h.Close()
			if err != nil {
				return "", pathError("stat", dir, err)
			}
			if !st.IsDir() {
				return "", pathError("using as a directory", dir, unix.ENOTDIR)
			}
			return dir, nil
		case errors.Is(err, unix.ENOTDIR):
			continue // a file further up; the loop gets there and names it
		case !errors.Is(err, fs.ErrNotExist):
			return "", err
		}
		if n, err := r.Inspect(dir); err != nil {
			return "", err
		} else if n.Type == Symlink {
			return "", pathError("using as a directory", dir, fmt.Errorf("link to %s, which does not exist", n.Target))
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
