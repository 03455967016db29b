// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/systemd/syntax"
)

// kept is what a soft reboot carries over from the run before: the kernel and its settings, the initramfs, the network,
// /run. Each has the paths that it is read from. A path includes everything below it. A restart of the userspace reads
// some of these paths again, but settings that they no longer have stay in force.
var kept = []struct {
	what  string
	paths []string
}{
	{"the kernel's settings", []string{
		"/etc/sysctl.conf", "/etc/sysctl.d", "/etc/tuned", "/etc/sysfs.conf", "/etc/sysfs.d", "/etc/rdma", "/etc/tmpfiles.d",
	}},
	{"kernel modules", []string{
		"/etc/modprobe.conf", "/etc/modprobe.d", "/etc/modules", "/etc/modules-load.d", "/etc/depmod.d", "/etc/binfmt.d",
		"/etc/kdump.conf", "/etc/sysconfig/kdump",
	}},
	{"devices", []string{"/etc/udev"}},
	{"file systems and volumes", []string{
		"/etc/fstab", "/etc/crypttab", "/etc/veritytab", "/etc/integritytab", "/etc/repart.d", "/etc/lvm", "/etc/mdadm.conf",
		"/etc/mdadm", "/etc/multipath.conf", "/etc/multipath", "/etc/iscsi", "/etc/nvme", "/etc/clevis", "/etc/stratis",
	}},
	{"the boot itself", []string{
		"/boot", "/efi", "/etc/ostree", "/etc/dracut.conf", "/etc/dracut.conf.d", "/etc/initramfs-tools", "/etc/grub.d",
		"/etc/default/grub", "/etc/default/grub.d", "/etc/kernel", "/etc/cmdline.d", "/etc/adjtime",
	}},
	{"security policy", []string{
		"/etc/selinux", "/etc/apparmor", "/etc/apparmor.d", "/etc/audit", "/etc/ima", "/etc/fapolicyd", "/etc/usbguard",
	}},
	{"the network", []string{
		"/etc/NetworkManager", "/etc/nmstate", "/etc/network", "/etc/netplan", "/etc/systemd/network",
		"/etc/systemd/networkd.conf", "/etc/systemd/networkd.conf.d", "/etc/sysconfig/network",
		"/etc/sysconfig/network-scripts", "/etc/openvswitch", "/etc/ovn", "/etc/cni", "/etc/iptables",
		"/etc/sysconfig/iptables", "/etc/sysconfig/ip6tables", "/etc/nftables", "/etc/nftables.conf",
		"/etc/sysconfig/nftables.conf", "/etc/firewalld",
	}},
	{"the host's name", []string{"/etc/hostname", "/etc/machine-id", "/etc/machine-info"}},
	{"systemd itself and its control groups", []string{
		"/etc/systemd/system.conf", "/etc/systemd/system.conf.d", "/etc/systemd/system-environment-generators",
		"/etc/cgconfig.conf", "/etc/cgconfig.d",
	}},
}

// keptTypes are the types of units that represent something in the kernel. keptUnits are units that set something
// there.
var (
	keptTypes = []string{".mount", ".automount", ".swap", ".device"}
	keptUnits = []string{
		"systemd-udevd*", "systemd-udev-*", "systemd-network*", "NetworkManager*", "systemd-sysctl*", "systemd-modules-load*",
		"systemd-tmpfiles*", "systemd-binfmt*", "nmstate*", "openvswitch*", "ovs-*", "iptables*", "ip6tables*", "nftables*",
		"firewalld*", "kdump*", "tuned*", "auditd*", "apparmor*", "iscsi*", "multipath*", "lvm2*", "cryptsetup*",
	}
)

// fullReboot returns a change that needs more than a soft reboot, and why; "" if no change does. fullReboot skips
// changes for which the policy needs no reboot at all.
func (p *Policy) fullReboot(changes []Change, current, desired *machineconfig.Config) string {
	for _, c := range changes {
		rule, steps := p.decide(c, current, desired)
		if !slices.Contains(steps, step{action: ActionReboot}) {
			continue
		}
		why := ""
		switch {
		case c.Kind.OS():
			why = "a change of the OS needs a boot"
		case p.covering(c) != nil:
			why = rule + " says Reboot"
		case c.Kind == Unit || c.Kind == Dropin:
			why = keptByUnit(c, current)
		case c.Path != "":
			why = keptByPath(c.Path)
		}
		if why != "" {
			return c.object() + ": " + why
		}
	}
	return ""
}

func keptByPath(name string) string {
	name = path.Clean(name)
	for _, k := range kept {
		for _, at := range k.paths {
			if name == at || strings.HasPrefix(name, at+"/") {
				return "a soft reboot keeps " + k.what
			}
		}
	}
	return ""
}

// keptByUnit returns why a soft reboot is not enough for a change of a unit. The unit's previous state counts too. A
// soft reboot does not undo what a oneshot has done, even if the unit would no longer do that.
func keptByUnit(c Change, current *machineconfig.Config) string {
	name, _, _ := strings.Cut(c.Name, "/")
	if slices.Contains(keptTypes, path.Ext(name)) {
		return "a soft reboot keeps " + strings.TrimPrefix(path.Ext(name), ".") + " units"
	}
	for _, pattern := range keptUnits {
		if match, err := path.Match(pattern, name); err == nil && match {
			return "a soft reboot keeps what this unit sets"
		}
	}
	at := slices.IndexFunc(current.Units, func(u machineconfig.Unit) bool { return u.Name == name })
	switch {
	case c.Op == Add || at < 0:
		return ""
	case oneshot(current.Units[at]):
		return "a soft reboot keeps what this oneshot has done"
	case c.Kind == Unit && current.Units[at].Contents == "":
		return "a soft reboot keeps what this unit has done, and the configuration does not have the unit's contents"
	}
	return ""
}

// serviceTypes are the values that systemd accepts as Type=. systemd skips any other value with a warning.
var serviceTypes = []string{"simple", "exec", "forking", "oneshot", "dbus", "notify", "notify-reload", "idle"}

// oneshot reports whether a service may be a oneshot, by its unit file and its drop-ins in the configuration. The last
// assignment counts, and systemd reads drop-ins by their names. A file that can't be read may make it a oneshot.
func oneshot(u machineconfig.Unit) bool {
	dropins := slices.SortedFunc(slices.Values(u.Dropins), func(a, b machineconfig.Dropin) int {
		return strings.Compare(a.Name, b.Name)
	})
	texts := []string{u.Contents}
	for _, d := range dropins {
		texts = append(texts, d.Contents)
	}
	kind := ""
	for _, text := range texts {
		all, err := syntax.Parse(text, false)
		if err != nil {
			return true
		}
		for _, a := range all {
			if a.Section == "Service" && a.Key == "Type" && slices.Contains(serviceTypes, a.Value) {
				kind = a.Value
			}
		}
	}
	return kind == "oneshot"
}
