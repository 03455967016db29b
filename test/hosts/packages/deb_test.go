// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/test/lab"
)

// writable makes a lab host one whose dpkg can write: an overlay on /usr for as long as the host is on, and a database
// in which nothing is installed but systemd.
const writable = `
rm -f /etc/dpkg/dpkg.cfg.d/* # which leave out manual pages
mkdir -p /var/tmp/usr/upper /var/tmp/usr/work /var/lib/dpkg/info /var/lib/dpkg/updates /var/lib/dpkg/triggers
mount -t overlay overlay -o lowerdir=/usr,upperdir=/var/tmp/usr/upper,workdir=/var/tmp/usr/work /usr
printf 'Package: systemd\nStatus: install ok installed\nMaintainer: x\nArchitecture: %s\nVersion: 257\nDescription: x\n' \
	"$(dpkg --print-architecture)" >/var/lib/dpkg/status
touch /var/lib/dpkg/available
mkdir -p /etc/machine-config-daemon`

// there lists what the packages and the agent could leave, with sizes of files.
const there = `
find /etc /usr/bin /usr/lib/systemd /usr/share/man /usr/share/doc /usr/share/bash-completion /usr/share/zsh \
	/usr/share/fish /var/lib /run/machine-config-daemon -path /var/lib/dpkg -prune -o -path /var/lib/systemd -prune \
	-o -type f -printf '%p %s\n' -o -printf '%p %l\n' 2>/dev/null | sort`

// debHost is a host on which packages are installed.
type debHost struct {
	*testing.T
	*lab.Host

	ctx context.Context //nolint:containedctx // that of the test
}

// does runs a script that has to succeed.
func (h debHost) does(script string, args ...string) string {
	h.Helper()
	out, errs, exit, err := h.Exec(h.ctx, nil, append([]string{"sh", "-ec", script, "sh"}, args...)...)
	if err != nil || exit != 0 {
		h.Fatalf("%s: exit %d, %v: %s%s", script, exit, err, out, errs)
	}
	return strings.TrimSpace(string(out))
}

// fails runs a script that has to fail and to say something.
func (h debHost) fails(says, script string) {
	h.Helper()
	out, errs, exit, err := h.Exec(h.ctx, nil, "sh", "-ec", script)
	if err != nil || exit == 0 || !strings.Contains(string(errs), says) {
		h.Errorf("%s: exit %d, %v: %s%s; want %q", script, exit, err, out, errs, says)
	}
}

// put puts a package on the host.
func (h debHost) put(file, name string) {
	h.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(h.HostPath("/var/tmp/"+name), data, 0o600)
	}
	if err != nil {
		h.Fatal(err)
	}
}

const (
	live = `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig","metadata":{"name":"live"},
"spec":{"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
{"path":"/etc/packages.conf","mode":420,"contents":{"source":"data:,one"}}]}}}}`
	rebooting = `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig","metadata":{"name":"rebooting"},
"spec":{"kernelArguments":["b=2"],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
{"path":"/etc/packages.conf","mode":420,"contents":{"source":"data:,one"}}]}}}}`
	quiet = `{"apiVersion":"operator.openshift.io/v1","kind":"MachineConfiguration","metadata":{"name":"cluster"},
"spec":{"nodeDisruptionPolicy":{"files":[{"path":"/etc/packages.conf","actions":[{"type":"None"}]}]}}}`
	kubeconfig = `{"apiVersion":"v1","kind":"Config","current-context":"x","contexts":[{"name":"x","context":{"cluster":"x",
"user":"x"}}],"clusters":[{"name":"x","cluster":{"server":"https://127.0.0.1:1"}}],"users":[{"name":"x","user":{}}]}`
)

// debs takes the debs through their life on a host, and returns the record of a host in the middle of an update.
func debs(ctx context.Context, t *testing.T, base *lab.Base, first, second string) []byte {
	t.Helper()
	booted, err := base.Boot(ctx, lab.Options{Name: "deb"})
	if err != nil {
		t.Fatal(err)
	}
	h := debHost{T: t, Host: booted, ctx: ctx}
	t.Cleanup(func() {
		if t.Failed() {
			if text, err := h.Journal(context.WithoutCancel(ctx)); err == nil {
				t.Log(text)
			}
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	h.does(writable)
	h.put(one(t, first, "noderefit-agent_*.deb"), "agent-1.deb")
	h.put(one(t, second, "noderefit-agent_*.deb"), "agent-2.deb")
	h.put(one(t, first, "kubectl-refit_*.deb"), "plugin-1.deb")
	for name, text := range map[string]string{
		"live.json": live, "rebooting.json": rebooting, "policy.json": quiet, "kubeconfig": kubeconfig,
	} {
		if err := os.WriteFile(h.HostPath("/var/tmp/"+name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.does("rmdir /etc/machine-config-daemon")
	before := h.does(there)
	installDebs(h)
	upgradeDebs(h)
	startsNotAnew(h)
	pending := removeInTheMiddle(h)
	removeUnknown(h)

	// Removed, the host keeps what would take a bad configuration back; purged, it has nothing of the agent any more.
	h.does(`systemd-run --unit=noderefit-update-driver --property=RemainAfterExit=yes true
mkdir -p /run/rpm-ostree && echo noderefit-update-driver.service >/run/rpm-ostree/update-driver.gv`)
	h.does("dpkg -r noderefit-agent kubectl-refit")
	h.does("! systemctl is-active noderefit-update-driver && rmdir /run/rpm-ostree")
	h.fails("", "systemctl is-active machine-config-daemon.service")
	h.does(`test ! -e /usr/bin/machine-config-daemon && test ! -e /usr/bin/kubectl-refit
test -e /etc/systemd/system/machine-config-daemon-recover.service && test -x /var/lib/machine-config-daemon/bin/machine-config-daemon`)
	purgeKeeps(h, pending)
	purgeBesideAnother(h)
	h.does("dpkg -P noderefit-agent kubectl-refit")
	// The configuration stays: the host is as it was told to be.
	before += "\n/etc/packages.conf 3"
	if diff := cmp.Diff(sorted(before), sorted(h.does(there))); diff != "" {
		t.Errorf("what a purge leaves (-want +got):\n%s", diff)
	}
	return pending
}

func sorted(text string) map[string]bool {
	lines := map[string]bool{}
	for line := range strings.Lines(text) {
		lines[strings.TrimSpace(line)] = true
	}
	return lines
}

// installDebs installs both packages. The agent does not start before it is enabled and has credentials.
func installDebs(h debHost) {
	h.Helper()
	h.does("dpkg -i /var/tmp/agent-1.deb /var/tmp/plugin-1.deb")
	if got := h.does("dpkg-query -W -f '${Version}' noderefit-agent"); got != "1.0.0~rc.1" {
		h.Errorf("the version is %s", got)
	}
	h.does("machine-config-daemon version && kubectl-refit version --client && machine-config-daemon run --help >/dev/null")
	h.fails("", "systemctl is-enabled machine-config-daemon.service || systemctl is-active machine-config-daemon.service")
	for _, file := range []string{
		"/usr/share/man/man1/machine-config-daemon-apply.1.gz", "/usr/share/man/man1/kubectl-refit-explain.1.gz",
		"/usr/share/bash-completion/completions/machine-config-daemon", "/usr/bin/kubectl_complete-refit",
		"/usr/share/zsh/vendor-completions/_kubectl-refit", "/usr/share/fish/vendor_completions.d/kubectl-refit.fish",
	} {
		h.does(`test -s "$1" || { echo "$1 is not there" >&2; exit 1; }`, file)
	}
	h.does(`install -D -m 0600 /var/tmp/kubeconfig /etc/machine-config-daemon/kubeconfig
systemctl enable --now machine-config-daemon && systemctl is-active machine-config-daemon`)
}

// upgradeDebs upgrades the agent while it runs: it runs on, as another process.
func upgradeDebs(h debHost) {
	h.Helper()
	const process = "systemctl show -P InvocationID machine-config-daemon.service"
	before := h.does(process)
	h.does("dpkg -i /var/tmp/agent-2.deb")
	if got := h.does("dpkg-query -W -f '${Version}' noderefit-agent"); got != "1.0.0" {
		h.Errorf("the version is %s", got)
	}
	h.does("systemctl is-active machine-config-daemon.service && systemctl is-enabled machine-config-daemon.service")
	if after := h.does(process); after == before || after == "" {
		h.Errorf("the agent was not started anew: %q, %q", before, after)
	}
}

// removeInTheMiddle tries to remove the agent in the middle of an update, and takes the update back. It returns the
// record of the host in between.
func removeInTheMiddle(h debHost) []byte {
	h.Helper()
	h.does(`machine-config-daemon apply --config /var/tmp/live.json --policy /var/tmp/policy.json
machine-config-daemon apply --no-reboot --config /var/tmp/rebooting.json`)
	const says = "is not removed in the middle of an update of this host: configuration rebooting is pending"
	for _, how := range []string{"-r", "-P"} {
		h.fails(says, "dpkg "+how+" noderefit-agent")
	}
	h.does("systemctl is-active machine-config-daemon.service && systemctl is-enabled machine-config-daemon.service")
	h.does("dpkg -i /var/tmp/agent-2.deb") // an upgrade is no removal
	record, err := os.ReadFile(h.HostPath("/var/lib/machine-config-daemon/boot.json"))
	if err != nil {
		h.Fatal(err)
	}
	h.does("machine-config-daemon rollback --no-reboot && machine-config-daemon status -o json | grep -q '\"pending\": \"\"'")
	return record
}

// startsNotAnew upgrades the agent where its service does not start: the package is installed all the same.
func startsNotAnew(h debHost) {
	h.Helper()
	const dropin = "/etc/systemd/system/machine-config-daemon.service.d/broken.conf"
	h.does(`mkdir -p "${1%/*}" && printf '[Service]\nExecStartPre=/bin/false\n' >"$1"`, dropin)
	out, errs, exit, err := h.Exec(h.ctx, nil, "dpkg", "-i", "/var/tmp/agent-2.deb")
	if err != nil || exit != 0 || !strings.Contains(string(errs), "machine-config-daemon.service was not started anew") {
		h.Errorf("exit %d, %v: %s%s", exit, err, out, errs)
	}
	if got := h.does("dpkg-query -W -f '${Status}' noderefit-agent"); got != "install ok installed" {
		h.Errorf("the package is %q", got)
	}
	h.does(`rm -r "${1%/*}" && systemctl daemon-reload && systemctl restart machine-config-daemon.service`, dropin)
}

// The paths of the record, and of the program that the host keeps.
const (
	recordPath = "/var/lib/machine-config-daemon/boot.json"
	keptPath   = "/var/lib/machine-config-daemon/bin/machine-config-daemon"
)

// replaced is a script that puts another program in the place of a program. The agent can be running the one that is
// there, and nobody can write to the file of a running program.
func replaced(program, text string) string {
	return "rm " + program + " && printf '" + text + "' >" + program + " && chmod 0755 " + program
}

// removeUnknown tries to remove the agent where nobody can tell whether an update is under way.
func removeUnknown(h debHost) {
	h.Helper()
	const program = "/usr/bin/machine-config-daemon"
	h.does("cp -a " + recordPath + " /var/tmp/record && cp -a " + program + " /var/tmp/program")
	for _, test := range []struct{ what, spoil, says string }{
		{"a damaged record", `printf '{"version":1' >` + recordPath, "the boot record can't be used"},
		{"an empty record", ": >" + recordPath, "the boot record can't be used"},
		{"a record that is a directory", "rm " + recordPath + " && mkdir " + recordPath, "the boot record can't be used"},
		{"a status that fails", replaced(program, `#!/bin/sh\necho no bus >&2; exit 1\n`), "no bus"},
		{"a status that says nothing", replaced(program, `#!/bin/sh\n`), "machine-config-daemon status does not say"},
		{"no program", "rm " + program, "is not there"},
	} {
		h.does(test.spoil)
		for _, how := range []string{"-r", "-P"} {
			h.fails(test.says, "dpkg "+how+" noderefit-agent")
		}
		h.fails("mv boot.json transactions aside/", "dpkg -r noderefit-agent")
		h.does(`rm -rf `+recordPath+` && cp -a /var/tmp/record `+recordPath+` && cp -a --remove-destination /var/tmp/program `+program+`
test "$(dpkg-query -W -f '${db:Status-Status}' noderefit-agent)" = installed || { echo "$1: the package is gone" >&2; exit 1; }
systemctl is-enabled machine-config-daemon.service`, test.what)
	}
	h.does("systemctl is-active machine-config-daemon.service || systemctl restart machine-config-daemon.service")
}

// purgeKeeps purges where an update is under way, or nobody can tell: what would take a bad configuration back stays.
func purgeKeeps(h debHost, pending []byte) {
	h.Helper()
	if err := os.WriteFile(h.HostPath("/var/tmp/pending"), pending, 0o600); err != nil {
		h.Fatal(err)
	}
	h.does("cp -a " + recordPath + " /var/tmp/record && cp -a " + keptPath + " /var/tmp/program")
	for _, test := range []struct{ spoil, says string }{
		{"cp /var/tmp/pending " + recordPath, "configuration rebooting is pending"},
		{`printf '{"version":1' >` + recordPath, "the boot record can't be used"},
		{"rm " + keptPath, "is not there"},
		{replaced(keptPath, `#!/bin/sh\necho no bus >&2; exit 1\n`), "no bus"},
		{"systemd-run --unit=machine-config-daemon-apply --property=Type=exec sleep 600", "machine-config-daemon-apply.service is at work"},
		{"mkdir -p /var/lib/kubelet/pods/7/containers/machine-config-daemon", "a pod of the agent"},
	} {
		h.does(test.spoil)
		_, errs, exit, err := h.Exec(h.ctx, nil, "/var/lib/dpkg/info/noderefit-agent.postrm", "purge")
		if err != nil || exit != 0 || !strings.Contains(string(errs), test.says) || !strings.Contains(string(errs), "stay") {
			h.Errorf("%s: exit %d, %v: %s; want %q", test.spoil, exit, err, errs, test.says)
		}
		h.does(`test -d /var/lib/machine-config-daemon/transactions -a -e /etc/systemd/system/machine-config-daemon-recover.service
systemctl stop machine-config-daemon-apply.service 2>/dev/null || true
test ! -d /var/lib/kubelet/pods/7 || { cd /var/lib && rm -r kubelet/pods/7 && rmdir kubelet/pods; }
cp -a /var/tmp/record ` + recordPath + ` && cp -a --remove-destination /var/tmp/program ` + keptPath)
	}
}

// purgeBesideAnother purges while another agent runs on the host, as it does where the node has the agent's pod now.
func purgeBesideAnother(h debHost) {
	h.Helper()
	h.does(`mkdir -p /var/tmp/pod && cp /usr/bin/sleep /var/tmp/pod/machine-config-daemon-run
systemd-run --unit=pod --property=Type=exec /var/tmp/pod/machine-config-daemon-run 600`)
	_, errs, exit, err := h.Exec(h.ctx, nil, "dpkg", "-P", "noderefit-agent")
	if err != nil || exit != 0 || !strings.Contains(string(errs), "another agent is at work on this host") {
		h.Errorf("exit %d, %v: %s", exit, err, errs)
	}
	h.does(`systemctl stop pod
test -e /etc/systemd/system/machine-config-daemon-recover.service && test -e /var/lib/machine-config-daemon/boot.json`)
	// Installed and purged once more, without the other.
	h.does("dpkg -i /var/tmp/agent-2.deb")
}
