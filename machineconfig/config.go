// SPDX-License-Identifier: Apache-2.0

// Package machineconfig reads, converts, validates, merges, renders and names configuration documents.
//
// A document is a MachineConfig of OpenShift's API, an Ignition config, or a Butane config. This package makes one
// Config of each, whatever the spelling. A Config is everything that a node should be. Its contents are decoded and
// every list is in canonical order, so two Configs with equal Digest mean the same node.
package machineconfig

import (
	"encoding/json"
	"slices"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/values"
)

// Kernel types that a configuration can ask for. The empty string in a document means KernelDefault.
const (
	KernelDefault  = "default"
	KernelRealtime = "realtime"
	Kernel64kPages = "64k-pages"
)

// Config is one whole node configuration, parsed and validated.
type Config struct {
	// Name is the object's name. A document without a name (Ignition, Butane) has one made from the digest.
	Name string
	// Digest is 64 hex digits over the decoded content of everything below. The spelling of a data URL, compression and
	// list order do not matter. Two configurations with one digest are the same configuration.
	Digest string
	// Former is the digest that older versions gave to a configuration with a file without contents. They took such a file
	// for an empty file. Former is "" for other configurations.
	Former string
	// Placeholders are the values of a node that the configuration names. They are empty where a node's values are in it.
	Placeholders []values.Placeholder
	// Template is the Digest of the configuration without the values of a node, where it has such values; else "".
	Template string
	// Object is the document itself, as it is stored on the host and in the cluster.
	Object *mcfgv1.MachineConfig

	OSImageURL      string
	ExtensionsImage string
	// KernelArguments holds one argument in each element, split as the kernel splits a command line, in document order.
	KernelArguments []string
	KernelType      string // never empty
	Extensions      []string
	FIPS            bool

	Directories []Directory // by path
	Files       []File      // by path
	Links       []Link      // by path
	Units       []Unit      // by name
	Users       []User      // by name

	// Provision holds the settings that only Ignition can apply when a machine is made. It is canonical JSON by the name
	// that a plan has for the field: storage.disks, storage.filesystems, storage.raid, storage.luks, passwd.groups,
	// kernelArguments. A field that is absent or empty in the document is not in the map.
	Provision map[string]json.RawMessage

	// places are the texts that name values of a node, sorted; see places.
	places []string
}

// Owner is a user and a group, each by id or by name as in the document. nil and "" mean root.
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
	// NoContents means that the document gives no contents. An existing file keeps its bytes. Where no file exists, an
	// empty file is made.
	NoContents bool
	Append     bool // the document appends to the file, which can't be reconciled
	// FromValues reports whether values of a node are in the path or the contents.
	FromValues bool
	// Reference is where a node fetches the contents, nil where the document has them. Contents are nil then until a host
	// has fetched them, and not nil afterwards.
	Reference *Reference
}

// Directory is a directory. It does not manage the entries in the directory.
type Directory struct {
	Path  string
	Mode  uint32 // 0755 where the document has none
	Owner Owner
}

// Link is a symbolic link, or a hard link to another path of the host.
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
	Mask     *bool  // nil: not set; false: a mask must go
	Dropins  []Dropin
}

// Masking returns the unit's setting of a mask. It is nil where the unit does not set it. A unit with contents and mask
// false returns nil too, because the contents take the place of a mask.
func (u *Unit) Masking() *bool {
	if u.Contents != "" && u.Mask != nil && !*u.Mask {
		return nil
	}
	return u.Mask
}

// Dropin is NAME in /etc/systemd/system/UNIT.d. Empty Contents mean that no such file may exist.
type Dropin struct {
	Name     string
	Contents string
}

// User is an account of the host whose keys and password are managed.
type User struct {
	Name string
	Keys []string // authorized_keys lines, in document order, without duplicates
	// PasswordHash is nil where the configuration has no password for the user.
	PasswordHash *string
	// Other holds the fields that can't be changed on a running host. It is canonical JSON by Ignition's field name
	// (gecos, groups, homeDir, noCreateHome, noLogInit, noUserGroup, primaryGroup, shell, shouldExist, system, uid).
	Other map[string]json.RawMessage
}

// TurnsOff reports whether the configuration disables or masks a unit.
func (c *Config) TurnsOff(unit string) bool {
	return slices.ContainsFunc(c.Units, func(u Unit) bool {
		return u.Name == unit && (u.Enabled != nil && !*u.Enabled || u.Mask != nil && *u.Mask)
	})
}
