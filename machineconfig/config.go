// SPDX-License-Identifier: Apache-2.0

// Package machineconfig reads, converts, validates, merges, renders and names configuration documents.
//
// A document is a MachineConfig of OpenShift's API, an Ignition config, or a Butane config. Whatever the spelling, what
// leaves this package is one Config: everything a node should be, with contents decoded and every list in canonical
// order, so that two Configs with equal Digest mean the same node.
package machineconfig

import (
	"encoding/json"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
)

// Kernel types that a configuration can ask for. The empty string in a document means KernelDefault.
const (
	KernelDefault  = "default"
	KernelRealtime = "realtime"
	Kernel64kPages = "64k-pages"
)

// Config is one whole node configuration, parsed and validated.
type Config struct {
	// Name is the object's name, or one made from the digest where the document has none (Ignition, Butane).
	Name string
	// Digest is 64 hex digits over the decoded content of everything below: the spelling of a data URL, compression
	// and list order do not matter. Two configurations with one digest are the same configuration.
	Digest string
	// Former is the digest that versions before have given a configuration with a file without contents, "" elsewhere:
	// they took such a file for an empty one.
	Former string
	// Object is the document itself, as it is stored on the host and in the cluster.
	Object *mcfgv1.MachineConfig

	OSImageURL      string
	ExtensionsImage string
	// KernelArguments holds one argument an element, split as the kernel splits a command line, in document order.
	KernelArguments []string
	KernelType      string // never empty
	Extensions      []string
	FIPS            bool

	Directories []Directory // by path
	Files       []File      // by path
	Links       []Link      // by path
	Units       []Unit      // by name
	Users       []User      // by name

	// Provision holds what only Ignition can do when a machine is made, canonical JSON by the name that a plan
	// has for the field: storage.disks, storage.filesystems, storage.raid, storage.luks, passwd.groups, kernelArguments.
	// A field that is absent or empty in the document is not in the map.
	Provision map[string]json.RawMessage
}

// Owner is a user and a group, each by id or by name as the document gives them; nil and "" mean root.
type Owner struct {
	UID, GID    *int
	User, Group string
}

// File is a regular file.
type File struct {
	Path     string
	Mode     uint32 // permission bits; 0644 where the document has none
	Owner    Owner
	Contents []byte // decoded and decompressed
	// NoContents means that the document gives none: the bytes of a file that is there stay, and an empty one is made
	// where there is none.
	NoContents bool
	Append     bool // the document appends to the file, which can't be reconciled
}

// Directory is a directory; what is in it is not managed by it.
type Directory struct {
	Path  string
	Mode  uint32 // 0755 where the document has none
	Owner Owner
}

// Link is a symbolic link, or a hard one to another path of the host.
type Link struct {
	Path   string
	Target string
	Hard   bool
	Owner  Owner
}

// Unit is a systemd unit with its drop-ins.
type Unit struct {
	Name     string
	Contents string // "" means that the unit file is not ours
	Enabled  *bool  // nil: systemd's presets decide
	Mask     *bool  // nil: not said; false: a mask must go
	Dropins  []Dropin
}

// Masking is what the unit says of a mask: nil where it says nothing, which contents in its place come to as well.
func (u *Unit) Masking() *bool {
	if u.Contents != "" && u.Mask != nil && !*u.Mask {
		return nil
	}
	return u.Mask
}

// Dropin is NAME in /etc/systemd/system/UNIT.d; empty Contents means that no such file may be there.
type Dropin struct {
	Name     string
	Contents string
}

// User is an account of the host whose keys and password are managed.
type User struct {
	Name string
	Keys []string // authorized_keys lines, in document order, without duplicates
	// PasswordHash is nil where the configuration says nothing about the password.
	PasswordHash *string
	// Other holds the fields that can't be changed on a living host, canonical JSON by Ignition's field name
	// (gecos, groups, homeDir, noCreateHome, noLogInit, noUserGroup, primaryGroup, shell, shouldExist, system, uid).
	Other map[string]json.RawMessage
}
