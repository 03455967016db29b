// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/noderefit/noderefit/test/standin/rpmostree/catalogue"
	"github.com/noderefit/noderefit/test/standin/rpmostree/fault"
)

// The metadata of a commit that was composed on this machine.
const (
	metaLayer    = "rpmostree.clientlayer"
	metaVersion  = "rpmostree.clientlayer_version"
	metaPackages = "rpmostree.packages"
	metaRemoved  = "rpmostree.removed-base-packages"
	metaReplaced = "rpmostree.replaced-base-packages"
)

// Where packages stay for later composes. rpm-ostree imports them into the repository.
const (
	packageCache  = "/var/lib/rpm-ostree-stand-in/packages" // local ones, by their digests
	importedCache = "/var/lib/rpm-ostree-stand-in/imported" // those of repositories
)

// layers is what a compose does to the packages of a base.
type layers struct {
	active   []string               // requests that a package was found for; the others the base provides
	install  []catalogue.Package    // they and what they require
	remove   []catalogue.Package    // from the base
	replaced [][2]catalogue.Package // new and old
}

func (l layers) none() bool { return len(l.active)+len(l.install)+len(l.remove)+len(l.replaced) == 0 }

// basePackages are those of a commit.
func basePackages(ctx context.Context, checksum string) ([]catalogue.Package, error) {
	if _, err := tool(ctx, "ls", "--repo="+repository, checksum, catalogue.DatabaseDir); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, nil // a tree without a database has no packages that we know of
	}
	dir, err := os.MkdirTemp("", "rpm-ostree.")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	at := filepath.Join(dir, "db")
	if _, err := tool(ctx, "checkout", "--repo="+repository, "--user-mode", "--subpath="+catalogue.DatabaseDir,
		checksum, at); err != nil {
		return nil, err
	}
	return catalogue.ReadPackages(at)
}

// availablePackages are those of the enabled repositories of /etc/yum.repos.d whose baseurl is a directory.
func availablePackages() ([]catalogue.Package, error) {
	files, err := filepath.Glob("/etc/yum.repos.d/*.repo")
	if err != nil {
		return nil, err
	}
	var all []catalogue.Package
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		k := parseKeyfile(string(text))
		for _, g := range k.groups {
			dir, ok := strings.CutPrefix(k.get(g.name, "baseurl"), "file://")
			if !ok || k.get(g.name, "enabled") == "0" {
				continue
			}
			packages, err := catalogue.ReadPackages(dir)
			optional := slices.Contains([]string{"1", "True", "true"}, k.get(g.name, "skip_if_unavailable"))
			if errors.Is(err, fs.ErrNotExist) && !optional {
				// The words are libdnf's as far as they are known.
				return nil, guess("Updating rpm-md repo '%s': cannot update repo '%s': Cannot download repomd.xml: "+
					"Cannot download repodata/repomd.xml: All mirrors were tried", g.name, g.name)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			all = append(all, packages...)
		}
	}
	return all, nil
}

// knownPackages are the available packages, and before these what was imported from a repository. rpm-ostree goes by
// its copy of the repository's metadata for long, and needs no download of what it has.
func knownPackages() ([]catalogue.Package, error) {
	imported, err := catalogue.ReadPackages(importedCache)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	available, err := availablePackages()
	for _, p := range imported {
		if !slices.ContainsFunc(available, func(a catalogue.Package) bool { return a.NEVRA() == p.NEVRA() }) {
			available = append(available, p)
		}
	}
	return available, err
}

// pruneCache removes the packages that no deployment has.
func pruneCache(all []*deployment) error {
	imported, err := catalogue.ReadPackages(importedCache)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, p := range imported {
		if slices.ContainsFunc(all, func(d *deployment) bool {
			data, err := os.ReadFile(filepath.Join(d.dir(), catalogue.DatabaseDir, p.Name+".json"))
			if err != nil {
				return false
			}
			there, _, err := catalogue.ParsePackage(data)
			return err == nil && there.NEVRA() == p.NEVRA()
		}) {
			continue
		}
		if err := os.Remove(filepath.Join(importedCache, p.NEVRA()+".rpm")); err != nil {
			return err
		}
	}
	return nil
}

// localPackage reads a package that was imported, by DIGEST:NEVRA.
func localPackage(name string) (catalogue.Package, error) {
	digest, _, _ := strings.Cut(name, ":")
	data, err := os.ReadFile(filepath.Join(packageCache, digest+".rpm"))
	if err != nil {
		return catalogue.Package{}, err
	}
	p, _, err := catalogue.ParsePackage(data)
	return p, err
}

// importPackage keeps the local package that is open as file, and returns its DIGEST:NEVRA.
func importPackage(fd int) (string, catalogue.Package, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return "", catalogue.Package{}, err
	}
	p, digest, err := catalogue.ParsePackage(data)
	if err != nil {
		return "", p, err
	}
	err = errors.Join(os.MkdirAll(packageCache, 0o755),
		os.WriteFile(filepath.Join(packageCache, digest+".rpm"), data, 0o644))
	return digest + ":" + p.NEVRA(), p, err
}

// solve finds what the origin's requests are on a base.
func solve(o *origin, base, available []catalogue.Package) (layers, error) {
	var l layers
	final := slices.Clone(base)
	drop := func(name string) (catalogue.Package, bool) {
		at := slices.IndexFunc(final, func(p catalogue.Package) bool { return p.Name == name })
		if at < 0 {
			return catalogue.Package{}, false
		}
		p := final[at]
		final = slices.Delete(final, at, at+1)
		return p, true
	}
	for _, name := range o.Removed {
		if p, ok := drop(name); ok { // one that the base does not have is inactive
			l.remove = append(l.remove, p)
		}
	}
	for _, name := range o.Replaced {
		p, err := localPackage(name)
		if err != nil {
			return l, err
		}
		if old, ok := drop(p.Name); ok {
			l.replaced = append(l.replaced, [2]catalogue.Package{p, old})
			final = append(final, p)
		}
	}
	add := func(p catalogue.Package) {
		final = append(final, p)
		l.install = append(l.install, p)
	}
	for _, name := range o.Local {
		p, err := localPackage(name)
		if err != nil {
			return l, err
		}
		l.active = append(l.active, p.NEVRA())
		add(p)
	}
	var missing []string
	for _, request := range o.Requested {
		if slices.ContainsFunc(base, matching(request)) && slices.ContainsFunc(final, matching(request)) {
			continue // inactive: the base has it
		}
		l.active = append(l.active, request)
		if slices.ContainsFunc(final, matching(request)) {
			continue
		}
		if at := slices.IndexFunc(available, matching(request)); at >= 0 {
			add(available[at])
		} else {
			missing = append(missing, request)
		}
	}
	if len(missing) > 0 {
		return l, original("Packages not found: %s", strings.Join(inOrder(missing), ", "))
	}
	// final grows while it is gone through, until nothing is required any more.
	for i := 0; i < len(final); i++ { //nolint:intrange // a range would not grow
		for _, capability := range final[i].Requires {
			if slices.ContainsFunc(final, matching(capability)) {
				continue
			}
			at := slices.IndexFunc(available, matching(capability))
			removed := slices.ContainsFunc(l.remove, matching(capability))
			if removed {
				return l, original("Could not depsolve transaction; 1 problem detected:\n Problem: package %s from @System "+
					"requires %s, but none of the providers can be installed\n  - conflicting requests",
					final[i].NEVRA(), capability)
			}
			if at < 0 {
				// The words are libdnf's as far as they are known.
				return l, guess("Could not depsolve transaction; 1 problem detected:\n Problem: conflicting requests\n"+
					"  - nothing provides %s needed by %s", capability, final[i].NEVRA())
			}
			add(available[at])
		}
	}
	return l, nil
}

func matching(request string) func(catalogue.Package) bool {
	return func(p catalogue.Package) bool { return p.Matches(request) }
}

// tupleText is a package in GVariant's text form, as rpm-ostree's metadata and status have it.
func tupleText(p catalogue.Package) string {
	return fmt.Sprintf("('%s', '%s', uint64 %d, '%s', '%s', '%s')",
		p.NEVRA(), p.Name, p.Epoch, p.Version, p.Release, p.Arch)
}

// announce says what would be done, in place of doing it.
func (l layers) announce(t *transaction) {
	for _, part := range []struct {
		doing    string
		packages []catalogue.Package
		from     string
	}{{"Installing", l.install, " (lab)"}, {"Removing", l.remove, " (@System)"}} {
		if len(part.packages) == 0 {
			continue
		}
		lines := []string{fmt.Sprintf("%s %d packages:", part.doing, len(part.packages))}
		for _, p := range part.packages {
			lines = append(lines, "  "+p.NEVRA()+part.from)
		}
		t.say("%s", strings.Join(lines, "\n"))
	}
}

// layer gives the commit of an origin's layers on a base: the base itself where there is nothing to be layered. It
// takes the place of the commit before, and is never the same.
func layer(ctx context.Context, t *transaction, base string, before *commit, o *origin, l layers) (string, error) {
	if l.none() && !o.RegenerateRAM {
		return base, nil
	}
	committing := func(err error) error {
		if errors.Is(err, errCancelled) {
			return original("Committing: %v", err)
		}
		return err
	}
	if err := fault.Pass(ctx, fault.Compose); err != nil {
		return "", committing(err)
	}
	below, err := readCommit(base)
	if err != nil {
		return "", err
	}
	for _, p := range l.install {
		if _, err := p.Write(importedCache); err != nil {
			return "", err
		}
	}
	var checksum string
	err = t.task("Writing OSTree commit", func() (err error) {
		// A compose takes longer than the second that the time in a commit counts in.
		at := max(uint64(time.Now().Unix()), before.timestamp+1)
		checksum, err = compose(ctx, below, l, at, func(text string) { t.say("%s", text) })
		return err
	})
	return checksum, committing(err)
}

// recompose gives the commit of a deployment once more. It asks no repository.
func recompose(ctx context.Context, t *transaction, d *deployment) (string, error) {
	now, err := readCommit(d.checksum)
	if err != nil || !now.layered() {
		return d.checksum, err
	}
	base, err := basePackages(ctx, now.parent)
	if err != nil {
		return "", err
	}
	imported, err := catalogue.ReadPackages(importedCache)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	l, err := solve(d.origin, base, imported)
	if err != nil {
		return "", err
	}
	return layer(ctx, t, now.parent, now, d.origin, l)
}

// compose makes the commit of the layers on a base, and returns its checksum. Nothing refers to it.
func compose(ctx context.Context, base *commit, l layers, at uint64, say func(string)) (string, error) {
	work, err := os.MkdirTemp("/var/tmp", "rpm-ostree.")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	tree := filepath.Join(work, "tree")
	put := func(path, content string) error {
		if strings.HasPrefix(path, "/etc/") {
			path = "/usr" + path
		}
		path = filepath.Join(tree, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, []byte(content), 0o644)
	}
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return "", err
	}
	gone := map[string]bool{}
	for _, p := range l.remove {
		leave(p, gone)
	}
	for _, pair := range l.replaced {
		leave(pair[1], gone)
	}
	packages := slices.Clone(l.install)
	for _, pair := range l.replaced {
		packages = append(packages, pair[0])
	}
	for _, p := range packages {
		for path, content := range p.Files {
			if err := put(path, content); err != nil {
				return "", err
			}
		}
		if release := p.Kernel(); release != "" {
			say("Generating initramfs")
			if err := put("/usr/lib/modules/"+release+"/initramfs.img", "initramfs of "+p.NEVRA()+"\n"); err != nil {
				return "", err
			}
		}
		file, err := p.Write(work)
		if err != nil {
			return "", err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		if err := put(catalogue.DatabaseDir+"/"+p.Name+".json", string(text)); err != nil {
			return "", err
		}
	}
	from := base.checksum
	if len(gone) > 0 {
		// Nothing of it may be left, nor be in the way of what comes; so the base has to be gone through file by file.
		if from, err = commitWithout(ctx, from, gone, work); err != nil {
			return "", err
		}
	}
	argv := append(layerMetadata(base, l), "--parent="+base.checksum, fmt.Sprintf("--timestamp=@%d", at),
		"--tree=ref="+from, "--tree=dir="+tree)
	return commitTree(ctx, append(argv, "--bootable")...) // which refuses a tree with no kernel, or several
}

// leave adds what goes with a package.
func leave(p catalogue.Package, gone map[string]bool) {
	for path := range p.Files {
		if strings.HasPrefix(path, "/etc/") {
			path = "/usr" + path
		}
		gone[path] = true
	}
	if release := p.Kernel(); release != "" {
		gone["/usr/lib/modules/"+release+"/initramfs.img"] = true
	}
	gone[catalogue.DatabaseDir+"/"+p.Name+".json"] = true
}

// commitWithout makes a commit of a tree without some files.
func commitWithout(ctx context.Context, checksum string, gone map[string]bool, work string) (string, error) {
	var list strings.Builder
	for path := range gone {
		list.WriteString(path + "\n")
	}
	file := filepath.Join(work, "skip")
	if err := os.WriteFile(file, []byte(list.String()), 0o600); err != nil {
		return "", err
	}
	return commitTree(ctx, "--skip-list="+file, "--tree=ref="+checksum)
}

// commitTree makes a commit that no ref names.
func commitTree(ctx context.Context, argv ...string) (string, error) {
	return tool(ctx, append([]string{"commit", "--repo=" + repository, "--orphan", "--no-bindings"}, argv...)...)
}

func layerMetadata(base *commit, l layers) []string {
	quoted := make([]string, 0, len(l.active))
	for _, name := range l.active {
		quoted = append(quoted, strconv.Quote(name))
	}
	var removed, replaced []string
	for _, p := range l.remove {
		removed = append(removed, "<"+tupleText(p)+">")
	}
	for _, pair := range l.replaced {
		replaced = append(replaced, "(<"+tupleText(pair[0])+">, <"+tupleText(pair[1])+">)")
	}
	argv := []string{
		"--add-metadata=" + metaLayer + "=true",
		"--add-metadata=" + metaVersion + "=uint32 6",
		"--add-metadata=" + metaPackages + "=@as [" + strings.Join(quoted, ", ") + "]",
		"--add-metadata=" + metaRemoved + "=@av [" + strings.Join(removed, ", ") + "]",
		"--add-metadata=" + metaReplaced + "=@a(vv) [" + strings.Join(replaced, ", ") + "]",
	}
	if version := base.text("version"); version != "" {
		argv = append(argv, "--add-metadata-string=version="+version)
	}
	return argv
}
