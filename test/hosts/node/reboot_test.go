// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// wanted returns what the host says of reboots, a line for each kind.
func wanted(s *host.Status) string {
	if s.RebootWanted == nil {
		return ""
	}
	var out []string
	for _, r := range s.RebootWanted.Reasons {
		out = append(out, string(r.Kind)+" "+r.Message+" "+strings.Join(r.Packages, ","))
	}
	return strings.Join(out, "\n")
}

func status(ctx context.Context, t *testing.T, n *Node) *host.Status {
	t.Helper()
	s, err := n.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func run(ctx context.Context, t *testing.T, n *Node, exit int, args ...string) string {
	t.Helper()
	out, errs, got, err := n.Agent(ctx, args...)
	if err != nil || got != exit && exit >= 0 {
		t.Fatalf("%v: exit %d, %v\n%s%s", args, got, err, out, errs)
	}
	return out + errs
}

// ended waits for the end of the reboot of an order.
func ended(ctx context.Context, t *testing.T, n *Node, id string, states ...transaction.State) *host.Status {
	t.Helper()
	s, err := n.WaitState(ctx, states...)
	if err != nil || s.Rebooted == nil || s.Rebooted.ID != id || s.Rebooted.Ended.IsZero() {
		t.Fatalf("%+v %v", s, err)
	}
	return s
}

func TestAHostOfPackagesSaysWhatWantsARebootAndIsProvedAfterIt(t *testing.T) {
	ctx, n := startAs(t, plain, packages)
	apply(ctx, t, n, mc("a", bootFile("a")))
	settled(ctx, t, n, "a")
	if out, exit := shell(ctx, t, n, `echo '*** System restart required ***' >/run/reboot-required &&
		printf 'libc6\nlinux-base\nlibc6\n' >/run/reboot-required.pkgs`); exit != 0 {
		t.Fatal(out)
	}
	hook(t, n, "/etc/noderefit/hooks/reboot-wanted.d/10-no", "#!/bin/sh\necho nothing\nexit 1\n")
	hook(t, n, "/etc/noderefit/hooks/reboot-wanted.d/20-leak", "#!/bin/sh\ntest -e /run/leak || test -e /etc/leak || exit 1\necho memory is lost\necho more\n")
	if got := wanted(status(ctx, t, n)); got != "Packages /run/reboot-required: System restart required libc6,linux-base" {
		t.Errorf("%s", got)
	}
	if out, exit := shell(ctx, t, n, "touch /run/leak"); exit != 0 {
		t.Fatal(out)
	}
	run(ctx, t, n, 0, "wants-reboot")
	if got := wanted(status(ctx, t, n)); !strings.HasPrefix(got, "Hook /etc/noderefit/hooks/reboot-wanted.d/20-leak: memory is lost") {
		t.Errorf("%s", got)
	}
	boots := n.Boots()
	run(ctx, t, n, -1, "reboot", "--id=one", "--why=packages")
	s := ended(ctx, t, n, "one", transaction.Done)
	if s.Rebooted.Failed != "" || n.Boots() != boots+1 || wanted(s) != "" || s.Config.Committed != "a" {
		t.Errorf("%+v %+v, %d boots, wanted %s", s, s.Rebooted, n.Boots()-boots, wanted(s))
	}
	run(ctx, t, n, 0, "reboot", "--id=one", "--why=packages") // it was carried out

	// A hook that no boot satisfies: what it says after the boot is no new want.
	if out, exit := shell(ctx, t, n, "touch /etc/leak"); exit != 0 {
		t.Fatal(out)
	}
	run(ctx, t, n, 0, "wants-reboot")
	before := status(ctx, t, n).RebootWanted

	put(t, n, "/etc/kubernetes/kubelet.conf", "fail", 0o644)
	run(ctx, t, n, -1, "reboot", "--id=two", "--verdict-timeout=30s")
	s = ended(ctx, t, n, "two", transaction.Degraded)
	if !strings.Contains(s.Rebooted.Failed, "kubelet") || s.Rebooted.TakenBack || len(s.Quarantined) > 0 || n.Boots() != boots+2 {
		t.Errorf("%+v %+v, %d boots", s, s.Rebooted, n.Boots()-boots)
	}
	run(ctx, t, n, 0, "wants-reboot")
	if d := cmp.Diff(before, status(ctx, t, n).RebootWanted); d != "" || before == nil {
		t.Errorf("the hook wants another reboot:\n%s", d)
	}
	if out, exit := shell(ctx, t, n, "rm /etc/kubernetes/kubelet.conf && systemctl reset-failed kubelet && systemctl restart kubelet"); exit != 0 {
		t.Fatal(out)
	}
	apply(ctx, t, n, mc("a", bootFile("a")))
	if s = status(ctx, t, n); s.State != transaction.Done || s.Rebooted.Failed == "" {
		t.Errorf("%+v", s)
	}
}

func TestADeploymentOfAnotherProgramIsProvedAndTakenBack(t *testing.T) {
	ctx, n := onA(t)
	booted := func() string {
		for _, d := range status(ctx, t, n).Deployments {
			if d.Booted {
				return d.ID
			}
		}
		return ""
	}
	deploy := func(argument string) {
		t.Helper()
		if out, exit := shell(ctx, t, n, "ostree admin deploy --os=testos --karg="+argument+" "+lab.RefV1); exit != 0 {
			t.Fatal(out)
		}
	}
	before := booted()
	deploy("theirs=1")
	if got := wanted(status(ctx, t, n)); !strings.HasPrefix(got, string(api.RebootDeployment)+" deployment testos/") {
		t.Errorf("%q", got)
	}
	run(ctx, t, n, -1, "reboot", "--id=one")
	s := ended(ctx, t, n, "one", transaction.Done)
	good := booted()
	if good == before || s.Rebooted.Failed != "" || wanted(s) != "" {
		t.Fatalf("%s, %+v, %+v", good, s, s.Rebooted)
	}
	verified(ctx, t, n)
	put(t, n, "/etc/kubernetes/kubelet.conf", "fail", 0o644) // its /etc gets it, and the running one loses it again
	deploy("theirs=2")
	if out, exit := shell(ctx, t, n, "rm /etc/kubernetes/kubelet.conf"); exit != 0 {
		t.Fatal(out)
	}
	boots := n.Boots()
	run(ctx, t, n, -1, "reboot", "--id=two", "--verdict-timeout=40s")
	s = ended(ctx, t, n, "two", transaction.Done)
	if booted() != good || !s.Rebooted.TakenBack || len(s.RebootsWithheld) != 1 || n.Boots() != boots+2 {
		t.Errorf("%s, %+v, %+v, %d boots", booted(), s, s.Rebooted, n.Boots()-boots)
	}
}

// A host of dnf, with the database of its packages: the real needs-restarting answers, a configuration whose reboot is
// left to people waits meanwhile, and one boot answers both. Restarting the userspace answers neither.
func TestAHostOfDNFWaitsForAPersonsReboot(t *testing.T) {
	ctx, n := startPackages(t, plain, lab.Entries)
	apply(ctx, t, n, mc("a", argued("ok", "a", "a=1")))
	settled(ctx, t, n, "a")
	run(ctx, t, n, 0, "wants-reboot")
	if got := wanted(status(ctx, t, n)); got != "" {
		t.Fatalf("before any package: %s", got)
	}
	const spec = "Name: systemd\nVersion: 1\nRelease: 1\nSummary: s\nLicense: x\nBuildArch: noarch\n%%description\nd\n%%files\n"
	if out, exit := shell(ctx, t, n, "cd /var/tmp && printf '"+spec+"' >x.spec && rpmbuild --define '_topdir /var/tmp/rpm' -bb x.spec && "+
		"rpm --initdb && rpm -i --nodeps rpm/RPMS/noarch/systemd-1-1.noarch.rpm"); exit != 0 {
		t.Fatal(out)
	}
	run(ctx, t, n, 0, "wants-reboot")
	const packages = "Packages needs-restarting: packages were updated since the boot systemd"
	if got := wanted(status(ctx, t, n)); got != packages {
		t.Fatalf("%s", got)
	}
	// A person asks while the agent does: one after the other, and each gets the whole answer.
	var asking errgroup.Group
	for range 3 {
		asking.Go(func() error {
			out, errs, exit, err := n.Agent(ctx, "wants-reboot")
			if err != nil || exit != 0 || errs != "" || !strings.Contains(out, "needs-restarting") {
				return fmt.Errorf("beside another one: exit %d, %w\n%s%s", exit, err, out, errs)
			}
			return nil
		})
	}
	if err := asking.Wait(); err != nil {
		t.Error(err)
	}

	boots := n.Boots()
	apply(ctx, t, n, mc("b", argued("ok", "b", "b=1")), "--no-reboot")
	s := status(ctx, t, n)
	if !s.NeedsReboot || s.State != transaction.Working || !strings.HasPrefix(s.Reason, "NeedsReboot: b is committed") ||
		wanted(s) != "Configuration b is committed, and the next boot leads to it \n"+packages {
		t.Fatalf("%+v\n%s", s, wanted(s))
	}
	if out, exit := shell(ctx, t, n, "systemctl is-active kubelet"); exit != 0 || n.Boots() != boots ||
		read(t, n, "/etc/testos/booted.conf") != "a" {
		t.Errorf("the host does not serve with a: %s, %d boots", out, n.Boots()-boots)
	}
	run(ctx, t, n, -1, "reboot", "--id=one", "--why=the window is open")
	s = ended(ctx, t, n, "one", transaction.Done)
	if s.Config.Committed != "b" || s.Rebooted.Failed != "" || n.Boots() != boots+1 || s.NeedsReboot {
		t.Errorf("%+v %+v, %d boots", s, s.Rebooted, n.Boots()-boots)
	}
	hasLine(t, n, "admin=1", "b=1")
	run(ctx, t, n, 0, "wants-reboot")
	if got := wanted(status(ctx, t, n)); got != "" {
		t.Errorf("after the boot: %s", got)
	}
	verified(ctx, t, n)
}

// A soft reboot restarts the userspace alone, with a verdict, and answers no want of the host.
func TestASoftRebootIsProvedAndBringsNoKernel(t *testing.T) {
	ctx, n := startAs(t, plain, packages)
	apply(ctx, t, n, mc("a", bootFile("a")))
	settled(ctx, t, n, "a")
	// The lab has mounted /var before the host began; a real host has a unit or a line of fstab for that. systemd has read
	// that a copy of the mount stays before it sees the copy.
	if out, exit := shell(ctx, t, n, `set -e; cd /etc/systemd/system; mkdir -p /run/labvar run-labvar.mount.d local-fs.target.wants
printf '[Unit]\nDefaultDependencies=no\n' >run-labvar.mount.d/stays.conf
printf '[Mount]\nWhat=/run/labvar\nWhere=/var\nType=none\nOptions=bind\n' >var.mount
ln -s ../var.mount local-fs.target.wants/
systemctl daemon-reload
mount --bind /var /run/labvar
until systemctl is-active -q run-labvar.mount; do sleep 0.1; done
systemctl show --property=Conflicts run-labvar.mount`); exit != 0 || strings.Contains(out, "umount.target") {
		t.Fatal(out)
	}
	const sentinel = "Packages /run/reboot-required: a restart is required "
	if out, exit := shell(ctx, t, n, "touch /run/reboot-required"); exit != 0 || wanted(status(ctx, t, n)) != sentinel {
		t.Fatalf("%s %s", out, wanted(status(ctx, t, n)))
	}
	boots := n.Boots()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	run(ctx, t, n, -1, "reboot", "--soft", "--id=soft")
	s := ended(ctx, t, n, "soft", transaction.Done)
	if !s.Rebooted.Soft || s.Rebooted.Failed != "" || n.Boots() != boots || wanted(s) != sentinel {
		t.Errorf("%+v, %d boots, wanted %s", s.Rebooted, n.Boots()-boots, wanted(s))
	}
	if out, exit := shell(ctx, t, n, "systemctl show --value --property=SoftRebootsCount"); exit != 0 || strings.TrimSpace(out) != "1" {
		t.Errorf("the userspace was restarted %s times", out)
	}
	verified(ctx, t, n)
}
