// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"strings"

	"github.com/noderefit/noderefit/files"
)

// view is a host as it will be when it boots a deployment: /etc and /usr are the deployment's, the rest is the host's.
// Without a deployment it is the host as it is.
type view struct {
	host *files.Root
	tree *files.Root // nil: the host as it is
}

// carried says whether a deployment carries the path, so that it changes with the boot and not with the journal.
func (v view) carried(name string) (bool, error) {
	at, err := v.host.Resolve(name)
	if err != nil {
		return false, err
	}
	return under(at, "/etc") || under(at, "/usr"), nil
}

func under(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// at returns the tree that has name.
func (v view) at(name string) (*files.Root, error) {
	if v.tree == nil {
		return v.host, nil
	}
	carried, err := v.carried(name)
	if carried && err == nil {
		return v.tree, nil
	}
	return v.host, err
}

// ReadFile returns a regular file's bytes, links inside the host followed.
func (v view) ReadFile(name string) ([]byte, error) {
	r, err := v.at(name)
	if err != nil {
		return nil, err
	}
	return r.ReadFile(name)
}

// ReadDir returns the sorted names in a directory.
func (v view) ReadDir(name string) ([]string, error) {
	r, err := v.at(name)
	if err != nil {
		return nil, err
	}
	return r.ReadDir(name)
}

// Inspect returns what stands at a path.
func (v view) Inspect(name string) (files.Node, error) {
	r, err := v.at(name)
	if err != nil {
		return files.Node{}, err
	}
	return r.Inspect(name)
}

// Compare returns in which aspects a want is not met.
func (v view) Compare(w files.Want) ([]files.Difference, error) {
	r, err := v.at(w.Path)
	if err != nil {
		return nil, err
	}
	return r.Compare(w)
}

// contents returns the bytes at a path itself.
func (v view) contents(name string) ([]byte, error) {
	r, err := v.at(name)
	if err != nil {
		return nil, err
	}
	return r.Contents(name)
}

// base is the tree whose accounts and policy count.
func (v view) base() *files.Root {
	if v.tree != nil {
		return v.tree
	}
	return v.host
}
