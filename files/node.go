// SPDX-License-Identifier: Apache-2.0

// Package files is the only door to a host's file system.
//
// Everything goes through a Root: no path and no link below it, absolute or not, leads out of it, and links resolve as
// they would on the host itself. On top of that stand the pieces of a transaction: a Node (what is, or should be, at a
// path), staging beside the target, replacement by rename, and comparison.
package files

import (
	"fmt"
	"strings"
)

// Type is what kind of thing is at a path.
type Type string

// The types that the product manages; Other is everything else (sockets, devices, FIFOs) and is only ever found.
const (
	Absent    Type = "absent"
	Regular   Type = "file"
	Directory Type = "directory"
	Symlink   Type = "link"
	Other     Type = "other"
)

// Node is what is, or should be, at one path.
type Node struct {
	Type   Type   `json:"type"`
	Mode   uint32 `json:"mode"` // permission bits and setuid, setgid, sticky; without meaning for a Symlink
	UID    int    `json:"uid"`
	GID    int    `json:"gid"`
	Label  string `json:"label,omitempty"`  // SELinux context; "" means not managed, as on a host without a policy
	Target string `json:"target,omitempty"` // of a Symlink
	Data   []byte `json:"-"`                // of a Regular file that is wanted; nil in a Node that was found
	// AnyData says of a Regular file that is wanted that the bytes of one that is there stay.
	AnyData bool `json:"-"`
}

// What names the aspects in which a found Node can differ from the wanted one.
type What string

// The aspects, named as in the output of verify.
const (
	Contents What = "contents"
	Target   What = "target"
	Mode     What = "mode"
	Owner    What = "owner"
	TypeOf   What = "type"
	Label    What = "label"
	Missing  What = "missing"
	Enabled  What = "enabled"
	Masked   What = "masked"
)

// Want is a Node that a configuration wants at a path, with what it is to people.
type Want struct {
	Path string // absolute, as the configuration or the convention spells it
	Node Node

	// Kind and Name say whose part this path is, in the words of plan and verify: kind file, directory or link (Name
	// is empty), unit (crio.service), dropin (crio.service/10-x.conf), sshkeys, password or user (the user's name).
	Kind string
	Name string
	// Aspect, where set, is what verify says when this path differs, whatever the difference: Enabled for an
	// enablement link, Masked for a mask.
	Aspect What
	// IfEmpty lets a regular file go only as long as it has no bytes.
	IfEmpty bool
	// Exists asks only that a directory is there: a parent that is made as needed and never changed.
	Exists bool
	// HardTo, where set, makes the path another name of that regular file; Node is ignored.
	HardTo string
}

// Field is the list of a configuration that w comes from, as messages name it; "" for the agent's own paths.
func (w Want) Field() string {
	switch w.Kind {
	case "file":
		return "storage.files"
	case "directory":
		return "storage.directories"
	case "link":
		return "storage.links"
	case "unit", "dropin":
		return "systemd.units"
	case "sshkeys", "password", "user":
		return "passwd.users"
	}
	return ""
}

// Subject names w in a message: its field, where it has one, and its path.
func (w Want) Subject() string { return strings.TrimSpace(w.Field() + " " + w.Path) }

// Difference is one aspect of one Want that the host does not match. Expected and Found are digests, modes, ids or
// link targets, never contents.
type Difference struct {
	Want     Want
	What     What
	Expected string
	Found    string
}

func (d Difference) String() string {
	return fmt.Sprintf("%s: %s is %s, should be %s", d.Want.Path, d.What, d.Found, d.Expected)
}
