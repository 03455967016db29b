// SPDX-License-Identifier: Apache-2.0

package reboots

import (
	"context"
	"strings"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/ostree"
)

// Target is what a reboot leads to.
type Target struct {
	// Deployment is the deployment that is to boot, "" where none is known.
	Deployment string
	// Deployments are nil on a host without ostree.
	Deployments Deployments
	// GRUB is the boot loader's counter of boots.
	GRUB *ostree.GRUB
}

// Deployments are those of the host.
type Deployments interface {
	Status(ctx context.Context) ([]ostree.Deployment, error)
	BootEntry(id string) (ostree.BootEntry, error)
	// Tries returns after how many boots a boot loader that counts by the names of entries gives an entry up.
	Tries() (int, error)
}

// seen is what decides whether a kernel is started by kexec.
type seen struct {
	ostree   bool
	program  string // "" where the host has none
	disabled bool
	// counts: the boot loader counts boots. staged is the deployment that the shutdown puts before the others.
	counts bool
	staged string
	// once is where the firmware or the boot loader is told what to do in the next boot; "" where it is not. chosen is
	// where a person or a program has chosen an entry for the boot loader.
	once   string
	chosen string
	first  bool // the deployment is the boot loader's default
	entry  ostree.BootEntry
	err    error // one of these is not known
}

// refusal returns why no kernel is started by kexec, "" where one may be.
func (s seen) refusal() string {
	switch {
	case !s.ostree:
		return "what the boot loader starts is known only on a host with ostree deployments"
	case s.program == "":
		return "the host has no program kexec; install kexec-tools"
	case s.disabled:
		return "the kernel is told to load no other kernel (sysctl kernel.kexec_load_disabled)"
	case s.err != nil:
		return message.OneLine(s.err.Error())
	case s.staged != "":
		return "deployment " + s.staged + " is staged, and becomes the default only at the shutdown"
	case s.counts:
		return "the boot loader counts the boots of a new deployment, and kexec goes past it"
	case s.once != "":
		return "the next boot is for the firmware or the boot loader: " + s.once
	case s.chosen != "":
		return "the boot loader is told which entry to start: " + s.chosen
	case !s.first:
		return "the deployment is not the boot loader's default"
	case len(s.entry.Initrds) > 1:
		return "the boot entry has more than one initramfs, and kexec loads one"
	case len(s.entry.Others) > 0:
		return "the boot entry has what kexec does not load: " + strings.Join(s.entry.Others, ", ")
	case strings.Contains(s.entry.Arguments, "$"):
		return "the kernel arguments in the boot entry have variables of the boot loader"
	}
	return ""
}

// kexecProgram returns the path of the host's kexec, "" where the host has none.
func kexecProgram(root *files.Root) string {
	at, err := (&ostree.Tools{Root: root.Path()}).Find("kexec")
	if err != nil {
		return ""
	}
	return at
}

// The variables of EFI that ask for something in the next boot.
const (
	efiVars       = "/sys/firmware/efi/efivars/"
	osIndications = efiVars + "OsIndications-8be4df61-93ca-11d2-aa0d-00e098032b8c"
)

// entryChosen is where systemd-boot keeps the entry that an administrator has chosen for each boot.
var entryChosen = []string{efiVars + "LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"}

var onceFiles = []string{
	efiVars + "BootNext-8be4df61-93ca-11d2-aa0d-00e098032b8c",
	efiVars + "LoaderEntryOneShot-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f",
	"/run/systemd/reboot-to-firmware-setup", "/run/systemd/reboot-to-boot-loader-menu",
	"/run/systemd/reboot-to-boot-loader-entry",
}

// look finds out what decides about kexec.
func (t *Trip) look(ctx context.Context) (seen, ostree.BootEntry) {
	s := seen{ostree: t.Target.Deployments != nil && t.Target.Deployment != "", program: kexecProgram(t.Root),
		once: find(t.Root, onceFiles), chosen: find(t.Root, entryChosen)}
	disabled, _ := t.Root.ReadFile("/proc/sys/kernel/kexec_load_disabled") // a kernel without kexec says so at the load
	s.disabled = strings.TrimSpace(string(disabled)) == "1"
	// Four bytes of attributes come first.
	if flags, err := t.Root.ReadFile(osIndications); err == nil && len(flags) > 4 &&
		strings.Trim(string(flags[4:]), "\x00") != "" {
		s.once = osIndications
	}
	if !s.ostree {
		return s, s.entry
	}
	all, err := t.Target.Deployments.Status(ctx)
	for _, d := range all {
		if d.Staged && !d.Locked {
			s.staged = d.ID
		}
		s.first = s.first || d.Default && d.ID == t.Target.Deployment
	}
	tries, _ := t.Target.Deployments.Tries() // an error is why nobody counts
	s.counts = tries > 0
	if err == nil && t.Target.GRUB != nil {
		var counted bool
		_, counted, err = t.Target.GRUB.Left()
		s.counts = s.counts || counted
		if err == nil && s.chosen == "" {
			s.chosen, err = t.Target.GRUB.Chosen()
		}
	}
	if err == nil {
		s.entry, err = t.Target.Deployments.BootEntry(t.Target.Deployment)
	}
	s.err = err
	return s, s.entry
}

// find returns the first of the files that exists, "" where none does.
func find(root *files.Root, names []string) string {
	for _, name := range names {
		if there, err := exists(root, name); err == nil && there {
			return name
		}
	}
	return ""
}
