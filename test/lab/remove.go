// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// RemoveTree removes a directory and its contents, as os.RemoveAll does, but never what is mounted there. If a mount is
// at the directory or below, RemoveTree names the mount and refuses before it removes anything. A bind mount counts
// too, also of the same file system. Directories may be immutable, as those of deployments are.
//
// Everything that a lab removes is removed by RemoveTree.
func RemoveTree(dir string) error {
	dir, err := realPath(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing a tree: %w", err)
	}
	mounts, err := mountsBelow(dir)
	if err != nil {
		return fmt.Errorf("removing %s: %w", dir, err)
	}
	if len(mounts) > 0 {
		return fmt.Errorf("removing %s: %s is mounted; unmount it first", dir, strings.Join(mounts, ", "))
	}
	parent, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return fmt.Errorf("removing %s: %w", dir, err)
	}
	defer parent.Close()
	return removeAt(parent, filepath.Base(dir))
}

// realPath resolves the links on the way to a directory. It does not resolve a link in the directory's own place.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	return filepath.Join(parent, filepath.Base(path)), nil
}

// mountsBelow returns the mounts in this process's view at a real path or below. The latest or deepest mount comes
// first, so that all can be unmounted in this order.
func mountsBelow(dir string) ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("looking for mounts: %w", err)
	}
	return parseMounts(string(text), dir), nil
}

// parseMounts returns the result of mountsBelow for a mountinfo, which proc(5) describes. The fifth field is the mount
// point. Bytes that would end the field are in octal.
func parseMounts(mountinfo, dir string) []string {
	octal := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var mounts []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		at := octal.Replace(fields[4])
		if at == dir || strings.HasPrefix(at, strings.TrimSuffix(dir, "/")+"/") {
			mounts = append(mounts, at)
		}
	}
	slices.Reverse(mounts)
	return mounts
}

// removeAt removes a name in an open directory. It opens a directory without crossing into a mount, not even a mount
// that has just appeared. It removes the entries by that handle.
func removeAt(parent *os.File, name string) error {
	path := filepath.Join(parent.Name(), name)
	err := unix.Unlinkat(int(parent.Fd()), name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	// For a directory the error is EISDIR, and EPERM if the directory is immutable.
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return &fs.PathError{Op: "removing", Path: path, Err: err}
	}
	fd, openErr := unix.Openat2(int(parent.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
	switch {
	case errors.Is(openErr, unix.EXDEV):
		return fmt.Errorf("removing %s: something is mounted there; unmount it first", path)
	case errors.Is(openErr, unix.ENOTDIR):
		return &fs.PathError{Op: "removing", Path: path, Err: err}
	case openErr != nil:
		return &fs.PathError{Op: "opening", Path: path, Err: openErr}
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	if err := removeEntries(dir); err != nil {
		return err
	}
	if err := unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "removing", Path: path, Err: err}
	}
	return nil
}

// removeEntries empties an open directory.
func removeEntries(dir *os.File) error {
	if err := setFlags(dir, func(flags int) int { return flags &^ immutable }); err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("removing: %w", err)
	}
	for _, name := range names {
		if err := removeAt(dir, name); err != nil {
			return err
		}
	}
	return nil
}
