// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A policy in the manner of the targeted one: general before special in the base file, homes generated, the admin's own
// last. u stands for the rest of a context.
var policy = map[string]string{
	"file_contexts": `
# the base policy
/.*	u:default_t
/	-d	u:root_t
/[^/]+	--	u:etc_runtime_t
/a?quota\.(user|group)	--	u:quota_db_t
/bin	-l	u:bin_t
/usr(/.*)?	u:usr_t
/etc(/.*)?	u:etc_t
/opt(/.*)?	u:usr_t
/var(/.*)?	u:var_t
/dev(/.*)?	u:device_t
/proc(/.*)?	<<none>>
/sys(/.*)?	<<none>>
/mnt(/[^/]*)?	-d	u:mnt_t
/mnt/[^/]*/.*	<<none>>
/root(/.*)?	u:admin_home_t
/run(/.*)?	u:wrong_t
/tmp/.*	<<none>>
/tmp	-d	u:tmp_t
/usr/(.*/)?bin(/.*)?	u:bin_t
/usr/(.*/)?lib(/.*)?	u:lib_t
/usr/lib(64)?/systemd/systemd-[^/]+	--	u:systemd_exec_t
/usr/lib/systemd/system(/.*)?	u:systemd_unit_file_t
/usr/lib/systemd/system/kubelet.*	--	u:kubelet_unit_file_t
/usr/libexec/.+/hook\.sh	--	u:bin_t
/etc/.*\.d/[0-9]{2}-.*\.conf	--	u:conf_t
/etc/rc\.d/init\.d/.*	--	u:initrc_exec_t
/etc/systemd/system(/.*)?	u:systemd_unit_file_t
/etc/shadow.*	--	u:shadow_t
/etc/shadow-tools	--	u:etc_t
/etc/passwd[-\+]?	--	u:passwd_file_t
/etc/group[-\+]?	--	u:passwd_file_t
/etc/\.pwd\.lock	--	u:passwd_file_t
/etc/resolv\.conf.*	--	u:net_conf_t
/etc/hosts[^/]*	--	u:net_conf_t
/etc/ssh/ssh_host_.*_key	--	u:sshd_key_t
/etc/ssh/primes	--	u:sshd_key_t
/etc/crio(/.*)?	u:container_config_t
/etc/kubernetes(/.*)?	u:kubernetes_file_t
/etc/kubernetes/static-pod-resources	<<none>>
/etc/NetworkManager/dispatcher\.d(/.*)?	u:initrc_exec_t
/etc/NetworkManager/(VPN|conf\.d)(/.*)?	u:vpn_conf_t
/etc/localtime	-l	u:locale_t
/etc/localtime	--	u:locale_file_t
/var/lib/kubelet(/.*)?	u:container_file_t
/var/lib/kubelet/pod-resources/kubelet\.sock	-s	u:kubelet_sock_t
/var/log/.*	u:var_log_t
/var/lock(/.*)?	u:var_lock_t
/var/run(/.*)?	u:var_run_t
/var/run/lock	-d	u:wrong_t
/dev/tty[0-9]+	-c	u:tty_device_t
/dev/[^/]*pipe	-p	u:pipe_t
/usr/local/bin/exact	u:never_t
`,
	"file_contexts.homedirs": `
/var/home/[^/]+	-d	u:user_home_dir_t
/var/home/[^/]+/.+	u:user_home_t
/var/home/[^/]+/\.ssh(/.*)?	u:ssh_home_t
/var/home/lost\+found	-d	u:lost_found_t
/root/\.ssh(/.*)?	u:ssh_home_t
`,
	"file_contexts.local": `
# the admin's
/etc/crio/crio\.conf	--	u:local_conf_t
/etc/loc[^/]*	u:local_t
/srv/data(/.*)?	u:container_file_t
/etc/shadow.*	-d	u:local_dir_t
`,
	"file_contexts.subs_dist": `
/run /var/run
/run/lock /var/lock
/run/systemd/system /usr/lib/systemd/system
/usr/local /usr
/usr/local/lib /usr/lib
/var/roothome /root
/etc/systemd/system /usr/lib/systemd/system
`,
	"file_contexts.subs": `
# the admin's, which the policy's apply to as well
/export/home /var/home
  /work/run   /run   and more
/exact/ /etc
/data /
`,
}

const labelStart = "system_u:object_r:"

func policyText(name string) string {
	return strings.NewReplacer("\tu:", "\t"+labelStart, "_t\n", "_t:s0\n").Replace(policy[name])
}

// labelled makes a host with the policy and returns the file that libselinux's tools take.
func labelled(t testing.TB) (*Root, string) {
	t.Helper()
	dir := t.TempDir()
	base := filepath.Join(dir, "etc/selinux/targeted/contexts/files")
	check(t, os.MkdirAll(base, 0o755))
	for name := range policy {
		check(t, os.WriteFile(filepath.Join(base, name), []byte(policyText(name)), 0o644))
	}
	check(t, os.WriteFile(filepath.Join(dir, "etc/selinux/config"),
		[]byte("# comment\nSELINUX=enforcing\n#SELINUXTYPE=mls\nSELINUXTYPE=targeted\n"), 0o644))
	r, err := Open(dir)
	check(t, err)
	t.Cleanup(func() { check(t, r.Close()) })
	return r, filepath.Join(base, "file_contexts")
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var labelTests = []struct {
	name string
	typ  Type
	want string // the type in the context; "" for none
}{
	{"/", Directory, "root_t"},
	{"/x", Regular, "etc_runtime_t"},
	{"/x", Directory, "default_t"},
	{"/x/y", Regular, "default_t"},
	{"/aquota.user", Regular, "quota_db_t"},
	{"/quota.group", Regular, "quota_db_t"},
	{"/bin", Symlink, "bin_t"},
	{"/bin", Directory, "default_t"},
	{"/usr", Directory, "usr_t"},
	{"/usr/share/x", Regular, "usr_t"},
	{"/usrx", Directory, "default_t"},
	{"/usr/bin/ls", Regular, "bin_t"},
	{"/usr/x/y/bin/ls", Regular, "bin_t"},
	{"/usr/xbin/ls", Regular, "usr_t"},
	{"/usr/lib64/systemd/systemd-logind", Regular, "systemd_exec_t"},
	{"/usr/lib/systemd/systemd-logind", Regular, "systemd_exec_t"},
	{"/usr/lib/systemd/system/kubelet.service", Regular, "kubelet_unit_file_t"},
	{"/usr/lib/systemd/system/kubelet.service.d", Directory, "systemd_unit_file_t"},
	{"/usr/libexec/cni/hook.sh", Regular, "bin_t"},
	{"/usr/libexec/cni/hookXsh", Regular, "usr_t"},
	{"/usr/libexec/hook.sh", Regular, "usr_t"},
	{"/etc", Directory, "etc_t"},
	{"/etc/chrony.conf", Regular, "etc_t"},
	{"/etc/etcd.d/10-x.conf", Regular, "conf_t"},
	{"/etc/etcd.d/1-x.conf", Regular, "etc_t"},
	{"/etc/a/b.d/99-.conf", Regular, "conf_t"},
	{"/etc/rc.d/init.d/network", Regular, "initrc_exec_t"},
	{"/etc/rcXd/init.d/network", Regular, "etc_t"},
	{"/etc/shadow", Regular, "shadow_t"},
	{"/etc/shadow-", Regular, "shadow_t"},
	{"/etc/shadow", Directory, "local_dir_t"},
	{"/etc/shadow", Symlink, "etc_t"},
	{"/etc/shadow-tools", Regular, "etc_t"}, // exact
	{"/etc/passwd", Regular, "passwd_file_t"},
	{"/etc/passwd-", Regular, "passwd_file_t"},
	{"/etc/passwd+", Regular, "passwd_file_t"},
	{"/etc/passwdx", Regular, "etc_t"},
	{"/etc/.pwd.lock", Regular, "passwd_file_t"},
	{"/etc/xpwd.lock", Regular, "etc_t"},
	{"/etc/resolv.conf", Regular, "net_conf_t"},
	{"/etc/hosts.allow", Regular, "net_conf_t"},
	{"/etc/ssh/ssh_host_ed25519_key", Regular, "sshd_key_t"},
	{"/etc/ssh/ssh_host_ed25519_key.pub", Regular, "etc_t"},
	{"/etc/ssh/primes", Regular, "sshd_key_t"},
	{"/etc/crio", Directory, "container_config_t"},
	{"/etc/crio/crio.conf.d/00-default", Regular, "container_config_t"},
	{"/etc/crio/crio.conf", Regular, "local_conf_t"},
	{"/etc/criox", Directory, "etc_t"},
	{"/etc/kubernetes/kubelet.conf", Regular, "kubernetes_file_t"},
	{"/etc/kubernetes/static-pod-resources", Directory, ""},
	{"/etc/kubernetes/static-pod-resources/x", Regular, "kubernetes_file_t"},
	{"/etc/NetworkManager/dispatcher.d/10-x", Regular, "initrc_exec_t"},
	{"/etc/NetworkManager/conf.d/10-x", Regular, "vpn_conf_t"},
	{"/etc/NetworkManager/VPN", Directory, "vpn_conf_t"},
	{"/etc/NetworkManager/system-connections", Directory, "etc_t"},
	{"/etc/localtime", Symlink, "locale_t"}, // later than the admin's pattern /etc/loc*: it is exact
	{"/etc/localtime", Regular, "locale_file_t"},
	{"/etc/localtime", Directory, "local_t"},
	{"/etc/locale.conf", Regular, "local_t"},
	{"/etc/systemd/system/crio.service", Regular, "systemd_unit_file_t"},
	{"/etc/systemd/system/kubelet.service", Regular, "kubelet_unit_file_t"}, // by substitution
	{"/etc/systemd/system", Directory, "systemd_unit_file_t"},
	{"/etc/systemd/systemx", Directory, "etc_t"},
	{"/proc/1", Directory, ""},
	{"/sys", Directory, ""},
	{"/tmp", Directory, "tmp_t"},
	{"/tmp/x", Regular, ""},
	{"/mnt/a", Directory, "mnt_t"},
	{"/mnt/a/b", Directory, ""},
	{"/mnt/a", Regular, "default_t"},
	{"/run", Directory, "var_run_t"},
	{"/run/crio", Directory, "var_run_t"},
	{"/run/lock", Directory, "var_lock_t"},
	{"/run/lock/x", Regular, "var_lock_t"},
	{"/runx", Directory, "default_t"},
	{"/run/systemd/system/kubelet.service", Regular, "kubelet_unit_file_t"},
	{"/usr/local", Directory, "usr_t"},
	{"/usr/local/bin/exact", Regular, "bin_t"}, // the substitution comes before even an exact path
	{"/usr/local/lib/x", Regular, "lib_t"},
	{"/var/roothome", Directory, "admin_home_t"},
	{"/var/roothome/.ssh/authorized_keys.d/ignition", Regular, "ssh_home_t"},
	{"/var/home", Directory, "var_t"},
	{"/var/home/core", Directory, "user_home_dir_t"},
	{"/var/home/core/x", Regular, "user_home_t"},
	{"/var/home/core/.ssh", Directory, "ssh_home_t"},
	{"/var/home/core/.ssh/authorized_keys.d/ignition", Regular, "ssh_home_t"},
	{"/var/home/core/.sshx", Regular, "user_home_t"},
	{"/var/home/lost+found", Directory, "lost_found_t"},
	{"/export/home/core/.ssh", Directory, "ssh_home_t"},
	{"/export/homes", Directory, "default_t"},
	{"/work/run/lock", Directory, "var_lock_t"}, // two substitutions
	{"/data/etc/shadow", Regular, "shadow_t"},
	{"/data", Directory, "root_t"},
	{"/exact/shadow", Regular, "default_t"},
	{"/var/lib/kubelet/pod-resources/kubelet.sock", Other, "kubelet_sock_t"},
	{"/var/lib/kubelet/pod-resources/kubelet.sock", Regular, "container_file_t"},
	{"/var/log", Directory, "var_t"},
	{"/var/log/pods", Directory, "var_log_t"},
	{"/var/log/a\nb", Regular, "var_log_t"},
	{"/srv/data/x", Regular, "container_file_t"},
	{"/srv/databank", Directory, "default_t"},
}

func TestLabelsOfATargetedPolicy(t *testing.T) {
	r, _ := labelled(t)
	l, err := r.Labels()
	check(t, err)
	for range 2 { // the second time with what the first one compiled
		for _, tt := range labelTests {
			want := tt.want
			if want != "" {
				want = labelStart + want + ":s0"
			}
			if got := l.Of(tt.name, tt.typ); got != want {
				t.Errorf("Of(%q, %s) = %q, want %q", tt.name, tt.typ, got, want)
			}
		}
	}
}

// The answers are those of libselinux itself, where its tool is installed.
func TestLabelsAreThoseOfLibselinux(t *testing.T) {
	tool, err := exec.LookPath("selabel_lookup")
	if err != nil {
		t.Skip("selabel_lookup (selinux-utils) is not installed")
	}
	r, base := labelled(t)
	l, err := r.Labels()
	check(t, err)
	modes := map[Type]int{Regular: unix.S_IFREG, Directory: unix.S_IFDIR, Symlink: unix.S_IFLNK, Other: unix.S_IFSOCK}
	for _, tt := range labelTests {
		out, err := exec.CommandContext(t.Context(), tool, "-r", "-b", "file", "-f", base, "-k", tt.name,
			"-t", fmt.Sprint(modes[tt.typ])).CombinedOutput()
		want, found := strings.CutPrefix(strings.TrimSpace(string(out)), "Default context: ")
		if !found || err != nil {
			if !strings.Contains(string(out), "failed to find a valid context") {
				t.Fatalf("%s: %v: %s", tool, err, out)
			}
			want = ""
		}
		if got := l.Of(tt.name, tt.typ); got != want {
			t.Errorf("Of(%q, %s) = %q, libselinux says %q", tt.name, tt.typ, got, want)
		}
	}
}

func TestHostsWithoutLabels(t *testing.T) {
	var none *Labels
	if got := none.Of("/etc/shadow", Regular); got != "" {
		t.Errorf("no labels say %q", got)
	}
	for name, change := range map[string]func(dir string) error{
		"no selinux": os.RemoveAll,
		"disabled": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "config"), []byte("SELINUX=Disabled\nSELINUXTYPE=targeted\n"), 0o644)
		},
		"another policy": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "config"), []byte("SELINUX=enforcing\nSELINUXTYPE=mls\n"), 0o644)
		},
		"no contexts": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "targeted")) },
	} {
		r, _ := labelled(t)
		check(t, change(filepath.Join(r.Path(), "etc/selinux")))
		if l, err := r.Labels(); err != nil || l != nil {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
	for name, config := range map[string]string{
		"permissive": "SELINUX=permissive\nSELINUXTYPE=targeted\n", "no type": "SELINUX=enforcing\n", "empty": "",
		"spaces": "  SELINUX = enforcing \nSELINUXTYPE= targeted \n",
	} {
		r, _ := labelled(t)
		check(t, os.WriteFile(filepath.Join(r.Path(), "etc/selinux/config"), []byte(config), 0o644))
		if l, err := r.Labels(); err != nil || l.Of("/etc/shadow", Regular) != labelStart+"shadow_t:s0" {
			t.Errorf("%s: %q, %v", name, l.Of("/etc/shadow", Regular), err)
		}
	}
}

func TestUnreadablePolicyIsAnErrorThatNamesTheFile(t *testing.T) {
	for _, name := range []string{"config", "targeted/contexts/files/file_contexts.local",
		"targeted/contexts/files/file_contexts.subs_dist"} {
		r, _ := labelled(t)
		at := filepath.Join(r.Path(), "etc/selinux", name)
		check(t, os.Remove(at))
		check(t, os.Mkdir(at, 0o755))
		var pe *fs.PathError
		if _, err := r.Labels(); !errors.As(err, &pe) || pe.Path != "/etc/selinux/"+name {
			t.Errorf("%s is a directory: %v", name, err)
		}
	}
}

// What only PCRE understands, or nobody, is passed over, as if it were not there.
func TestSenselessSpecsArePassedOver(t *testing.T) {
	l := &Labels{}
	for _, line := range []string{
		"/etc(/.*)? good", "/etc/( bad", "/etc/(?=x) bad", "/etc/x", "#/etc/x bad", "", "   ", "/etc/x -z bad",
		"/etc/é bad", `/etc/x\`,
	} {
		if s, ok := parseLabelSpec(line); ok {
			l.specs = append(l.specs, s)
		}
	}
	for _, name := range []string{"/etc/x", "/etc/(", "/etc/é"} {
		if got := l.Of(name, Regular); got != "good" {
			t.Errorf("Of(%s) = %q", name, got)
		}
	}
}

func FuzzLabels(f *testing.F) {
	for line := range strings.Lines(policyText("file_contexts")) {
		f.Add(line, "/etc/shadow")
	}
	f.Add("/etc/[", "/etc/[")
	f.Add(`/etc/a\`, "/etc/a")
	f.Add("/?x u", "x")
	f.Add("/etc/a{0}b u", "/etc/b")
	f.Fuzz(func(t *testing.T, line, name string) {
		s, ok := parseLabelSpec(line)
		if !ok {
			return
		}
		l := &Labels{specs: []labelSpec{s}, local: [][2]string{{"/a", "/b"}, {"", "/"}}}
		for _, typ := range []Type{Regular, Directory, Symlink, Other} {
			if got := l.Of(name, typ); got != "" && got != s.context {
				t.Errorf("Of(%q) = %q, the only spec says %q", name, got, s.context)
			}
		}
		// The stem only saves work: whatever the pattern matches starts with it.
		re, err := regexp.Compile("(?s)^(?:" + s.expr + ")$")
		if err == nil && !strings.Contains(s.expr, "|") && re.MatchString(name) && !strings.HasPrefix(name, s.stem) {
			t.Errorf("%q matches %q and does not start with %q", s.expr, name, s.stem)
		}
	})
}
