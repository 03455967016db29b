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

	"github.com/noderefit/noderefit/test/rpmostree/catalogue"
)

// The metadata of a commit that was composed on this machine.
const (
	metaLayer    = "rpmostree.clientlayer"
	metaVersion  = "rpmostree.clientlayer_version"
	metaPackages = "rpmostree.packages"
	metaRemoved  = "rpmostree.removed-base-packages"
	metaReplaced = "rpmostree.replaced-base-packages"
)

// packageCache is where local packages stay for later composes. rpm-ostree imports them into the repository.
const packageCache = "/var/lib/rpm-ostree-stand-in/packages"

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
		return l, original("Packages not found: %s", strings.Join(missing, ", "))
	}
	// final grows while it is gone through, until nothing is required any more.
	for i := 0; i < len(final); i++ { //nolint:intrange // a range would not grow
		for _, capability := range final[i].Requires {
			if slices.ContainsFunc(final, matching(capability)) {
				continue
			}
			at := slices.IndexFunc(available, matching(capability))
			removed := slices.ContainsFunc(l.remove, matching(capability))
			if at < 0 || removed {
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

// compose makes the commit of the layers on a base, and returns its checksum. Nothing refers to it.
func compose(ctx context.Context, base *commit, l layers, say func(string)) (string, error) {
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
	argv := append(layerMetadata(base, l), "--parent="+base.checksum, "--tree=ref="+from, "--tree=dir="+tree)
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
