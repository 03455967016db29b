// SPDX-License-Identifier: Apache-2.0

// Package contents keeps the contents that configurations have by reference: those at a URL or in a registry.
// They are fetched while the node serves, verified, and kept by their content on the host, once for all configurations:
//
//	store := contents.Store{Root: root, Say: say}
//	err := store.Fetch(ctx, configuration)
//	configuration = store.Fill(configuration) // its files have their contents
//	err = store.Sweep(committed, previous)    // and all other contents go
//
// A name in the store is the hash of the bytes. The name appears by one rename, after the bytes are verified and
// durable. So a file with such a name is whole, also after a power cut.
package contents

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
)

// Dir is the directory of the kept contents on a host.
const Dir = "/var/lib/machine-config-daemon/contents"

// partPrefix begins the names of contents that are not whole yet.
const partPrefix = ".part-"

// Store is the kept contents of one host.
type Store struct {
	Root *files.Root
	// Say tells people which contents are being fetched.
	Say func(what string)

	mapped map[string][]byte // by key, or by the path of a file and its key: see files.Root.Map
}

// Lacking returns the files of a filled configuration whose contents the host does not have.
func Lacking(cfg *machineconfig.Config) (out []machineconfig.File) {
	for _, f := range cfg.Files {
		if f.Reference != nil && f.Contents == nil {
			out = append(out, f)
		}
	}
	return out
}

// Fill returns the configuration with all contents that are kept. A file without them is left as it is, unless the file
// that the host has at its path has these very contents, and only root can change them.
func (s *Store) Fill(cfg *machineconfig.Config) *machineconfig.Config {
	referring := func(f machineconfig.File) bool { return f.Reference != nil && f.Contents == nil }
	if cfg == nil || !slices.ContainsFunc(cfg.Files, referring) {
		return cfg
	}
	out := *cfg
	out.Files = slices.Clone(cfg.Files)
	for i := range out.Files {
		f := &out.Files[i]
		if !referring(*f) {
			continue
		}
		data, err := s.bytes(f.Reference)
		// The kernel ends a process whose mapped file is cut. So users must not be able to cut the file.
		if err != nil && s.Root.Exposed(f.Path) == "" {
			data = s.installed(f)
		}
		f.Contents = data
	}
	return &out
}

func (s *Store) bytes(r *machineconfig.Reference) ([]byte, error) {
	key := r.Key()
	if data, ok := s.mapped[key]; ok {
		return data, nil
	}
	data, err := s.Root.Map(path.Join(Dir, key))
	if err != nil {
		return nil, err
	}
	s.remember(key, data)
	return data, nil
}

// installed returns the contents that the host has at the path of a file, nil for other bytes. It reads the bytes once.
func (s *Store) installed(f *machineconfig.File) []byte {
	key := f.Path + " " + f.Reference.Key()
	data, known := s.mapped[key]
	if known {
		return data
	}
	data, err := s.Root.Map(f.Path)
	if err != nil {
		return nil
	}
	if !f.Reference.Is(data) {
		data = nil
	}
	s.remember(key, data)
	return data
}

func (s *Store) remember(key string, data []byte) {
	if s.mapped == nil {
		s.mapped = map[string][]byte{}
	}
	s.mapped[key] = data
}

// Whole refuses a filled configuration of which the host lacks contents.
func Whole(cfg *machineconfig.Config) error {
	for _, f := range Lacking(cfg) {
		return fmt.Errorf("%s: the contents of file %s (%s) are not on the host any more; apply the configuration again "+
			"to fetch them", cfg.Name, f.Path, f.Reference)
	}
	return nil
}

// Sweep removes all contents that none of the configurations has, and parts of such contents.
func (s *Store) Sweep(keep ...*machineconfig.Config) error {
	names, err := s.Root.ReadDir(Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, c := range keep {
		if c == nil {
			continue
		}
		for _, f := range c.Files {
			if f.Reference == nil {
				continue
			}
			key := f.Reference.Key()
			kept[key] = true
			if n, err := s.Root.Inspect(path.Join(Dir, key)); err == nil && n.Type == files.Symlink {
				kept[n.Target] = true
			}
		}
	}
	for _, name := range names {
		if !kept[strings.TrimPrefix(name, partPrefix)] {
			err = errors.Join(err, s.Root.Remove(path.Join(Dir, name)))
			delete(s.mapped, name)
		}
	}
	return err
}
