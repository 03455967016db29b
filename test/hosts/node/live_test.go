// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/transaction"
)

const livePolicy = `
apiVersion: operator.openshift.io/v1
kind: MachineConfiguration
metadata: {name: cluster}
spec:
  nodeDisruptionPolicy:
    files:
    - path: /etc/kubernetes
      actions: [{type: Restart, restart: {serviceName: crio.service}}]
    - path: /etc/crio
      actions: [{type: Reload, reload: {serviceName: crio.service}}]
    - path: /etc/quiet
      actions: [{type: None}]
    units:
    - name: extra.service
      actions: [{type: DaemonReload}, {type: Restart, restart: {serviceName: extra.service}}]
`

func liveConfig(crio, kube string) string {
	return fmt.Sprintf(`{"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/crio/crio.conf.d/10-x.conf","contents":{"source":"data:,%s"}},
 {"path":"/etc/kubernetes/crio.conf","contents":{"source":"data:,%s"}}]},
 "systemd":{"units":[{"name":"extra.service","enabled":true,
  "contents":"[Service]\nExecStart=/bin/sleep infinity\nEnvironment=X=%s\n[Install]\nWantedBy=multi-user.target\n"}]}}}`, crio, kube, crio)
}

func policy(t *testing.T, n *Node) string {
	t.Helper()
	at, err := n.Document("policy.yaml", []byte(livePolicy))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// log is what happened to a service of the lab's image since the boot.
func log(ctx context.Context, t *testing.T, n *Node, service string) string {
	t.Helper()
	out, err := n.Output(ctx, "cat", "/run/testos/"+service+".log")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(out), " ")
}

func TestChangeWithoutRebootActsOnTheRunningServices(t *testing.T) {
	ctx, n := start(t)
	p := policy(t, n)
	boots := n.Boots()
	res := apply(ctx, t, n, mc("one", liveConfig("1", "ok")), "--policy", p)
	if res.Reboot != host.RebootNone || res.Status.State != transaction.Done {
		t.Fatalf("%+v", res)
	}
	if got := log(ctx, t, n, "crio"); got != "start start" {
		t.Errorf("crio: %s, plan %v", got, res.Plan.Actions)
	}
	if out, err := n.Output(ctx, "systemctl", "show", "-P", "Environment", "extra.service"); err != nil || strings.TrimSpace(out) != "X=1" {
		t.Errorf("extra.service: %q %v", out, err)
	}
	if out, err := n.Output(ctx, "systemctl", "is-active", "extra.service"); err != nil {
		t.Errorf("extra.service is %s", out)
	}
	apply(ctx, t, n, mc("two", liveConfig("2", "ok")), "--policy", p)
	if got := log(ctx, t, n, "crio"); got != "start start reload" {
		t.Errorf("crio: %s", got)
	}
	if n.Boots() != boots {
		t.Error("it rebooted")
	}
	verified(ctx, t, n)
	if res := apply(ctx, t, n, mc("two", liveConfig("2", "ok")), "--policy", p); len(res.Plan.Changes) != 0 {
		t.Errorf("%+v", res.Plan)
	}
}

func TestFailingActionTakesTheWholeChangeBack(t *testing.T) {
	ctx, n := start(t)
	p := policy(t, n)
	apply(ctx, t, n, mc("one", liveConfig("1", "ok")), "--policy", p)
	res, exit, err := n.Apply(ctx, mc("bad", liveConfig("2", "fail")), "--policy", p)
	if exit != 1 || err == nil || !strings.Contains(err.Error(), "crio.service") {
		t.Fatalf("exit %d, %v", exit, err)
	}
	s := res.Status
	if s.State != transaction.RolledBack || s.Config.Committed != "one" || len(s.Quarantined) != 1 {
		t.Errorf("%+v", s)
	}
	if got := read(t, n, "/etc/kubernetes/crio.conf"); got != "ok" {
		t.Errorf("crio.conf is %q", got)
	}
	if out, err := n.Output(ctx, "systemctl", "is-active", "crio.service"); err != nil {
		t.Errorf("crio.service is %s", out)
	}
	if out, err := n.Output(ctx, "systemctl", "show", "-P", "Environment", "extra.service"); err != nil || strings.TrimSpace(out) != "X=1" {
		t.Errorf("extra.service: %q %v", out, err)
	}
	verified(ctx, t, n)
	apply(ctx, t, n, mc("three", liveConfig("3", "ok")), "--policy", p)
	verified(ctx, t, n)
}

func TestContentThatFailedIsRefusedByAnyNameUntilItIsLifted(t *testing.T) {
	ctx, n := start(t)
	p := policy(t, n)
	apply(ctx, t, n, mc("one", liveConfig("1", "ok")), "--policy", p)
	bad := liveConfig("2", "fail")
	if _, exit, err := n.Apply(ctx, mc("rendered-worker-bad", bad), "--policy", p); exit != 1 {
		t.Fatalf("exit %d, %v", exit, err)
	}
	// Its cause goes away, which nobody but a person knows.
	shell(ctx, t, n, `mkdir -p /etc/systemd/system/crio.service.d
printf '[Service]\nExecStart=\nExecStart=/bin/sleep infinity\n' >/etc/systemd/system/crio.service.d/60-patient.conf
systemctl daemon-reload`)
	for _, name := range []string{"rendered-worker-bad", "rendered-infra-bad"} {
		if _, exit, err := n.Apply(ctx, mc(name, bad), "--policy", p); exit != 3 || !strings.Contains(err.Error(), "quarantined") {
			t.Errorf("%s: exit %d, %v", name, exit, err)
		}
	}
	if got := read(t, n, "/etc/crio/crio.conf.d/10-x.conf"); got != "1" {
		t.Errorf("what was refused has changed the host: %q", got)
	}
	// A lift is of content too.
	res := apply(ctx, t, n, mc("rendered-infra-bad", bad), "--policy", p, "--lift-quarantine")
	if s := res.Status; s.State != transaction.Done || s.Config.Committed != "rendered-infra-bad" || len(s.Quarantined) != 0 {
		t.Errorf("lifted: %+v", s)
	}
	apply(ctx, t, n, mc("one", liveConfig("1", "ok")), "--policy", p)
	apply(ctx, t, n, mc("rendered-worker-bad", bad), "--policy", p)
	verified(ctx, t, n)
}

func TestFailingCheckScriptTakesALiveChangeBack(t *testing.T) {
	ctx, n := start(t)
	p := policy(t, n)
	script := n.HostPath("/etc/greenboot/check/required.d/10-check.sh")
	if err := os.MkdirAll(n.HostPath("/etc/greenboot/check/required.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := "#!/bin/sh\nif grep -q bad /etc/crio/crio.conf.d/10-x.conf; then echo 'the registry does not answer'; exit 1; fi\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	apply(ctx, t, n, mc("one", liveConfig("1", "ok")), "--policy", p)
	res, exit, err := n.Apply(ctx, mc("bad", liveConfig("bad", "ok")), "--policy", p)
	if exit != 1 || !strings.Contains(err.Error(), "the registry does not answer") || res.Status.State != transaction.RolledBack {
		t.Errorf("exit %d, %v, %+v", exit, err, res)
	}
	verified(ctx, t, n)
}

func TestDriftIsFoundKeptAndOverwritten(t *testing.T) {
	ctx, n := start(t)
	p := policy(t, n)
	apply(ctx, t, n, mc("one", liveConfig("1", "ok")), "--policy", p)
	byHand := n.HostPath("/etc/crio/crio.conf.d/10-x.conf")
	if err := errors.Join(os.WriteFile(byHand, []byte("by hand"), 0o644), os.Chmod(byHand, 0o600)); err != nil {
		t.Fatal(err)
	}
	if out, err := n.Output(ctx, "systemctl", "disable", "extra.service"); err != nil {
		t.Fatal(out, err)
	}
	stdout, _, exit, err := n.Agent(ctx, "verify", "-o", "json")
	if err != nil || exit != 4 || !strings.Contains(stdout, "10-x.conf") || !strings.Contains(stdout, `"enabled"`) || !strings.Contains(stdout, `"mode"`) {
		t.Errorf("exit %d, %v, %s", exit, err, stdout)
	}
	if _, exit, err := n.Apply(ctx, mc("one", liveConfig("1", "ok")), "--policy", p, "--strict"); exit != 4 {
		t.Errorf("--strict: exit %d, %v", exit, err)
	}
	res := apply(ctx, t, n, mc("one", liveConfig("1", "ok")), "--policy", p)
	if len(res.Warnings) == 0 {
		t.Error("no warning")
	}
	verified(ctx, t, n)
	if out, err := n.Output(ctx, "grep", "-r", "by hand", "/var/lib/machine-config-daemon/drift"); err != nil {
		t.Errorf("what was overwritten is not kept: %s %v", out, err)
	}
}

// The default policies ask for crio.service, which a host with containerd does not have.
func TestAMirrorReachesAHostWithoutCRIO(t *testing.T) {
	ctx, n := start(t)
	if out, err := n.Output(ctx, "systemctl", "mask", "--now", "crio.service"); err != nil {
		t.Fatal(out, err)
	}
	boots := n.Boots()
	registries := `{"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/containers/registries.conf","contents":{"source":"data:,unqualified-search-registries%20%3D%20%5B%22` +
		`a.example%22%5D"}},
 {"path":"/etc/containerd/certs.d/quay.io/hosts.toml","contents":{"source":"data:,%5Bhost.%22https%3A%2F%2Fm%22%5D%0A` +
		`capabilities%20%3D%20%5B%22pull%22%5D"}}]}}}`
	res := apply(ctx, t, n, mc("mirror", registries))
	if res.Reboot != host.RebootNone || res.Status.State != transaction.Done || n.Boots() != boots || res.Plan.Drain {
		t.Errorf("%+v", res)
	}
	if got := read(t, n, "/etc/containerd/certs.d/quay.io/hosts.toml"); !strings.Contains(got, `["pull"]`) {
		t.Errorf("hosts.toml is %q", got)
	}
	verified(ctx, t, n)
}
