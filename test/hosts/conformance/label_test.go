// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const labelXattr = "security.selinux"

func (tr *tree) label(name string) string {
	tr.Helper()
	buf := make([]byte, 200)
	n, err := unix.Lgetxattr(tr.path(name), labelXattr, buf)
	if err != nil {
		tr.Fatalf("label of %s: %v", name, err)
	}
	return strings.TrimRight(string(buf[:n]), "\x00")
}

// labelled gives the tree a policy of a few contexts, and an alias of one place for another.
func (tr *tree) labelled() {
	tr.put("etc/selinux/config", "SELINUX=enforcing\nSELINUXTYPE=targeted\n", 0o644)
	base := "etc/selinux/targeted/contexts/files/file_contexts"
	tr.put(base, "/.*\tsystem_u:object_r:default_t:s0\n"+
		"/etc(/.*)?\tsystem_u:object_r:etc_t:s0\n"+
		"/etc/systemd/system(/.*)?\tsystem_u:object_r:systemd_unit_file_t:s0\n"+
		"/etc/shadow.*\t--\tsystem_u:object_r:shadow_t:s0\n"+
		"/usr/local/bin(/.*)?\tsystem_u:object_r:bin_t:s0\n", 0o644)
	tr.put(base+".homedirs", "/home/[^/]+/\\.ssh(/.*)?\tunconfined_u:object_r:ssh_home_t:s0\n", 0o644)
	tr.put(base+".subs_dist", "/var/usrlocal /usr/local\n/var/home /home\n", 0o644)
}

func TestEverythingIsLabelledByTheHostsPolicy(t *testing.T) {
	tr := newTree(t)
	tr.labelled()
	tr.must(unix.Rmdir(tr.path("home/core")))
	tr.must(unix.Rmdir(tr.path("home")))
	tr.symlink("var/home", "home")
	tr.must(unix.Mkdir(tr.path("var/home"), 0o755))
	tr.must(unix.Mkdir(tr.path("var/home/core"), 0o700))
	tr.symlink("../var/usrlocal", "usr/local")
	tr.must(unix.Mkdir(tr.path("var/usrlocal"), 0o755))
	tr.apply(doc("a", withFile("/etc/deep/er/x.conf", "x"), withFile("/usr/local/bin/tool", "t", mode(0o755)),
		withLink("/etc/l", "x"), withUnit("u.service", contents("[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=a.target\n"),
			obj{"enabled": true}),
		withUser("core", obj{"sshAuthorizedKeys": []string{"ssh-ed25519 AAAA a"}, "passwordHash": "$6$x$y"})))
	for name, want := range map[string]string{
		"etc/deep":                     "etc_t",
		"etc/deep/er/x.conf":           "etc_t",
		"etc/l":                        "etc_t",
		"etc/shadow":                   "shadow_t",
		"var/usrlocal/bin/tool":        "bin_t",
		"etc/systemd/system/u.service": "systemd_unit_file_t",
		"etc/systemd/system/a.target.wants/u.service":   "systemd_unit_file_t",
		"var/home/core/.ssh/authorized_keys.d/ignition": "ssh_home_t",
		"var/home/core/.ssh":                            "ssh_home_t",
	} {
		if got := tr.label(name); !strings.Contains(got, ":"+want+":") {
			t.Errorf("%s is labelled %s, not %s", name, got, want)
		}
	}
	tr.verified()

	tr.must(unix.Lsetxattr(tr.path("var/usrlocal/bin/tool"), labelXattr, []byte("system_u:object_r:usr_t:s0\x00"), 0))
	r, drift := tr.verify()
	r.is(t, 4)
	if got := drift.lines(); len(got) != 1 || got[0] != "file /usr/local/bin/tool label" {
		t.Errorf("%v", got)
	}
}

func TestAHostWithoutAPolicyIsNotLabelled(t *testing.T) {
	tr := newTree(t)
	tr.labelled()
	tr.put("etc/selinux/config", "SELINUX=disabled\nSELINUXTYPE=targeted\n", 0o644)
	tr.apply(doc("a", withFile("/etc/x.conf", "x")))
	if _, err := unix.Lgetxattr(tr.path("etc/x.conf"), labelXattr, make([]byte, 200)); err == nil {
		t.Error("it has a label")
	}
}
