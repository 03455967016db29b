// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/noderefit/noderefit/kargs"
	"github.com/noderefit/noderefit/machineconfig"
)

// differences lists the changes by kind, and by name within a kind.
func differences(current, desired *machineconfig.Config, opts Options) ([]Change, error) {
	var all []Change
	take := func(c Change) { all = append(all, c) }
	collect := func(ds []difference, err error, change func(difference) Change) error {
		for _, d := range ds {
			c := change(d)
			c.Op, c.What = d.op, d.what
			take(c)
		}
		return err
	}

	ds, err := compare(current.Files, desired.Files,
		func(f machineconfig.File) string { return f.Path },
		func(a, b machineconfig.File) []What { return fileChange(a, b, opts.Satisfied != nil) })
	// Appending is refused, so no such change exists. A file that was appended to counts as present.
	appended := make(map[string]bool)
	for _, f := range desired.Files {
		appended[f.Path] = f.Append
	}
	ds = slices.DeleteFunc(ds, func(d difference) bool { return appended[d.key] })
	if err := collect(ds, err, func(d difference) Change {
		return Change{Kind: File, Path: d.key, Contents: fetchedFrom(desired, d.key)}
	}); err != nil {
		return nil, err
	}
	ds, err = compare(current.Directories, desired.Directories,
		func(d machineconfig.Directory) string { return d.Path }, directoryChange)
	if err := collect(ds, err, func(d difference) Change { return Change{Kind: Directory, Path: d.key} }); err != nil {
		return nil, err
	}
	ds, err = compare(current.Links, desired.Links,
		func(l machineconfig.Link) string { return l.Path }, linkChange)
	if err := collect(ds, err, func(d difference) Change { return Change{Kind: Link, Path: d.key} }); err != nil {
		return nil, err
	}
	ds, err = compare(ownUnits(current.Units), ownUnits(desired.Units),
		func(u machineconfig.Unit) string { return u.Name }, unitChange)
	if err := collect(ds, err, func(d difference) Change { return Change{Kind: Unit, Name: d.key} }); err != nil {
		return nil, err
	}
	if err := dropinChanges(current.Units, desired.Units, opts.Satisfied, take); err != nil {
		return nil, err
	}
	if err := userChanges(current.Users, desired.Users, opts.Satisfied, take); err != nil {
		return nil, err
	}
	for _, c := range osChanges(current, desired, opts) {
		take(c)
	}
	return all, nil
}

// difference is what became of the item with one key.
type difference struct {
	key  string
	op   Op
	what []What
}

// compare finds the differences between two lists, in any order, and returns them sorted by key. Two items with one key
// are an error. A validated configuration has none.
func compare[T any](current, desired []T, key func(T) string, what func(a, b T) []What) ([]difference, error) {
	old, err := index(current, key)
	if err != nil {
		return nil, fmt.Errorf("reading the current configuration: %w", err)
	}
	wanted, err := index(desired, key)
	if err != nil {
		return nil, fmt.Errorf("reading the desired configuration: %w", err)
	}
	var out []difference
	for k, was := range old {
		if is, ok := wanted[k]; !ok {
			out = append(out, difference{key: k, op: Remove})
		} else if w := what(current[was], desired[is]); len(w) > 0 {
			out = append(out, difference{key: k, op: Modify, what: w})
		}
	}
	for k := range wanted {
		if _, ok := old[k]; !ok {
			out = append(out, difference{key: k, op: Add})
		}
	}
	slices.SortFunc(out, func(a, b difference) int { return cmp.Compare(a.key, b.key) })
	return out, nil
}

func index[T any](things []T, key func(T) string) (map[string]int, error) {
	at := make(map[string]int, len(things))
	for i, thing := range things {
		k := key(thing)
		if _, ok := at[k]; ok {
			return nil, fmt.Errorf("%s is listed twice", k)
		}
		at[k] = i
	}
	return at, nil
}

// fileChange compares files. If the desired file has no contents, the bytes stay. They do not stay if the host keeps
// other bytes from before the current configuration. Only the host can tell.
func fileChange(a, b machineconfig.File, askHost bool) (what []What) {
	differs := a.NoContents || !machineconfig.SameContents(&a, &b)
	if b.NoContents {
		differs = askHost && !a.NoContents
	}
	if differs || a.Append {
		what = append(what, Contents)
	}
	if a.Mode != b.Mode {
		what = append(what, Mode)
	}
	if !sameOwner(a.Owner, b.Owner) {
		what = append(what, Owner)
	}
	return what
}

// fetchedFrom returns where a node fetches the contents of a file, "" where it does not.
func fetchedFrom(c *machineconfig.Config, name string) string {
	at := slices.IndexFunc(c.Files, func(f machineconfig.File) bool { return f.Path == name })
	if at < 0 || c.Files[at].Reference == nil {
		return ""
	}
	return c.Files[at].Reference.String()
}

func directoryChange(a, b machineconfig.Directory) (what []What) {
	if a.Mode != b.Mode {
		what = append(what, Mode)
	}
	if !sameOwner(a.Owner, b.Owner) {
		what = append(what, Owner)
	}
	return what
}

func linkChange(a, b machineconfig.Link) (what []What) {
	if a.Hard != b.Hard {
		what = append(what, Type)
	}
	if a.Target != b.Target {
		what = append(what, Target)
	}
	// A hard link has the owner of its target.
	if !a.Hard && !b.Hard && !sameOwner(a.Owner, b.Owner) {
		what = append(what, Owner)
	}
	return what
}

// sameOwner compares owners as written. Only the host knows whether a name and an id are the same account, except for
// root.
func sameOwner(a, b machineconfig.Owner) bool {
	return account(a.UID, a.User) == account(b.UID, b.User) && account(a.GID, a.Group) == account(b.GID, b.Group)
}

func account(id *int, name string) string {
	switch {
	case id != nil:
		return strconv.Itoa(*id)
	case name == "" || name == "root":
		return "0"
	}
	return "name " + name
}

// ownUnits returns the units that the configuration manages beyond their drop-ins.
func ownUnits(units []machineconfig.Unit) []machineconfig.Unit {
	return slices.DeleteFunc(slices.Clone(units), func(u machineconfig.Unit) bool {
		return u.Contents == "" && u.Enabled == nil && u.Mask == nil
	})
}

func unitChange(a, b machineconfig.Unit) (what []What) {
	if a.Contents != b.Contents {
		what = append(what, Contents)
	}
	if !sameBool(a.Enabled, b.Enabled) {
		what = append(what, Enabled)
	}
	if !sameBool(a.Masking(), b.Masking()) {
		what = append(what, Masked)
	}
	return what
}

// sameBool compares flags. An unset flag differs from false: the first leaves the matter to presets or the admin, the
// second decides it.
func sameBool(a, b *bool) bool { return a == b || a != nil && b != nil && *a == *b }

// dropin is one drop-in, by its name in a plan.
type dropin struct{ name, contents string }

// dropins returns the drop-ins of all units that have contents, and the names of drop-ins that must not exist.
func dropins(units []machineconfig.Unit) (there []dropin, absent []string) {
	for _, u := range units {
		for _, d := range u.Dropins {
			name := u.Name + "/" + d.Name
			if d.Contents == "" {
				absent = append(absent, name)
			} else {
				there = append(there, dropin{name, d.Contents})
			}
		}
	}
	return there, absent
}

func dropinChanges(current, desired []machineconfig.Unit, satisfied func(Change) bool, take func(Change)) error {
	old, oldAbsent := dropins(current)
	wanted, absent := dropins(desired)
	ds, err := compare(old, wanted, func(d dropin) string { return d.name }, func(a, b dropin) []What {
		if a.contents == b.contents {
			return nil
		}
		return []What{Contents}
	})
	if err != nil {
		return err
	}
	// A drop-in that neither configuration has may still be on the host. Only a host can tell. Without a host it is taken
	// to be absent.
	asked := make(map[string]bool)
	if satisfied != nil {
		for _, name := range absent {
			had := slices.ContainsFunc(old, func(d dropin) bool { return d.name == name })
			if !had && !slices.Contains(oldAbsent, name) && !asked[name] {
				asked[name] = true
				if satisfied(Change{Kind: Dropin, Name: name, Op: Remove}) {
					continue
				}
				ds = append(ds, difference{key: name, op: Remove})
			}
		}
		slices.SortFunc(ds, func(a, b difference) int { return cmp.Compare(a.key, b.key) })
	}
	for _, d := range ds {
		take(Change{Kind: Dropin, Name: d.key, Op: d.op, What: d.what})
	}
	return nil
}

// userChanges compares users, their keys and their password hashes. Keys are compared in their order, as they are in
// the file that verify compares. Accounts belong to the host. An account changes only where the configuration sets more
// than keys and password, and sets it differently than before.
func userChanges(current, desired []machineconfig.User, satisfied func(Change) bool, take func(Change)) error {
	name := func(u machineconfig.User) string { return u.Name }
	accounts, err := compare(current, desired, name, func(a, b machineconfig.User) []What {
		if len(rawChanges(a.Other, b.Other)) == 0 {
			return nil
		}
		return []What{Account}
	})
	if err != nil {
		return err
	}
	left := slices.Clone(accounts)
	described := with(desired, func(u machineconfig.User) bool { return len(u.Other) > 0 })
	accounts = slices.DeleteFunc(accounts, func(d difference) bool {
		return d.op == Remove || d.op == Add &&
			!slices.ContainsFunc(described, func(u machineconfig.User) bool { return u.Name == d.key })
	})
	keys, err := compare(with(current, hasKeys), with(desired, hasKeys), name, func(a, b machineconfig.User) []What {
		if slices.Equal(a.Keys, b.Keys) {
			return nil
		}
		return []What{Contents}
	})
	if err != nil {
		return err
	}
	hashes, err := compare(with(current, hasHash), with(desired, hasHash), name, func(a, b machineconfig.User) []What {
		if *a.PasswordHash == *b.PasswordHash {
			return nil
		}
		return []What{Contents}
	})
	if err != nil {
		return err
	}
	for _, d := range left {
		gone := Change{Kind: Password, User: d.key, Op: Remove}
		if d.op == Remove && satisfied != nil && !satisfied(gone) && !slices.ContainsFunc(hashes, same(d.key)) {
			hashes = append(hashes, d)
		}
	}
	slices.SortFunc(hashes, func(a, b difference) int { return cmp.Compare(a.key, b.key) })
	for _, part := range []struct {
		kind Kind
		ds   []difference
	}{{User, accounts}, {SSHKeys, keys}, {Password, hashes}} {
		for _, d := range part.ds {
			take(Change{Kind: part.kind, User: d.key, Op: d.op, What: d.what})
		}
	}
	return nil
}

func same(key string) func(difference) bool { return func(d difference) bool { return d.key == key } }

func hasKeys(u machineconfig.User) bool { return len(u.Keys) > 0 }
func hasHash(u machineconfig.User) bool { return u.PasswordHash != nil }

func with(users []machineconfig.User, has func(machineconfig.User) bool) (out []machineconfig.User) {
	for _, u := range users {
		if has(u) {
			out = append(out, u)
		}
	}
	return out
}

// osChanges compares what a deployment carries. If the desired configuration has no image, the image does not change:
// the host keeps its image.
func osChanges(current, desired *machineconfig.Config, opts Options) (out []Change) {
	from := OS{current.OSImageURL, current.KernelType, current.Extensions, current.KernelArguments}
	if opts.OS != nil {
		from = *opts.OS
	}
	var del, app []string
	if host := opts.Kargs; host != nil {
		del, app, _ = kargs.Own(host.CommandLine, host.Owned, desired.KernelArguments)
	} else {
		del, app = kargs.Diff(from.KernelArguments, desired.KernelArguments)
	}
	if len(del)+len(app) > 0 {
		out = append(out, Change{Kind: Kargs, Delete: list(del), Append: list(app)})
	}
	was := cmp.Or(from.KernelType, machineconfig.KernelDefault)
	is := cmp.Or(desired.KernelType, machineconfig.KernelDefault)
	if was != is {
		out = append(out, Change{Kind: KernelType, From: was, To: is})
	}
	install, uninstall := without(desired.Extensions, from.Extensions), without(from.Extensions, desired.Extensions)
	if len(install)+len(uninstall) > 0 {
		packages := make(map[string][]string)
		for _, name := range slices.Concat(install, uninstall) {
			packages[name] = packagesOf(name)
		}
		out = append(out, Change{Kind: Extensions, Install: install, Uninstall: uninstall, Packages: packages})
	}
	if desired.OSImageURL != "" && desired.OSImageURL != from.ImageURL {
		out = append(out, Change{Kind: OSImage, From: from.ImageURL, To: desired.OSImageURL})
	}
	return out
}

// without returns the sorted set of the elements of a that b lacks.
func without(a, b []string) []string {
	set := make(map[string]bool)
	for _, s := range a {
		set[s] = true
	}
	for _, s := range b {
		delete(set, s)
	}
	return list(slices.Sorted(maps.Keys(set)))
}
