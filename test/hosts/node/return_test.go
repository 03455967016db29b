// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// onA is a host that has settled on configuration a.
func onA(t *testing.T) (context.Context, *Node) {
	t.Helper()
	ctx, n := start(t)
	apply(ctx, t, n, mc("a", configA))
	settled(ctx, t, n, "a")
	return ctx, n
}

func settled(ctx context.Context, t *testing.T, n *Node, config string) {
	t.Helper()
	s, err := n.WaitState(ctx, transaction.Done, transaction.RolledBack)
	if err != nil {
		t.Fatal(err)
	}
	if s.State != transaction.Done || s.Config.Committed != config {
		t.Fatalf("%+v", s)
	}
	verified(ctx, t, n)
}

func verified(ctx context.Context, t *testing.T, n *Node) {
	t.Helper()
	if stdout, stderr, exit, err := n.Agent(ctx, "verify"); err != nil || exit != 0 {
		t.Fatalf("verify: exit %d, %v\n%s%s", exit, err, stdout, stderr)
	}
}

// choose makes the deployment that boots next the one with the id, as the boot menu or another tool would.
func choose(ctx context.Context, t *testing.T, n *Node, id string) {
	t.Helper()
	s, err := n.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range s.Deployments {
		if d.ID == id {
			if out, err := n.Output(ctx, "ostree", "admin", "set-default", string(rune('0'+i))); err != nil {
				t.Fatal(out, err)
			}
			return
		}
	}
	t.Fatalf("no deployment %s in %+v", id, s.Deployments)
}

func TestGoingBackInTheBootMenuIsRecognised(t *testing.T) {
	ctx, n := onA(t)
	old := n.BootedDeployment()
	apply(ctx, t, n, mc("b", configB))
	settled(ctx, t, n, "b")

	choose(ctx, t, n, old)
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := n.WaitState(ctx, transaction.RolledBack)
	if err != nil {
		t.Fatal(err)
	}
	if s.Config.Committed != "a" || len(s.Quarantined) != 0 || !strings.Contains(s.Reason, "went back") {
		t.Errorf("%+v", s)
	}
	if got := read(t, n, "/usr/local/bin/tool"); got != "tool A\n" {
		t.Errorf("what no deployment carries is %q", got)
	}
	verified(ctx, t, n)
	apply(ctx, t, n, mc("b", configB))
	settled(ctx, t, n, "b")
}

func TestGoingBackBeforeTheProofQuarantines(t *testing.T) {
	ctx, n := onA(t)
	old := n.BootedDeployment()
	checks := n.HostPath("/etc/greenboot/check/required.d")
	if err := errors.Join(os.MkdirAll(checks, 0o755),
		os.WriteFile(filepath.Join(checks, "10-slow.sh"), []byte("#!/bin/sh\nexec sleep 300\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	apply(ctx, t, n, mc("b", configB), "--no-reboot")
	boots := n.Boots()
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitBoot(ctx, boots+1); err != nil {
		t.Fatal(err)
	}
	if err := n.PowerCut(); err != nil { // before anybody could prove it
		t.Fatal(err)
	}
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := n.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if s.Config.Pending != "b" {
		t.Fatalf("it is proved although its check never ends: %+v", s)
	}
	choose(ctx, t, n, old)
	if err := n.PowerCut(); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if s, err = n.WaitState(ctx, transaction.RolledBack); err != nil {
		t.Fatal(err)
	}
	if s.Config.Committed != "a" || len(s.Quarantined) != 1 {
		t.Errorf("%+v", s)
	}
	if got := read(t, n, "/usr/local/bin/tool"); got != "tool A\n" {
		t.Errorf("what no deployment carries is %q", got)
	}
	verified(ctx, t, n)
}

func TestCommitThatHasNotBootedCanBeWithdrawn(t *testing.T) {
	ctx, n := onA(t)
	old := n.BootedDeployment()
	if res := apply(ctx, t, n, mc("b", configB), "--no-reboot"); res.Reboot != host.RebootNeeded {
		t.Errorf("%+v", res)
	}
	if res := apply(ctx, t, n, mc("a", configA), "--no-reboot"); res.Reboot != host.RebootNone || res.Status.Config.Pending != "" {
		t.Errorf("%+v", res.Status)
	}
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	settled(ctx, t, n, "a")
	if n.BootedDeployment() != old {
		t.Errorf("booted %s", n.BootedDeployment())
	}
	if entries, err := os.ReadDir(n.HostPath("/usr/local/bin")); err != nil || len(entries) != 2 {
		t.Errorf("%v %v", entries, err)
	}
}

func TestWhatTheJournalCannotDoAtTheFirstBootGoesBack(t *testing.T) {
	ctx, n := onA(t)
	old := n.BootedDeployment()
	apply(ctx, t, n, mc("b", configB), "--no-reboot")
	staged, err := filepath.Glob(n.HostPath("/usr/local/bin") + "/.noderefit-*")
	if err != nil || len(staged) != 1 {
		t.Fatal(staged, err)
	}
	if err := os.Remove(staged[0]); err != nil { // as an over-eager tidier would
		t.Fatal(err)
	}
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := n.WaitState(ctx, transaction.RolledBack, transaction.Degraded)
	if err != nil {
		t.Fatal(err)
	}
	if n.BootedDeployment() != old || s.Config.Committed != "a" || !strings.Contains(s.Reason, "/usr/local/bin/tool") {
		t.Errorf("booted %s, %+v", n.BootedDeployment(), s)
	}
	verified(ctx, t, n)
}

func TestOSImageKernelArgumentsAndConfigurationMoveTogether(t *testing.T) {
	ctx, n := onA(t)
	spec := strings.Replace(configB, `{"kernelArguments"`, `{"osImageURL":"`+lab.RefV2+`","kernelArguments"`, 1)
	apply(ctx, t, n, mc("b-v2", spec))
	settled(ctx, t, n, "b-v2")
	if v := read(t, n, "/usr/lib/testos/version"); strings.TrimSpace(v) != "v2" {
		t.Errorf("version %q", v)
	}
	if !strings.Contains(n.Kargs(), "b=2") || read(t, n, "/etc/chrony.conf") != "from B\n" {
		t.Errorf("%s", n.Kargs())
	}
	if _, stderr, exit, err := n.Agent(ctx, "rollback"); err != nil || exit != 0 {
		t.Fatal(exit, stderr, err)
	}
	settled(ctx, t, n, "a")
	if v := read(t, n, "/usr/lib/testos/version"); strings.TrimSpace(v) != "v1" {
		t.Errorf("after going back the version is %q", v)
	}
}

func TestAnotherManagerAtWorkIsRefused(t *testing.T) {
	ctx, n := start(t)
	unit := "[Service]\nExecStart=/bin/sleep infinity\n"
	if err := os.WriteFile(n.HostPath("/etc/systemd/system/zincati.service"), []byte(unit), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := n.Output(ctx, "systemctl", "start", "zincati.service"); err != nil {
		t.Fatal(out, err)
	}
	res, exit, err := n.Apply(ctx, mc("a", configA))
	if exit != 5 || err == nil || !strings.Contains(err.Error(), "zincati.service") {
		t.Fatalf("exit %d, %v, %+v", exit, err, res)
	}
	off := strings.Replace(configA, `"storage"`, `"systemd":{"units":[{"name":"zincati.service","mask":true}]},"storage"`, 1)
	apply(ctx, t, n, mc("a-off", off))
	settled(ctx, t, n, "a-off")
}

func TestABlockedShutdownIsAskedForBeforehand(t *testing.T) {
	ctx, n := start(t)
	cmd, err := n.Command(ctx, "systemd-inhibit", "--what=shutdown", "--who=backup", "--why=running", "--mode=block", "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for {
		if out, err := n.Output(ctx, "systemd-inhibit", "--list"); err != nil {
			t.Fatal(err)
		} else if strings.Contains(out, "backup") {
			break
		}
	}
	_, exit, err := n.Apply(ctx, mc("a", configA))
	if exit != 5 || !strings.Contains(err.Error(), "backup") {
		t.Errorf("exit %d, %v", exit, err)
	}
	if s, err := n.Status(ctx); err != nil || s.Config.Pending != "" || len(s.Deployments) != 1 {
		t.Errorf("%+v %v", s, err)
	}
}
