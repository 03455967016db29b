// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/files"
)

// readEarly lists the files and directories that are read in a boot before recovery runs, by reader. A directory ends
// in a slash and stands for all paths below it.
var readEarly = []struct{ reader, places string }{
	{"systemd itself", "/etc/systemd/system.conf /etc/systemd/system.conf.d/ /etc/systemd/system-generators/ " +
		"/etc/systemd/system-environment-generators/ /etc/systemd/system-preset/ /etc/machine-id /etc/machine-info " +
		"/etc/hostname /etc/hostid /etc/locale.conf /etc/localtime /etc/os-release /etc/environment /etc/environment.d/"},
	{"the generators of mounts and disks", "/etc/fstab /etc/crypttab /etc/veritytab /etc/integritytab " +
		"/etc/cryptsetup-keys.d/"},
	{"the loading of kernel modules", "/etc/modules /etc/modules-load.d/ /etc/modprobe.conf /etc/modprobe.d/"},
	{"the setting of kernel parameters", "/etc/sysctl.conf /etc/sysctl.d/ /etc/binfmt.d/"},
	{"udev", "/etc/udev/ /etc/systemd/network/ /etc/systemd/udev.conf /etc/systemd/udev.conf.d/"},
	{"what sets disks up", "/etc/lvm/ /etc/mdadm.conf /etc/mdadm/ /etc/multipath.conf /etc/multipath/ /etc/iscsi/ " +
		"/etc/nvme/ /etc/zfs/"},
	{"what makes files and users", "/etc/tmpfiles.d/ /etc/sysusers.d/ /etc/passwd /etc/group"},
	{"the journal", "/etc/systemd/journald.conf /etc/systemd/journald.conf.d/"},
	{"systemd's early services", "/etc/systemd/coredump.conf /etc/systemd/coredump.conf.d/ /etc/systemd/oomd.conf " +
		"/etc/systemd/oomd.conf.d/ /etc/systemd/pstore.conf /etc/systemd/pstore.conf.d/ /etc/systemd/networkd.conf " +
		"/etc/systemd/networkd.conf.d/ /etc/systemd/resolved.conf /etc/systemd/resolved.conf.d/ " +
		"/etc/systemd/timesyncd.conf /etc/systemd/timesyncd.conf.d/ /etc/vconsole.conf"},
	{"SELinux, IMA and the audit", "/etc/selinux/ /etc/ima/ /etc/audit/"},
	{"the loader of programs", "/etc/ld.so.conf /etc/ld.so.conf.d/ /etc/ld.so.cache /etc/ld.so.preload " +
		"/etc/nsswitch.conf"},
	{"what prepares the root", "/etc/ostree/ /etc/ignition-machine-config-encapsulated.json"},
}

// earlyTypes are the types of units that are made or started before recovery, or for good.
var earlyTypes = []string{".mount", ".automount", ".swap", ".device", ".slice", ".scope"}

// earlyTargets are the targets that recovery comes after, or is a part of.
var earlyTargets = []string{"sysinit.target", "local-fs.target", "local-fs-pre.target", "swap.target",
	"cryptsetup.target", "cryptsetup-pre.target", "veritysetup.target", "integritysetup.target",
	"remote-fs-pre.target", "remote-cryptsetup.target", "initrd.target", "initrd-root-fs.target"}

// rereads returns which program has read a path, in the boot that is under way, before recovery changes it. "" means
// that the change takes effect without one more boot. at is a resolved path, after the node that it becomes. text
// returns the known text of a unit by name.
//
// Units that start later are read again by a daemon-reload. Units that have already run are not read again. Nor is a
// unit that the change keeps from starting: its job is already queued.
func rereads(at string, after files.Node, text func(unit string) string) string {
	if rest, ok := strings.CutPrefix(at, "/etc/systemd/system/"); ok {
		return rereadsUnit(strings.Split(rest, "/"), after, text)
	}
	for _, r := range readEarly {
		for place := range strings.FieldsSeq(r.places) {
			if at == place || strings.HasSuffix(place, "/") && strings.HasPrefix(at, place) {
				return "read early by " + r.reader
			}
		}
	}
	return ""
}

// rereadsUnit does the work of rereads for a path below /etc/systemd/system, by its parts.
func rereadsUnit(parts []string, after files.Node, text func(unit string) string) string {
	name, within := parts[0], ""
	for _, suffix := range []string{".wants", ".requires", ".upholds", ".d"} {
		if stem, ok := strings.CutSuffix(name, suffix); ok && len(parts) > 1 {
			name, within = stem, suffix
		}
	}
	starts := within != "" && within != ".d" // a link by which one unit starts another
	target := name
	if starts {
		name = parts[1]
	}
	switch {
	case name == RecoverUnit || name == ProveUnit:
		return ""
	case slices.Contains(earlyTargets, target):
		return "part of " + target + ", which is past"
	case slices.Contains(earlyTypes, path.Ext(name)):
		return "a unit of a type that is set up early"
	case strings.HasPrefix(name, "systemd-"):
		return "a unit of systemd's own, some of which run early"
	case starts && after.Type == files.Absent:
		return "a link by which this boot starts " + name
	case within == "" && after.Type == files.Absent:
		return "a unit that this boot may be starting"
	case within == "" && after.Type == files.Symlink && after.Target == "/dev/null":
		return "a masked unit that this boot may be starting"
	case strings.Contains(withoutBlanks(text(name)), "DefaultDependencies=no"):
		return "a unit without default dependencies, which may run early"
	}
	return ""
}

// withoutBlanks returns a unit's text as systemd reads its assignments.
func withoutBlanks(text string) string {
	return strings.NewReplacer(" ", "", "\t", "", "=false", "=no", "=0", "=no", "=off", "=no").Replace(text)
}
