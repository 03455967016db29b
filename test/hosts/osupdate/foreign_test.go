// SPDX-License-Identifier: Apache-2.0

package osupdate

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/transaction"
)

// deploymentLines are the lines of the status about deployments, without the names of these.
func deploymentLines(ctx context.Context, t *testing.T, n *node.Node) []string {
	t.Helper()
	out, text, exit, err := n.Agent(ctx, "status")
	if err != nil || exit > 1 {
		t.Fatalf("status: %d %v %s", exit, err, text)
	}
	var all []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "  testos/") {
			_, marks, _ := strings.Cut(strings.TrimSpace(line), " ")
			all = append(all, strings.TrimSpace(marks))
		}
	}
	return all
}

// verified runs verify, and returns its exit code and what it says.
func verified(ctx context.Context, t *testing.T, n *node.Node) (int, string) {
	t.Helper()
	out, text, exit, err := n.Agent(ctx, "verify")
	if err != nil {
		t.Fatal(err)
	}
	return exit, out + text
}

func TestWhatAnAdministratorHasStagedIsToldAndLost(t *testing.T) {
	ctx, n := agentOn(t, plain)
	update(ctx, t, n, config("a", "a", ""), transaction.Done)
	released(ctx, t, n)
	if got := deploymentLines(ctx, t, n); got[0] != "booted, boots next, a" {
		t.Errorf("the deployments are %q", got)
	}

	// What boots next is what is staged, unless it is locked.
	output(ctx, t, n, "rpm-ostree", "kargs", "--append=theirs", "--lock-finalization") //nolint:misspell // rpm-ostree's own word
	if got := deploymentLines(ctx, t, n); got[0] != "staged, locked" || got[1] != "booted, boots next, a" {
		t.Errorf("the deployments are %q", got)
	}
	output(ctx, t, n, "rpm-ostree", "install", "sysstat")
	if got := deploymentLines(ctx, t, n); got[0] != "staged, boots next" || got[1] != "booted, a" {
		t.Errorf("the deployments are %q", got)
	}
	s, err := n.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	staged := s.Deployments[0].ID
	out, _, _, err := n.Agent(ctx, "status", "-o", "json")
	if err != nil || strings.Count(out, `"staged": true`) != 1 || strings.Contains(out, `"locked": true`) ||
		strings.Count(out, `"locked": false`) != len(s.Deployments) {
		t.Errorf("status: %v %s", err, out)
	}

	// An update that boots loses it, and says so before and after.
	at, err := n.Document("b.json", config("b", "b", `"kernelArguments":["update=b"],`))
	if err != nil {
		t.Fatal(err)
	}
	const title = "Staged by others, and removed by this update:"
	lost := staged + ": os/test with sysstat, version v1, and other kernel arguments"
	text, _, exit, err := n.Agent(ctx, "plan", "--desired", at)
	if err != nil || !strings.Contains(text, title+"\n  "+lost+"\n") {
		t.Errorf("plan: %d %v %s", exit, err, text)
	}
	boots := n.Boots()
	// Beside another manager of the OS it is kept.
	_, text, exit, err = n.Agent(ctx, "apply", "--config", at, "--keep-staged")
	if err != nil || exit != 5 || !strings.Contains(text, "others have staged "+lost+": let them boot it") {
		t.Errorf("apply --keep-staged: %d %v %s", exit, err, text)
	}
	if got := deploymentLines(ctx, t, n); got[0] != "staged, boots next" || n.Boots() != boots {
		t.Errorf("after the refusal the deployments are %q", got)
	}
	res, _, err := n.Apply(ctx, config("b", "b", `"kernelArguments":["update=b"],`))
	if err != nil || !slices.Equal(res.Plan.Lost, []string{lost}) {
		t.Fatalf("%v %+v", err, res)
	}
	if err := n.WaitBoot(ctx, boots+1); err != nil {
		t.Fatal(err)
	}
	if _, err := n.WaitState(ctx, transaction.Done); err != nil {
		t.Fatal(err)
	}
	released(ctx, t, n)
	if got := deploymentLines(ctx, t, n); got[0] != "booted, boots next, b" {
		t.Errorf("the deployments are %q", got)
	}
}

func TestOSThatAnAdministratorHasBootedIsOneAnswerOfStatusAndVerify(t *testing.T) {
	ctx, n := agentOn(t, plain)
	a := config("a", "a", "")
	update(ctx, t, n, a, transaction.Done)
	released(ctx, t, n)
	if exit, text := verified(ctx, t, n); exit != 0 {
		t.Fatalf("verify: %d %s", exit, text)
	}
	committed := n.BootedDeployment()
	output(ctx, t, n, "rpm-ostree", "install", "sysstat")
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := n.WaitState(ctx, transaction.Degraded)
	if err != nil || !strings.Contains(s.Reason, "something else changed the OS") {
		t.Fatalf("%v %+v", err, s)
	}
	exit, text := verified(ctx, t, n)
	if exit != 4 || !strings.Contains(text, "deployment: another is "+n.BootedDeployment()) || !strings.Contains(text, committed) {
		t.Errorf("verify: %d %s", exit, text)
	}

	// The same configuration once more takes the host as it is.
	if res, _, err := n.Apply(ctx, a); err != nil || res.Status.State != transaction.Done {
		t.Fatalf("%v %+v", err, res)
	}
	if exit, text := verified(ctx, t, n); exit != 0 {
		t.Errorf("verify: %d %s", exit, text)
	}
	if got := output(ctx, t, n, "cat", "/usr/bin/sysstat"); got != "sysstat 1.0" {
		t.Errorf("it has %q", got)
	}
}

// Files alone make no deployment on the staged road: the boot that applies them must not be that of somebody else's.
func TestFilesAreNotAppliedToWhatAnAdministratorHasStaged(t *testing.T) {
	ctx, n := ofOld(t, plain)
	first := n.BootedDeployment()
	output(ctx, t, n, "rpm-ostree", "install", "sysstat")
	s := update(ctx, t, n, config("a", "a", ""), transaction.Done)
	if n.BootedDeployment() != first || s.Config.Committed != "a" || output(ctx, t, n, "cat", "/etc/update.conf") != "a" {
		t.Errorf("%s has booted: %+v", n.BootedDeployment(), s)
	}
}
