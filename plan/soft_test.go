// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	mc "github.com/noderefit/noderefit/machineconfig"
)

func TestSoftRebootIsPlannedWhereNothingNeedsMore(t *testing.T) {
	yes, no := true, false
	text := func(kind string) string { return "[Service]\nType=" + kind + "\nExecStart=/bin/true\n" }
	unit := func(name, text string) mc.Unit { return mc.Unit{Name: name, Contents: text, Enabled: &yes} }
	files := func(paths ...string) *mc.Config {
		c := &mc.Config{}
		for _, p := range paths {
			c.Files = append(c.Files, file(p, "x"))
		}
		return c
	}
	none := &mc.Config{}
	for _, c := range []struct {
		what             string
		current, desired *mc.Config
		policy           *Policy
		full             string // part of the reason; "" for a soft one
	}{
		{"a file", none, files("/etc/chrony.conf", "/usr/local/bin/tool", "/var/lib/x", "/etc/kubernetes/kubelet.conf"), nil, ""},
		{"a file that goes", files("/etc/chrony.conf"), none, nil, ""},
		{"sysctl", none, files("/etc/chrony.conf", "/etc/sysctl.d/50-x.conf"), nil, "file /etc/sysctl.d/50-x.conf: a soft reboot keeps the kernel's settings"},
		{"sysctl that goes", files("/etc/sysctl.conf"), none, nil, "settings"},
		{"what only begins like it", none, files("/etc/sysctl.conf.note", "/etc/udevices", "/etc/NetworkManagers"), nil, ""},
		{"modules", none, files("/etc/modprobe.d/x.conf"), nil, "modules"},
		{"udev", none, files("/etc/udev/rules.d/1.rules"), nil, "devices"},
		{"fstab", none, files("/etc/fstab"), nil, "file systems"},
		{"boot", none, files("/boot/x"), nil, "boot itself"},
		{"SELinux", none, files("/etc/selinux/config"), nil, "security policy"},
		{"network", none, files("/etc/NetworkManager/conf.d/x.conf"), nil, "network"},
		{"firewall", none, files("/etc/nftables/main.nft"), nil, "network"},
		{"systemd", none, files("/etc/systemd/system.conf.d/x.conf"), nil, "systemd itself"},
		{"name", none, files("/etc/hostname"), nil, "name"},
		{"directory", none, &mc.Config{Directories: []mc.Directory{{Path: "/etc/modules-load.d", Mode: 0o755}}}, nil, "modules"},
		{"arguments", none, &mc.Config{KernelArguments: []string{"a=1"}}, nil, "kernel arguments: a change of the OS"},
		{"image", none, &mc.Config{OSImageURL: "x"}, nil, "OS image"},

		{"a service", none, &mc.Config{Units: []mc.Unit{unit("x.service", text("exec"))}}, nil, ""},
		{"a service that changes", &mc.Config{Units: []mc.Unit{unit("x.service", text("exec"))}},
			&mc.Config{Units: []mc.Unit{unit("x.service", text("simple"))}}, nil, ""},
		{"a oneshot that is new", none, &mc.Config{Units: []mc.Unit{unit("x.service", text("oneshot"))}}, nil, ""},
		{"a oneshot that goes", &mc.Config{Units: []mc.Unit{unit("x.service", text("oneshot"))}}, none, nil, "unit x.service: a soft reboot keeps what this oneshot has done"},
		{"a oneshot by its drop-in", &mc.Config{Units: []mc.Unit{{Name: "x.service", Contents: text("exec"), Enabled: &yes,
			Dropins: []mc.Dropin{{Name: "1.conf", Contents: "[Service]\n# so that it is waited for\nType = oneshot\n"}}}}}, none, nil, "oneshot"},
		{"a service that only speaks of it", &mc.Config{Units: []mc.Unit{unit("x.service",
			"[Unit]\nDescription=no Type=oneshot\n[X-Note]\nType=oneshot\n[Service]\n#Type=oneshot\nExecStart=/bin/true\n")}}, none, nil, ""},
		{"a oneshot that is one no more further down", &mc.Config{Units: []mc.Unit{unit("x.service",
			"[Service]\nType=oneshot\nExecStart=/bin/true\nType=simple\n")}}, none, nil, ""},
		{"a service that is a oneshot further down", &mc.Config{Units: []mc.Unit{unit("x.service",
			"[Service]\nType=simple\nExecStart=/bin/true\n[Unit]\n[Service]\nType=oneshot\n")}}, none, nil, "oneshot"},
		{"a oneshot that its drop-in makes simple", &mc.Config{Units: []mc.Unit{{Name: "x.service", Contents: text("oneshot"),
			Enabled: &yes, Dropins: []mc.Dropin{{Name: "1.conf", Contents: "[Service]\nType=simple\n"}}}}}, none, nil, ""},
		{"a oneshot by the drop-in that systemd reads last", &mc.Config{Units: []mc.Unit{{Name: "x.service", Contents: text("exec"),
			Enabled: &yes, Dropins: []mc.Dropin{{Name: "20.conf", Contents: "[Service]\nType=oneshot\n"},
				{Name: "10.conf", Contents: "[Service]\nType=simple\n"}}}}}, none, nil, "oneshot"},
		{"a service by the drop-in that systemd reads last", &mc.Config{Units: []mc.Unit{{Name: "x.service", Contents: text("oneshot"),
			Enabled: &yes, Dropins: []mc.Dropin{{Name: "20.conf", Contents: "[Service]\nType=exec\n"},
				{Name: "10.conf", Contents: "[Service]\nType=oneshot\n"}}}}}, none, nil, ""},
		{"a type that is taken back", &mc.Config{Units: []mc.Unit{unit("x.service",
			"[Service]\nType=oneshot\nExecStart=/bin/true\nType=\n")}}, none, nil, "oneshot"},
		{"a service with a long line", &mc.Config{Units: []mc.Unit{unit("x.service",
			text("simple")+"Environment=A="+strings.Repeat("a", 3000)+"\n")}}, none, nil, ""},
		{"a oneshot with a long line", &mc.Config{Units: []mc.Unit{unit("x.service",
			"[Service]\nEnvironment=A="+strings.Repeat("a", 3000)+"\nType=oneshot\n")}}, none, nil, "oneshot"},
		{"a service that can't be read", &mc.Config{Units: []mc.Unit{unit("x.service", "[Service\nType=simple\n")}}, none, nil, "oneshot"},
		{"a unit of the image that is disabled", &mc.Config{Units: []mc.Unit{{Name: "x.service", Enabled: &yes}}},
			&mc.Config{Units: []mc.Unit{{Name: "x.service", Enabled: &no}}}, nil, "does not have the unit"},
		{"a drop-in of a unit of the image", none,
			&mc.Config{Units: []mc.Unit{{Name: "crio.service", Dropins: []mc.Dropin{{Name: "1.conf", Contents: "[Service]\n"}}}}}, nil, ""},
		{"a drop-in of the network's", none,
			&mc.Config{Units: []mc.Unit{{Name: "NetworkManager.service", Dropins: []mc.Dropin{{Name: "1.conf", Contents: "[Service]\n"}}}}}, nil, "sets"},
		{"a mount", none, &mc.Config{Units: []mc.Unit{unit("mnt-x.mount", "[Mount]\nWhat=/dev/x\nWhere=/mnt/x\n")}}, nil, "mount units"},

		{"a policy that says Reboot", none, files("/etc/chrony.conf"),
			policy(t, `{"nodeDisruptionPolicy":{"files":[{"path":"/etc/chrony.conf","actions":[{"type":"Reboot"}]}]}}`), "says Reboot"},
		{"a policy that says less", none, files("/etc/sysctl.d/x.conf", "/etc/chrony.conf"),
			policy(t, `{"nodeDisruptionPolicy":{"files":[{"path":"/etc/sysctl.d","actions":[{"type":"None"}]}]}}`), ""},
	} {
		p := mustMake(t, c.current, c.desired, Options{Policy: c.policy, SoftReboot: true})
		if !p.Reboot || p.SoftReboot != (c.full == "") || !strings.Contains(p.FullReboot, c.full) {
			t.Errorf("%s: reboot %t, soft %t, full because of %q; want %q", c.what, p.Reboot, p.SoftReboot, p.FullReboot, c.full)
		}
		var out strings.Builder
		if err := p.WriteText(&out); err != nil || !strings.Contains(out.String(), map[bool]string{true: "a soft reboot", false: "a full reboot"}[p.SoftReboot]) {
			t.Errorf("%s: %v: %s", c.what, err, out.String())
		}
		if p := mustMake(t, c.current, c.desired, Options{Policy: c.policy}); p.SoftReboot || p.FullReboot != "" {
			t.Errorf("%s: soft %t, %q although nobody allows it", c.what, p.SoftReboot, p.FullReboot)
		}
	}
	less := mustMake(t, none, files("/etc/containers/policy.json"), Options{SoftReboot: true})
	if less.Reboot || less.SoftReboot {
		t.Errorf("a change that reboots nothing is a soft reboot: %+v", less)
	}
	p := mustMake(t, none, files("/etc/chrony.conf"), Options{SoftReboot: true})
	p.NeedsFullReboot("the host")
	if p.SoftReboot || p.FullReboot != "the host" {
		t.Errorf("a host that can't has %+v", p)
	}
}
