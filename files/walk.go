// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ExposedError is the error of a path that is not reached because the way there depends on an entry that other users
// than root control.
//
// A directory is exposed where another user than root owns it, or where its group or others may write to it. All
// directories below it are exposed too. A user who can write there can exchange an entry for a link at any moment, so
// no link there is followed. Callers treat such an entry like a file in place of a directory (errors.Is ENOTDIR).
type ExposedError struct {
	Dir string // the outermost exposed directory on the way
	At  string // the entry that ends the way
	Err error  // the kernel's error, nil for a link
}

func (e *ExposedError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s, below %s, which users other than root can write to: %v", e.At, e.Dir, e.Err)
	}
	return fmt.Sprintf("%s is a link, which is not followed: users other than root can write to %s", e.At, e.Dir)
}

// Is reports whether target is ENOTDIR.
func (e *ExposedError) Is(target error) bool { return target == unix.ENOTDIR }

// Unwrap returns the kernel's error.
func (e *ExposedError) Unwrap() error { return e.Err }

// MostExposed is the largest size in bytes of a file that is read or copied where other users than root can write to
// the file. A user can make a file of terabytes, or add to a file without end.
const MostExposed = 64 << 20

// maxLinks is the kernel's own limit for one path (path_resolution(7)).
const maxLinks = 40

// walk resolves a path below a root, one component at a time, as the kernel does with RESOLVE_IN_ROOT, except for links
// in exposed directories. It keeps a handle of each directory that it is in, so ".." can't lead elsewhere.
type walk struct {
	root  *Root
	in    []walked // the root first
	rest  []string // components still to come
	links int
}

// walked is a node that a walk has reached.
type walked struct {
	h       *os.File
	path    string // of the host, without links
	dir     bool
	exposed string // the outermost exposed directory, path itself included; "": not exposed
}

// walk follows name to its end, the last link too. With an error it returns the walk that stopped before the component
// that caused the error. The caller closes the walk.
func (r *Root) walk(name string) (*walk, error) {
	w := &walk{root: r, rest: strings.Split(name, "/")}
	w.in = []walked{{h: r.dir, path: "/", dir: true}}
	if len(name) >= unix.PathMax {
		return w, unix.ENAMETOOLONG // every program that opens the file by this name gets the same error
	}
	for len(w.rest) > 0 {
		if err := w.step(); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (w *walk) top() walked { return w.in[len(w.in)-1] }

// pop leaves the innermost directory; the root is never left.
func (w *walk) pop() {
	if last := len(w.in) - 1; last > 0 {
		_ = w.in[last].h.Close()
		w.in = w.in[:last]
	}
}

func (w *walk) close() {
	for len(w.in) > 1 {
		w.pop()
	}
}

// take returns a handle of the node that the walk has reached. The handle stays open after the walk is closed.
func (w *walk) take() (*os.File, error) {
	last := len(w.in) - 1
	if last == 0 {
		return reopen(w.root.dir, "/", unix.O_PATH)
	}
	h := w.in[last].h
	w.in = w.in[:last]
	return h, nil
}

func (w *walk) step() error {
	name, top := w.rest[0], w.top()
	switch {
	case name == "" || name == ".":
	case !top.dir:
		return unix.ENOTDIR
	case name == "..":
		w.pop()
	default:
		return w.enter(top, name)
	}
	w.rest = w.rest[1:]
	return nil
}

func (w *walk) enter(top walked, name string) error {
	at := path.Join(top.path, name)
	fd, err := unix.Openat(int(top.h.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if top.exposed != "" && obstructs(err) {
			return &ExposedError{Dir: top.exposed, At: at, Err: err}
		}
		return err
	}
	h := os.NewFile(uintptr(fd), at)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = h.Close()
		if top.exposed != "" && obstructs(err) {
			return &ExposedError{Dir: top.exposed, At: at, Err: err} // a user's mount: root can hold, but not enter it
		}
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, err := readlink(h)
		_ = h.Close()
		if err != nil {
			return err
		}
		return w.follow(top, at, target)
	}
	w.rest = w.rest[1:]
	next := walked{h: h, path: at, exposed: top.exposed, dir: st.Mode&unix.S_IFMT == unix.S_IFDIR}
	if next.exposed == "" && next.dir && w.root.exposed(&st) {
		next.exposed = at
	}
	w.in = append(w.in, next)
	return nil
}

// follow goes on with the target of the link at.
func (w *walk) follow(top walked, at, target string) error {
	if top.exposed != "" {
		return &ExposedError{Dir: top.exposed, At: at}
	}
	if w.links++; w.links > maxLinks {
		return unix.ELOOP
	}
	if target == "" {
		return unix.ENOENT
	}
	if path.IsAbs(target) {
		w.close()
	}
	w.rest = append(strings.Split(target, "/"), w.rest[1:]...)
	return nil
}

// obstructs reports whether the users of an exposed directory can cause an error of the kernel. They can do so with a
// mount of their own (FUSE), or on a server that does not know root (NFS).
func obstructs(err error) bool {
	return slices.ContainsFunc([]error{unix.EACCES, unix.EPERM, unix.ENOTCONN, unix.ESTALE},
		func(target error) bool { return errors.Is(err, target) })
}

// inTheWay returns the error of a call on the entry name. That is an ExposedError where users who can write there may
// be the cause.
func (r *Root) inTheWay(name string, err error) error {
	if err == nil || !obstructs(err) {
		return err
	}
	if dir := r.Exposed(name); dir != "" {
		return &ExposedError{Dir: dir, At: name, Err: err}
	}
	return err
}

// exposed reports whether other users than root can write to a file or directory. Two users don't count, because they
// control everything in the tree anyway: the owner of the tree, with a group of their own (umask 002), and the user of
// this process.
func (r *Root) exposed(st *unix.Stat_t) bool {
	switch {
	case st.Mode&0o002 != 0, st.Mode&0o020 != 0 && (r.owner.Uid == 0 || st.Gid != r.owner.Gid):
		return true
	}
	return st.Uid != 0 && st.Uid != r.owner.Uid && int(st.Uid) != os.Geteuid()
}

// Exposed returns a path that other users than root can write to: the outermost such directory on the way to name, or
// the file at name. It returns "" where the path is not exposed. A path that is not exposed stays so until root changes
// that.
func (r *Root) Exposed(name string) string {
	name = path.Clean("/" + name)
	w, err := r.walk(path.Dir(name))
	defer w.close()
	if exposed, ok := errors.AsType[*ExposedError](err); ok {
		return exposed.Dir
	}
	top := w.top()
	if err != nil || top.exposed != "" {
		return top.exposed
	}
	var st unix.Stat_t
	err = unix.Fstatat(int(top.h.Fd()), path.Base(name), &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && typeOf(st.Mode) == Regular && r.exposed(&st) {
		return name
	}
	return ""
}

// Resolve returns name with the links in its parent directories followed, as a path of the host. The last component is
// not followed. Components that do not exist, and links in exposed directories, stay in the path. Resolve is only for
// telling where a path leads; the other methods resolve again on their own.
func (r *Root) Resolve(name string) (string, error) {
	name = path.Clean("/" + name)
	if name == "/" {
		return name, nil
	}
	w, err := r.walk(path.Dir(name))
	defer w.close()
	switch {
	case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return path.Join(append(append([]string{w.top().path}, w.rest...), path.Base(name))...), nil
	}
	return "", pathError("resolving", name, err)
}

// openWalked opens name by a walk: through links, and on kernels and under filters without openat2.
func (r *Root) openWalked(name string, flags int) (*os.File, error) {
	dir, last := name, ""
	if flags&unix.O_NOFOLLOW != 0 && name != "/" {
		dir, last = path.Split(name)
	}
	w, err := r.walk(dir)
	defer w.close()
	if err != nil {
		return nil, err
	}
	if last == "" {
		h, err := w.take()
		if err != nil {
			return nil, err
		}
		defer func() { _ = h.Close() }()
		return reopen(h, name, flags)
	}
	top := w.top()
	fd, err := unix.Openat(int(top.h.Fd()), last, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		if top.exposed != "" && obstructs(err) {
			return nil, &ExposedError{Dir: top.exposed, At: path.Join(top.path, last), Err: err}
		}
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
