// SPDX-License-Identifier: Apache-2.0

package firstboot

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

const hostConfig = `"config":{"ignition":{"version":"3.5.0"},"storage":{"files":[
	{"path":"/etc/motd","mode":420,"overwrite":true,"contents":{"source":"data:,made"}},
	{"path":"/var/lib/example/data","mode":384,"overwrite":true,"contents":{"source":"data:,made"}}]},
	"systemd":{"units":[{"name":"example.service","enabled":true,
	"contents":"[Service]\nType=oneshot\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"}]}}`

// made is a lab host that Ignition has made from what a server serves, up to where systemd starts its units.
func made(ctx context.Context, t *testing.T, spec string) *node.Node {
	t.Helper()
	ignition := needIgnition(t)
	base := lab.Need(t)
	n, err := node.New(ctx, base, program("machine-config-daemon"), lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			if text, err := n.Journal(context.WithoutCancel(ctx)); err == nil {
				t.Log(text[max(0, len(text)-12000):])
			}
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	provisioned(ctx, t, ignition, n, serve(t, "rendered-worker-a", spec))
	return n
}

// provisioned has Ignition make the host from what a server serves.
func provisioned(ctx context.Context, t *testing.T, ignition string, n *node.Node, from server) {
	t.Helper()
	agent, err := os.ReadFile(program("machine-config-daemon"))
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/proc/%d/root", n.Leader())
	for path, text := range map[string][]byte{
		"/etc/selinux/config": []byte("SELINUX=disabled\nSELINUXTYPE=targeted\n"),
		contexts:              []byte("/.* system_u:object_r:etc_t:s0\n"),
		api.HostProgram:       agent, // as machine-config-daemon-pull.service would have left it
	} {
		if err := os.MkdirAll(filepath.Dir(root+path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+path, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	from.ignite(t, ignition, root)
	// The host has no SELinux. With a policy in its /etc ostree would compile that for each new deployment.
	if err := os.RemoveAll(root + "/etc/selinux"); err != nil {
		t.Fatal(err)
	}
	if said, err := n.Output(ctx, "sh", "-c",
		"systemctl daemon-reload && systemctl preset example.service "+api.FirstbootUnit+" 2>&1"); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
}

func TestAHostThatLacksNothingIsTakenOverWithoutAReboot(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	n := made(ctx, t, `{`+hostConfig+`}`)
	boots := n.Boots()
	if said, err := n.Output(ctx, "systemctl", "start", api.FirstbootUnit); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	s, err := n.WaitState(ctx, transaction.Done)
	if err != nil {
		t.Fatal(err)
	}
	if s.Config.Committed != "rendered-worker-a" || n.Boots() != boots {
		t.Errorf("committed %s after %d boots", s.Config.Committed, n.Boots()-boots)
	}
	if exists(n.HostPath(api.EncapsulatedPath)) || exists(n.HostPath(api.EncapsulatedPath)+".bak") {
		t.Error("the file that asks for it is still there")
	}
	if stdout, said, exit, err := n.Agent(ctx, "verify"); err != nil || exit != 0 {
		t.Errorf("verify: %v: exit %d: %s%s", err, exit, stdout, said)
	}
	// What boots without the file is not completed again.
	if said, err := n.Output(ctx, "systemctl", "restart", api.FirstbootUnit); err != nil {
		t.Errorf("without the file: %v: %s", err, said)
	}
}

func TestKernelArgumentsTakeOneReboot(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	n := made(ctx, t, `{"kernelArguments":["refit.first=1"],`+hostConfig+`}`)
	leaveArguments(t, n, "refit.left=1")
	boots := n.Boots()
	// The reboot ends the command too.
	if _, _, _, err := n.Exec(ctx, nil, "systemctl", "start", "--no-block", api.FirstbootUnit); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitBoot(ctx, boots+1); err != nil {
		t.Fatal(err)
	}
	s, err := n.WaitState(ctx, transaction.Done)
	if err != nil {
		t.Fatal(err)
	}
	if s.Config.Committed != "rendered-worker-a" || !strings.Contains(n.Kargs(), "refit.first=1") ||
		!strings.Contains(n.Kargs(), "refit.left=1") {
		t.Errorf("committed %s, booted with %s", s.Config.Committed, n.Kargs())
	}
	if said, err := n.Output(ctx, "systemctl", "start", api.FirstbootUnit); err != nil {
		t.Errorf("after the boot: %v: %s", err, said)
	}
	if exists(n.HostPath(api.EncapsulatedPath)) || !exists(n.HostPath(api.EncapsulatedPath)+".bak") {
		t.Error("the file is not put aside")
	}
	if n.Boots() != boots+1 {
		t.Errorf("%d boots", n.Boots()-boots)
	}
	if stdout, said, exit, err := n.Agent(ctx, "verify"); err != nil || exit != 0 {
		t.Errorf("verify: %v: exit %d: %s%s", err, exit, stdout, said)
	}
	// What Ignition would have set is no part of the configuration: it stays when the configuration asks for nothing.
	next, err := n.Document("next.json", []byte(document("rendered-worker-b", `{`+hostConfig+`}`)))
	if err != nil {
		t.Fatal(err)
	}
	stdout, said, exit, err := n.Agent(ctx, "plan", "--desired="+next, "-o", "json")
	if err != nil || exit != 0 {
		t.Fatalf("%v: exit %d: %s", err, exit, said)
	}
	var p plan.Plan
	if err := json.Unmarshal([]byte(stdout), &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Changes) != 1 || !slices.Equal(p.Changes[0].Delete, []string{"refit.first=1"}) {
		t.Errorf("the next configuration changes %+v", p.Changes)
	}
}

// leaveArguments has the machine find what the server says to one whose Ignition was too old for kernel arguments.
func leaveArguments(t *testing.T, n *node.Node, arguments ...string) {
	t.Helper()
	at := fmt.Sprintf("/proc/%d/root%s", n.Leader(), api.EncapsulatedPath)
	text, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	var mc mcfgv1.MachineConfig
	if err := json.Unmarshal(text, &mc); err != nil {
		t.Fatal(err)
	}
	mc.Annotations = map[string]string{api.LeftArguments: api.Encode(arguments)}
	if text, err = json.Marshal(&mc); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Each try is killed one point further on, as the unit's would be, and goes on from where the one before was cut.
func TestAFirstbootThatIsKilledAgainAndAgainEndsWithOneReboot(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	n := made(ctx, t, `{"kernelArguments":["refit.first=1"],`+hostConfig+`}`)
	faulty, err := os.ReadFile(faultyAgent())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.HostPath(api.HostProgram), faulty, 0o755); err != nil {
		t.Fatal(err)
	}
	boots, cuts := n.Boots(), 0
	for ; ; cuts++ {
		said, err := n.Output(ctx, "sh", "-c", fmt.Sprintf("NODEREFIT_FAULT='firstboot kill %d' %s firstboot --no-reboot; echo $?",
			cuts+1, api.HostProgram))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(said, "0\n") {
			break
		}
		if !strings.HasSuffix(said, "137\n") {
			t.Fatalf("after %d cuts: %s", cuts, said)
		}
	}
	if cuts < 5 {
		t.Fatalf("only %d points were passed: the cuts test nothing", cuts)
	}
	t.Logf("%d cuts", cuts)
	if _, _, _, err := n.Exec(ctx, nil, "systemctl", "start", "--no-block", api.FirstbootUnit); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitBoot(ctx, boots+1); err != nil {
		t.Fatal(err)
	}
	s, err := n.WaitState(ctx, transaction.Done)
	if err != nil {
		t.Fatal(err)
	}
	if s.Config.Committed != "rendered-worker-a" || !strings.Contains(n.Kargs(), "refit.first=1") || n.Boots() != boots+1 {
		t.Errorf("committed %s, booted %d times, with %s", s.Config.Committed, n.Boots()-boots, n.Kargs())
	}
	if stdout, said, exit, err := n.Agent(ctx, "verify"); err != nil || exit != 0 {
		t.Errorf("verify: %v: exit %d: %s%s", err, exit, stdout, said)
	}
}

// There is no configuration to go back to, only what Ignition has made.
func TestAMachineWhoseFirstConfigurationIsBadGoesBackAndStartsNoKubelet(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	const bad = `{"kernelArguments":["refit.first=1"],"config":{"ignition":{"version":"3.5.0"},"systemd":{"units":[
		{"name":"example.service","enabled":true,"contents":"[Service]\nType=oneshot\nExecStart=/bin/false\n` +
		`[Install]\nWantedBy=multi-user.target\n"}]}}}`
	n := made(ctx, t, bad)
	boots := n.Boots()
	if _, _, _, err := n.Exec(ctx, nil, "systemctl", "start", "--no-block", api.FirstbootUnit); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitBoot(ctx, boots+2); err != nil {
		t.Fatal(err)
	}
	s, err := n.WaitState(ctx, transaction.RolledBack, transaction.Unreconcilable)
	if err != nil {
		t.Fatal(err)
	}
	if s.Config.Committed != "" || strings.Contains(n.Kargs(), "refit.first=1") || !exists(n.HostPath(api.EncapsulatedPath)) {
		t.Errorf("the host says %+v, booted with %s", s, n.Kargs())
	}
	// The unit tries on, and is no reason to boot again. It may have the lock at the moment.
	stdout, said, exit, err := n.Agent(ctx, "firstboot")
	for tick := time.NewTicker(100 * time.Millisecond); err == nil && exit == 5 && ctx.Err() == nil; <-tick.C {
		stdout, said, exit, err = n.Agent(ctx, "firstboot")
	}
	if err != nil || exit != 3 || !strings.Contains(said, "quarantined") {
		t.Errorf("firstboot: %v: exit %d: %s%s", err, exit, stdout, said)
	}
	if _, said, exit, err := n.Exec(ctx, nil, "systemctl", "is-active", "kubelet.service"); err != nil || exit == 0 {
		t.Errorf("the kubelet runs on half a machine: %v %s", err, said)
	}
	if n.Boots() != boots+2 {
		t.Errorf("%d boots", n.Boots()-boots)
	}
}

const runtimeUnit = "[Service]\nExecStart=/bin/sleep infinity\nExecReload=/bin/touch /run/told\n" +
	"[Install]\nWantedBy=multi-user.target\n"

// Where nothing but the registries differs, the container runtime would be reloaded. It starts after firstboot.
func TestAnActionOnWhatStartsAfterwardsHoldsNothingUp(t *testing.T) {
	const registries = "/etc/containers/registries.conf"
	spec := fmt.Sprintf(`{"config":{"ignition":{"version":"3.5.0"},"storage":{"files":[{"path":%q,"mode":420,
		"overwrite":true,"contents":{"source":"data:,unqualified-search-registries%%20%%3D%%20%%5B%%22a%%22%%5D"}}]},
		"systemd":{"units":[{"name":"crio.service","enabled":true,"contents":%q}]}}}`, registries, runtimeUnit)
	for name, before := range map[string]string{"it is to start": "true", "it runs": "systemctl start crio.service"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			n := bare(ctx, t, map[string]string{
				api.EncapsulatedPath:                       document("rendered-worker-a", spec),
				registries:                                 "unqualified-search-registries = []",
				"/etc/systemd/system/crio.service":         runtimeUnit,
				"/etc/systemd/system/" + api.FirstbootUnit: api.FirstbootUnitText,
			})
			if said, err := n.Output(ctx, "sh", "-c", "systemctl daemon-reload && "+before+
				" && systemctl enable crio.service "+api.FirstbootUnit+" 2>&1"); err != nil {
				t.Fatalf("%v: %s", err, said)
			}
			if said, err := n.Output(ctx, "systemctl", "start", api.FirstbootUnit, "crio.service"); err != nil {
				t.Fatalf("%v: %s", err, said)
			}
			s, err := n.WaitState(ctx, transaction.Done)
			if err != nil || s.Config.Committed != "rendered-worker-a" || len(s.Quarantined) > 0 {
				t.Fatalf("%v: %+v", err, s)
			}
			if stdout, said, exit, err := n.Agent(ctx, "verify"); err != nil || exit != 0 {
				t.Errorf("verify: %v: exit %d: %s%s", err, exit, stdout, said)
			}
			if before == "true" {
				return
			}
			if said, err := n.Output(ctx, "sh", "-c", "until test -e /run/told; do sleep 0.2; done"); err != nil {
				t.Errorf("the runtime that runs is not told: %v: %s", err, said)
			}
		})
	}
}

// bare is a lab host with these files, and the agent.
func bare(ctx context.Context, t *testing.T, contents map[string]string) *node.Node {
	t.Helper()
	n, err := node.New(ctx, lab.Need(t), program("machine-config-daemon"), lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	agent, err := os.ReadFile(program("machine-config-daemon"))
	if err != nil {
		t.Fatal(err)
	}
	contents[api.HostProgram] = string(agent)
	for path, text := range contents {
		if err := os.MkdirAll(filepath.Dir(n.HostPath(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if path == api.HostProgram {
			mode = 0o755
		}
		if err := os.WriteFile(n.HostPath(path), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	return n
}
