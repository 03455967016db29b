// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
)

// Installer installs the agent's own files on a host.
type Installer struct {
	Root   *files.Root
	Labels *files.Labels
}

// NewInstaller returns the installer of a host.
func NewInstaller(root *files.Root) (Installer, error) {
	labels, err := root.Labels()
	if err != nil {
		return Installer{}, fmt.Errorf("reading SELinux policy: %w", err)
	}
	return Installer{Root: root, Labels: labels}, nil
}

// Install puts this program and the units that recover and prove on the host, where they are missing. The transaction
// that follows makes them durable before it decides anything.
func (i Installer) Install() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	if self != BinaryPath {
		if err := i.copyProgram(self); err != nil {
			return err
		}
	}
	return i.Units()
}

// Units puts the units that recover and prove on the host, with their drop-ins and links.
func (i Installer) Units() error {
	for _, w := range Wants() {
		if err := i.put(w); err != nil {
			return err
		}
	}
	return nil
}

// Wants returns what Units puts, as wants of this host. A want whose place can't be resolved has no label; each use of
// the want reports that place.
func (i Installer) Wants() []files.Want {
	wants := Wants()
	for n := range wants {
		if at, err := i.Root.Resolve(wants[n].Path); err == nil {
			wants[n].Node.Label = i.Labels.Of(at, wants[n].Node.Type)
		}
	}
	return wants
}

// put makes one of the agent's own paths as wanted, by a rename. A path that does not differ is left alone.
func (i Installer) put(w files.Want) error {
	at, err := i.Root.Resolve(w.Path)
	if err != nil {
		return err
	}
	w.Node.Label = i.Labels.Of(at, w.Node.Type)
	if d, err := i.Root.Compare(w); err != nil || len(d) == 0 {
		return err
	}
	dir, name := path.Split(w.Path)
	if err := i.Root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp := files.StagePrefix + name
	if err := i.Root.Remove(dir + tmp); err != nil {
		return err
	}
	if err := i.Root.Stage(dir, tmp, w.Node); err != nil {
		return err
	}
	// A unit runs the program at the next boot. The file must not be empty then, even if no other sync comes before that
	// boot.
	if w.Node.Type == files.Regular && w.Path == BinaryPath {
		if err := i.Root.Fsync(dir + tmp); err != nil {
			return err
		}
	}
	return i.Root.Replace(dir, tmp, w.Path)
}

// copyProgram copies the program at self to the host. A copy with the same size and time counts as the same program: to
// compare the bytes, every update would have to read 25 megabytes.
func (i Installer) copyProgram(self string) error {
	st, err := os.Stat(self)
	if err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	size, modified, err := i.Root.SizeAndTime(BinaryPath)
	if err == nil && size == st.Size() && modified.Equal(st.ModTime().Truncate(time.Second)) {
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := i.Program(self); err != nil {
		return err
	}
	return i.Root.Touch(BinaryPath, st.ModTime().Truncate(time.Second))
}

// Program replaces the host's copy of the program with the one at self, unless the bytes are the same. Units that run
// the old program keep it until they end. Images give every program the same time, so only the bytes distinguish two
// versions.
func (i Installer) Program(self string) (err error) {
	src, err := os.Open(self)
	if err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	defer func() { _ = src.Close() }()
	st, err := src.Stat()
	if err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	// The file is mapped and not read, because reading would make the head larger by the program's size.
	data, err := unix.Mmap(int(src.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(data)) }()
	return i.put(files.Want{Path: BinaryPath, Node: files.Node{Type: files.Regular, Mode: 0o755, Data: data}})
}
