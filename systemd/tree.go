// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/files"
)

// Host is the file system on which units are judged.
type Host interface {
	// ReadFile returns a regular file's bytes, links inside the host followed. The error of a missing file is
	// fs.ErrNotExist.
	ReadFile(path string) ([]byte, error)
	// ReadDir returns the sorted names in a directory. The error of a missing directory is fs.ErrNotExist.
	ReadDir(path string) ([]string, error)
	// Inspect returns the node at path, its final link not followed; Type Absent where nothing exists.
	Inspect(path string) (files.Node, error)
}

// UnitDir is where an admin and configurations have units, drop-ins, masks and enablement links.
const UnitDir = "/etc/systemd/system"

// defaultDir is an ostree deployment's own configuration.
const defaultDir = "/usr/etc/systemd/system"

// searchDirs are the directories that are searched for unit files; the first match counts. Generated and transient
// units are left out: systemd refuses to enable them, and the next boot's tree does not have them.
var searchDirs = []string{
	UnitDir, "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
}

var errLoop = errors.New("too many levels of links")

// tree is the host as it will be once the units' own files are in place. It reads each path only once.
type tree struct {
	host Host
	// over has the nodes that the configuration puts at a path, with Type Absent for removed ones.
	over map[string]files.Node
	// hidden are drop-in directories that are removed with a released unit.
	hidden map[string]bool

	nodes       map[string]files.Node
	dirs        map[string][]string
	data        map[string][]byte
	presetRules []presetRule
	presetsRead bool
}

func newTree(host Host) *tree {
	return &tree{
		host: host, over: map[string]files.Node{}, hidden: map[string]bool{},
		nodes: map[string]files.Node{}, dirs: map[string][]string{}, data: map[string][]byte{},
	}
}

// node returns the node at p, whose directories must not be links (see chase).
func (t *tree) node(p string) (files.Node, error) {
	if n, ok := t.over[p]; ok {
		return n, nil
	}
	if n, ok := t.nodes[p]; ok {
		return n, nil
	}
	n, err := t.host.Inspect(p)
	if err == nil {
		t.nodes[p] = n
	}
	return n, err
}

// list returns the sorted names in dir, none where dir does not exist.
func (t *tree) list(dir string) ([]string, error) {
	if names, ok := t.dirs[dir]; ok {
		return names, nil
	}
	var names []string
	if !t.hidden[dir] {
		if real, node, err := t.follow(dir); err == nil && node.Type == files.Directory {
			if real != dir {
				return t.list(real)
			}
			if names, err = t.host.ReadDir(real); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		} else if err != nil && !errors.Is(err, errLoop) {
			return nil, err
		}
	}
	for p, n := range t.over {
		if path.Dir(p) != dir {
			continue
		}
		i, there := slices.BinarySearch(names, path.Base(p))
		switch wanted := n.Type != files.Absent; {
		case wanted && !there:
			names = slices.Insert(names, i, path.Base(p))
		case !wanted && there:
			names = slices.Delete(names, i, i+1)
		}
	}
	t.dirs[dir] = names
	return names, nil
}

// has reports whether dir has that name.
func (t *tree) has(dir, name string) (bool, error) {
	names, err := t.list(dir)
	if err != nil {
		return false, err
	}
	_, ok := slices.BinarySearch(names, name)
	return ok, nil
}

// read returns the bytes of the regular file at p. No component of p may be a link.
func (t *tree) read(p string) ([]byte, error) {
	if n, ok := t.over[p]; ok {
		if n.Type != files.Regular {
			return nil, &fs.PathError{Op: "read", Path: p, Err: fs.ErrNotExist}
		}
		return n.Data, nil
	}
	if d, ok := t.data[p]; ok {
		return d, nil
	}
	d, err := t.host.ReadFile(p)
	if err == nil {
		t.data[p] = d
	}
	return d, err
}

// follow resolves every link in p. A path that does not exist keeps its name, with Type Absent.
func (t *tree) follow(p string) (string, files.Node, error) { return t.chase(p, true) }

// chase resolves the links in p's directories, and with last also links at p itself.
func (t *tree) chase(p string, last bool) (string, files.Node, error) {
	cur, node := "/", files.Node{Type: files.Directory}
	rest := strings.Split(p, "/")
	for links := 0; len(rest) > 0; {
		c := rest[0]
		rest = rest[1:]
		switch c {
		case "", ".":
			continue
		case "..":
			cur, node = path.Dir(cur), files.Node{Type: files.Directory}
			continue
		}
		next := path.Join(cur, c)
		n, err := t.node(next)
		if err != nil {
			return "", n, err
		}
		if n.Type == files.Symlink && (last || len(rest) > 0) {
			if links++; links > 40 {
				return "", n, &fs.PathError{Op: "resolve", Path: p, Err: errLoop}
			}
			if path.IsAbs(n.Target) {
				cur = "/"
			}
			rest = append(strings.Split(n.Target, "/"), rest...)
			continue
		}
		cur, node = next, n
		if n.Type == files.Absent && len(rest) > 0 {
			return path.Join(append([]string{cur}, rest...)...), n, nil
		}
	}
	return cur, node, nil
}

// isNull reports whether systemd takes the unit for masked because of the node at p, which is no link.
func (t *tree) isNull(p string, n files.Node) (bool, error) {
	if p == "/dev/null" {
		return true, nil
	}
	if n.Type != files.Regular {
		return false, nil
	}
	data, err := t.read(p)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && len(data) == 0, err
}

// inSearchPath reports whether p is in or somewhere below a directory of units.
func inSearchPath(p string) bool {
	return slices.ContainsFunc(searchDirs, func(d string) bool { return strings.HasPrefix(p, d+"/") })
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
