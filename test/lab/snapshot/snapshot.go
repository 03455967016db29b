// SPDX-License-Identifier: Apache-2.0

// Package snapshot takes down everything that can be told about a directory tree without changing it, and says in
// words how two such pictures differ.
package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Entry is one path of a tree, itself and not what it may link to.
type Entry struct {
	// Mode has the type and the permissions, as stat(2) gives them.
	Mode     uint32
	UID, GID uint32
	// Size in bytes, Sum the SHA-256 in hex; both for regular files only.
	Size int64
	Sum  string
	// Target is where a symbolic link points, as it is written.
	Target string
	// Rdev is the number of a device.
	Rdev uint64
	// Xattrs are all extended attributes by name: labels, ACLs and capabilities with them.
	Xattrs map[string]string
	Nlink  uint64
	Inode  uint64
	// Flags are the inode's flags such as chattr's, of files and directories on file systems that have them.
	Flags        int
	Mtime, Ctime time.Time
}

// Tree holds entries by path, slash-separated and relative to the root, which is ".".
type Tree map[string]Entry

// Depth says how much of two entries is compared.
type Depth int

const (
	// Content is what a configuration decides: type, mode, owner, bytes, extended attributes, flags and link targets.
	Content Depth = iota
	// Times adds the modification times, of directories too, and the numbers of hard links: a tree that was changed
	// and brought back is the same to this depth only where nobody could tell.
	Times
	// Untouched adds inode numbers and change times: nothing was written at all, not even the same again.
	Untouched
)

// Take reads the tree below root. Paths in skip, relative to root, are left out with all below them.
func Take(root string, skip ...string) (Tree, error) {
	tree := Tree{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if slices.Contains(skip, name) {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		tree[name], err = take(path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("taking a snapshot of %s: %w", root, err)
	}
	return tree, nil
}

func take(path string) (Entry, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Entry{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	e := Entry{
		Mode: st.Mode, UID: st.Uid, GID: st.Gid, Inode: st.Ino,
		Nlink: uint64(st.Nlink), //nolint:unconvert // it has another size on other architectures
		Mtime: time.Unix(st.Mtim.Unix()).UTC(), Ctime: time.Unix(st.Ctim.Unix()).UTC(),
	}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Size = st.Size
		e.Sum, e.Flags, err = readFile(path)
	case unix.S_IFDIR:
		e.Flags, err = readFlags(path)
	case unix.S_IFLNK:
		e.Target, err = os.Readlink(path)
	case unix.S_IFCHR, unix.S_IFBLK:
		e.Rdev = st.Rdev
	}
	if err != nil {
		return Entry{}, err
	}
	e.Xattrs, err = xattrs(path)
	return e, err
}

// readFile and readFlags leave the access time alone where the kernel lets them.
func readFile(path string) (sum string, flags int, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOATIME|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.EPERM) {
		f, err = os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	}
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", 0, err
	}
	flags, err = inodeFlags(f)
	return hex.EncodeToString(hash.Sum(nil)), flags, err
}

func readFlags(path string) (int, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return inodeFlags(f)
}

// settable are the flags of linux/fs.h that people set with chattr: compressed, sync, immutable, append-only, no dump,
// no access time, synchronous directory, no copy-on-write. The others tell how a file system keeps the file at the
// moment.
const settable = 0x04 | 0x08 | 0x10 | 0x20 | 0x40 | 0x80 | 0x10000 | 0x800000

func inodeFlags(f *os.File) (int, error) {
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	switch {
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return 0, nil
	case err != nil:
		return 0, &fs.PathError{Op: "reading flags of", Path: f.Name(), Err: err}
	}
	return flags & settable, nil
}

func xattrs(path string) (map[string]string, error) {
	size, err := unix.Llistxattr(path, nil)
	if errors.Is(err, unix.EOPNOTSUPP) || err == nil && size == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "llistxattr", Path: path, Err: err}
	}
	list := make([]byte, size)
	if size, err = unix.Llistxattr(path, list); err != nil {
		return nil, &fs.PathError{Op: "llistxattr", Path: path, Err: err}
	}
	if size == 0 { // an overlay hides its own only in the second answer
		return nil, nil
	}
	out := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimRight(string(list[:size]), "\x00"), "\x00") {
		value := make([]byte, 64<<10) // the kernel's own limit, XATTR_SIZE_MAX
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return nil, &fs.PathError{Op: "lgetxattr " + name, Path: path, Err: err}
		}
		out[name] = string(value[:n])
	}
	return out, nil
}

// Without returns the tree without some paths and all that is below them, relative to the root.
func (t Tree) Without(paths ...string) Tree {
	out := maps.Clone(t)
	maps.DeleteFunc(out, func(path string, _ Entry) bool {
		return slices.ContainsFunc(paths, func(gone string) bool {
			return path == gone || strings.HasPrefix(path, gone+"/")
		})
	})
	return out
}

// Diff says how after differs from before, a line for each difference, sorted by path: "etc/a: mode 0644, was 0600".
// It is empty when they are the same.
func Diff(before, after Tree, depth Depth) []string {
	paths := slices.AppendSeq(slices.Collect(maps.Keys(before)), maps.Keys(after))
	slices.Sort(paths)
	var out []string
	for _, path := range slices.Compact(paths) {
		old, was := before[path]
		now, is := after[path]
		switch {
		case !was:
			out = append(out, path+": new, "+now.String())
		case !is:
			out = append(out, path+": gone, was "+old.String())
		default:
			for _, line := range compare(old, now, depth) {
				out = append(out, path+": "+line)
			}
		}
	}
	return out
}

func compare(old, now Entry, depth Depth) (out []string) {
	note := func(what string, old, now any) {
		if old != now {
			out = append(out, fmt.Sprintf("%s %v, was %v", what, now, old))
		}
	}
	note("type", old.kind(), now.kind())
	note("mode", old.permissions(), now.permissions())
	note("owner", old.owner(), now.owner())
	note("size", old.Size, now.Size)
	note("contents", short(old.Sum), short(now.Sum))
	note("target", old.Target, now.Target)
	note("device", old.Rdev, now.Rdev)
	note("flags", old.Flags, now.Flags)
	note("xattrs", fmt.Sprintf("%q", old.Xattrs), fmt.Sprintf("%q", now.Xattrs))
	if depth >= Times {
		note("mtime", stamp(old.Mtime), stamp(now.Mtime))
		note("links", old.Nlink, now.Nlink)
	}
	if depth >= Untouched {
		note("inode", old.Inode, now.Inode)
		note("ctime", stamp(old.Ctime), stamp(now.Ctime))
	}
	return out
}

// String describes an entry in a few words, for a message.
func (e Entry) String() string {
	s := fmt.Sprintf("%s %s %s", e.kind(), e.permissions(), e.owner())
	switch {
	case e.Target != "":
		s += " -> " + e.Target
	case e.Sum != "":
		s += fmt.Sprintf(" %d bytes %s", e.Size, short(e.Sum))
	}
	return s
}

func (e Entry) kind() string {
	switch e.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "link"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFCHR:
		return "character device"
	default:
		return "block device"
	}
}

func (e Entry) permissions() string { return fmt.Sprintf("%#04o", e.Mode&^unix.S_IFMT) }

func (e Entry) owner() string { return fmt.Sprintf("%d:%d", e.UID, e.GID) }

func short(sum string) string { return sum[:min(len(sum), 12)] }

func stamp(t time.Time) string { return t.Format("15:04:05.000000000") }
