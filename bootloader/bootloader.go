// SPDX-License-Identifier: Apache-2.0

// Package bootloader sets kernel arguments on a host without ostree, through the files of the boot loader that the host
// has: GRUB's generated configuration, or boot loader entries (BLS), as Fedora's GRUB and systemd-boot read them.
//
//	loader := bootloader.Find(root, run)
//	change, err := loader.Prepare(ctx, bootloader.Arguments{Append: []string{"a=1"}, Owned: []string{"a=1"}})
//	err = loader.Write(ctx, change, false, nil)
//
// A prepared change has both of its sides, each with every file as a whole. So it can be written on either side, and
// again after a cut. Another program may have written a file meanwhile, as the installation of a kernel does. Such a
// file is brought to the side by its arguments.
package bootloader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/kargs"
)

// Run runs a program of the host and returns its standard output.
type Run func(ctx context.Context, argv ...string) ([]byte, error)

// Refusal is the error of kernel arguments that the host's boot loader can't be given.
type Refusal struct{ reason string }

func (r *Refusal) Error() string { return r.reason }

func refuse(format string, args ...any) error { return &Refusal{fmt.Sprintf(format, args...)} }

// kind is where a boot loader has the kernel arguments from.
type kind string

const (
	unknown   kind = ""
	generated kind = "grub.cfg" // GRUB's configuration, which grub-mkconfig makes of settings
	entries   kind = "entries"  // an entry for each kernel, each with its own arguments
)

// Loader is a host's boot loader.
type Loader struct {
	root *files.Root
	run  Run
	kind kind
	why  string // the reason why the kind is unknown
	// checkpoint empties the journal of the file system of a directory, see files.Root.Checkpoint.
	checkpoint func(dir string) error
	// config is GRUB's configuration, generator the program that makes it, and source the file of its settings that has
	// our arguments.
	config, generator, source string
}

// Where GRUB and its settings are.
var (
	configs    = []string{"/boot/grub2/grub.cfg", "/boot/grub/grub.cfg"}
	generators = []string{"/usr/sbin/grub2-mkconfig", "/usr/sbin/grub-mkconfig", "/usr/bin/grub2-mkconfig",
		"/usr/bin/grub-mkconfig"}
)

const (
	defaults = "/etc/default/grub"
	// ours is the file of settings that has our arguments alone. Debian's and Ubuntu's grub-mkconfig reads it.
	ours = "/etc/default/grub.d/90-noderefit.cfg"
	// kernelLine has the arguments of kernels that kernel-install installs later, vendorLine those of the vendor.
	kernelLine = "/etc/kernel/cmdline"
	vendorLine = "/usr/lib/kernel/cmdline"
	// loaderInfo is where a boot loader tells its name, on machines with UEFI.
	loaderInfo = "/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
)

// Find finds out which boot loader the host has, by the files that it reads.
func Find(root *files.Root, run Run) *Loader {
	l := &Loader{root: root, run: run, checkpoint: root.Checkpoint}
	if err := l.find(); err != nil {
		l.kind, l.why = unknown, err.Error()
	}
	return l
}

func (l *Loader) find() error {
	config, text := "", ""
	for _, name := range configs {
		if data, err := l.root.ReadFile(name); err == nil && config == "" {
			config, text = name, string(data)
		}
	}
	if config == "" || strings.Contains(text, "blscfg") || l.systemdBoots() {
		l.kind = entries
		_, err := l.defaultEntry()
		return err
	}
	for _, name := range generators {
		if script, err := l.root.ReadFile(name); err == nil && l.generator == "" {
			l.generator, l.source = name, defaults
			if strings.Contains(string(script), "default/grub.d") {
				l.source = ours
			}
		}
	}
	switch {
	case l.generator == "":
		return refuse("%s is of GRUB, and the host has no grub-mkconfig", config)
	case !strings.Contains(text, "### BEGIN /etc/grub.d/"):
		return refuse("%s was not made by grub-mkconfig", config)
	case grubLine(text) == nil:
		return refuse("%s has no entry that boots Linux", config)
	}
	l.kind, l.config = generated, config
	return nil
}

// systemdBoots reports whether systemd-boot has started this boot.
func (l *Loader) systemdBoots() bool {
	data, err := l.root.ReadFile(loaderInfo)
	if err != nil || len(data) < 4 {
		return false
	}
	name := strings.ReplaceAll(string(data[4:]), "\x00", "") // UTF-16 after four bytes of attributes
	return strings.HasPrefix(name, "systemd-boot")
}

// String describes the boot loader for people.
func (l *Loader) String() string {
	switch l.kind {
	case generated:
		return "GRUB, kernel arguments by " + l.source + " and " + path.Base(l.generator)
	case entries:
		return "boot loader entries, kernel arguments in each of them"
	}
	return "unknown, kernel arguments are refused: " + l.why
}

// Known reports whether the boot loader can be given kernel arguments.
func (l *Loader) Known() bool { return l.kind != unknown }

// Refusal returns why a field of a MachineConfig's spec can't be had on a host without ostree, and what would work.
func (l *Loader) Refusal(field string) string {
	switch field {
	case "osImageURL":
		return "this host has no ostree, and its OS is its packages; leave the field out and update the packages by other " +
			"means, or install the machine from an image with ostree"
	case "kernelArguments":
		return "this host's boot loader is not known: " + l.why + "; leave the field out, or have GRUB with grub-mkconfig " +
			"or boot loader entries on the host"
	}
	return "this host has no ostree, and no packages are layered on it; leave the field out and install the packages by " +
		"other means, or install the machine from an image with ostree"
}

// CommandLine returns the kernel arguments that the next boot has. It is nil where the boot loader is not known.
func (l *Loader) CommandLine() (line []string, err error) {
	switch l.kind {
	case generated:
		var text []byte
		text, err = l.root.ReadFile(l.config)
		line = grubLine(string(text))
	case entries:
		var e entry
		e, err = l.defaultEntry()
		line = e.arguments()
	}
	if err != nil {
		return nil, fmt.Errorf("reading the kernel arguments of the next boot: %w", err)
	}
	return line, nil
}

// entryDirs are the places of boot loader entries.
var entryDirs = []string{"/boot/loader/entries", "/efi/loader/entries", "/boot/efi/loader/entries"}

// entries returns the boot loader entries of this host's kernels, by their paths.
func (l *Loader) entries() ([]entry, error) {
	id, _ := l.root.ReadFile("/etc/machine-id")
	machine := strings.TrimSpace(string(id))
	var out []entry
	seen := map[string]bool{}
	for _, dir := range entryDirs {
		names, err := l.root.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading boot loader entries: %w", err)
		}
		for _, name := range names {
			at, err := l.root.Resolve(path.Join(dir, name))
			if err != nil || seen[at] || strings.HasPrefix(name, ".") || path.Ext(name) != ".conf" {
				continue
			}
			seen[at] = true
			text, err := l.root.ReadFile(at)
			if err != nil {
				return nil, fmt.Errorf("reading boot loader entries: %w", err)
			}
			if e := (entry{at, string(text)}); e.of(machine) {
				out = append(out, e)
			}
		}
	}
	slices.SortFunc(out, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return out, nil
}

// defaultEntry returns the entry of the running kernel, or the last one.
func (l *Loader) defaultEntry() (entry, error) {
	all, err := l.entries()
	if err != nil {
		return entry{}, err
	}
	if len(all) == 0 {
		return entry{}, refuse("there is no grub.cfg in /boot/grub2 or /boot/grub with its own entries, and no boot loader "+
			"entry of this host with kernel and options in %s", strings.Join(entryDirs, ", "))
	}
	data, _ := l.root.ReadFile("/proc/sys/kernel/osrelease")
	release := strings.TrimSpace(string(data))
	found := all[len(all)-1]
	for _, e := range slices.Backward(all) {
		if slices.Contains(e.arguments(), "$kernelopts") {
			return entry{}, refuse("%s has its arguments from kernelopts in GRUB's environment", e.path)
		}
		if release != "" && e.boots(release) {
			found = e
		}
	}
	return found, nil
}

// running returns the command line of this boot.
func (l *Loader) running() ([]string, error) { return kargs.Running(l.root.ReadFile) }
