// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/transaction"
)

// hostile makes a configuration that reboots: with these units and files and links, and a unit that fails, so that its
// verdict is no.
func hostile(t *testing.T, name string, failing bool, arguments []string, units, files, links []any) []byte {
	t.Helper()
	if failing {
		units = append(units, map[string]any{"name": "bad.service", "enabled": true,
			"contents": "[Service]\nType=oneshot\nExecStart=/bin/false\n[Install]\nWantedBy=multi-user.target\n"})
	}
	storage := map[string]any{}
	if len(files) > 0 {
		storage["files"] = files
	}
	if len(links) > 0 {
		storage["links"] = links
	}
	spec, err := json.Marshal(map[string]any{"kernelArguments": append([]string{"b=2"}, arguments...),
		"config": map[string]any{"ignition": map[string]any{"version": "3.2.0"}, "storage": storage,
			"systemd": map[string]any{"units": units}}})
	if err != nil {
		t.Fatal(err)
	}
	return mc(name, string(spec))
}

func fileAt(path, text string) any {
	source := "data:;base64," + base64.StdEncoding.EncodeToString([]byte(text))
	return map[string]any{"path": path, "mode": 0o644, "contents": map[string]any{"source": source}}
}

func linkAt(path, target string) any {
	return map[string]any{"path": path, "target": target, "overwrite": true}
}

const proveUnit = "machine-config-daemon-prove.service"

func TestWhatDisarmsTheAgentsUnitsIsRefusedByName(t *testing.T) {
	ctx, n := onA(t)
	for name, c := range map[string]struct {
		doc   []byte
		names []string
	}{
		"masked": {hostile(t, "b", true, nil, []any{map[string]any{"name": proveUnit, "mask": true}}, nil, nil),
			[]string{"systemd.units", proveUnit}},
		"its own contents": {hostile(t, "b", true, nil, []any{map[string]any{"name": proveUnit,
			"contents": "[Service]\nExecStart=/bin/true\n"}}, nil, nil), []string{"systemd.units", proveUnit}},
		"a drop-in": {hostile(t, "b", true, nil, []any{map[string]any{"name": proveUnit, "dropins": []any{
			map[string]any{"name": "10-a.conf", "contents": "[Unit]\nConditionPathExists=/nonexistent\n"}}}}, nil, nil),
			[]string{"systemd.units", proveUnit + "/10-a.conf"}},
		"its link to nowhere": {hostile(t, "b", true, nil, nil, nil,
			[]any{linkAt("/etc/systemd/system/sysinit.target.wants/"+proveUnit, "/dev/null")}),
			[]string{"storage.links", "sysinit.target.wants/" + proveUnit}},
		"an argument": {hostile(t, "b", true, []string{"systemd.unit=emergency.target"}, nil, nil, nil),
			[]string{"kernelArguments", "systemd.unit=emergency.target"}},
		"the default target": {hostile(t, "b", true, nil, nil, nil,
			[]any{linkAt("/etc/systemd/system/default.target", "/usr/lib/systemd/system/emergency.target")}),
			[]string{"storage.links", "default.target"}},
		"sysinit masked": {hostile(t, "b", true, nil, []any{map[string]any{"name": "sysinit.target", "mask": true}}, nil, nil),
			[]string{"systemd.units", "sysinit.target"}},
	} {
		for _, flags := range [][]string{{"plan", "--desired"}, {"apply", "--no-reboot", "--config"}} {
			at, err := n.Document("config.json", c.doc)
			if err != nil {
				t.Fatal(err)
			}
			_, stderr, exit, err := n.Agent(ctx, append(flags, at)...)
			if err != nil {
				t.Fatal(err)
			}
			if exit != 3 {
				t.Errorf("%s: %s: exit %d: %s", name, flags[0], exit, stderr)
			}
			for _, word := range c.names {
				if !strings.Contains(stderr, word) {
					t.Errorf("%s: %s does not name %s: %s", name, flags[0], word, stderr)
				}
			}
		}
	}
	apply(ctx, t, n, mc("a", configA))
	settled(ctx, t, n, "a")
}

// everything is a drop-in for all services that takes from them whatever systemd knows to take.
const everything = `[Unit]
ConditionPathExists=/nonexistent
AssertPathExists=/nonexistent
RefuseManualStart=yes
StopWhenUnneeded=yes
JobTimeoutSec=1
JobTimeoutAction=none
StartLimitIntervalSec=10min
StartLimitBurst=1
[Service]
User=nobody
Group=nogroup
DynamicUser=yes
ProtectSystem=strict
ProtectHome=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
PrivateDevices=yes
PrivateNetwork=yes
PrivateUsers=yes
PrivateTmp=yes
PrivateMounts=yes
PrivateIPC=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
RestrictNamespaces=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=none
SystemCallFilter=@basic-io
MemoryDenyWriteExecute=yes
InaccessiblePaths=/var/lib /sysroot
ReadOnlyPaths=/
NoExecPaths=/
RootDirectory=/var/empty
WorkingDirectory=/nonexistent
EnvironmentFile=/nonexistent
LimitNOFILE=3
LimitFSIZE=0
LimitNPROC=1
MemoryMax=1M
TasksMax=1
ExecCondition=/bin/false
ExecStartPre=/bin/false
ExecStartPost=/bin/false
ExecStopPost=/bin/false
Restart=always
RuntimeMaxSec=1
TimeoutStartSec=1
WatchdogSec=1
Type=notify
`

func TestWhatDisarmsAllServicesComesBackByItself(t *testing.T) {
	for name, text := range map[string]string{
		"read-only":          "[Service]\nProtectSystem=strict\n",
		"user":               "[Service]\nUser=nobody\n",
		"before":             "[Service]\nExecStartPre=/bin/false\n",
		"condition":          "[Unit]\nConditionPathExists=/nonexistent\n",
		"everything":         everything,
		"what can't be read": "[Service]\nUser=/x\nExecStartPre=/\nRootDirectory=x\n",
	} {
		t.Run(name, func(t *testing.T) {
			const at = "/etc/systemd/system/service.d/10-a.conf"
			ctx, n := onA(t)
			apply(ctx, t, n, hostile(t, "b", true, nil, nil, []any{fileAt(at, text)}, nil), "--verdict-timeout", "20s")
			s := cameBack(ctx, t, n)
			t.Log(s.Reason)
		})
	}
}

// cameBack waits until the host is on a again, and sees that it can go on from there.
func cameBack(ctx context.Context, t *testing.T, n *Node) *host.Status {
	t.Helper()
	// The agent forces a reboot that does not end within 100 s. systemd's own can stay so where a mount covers /boot: the
	// mount below it is there again when the upper one is gone.
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	s, err := n.WaitState(ctx, transaction.RolledBack)
	if err != nil {
		t.Fatal(err)
	}
	if s.Config.Committed != "a" || len(s.Quarantined) != 1 {
		t.Errorf("%+v", s)
	}
	verified(ctx, t, n)
	return s
}

func TestABootThatHangsBeforeRecoveryComesBackByItself(t *testing.T) {
	ctx, n := onA(t)
	hang := map[string]any{"name": "hang.service", "enabled": true, "contents": "[Unit]\nDefaultDependencies=no\n" +
		"Before=local-fs.target\n[Service]\nType=oneshot\nTimeoutStartSec=infinity\nExecStart=/bin/sleep infinity\n" +
		"[Install]\nWantedBy=local-fs.target\n"}
	apply(ctx, t, n, hostile(t, "b", false, nil, []any{hang}, nil, nil), "--verdict-timeout", "20s")
	cameBack(ctx, t, n)
}

// TestABootIntoMaintenanceComesBackByItself has somebody else send the boot there: a configuration may not.
func TestABootIntoMaintenanceComesBackByItself(t *testing.T) {
	for _, target := range []string{"emergency.target", "rescue.target"} {
		t.Run(target, func(t *testing.T) {
			ctx, n := onA(t)
			shell(ctx, t, n, "ln -sf /usr/lib/systemd/system/"+target+" /etc/systemd/system/default.target")
			apply(ctx, t, n, mc("b", configB), "--no-reboot", "--verdict-timeout", "20s")
			shell(ctx, t, n, "rm /etc/systemd/system/default.target; systemctl reboot --no-block")
			cameBack(ctx, t, n)
		})
	}
}

// shuts keeps services from all that the agent works with, and does no harm to the others of a lab host.
const shuts = "[Service]\nInaccessiblePaths=-/var/lib/machine-config-daemon\nReadOnlyPaths=-/etc/systemd/system\n"

func TestWhatShutsTheAgentOutCanBeTakenAwayAgain(t *testing.T) {
	ctx, n := startHead(t)
	apply(ctx, t, n, mc("a", configA))
	settled(ctx, t, n, "a")
	const at = "/etc/systemd/system/service.d/10-a.conf"
	b := hostile(t, "b", false, nil, nil, []any{fileAt(at, shuts)}, nil)
	apply(ctx, t, n, b, "--verdict-timeout", "40s")
	settled(ctx, t, n, "b")
	out, _ := shell(ctx, t, n, "systemd-run -q --pipe --wait ls /var/lib/machine-config-daemon")
	if strings.Contains(out, "boot.json") {
		t.Errorf("it shuts nothing out: %q", out)
	}
	// The head's commands are transient units, which have the same drop-ins.
	doc := document(t, n, "a.json", mc("a", configA))
	if a := head(ctx, t, n, "plan", "--config", doc, "--name", "a"); a.Error != "" {
		t.Errorf("%+v", a)
	}
	boots := n.Boots()
	a := head(ctx, t, n, "apply", "--config", doc, "--name", "a")
	down := a.goingDown()
	if a.Error != "" && !down {
		t.Fatalf("%+v", a)
	}
	if err := n.WaitBoot(ctx, boots+1); err != nil {
		t.Fatal(err)
	}
	head(ctx, t, n, "node", "--ready")
	settled(ctx, t, n, "a")
	if _, err := os.Lstat(n.HostPath(at)); !os.IsNotExist(err) {
		t.Errorf("%s: %v", at, err)
	}
}

func TestTheHeadReachesAHardenedHost(t *testing.T) {
	ctx, n := startHead(t)
	apply(ctx, t, n, mc("a", configA))
	settled(ctx, t, n, "a")
	shell(ctx, t, n, "mkdir -p /etc/systemd/system/service.d && cat >/etc/systemd/system/service.d/10-a.conf <<'EOF'\n"+
		everything+"EOF\nsystemctl daemon-reload")
	if a := head(ctx, t, n, "status"); a.Error != "" || a.Status.Config.Committed != "a" {
		t.Errorf("%+v", a)
	}
	doc := document(t, n, "b.json", mc("b", configB))
	if a := head(ctx, t, n, "plan", "--config", doc, "--name", "b"); a.Error != "" || !a.Plan.Reboot {
		t.Errorf("%+v", a)
	}
	shell(ctx, t, n, "rm /etc/systemd/system/service.d/10-a.conf; systemctl daemon-reload")
}

func TestWithoutLogindTheWayForwardAndBackIsOpen(t *testing.T) {
	long(t)
	ctx, n := onA(t)
	masked := hostile(t, "b", false, nil, []any{map[string]any{"name": "systemd-logind.service", "mask": true}}, nil, nil)
	apply(ctx, t, n, masked)
	settled(ctx, t, n, "b")
	apply(ctx, t, n, mc("a", configA))
	settled(ctx, t, n, "a")
	apply(ctx, t, n, masked)
	settled(ctx, t, n, "b")
	if _, stderr, exit, err := n.Agent(ctx, "rollback"); err != nil || exit != 0 {
		t.Fatal(exit, stderr, err)
	}
	settled(ctx, t, n, "a")
}

func TestALogindOrABusThatSaysNothingHoldsNothingUp(t *testing.T) {
	for _, unit := range []string{"systemd-logind.service", "dbus.service"} {
		t.Run(unit, func(t *testing.T) {
			ctx, n := onA(t)
			if out, exit := shell(ctx, t, n, "systemctl kill --kill-whom=main -s STOP "+unit); exit != 0 {
				t.Fatal(out)
			}
			apply(ctx, t, n, mc("b", configB))
			settled(ctx, t, n, "b")
		})
	}
}

func TestABusThatLetsNothingThroughHoldsNothingUp(t *testing.T) {
	for _, name := range []string{"org.freedesktop.login1", "org.freedesktop.systemd1"} {
		t.Run(name, func(t *testing.T) {
			ctx, n := onA(t)
			denies := hostile(t, "b", false, nil, nil, []any{fileAt("/etc/dbus-1/system.d/a.conf", "<busconfig>"+
				`<policy context="mandatory"><deny send_destination="`+name+`"/></policy></busconfig>`)}, nil)
			apply(ctx, t, n, denies, "--verdict-timeout", "30s")
			settled(ctx, t, n, "b")
			if out, exit := shell(ctx, t, n, "busctl --system --timeout=5 call "+name+" /org/freedesktop/DBus "+
				"org.freedesktop.DBus.Peer Ping"); exit == 0 {
				t.Errorf("it denies nothing: %s", out)
			}
			apply(ctx, t, n, mc("a", configA))
			settled(ctx, t, n, "a")
		})
	}
}

// TestAWayBackWhoseServicesNeverStopEnds has a service that takes longer than systemd's own reboot.target would wait.
func TestAWayBackWhoseServicesNeverStopEnds(t *testing.T) {
	long(t)
	ctx, n := onA(t)
	stays := map[string]any{"name": "stays.service", "enabled": true, "contents": "[Unit]\nBefore=shutdown.target\n" +
		"[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\nExecStop=/bin/sleep infinity\n" +
		"TimeoutStopSec=infinity\n[Install]\nWantedBy=multi-user.target\n"}
	apply(ctx, t, n, hostile(t, "b", true, nil, []any{stays}, nil, nil), "--verdict-timeout", "20s")
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if s, err := n.WaitState(ctx, transaction.RolledBack); err != nil || s.Config.Committed != "a" {
		t.Fatal(s, err)
	}
	verified(ctx, t, n)
}

func TestWhatCoversTheDeploymentsIsLeft(t *testing.T) {
	for _, at := range []string{"/boot", "/sysroot", "/run"} {
		for name, order := range map[string]string{"early": "Before=sysinit.target",
			"after recovery": "After=machine-config-daemon-recover.service"} {
			t.Run(at+" "+name, func(t *testing.T) {
				ctx, n := onA(t)
				cover := map[string]any{"name": "cover.service", "enabled": true, "contents": "[Unit]\n" +
					"DefaultDependencies=no\n" + order + "\n[Service]\nType=oneshot\n" +
					"ExecStart=/bin/mount -t tmpfs cover " + at + "\n[Install]\nWantedBy=sysinit.target\n"}
				apply(ctx, t, n, hostile(t, "b", false, nil, []any{cover}, nil, nil), "--verdict-timeout", "40s")
				if s := cameBack(ctx, t, n); !strings.Contains(s.Reason, at+" is covered") {
					t.Errorf("it does not name %s: %s", at, s.Reason)
				}
			})
		}
	}
}

// TestTheAgentRunsTheToolsOfTheOS has a configuration bring programs of the same names.
func TestTheAgentRunsTheToolsOfTheOS(t *testing.T) {
	ctx, n := onA(t)
	var programs []any
	for _, name := range []string{"ostree", "systemd-run", "mount"} {
		for _, dir := range []string{"/usr/local/bin/", "/usr/local/sbin/"} {
			program := fileAt(dir+name, "#!/bin/dash\nexec sleep infinity\n").(map[string]any)
			program["mode"] = 0o755
			programs = append(programs, program)
		}
	}
	apply(ctx, t, n, hostile(t, "b", true, nil, nil, programs, nil), "--verdict-timeout", "20s")
	cameBack(ctx, t, n)
}

// A deployment has the units of the agent that made it. Where another one judges it, that is no fault of the
// configuration, which a rollout during an upgrade of the agent would lose otherwise.
func TestUnitsOfAnOlderAgentAreNoReasonToGoBack(t *testing.T) {
	ctx, n := onA(t)
	apply(ctx, t, n, mc("b", configB), "--no-reboot", "--verdict-timeout", "1m")
	units := n.HostPath("/sysroot/"+pendingEtc(ctx, t, n)) + "/systemd/system/"
	for _, unit := range []string{proveUnit, "machine-config-daemon-recover.service"} {
		text, err := os.ReadFile(units + unit)
		if err == nil {
			err = errors.Join(os.WriteFile(units+unit, append(text, "# of before\n"...), 0o600),
				os.RemoveAll(units+unit+".d"), os.Remove(units+"rescue.target.wants/"+unit))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := n.WaitState(ctx, transaction.Done, transaction.RolledBack, transaction.Degraded)
	if err != nil || s.State != transaction.Done || s.Config.Committed != "b" {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestADeadlineThatNothingHoldsIsNamed(t *testing.T) {
	long(t)
	ctx, n := onA(t)
	// Somebody takes the units away by hand, for the next boot.
	apply(ctx, t, n, mc("b", configB), "--no-reboot", "--verdict-timeout", "5s")
	etc := n.HostPath("/sysroot/" + pendingEtc(ctx, t, n))
	for _, unit := range []string{proveUnit, "machine-config-daemon-recover.service"} {
		at := etc + "/systemd/system/" + unit
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/dev/null", at); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	s := waitReason(ctx, t, n, "machine-config-daemon-recover.service is masked")
	if s.State != transaction.Degraded || strings.Contains(s.Reason, "waiting for the reboot") {
		t.Errorf("booted and not recovered: %+v", s)
	}
	if stdout, _, _, err := n.Agent(ctx, "status"); err != nil || strings.Contains(stdout, "waiting for the reboot") {
		t.Errorf("%v, it says %s", err, stdout)
	}
	// Recovery by hand starts the clock, and nothing holds the deadline.
	if _, stderr, exit, err := n.Agent(ctx, "recover"); err != nil || exit != 0 {
		t.Fatal(exit, stderr, err)
	}
	s = waitReason(ctx, t, n, proveUnit+" is masked")
	if s.State != transaction.Degraded || s.Phase != "prove" || !strings.Contains(s.Reason, "deadline") {
		t.Errorf("%+v", s)
	}
	if _, stderr, exit, err := n.Agent(ctx, "recover"); err != nil || exit != 0 {
		t.Fatal(exit, stderr, err)
	}
	if s := cameBack(ctx, t, n); !strings.Contains(s.Reason, proveUnit+" is masked") {
		t.Errorf("%+v", s)
	}
}

// TestAHostThatCouldNotBeRebootedIsNoGoodHost has a program of the configuration do what no unit of it may.
func TestAHostThatCouldNotBeRebootedIsNoGoodHost(t *testing.T) {
	ctx, n := onA(t)
	unit := map[string]any{"name": "masks.service", "enabled": true, "contents": "[Service]\nType=oneshot\n" +
		"RemainAfterExit=yes\nExecStart=/bin/sh -c 'mkdir -p /run/systemd/system && " +
		"ln -s /dev/null /run/systemd/system/reboot.target'\n[Install]\nWantedBy=multi-user.target\n"}
	apply(ctx, t, n, hostile(t, "b", false, nil, []any{unit}, nil, nil), "--verdict-timeout", "60s")
	s := cameBack(ctx, t, n)
	if !strings.Contains(s.Reason, "reboot.target is masked") {
		t.Errorf("%+v", s)
	}
}

// pendingEtc is the /etc of the deployment that is to boot, below /sysroot.
func pendingEtc(ctx context.Context, t *testing.T, n *Node) string {
	t.Helper()
	s, err := n.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range s.Deployments {
		if d.Config == s.Config.Pending {
			os, rest, _ := strings.Cut(d.ID, "/")
			return fmt.Sprintf("ostree/deploy/%s/deploy/%s/etc", os, rest)
		}
	}
	t.Fatalf("no pending deployment in %+v", s)
	return ""
}

func waitReason(ctx context.Context, t *testing.T, n *Node, text string) *host.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 100*time.Second)
	defer cancel()
	for {
		s, err := n.Status(ctx)
		if err == nil && strings.Contains(s.Reason, text) {
			return s
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for %q: last %+v, %v", text, s, err)
		case <-time.After(poll):
		}
	}
}

func TestStatusWithoutRootSaysThatItNeedsRoot(t *testing.T) {
	ctx, n := onA(t)
	doc, err := n.Document("config.json", mc("a", configA))
	if err != nil {
		t.Fatal(err)
	}
	shell(ctx, t, n, "chmod 644 "+doc)
	for _, args := range [][]string{{"status"}, {"status", "-o", "json"}, {"verify"}, {"plan", "--desired", doc}} {
		stdout, stderr, exit, err := n.Exec(ctx, nil, append([]string{"setpriv", "--reuid=65534", "--regid=65534",
			"--clear-groups", agent}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		if exit != 1 || len(stdout) > 0 || !strings.HasPrefix(string(stderr), "error:") ||
			args[0] == "status" && !strings.Contains(string(stderr), "run it as root") || !strings.Contains(string(stderr), "/var/lib/machine-config-daemon") {
			t.Errorf("%v: exit %d, %q, %q", args, exit, stdout, stderr)
		}
	}
}
