// SPDX-License-Identifier: Apache-2.0

package osupdate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/standin/rpmostree"
	"github.com/noderefit/noderefit/transaction"
)

// packagesFile has an admin's packages for the lab's OS, which no table of ours knows.
const packagesFile = `systems:
- ids: [debian]
  kernels:
    default: {packages: [kernel, kernel-core, kernel-modules, kernel-modules-core, kernel-modules-extra]}
    realtime: {packages: [kernel-rt-core, kernel-rt-modules, kernel-rt-modules-extra], release: '\+rt'}
  extensions:
    usbguard: [usbguard]
`

// agentOn puts an agent on a host with rpm-ostree.
func agentOn(t *testing.T, build func() (string, error)) (context.Context, *node.Node) {
	t.Helper()
	ctx, m := boot(t)
	return ctx, agentOf(t, m, build)
}

// agentOf puts the agent on a host.
func agentOf(t *testing.T, m *machine, build func() (string, error)) *node.Node {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.On(m.Host, binary)
	if err != nil {
		t.Fatal(err)
	}
	at := n.HostPath("/etc/machine-config-daemon")
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at+"/packages.yaml", []byte(packagesFile), 0o644); err != nil {
		t.Fatal(err)
	}
	return n
}

// config is a MachineConfig with a file, and more of its spec.
func config(name, content, more string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig",
 "metadata":{"name":%q},"spec":{%s"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/update.conf","contents":{"source":"data:,%s"}}]}}}}`, name, more, content)
}

// update applies a configuration that needs a boot, and waits for the verdict.
func update(ctx context.Context, t *testing.T, n *node.Node, doc []byte, want ...transaction.State) *host.Status {
	t.Helper()
	defer func() { counted.Ended(!t.Failed()) }()
	boots := n.Boots()
	res, _, err := n.Apply(ctx, doc)
	if err != nil {
		t.Fatalf("%v %+v", err, res)
	}
	if res.Reboot != host.RebootStarted {
		t.Fatalf("it does not boot: %+v", res)
	}
	if err := n.WaitBoot(ctx, boots+1); err != nil {
		t.Fatal(err)
	}
	s, err := n.WaitState(ctx, want...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func output(ctx context.Context, t *testing.T, n *node.Node, argv ...string) string {
	t.Helper()
	out, err := n.Output(ctx, argv...)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(out)
}

// released waits until the agent has cleaned up after a verdict, and holds nothing.
func released(ctx context.Context, t *testing.T, n *node.Node) {
	t.Helper()
	bounded, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for bounded.Err() == nil {
		out, err := n.Output(bounded, "ostree", "refs", "--list", "noderefit")
		busy, _ := n.Output(bounded, "systemctl", "is-active", transaction.ProveUnit)
		if err == nil && strings.TrimSpace(out) == "" && strings.TrimSpace(busy) != "active" {
			return
		}
		select {
		case <-bounded.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	out, _ := n.Output(context.WithoutCancel(ctx), "sh", "-c", "ostree refs --list noderefit; systemctl status "+transaction.ProveUnit+"; journalctl -o cat -u "+transaction.ProveUnit)
	t.Fatalf("something is still held, or at work: %s", out)
}

func TestOneUpdateChangesImageKernelExtensionArgumentsAndFilesOnRPMOSTree(t *testing.T) {
	ctx, n := agentOn(t, plain)
	a := config("a", "a", "")
	update(ctx, t, n, a, transaction.Done)
	before := n.BootedDeployment()
	b := config("b", "b", `"osImageURL":"`+rpmostree.Remote+`:`+rpmostree.RefV4+`","kernelType":"realtime",
 "extensions":["usbguard"],"kernelArguments":["update=b"],`)

	boots := n.Boots()
	s := update(ctx, t, n, b, transaction.Done)
	if s.Config.Committed != "b" || s.OS != host.OSRpmOstree {
		t.Errorf("%+v", s)
	}
	if got := n.Boots() - boots; got != 1 {
		t.Errorf("%d reboots", got)
	}
	for path, want := range map[string]string{"/usr/lib/testos/version": "v4", "/etc/update.conf": "b"} {
		if got := output(ctx, t, n, "cat", path); got != want {
			t.Errorf("%s: %q", path, got)
		}
	}
	text := output(ctx, t, n, "rpm-ostree", "status", "--json", "--booted")
	for _, p := range []string{`"usbguard"`, `"kernel-rt-core"`} {
		if !strings.Contains(text, p) {
			t.Errorf("%s is not in %s", p, text)
		}
	}
	if line := output(ctx, t, n, "rpm-ostree", "kargs"); !strings.Contains(" "+line+" ", " update=b ") {
		t.Errorf("kernel arguments: %s", line)
	}
	if out, _, exit, err := n.Agent(ctx, "verify", "-o", "json"); err != nil || exit != 0 {
		t.Errorf("verify: %d %v %s", exit, err, out)
	}
	released(ctx, t, n)

	if out := output(ctx, t, n, "rpm-ostree", "status", "--json"); strings.Contains(out, `"staged" : true`) {
		t.Errorf("staged: %s", out)
	}

	// Somebody goes back by hand: that is everything of a, and is said.
	output(ctx, t, n, "rpm-ostree", "rollback")
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if n.BootedDeployment() != before {
		t.Fatalf("%s has booted", n.BootedDeployment())
	}
	if got := output(ctx, t, n, "cat", "/etc/update.conf"); got != "a" {
		t.Errorf("/etc/update.conf: %q", got)
	}
	if s, err := n.Status(ctx); err != nil || s.State == transaction.Working {
		t.Errorf("%v %+v", err, s)
	}

	// And to the configuration without them: only what was ours goes.
	s = update(ctx, t, n, b, transaction.Done)
	if s.Config.Committed != "b" {
		t.Errorf("%+v", s)
	}
	s = update(ctx, t, n, config("c", "c", `"osImageURL":"`+rpmostree.Remote+`:`+rpmostree.RefV4+`",`), transaction.Done)
	if s.Config.Committed != "c" {
		t.Errorf("%+v", s)
	}
	text = output(ctx, t, n, "rpm-ostree", "status", "--json", "--booted")
	if strings.Contains(text, `"usbguard"`) || strings.Contains(text, `"kernel-rt-core"`) {
		t.Errorf("still layered: %s", text)
	}
}

func TestWhatSomebodyElseHasLayeredStays(t *testing.T) {
	ctx, n := agentOn(t, plain)
	output(ctx, t, n, "rpm-ostree", "install", "sysstat")
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	layered := func() string {
		text := output(ctx, t, n, "rpm-ostree", "status", "--json", "--booted")
		_, after, _ := strings.Cut(text, `"requested-packages"`)
		list, _, _ := strings.Cut(after, "]")
		return list
	}
	update(ctx, t, n, config("a", "a", `"extensions":["usbguard"],`), transaction.Done)
	if got := layered(); !strings.Contains(got, "usbguard") || !strings.Contains(got, "sysstat") {
		t.Errorf("layered: %s", got)
	}
	update(ctx, t, n, config("b", "b", ""), transaction.Done)
	if got := layered(); strings.Contains(got, "usbguard") || !strings.Contains(got, "sysstat") {
		t.Errorf("layered: %s", got)
	}
}

func TestStagedOSDoesNotBootAndIsLetGoOfByARevert(t *testing.T) {
	ctx, n := agentOn(t, plain)
	a := config("a", "a", "")
	update(ctx, t, n, a, transaction.Done)
	before := n.BootedDeployment()
	was, err := n.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	deployments := len(was.Deployments)
	at, err := n.Document("b.json", config("b", "b", `"extensions":["usbguard"],`))
	if err != nil {
		t.Fatal(err)
	}
	// What the verbs end with is what the host has then.
	told := func(verb string, s *host.Status, want int) {
		t.Helper()
		now, err := n.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(now.Deployments, s.Deployments); d != "" || len(now.Deployments) != want {
			t.Errorf("%s tells of other deployments than the %d that there are to be:\n%s", verb, want, d)
		}
	}
	stage := func() {
		t.Helper()
		out, text, exit, err := n.Agent(ctx, "stage", "--config", at, "-o", "json")
		var res host.Result
		if err := errors.Join(err, json.Unmarshal([]byte(out), &res)); err != nil || exit != 0 {
			t.Fatalf("stage: %d %v %s %s", exit, err, out, text)
		}
		told("stage", res.Status, deployments+1)
	}
	stage()
	res, _, err := n.Apply(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	told("apply", res.Status, deployments)
	stage()
	if refs := output(ctx, t, n, "ostree", "refs", "--list", "noderefit"); refs == "" {
		t.Error("nothing is held")
	}
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if n.BootedDeployment() != before {
		t.Errorf("%s has booted", n.BootedDeployment())
	}
	if _, _, err := n.Apply(ctx, a); err != nil {
		t.Fatal(err)
	}
	released(ctx, t, n)
	if s, err := n.Status(ctx); err != nil || s.State != transaction.Done || len(s.Deployments) != deployments {
		t.Errorf("%v %+v", err, s)
	}
}

func TestWhatRPMOSTreeCanNotDoIsSaidOfItsField(t *testing.T) {
	ctx, n := agentOn(t, plain)
	for _, c := range []struct{ name, more, field, says string }{
		{"an extension without packages", `"extensions":["ipsec"],`, "extensions", "ipsec"},
		{"another architecture's kernel", `"kernelType":"64k-pages",`, "kernelType", "64k-pages"},
		{"no such ref", `"osImageURL":"` + rpmostree.Remote + `:no/such",`, "osImageURL", "no/such"},
	} {
		at, err := n.Document("c.json", config("c", "c", c.more))
		if err != nil {
			t.Fatal(err)
		}
		_, text, exit, err := n.Agent(ctx, "apply", "--config", at, "-o", "json")
		if err != nil || exit != 3 || !strings.Contains(text, c.field) || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %v %s", c.name, exit, err, text)
		}
	}
	s, err := n.Status(ctx)
	if err != nil || s.State != transaction.Unreconcilable ||
		slices.ContainsFunc(s.Deployments, func(d host.DeploymentStatus) bool { return !d.Booted }) {
		t.Errorf("%v %+v", err, s)
	}
}

func TestImageIsHeldToThePolicyThatItsConfigurationBrings(t *testing.T) {
	ctx, n := agentOn(t, plain)
	doc := `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig","metadata":{"name":"p"},"spec":{
 "osImageURL":"quay.example/os/node@sha256:` + strings.Repeat("1", 64) + `","config":{"ignition":{"version":"3.2.0"},
 "storage":{"files":[{"path":"/etc/containers/policy.json","contents":{"source":"data:,` +
		`%7B%22default%22%3A%5B%7B%22type%22%3A%22reject%22%7D%5D%7D"}}]}}}}`
	at, err := n.Document("p.json", []byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"stage", "apply"} {
		_, text, exit, err := n.Agent(ctx, verb, "--config", at, "-o", "json")
		if err != nil || exit != 3 || !strings.Contains(text, "osImageURL: ") || !strings.Contains(text, "rejects it") {
			t.Errorf("%s: %d %v %s", verb, exit, err, text)
		}
	}
	if log := output(ctx, t, n, "rpm-ostree", "status"); strings.Contains(log, "quay.example") {
		t.Error(log)
	}
}

func TestWhatSomebodyTookAwayComesBackAndANameForWhatRunsIsNoChange(t *testing.T) {
	ctx, n := agentOn(t, plain)
	a := config("a", "a", `"extensions":["usbguard"],`)
	update(ctx, t, n, a, transaction.Done)
	released(ctx, t, n)
	output(ctx, t, n, "rpm-ostree", "uninstall", "usbguard")
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	// Another configuration heals it too: it is not blamed for what was gone before.
	s := update(ctx, t, n, config("b", "a", `"extensions":["usbguard"],"kernelArguments":["b"],`), transaction.Done)
	if s.Config.Committed != "b" || len(s.Quarantined) > 0 {
		t.Errorf("%+v", s)
	}
	if text := output(ctx, t, n, "rpm-ostree", "status", "--json", "--booted"); !strings.Contains(text, `"usbguard"`) {
		t.Errorf("it is still gone: %s", text)
	}
	released(ctx, t, n)
	boots := n.Boots()
	res, _, err := n.Apply(ctx, config("c", "a", `"extensions":["usbguard"],"kernelArguments":["b"],"osImageURL":"os/test",`))
	if err != nil || res.Reboot != host.RebootNone || n.Boots() != boots || len(res.Plan.Changes) > 0 {
		t.Errorf("%v %+v", err, res)
	}
}
