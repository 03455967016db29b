// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"path"
	"strings"

	"github.com/noderefit/noderefit/files"
)

// View is a host in the state in which a deployment boots: /etc and /usr are the deployment's, the rest is the host's.
// Without a deployment the View is the host as it is now.
type View struct {
	Host *files.Root
	Tree *files.Root // nil: the host's own tree
	// Transient means that /etc ends with each boot.
	Transient bool
}

// carries reports whether a deployment carries the place, which is a resolved path. A deployment has its own /etc, and
// a read-only /usr shared with the repository.
func carries(at string) bool { return under(at, "/etc") || under(at, "/usr") }

// places returns where each want will be on the host, following the links that will still exist then.
func (v View) places(wants []files.Want) (map[string]string, error) {
	going := map[string]bool{}
	for _, w := range wants {
		if w.Exists || w.HardTo != "" || w.Node.Type != files.Absent && w.Node.Type != files.Directory {
			continue
		}
		n, err := v.Host.Inspect(w.Path)
		if err != nil {
			return nil, err
		}
		if n.Type == files.Symlink {
			going[w.Path] = true
		}
	}
	out := map[string]string{}
	for _, w := range wants {
		stop := w.Path
		for dir := path.Dir(w.Path); dir != "/"; dir = path.Dir(dir) {
			if going[dir] {
				stop = dir
			}
		}
		at, err := v.Host.Resolve(stop)
		if err != nil {
			return nil, err
		}
		out[w.Path] = at + strings.TrimPrefix(w.Path, stop)
	}
	return out, nil
}

func under(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// at returns the tree that has the path.
func (v View) at(name string) (*files.Root, error) {
	if v.Tree == nil {
		return v.Host, nil
	}
	at, err := v.Host.Resolve(name)
	if err == nil && carries(at) {
		return v.Tree, nil
	}
	return v.Host, err
}

// ReadFile returns a regular file's bytes, and follows links inside the host.
func (v View) ReadFile(name string) ([]byte, error) {
	r, err := v.at(name)
	if err != nil {
		return nil, err
	}
	return r.ReadFile(name)
}

// ReadDir returns the names in a directory, sorted.
func (v View) ReadDir(name string) ([]string, error) {
	r, err := v.at(name)
	if err != nil {
		return nil, err
	}
	return r.ReadDir(name)
}

// Inspect returns the node at a path.
func (v View) Inspect(name string) (files.Node, error) {
	r, err := v.at(name)
	if err != nil {
		return files.Node{}, err
	}
	return r.Inspect(name)
}

// Compare returns the aspects in which a want is not met.
func (v View) Compare(w files.Want) ([]files.Difference, error) {
	r, err := v.at(w.Path)
	if err != nil {
		return nil, err
	}
	return r.Compare(w)
}

// contents returns the bytes at a path itself.
func (v View) contents(name string) ([]byte, error) {
	r, err := v.at(name)
	if err != nil {
		return nil, err
	}
	return r.Contents(name)
}

// read returns the node at a path itself, with the bytes of a regular file.
func (v View) read(name string) (files.Node, error) {
	r, err := v.at(name)
	if err != nil {
		return files.Node{}, err
	}
	return r.Read(name)
}

// inspectSized returns the node at a path itself, with the size of a regular file.
func (v View) inspectSized(name string) (files.Node, int64, error) {
	r, err := v.at(name)
	if err != nil {
		return files.Node{}, 0, err
	}
	return r.InspectSized(name)
}

// base returns the tree that has the accounts and the policy.
func (v View) base() *files.Root {
	if v.Tree != nil {
		return v.Tree
	}
	return v.Host
}
