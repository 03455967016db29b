// SPDX-License-Identifier: Apache-2.0

// Package files is the only access to a host's file system.
//
// Everything goes through a Root: no path and no link below it, absolute or not, leads out of it, and links resolve as
// they would on the host itself. The package has the parts of a transaction too: a Node (the actual or the wanted state
// of a path), staging beside the target, replacement by rename, and comparison.
package files

import (
	"fmt"
	"strings"
)

// Type is the kind of node at a path.
type Type string

// The types that the product manages. Other is everything else (sockets, devices, FIFOs); it is found, and never
// wanted.
const (
	Absent    Type = "absent"
	Regular   Type = "file"
	Directory Type = "directory"
	Symlink   Type = "link"
	Other     Type = "other"
)

// Node is the actual or the wanted state of one path.
type Node struct {
	Type   Type   `json:"type"`
	Mode   uint32 `json:"mode"` // permission bits and setuid, setgid, sticky; unused for a Symlink
	UID    int    `json:"uid"`
	GID    int    `json:"gid"`
	Label  string `json:"label,omitempty"`  // SELinux context; "" means not managed, as on a host without a policy
	Target string `json:"target,omitempty"` // of a Symlink
	Data   []byte `json:"-"`                // of a wanted Regular file; nil in a Node that was found
	// AnyData means that a wanted Regular file keeps the bytes that are there.
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

// Want is a Node that a configuration wants at a path, with its name for people.
type Want struct {
	Path string // absolute, as the configuration or the convention spells it
	Node Node

	// Kind and Name are the part of the configuration that the path belongs to, in the words of plan and verify. Kind is
	// file, directory or link (Name is empty), unit (crio.service), dropin (crio.service/10-x.conf), or sshkeys, password
	// or user (the user's name).
	Kind string
	Name string
	// Aspect, where set, is what verify reports for any difference at this path: Enabled for an enablement link, Masked
	// for a mask.
	Aspect What
	// IfEmpty allows the removal of a regular file only while it has no bytes.
	IfEmpty bool
	// Exists asks only for the existence of a directory: a parent that is made where it is missing, and never changed.
	Exists bool
	// HardTo, where set, makes the path another name of that regular file; Node is ignored.
	HardTo string
}

// Field returns the list in the configuration from which w comes, for messages. It returns "" for the agent's own
// paths.
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

// Subject names w in a message, by its path and, where w has one, its field.
func (w Want) Subject() string { return strings.TrimSpace(w.Field() + " " + w.Path) }

// Misplaced is the error of wants that a host can't have at their paths.
type Misplaced []Misfit

// Misfit is a want that a host can't have at its path. Reason begins with a verb, whose subject is the path.
type Misfit struct {
	Want   Want
	Reason string
}

func (m Misplaced) Error() string {
	var all []string
	for _, one := range m {
		all = append(all, one.Want.Subject()+" "+one.Reason)
	}
	return strings.Join(all, "; ")
}

// Difference is one aspect of one Want in which the host does not match. Expected and Found are digests, modes, ids or
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
