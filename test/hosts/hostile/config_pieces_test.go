// SPDX-License-Identifier: Apache-2.0

package hostile

import "strings"

// piece is one hostile thing that a configuration may have.
type piece struct {
	name string
	put  func(d *document)
}

const (
	recoverUnit = "machine-config-daemon-recover.service"
	proveUnit   = "machine-config-daemon-prove.service"
	units       = "/etc/systemd/system/"
	state       = "/var/lib/machine-config-daemon"
)

// pieces are all that there are. None of them reaches beyond its host: no fork bombs, no full disks, no devices, nothing
// that sets a clock, nothing that mounts / or /sysroot anew (its file system is this machine's). Nor is one a program of root's that is written against the agent, to kill it or to remove its
// record: root can do that to anything, and nothing on the host would be left to come back with. What takes the same away
// by the host's own means (mounts, tmpfiles.d, units) is here.
func pieces() []piece {
	var all []piece
	for _, some := range [][]piece{masks(), replacements(), dropins(), typeWide(), limits(), away(), links(), newUnits(), generators(),
		earlyFiles(), managerFiles(), removals(), programs(), arguments()} {
		all = append(all, some...)
	}
	return all
}

// masks are units that are masked, as a unit of the configuration and as a link.
func masks() []piece {
	var all []piece
	for name := range strings.FieldsSeq(recoverUnit + " " + proveUnit + ` sysinit.target basic.target local-fs.target
local-fs-pre.target multi-user.target graphical.target default.target emergency.target emergency.service rescue.target
rescue.service reboot.target shutdown.target final.target umount.target poweroff.target systemd-reboot.service
dbus.service dbus.socket systemd-logind.service dbus-org.freedesktop.login1.service systemd-journald.service
systemd-journald.socket systemd-journald-dev-log.socket systemd-tmpfiles-setup.service systemd-tmpfiles-setup-dev.service
systemd-udevd.service systemd-remount-fs.service ostree-remount.service ostree-finalize-staged.service
ostree-finalize-staged.path kubelet.service crio.service -.mount -.slice system.slice user.slice init.scope
sockets.target timers.target paths.target slices.target swap.target systemd-journal-flush.service
systemd-user-sessions.service systemd-update-utmp.service boot-complete.target nss-user-lookup.target`) {
		all = append(all, piece{"mask " + name, func(d *document) { d.unit(name).masked = true }})
		if strings.HasPrefix(name, "machine-config-daemon") || strings.HasSuffix(name, ".target") {
			all = append(all, piece{"link " + name + " to /dev/null", func(d *document) { d.links[units+name] = "/dev/null" }})
		}
	}
	return all
}

// replacements are units with other contents.
func replacements() []piece {
	var all []piece
	for name := range strings.FieldsSeq(recoverUnit + " " + proveUnit + ` dbus.service systemd-logind.service
systemd-journald.service systemd-tmpfiles-setup.service systemd-reboot.service ostree-remount.service`) {
		all = append(all,
			piece{"replace " + name + " by nothing", func(d *document) {
				d.unit(name).contents = "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nExecStart=/bin/true\n"
			}},
			piece{"replace " + name + " by what never starts", func(d *document) {
				d.unit(name).contents = "[Unit]\nDefaultDependencies=no\n[Service]\nType=notify\nExecStart=/bin/sleep infinity\n"
			}})
	}
	for name := range strings.FieldsSeq(`sysinit.target basic.target local-fs.target multi-user.target reboot.target
shutdown.target emergency.target`) {
		all = append(all,
			piece{"replace " + name + " by an empty one", func(d *document) { d.unit(name).contents = "[Unit]\nDescription=Empty\n" }},
			piece{"replace " + name + " by garbage", func(d *document) { d.unit(name).contents = "[Unit]\nRequires=missing.service\n" }})
	}
	return all
}

// spoilers are what a drop-in for a service may say.
var spoilers = []struct{ name, text string }{
	{"a condition", "[Unit]\nConditionPathExists=/nonexistent"},
	{"an assertion", "[Unit]\nAssertPathExists=/nonexistent"},
	{"a missing requirement", "[Unit]\nRequires=missing.service\nAfter=missing.service"},
	{"a conflict", "[Unit]\nConflicts=multi-user.target basic.target"},
	{"an order after the end", "[Unit]\nAfter=multi-user.target"},
	{"a start limit", "[Unit]\nStartLimitIntervalSec=1h\nStartLimitBurst=1"},
	{"a reboot of failure", "[Unit]\nFailureAction=reboot-immediate"},
	{"a reboot of success", "[Unit]\nSuccessAction=reboot-force"},
	{"a power off of success", "[Unit]\nSuccessAction=poweroff-force"},
	{"an exit of failure", "[Unit]\nFailureAction=exit-force"},
	{"a job that reboots", "[Unit]\nJobTimeoutSec=1ms\nJobTimeoutAction=reboot-force"},
	{"a manual start refused", "[Unit]\nRefuseManualStart=yes\nRefuseManualStop=yes"},
	{"another program", "[Service]\nExecStart=\nExecStart=/bin/true"},
	{"no program", "[Service]\nExecStart="},
	{"a program before that fails", "[Service]\nExecStartPre=/bin/false"},
	{"a program before that hangs", "[Service]\nExecStartPre=/bin/sleep infinity\nTimeoutStartSec=infinity"},
	{"a condition to run", "[Service]\nExecCondition=/bin/false"},
	{"a program after that fails", "[Service]\nExecStartPost=/bin/false"},
	{"a user", "[Service]\nUser=nobody"},
	{"a missing user", "[Service]\nUser=missing"},
	{"a dynamic user", "[Service]\nDynamicUser=yes"},
	{"a missing group", "[Service]\nGroup=missing"},
	{"a strict system", "[Service]\nProtectSystem=strict"},
	{"a read-only root", "[Service]\nReadOnlyPaths=/"},
	{"no /var", "[Service]\nInaccessiblePaths=/var"},
	{"another /var", "[Service]\nTemporaryFileSystem=/var"},
	{"a root that is missing", "[Service]\nRootDirectory=/nonexistent"},
	{"a root that is empty", "[Service]\nRootDirectory=/tmp"},
	{"a directory that is missing", "[Service]\nWorkingDirectory=/nonexistent"},
	{"private everything", "[Service]\nPrivateTmp=yes\nPrivateNetwork=yes\nPrivateDevices=yes\nPrivateMounts=yes\nProtectHome=yes"},
	{"no programs", "[Service]\nNoExecPaths=/"},
	{"no capabilities", "[Service]\nCapabilityBoundingSet=\nNoNewPrivileges=yes"},
	{"no system calls", "[Service]\nSystemCallFilter=~@file-system\nSystemCallErrorNumber=EPERM"},
	{"no namespaces", "[Service]\nRestrictNamespaces=yes\nProtectKernelTunables=yes\nProtectControlGroups=yes"},
	{"other sockets", "[Service]\nRestrictAddressFamilies=AF_INET"},
	{"little memory", "[Service]\nMemoryMax=1M"},
	{"one task", "[Service]\nTasksMax=1"},
	{"few files", "[Service]\nLimitNOFILE=4"},
	{"small files", "[Service]\nLimitFSIZE=1"},
	{"no address space", "[Service]\nLimitAS=1M"},
	{"no time to start", "[Service]\nTimeoutStartSec=1ms"},
	{"no time to run", "[Service]\nRuntimeMaxSec=1ms"},
	{"no restart", "[Service]\nRestart=no"},
	{"another type", "[Service]\nType=notify"},
	{"forks", "[Service]\nType=forking\nPIDFile=/nonexistent"},
	{"its end is its failure", "[Service]\nSuccessExitStatus=\nRestartForceExitStatus=0\nRestartPreventExitStatus=1\nRemainAfterExit=yes"},
	{"output that can't be opened", "[Service]\nStandardOutput=file:/nonexistent/out"},
	{"an environment that is missing", "[Service]\nEnvironmentFile=/nonexistent"},
	{"a path of nothing", "[Service]\nEnvironment=PATH=/nonexistent"},
	{"another library", "[Service]\nEnvironment=LD_PRELOAD=/nonexistent.so GODEBUG=x GOMEMLIMIT=1 HOME=/nonexistent"},
	{"a credential that is missing", "[Service]\nLoadCredential=x:/nonexistent"},
	{"a mask of all modes", "[Service]\nUMask=0777"},
	{"a missing slice", "[Service]\nSlice=missing-.slice"},
	{"a missing namespace", "[Service]\nNetworkNamespacePath=/nonexistent"},
	{"idle", "[Service]\nNice=19\nCPUSchedulingPolicy=idle\nIOSchedulingClass=idle\nCPUQuota=1%"},
}

// dropins are drop-ins of single units.
func dropins() []piece {
	var all []piece
	for _, name := range []string{recoverUnit, proveUnit, "dbus.service", "systemd-logind.service", "systemd-journald.service",
		"systemd-tmpfiles-setup.service", "ostree-remount.service", "systemd-reboot.service"} {
		for i, s := range spoilers {
			if !strings.HasPrefix(name, "machine") && i%4 != len(name)%4 {
				continue // of systemd's own units a sample
			}
			all = append(all, piece{name + " has " + s.name, func(d *document) {
				d.unit(name).dropins["10-hostile.conf"] = s.text + "\n"
			}})
		}
	}
	for name := range strings.FieldsSeq("sysinit.target basic.target local-fs.target multi-user.target reboot.target shutdown.target") {
		for _, s := range spoilers[:12] {
			all = append(all, piece{name + " has " + s.name, func(d *document) {
				d.unit(name).dropins["10-hostile.conf"] = s.text + "\n"
			}})
		}
	}
	return all
}

// typeWide are drop-ins of all units of a type, and of all whose names begin alike.
func typeWide() []piece {
	var all []piece
	for _, s := range spoilers {
		all = append(all, piece{"every service has " + s.name, func(d *document) {
			d.file(units+"service.d/10-hostile.conf", s.text+"\n")
		}})
	}
	for _, dir := range []string{"machine-.service.d", "machine-config-.service.d", "machine-config-daemon-.service.d"} {
		for i, s := range spoilers {
			if i%5 == len(dir)%5 {
				all = append(all, piece{dir + " has " + s.name, func(d *document) {
					d.file(units+dir+"/10-hostile.conf", s.text+"\n")
				}})
			}
		}
	}
	for kind := range strings.FieldsSeq("target socket mount slice path timer") {
		for _, s := range spoilers[:11] {
			all = append(all, piece{"every " + kind + " has " + s.name, func(d *document) {
				d.file(units+kind+".d/10-hostile.conf", s.text+"\n")
			}})
		}
	}
	return all
}

// limits are those of what is around the units of all services.
func limits() []piece {
	var all []piece
	for _, dir := range []string{"system.slice.d", "-.slice.d", "slice.d"} {
		for name, text := range map[string]string{"little memory": "MemoryMax=1M\nMemorySwapMax=0", "one task": "TasksMax=1",
			"no time": "CPUQuota=1%", "no devices": "DevicePolicy=strict", "no network": "IPAddressDeny=any",
			"a killer": "ManagedOOMMemoryPressure=kill\nManagedOOMMemoryPressureLimit=0%"} {
			if dir != "system.slice.d" && name == "one task" {
				continue // where it is not refused it would hold for this machine
			}
			all = append(all, piece{dir + " has " + name, func(d *document) {
				d.file(units+dir+"/10-hostile.conf", "[Slice]\n"+text+"\n")
			}})
		}
	}
	return all
}

// away are targets of a boot that pull in its end.
func away() []piece {
	var all []piece
	for target := range strings.FieldsSeq("multi-user.target basic.target sysinit.target local-fs.target") {
		for end := range strings.FieldsSeq("emergency.target poweroff.target reboot.target") {
			for _, key := range []string{"Requires", "Wants", "Upholds"} {
				all = append(all, piece{target + " has " + key + "=" + end, func(d *document) {
					d.unit(target).dropins["10-hostile.conf"] = "[Unit]\n" + key + "=" + end + "\n"
				}})
			}
			all = append(all, piece{target + ".wants has " + end, func(d *document) {
				d.links[units+target+".wants/"+end] = "/usr/lib/systemd/system/" + end
			}})
		}
	}
	return all
}

// links are links and directories where systemd does not expect them.
func links() []piece {
	var all []piece
	link := func(path, target string) {
		all = append(all, piece{path + " -> " + target, func(d *document) { d.links[path] = target }})
	}
	for target := range strings.FieldsSeq(`emergency.target rescue.target poweroff.target reboot.target halt.target exit.target
shutdown.target kexec.target sleep.target basic.target sysinit.target local-fs.target missing.target soft-reboot.target
kubelet.service system.slice dbus.socket`) {
		link(units+"default.target", "/usr/lib/systemd/system/"+target)
	}
	for _, name := range []string{recoverUnit, proveUnit} {
		for _, target := range []string{"sysinit.target", "emergency.target", "rescue.target"} {
			link(units+target+".wants/"+name, "/dev/null")
		}
		link(units+"sysinit.target.wants/"+name, "/nonexistent")
		link(units+name, "/usr/lib/systemd/system/kubelet.service")
		link(units+"hostile.service", units+name)
		link(units+name+".d/10-hostile.conf", "/dev/null")
		link(units+name+".d", "/etc/hostile.d")
		all = append(all,
			piece{"a directory at " + name, func(d *document) { d.dirs[units+name] = true }},
			piece{"a directory at the wants link of " + name, func(d *document) { d.dirs[units+"sysinit.target.wants/"+name] = true }},
			piece{"an alias of " + name, func(d *document) {
				d.unit("hostile.service").contents = "[Service]\nExecStart=/bin/true\n[Install]\nAlias=" + name + "\n"
				d.unit("hostile.service").enabled = true
			}})
	}
	link(units+"multi-user.target", "/usr/lib/systemd/system/emergency.target")
	link(units+"sysinit.target", "/usr/lib/systemd/system/basic.target")
	link(units+"reboot.target", "/usr/lib/systemd/system/poweroff.target")
	link(units+"dbus.service", "/usr/lib/systemd/system/kubelet.service")
	link(units+"dbus-org.freedesktop.login1.service", "/dev/null")
	link(units+"sysinit.target.wants", "/nonexistent")
	link(units+"sysinit.target.d", "/nonexistent")
	link(units+"emergency.target.wants/poweroff.target", "/usr/lib/systemd/system/poweroff.target")
	link("/etc/systemd/system.conf", "/dev/null")
	link("/etc/systemd/system.conf.d", "/dev/null")
	link("/etc/passwd", "/dev/null")
	link("/etc/nsswitch.conf", "/dev/null")
	link("/etc/os-release", "/dev/null")
	link("/etc/localtime", "/nonexistent")
	link("/etc/tmpfiles.d/ostree-tmpfiles.conf", "/dev/null")
	link("/etc/tmpfiles.d/var.conf", "/dev/null")
	link("/etc/machine-id", "/dev/null")
	link("/etc/ld.so.cache", "/nonexistent")
	for _, path := range []string{"/etc/systemd/journald.conf", "/etc/ld.so.preload", "/etc/fstab", "/etc/hostname",
		"/etc/nsswitch.conf", "/etc/systemd/system/default.target", "/etc/systemd/system/service.d/10.conf"} {
		all = append(all, piece{"a directory at " + path, func(d *document) { d.dirs[path] = true }})
	}
	return all
}

// newUnits are units of the configuration's own that fail, never end, reboot, or stand in the way.
func newUnits() []piece {
	const early = "DefaultDependencies=no\nBefore=sysinit.target\nConflicts=shutdown.target\nBefore=shutdown.target"
	const first = "DefaultDependencies=no\nBefore=local-fs-pre.target " + recoverUnit
	var all []piece
	for _, c := range []struct{ name, command string }{
		{"fails", "/bin/false"},
		{"never ends", "/bin/sleep infinity"},
		{"reboots", "/usr/bin/systemctl reboot --force"},
		{"reboots at once", "/usr/bin/systemctl reboot --force --force"},
		{"powers off", "/usr/bin/systemctl poweroff --force"},
		{"powers off in order", "/usr/bin/systemctl poweroff --no-block"},
		{"halts at once", "/usr/bin/systemctl halt --force --force"},
		{"kills all", `/bin/sh -c "kill -9 -1"`},
		{"crashes systemd", `/bin/sh -c "kill -SEGV 1"`},
		{"starts systemd anew", "/usr/bin/systemctl daemon-reexec"},
		{"goes to emergency", "/usr/bin/systemctl isolate --no-block emergency.target"},
		{"goes to rescue", "/usr/bin/systemctl isolate --no-block rescue.target"},
		{"stops the agent's units", "/usr/bin/systemctl stop --no-block " + proveUnit + " " + recoverUnit},
		{"covers /etc", "/bin/mount -t tmpfs hostile /etc"},
		{"covers /boot", "/bin/mount -t tmpfs hostile /boot"},
		{"covers /sysroot", "/bin/mount -t tmpfs hostile /sysroot"},
		{"covers /run", "/bin/mount -t tmpfs hostile /run"},
		{"removes the units", `/bin/sh -c "rm -f /etc/systemd/system/machine-config-daemon-* /etc/systemd/system/sysinit.target.wants/*"`},
		{"freezes systemd's queue", `/bin/sh -c "while :; do systemctl daemon-reload; done"`},
	} {
		all = append(all,
			piece{"a unit that " + c.name, func(d *document) {
				d.service("hostile-late.service", "", "Type=oneshot\nTimeoutStartSec=infinity\nExecStart="+c.command, "multi-user.target")
			}},
			piece{"a unit that early " + c.name, func(d *document) {
				d.service("hostile-early.service", early, "Type=oneshot\nTimeoutStartSec=infinity\nExecStart="+c.command, "sysinit.target")
			}},
			piece{"a unit that first " + c.name, func(d *document) {
				d.service("hostile-first.service", first, "Type=oneshot\nTimeoutStartSec=infinity\nExecStart="+c.command, "local-fs-pre.target")
			}})
	}
	add := func(name string, put func(*document)) { all = append(all, piece{name, put}) }
	add("a cycle", func(d *document) {
		d.service("hostile-a.service", "DefaultDependencies=no\nAfter=hostile-b.service "+proveUnit+"\nBefore=sysinit.target local-fs.target", "ExecStart=/bin/true", "sysinit.target")
		d.service("hostile-b.service", "DefaultDependencies=no\nAfter=hostile-a.service basic.target\nBefore="+recoverUnit, "ExecStart=/bin/true", "sysinit.target")
	})
	add("a unit that conflicts with the agent's", func(d *document) {
		d.service("hostile.service", "Conflicts="+proveUnit+" "+recoverUnit+"\nDefaultDependencies=no", "ExecStart=/bin/sleep infinity", "sysinit.target")
	})
	add("a unit that conflicts with the targets", func(d *document) {
		d.service("hostile.service", "Conflicts=sysinit.target basic.target local-fs.target\nDefaultDependencies=no", "ExecStart=/bin/sleep infinity", "multi-user.target")
	})
	add("a unit before the agent's that waits for one after", func(d *document) {
		d.service("hostile.service", "DefaultDependencies=no\nBefore="+recoverUnit+" "+proveUnit+"\nAfter=multi-user.target", "Type=oneshot\nExecStart=/bin/true", "sysinit.target")
	})
	add("a unit that the agent's are to want", func(d *document) {
		d.unit("hostile.service").contents = "[Service]\nExecStart=/bin/true\n[Install]\nRequiredBy=" + proveUnit + " " + recoverUnit + "\n"
		d.unit("hostile.service").enabled = true
	})
	add("a unit that fails and reboots", func(d *document) {
		d.service("hostile.service", "OnFailure=reboot.target", "ExecStart=/bin/false", "multi-user.target")
	})
	add("a unit that fails and powers off", func(d *document) {
		d.service("hostile.service", "OnFailure=poweroff.target\nOnFailureJobMode=replace-irreversibly", "ExecStart=/bin/false", "multi-user.target")
	})
	add("a reboot that never ends", func(d *document) {
		d.service("hostile.service", "Before=shutdown.target", "Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\nExecStop=/bin/sleep infinity\nTimeoutStopSec=infinity", "multi-user.target")
	})
	add("a reboot that never ends, out of what is bad", func(d *document) {
		d.service("hostile.service", "Before=shutdown.target", "Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n"+
			"ExecStop=/bin/sleep infinity\nTimeoutStopSec=infinity", "multi-user.target")
		d.service("hostile-bad.service", "", "Type=oneshot\nExecStart=/bin/false", "multi-user.target")
		delete(d.units, "reboot.target")
	})
	add("a unit that survives all signals", func(d *document) {
		d.service("hostile.service", "DefaultDependencies=no", "SendSIGKILL=no\nKillMode=process\nTimeoutStopSec=infinity\nExecStart=/bin/sh -c \"trap '' TERM HUP INT; while :; do sleep 1; done\"", "multi-user.target")
	})
	add("a timer that reboots", func(d *document) {
		d.unit("hostile.timer").contents = "[Timer]\nOnBootSec=3s\nUnit=reboot.target\n[Install]\nWantedBy=timers.target\n"
		d.unit("hostile.timer").enabled = true
	})
	add("a socket at the bus", func(d *document) {
		d.unit("hostile.socket").contents = "[Unit]\nDefaultDependencies=no\nBefore=dbus.socket\n[Socket]\nListenStream=/run/dbus/system_bus_socket\n[Install]\nWantedBy=sysinit.target\n"
		d.unit("hostile.socket").enabled = true
		d.service("hostile.service", "", "ExecStart=/bin/sleep infinity", "")
	})
	for _, at := range []string{"/var", "/var/lib", state, "/etc", "/boot", "/sysroot", "/usr", "/run", "/usr/local"} {
		name := strings.ReplaceAll(strings.TrimPrefix(strings.ReplaceAll(at, "-", `\x2d`), "/"), "/", "-") + ".mount"
		add("a mount at "+at, func(d *document) {
			d.unit(name).contents = "[Unit]\nDefaultDependencies=no\nBefore=local-fs.target\n[Mount]\nWhat=tmpfs\nType=tmpfs\nWhere=" + at + "\n[Install]\nRequiredBy=local-fs.target\n"
			d.unit(name).enabled = true
		})
		add("fstab has a tmpfs at "+at, func(d *document) { d.file("/etc/fstab", "tmpfs "+at+" tmpfs defaults 0 0\n") })
	}
	return all
}

// generators are programs that systemd runs before anything else.
func generators() []piece {
	var all []piece
	for _, c := range []struct{ name, text string }{
		{"fails", "exit 1"},
		{"never ends", "exec sleep infinity"},
		{"prints garbage units", `for i in $(seq 200); do printf '[Unit]\nRequires=a%s.service\n\377\n' $i >"$1/garbage$i.service"; done`},
		{"masks sysinit", `ln -s /dev/null "$2/sysinit.target"`},
		{"makes another default target", `ln -s /usr/lib/systemd/system/emergency.target "$2/default.target"`},
		{"removes the units", "rm -f /etc/systemd/system/machine-config-daemon-*"},
		{"kills systemd", "kill -SEGV 1"},
		{"covers the units", "mount -t tmpfs hostile /etc/systemd/system"},
	} {
		all = append(all, piece{"a generator that " + c.name, func(d *document) {
			d.script("/etc/systemd/system-generators/hostile", c.text)
		}})
	}
	for _, c := range []struct{ name, text string }{
		{"a library that is missing", "echo LD_PRELOAD=/nonexistent.so"},
		{"a path of nothing", "echo PATH=/nonexistent"},
		{"garbage", "head -c 4096 /dev/urandom"},
		{"nothing, for ever", "exec sleep infinity"},
		{"a bus elsewhere", "echo DBUS_SYSTEM_BUS_ADDRESS=unix:path=/nonexistent"},
	} {
		all = append(all, piece{"an environment generator that prints " + c.name, func(d *document) {
			d.script("/etc/systemd/system-environment-generators/hostile", c.text)
		}})
	}
	all = append(all, piece{"a generator that is no program", func(d *document) {
		d.files["/etc/systemd/system-generators/hostile"] = file{"\x7fELF garbage", 0o755}
	}}, piece{"a generator whose interpreter is missing", func(d *document) {
		d.files["/etc/systemd/system-generators/hostile"] = file{"#!/nonexistent\n", 0o755}
	}})
	return all
}

// earlyFiles are files of /etc that early boot reads, as bad as they come.
func earlyFiles() []piece {
	var all []piece
	text := func(path, name, text string) {
		all = append(all, piece{path + " " + name, func(d *document) { d.file(path, text) }})
	}
	const fstab = "/etc/fstab"
	text(fstab, "has a missing device", "UUID=00000000-0000-0000-0000-000000000000 /srv/missing ext4 defaults 0 2\n")
	text(fstab, "has a missing device with a limit", "/dev/missing /srv/missing ext4 x-systemd.device-timeout=2 0 2\n")
	text(fstab, "has a missing device that may be", "/dev/missing /srv/missing ext4 nofail 0 2\n")
	text(fstab, "has garbage", "x\x00y z\n/srv / / / / / /\n\xff\xfe\n")
	text(fstab, "has a bind of nothing", "/nonexistent /var/lib/machine-config-daemon none bind 0 0\n")
	text(fstab, "has swap that is missing", "/dev/missing none swap defaults 0 0\n")
	text("/etc/ld.so.preload", "has a missing library", "/nonexistent/lib.so\n")
	all = append(all, piece{"/etc/ld.so.preload has a broken library", func(d *document) {
		d.file("/etc/broken.so", "\x7fELF\x02\x01\x01 garbage")
		d.file("/etc/ld.so.preload", "/etc/broken.so\n")
	}})
	text("/etc/ld.so.cache", "is garbage", "glibc-ld.so.cache1.1"+strings.Repeat("\xff", 256))
	text("/etc/passwd", "is empty", "")
	text("/etc/passwd", "has no root", "nobody:x:65534:65534::/:/usr/sbin/nologin\n")
	text("/etc/passwd", "is garbage", "root\x00:::::\n:::\n\xff\n")
	text("/etc/passwd", "has another root", "root:x:0:0:root:/nonexistent:/nonexistent\ntoor:x:0:0::/:/bin/sh\n")
	text("/etc/group", "is empty", "")
	text("/etc/group", "is garbage", "root:::::\n\xff")
	text("/etc/shadow", "is empty", "")
	text("/etc/nsswitch.conf", "has a missing module", "passwd: missing\ngroup: missing\nhosts: missing\n")
	text("/etc/nsswitch.conf", "is garbage", "\xff:::[[[\n")
	text("/etc/pam.d/common-session", "is garbage", "session required pam_missing.so\n")
	text("/etc/pam.d/other", "denies", "auth required pam_deny.so\nsession required pam_deny.so\n")
	text("/etc/environment", "has a library", "LD_PRELOAD=/nonexistent.so\nPATH=/nonexistent\n")
	text("/etc/profile", "exits", "exit 1\n")
	text("/etc/profile.d/hostile.sh", "exits", "exit 1\n")
	text("/etc/bash.bashrc", "never ends", "while :; do sleep 1; done\n")
	text("/etc/sysctl.d/99-hostile.conf", "is garbage", "kernel.missing=1\nnet.ipv4.missing = x\n\xff\n")
	text("/etc/sysctl.d/99-hostile.conf", "takes the network", "net.ipv4.conf.lo.forwarding=0\nnet.ipv6.conf.all.disable_ipv6=1\nnet.unix.max_dgram_qlen=0\n")
	text("/etc/modules-load.d/hostile.conf", "has missing modules", "missing\nhostile\n")
	text("/etc/modprobe.d/hostile.conf", "installs", "install * /bin/false\n")
	text("/etc/crypttab", "has a missing device", "secret /dev/missing none luks\n")
	text("/etc/udev/rules.d/00-hostile.rules", "is garbage", "ACTION==\"*\", RUN+=\"/bin/false\", OPTIONS=\"x\"\n\xff\n")
	text("/etc/machine-id", "is not initialised", "uninitialized\n")
	text("/etc/machine-id", "is garbage", "garbage\n")
	text("/etc/machine-id", "is empty", "")
	text("/etc/os-release", "is garbage", "ID=\x00\n\xff=\n")
	text("/etc/os-release", "is of another OS", "ID=other\nVERSION_ID=0\nNAME=Other\n")
	text("/etc/hostname", "is garbage", "-bad host name-\xff\n")
	text("/etc/selinux/config", "enforces", "SELINUX=enforcing\nSELINUXTYPE=missing\n")
	text("/etc/initrd-release", "is there", "ID=initrd\n")
	text("/etc/locale.conf", "is garbage", "LANG=\xff\nLC_ALL=missing\n")
	text("/etc/hosts", "is garbage", "127.0.0.1\n\xff localhost\n")
	text("/etc/nologin", "is there", "no\n")
	text("/etc/kubernetes/kubelet.conf", "fails", "fail\n")
	text("/etc/systemd/system-preset/00-hostile.preset", "disables all", "disable *\n")
	text("/etc/systemd/system-preset/00-hostile.preset", "disables the agent's", "disable machine-config-daemon-*\n")
	text("/etc/sysusers.d/hostile.conf", "is garbage", "u root 1000\ng \xff\n")
	text("/etc/binfmt.d/hostile.conf", "takes ELF", ":hostile:M::\\x7fELF::/bin/false:\n")
	text("/etc/dbus-1/system.conf", "is garbage", "<busconfig><garbage")
	text("/etc/dbus-1/system.d/hostile.conf", "denies all", `<busconfig><policy context="mandatory"><deny send_destination="*"/><deny own="*"/></policy></busconfig>`)
	text("/etc/dbus-1/system.d/hostile.conf", "denies systemd", `<busconfig><policy context="mandatory"><deny send_destination="org.freedesktop.systemd1"/></policy></busconfig>`)
	text("/etc/dbus-1/system.d/hostile.conf", "denies logind", `<busconfig><policy context="mandatory"><deny send_destination="org.freedesktop.login1"/></policy></busconfig>`)
	text("/etc/dbus-1/system-local.conf", "takes another socket", "<busconfig><listen>unix:path=/nonexistent/bus</listen></busconfig>")
	text("/etc/ostree/prepare-root.conf", "is garbage", "[composefs]\nenabled=yes\n[etc]\ntransient=true\n")
	text("/etc/ostree/remotes.d/hostile.conf", "is garbage", "[remote \"hostile\"]\nurl=\xff\n[core]\nrepo_version=9\n")
	for _, c := range []struct{ name, text string }{{"fails", "exit 1"}, {"never ends", "exec sleep infinity"}, {"reboots", "systemctl reboot -ff"}} {
		all = append(all, piece{"a health check that " + c.name, func(d *document) {
			d.script("/etc/greenboot/check/required.d/10-hostile.sh", c.text)
		}})
	}
	return all
}

// managerFiles are values of systemd's own configuration.
func managerFiles() []piece {
	var all []piece
	for file, values := range managerValues {
		for _, value := range values {
			all = append(all, piece{file + " says " + strings.ReplaceAll(value, "\n", " "), func(d *document) {
				section := map[string]string{"system": "Manager", "journald": "Journal", "logind": "Login"}[file]
				d.file("/etc/systemd/"+file+".conf.d/zz-hostile.conf", "["+section+"]\n"+value+"\n")
			}})
		}
	}
	return all
}

var managerValues = map[string][]string{
	"system": {"DefaultTimeoutStartSec=1ms", "DefaultTimeoutStopSec=infinity", "DefaultTimeoutStartSec=infinity",
		"DefaultEnvironment=LD_PRELOAD=/nonexistent.so", "DefaultEnvironment=PATH=/nonexistent", "ManagerEnvironment=PATH=/nonexistent",
		"SystemCallArchitectures=arm", "CapabilityBoundingSet=", "CapabilityBoundingSet=~CAP_SYS_ADMIN", "NoNewPrivileges=yes",
		"DefaultStandardOutput=file:/nonexistent/x", "DefaultStandardOutput=tty", "DefaultLimitNOFILE=4", "DefaultLimitFSIZE=1",
		"DefaultLimitAS=1M", "DefaultTasksMax=1", "DefaultLimitNPROC=1", "DefaultStartLimitBurst=1\nDefaultStartLimitIntervalSec=1h",
		"DefaultRestartSec=1h", "CrashReboot=yes", "CrashAction=poweroff", "RuntimeWatchdogSec=1ms", "RebootWatchdogSec=1ms",
		"LogTarget=null", "LogLevel=debug", "ShowStatus=yes", "ProtectSystem=yes", "DefaultDeviceTimeoutSec=1ms",
		"DefaultMemoryPressureWatch=on\nDefaultOOMPolicy=kill", "garbage", "CPUAffinity=99", "NUMAPolicy=bind\nNUMAMask=9",
		"CtrlAltDelBurstAction=poweroff-immediate", "ReloadLimitIntervalSec=1h\nReloadLimitBurst=1", "KillMode=none"},
	"journald": {"Storage=none", "Storage=volatile", "RuntimeMaxUse=1\nSystemMaxUse=1", "garbage", "ForwardToConsole=yes",
		"MaxLevelStore=emerg", "SyncIntervalSec=1h", "LineMax=79"},
	"logind": {"InhibitDelayMaxSec=infinity", "IdleAction=poweroff\nIdleActionSec=1", "KillUserProcesses=yes", "garbage",
		"HandlePowerKey=halt", "RuntimeDirectorySize=1"},
}

// removals are lines of tmpfiles.d that take away what the agent needs.
func removals() []piece {
	var all []piece
	for _, line := range []string{
		"R! " + state, "R " + state, "r! " + state + "/boot.json", "r " + state + "/boot.json", "R " + state + "/bin",
		"R " + state + "/transactions", "R " + state + "/configs", "D! " + state + " 0755 root root 0", "e " + state + " - - - 0",
		"L+ " + state + " - - - - /nonexistent", "L+ " + state + "/boot.json - - - - /dev/null",
		"z " + state + "/bin/machine-config-daemon 0000 - -", "z " + state + " 0000 nobody nogroup", "Z " + state + " 0000 nobody nogroup",
		"Z /etc 0644 nobody nogroup", "r " + units + recoverUnit, "r " + units + proveUnit, "R " + units + "sysinit.target.wants",
		"R " + units, "R /etc/ostree", "R /etc", "R! /var/lib", "R! /var", "R /run/machine-config-daemon", "R /run/dbus",
		"R /usr/local", "f+ " + state + "/boot.json - - - - garbage", "w " + state + "/boot.json - - - - garbage",
		"f+ /etc/machine-id - - - - garbage", "R /boot/loader", "R /ostree/repo", "R /ostree/deploy", "garbage", "L+ /etc/passwd - - - - /dev/null",
		"p+ " + state + "/lock 0600 root root", "c+ " + state + "/boot.json 0600 root root - 1:3",
	} {
		all = append(all, piece{"tmpfiles.d has " + line, func(d *document) { d.file("/etc/tmpfiles.d/zz-hostile.conf", line+"\n") }})
	}
	return all
}

// programs are ones that stand before those of the OS.
func programs() []piece {
	var all []piece
	for name := range strings.FieldsSeq("ostree systemctl sh env journalctl systemd-run rpm-ostree bootc mount greenboot") {
		for _, c := range []struct{ name, text string }{{"fails", "exit 1"}, {"says nothing", "exit 0"}, {"never ends", "exec sleep infinity"}, {"prints garbage", "echo garbage"}} {
			all = append(all, piece{"a " + name + " of its own that " + c.name, func(d *document) {
				d.script("/usr/local/bin/"+name, c.text)
				d.script("/usr/local/sbin/"+name, c.text)
			}})
		}
	}
	return all
}

// arguments are kernel arguments.
func arguments() []piece {
	var all []piece
	for _, argument := range []string{"systemd.unit=emergency.target", "systemd.unit=rescue.target", "systemd.unit=poweroff.target",
		"systemd.unit=missing.target", "systemd.unit=-.slice", "systemd.unit=basic.target", "systemd.unit=" + proveUnit,
		"systemd.mask=" + proveUnit, "systemd.mask=" + recoverUnit, "systemd.mask=sysinit.target", "systemd.mask=dbus.service",
		"systemd.mask=systemd-logind.service", "systemd.wants=emergency.target", "systemd.wants=poweroff.target", "emergency", "rescue",
		"single", "1", "-b", "systemd.default_timeout_start_sec=1ms", "systemd.setenv=LD_PRELOAD=/nonexistent.so",
		"systemd.setenv=PATH=/nonexistent", "systemd.log_target=null", "systemd.default_standard_output=file:/nonexistent/x",
		"systemd.default_standard_output=null", "systemd.run=/bin/false", "systemd.run=/bin/true", "systemd.machine_id=garbage",
		"systemd.machine_id=00000000000000000000000000000001", "systemd.volatile=yes", "systemd.volatile=state",
		"systemd.confirm_spawn=/dev/console", "ro", "fsck.mode=force", "init=/bin/false", "root=LABEL=missing", "rootflags=missing",
		"systemd.crash_action=poweroff", "systemd.crash_reboot", "systemd.service_watchdogs=0", "systemd.unified_cgroup_hierarchy=0",
		"systemd.import_credentials=no", "systemd.firstboot=yes", "systemd.condition_first_boot=yes", "systemd.hostname=-bad-",
		"systemd.cpu_affinity=99", "systemd.show_status=1", "selinux=1", "enforcing=1", "systemd.default_device_timeout_sec=1ms",
		"systemd.reload_limit_burst=1", "systemd.battery_check=0", "rd.break", "rd.systemd.unit=emergency.target",
		"systemd.mount-extra=tmpfs:/var:tmpfs", "systemd.mount-extra=tmpfs:" + state + ":tmpfs", "fstab=no", "systemd.swap=0",
		"systemd.set_credential=systemd.extra-unit." + proveUnit + ":x",
		"systemd.set_credential=systemd.unit-dropin." + recoverUnit + ":x", "systemd.set_credential=fstab.extra:tmpfs /var tmpfs",
		"rd.fstab=no", "systemd.mask=boot.mount", "systemd.debug_shell", "systemd.getty_auto=0", `systemd.set_credential=systemd.extra-unit.hostile.service:x`} {
		all = append(all, piece{"argument " + argument, func(d *document) { d.kargs = append(d.kargs, argument) }})
	}
	return all
}
