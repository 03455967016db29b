// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/machineconfig"
)

func yes() *bool { b := true; return &b }

func aUnit(name, contents string) machineconfig.Config {
	return machineconfig.Config{Units: []machineconfig.Unit{{Name: name, Contents: contents}}}
}

func aDropin(unit, name, contents string) machineconfig.Config {
	return machineconfig.Config{Units: []machineconfig.Unit{{Name: unit,
		Dropins: []machineconfig.Dropin{{Name: name, Contents: contents}}}}}
}

func aMask(unit string) machineconfig.Config {
	return machineconfig.Config{Units: []machineconfig.Unit{{Name: unit, Mask: yes()}}}
}

func aFile(path, contents string) machineconfig.Config {
	return machineconfig.Config{Files: []machineconfig.File{{Path: path, Contents: []byte(contents)}}}
}

func ofTmpfiles(lines string) machineconfig.Config {
	return aFile("/etc/tmpfiles.d/a.conf", lines+"\n")
}

func aLink(path, target string) machineconfig.Config {
	return machineconfig.Config{Links: []machineconfig.Link{{Path: path, Target: target}}}
}

func arguments(a ...string) machineconfig.Config { return machineconfig.Config{KernelArguments: a} }

func TestWhatWouldDisarmAHostIsUnreconcilable(t *testing.T) {
	const etc = "/etc/systemd/system/"
	for _, c := range []struct {
		cfg   machineconfig.Config
		field string
		names string
	}{
		{aMask(ProveUnit), "systemd.units", ProveUnit},
		{aMask("machine-config-daemon-apply.service"), "systemd.units", "machine-config-daemon-apply.service"},
		{aUnit(RecoverUnit, "[Service]\nExecStart=/bin/true\n"), "systemd.units", RecoverUnit},
		{machineconfig.Config{Units: []machineconfig.Unit{{Name: ProveUnit, Enabled: new(bool)}}}, "systemd.units", ProveUnit},
		{aDropin(ProveUnit, "10-a.conf", ""), "systemd.units", ProveUnit + "/10-a.conf"},
		{aUnit("x.service", "[Install]\nAlias=y.service \\\n "+ProveUnit+"\n"), "systemd.units", "x.service"},
		{aDropin("x.service", "a.conf", "[Install]\nAlias="+RecoverUnit), "systemd.units", "x.service/a.conf"},
		{aUnit("x.service", "[Unit]\nConflicts="+ProveUnit), "systemd.units", "Conflicts"},
		{aUnit("x.service", "[Unit]\nBefore=a.service "+RecoverUnit), "systemd.units", "Before"},
		{aUnit("x.service", "[Install]\nAlso="+ProveUnit), "systemd.units", "Also"},
		{aMask("system.slice"), "systemd.units", "system.slice"},
		{aFile(etc+"x.service", "[Unit]\nConflicts="+ProveUnit), "storage.files", "Conflicts"},
		{aFile(etc+ProveUnit, ""), "storage.files", etc + ProveUnit},
		{aFile("/etc/systemd/../systemd//system/"+ProveUnit, ""), "storage.files", ProveUnit},
		{aFile("/etc/systemd/system.control/"+ProveUnit, ""), "storage.files", ProveUnit},
		{aFile("/usr/local/lib/systemd/system/"+ProveUnit+".d/a.conf", ""), "storage.files", "a.conf"},
		{aFile("/run/systemd/system/"+RecoverUnit, ""), "storage.files", RecoverUnit},
		{aFile(etc+"machine-config-daemon-.service.d/a.conf", ""), "storage.files", "a.conf"},
		{aFile(etc+"machine-config-.service.d/a.conf", ""), "storage.files", "a.conf"},
		{aFile(etc+"machine-.service.d/a.conf", ""), "storage.files", "a.conf"},
		{aLink(etc+"machine-.service.d", "/etc/elsewhere"), "storage.links", "machine-.service.d"},
		{aLink(etc+ProveUnit, "/dev/null"), "storage.links", ProveUnit},
		{aLink(etc+ProveUnit+".requires/x.service", "../x.service"), "storage.links", ProveUnit},
		{aLink(etc+"sysinit.target.wants/"+ProveUnit, "/dev/null"), "storage.links", "sysinit.target.wants"},
		{aLink(etc+"x.target.requires/"+RecoverUnit, "/dev/null"), "storage.links", RecoverUnit},
		{aLink(etc+"sysinit.target.wants", "/etc/empty"), "storage.links", "sysinit.target.wants"},
		{aLink(etc+"sysinit.target.wants", "/etc/empty"), "storage.links", "only in a directory"},
		{aFile(etc+"rescue.target.wants", "x"), "storage.files", "only in a directory"},
		{ofTmpfiles("L+ /etc/systemd/system/rescue.target.wants - - - - /x"), "storage.files", "only in a directory"},
		{machineconfig.Config{Directories: []machineconfig.Directory{{Path: etc + "sysinit.target.wants", Mode: 0o777}}},
			"storage.directories", "users other than root"},
		{machineconfig.Config{Directories: []machineconfig.Directory{{Path: etc + "sysinit.target.wants", Mode: 0o755,
			Owner: machineconfig.Owner{User: "core"}}}}, "storage.directories", "users other than root"},
		{machineconfig.Config{Directories: []machineconfig.Directory{{Path: etc + ProveUnit}}}, "storage.directories", ProveUnit},
		{machineconfig.Config{Directories: []machineconfig.Directory{{Path: etc + ProveUnit + ".d"}}}, "storage.directories",
			ProveUnit},
		{machineconfig.Config{Links: []machineconfig.Link{{Path: "/etc/mine", Target: "systemd/system"}},
			Files: []machineconfig.File{{Path: "/etc/mine/" + ProveUnit}}}, "storage.files", "/etc/mine/" + ProveUnit},

		{aMask("sysinit.target"), "systemd.units", "sysinit.target"},
		{aMask("reboot.target"), "systemd.units", "reboot.target"},
		{aUnit("reboot.target", "[Unit]\nDescription=Nothing\n"), "systemd.units", "reboot.target"},
		{aUnit("x.target", "[Install]\nAlias=reboot.target"), "systemd.units", "Alias"},
		{aDropin("sysinit.target", "a.conf", "[Unit]\nConditionPathExists=/nonexistent"), "systemd.units", "Condition"},
		{aFile(etc+"target.d/a.conf", "[Unit]\nAssertPathExists=/nonexistent"), "storage.files", "AssertPathExists"},
		{aFile(etc+"systemd-.service.d/a.conf", "[Service]\nExecStartPre=/bin/false"), "storage.files", "ExecStartPre"},

		{aDropin("reboot.target", "a.conf", "[Unit]\nJobTimeoutSec=infinity"), "systemd.units", "JobTimeoutSec=infinity"},
		{aDropin("reboot.target", "a.conf", "[Unit]\nJobTimeoutAction=none"), "systemd.units", "JobTimeoutAction=none"},
		{aFile(etc+"target.d/a.conf", "[Unit]\nJobTimeoutSec="), "storage.files", "JobTimeoutSec"},
		{aUnit("x.service", "[Unit]\nWants=a.service "+RebootUnit), "systemd.units", RebootUnit},
		{aUnit("x.timer", "[Timer]\nOnBootSec=1\nUnit="+RebootUnit), "systemd.units", RebootUnit},
		{aDropin("x.service", "a.conf", "[Unit]\nOnFailure="+RebootUnit), "systemd.units", RebootUnit},
		{aLink(etc+"multi-user.target.wants/"+RebootUnit, "../"+RebootUnit), "storage.links", RebootUnit},
		{arguments("systemd.wants=" + RebootUnit), "kernelArguments", RebootUnit},
		{aMask(RebootUnit), "systemd.units", RebootUnit},

		{aMask("default.target"), "systemd.units", "default.target"},
		{aLink(etc+"default.target", "/dev/null"), "storage.links", "default.target"},
		{aLink(etc+"default.target", "/usr/lib/systemd/system/emergency.target"), "storage.links", "emergency.target"},
		{aLink(etc+"default.target", "../../../usr/lib/systemd/system/rescue.target"), "storage.links", "rescue.target"},
		{aLink(etc+"graphical.target", "/usr/lib/systemd/system/poweroff.target"), "storage.links", "poweroff.target"},
		{aUnit("emergency.target", "[Install]\nAlias=default.target"), "systemd.units", "Alias"},

		{aFile(etc+"service.d/10-a.conf", "[Unit]\nRequires=gone.service"), "storage.files", "Requires=gone.service"},
		{aFile(etc+"service.d/10-a.conf", "[Unit]\nConflicts=sysinit.target"), "storage.files", "Conflicts"},
		{aFile(etc+"service.d/10-a.conf", "[Unit]\nSuccessAction=none"), "storage.files", "SuccessAction"},
		{aFile(etc+"service.d/a.conf", "[Unit]\nWantsMountsFor=/x"), "storage.files", "WantsMountsFor"},
		{aFile(etc+"service.d/a.conf", "[Service]\nOpenFile=/x"), "storage.files", "OpenFile"},
		{aFile(etc+"service.d/a.conf", "[Service]\nMemoryLimit=1M"), "storage.files", "MemoryLimit"},
		{aFile(etc+"service.d/~~.conf", "[Service]\nUser=nobody"), "storage.files", OwnDropin},
		{machineconfig.Config{Links: []machineconfig.Link{{Path: etc + "service.d/10-a.conf", Target: "/etc/a"}},
			Files: []machineconfig.File{{Path: "/etc/a", Contents: []byte("[Unit]\nBindsTo=gone.service")}}},
			"storage.links", "BindsTo"},

		{aLink("/etc/systemd/system-generators/ostree-system-generator", "/dev/null"), "storage.links", "generator"},
		{aFile("/etc/systemd/system.conf", "[Manager]\nManagerEnvironment=A=1 SYSTEMD_UNIT_PATH=/x"), "storage.files", "Manager"},
		{aFile("/etc/systemd/system.conf.d/a.conf", "[Manager]\nCapabilityBoundingSet=~CAP_SYS_ADMIN"), "storage.files",
			"CAP_SYS_ADMIN"},
		{aFile("/etc/systemd/system.conf.d/a.conf", "[Manager]\nCapabilityBoundingSet=CAP_NET_ADMIN"), "storage.files", "CAP_"},

		{aFile("/usr/local/bin/rpm-ostree", ""), "storage.files", "/usr/local/bin/rpm-ostree"},
		{aLink("/usr/local/bin/bootc", "/usr/bin/true"), "storage.links", "/usr/local/bin/bootc"},

		{aFile("/etc/ostree/prepare-root.conf", "[composefs]\nenabled=yes\n[etc]\ntransient=true\n"), "storage.files",
			"etc.transient"},
		{aFile("/etc/ostree/prepare-root.conf", "[etc]\ntransient = 1\n"), "storage.files", "etc.transient"},
		{aLink("/etc/ostree/prepare-root.conf", "../mine.conf"), "storage.links", "configure a regular file"},

		{ofTmpfiles("# x\n\nR! /var/lib"), "storage.files", "line 3 (R! /var/lib)"},
		{aFile("/run/tmpfiles.d/a.conf", "R /"), "storage.files", "/run/tmpfiles.d/a.conf"},
		{aFile("/usr/local/lib/tmpfiles.d/a.conf", "R /var"), "storage.files", "/usr/local/lib/tmpfiles.d/a.conf"},
		{machineconfig.Config{Links: []machineconfig.Link{{Path: "/etc/tmpfiles.d/a.conf", Target: "../mine"}},
			Files: []machineconfig.File{{Path: "/etc/mine", Contents: []byte("R! /var/lib")}}}, "storage.links", "line 1"},
		{machineconfig.Config{Links: []machineconfig.Link{{Path: "/etc/there", Target: "/var/lib"}},
			Files: []machineconfig.File{{Path: "/etc/tmpfiles.d/a.conf", Contents: []byte("R! /etc/there/m*")}}},
			"storage.files", "line 1"},
		{ofTmpfiles("r /var/lib/machine-config-daemon/boot.json"), "storage.files", "boot.json"},
		{ofTmpfiles("r\t\"/var/lib/machine-config-daemon/boot.json\""), "storage.files", "line 1"},
		{ofTmpfiles(`r '/var/lib/machine\x2dconfig-daemon'`), "storage.files", "line 1"},
		{ofTmpfiles("R %S/machine-config-daemon"), "storage.files", "line 1"},
		{ofTmpfiles("R /var/lib/machine-*"), "storage.files", "line 1"},
		{ofTmpfiles("R /var/lib/[!a]*"), "storage.files", "line 1"},
		{ofTmpfiles("R /v?r/*/*/boot.json"), "storage.files", "line 1"},
		{ofTmpfiles("R /var/{cache,lib/machine{-,_}config-daemon}"), "storage.files", "line 1"},
		{ofTmpfiles("R /var/../var//lib/"), "storage.files", "line 1"},
		{ofTmpfiles("L+ /var/lib/machine-config-daemon - - - - /nonexistent"), "storage.files", "line 1"},
		{ofTmpfiles("L+ /var/lib - - - - /nonexistent"), "storage.files", "line 1"},
		{ofTmpfiles("L /var/lib/machine-config-daemon/boot.json - - - - /dev/null"), "storage.files", "line 1"},
		{ofTmpfiles("f+ /var/lib/machine-config-daemon/boot.json - - - - garbage"), "storage.files", "line 1"},
		{ofTmpfiles("w /var/lib/machine-config-daemon/boot.json - - - - garbage"), "storage.files", "line 1"},
		{ofTmpfiles("p+ /var/lib/machine-config-daemon/lock 0600 root root"), "storage.files", "line 1"},
		{ofTmpfiles("c+ /var/lib/machine-config-daemon/boot.json 0600 root root - 1:3"), "storage.files", "line 1"},
		{ofTmpfiles("z /var/lib/machine-config-daemon/bin/machine-config-daemon 0000 - -"), "storage.files", "line 1"},
		{ofTmpfiles("m /var/lib/machine-config-daemon 0000 nobody nogroup"), "storage.files", "line 1"},
		{ofTmpfiles("t /var/lib/machine-config-daemon - - - - user.a=b"), "storage.files", "line 1"},
		{ofTmpfiles("h /var/lib/machine-config-daemon - - - - +i"), "storage.files", "line 1"},
		{ofTmpfiles("H /var/lib - - - - +i"), "storage.files", "line 1"},
		{ofTmpfiles("Z /var/lib 0000 nobody nogroup"), "storage.files", "line 1"},
		{ofTmpfiles("e /var/lib/machine-config-daemon - - - 0"), "storage.files", "line 1"},
		{ofTmpfiles("e /var/lib - - - 10d"), "storage.files", "line 1"},
		{ofTmpfiles("d /var/lib 0755 root root 10d"), "storage.files", "line 1"},
		{ofTmpfiles("D! /var/lib/machine-config-daemon 0755 root root 0"), "storage.files", "line 1"},
		{ofTmpfiles("D /var/lib 0755 root root -"), "storage.files", "line 1"},
		{ofTmpfiles("C+ /var/lib - - - - /etc/mine"), "storage.files", "line 1"},
		{ofTmpfiles("r /etc/systemd/system/" + ProveUnit), "storage.files", ProveUnit},
		{ofTmpfiles("R /etc/systemd/system/sysinit.target.wants"), "storage.files", "sysinit.target.wants"},
		{ofTmpfiles("R /etc/systemd/system/"), "storage.files", "line 1"},
		{ofTmpfiles("L+ /etc/systemd/system/default.target - - - - /usr/lib/systemd/system/emergency.target"),
			"storage.files", "line 1"},
		{ofTmpfiles("f /run/systemd/system/reboot.target - - - - [Unit]"), "storage.files", "line 1"},
		{ofTmpfiles("f /run/systemd/system/machine-.service.d/a.conf - - - - [Service]"), "storage.files", "line 1"},
		{ofTmpfiles("R /etc/machine-config-daemon"), "storage.files", "line 1"},
		{ofTmpfiles("R /boot/loader"), "storage.files", "line 1"},
		{ofTmpfiles("R /ostree/repo"), "storage.files", "line 1"},
		{arguments("systemd.set_credential=tmpfiles.extra:R! /var/lib"), "kernelArguments", "tmpfiles.extra"},
		{arguments("systemd.set_credential_binary=tmpfiles.extra:UiEgL3Zhci9saWI="), "kernelArguments", "R! /var/lib"},

		{aFile("/etc/credstore/tmpfiles.extra", "R! /var/lib"), "storage.files", "line 1"},
		{arguments("systemd.set_credential=systemd.extra-unit." + ProveUnit + ":x"), "kernelArguments", ProveUnit},
		{arguments("systemd.set_credential=systemd.unit-dropin." + ProveUnit + ":x"), "kernelArguments", ProveUnit},
		{arguments("systemd.set-credential=systemd.unit-dropin.service~~zz:x"), "kernelArguments", OwnDropin},
		{arguments("systemd.set_credential=systemd.extra-unit.reboot.target:x"), "kernelArguments", "reboot.target"},
		{arguments("systemd.set_credential_binary=systemd.extra-unit.x.service:" +
			"W1VuaXRdCkNvbmZsaWN0cz1tYWNoaW5lLWNvbmZpZy1kYWVtb24tcHJvdmUuc2VydmljZQo="), "kernelArguments", "Conflicts"},

		{aUnit("default.target", "[Unit]\nRequires=emergency.target\n"), "systemd.units", "Requires=emergency.target"},
		{aDropin("multi-user.target", "a.conf", "[Unit]\nRequires=emergency.target"), "systemd.units", "Requires="},
		{aDropin("basic.target", "a.conf", "[Unit]\nWants=a.service poweroff.target"), "systemd.units", "Wants="},
		{aDropin("local-fs.target", "a.conf", "[Unit]\nUpholds=halt.target"), "systemd.units", "Upholds="},
		{aFile(etc+"multi-user.target", "[Unit]\nBindsTo=rescue.target"), "storage.files", "BindsTo=rescue.target"},
		{aFile(etc+"multi-.target.d/a.conf", "[Unit]\nRequires=emergency.target"), "storage.files", "Requires="},
		{aFile(etc+"target.d/a.conf", "[Unit]\nWants=reboot.target"), "storage.files", "Wants=reboot.target"},
		{aFile(etc+"service.d/a.conf", "[Unit]\nOnSuccess=reboot.target"), "storage.files", "OnSuccess=reboot.target"},
		{aFile(etc+"service.d/a.conf", "[Unit]\nOnFailure="+RebootUnit), "storage.files", RebootUnit},
		{aFile(etc+"service.d/a.conf", "[Unit]\nWants=emergency.target"), "storage.files", "Wants=emergency.target"},
		{aUnit("emergency.target", "[Install]\nWantedBy=multi-user.target"), "systemd.units", "WantedBy="},
		{aDropin("poweroff.target", "a.conf", "[Install]\nRequiredBy=sysinit.target"), "systemd.units", "RequiredBy="},
		{aLink(etc+"multi-user.target.wants/emergency.target", "/usr/lib/systemd/system/emergency.target"),
			"storage.links", "emergency.target"},
		{aLink(etc+"basic.target.requires/poweroff.target", "../x"), "storage.links", "poweroff.target"},
		{aUnit("multi-user.target", "[Unit]\nConflicts="+ProveUnit), "systemd.units", ProveUnit},
		{aDropin("-.slice", "a.conf", "[Slice]\nTasksMax=10"), "systemd.units", "TasksMax=10"},
		{aFile(etc+"slice.d/a.conf", "[Slice]\nTasksMax=10"), "storage.files", "TasksMax=10"},
		{aUnit("-.slice", "[Slice]\nManagedOOMMemoryPressure=kill"), "systemd.units", "ManagedOOMMemoryPressure"},

		{arguments("systemd.unit=emergency.target"), "kernelArguments", "systemd.unit=emergency.target"},
		{arguments(`systemd.unit="rescue"`), "kernelArguments", "systemd.unit"},
		{arguments(`"systemd.unit=mine.target"`), "kernelArguments", "systemd.unit"},
		{arguments("rd.systemd.unit=emergency.target"), "kernelArguments", "rd.systemd.unit"},
		{arguments("emergency"), "kernelArguments", "emergency"},
		{arguments("rescue"), "kernelArguments", "rescue"},
		{arguments("single"), "kernelArguments", "single"},
		{arguments("-b"), "kernelArguments", "-b"},
		{arguments("S"), "kernelArguments", "S"},
		{arguments("1"), "kernelArguments", "1"},
		{arguments("rd.break=pre-mount"), "kernelArguments", "rd.break"},
		{arguments("--", "x"), "kernelArguments", "--"},
		{arguments("systemd.mask=" + ProveUnit), "kernelArguments", "systemd.mask"},
		{arguments("systemd.mask=sysinit.target"), "kernelArguments", "sysinit.target"},
		{arguments("systemd.wants=poweroff.target"), "kernelArguments", "systemd.wants"},
		{arguments("systemd.run=/bin/true"), "kernelArguments", "systemd.run"},
		{arguments("systemd.volatile=yes"), "kernelArguments", "systemd.volatile"},
		{arguments("init=/bin/sh"), "kernelArguments", "init=/bin/sh"},
		{arguments("rdinit=/bin/sh"), "kernelArguments", "rdinit"},
		{arguments("ostree.prepare-root.composefs=1"), "kernelArguments", "composefs=1"},
		{arguments("ostree.prepare-root.composefs=signed"), "kernelArguments", "prepare-root.conf"},
		{arguments("ostree=/ostree/boot.0/x"), "kernelArguments", "ostree="},
		{arguments("SYSTEMD_UNIT_PATH=/x"), "kernelArguments", "SYSTEMD_UNIT_PATH"},
	} {
		p, err := Make(&machineconfig.Config{}, &c.cfg, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(p.Unreconcilable, func(u Unreconcilable) bool {
			return u.Field == c.field && strings.Contains(u.Reason, c.names)
		}) {
			t.Errorf("%+v: no %s that names %s in %+v", c.cfg, c.field, c.names, p.Unreconcilable)
		}
	}
}

func TestWhatDisarmsNothingIsNotRefused(t *testing.T) {
	const etc = "/etc/systemd/system/"
	for _, cfg := range []machineconfig.Config{
		aFile(etc+"service.d/10-hardening.conf", "[Unit]\nOnFailure=tell@%n.service\nConditionPathExists=/x\n"+
			"[Service]\nProtectSystem=strict\nUser=nobody\nExecStartPre=/bin/false\n"),
		aFile(etc+"service.d/10-unreadable.conf", "[Service]\nUser=/x\nRootDirectory=x\nExecStartPre=/\n"), // passed over
		aLink(etc+"service.d/10-timeout-abort.conf", "/dev/null"),
		aFile(etc+"service.d/~~.txt", "[Unit]\nRequires=x.service"),
		aFile("/etc/service.d/10-a.conf", "[Unit]\nRequires=x.service"),
		aMask("systemd-logind.service"), aMask("ctrl-alt-del.target"), aMask("emergency.service"), aMask("debug-shell.service"),
		aUnit("machine-config-daemon-pull.service", "[Service]\nExecStart=/bin/true\n"),
		aUnit("machine-config-daemon-firstboot.service", "[Service]\nExecStart=/bin/true\n"),
		aUnit("x.service", "[Unit]\nAfter="+RecoverUnit+"\nConflicts=shutdown.target reboot.target\n[Install]\nAlias=y.service\n"),
		aUnit("x.service", "[Unit]\nDescription=Conflicts="+ProveUnit+"\n# Conflicts="+ProveUnit),
		aUnit("mine.target", "[Install]\nAlias=default.target"),
		aDropin("sysinit.target", "a.conf", "[Unit]\nWants=x.service\n"),
		aDropin("reboot.target", "a.conf", "[Unit]\nJobTimeoutSec=2min\nJobTimeoutAction=reboot-force\n"),
		aDropin("multi-user.target", "b.conf", "[Unit]\nJobTimeoutSec=infinity\n"),
		aDropin("multi-user.target", "a.conf", "[Unit]\nConditionPathExists=/x\n"),
		aDropin("multi-user.target", "c.conf", "[Unit]\nWants=x.service\nConflicts=rescue.target\nOnFailure=emergency.target\n"),
		aDropin("system.slice", "a.conf", "[Slice]\nMemoryMax=1G\nTasksMax=100\nAllowedCPUs=0\n"),
		aDropin("-.slice", "a.conf", "[Slice]\nTasksMax=infinity\nManagedOOMMemoryPressure=auto\nCPUWeight=1\n"),
		aUnit("night.service", "[Service]\nExecStart=/bin/true\n[Unit]\nOnSuccess=poweroff.target\n"),
		aLink(etc+"default.target", "/usr/lib/systemd/system/multi-user.target"),
		aLink(etc+"sysinit.target.wants/x.service", "../x.service"),
		{Directories: []machineconfig.Directory{{Path: etc + "sysinit.target.wants", Mode: 0o755,
			Owner: machineconfig.Owner{User: "root", Group: "adm"}}}},
		ofTmpfiles("d /etc/systemd/system/sysinit.target.wants 0755 root root -"),
		aLink("/etc/systemd/system-generators/systemd-gpt-auto-generator", "/dev/null"),
		aFile("/etc/systemd/system-generators/mine", "#!/bin/sh\n"),
		aFile("/etc/systemd/system-preset/00-mine.preset", "disable *\n"),
		aFile("/etc/systemd/system.conf.d/a.conf", "[Manager]\nDefaultTimeoutStartSec=1ms\nCapabilityBoundingSet=~CAP_SYS_MODULE\n"),
		ofTmpfiles("d /var/lib/foo 0755 root root 10d\nz /var/lib/foo 0000\nR! /var/lib/foo\nR /var/lib/machine-config\n" +
			"R /var/lib/machine-config-daemon2\nd /var/lib 0755 root root -\nz /var/lib 0755\nL /var/lib - - - - /x\n" +
			"r! /var/lib\nx /var/lib/machine-config-daemon\n#R /\nR\nR var\nR /run/machine-config-daemon\nq /var 0755 - - -\n" +
			"R /etc/systemd/system/foo.service.d\nL+ /etc/systemd/system/foo.target.wants/a.service\nf /etc/mine - - - - it's /var/lib/machine-config-daemon\nd '/var/lib/a b'\n" +
			"D /tmp/{a,b} 1777 root root 1d\nR /var/lib/[a-c]*\nR /var/lib/*{x,y}z\nR {{}}\nR /{{}{}\n" +
			"z /sys/{a,b}*/[ 0644\ngarbage"),
		aFile("/etc/tmpfiles.d/a.txt", "R /"), aFile("/etc/mine.conf", "R /"),
		aLink("/etc/tmpfiles.d/var.conf", "/dev/null"),
		aFile("/usr/local/bin/ostree", "#!/bin/sh\n"), aFile("/usr/local/libexec/rpm-ostree", ""),
		arguments("systemd.set_credential=tmpfiles.extra:d /var/lib/foo", "systemd.set_credential=other:R /",
			"systemd.set_credential=systemd.extra-unit.x.service:[Service]", "systemd.set_credential_binary=tmpfiles.extra:-"),
		aFile("/etc/credstore/other", "R! /var/lib"),
		arguments("systemd.unit=multi-user.target", "3", "quiet", "init=/usr/lib/systemd/systemd", "systemd.mask=cups.service",
			"ostree.prepare-root.composefs=0",
			"rd.systemd.unit=initrd.target", "systemd.volatile=no", "rd.shell", "console=ttyS0", "systemd.wants=x.service",
			"rd.emergency=halt", "selinux=1", "single_pcpu=1"),
	} {
		p, err := Make(&machineconfig.Config{}, &cfg, Options{})
		if err != nil || len(p.Unreconcilable) > 0 {
			t.Errorf("%+v: %+v, %v", cfg, p.Unreconcilable, err)
		}
	}
}

func TestWhatAHostHasAlreadyIsNotRefusedToIt(t *testing.T) {
	has := aMask(ProveUnit)
	has.Digest = "one"
	next := aMask(ProveUnit)
	next.Digest = "two"
	drifted := machineconfig.Config{}
	for _, c := range []struct {
		from, to  *machineconfig.Config
		committed *machineconfig.Config
		refused   bool
	}{
		{&has, &has, nil, false},
		{&drifted, &has, &has, false},
		{&has, &next, nil, true},
		{nil, &has, nil, true},
	} {
		p, err := Make(c.from, c.to, Options{Committed: c.committed})
		if err != nil || (len(p.Unreconcilable) > 0) != c.refused {
			t.Errorf("%+v to %+v: %+v, %v", c.from, c.to, p, err)
		}
	}
}

func TestSkippedArgumentsDisarmNothing(t *testing.T) {
	cfg := arguments("emergency")
	p, err := Make(nil, &cfg, Options{SkipOS: true})
	if err != nil || len(p.Unreconcilable) > 0 {
		t.Errorf("%+v, %v", p, err)
	}
}
