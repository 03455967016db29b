// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// What the images with a transient /etc have besides.
var (
	imageTexts = map[string]string{
		"/usr/etc/vendor.conf":                   "the image's\n",
		"/usr/lib/systemd/system/imaged.service": idleUnit,
		"/usr/lib/systemd/system/masked.service": idleUnit,
	}
	imageLinks = []string{"/usr/lib/systemd/system/multi-user.target.wants/masked.service"}
)

const idleUnit = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"

// onTransient makes a host that runs an image with a transient /etc, as it is installed, without a configuration.
func onTransient(ctx context.Context, t *testing.T, n *Node, without ...string) {
	t.Helper()
	if err := n.TransientEtc(ctx, imageTexts, imageLinks, without...); err != nil {
		t.Fatal(err)
	}
}

// noReboot is a policy under which a change of /etc/chrony.conf needs no reboot.
const noReboot = `apiVersion: operator.openshift.io/v1
kind: MachineConfiguration
spec:
  nodeDisruptionPolicy:
    files:
    - path: /etc/chrony.conf
      actions:
      - type: None
`

const transientA = `{"kernelArguments":["a=1"],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/chrony.conf","mode":420,"contents":{"source":"data:,from%20A%0A"}},
 {"path":"/etc/tmpfiles.d/a.conf","mode":420,"contents":{"source":"data:,d%20/run/made-by-a%200755%20root%20root%0A"}},
 {"path":"/usr/local/bin/tool","mode":493,"contents":{"source":"data:,tool%20A%0A"}},
 {"path":"/var/lib/admins","mode":420,"contents":{"source":"data:,A%27s%0A"}},
 {"path":"/etc/only-a","mode":420,"contents":{"source":"data:,a%0A"}}]},
 "systemd":{"units":[{"name":"new.service","enabled":true,"contents":"[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"},
 {"name":"masked.service","mask":true},
 {"name":"imaged.service","dropins":[{"name":"10-a.conf","contents":"[Unit]\nDescription=changed by A\n"}],"enabled":true}]},
 "passwd":{"users":[{"name":"core","passwordHash":"$6$a$a","sshAuthorizedKeys":["ssh-ed25519 AAAA a"]}]}}}`

const transientB = `{"osImageURL":"next","kernelArguments":["a=1","b=2"],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/chrony.conf","mode":420,"contents":{"source":"data:,from%20B%0A"}},
 {"path":"/etc/vendor.conf","mode":384,"contents":{"source":"data:,from%20B%0A"}},
 {"path":"/usr/local/bin/tool","mode":493,"contents":{"source":"data:,tool%20B%0A"}}]}}}`

// TestATransientEtcHasTheConfigurationInEachBoot goes the whole road: to A and B, back, over reboots that nobody of us
// asked for, and over a deployment that somebody else has made.
func TestATransientEtcHasTheConfigurationInEachBoot(t *testing.T) {
	long(t)
	ctx, n := start(t)
	onTransient(ctx, t, n)
	put(t, n, "/var/lib/admins", "an admin's\n", 0o644)
	if s, err := n.Status(ctx); err != nil || !strings.HasPrefix(s.Road, "switch: /etc is transient") {
		t.Fatalf("%+v %v", s, err)
	}
	apply(ctx, t, n, mc("a", transientA))
	settled(ctx, t, n, "a")
	hasA := func() {
		t.Helper()
		for at, want := range map[string]string{"/etc/chrony.conf": "from A\n", "/etc/only-a": "a\n", "/usr/local/bin/tool": "tool A\n",
			"/var/lib/admins": "A's\n", "/etc/vendor.conf": "the image's\n"} {
			if got := read(t, n, at); got != want {
				t.Errorf("%s: %q", at, got)
			}
		}
		out, _ := shell(ctx, t, n, "systemctl is-active new masked imaged; systemctl show -p Description --value imaged; "+
			"test -d /run/made-by-a && echo made; grep -c '^core:.6.a.a:' /etc/shadow; "+
			"systemctl --failed --plain --no-legend")
		if out != "active\ninactive\nactive\nchanged by A\nmade\n1\n" {
			t.Errorf("the host on A: %s", out)
		}
	}
	hasA()
	put(t, n, "/etc/somebody", "else\n", 0o644)
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	settled(ctx, t, n, "a")
	hasA()
	if _, err := os.Stat(n.HostPath("/etc/somebody")); err == nil {
		t.Error("/etc was kept")
	}

	if err := n.TransientImage(ctx, "next", lab.RefV2, imageTexts, imageLinks); err != nil {
		t.Fatal(err)
	}
	apply(ctx, t, n, mc("b", transientB))
	settled(ctx, t, n, "b")
	if read(t, n, "/etc/chrony.conf") != "from B\n" || read(t, n, "/etc/vendor.conf") != "from B\n" ||
		read(t, n, "/usr/local/bin/tool") != "tool B\n" || read(t, n, "/var/lib/admins") != "an admin's\n" || !strings.Contains(n.Kargs(), "b=2") {
		t.Errorf("not B, with %s and %s", n.Kargs(), read(t, n, "/var/lib/admins"))
	}
	if _, err := os.Stat(n.HostPath("/etc/only-a")); err == nil {
		t.Error("/etc/only-a is there")
	}
	if out, _ := shell(ctx, t, n, "systemctl is-active new masked"); out != "inactive\nactive\n" {
		t.Errorf("units on B: %s", out)
	}
	if got := read(t, n, "/usr/lib/testos/version"); strings.TrimSpace(got) != "v2" {
		t.Errorf("the OS on B: %q", got)
	}

	// Somebody else's deployment is a reason to say so, and not to run without a configuration.
	if out, exit := shell(ctx, t, n, "ostree admin deploy --os=testos next"); exit != 0 {
		t.Fatal(out)
	}
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := n.WaitState(ctx, transaction.Degraded); err != nil {
		t.Fatal(err)
	}
	if got := read(t, n, "/etc/chrony.conf"); got != "from B\n" {
		t.Errorf("%q", got)
	}
	apply(ctx, t, n, mc("a", transientA))
	settled(ctx, t, n, "a")
	hasA()
}

// TestATransientEtcGoesBack has a configuration that does not prove itself, and one that a person takes back.
func TestATransientEtcGoesBack(t *testing.T) {
	ctx, n := start(t)
	onTransient(ctx, t, n)
	apply(ctx, t, n, mc("a", transientA))
	settled(ctx, t, n, "a")
	apply(ctx, t, n, mc("bad", `{"kernelArguments":["bad=1"],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/chrony.conf","mode":420,"contents":{"source":"data:,bad%0A"}}]},
 "systemd":{"units":[{"name":"bad.service","enabled":true,"contents":"[Service]\nType=oneshot\nExecStart=/bin/false\n[Install]\nWantedBy=multi-user.target\n"}]}}}`))
	s, err := n.WaitState(ctx, transaction.RolledBack, transaction.Done)
	if err != nil {
		t.Fatal(err)
	}
	if s.State != transaction.RolledBack || s.Config.Committed != "a" || len(s.Quarantined) != 1 || read(t, n, "/etc/chrony.conf") != "from A\n" {
		t.Errorf("%+v, %s", s, read(t, n, "/etc/chrony.conf"))
	}
	verified(ctx, t, n)

	// A change without a reboot, and what becomes of it in the next boot.
	live := strings.Replace(transientA, "from%20A", "live", 1)
	put(t, n, "/var/tmp/policy.yaml", noReboot, 0o644)
	if res := apply(ctx, t, n, mc("live", live), "--policy=/var/tmp/policy.yaml"); res.Reboot != host.RebootNone {
		t.Fatalf("%+v", res.Plan)
	}
	settled(ctx, t, n, "live")
	if err := n.PowerCut(); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	settled(ctx, t, n, "live")
	if got := read(t, n, "/etc/chrony.conf"); got != "live\n" {
		t.Errorf("%q", got)
	}
	put(t, n, "/etc/chrony.conf", "drift\n", 0o644)
	if _, _, exit, err := n.Agent(ctx, "verify"); exit != 4 || err != nil {
		t.Errorf("verify: exit %d, %v", exit, err)
	}
	boots := n.Boots()
	if _, text, exit, err := n.Agent(ctx, "rollback"); exit != 0 || err != nil {
		t.Fatalf("rollback: exit %d, %v, %s", exit, err, text)
	}
	if err := n.WaitBoot(ctx, boots+1); err != nil {
		t.Fatal(err)
	}
	settled(ctx, t, n, "a")
	if got := read(t, n, "/etc/chrony.conf"); got != "from A\n" {
		t.Errorf("%q", got)
	}
}

// TestATransientEtcRefuses has what can't be had on such a host, by name, before anything is fetched.
func TestATransientEtcRefuses(t *testing.T) {
	ctx, n := start(t)
	onTransient(ctx, t, n)
	const lacking = "lacking"
	if err := n.TransientImage(ctx, lacking, lab.RefV2, nil, nil, transaction.ProveUnit); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ spec, says string }{
		{`{"osImageURL":"` + lab.RefV2 + `"}`, ": etc.transient in the image's /usr/lib/ostree/prepare-root.conf: the host's /etc is transient"},
		{`{"osImageURL":"` + lacking + `"}`, ": the image's /usr/lib/systemd/system/machine-config-daemon-prove.service: it is missing"},
		{`{"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":"/etc/fstab","mode":420,"contents":{"source":"data:,x"}}]}}}`,
			"storage.files: /etc/fstab is read early by the generators of mounts and disks, and this host's /etc is transient"},
		{`{"config":{"ignition":{"version":"3.2.0"},"systemd":{"units":[{"name":"early.service","enabled":true,` +
			`"contents":"[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"}]}}}`,
			"systemd.units: /etc/systemd/system/early.service is a unit without default dependencies, which may run early, and this host's /etc"},
	} {
		at, err := n.Document("refused.json", mc("refused", c.spec))
		if err != nil {
			t.Fatal(err)
		}
		for _, verb := range []string{"stage", "apply"} {
			if _, text, exit, err := n.Agent(ctx, verb, "--config", at); err != nil || exit != 3 || !strings.Contains(text, c.says) {
				t.Errorf("%s of %s: exit %d, %v, %s", verb, c.spec, exit, err, text)
			}
		}
		if strings.Contains(c.spec, "osImageURL") {
			continue // the image is not fetched for a plan
		}
		if _, text, exit, err := n.Agent(ctx, "plan", "--desired", at); err != nil || exit != 3 || !strings.Contains(text, c.says) {
			t.Errorf("plan of %s: exit %d, %v, %s", c.spec, exit, err, text)
		}
	}
}

func TestATransientEtcNeedsUnitsOfTheImage(t *testing.T) {
	ctx, n := start(t)
	onTransient(ctx, t, n, transaction.RecoverUnit)
	const says = "/etc is transient, and the image has no /usr/lib/systemd/system/machine-config-daemon-recover.service"
	put(t, n, "/var/tmp/policy.yaml", noReboot, 0o644)
	for _, spec := range []string{transientA, `{"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/chrony.conf","mode":420,"contents":{"source":"data:,x"}}]}}}`} {
		if _, exit, err := n.Apply(ctx, mc("a", spec), "--policy=/var/tmp/policy.yaml"); exit != 1 || !strings.Contains(err.Error(), says) {
			t.Errorf("apply: exit %d, %v", exit, err)
		}
	}
	if s, err := n.Status(ctx); err != nil || !strings.HasPrefix(s.Road, "none: ") || s.Config.Committed != "" {
		t.Errorf("%+v %v", s, err)
	}
}
