// SPDX-License-Identifier: Apache-2.0

// Package layout computes the paths of a configuration on one host: files, links, units with their enablement, keys and
// passwords. It also computes which paths of a former configuration are removed, and which come back from the vendor or
// an admin. Nothing is written; a transaction brings the paths to the host:
//
//	l, err := layout.Make(layout.View{Host: root}, configuration, former, made)
//	for _, want := range l.Wants { ... }
package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/sshkeys"
	"github.com/noderefit/noderefit/sysext"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// ShadowPath has the host's password hashes.
const ShadowPath = "/etc/shadow"

const currentConfig = transaction.ConfigDir + "/currentconfig"

// Layout is the paths of a configuration on one host. Two hosts with one configuration may differ in ids, homes,
// labels, presets and vendor defaults. All of these are decided here.
type Layout struct {
	Wants []files.Want
	// Made are the directories that are needed only as parents of wants.
	Made []string
	// Warnings tell people what the host does not keep of an admin's own.
	Warnings []string

	view     View
	accounts *files.Accounts
	labels   *files.Labels
	cfg, old *machineconfig.Config // old is nil on a host that was never configured
	at       map[string]int        // resolved path -> index in Wants
	dirs     map[string]string     // directories that resolve has found so far: many paths share a few
	links    map[string]bool       // see linkedByOld
}

// Make returns the layout of cfg. made has the directories that were made only as parents of paths of old. On a host
// that was never configured, old is nil.
func Make(v View, cfg, old *machineconfig.Config, made []string) (*Layout, error) {
	accounts, err := v.base().Accounts()
	if err != nil {
		return nil, fmt.Errorf("reading the host's users: %w", err)
	}
	labels, err := v.base().Labels()
	if err != nil {
		return nil, fmt.Errorf("reading SELinux policy: %w", err)
	}
	c := &Layout{view: v, accounts: accounts, labels: labels, cfg: cfg, old: old,
		at: map[string]int{}, dirs: map[string]string{}, Made: made}
	for _, do := range []func() error{c.storage, c.units, c.users, c.release, c.originals, c.pointer} {
		if err := do(); err != nil {
			return nil, err
		}
	}
	return c, c.emptied()
}

// emptied removes directories that hold no wanted path any more. The removal is tried once: a directory that other
// programs use by then is theirs.
func (c *Layout) emptied() error {
	made := c.Made
	c.Made = nil
	needed := map[string]bool{}
	for _, w := range c.Wants {
		if w.Node.Type == files.Absent && !w.Exists && w.HardTo == "" {
			continue
		}
		for dir := w.Path; dir != "/"; dir = path.Dir(dir) {
			needed[dir] = true
		}
	}
	for _, dir := range made {
		if needed[dir] || c.old == c.cfg || under(dir, transaction.ConfigDir) {
			c.Made = append(c.Made, dir)
			continue
		}
		n, err := c.view.Inspect(dir)
		if err != nil {
			return err
		}
		if taken, err := c.has(dir); err != nil || taken || n.Type != files.Directory {
			if err != nil {
				return err
			}
			continue
		}
		if err := c.want(files.Want{Path: dir, Node: files.Node{Type: files.Absent}}); err != nil {
			return err
		}
	}
	return nil
}

// want adds w, labelled as the SELinux policy demands. Two wants for one place are a mistake of the configuration, also
// where they spell the path differently.
func (c *Layout) want(w files.Want) error {
	w.Path = path.Clean(w.Path)
	at, err := c.resolve(w.Path)
	if err != nil {
		return fmt.Errorf("%s: %w", w.Subject(), err)
	}
	for _, own := range []string{transaction.StateDir, transaction.RunDir, origDir, currentConfig} {
		if w.Kind != "" && under(at, own) {
			return files.Misplaced{{Want: w, Reason: "is refused: " + own + " belongs to the agent; leave it out"}}
		}
	}
	if i, dup := c.at[at]; dup {
		other := c.Wants[i]
		if w.Exists || reflect.DeepEqual(other.Node, w.Node) && other.HardTo == w.HardTo {
			return nil
		}
		if other.Exists {
			c.Wants[i] = w
			return nil
		}
		return fmt.Errorf("%s %s and %s %s are the same path on this host", other.Kind, other.Path, w.Kind, w.Path)
	}
	if w.Node.Type != files.Absent && w.Node.Label == "" && w.HardTo == "" {
		w.Node.Label = c.labels.Of(at, w.Node.Type)
	}
	c.at[at] = len(c.Wants)
	c.Wants = append(c.Wants, w)
	return nil
}

// resolve returns the result of Root.Resolve of the host, with one question per directory.
func (c *Layout) resolve(name string) (string, error) {
	name = path.Clean("/" + name)
	dir, base := path.Split(name)
	at, known := c.dirs[dir]
	if !known {
		whole, err := c.view.Host.Resolve(name)
		if err != nil || base == "" {
			return whole, err
		}
		at = path.Dir(whole)
		c.dirs[dir] = at
	}
	return path.Join(at, base), nil
}

func (c *Layout) has(name string) (bool, error) {
	at, err := c.resolve(name)
	_, ok := c.at[at]
	return ok, err
}

func (c *Layout) storage() error {
	for _, d := range c.cfg.Directories {
		uid, gid, err := c.owner("directories", d.Path, d.Owner)
		if err != nil {
			return err
		}
		n := files.Node{Type: files.Directory, Mode: d.Mode, UID: uid, GID: gid}
		if err := c.want(files.Want{Path: d.Path, Node: n, Kind: "directory"}); err != nil {
			return err
		}
	}
	for _, f := range c.cfg.Files {
		if f.Append {
			continue // the plan refuses it
		}
		uid, gid, err := c.owner("files", f.Path, f.Owner)
		if err != nil {
			return err
		}
		n := files.Node{Type: files.Regular, Mode: f.Mode, UID: uid, GID: gid, Data: f.Contents, AnyData: f.NoContents}
		if err := c.want(files.Want{Path: f.Path, Node: n, Kind: "file"}); err != nil {
			return err
		}
	}
	for _, l := range c.cfg.Links {
		uid, gid, err := c.owner("links", l.Path, l.Owner)
		if err != nil {
			return err
		}
		w := files.Want{Path: l.Path, Kind: "link"}
		if l.Hard {
			w.HardTo = path.Clean(path.Join(path.Dir(l.Path), l.Target))
			if path.IsAbs(l.Target) {
				w.HardTo = path.Clean(l.Target)
			}
		} else {
			w.Node = files.Node{Type: files.Symlink, Target: l.Target, UID: uid, GID: gid}
		}
		if err := c.want(w); err != nil {
			return err
		}
	}
	return nil
}

// Linkable refuses an enablement link in the place of a directory that is not empty: the directory would have to be
// removed, and its owner is unknown. systemd ignores anything but a link there, so the unit would never start.
func (c *Layout) Linkable() error {
	for _, w := range c.Wants {
		if w.Aspect != files.Enabled || w.Node.Type != files.Symlink {
			continue
		}
		n, err := c.view.Inspect(w.Path)
		if err != nil {
			return err
		}
		if n.Type != files.Directory {
			continue
		}
		held, err := c.view.ReadDir(w.Path)
		if err != nil {
			return err
		}
		if len(held) > 0 {
			return fmt.Errorf("systemd.units %s: enabling the unit needs a link at %s, but a directory with %s is there: "+
				"move the directory away", w.Name, w.Path, held[0])
		}
	}
	return nil
}

// owner resolves names by the host's users, never by those of the machine or container that this process runs in.
func (c *Layout) owner(list, name string, o machineconfig.Owner) (uid, gid int, err error) {
	switch {
	case o.UID != nil:
		uid = *o.UID
	case o.User == "root": // also on a tree that has no users yet
	case o.User != "":
		a, ok := c.accounts.User(o.User)
		if !ok {
			return 0, 0, fmt.Errorf("storage.%s %s: user.name: user %q does not exist on this host", list, name, o.User)
		}
		uid = a.UID
	}
	switch {
	case o.GID != nil:
		gid = *o.GID
	case o.Group == "root":
	case o.Group != "":
		g, ok := c.accounts.Group(o.Group)
		if !ok {
			return 0, 0, fmt.Errorf("storage.%s %s: group.name: group %q does not exist on this host", list, name, o.Group)
		}
		gid = g
	}
	return uid, gid, nil
}

func (c *Layout) units() error {
	before := map[string]machineconfig.Unit{}
	if c.old != nil {
		for _, u := range merging(c.old) {
			before[u.Name] = u
		}
	}
	var units []systemd.Unit
	for _, u := range merging(c.cfg) {
		was, known := before[u.Name]
		delete(before, u.Name)
		was.Mask, u.Mask = was.Masking(), u.Masking()
		s := systemd.Unit{Name: u.Name, Contents: u.Contents, Enabled: u.Enabled, Mask: u.Mask,
			Preset:   u.Enabled == nil && (!known || !reflect.DeepEqual(was, u)),
			Released: known && ownsUnitFile(was) && !ownsUnitFile(u)}
		for _, d := range u.Dropins {
			s.Dropins = append(s.Dropins, systemd.Dropin{Name: d.Name, Contents: d.Contents})
		}
		if err := systemd.Validate(s); err != nil {
			return fmt.Errorf("systemd.units %s: %w", u.Name, err)
		}
		units = append(units, s)
	}
	var released []string
	for name := range before {
		released = append(released, name)
	}
	slices.Sort(released)
	wants, warnings, err := systemd.Wants(c.view, units, released, past{c})
	if err != nil {
		return fmt.Errorf("systemd.units: %w", err)
	}
	c.Warnings = append(c.Warnings, warnings...)
	for _, w := range wants {
		if err := c.want(w); err != nil {
			return err
		}
	}
	return c.releaseLinks(released)
}

// merging returns the units of a configuration. One that brings extensions of the system enables the units that merge
// them, unless it says something else of such a unit.
func merging(cfg *machineconfig.Config) []machineconfig.Unit {
	units := cfg.Units
	for _, name := range sysext.Units(cfg) {
		if !slices.ContainsFunc(cfg.Units, func(u machineconfig.Unit) bool { return u.Name == name }) {
			units = append(slices.Clone(units), machineconfig.Unit{Name: name, Enabled: new(true)})
		}
	}
	return units
}

// ManagedUsers returns the users of a configuration whose keys and passwords are managed.
func ManagedUsers(cfg *machineconfig.Config) []sshkeys.User {
	var out []sshkeys.User
	if cfg == nil {
		return nil
	}
	for _, u := range cfg.Users {
		out = append(out, sshkeys.User{Name: u.Name, Keys: u.Keys, PasswordHash: u.PasswordHash})
	}
	return out
}

func (c *Layout) users() error {
	users, previous := ManagedUsers(c.cfg), ManagedUsers(c.old)
	if len(users) == 0 && len(previous) == 0 {
		return nil
	}
	wants, err := sshkeys.Wants(c.accounts, users, previous)
	if err != nil {
		return err
	}
	for _, w := range wants {
		if w.Node.Type == files.Absent {
			err = c.letGo(w)
		} else {
			err = c.want(w)
		}
		if err != nil {
			return err
		}
	}
	current, err := c.view.ReadFile(ShadowPath)
	if errors.Is(err, fs.ErrNotExist) {
		current, err = nil, nil
	}
	if err != nil {
		return fmt.Errorf("passwd.users: %w", err)
	}
	edited, touched, err := sshkeys.Shadow(current, users, previous)
	if err != nil || len(touched) == 0 {
		return err
	}
	n, err := c.view.Inspect(ShadowPath)
	if err != nil {
		return err
	}
	if n.Type != files.Regular {
		return fmt.Errorf("passwd.users: setting the password of %s: %s is %s on this host", touched[0], ShadowPath, n.Type)
	}
	n.Data = edited
	return c.want(files.Want{Path: ShadowPath, Node: n, Kind: "password", Name: strings.Join(touched, " ")})
}

// pointer makes the configuration readable at the path where people look for it.
func (c *Layout) pointer() error {
	return c.want(files.Want{Path: currentConfig,
		Node: files.Node{Type: files.Symlink, Target: transaction.ConfigPath(c.cfg.Digest)}})
}
