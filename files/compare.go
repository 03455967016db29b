// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// Compare returns in which aspects the host does not match w; none means that nothing has to be done for it.
func (r *Root) Compare(w Want) ([]Difference, error) {
	found, st, err := r.inspect(w.Path)
	if err != nil {
		return nil, err
	}
	if w.Exists {
		if r.IsDir(w.Path) {
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
		same, sum, err := r.sameBytes(w.Path, st.Size, w.Node.Data)
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
	if found.UID != w.Node.UID || found.GID != w.Node.GID {
		out = append(out, w.differ(Owner, ownerText(w.Node), ownerText(found))...)
	}
	if w.Node.Label != "" && found.Label != w.Node.Label {
		out = append(out, w.differ(Label, w.Node.Label, found.Label)...)
	}
	return out, nil
}

func (r *Root) compareHard(w Want, found Node, st unix.Stat_t) ([]Difference, error) {
	if found.Type == Absent {
		return w.differ(Missing, "hard link to "+w.HardTo, string(Absent)), nil
	}
	target, tst, err := r.inspect(w.HardTo)
	if err != nil {
		return nil, err
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

// sameBytes compares the file at name with data; the digest of what was found is made only where they differ.
func (r *Root) sameBytes(name string, size int64, data []byte) (bool, string, error) {
	b, err := r.Contents(name)
	if err != nil {
		return false, "", err
	}
	if size == int64(len(data)) && bytes.Equal(b, data) {
		return true, "", nil
	}
	return false, Sum(b), nil
}

// Sum is the digest of contents as verify shows it.
func Sum(data []byte) string {
	s := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(s[:])
}

func modeText(mode uint32) string { return fmt.Sprintf("%04o", mode) }

func ownerText(n Node) string { return strconv.Itoa(n.UID) + ":" + strconv.Itoa(n.GID) }
