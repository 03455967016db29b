// SPDX-License-Identifier: Apache-2.0

// Package rpmostree puts rpm-ostree on hosts of the host lab: a stand-in (the program in rpm-ostree), or a real one
// that this machine has. What the stand-in can't do, and what of it is guessed, its own sources say. Its packages and
// images are described by package catalogue, its faults by package fault.
//
// The suite of this package is the contract between the two: it runs against either.
package rpmostree

import (
	"bytes"
	"context"
	_ "embed" // ofold.sh
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/programs"
	"github.com/noderefit/noderefit/test/standin/rpmostree/catalogue"
	"github.com/noderefit/noderefit/test/standin/rpmostree/fault"
)

// Remote is a remote of every host with one ref, RefV4: v1 with another version and the same kernel. Unlike what the
// lab's own remote has it can be booted into and still has rpm-ostree.
const (
	Remote = "updates"
	RefV4  = "os/test4"
)

// repository is where a host has the packages that can be installed, and repoFile says so.
const (
	repository = "/var/lib/rpm-ostree-stand-in/packages.repo"
	repoFile   = "/usr/etc/yum.repos.d/lab.repo"
)

// Program is an rpm-ostree that can be put on hosts.
type Program struct {
	Path string // on this machine; of a real one a tree, which it is in with all that it needs
	Real bool   // no stand-in: it has no faults and no images
}

// Find returns the program that the environment names by RPM_OSTREE, which is a real one in a tree, else the stand-in,
// compiled into dir. What the tree lacks is an error that names all of it.
func Find(ctx context.Context, dir string) (Program, error) {
	if path := os.Getenv("RPM_OSTREE"); path != "" {
		return Program{path, true}, checkReal(path)
	}
	return Build(ctx, dir)
}

// Build compiles the stand-in into dir.
func Build(ctx context.Context, dir string) (Program, error) {
	path, err := programs.Build(ctx, dir, "test/standin/rpmostree/rpm-ostree")
	return Program{path, false}, err
}

// Options are what hosts with rpm-ostree may differ in.
type Options struct {
	// Packages are what can be installed, Packages() if nil.
	Packages []catalogue.Package
	// Config is the text of /etc/rpm-ostreed.conf, none if empty.
	Config string
	// OfOld makes ostree one of before set-default and before a lock of its own, for everybody but rpm-ostree itself.
	OfOld bool
}

// Prepare makes a host with the program, which takes seconds and is for being the base of others: it stays off. Its
// refs lab.RefV1 (deployed) and lab.RefV2, and RefV4 of Remote, have the program in their trees; lab.RefV3 has not.
func Prepare(ctx context.Context, base *lab.Base, p Program, options Options) (*lab.Host, error) {
	h, err := base.NewHost(ctx, "", lab.Options{Name: "rpm-ostree", HostNetwork: true})
	if err != nil {
		return nil, err
	}
	if err := install(ctx, h, p, options); err != nil {
		return nil, errors.Join(fmt.Errorf("installing rpm-ostree on a lab host: %w", err), h.Close())
	}
	return h, nil
}

func install(ctx context.Context, h *lab.Host, p Program, options Options) (err error) {
	work, err := os.MkdirTemp("", "noderefit-rpm-ostree-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.RemoveTree(work)) }()
	program := filepath.Join(work, "program")
	repo := "--repo=" + filepath.Join(h.Sysroot(), "ostree/repo")
	if p.Real {
		err = furnishReal(ctx, program, repo, p)
	} else {
		err = furnish(program, p)
	}
	if err != nil {
		return err
	}
	if options.OfOld {
		if err := age(ctx, program, repo); err != nil {
			return err
		}
	}
	for _, tree := range []struct{ ref, from, version string }{
		{RefV4, lab.RefV1, "v4"}, {lab.RefV2, lab.RefV2, "v2"}, {lab.RefV1, lab.RefV1, "v1"},
	} {
		database := filepath.Join(work, tree.version)
		if p.Real {
			err = writeRPMDatabase(ctx, database, BasePackages(tree.ref))
		} else {
			err = writeDatabase(database, BasePackages(tree.ref))
		}
		if err != nil {
			return err
		}
		if tree.version == "v4" {
			if err := write(filepath.Join(database, "usr/lib/testos/version"), []byte("v4\n"), 0o644); err != nil {
				return err
			}
		}
		if err := run(ctx, "ostree", repo, "commit", "--fsync=false", "--bootable",
			"--branch="+tree.ref, "--subject="+tree.version,
			"--add-metadata-string=version="+tree.version, "--timestamp=2025-01-01T00:00:00Z",
			"--tree=ref="+tree.from, "--tree=dir="+program, "--tree=dir="+database); err != nil {
			return err
		}
	}
	commits := h.HostPath(catalogue.Commits)
	if err := os.MkdirAll(commits, 0o755); err != nil {
		return err
	}
	for _, argv := range [][]string{
		{"ostree", "--repo=" + commits, "init", "--mode=bare"},
		{"ostree", "--repo=" + commits, "config", "set", "core.fsync", "false"},
		{"ostree", "--repo=" + commits, "pull-local", filepath.Join(h.Sysroot(), "ostree/repo"), lab.RefV1, lab.RefV2, RefV4},
		{"ostree", repo, "refs", "--delete", RefV4},
		{"ostree", repo, "remote", "add", "--no-gpg-verify", Remote, "file://" + catalogue.Commits},
		// As the lab itself: the old deployment would be in the way of those that count them.
		{"unshare", "--mount", "sh", "-ec", deploy, "sh", filepath.Dir(h.Sysroot()), lab.OS, lab.RefV1},
	} {
		if err := run(ctx, argv...); err != nil {
			return err
		}
	}
	packages := options.Packages
	if packages == nil {
		packages = Packages()
	}
	if err := p.writeRepository(ctx, h.HostPath(repository), packages); err != nil {
		return err
	}
	if options.Config != "" {
		return write(h.HostPath("/etc/rpm-ostreed.conf"), []byte(options.Config), 0o644)
	}
	return nil
}

// deploy deploys REF of OS on the disk of the host in DIR, in place of what is there. ostree freezes the file system
// of /boot, which on the directory itself would be this machine's own: on an overlay it can't. The host goes on without
// fsync of what it checks out: its disk loses nothing in a power cut anyway, and rpm-ostree checks out a lot.
const deploy = `
cd "$1"
mount -t overlay -o lowerdir=empty,upperdir=sysroot/boot,workdir=boot.work overlay sysroot/boot
ostree config --repo=sysroot/ostree/repo set core.fsync false
ostree admin --sysroot=sysroot deploy --os="$2" "$3"
ostree admin --sysroot=sysroot undeploy 1
`

// furnish makes a tree with the stand-in and what systemd and the bus need to know about it.
func furnish(tree string, p Program) error {
	data, err := os.ReadFile(p.Path)
	if err != nil {
		return err
	}
	for path, text := range integration {
		if err := write(filepath.Join(tree, path), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return write(filepath.Join(tree, "usr/bin/rpm-ostree"), data, 0o755)
}

//go:embed ofold.sh
var ofOld string

// age puts ostree's tool of a lab host aside, and one before it that has not all of its commands.
func age(ctx context.Context, tree, repo string) error {
	tool, err := exec.CommandContext(ctx, "ostree", repo, "cat", lab.RefV1, "/usr/bin/ostree").Output()
	if err != nil {
		return fmt.Errorf("reading the tool of the host: %w", err)
	}
	return errors.Join(write(filepath.Join(tree, "usr/lib/ostree-of-old/ostree"), tool, 0o755),
		write(filepath.Join(tree, "usr/bin/ostree"), []byte(ofOld), 0o755))
}

// integration are the files around the program.
var integration = map[string]string{
	"/usr/lib/systemd/system/rpm-ostreed.service": `[Unit]
Description=rpm-ostree System Management Daemon
ConditionPathExists=/ostree
RequiresMountsFor=/boot

[Service]
Type=dbus
BusName=org.projectatomic.rpmostree1
MountFlags=slave
ExecStart=/usr/bin/rpm-ostree start-daemon
TimeoutStartSec=5m
`,
	"/usr/share/dbus-1/system-services/org.projectatomic.rpmostree1.service": `[D-BUS Service]
Name=org.projectatomic.rpmostree1
Exec=/usr/bin/false
User=root
SystemdService=rpm-ostreed.service
`,
	"/usr/share/dbus-1/system.d/org.projectatomic.rpmostree1.conf": `<!DOCTYPE busconfig
 PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <policy user="root">
    <allow own="org.projectatomic.rpmostree1"/>
    <allow send_destination="org.projectatomic.rpmostree1"/>
  </policy>
</busconfig>
`,
	repoFile: "[lab]\nname=Packages of the lab\nbaseurl=file://" + repository + "\nenabled=1\ngpgcheck=0\n",
}

// writeDatabase writes what a tree has installed.
func writeDatabase(tree string, packages []catalogue.Package) error {
	for _, p := range packages {
		data, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if err := write(filepath.Join(tree, catalogue.DatabaseDir, p.Name+".json"), data, 0o644); err != nil {
			return err
		}
	}
	return writeFiles(tree, packages)
}

// writeFiles writes the files of packages, but for a kernel: that is the lab's.
func writeFiles(tree string, packages []catalogue.Package) error {
	for _, p := range packages {
		if p.Kernel() != "" {
			continue
		}
		for path, content := range p.Files {
			if strings.HasPrefix(path, "/etc/") {
				path = "/usr" + path
			}
			if err := write(filepath.Join(tree, path), []byte(content), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeRepository makes a repository of packages, as this rpm-ostree takes it.
func (p Program) writeRepository(ctx context.Context, dir string, packages []catalogue.Package) error {
	if p.Real {
		return writeRPMs(ctx, dir, packages)
	}
	for _, one := range packages {
		if _, err := one.Write(dir); err != nil {
			return err
		}
	}
	return nil
}

// LocalPackage makes the file of a package, as this rpm-ostree takes it, in a directory of this machine.
func (p Program) LocalPackage(ctx context.Context, one catalogue.Package, dir string) (string, error) {
	if p.Real {
		return writeRPM(ctx, one, dir)
	}
	return one.Write(dir)
}

// Push puts an image into the registry that a host sees, and returns its digest. name is HOST/PATH:TAG.
func Push(h *lab.Host, name string, i catalogue.Image) (string, error) {
	path, tag := name, "latest"
	if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
		path, tag = name[:colon], name[colon+1:]
	}
	return i.WriteLayout(filepath.Join(h.HostPath(catalogue.Registries), path), tag)
}

// Commit is the checksum of one of the refs lab.RefV1, lab.RefV2 and RefV4 on a host, whatever has become of the ref.
func Commit(ctx context.Context, h *lab.Host, ref string) (string, error) {
	text, err := exec.CommandContext(ctx, "ostree", "--repo="+h.HostPath(catalogue.Commits), "rev-parse", ref).Output()
	if err != nil {
		return "", fmt.Errorf("looking up %s: %w", ref, err)
	}
	return strings.TrimSpace(string(text)), nil
}

// Withdraw takes a package out of the repository of a host.
func Withdraw(h *lab.Host, p catalogue.Package) error {
	return os.Remove(filepath.Join(h.HostPath(repository), p.NEVRA()+".rpm"))
}

// Break makes a step go wrong on a host that has the stand-in; it need not run.
func Break(h *lab.Host, f fault.Fault) error { return fault.Set(h.HostPath(fault.Dir), f) }

// Mend lifts the fault of a step.
func Mend(h *lab.Host, step fault.Step) error { return fault.Lift(h.HostPath(fault.Dir), step) }

func write(path string, data []byte, mode fs.FileMode) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, mode))
}

func run(ctx context.Context, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running %s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(text))
	}
	return nil
}
