// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/rpmostree/catalogue"
)

// needs is what the tree of a real rpm-ostree has to have, beside what the lab's tree has. Of each row one path is
// enough.
var needs = []struct {
	paths []string
	why   string
}{
	{[]string{"usr/bin/rpm-ostree"}, "the program"},
	{[]string{"usr/lib/systemd/system/rpm-ostreed.service"}, "its service"},
	{[]string{"usr/share/dbus-1/system-services/org.projectatomic.rpmostree1.service"}, "how the bus starts it"},
	{[]string{
		"usr/share/dbus-1/system.d/org.projectatomic.rpmostree1.conf",
		"usr/etc/dbus-1/system.d/org.projectatomic.rpmostree1.conf",
	}, "what the bus lets it do"},
	{[]string{"usr/bin/bwrap"}, "Debian's bubblewrap, in which scripts of packages run"},
	{[]string{"usr/bin/fusermount3", "usr/bin/fusermount"}, "Debian's fuse3, with which it composes"},
	{[]string{"usr/bin/rpm"}, "Debian's rpm, with which it rewrites the database"},
	{[]string{"usr/bin/skopeo"}, "Debian's skopeo, with which it reads images"},
	{[]string{"usr/bin/depmod", "usr/sbin/depmod"}, "Debian's kmod, for a kernel that is layered"},
	{[]string{"usr/bin/dracut"}, "a dracut: one that writes a file is enough, the lab's kernel is a text"},
	{[]string{"usr/sbin/semodule", "usr/bin/semodule"}, "a semodule, which may do nothing"},
	{[]string{"usr/etc/selinux/config"}, "a policy: without one nothing is layered. It need not be enforced"},
	{[]string{"usr/lib/sysusers.d/rpm-ostree.conf", "usr/lib/userdb/rpm-ostree.user"},
		"the user rpm-ostree, as whom skopeo runs"},
}

// tools are what this machine needs for hosts with a real rpm-ostree: what makes packages, and what ostree runs the
// semodule of a deployment with a policy in.
var tools = []struct{ program, debian string }{{"rpmbuild", "rpm"}, {"rpm", "rpm"}, {"createrepo_c", "createrepo-c"},
	{"bwrap", "bubblewrap"}}

// checkReal says everything that a tree, or this machine, lacks for hosts with a real rpm-ostree; nil if nothing.
func checkReal(tree string) error {
	var missing []string
	for _, need := range needs {
		if !slices.ContainsFunc(need.paths, func(path string) bool {
			_, err := os.Lstat(filepath.Join(tree, path))
			return err == nil
		}) {
			missing = append(missing, strings.Join(need.paths, " or ")+" ("+need.why+")")
		}
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool.program); err != nil {
			missing = append(missing, "on this machine "+tool.program+" (apt-get install "+tool.debian+")")
		}
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		missing = append(missing, "on this machine /dev/fuse")
	}
	if len(missing) > 0 {
		return fmt.Errorf("looking at the tree %s, which RPM_OSTREE names: it lacks\n\t%s", tree,
			strings.Join(missing, "\n\t"))
	}
	return nil
}

// libraryDirs are where the loader of a host looks for libraries.
var libraryDirs = []string{"usr/lib/x86_64-linux-gnu", "usr/lib", "usr/lib64", "usr/lib/aarch64-linux-gnu"}

// missingLibraries returns the libraries of a program that neither the tree nor the host has. has says what the host
// has.
func missingLibraries(tree, program string, has func(path string) bool) ([]string, error) {
	var missing []string
	seen := map[string]bool{}
	for queue := []string{program}; len(queue) > 0; queue = queue[1:] {
		file, err := elf.Open(queue[0])
		if err != nil {
			return nil, fmt.Errorf("reading what %s is linked with: %w", queue[0], err)
		}
		names, err := file.ImportedLibraries()
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("reading what %s is linked with: %w", queue[0], err)
		}
		for _, name := range names {
			if seen[name] {
				continue
			}
			seen[name] = true
			at := slices.IndexFunc(libraryDirs, func(dir string) bool {
				_, err := os.Stat(filepath.Join(tree, dir, name))
				return err == nil
			})
			if at >= 0 {
				queue = append(queue, filepath.Join(tree, libraryDirs[at], name))
			} else if !slices.ContainsFunc(libraryDirs, func(dir string) bool { return has(filepath.Join("/", dir, name)) }) {
				missing = append(missing, name)
			}
		}
	}
	return missing, nil
}

// furnishReal copies the tree of a real rpm-ostree, and refuses one whose program could not be loaded on the host.
func furnishReal(ctx context.Context, tree, repo string, p Program) error {
	missing, err := missingLibraries(p.Path, filepath.Join(p.Path, "usr/bin/rpm-ostree"), func(path string) bool {
		return exec.CommandContext(ctx, "ostree", repo, "ls", lab.RefV1, path).Run() == nil
	})
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("looking at the tree %s, which RPM_OSTREE names: neither it nor a host has the libraries %s",
			p.Path, strings.Join(missing, ", "))
	}
	if err := run(ctx, "cp", "-a", p.Path, tree); err != nil {
		return err
	}
	return write(filepath.Join(tree, repoFile), []byte(integration[repoFile]), 0o644)
}

// writeRPM builds the RPM of a package into dir, and returns its path.
func writeRPM(ctx context.Context, p catalogue.Package, dir string) (path string, err error) {
	work, err := os.MkdirTemp("", "noderefit-rpm-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lab.RemoveTree(work)) }()
	spec, root := filepath.Join(work, "p.spec"), filepath.Join(work, "files")
	var text strings.Builder
	fmt.Fprintf(&text, "Name: %s\nEpoch: %d\nVersion: %s\nRelease: %s\nSummary: %s of the lab\nLicense: Apache-2.0\n",
		p.Name, p.Epoch, p.Version, p.Release, p.Name)
	for _, name := range p.Provides {
		fmt.Fprintf(&text, "Provides: %s\n", name)
	}
	for _, name := range p.Requires {
		fmt.Fprintf(&text, "Requires: %s\n", name)
	}
	fmt.Fprintf(&text, "%%description\n%s of the lab\n%%install\nmkdir -p %%{buildroot}\ncp -a %s/. %%{buildroot}\n",
		p.Name, root)
	text.WriteString("%files\n")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	for path, content := range p.Files {
		fmt.Fprintln(&text, path)
		if err := write(filepath.Join(root, path), []byte(content), 0o644); err != nil {
			return "", err
		}
	}
	if err := write(spec, []byte(text.String()), 0o644); err != nil {
		return "", err
	}
	if err := run(ctx, "rpmbuild", "-bb", "--quiet", "--target", p.Arch,
		"--define", "_topdir "+work, "--define", "_rpmdir "+dir,
		"--define", "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm", "--define", "_build_id_links none",
		"--define", "__os_install_post %{nil}", "--nodeps", spec); err != nil {
		return "", err
	}
	return filepath.Join(dir, fmt.Sprintf("%s-%s-%s.%s.rpm", p.Name, p.Version, p.Release, p.Arch)), nil
}

// writeRPMs builds a repository of packages in dir.
func writeRPMs(ctx context.Context, dir string, packages []catalogue.Package) error {
	for _, p := range packages {
		if _, err := writeRPM(ctx, p, dir); err != nil {
			return err
		}
	}
	return run(ctx, "createrepo_c", "--quiet", dir)
}

// databaseDirs are where a tree has its RPM database: that of today, and that of the base below what is layered.
var databaseDirs = []string{catalogue.DatabaseDir, "/usr/lib/sysimage/rpm-ostree-base-db"}

// writeRPMDatabase writes the RPM database of a tree that has packages, and their files but for a kernel: that is the
// lab's.
func writeRPMDatabase(ctx context.Context, tree string, packages []catalogue.Package) (err error) {
	dir, err := os.MkdirTemp("", "noderefit-rpmdb-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.RemoveTree(dir)) }()
	if err := writeFiles(tree, packages); err != nil {
		return err
	}
	install := []string{"rpm", "--dbpath", filepath.Join(tree, databaseDirs[0]), "--define", "_db_backend sqlite",
		"--install", "--justdb", "--nodeps", "--noscripts", "--notriggers", "--ignoresize"}
	for _, p := range packages {
		path, err := writeRPM(ctx, p, dir)
		if err != nil {
			return err
		}
		install = append(install, path)
	}
	if err := os.MkdirAll(filepath.Join(tree, databaseDirs[0]), 0o755); err != nil {
		return err
	}
	if err := run(ctx, install...); err != nil {
		return err
	}
	base := filepath.Join(tree, databaseDirs[1])
	if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return run(ctx, "cp", "-a", filepath.Join(tree, databaseDirs[0]), base)
}
