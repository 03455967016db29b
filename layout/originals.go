// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// The host keeps below origDir what an admin had before a configuration. Each entry has its former path with one of
// these suffixes.
const (
	origDir = transaction.ConfigDir + "/orig"
	// lastingOrigDir is the same for paths outside a transient /etc.
	lastingOrigDir = transaction.StateDir + "/orig"
	// origSuffix marks the whole file, link or directory.
	origSuffix = ".mcdorig"
	// modeSuffix marks an empty file with the mode and owner of a file whose bytes no configuration took over. These bytes
	// are not kept, because they stay in their place and continue to change.
	modeSuffix = ".mcdmode"
	// linksSuffix marks a list of links, beside the place where the unit's own file would be kept.
	linksSuffix = ".mcdlinks"
)

func (c *Layout) origPath(at string) string { return c.origOf(at) + at + origSuffix }

func (c *Layout) modePath(at string) string { return c.origOf(at) + at + modeSuffix }

// origOf returns where the original of a path is kept, which lasts as long as the place of the path does.
func (c *Layout) origOf(at string) string {
	if c.view.Transient && !under(at, "/etc") {
		return lastingOrigDir
	}
	return origDir
}

func linksPath(unit string) string { return origDir + path.Join(systemd.UnitDir, unit) + linksSuffix }

func vendorPath(at string) string { return "/usr" + at }

// release gives up the paths that the old configuration had and the new one has not. The vendor's default comes back,
// or else what an admin had there before us. Without either, the path is removed.
func (c *Layout) release() error {
	if c.old == nil {
		return nil
	}
	for _, w := range ownPaths(c.old) {
		taken, err := c.has(w.Path)
		if err != nil {
			return err
		}
		if taken {
			continue
		}
		if err := c.letGo(w); err != nil {
			return err
		}
	}
	return c.releaseMasks()
}

// ownPaths returns the paths that a configuration owns wholly, on any host. The packages systemd and sshkeys release
// enablement links and keys. The Node of a file without contents has AnyData.
func ownPaths(cfg *machineconfig.Config) []files.Want {
	var out []files.Want
	for _, f := range cfg.Files {
		out = append(out, files.Want{Path: f.Path, Kind: "file", Node: files.Node{AnyData: f.NoContents}})
	}
	for _, l := range cfg.Links {
		out = append(out, files.Want{Path: l.Path, Kind: "link"})
	}
	for _, u := range cfg.Units {
		if ownsUnitFile(u) {
			out = append(out, unitFile(u.Name))
		}
		for _, d := range u.Dropins {
			out = append(out, files.Want{Path: path.Join(systemd.UnitDir, u.Name+".d", d.Name), Kind: "dropin",
				Name: u.Name + "/" + d.Name})
		}
	}
	for _, d := range cfg.Directories {
		out = append(out, files.Want{Path: d.Path, Kind: "directory"})
	}
	return out
}

func unitFile(name string) files.Want {
	return files.Want{Path: path.Join(systemd.UnitDir, name), Kind: "unit", Name: name}
}

// ownsUnitFile reports whether the unit's own path belongs to the configuration: as its file, or as its mask.
func ownsUnitFile(u machineconfig.Unit) bool { return u.Contents != "" || u.Mask != nil && *u.Mask }

// liftsMask reports whether the configuration demands of the unit's own path only that it is no mask.
func liftsMask(u machineconfig.Unit) bool { return u.Contents == "" && u.Mask != nil && !*u.Mask }

// returns finds the node that replaces a path which no configuration has any more: the vendor's default, or else the
// admin's own node, or else nothing.
func (c *Layout) returns(at string) (files.Node, error) {
	sources := []string{c.origPath(at)}
	if under(at, "/etc") {
		sources = []string{vendorPath(at), c.origPath(at)}
	}
	for _, src := range sources {
		n, err := c.node(src)
		if err != nil || n.Type != files.Absent && n.Type != files.Other {
			return n, err
		}
	}
	return files.Node{Type: files.Absent}, nil
}

// node returns the node at a path itself, with its bytes and without its label: the label depends on the place of the
// new node.
func (c *Layout) node(name string) (files.Node, error) {
	n, err := c.view.read(name)
	n.Label = ""
	return n, err
}

func (c *Layout) letGo(w files.Want) error {
	at, err := c.resolve(w.Path)
	if err != nil {
		return err
	}
	if w.Node.AnyData {
		if done, err := c.letGoMode(w, at); done || err != nil {
			return err
		}
	}
	if w.Node, err = c.returns(at); err != nil {
		return err
	}
	return errors.Join(c.want(w), c.drop(c.origPath(at)))
}

// letGoMode gives up a file whose bytes were never the configuration's. The bytes stay. letGoMode reports whether
// nothing else is to be done.
func (c *Layout) letGoMode(w files.Want, at string) (bool, error) {
	found, size, err := c.view.inspectSized(w.Path)
	if err != nil || found.Type != files.Regular {
		return false, err
	}
	kept, err := c.view.Inspect(c.modePath(at))
	if err != nil {
		return false, err
	}
	if kept.Type != files.Regular {
		// A file that we made is removed again, as long as it is still empty.
		back, err := c.returns(at)
		if err != nil || back.Type != files.Absent {
			return false, err
		}
		if size == 0 {
			w.Node, w.IfEmpty = back, true
			return true, errors.Join(c.want(w), c.drop(c.origPath(at)))
		}
		kept = found
	} else if under(at, "/etc") {
		vendor, err := c.view.Inspect(vendorPath(at))
		if err != nil {
			return false, err
		}
		if vendor.Type == files.Regular {
			kept = vendor
		}
	}
	w.Node = files.Node{Type: files.Regular, Mode: kept.Mode, UID: kept.UID, GID: kept.GID, AnyData: true}
	return true, errors.Join(c.want(w), c.drop(c.modePath(at)))
}

// releaseMasks restores masks that an admin had made and a configuration had lifted, where the path is free by now.
func (c *Layout) releaseMasks() error {
	lifts := map[string]bool{}
	for _, u := range c.cfg.Units {
		lifts[u.Name] = liftsMask(u)
	}
	for _, u := range c.old.Units {
		w := unitFile(u.Name)
		if taken, err := c.has(w.Path); err != nil || taken || !liftsMask(u) || lifts[u.Name] {
			if err != nil {
				return err
			}
			continue
		}
		back, err := c.lifted(u.Name)
		if err != nil {
			return err
		}
		if w.Node = back; back.Type != files.Absent {
			if err := c.want(w); err != nil {
				return err
			}
		}
		if err := c.drop(c.origPath(w.Path)); err != nil {
			return err
		}
	}
	return nil
}

// lifted returns the mask to restore at the unit's own path. The node is absent where no mask was or the path is taken.
func (c *Layout) lifted(unit string) (files.Node, error) {
	at := path.Join(systemd.UnitDir, unit)
	if n, err := c.view.Inspect(at); err != nil || n.Type != files.Absent {
		return files.Node{Type: files.Absent}, err
	}
	return c.node(c.origPath(at))
}

// drop removes a kept original, once the original is restored or something else has replaced it.
func (c *Layout) drop(kept string) error {
	n, err := c.view.Inspect(kept)
	if err != nil || n.Type == files.Absent {
		return err
	}
	return c.want(files.Want{Path: kept, Node: files.Node{Type: files.Absent}})
}

// originals keeps what an admin had at paths that a configuration is about to take over, where no vendor's default
// would replace it later. Paths that already match the configuration are kept too: they were the admin's before, and a
// later configuration may change them. A host's first configuration takes over matching paths without keeping them,
// because Ignition wrote these.
func (c *Layout) originals() error {
	if c.old == c.cfg {
		return nil // nothing is taken over; each difference is drift
	}
	owned, err := c.ownedByOld()
	if err != nil {
		return err
	}
	for _, w := range slices.Clone(c.Wants) {
		at, err := c.resolve(w.Path)
		if err != nil {
			return err
		}
		was, ours := owned[at]
		switch {
		case w.Exists:
		case ours && w.Kind == "file" && w.Node.Type == files.Regular && w.Node.AnyData != was.Node.AnyData:
			err = c.handOver(w, at)
		case ours:
		case w.Aspect == files.Enabled:
			err = c.keepMisplaced(w, at)
		case w.Kind == "sshkeys":
			// Before a host's first configuration Ignition wrote the keys. A key that was removed since must not come back.
			if c.old != nil && w.Node.Type == files.Regular {
				err = c.keepOriginal(w, at)
			}
		case slices.Contains([]string{"file", "link", "unit", "dropin", "directory"}, w.Kind):
			err = c.keepOriginal(w, at)
		}
		if err != nil {
			return err
		}
	}
	return c.keepLinks()
}

// ownedByOld returns the resolved paths of the old configuration, and the directories that were made for it.
func (c *Layout) ownedByOld() (map[string]files.Want, error) {
	owned := map[string]files.Want{}
	if c.old == nil {
		return owned, nil
	}
	wants := ownPaths(c.old)
	for _, u := range c.old.Units {
		if liftsMask(u) {
			wants = append(wants, unitFile(u.Name))
		}
	}
	for _, dir := range c.Made {
		wants = append(wants, files.Want{Path: dir})
	}
	for _, w := range wants {
		at, err := c.resolve(w.Path)
		if err != nil {
			return nil, err
		}
		owned[at] = w
	}
	return owned, nil
}

// linkedByOld reports whether a path is an enablement link or a key file of the old configuration, which depends on the
// host.
func (c *Layout) linkedByOld(at string) bool {
	if c.old == nil {
		return false
	}
	if c.links == nil {
		c.links = map[string]bool{}
		before, err := Make(c.view, c.old, c.old, nil)
		if err != nil {
			return false // the old links can't be computed any more, as after the removal of a user
		}
		for _, w := range before.Wants {
			if at, err := c.resolve(w.Path); err == nil && (w.Aspect == files.Enabled || w.Kind == "sshkeys" && !w.Exists) {
				c.links[at] = true
			}
		}
	}
	return c.links[at]
}

// keepOriginal keeps the node at a path that is taken over.
func (c *Layout) keepOriginal(w files.Want, at string) error {
	found, size, err := c.view.inspectSized(w.Path)
	if err != nil || found.Type == files.Absent || found.Type == files.Other {
		return err
	}
	if w.Node.AnyData && found.Type == files.Regular {
		return c.keepMode(w, at, found, size)
	}
	if w.Node.Type == files.Absent && found.Type == files.Directory {
		return nil // the directory is removed only when it is empty, so other users of it keep it
	}
	if taken, err := c.takenOver(w); err != nil || !taken || c.linkedByOld(at) {
		return err
	}
	for _, other := range []string{c.origPath(at), vendorPath(at)} {
		if other == vendorPath(at) && !under(at, "/etc") {
			continue
		}
		if n, err := c.view.Inspect(other); err != nil || n.Type != files.Absent {
			return err
		}
	}
	found, err = c.node(w.Path)
	switch {
	case errors.Is(err, unix.EFBIG):
		c.Warnings = append(c.Warnings, fmt.Sprintf("%s: no copy is kept: users other than root can write to the file, "+
			"and its size is above %d MiB", w.Subject(), files.MostExposed>>20))
		return nil
	case err != nil || found.Type == files.Absent || found.Type == files.Other:
		return err
	case w.Kind == "sshkeys" && (found.Type != files.Regular || found.UID != w.Node.UID && found.UID != 0):
		return nil // a file of a third user is no earlier key file
	}
	return c.keep(c.origPath(at), found)
}

// keep keeps what an admin had. A kept file below origDir keeps its owner, but only root can reach it: a user could
// otherwise continue to write to a file that was theirs.
func (c *Layout) keep(name string, n files.Node) error {
	dir := origDir
	if under(name, lastingOrigDir) {
		dir = lastingOrigDir
	}
	return errors.Join(c.want(files.Want{Path: dir, Node: files.Node{Type: files.Directory, Mode: 0o700}}),
		c.want(files.Want{Path: name, Node: n}))
}

// takenOver reports whether the node at the path is an admin's own.
func (c *Layout) takenOver(w files.Want) (bool, error) {
	if c.old != nil {
		return true, nil
	}
	d, err := c.view.Compare(w)
	return len(d) > 0, err
}

// keepMode keeps the mode and owner of a file whose bytes stay. On a host that was never configured, an empty file may
// be what Ignition made of the very same entry.
func (c *Layout) keepMode(w files.Want, at string, found files.Node, size int64) error {
	taken, err := c.takenOver(w)
	if err != nil || !taken && size == 0 {
		return err
	}
	return c.keep(c.modePath(at), files.Node{Type: files.Regular, Mode: found.Mode, UID: found.UID, GID: found.GID})
}

// handOver handles a file that the old configuration has with contents and the new one without, or the other way round.
func (c *Layout) handOver(w files.Want, at string) error {
	if w.Node.AnyData {
		back, err := c.returns(at)
		if err != nil || back.Type != files.Regular {
			return err // the content that the old configuration has written stays
		}
		i := c.at[at]
		c.Wants[i].Node.Data, c.Wants[i].Node.AnyData = back.Data, false
		return errors.Join(c.drop(c.origPath(at)),
			c.keep(c.modePath(at), files.Node{Type: files.Regular, Mode: back.Mode, UID: back.UID, GID: back.GID}))
	}
	found, err := c.node(w.Path)
	if err != nil || found.Type != files.Regular {
		return err
	}
	kept, err := c.view.Inspect(c.modePath(at))
	if err != nil {
		return err
	}
	if kept.Type == files.Regular {
		found.Mode, found.UID, found.GID = kept.Mode, kept.UID, kept.GID
	} else if len(found.Data) == 0 {
		return nil // we made the file, and it is still empty
	}
	back, err := c.returns(at)
	if err == nil && back.Type == files.Absent {
		err = c.keep(c.origPath(at), found)
	}
	return errors.Join(err, c.drop(c.modePath(at)))
}

// keepMisplaced keeps a file that makes room for an enablement link: systemd ignores a file there.
func (c *Layout) keepMisplaced(w files.Want, at string) error {
	found, err := c.view.Inspect(w.Path)
	if err != nil || found.Type != files.Regular && found.Type != files.Directory {
		return err
	}
	return c.keepOriginal(w, at)
}

// keptLink is an enablement link as it was before a configuration; without a target there was none.
type keptLink struct {
	Path   string `json:"path"`
	Target string `json:"target,omitempty"`
}

// keepLinks keeps the enablement of units that no configuration has named before. A unit that the host does not have is
// not enabled.
func (c *Layout) keepLinks() error {
	named := map[string]bool{}
	if c.old != nil {
		for _, u := range c.old.Units {
			named[u.Name] = true
		}
	}
	for _, u := range c.cfg.Units {
		if named[u.Name] {
			continue
		}
		links, err := c.linksBefore(u.Name)
		if err != nil {
			return fmt.Errorf("systemd.units %s: %w", u.Name, err)
		}
		n, err := c.view.Inspect(linksPath(u.Name))
		if err != nil {
			return err
		}
		if links == nil || n.Type != files.Absent {
			continue
		}
		data, err := json.Marshal(links)
		if err != nil {
			return err
		}
		if err := c.want(files.Want{Path: linksPath(u.Name),
			Node: files.Node{Type: files.Regular, Mode: 0o644, Data: data}}); err != nil {
			return err
		}
	}
	return nil
}

// linksBefore returns the links that the unit has now, and the places where it gets others. It returns nil where
// nothing is to be kept.
func (c *Layout) linksBefore(unit string) ([]keptLink, error) {
	var wants []files.Want
	taken := c.old != nil
	for _, w := range c.Wants {
		if w.Aspect != files.Enabled || w.Name != unit {
			continue
		}
		wants = append(wants, w)
		d, err := c.view.Compare(w)
		if err != nil {
			return nil, err
		}
		taken = taken || len(d) > 0
	}
	if !taken {
		return nil, nil
	}
	links, there, err := systemd.Enablement(c.view, unit)
	if err != nil {
		return nil, err
	}
	out := []keptLink{}
	known := map[string]bool{}
	for _, l := range links {
		known[l.Path] = true
		out = append(out, keptLink(l))
	}
	for _, w := range wants {
		// Also= and aliases make links under other names. Later, nothing shows that such a link belongs to this unit.
		there = there || path.Base(w.Path) != unit
		if known[w.Path] {
			continue
		}
		n, err := c.view.Inspect(w.Path)
		if err != nil {
			return nil, err
		}
		out = append(out, keptLink{w.Path, n.Target})
	}
	if !there && len(links) == 0 {
		return nil, nil
	}
	return out, nil
}

// past answers systemd's questions about units that are given up.
type past struct{ *Layout }

// UnitFile returns the node that replaces a unit's own path, and whether the old configuration had that path.
func (p past) UnitFile(name string) (files.Node, bool, error) {
	at := slices.IndexFunc(p.old.Units, func(u machineconfig.Unit) bool { return u.Name == name })
	if at < 0 {
		return files.Node{}, false, nil
	}
	u := p.old.Units[at]
	switch {
	case ownsUnitFile(u):
		resolved, err := p.resolve(path.Join(systemd.UnitDir, name))
		if err != nil {
			return files.Node{}, false, err
		}
		n, err := p.returns(resolved)
		return n, true, err
	case liftsMask(u):
		n, err := p.lifted(name)
		return n, n.Type != files.Absent, err
	}
	return files.Node{}, false, nil
}

// Links returns how a unit was enabled before the first configuration that named it.
func (p past) Links(unit string) (links []systemd.Link, known bool, err error) {
	data, err := p.view.contents(linksPath(unit))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	var kept []keptLink
	if json.Unmarshal(data, &kept) != nil {
		return nil, false, nil //nolint:nilerr // not ours: treated as if no note existed
	}
	for _, l := range kept {
		links = append(links, systemd.Link(l))
	}
	return links, true, nil
}

// releaseLinks drops the notes on released units, and restores the files that had made room for their links.
func (c *Layout) releaseLinks(released []string) error {
	for _, name := range released {
		if err := c.drop(linksPath(name)); err != nil {
			return err
		}
	}
	for i := range c.Wants {
		w := c.Wants[i]
		if w.Aspect != files.Enabled || w.Node.Type != files.Absent {
			continue
		}
		at, err := c.resolve(w.Path)
		if err != nil {
			return err
		}
		n, err := c.node(c.origPath(at))
		if err != nil {
			return err
		}
		if n.Type == files.Absent {
			continue
		}
		c.Wants[i].Node, c.Wants[i].Aspect = n, ""
		if err := c.drop(c.origPath(at)); err != nil {
			return err
		}
	}
	return nil
}
