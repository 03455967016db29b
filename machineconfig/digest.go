// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash"
	"io"
	"maps"
	"slices"
)

// digest returns the identity of a configuration: a hash over the decoded content in canonical order. Every string is
// hashed with its length and every list with its count, so that no two contents give the same bytes. A field added to
// Config must be added here. A change of the order or the form here renames every rendered configuration. former
// selects the digest of older versions, which took a file without contents for an empty file.
func digest(c *Config, firstBoot []byte, former bool) string {
	d := digester{hash: sha256.New()}
	d.text(c.OSImageURL)
	d.text(c.ExtensionsImage)
	d.list(c.KernelArguments)
	d.text(c.KernelType)
	d.list(slices.Sorted(slices.Values(c.Extensions)))
	d.flag(&c.FIPS)
	d.number(len(c.Directories))
	for _, e := range c.Directories {
		d.text(e.Path)
		d.number(int(e.Mode))
		d.owner(e.Owner)
	}
	d.number(len(c.Files))
	for _, f := range c.Files {
		d.text(f.Path)
		d.number(int(f.Mode))
		d.owner(f.Owner)
		d.flag(&f.Append)
		switch {
		case f.Reference != nil:
			d.number(-2) // no length either
			d.text(f.Reference.Source)
			d.text(f.Reference.Hash)
			d.flag(&f.Reference.Gzip)
		case f.NoContents && !former:
			d.number(-1) // no length
		default:
			d.bytes(f.Contents)
		}
	}
	d.number(len(c.Links))
	for _, l := range c.Links {
		d.text(l.Path)
		d.text(l.Target)
		d.flag(&l.Hard)
		d.owner(l.Owner)
	}
	d.number(len(c.Units))
	for _, u := range c.Units {
		d.text(u.Name)
		d.text(u.Contents)
		d.flag(u.Enabled)
		d.flag(u.Mask)
		d.number(len(u.Dropins))
		for _, e := range u.Dropins {
			d.text(e.Name)
			d.text(e.Contents)
		}
	}
	d.number(len(c.Users))
	for _, u := range c.Users {
		d.text(u.Name)
		d.list(u.Keys)
		if u.PasswordHash == nil {
			d.number(0)
		} else {
			d.number(1)
			d.text(*u.PasswordHash)
		}
		d.object(u.Other)
	}
	d.object(c.Provision)
	d.bytes(firstBoot)
	if len(c.places) > 0 { // the same text without values is another configuration
		d.list(c.places)
	}
	return hex.EncodeToString(d.hash.Sum(nil))
}

type digester struct{ hash hash.Hash }

func (d digester) number(n int) {
	d.hash.Write(binary.BigEndian.AppendUint64(make([]byte, 0, 8), uint64(n)))
}

func (d digester) bytes(b []byte) {
	d.number(len(b))
	d.hash.Write(b)
}

func (d digester) text(s string) {
	d.number(len(s))
	io.WriteString(d.hash, s) //nolint:errcheck // a hash never fails
}

func (d digester) list(l []string) {
	d.number(len(l))
	for _, s := range l {
		d.text(s)
	}
}

// flag hashes the three values not set, false and true differently.
func (d digester) flag(b *bool) {
	switch {
	case b == nil:
		d.number(0)
	case !*b:
		d.number(1)
	default:
		d.number(2)
	}
}

// owner hashes all spellings of root as the same.
func (d digester) owner(o Owner) {
	one := func(id *int, name string) {
		switch {
		case name != "" && name != "root":
			d.text(name)
			d.number(-1)
		case id != nil:
			d.text("")
			d.number(*id)
		default:
			d.text("")
			d.number(0)
		}
	}
	one(o.UID, o.User)
	one(o.GID, o.Group)
}

func (d digester) object(m map[string]json.RawMessage) {
	d.number(len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		d.text(k)
		d.bytes(m[k])
	}
}
