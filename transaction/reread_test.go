// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"testing"

	"github.com/noderefit/noderefit/files"
)

func TestOneMoreBootIsForWhatThisOneHasRead(t *testing.T) {
	texts := map[string]string{
		"early.service": "[Unit]\nDefaultDependencies = no\n[Service]\nExecStart=/x\n",
		"false.service": "[Unit]\nDefaultDependencies=false\n",
		"late.service":  "[Service]\nExecStart=/x\n",
	}
	file, link, gone := files.Node{Type: files.Regular}, files.Node{Type: files.Symlink, Target: "/x"}, files.Node{Type: files.Absent}
	masked := files.Node{Type: files.Symlink, Target: "/dev/null"}
	for _, c := range []struct {
		at    string
		after files.Node
		want  bool
	}{
		{"/etc/fstab", file, true},
		{"/etc/fstab", gone, true},
		{"/etc/fstab.old", file, false},
		{"/etc/crypttab", file, true},
		{"/etc/modules-load.d/x.conf", file, true},
		{"/etc/modprobe.d/x.conf", file, true},
		{"/etc/sysctl.d/99-x.conf", gone, true},
		{"/etc/sysctl.conf", file, true},
		{"/etc/udev/rules.d/70-x.rules", file, true},
		{"/etc/tmpfiles.d/x.conf", file, true},
		{"/etc/systemd/system.conf", file, true},
		{"/etc/systemd/system.conf.d/x.conf", file, true},
		{"/etc/systemd/journald.conf.d/x.conf", file, true},
		{"/etc/systemd/logind.conf", file, false}, // logind comes later
		{"/etc/systemd/network/10-x.link", file, true},
		{"/etc/hostname", file, true},
		{"/etc/machine-id", file, true},
		{"/etc/selinux/config", file, true},
		{"/etc/lvm/lvm.conf", file, true},
		{"/etc/passwd", file, true},
		{"/etc/shadow", file, false}, // nobody logs in that early
		{"/etc/chrony.conf", file, false},
		{"/etc/crio/crio.conf.d/x.conf", file, false},
		{"/etc/kubernetes/kubelet.conf", file, false},
		{"/var/lib/x", file, false},
		{"/usr/local/bin/x", file, false},

		{"/etc/systemd/system/late.service", file, false},
		{"/etc/systemd/system/late.service.d/10-x.conf", file, false},
		{"/etc/systemd/system/late.service.d/10-x.conf", gone, false},
		{"/etc/systemd/system/multi-user.target.wants/late.service", link, false},
		{"/etc/systemd/system/multi-user.target.wants/late.service", gone, true},
		{"/etc/systemd/system/late.service", gone, true},
		{"/etc/systemd/system/late.service", masked, true},
		{"/etc/systemd/system/early.service", file, true},
		{"/etc/systemd/system/early.service.d/10-x.conf", file, true},
		{"/etc/systemd/system/multi-user.target.wants/early.service", link, true},
		{"/etc/systemd/system/false.service", file, true},
		{"/etc/systemd/system/sysinit.target.wants/late.service", link, true},
		{"/etc/systemd/system/local-fs.target.requires/x.service", link, true},
		{"/etc/systemd/system/local-fs.target.d/x.conf", file, true},
		{"/etc/systemd/system/var-lib-x.mount", file, true},
		{"/etc/systemd/system/multi-user.target.wants/var-lib-x.mount", link, true},
		{"/etc/systemd/system/system.slice.d/x.conf", file, true},
		{"/etc/systemd/system/x.timer", file, false},
		{"/etc/systemd/system/systemd-udevd.service.d/x.conf", file, true},
		{"/etc/systemd/system/" + RecoverUnit, file, false},
		{"/etc/systemd/system/sysinit.target.wants/" + ProveUnit, link, false},
	} {
		why := rereads(c.at, c.after, func(unit string) string { return texts[unit] })
		if (why != "") != c.want {
			t.Errorf("%s becoming %q: %q", c.at, c.after.Type, why)
		}
	}
}
