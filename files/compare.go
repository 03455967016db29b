// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Compare returns the aspects in which the host does not match w. An empty list means that the host matches w.
func (r *Root) Compare(w Want) ([]Difference, error) {
	h, found, st, err := r.inspect(w.Path)
	if err != nil {
		return nil, err
	}
	if h != nil {
		defer func() { _ = h.Close() }()
	}
	if w.Exists {
		if found.Type == Directory || r.IsDir(w.Path) {
			return nil, nil
		}
		if found.Type == Absent {
			return w.differ(Missing, string(Directory), string(Absent)), nil
		}
		return w.differ(TypeOf, string(Directory), string(found.Type)), nil
	}
	if w.HardTo != "" {
		return r.compareHard(w, found, st)
	}
	switch {
	case w.Node.Type == Absent && found.Type == Absent:
		return nil, nil
	case found.Type == Absent:
		return w.differ(Missing, string(w.Node.Type), string(Absent)), nil
	case found.Type != w.Node.Type:
		return w.differ(TypeOf, string(w.Node.Type), string(found.Type)), nil
	}
	var out []Difference
	switch found.Type {
	case Symlink:
		if found.Target != w.Node.Target {
			out = append(out, w.differ(Target, w.Node.Target, found.Target)...)
		}
	case Regular:
		if w.Node.AnyData {
			break
		}
		same, sum, err := sameBytes(h, w.Path, st.Size, w.Node.Data)
		if err != nil {
			return nil, err
		}
		if !same {
			out = append(out, w.differ(Contents, Sum(w.Node.Data), sum)...)
		}
	}
	if found.Type != Symlink && found.Mode != w.Node.Mode {
		out = append(out, w.differ(Mode, modeText(w.Node.Mode), modeText(found.Mode))...)
	}
	if Owners() && (found.UID != w.Node.UID || found.GID != w.Node.GID) {
		out = append(out, w.differ(Owner, ownerText(w.Node), ownerText(found))...)
	}
	if w.Node.Label != "" && !sameLabel(found.Label, w.Node.Label) {
		out = append(out, w.differ(Label, w.Node.Label, found.Label)...)
	}
	return out, nil
}

// Has reports whether a regular file is at name itself, with the bytes that want has from here on. Has fails where want
// does. A file that the disk can't read is another one.
func (r *Root) Has(name string, want io.Reader) (bool, error) {
	h, found, _, err := r.inspect(name)
	if h != nil {
		defer func() { _ = h.Close() }()
	}
	if err != nil || found.Type != Regular {
		return false, err
	}
	f, err := reopen(h, name, unix.O_RDONLY)
	if err != nil {
		return false, notLost(err)
	}
	defer func() { _ = f.Close() }()
	same, unread, err := reads(f, want, pieceSize)
	if unread != nil {
		err = notLost(pathError("read", name, unread))
	}
	return same, err
}

func (r *Root) compareHard(w Want, found Node, st unix.Stat_t) ([]Difference, error) {
	if found.Type == Absent {
		return w.differ(Missing, "hard link to "+w.HardTo, string(Absent)), nil
	}
	h, target, tst, err := r.inspect(w.HardTo)
	if err != nil {
		return nil, err
	}
	if h != nil {
		_ = h.Close()
	}
	if target.Type == Regular && tst.Dev == st.Dev && tst.Ino == st.Ino {
		return nil, nil
	}
	return w.differ(Target, "hard link to "+w.HardTo, string(found.Type)), nil
}

func (w Want) differ(what What, expected, found string) []Difference {
	if w.Aspect != "" {
		what = w.Aspect
	}
	return []Difference{{Want: w, What: what, Expected: expected, Found: found}}
}

// sameBytes compares the file of the handle h with data, and returns the digest of the file where they differ. It does
// not hold a file of another size in memory. Where the disk can't read the file, or its owner holds it with a lease,
// the text reports that instead of a digest: the file counts as different.
func sameBytes(h *os.File, name string, size int64, data []byte) (bool, string, error) {
	same, sum, err := sameBytesOf(h, name, size, data)
	if lost, is := lostBy(err); is {
		return false, "unreadable: " + lost.Error(), nil
	}
	return same, sum, err
}

// lostBy reports whether the disk can't read a file, or its owner holds it with a lease, and by which error.
func lostBy(err error) (syscall.Errno, bool) {
	for _, lost := range []syscall.Errno{unix.EIO, unix.EUCLEAN, unix.EBADMSG, unix.ENODATA, unix.EAGAIN} {
		if errors.Is(err, lost) {
			return lost, true
		}
	}
	return 0, false
}

// notLost returns an error that is not one of lostBy, nil for the others.
func notLost(err error) error {
	if _, is := lostBy(err); is {
		return nil
	}
	return err
}

func sameBytesOf(h *os.File, name string, size int64, data []byte) (bool, string, error) {
	f, err := reopen(h, name, unix.O_RDONLY)
	if err != nil {
		return false, "", err
	}
	defer func() { _ = f.Close() }()
	if size == int64(len(data)) {
		same, unread, _ := reads(f, bytes.NewReader(data), min(len(data)+1, pieceSize))
		if unread != nil {
			return false, "", pathError("read", name, unread)
		}
		if same {
			return true, "", nil
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return false, "", pathError("read", name, err)
		}
	}
	if size > int64(len(data))+MostExposed {
		return false, fmt.Sprintf("%d bytes", size), nil
	}
	d := sha256.New()
	if _, err := io.CopyN(d, f, size); err != nil && !errors.Is(err, io.EOF) {
		return false, "", pathError("read", name, err)
	}
	return false, digest(d.Sum(nil)), nil
}

// pieceSize is how many bytes of a file are compared at a time, because the file may be a large program.
const pieceSize = 64 << 10

// reads reports whether r gives what want gives, and then ends. size is that of the pieces in which both are read.
// unread is an error of r, and err one of want.
func reads(r, want io.Reader, size int) (same bool, unread, err error) {
	piece, wanted := make([]byte, size), make([]byte, size)
	for {
		n, err := fill(want, wanted)
		if err != nil {
			return false, nil, err
		}
		// One more byte than is wanted shows a file that does not end with want.
		m, unread := fill(r, piece[:min(n+1, size)])
		if unread != nil {
			return false, unread, nil
		}
		if !bytes.Equal(piece[:m], wanted[:n]) {
			return false, nil, nil
		}
		if n < size {
			return true, nil, nil
		}
	}
}

// fill reads as many bytes as piece has, and returns how many r gave: fewer only where r has ended.
func fill(r io.Reader, piece []byte) (int, error) {
	n, err := io.ReadFull(r, piece)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return n, nil
	}
	return n, err
}

// Sum returns the digest of contents in the form that verify shows.
func Sum(data []byte) string {
	s := sha256.Sum256(data)
	return digest(s[:])
}

func digest(sum []byte) string { return "sha256:" + hex.EncodeToString(sum) }

// sameLabel reports whether two contexts are equal except for the SELinux user, as matchpathcon -V and restorecon do.
// The user tells who made a file, and not what the file is.
func sameLabel(a, b string) bool {
	_, a, _ = strings.Cut(a, ":")
	_, b, _ = strings.Cut(b, ":")
	return a == b
}

func modeText(mode uint32) string { return fmt.Sprintf("%04o", mode) }

func ownerText(n Node) string { return strconv.Itoa(n.UID) + ":" + strconv.Itoa(n.GID) }

// Owners reports whether this process can give files to other users. An ordinary user, who tries a configuration on a
// tree of their own, can't. All files there belong to that user, and owners are neither set nor compared.
func Owners() bool { return os.Geteuid() == 0 }
