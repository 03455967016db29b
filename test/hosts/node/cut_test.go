// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// shell runs a script on the host.
func shell(ctx context.Context, t *testing.T, n *Node, script string) (string, int) {
	t.Helper()
	out, errout, exit, err := n.Exec(ctx, nil, "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	return string(out) + string(errout), exit
}

func put(t *testing.T, n *Node, name, text string, perm os.FileMode) {
	t.Helper()
	at := n.HostPath(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), perm)); err != nil {
		t.Fatal(err)
	}
}

func deployments(ctx context.Context, t *testing.T, n *Node) []string {
	t.Helper()
	s, err := n.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range s.Deployments {
		out = append(out, d.ID)
	}
	return out
}

func waitPhase(ctx context.Context, t *testing.T, n *Node, phase transaction.Phase) {
	t.Helper()
	for {
		s, err := n.Status(ctx)
		if err == nil && s.Phase == string(phase) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %+v, %v", phase, s, err)
		case <-time.After(poll):
		}
	}
}

func TestPathInTheOSImageIsRefused(t *testing.T) {
	ctx, n := start(t)
	doc := mc("u", `{"kernelArguments":["u=1"],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/usr/lib/new.conf","contents":{"source":"data:,x"}}]}}}`)
	const says = "storage.files: /usr/lib/new.conf is refused: /usr/lib/new.conf is part of the OS image"
	if _, exit, err := n.Apply(ctx, doc); exit != 3 || !strings.Contains(err.Error(), says) {
		t.Errorf("exit %d, %v", exit, err)
	}
	at, err := n.Document("u.json", doc)
	if err != nil {
		t.Fatal(err)
	}
	if _, text, exit, err := n.Agent(ctx, "plan", "--desired", at); err != nil || exit != 3 || !strings.Contains(text, says) {
		t.Errorf("plan: exit %d, %v, %s", exit, err, text)
	}
	if got := deployments(ctx, t, n); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

func TestSwitchThatIsCutLeavesNoDeployment(t *testing.T) {
	ctx, n := startFaulty(t)
	apply(ctx, t, n, mc("a", configA))
	settled(ctx, t, n, "a")
	before := deployments(ctx, t, n)
	at, err := n.Document("b.json", mc("b", configB))
	if err != nil {
		t.Fatal(err)
	}
	shell(ctx, t, n, "NODEREFIT_FAULT='apply trace /var/tmp/points' "+agent+" apply --no-reboot --config "+at+" && "+agent+" rollback")
	points := strings.Split(strings.TrimSpace(read(t, n, "/var/tmp/points")), "\n")
	for _, point := range []string{"etc /etc/chrony.conf", "etc written", "pending"} {
		i := slices.Index(points, point)
		if i < 0 {
			t.Fatalf("no point %q in %v", point, points)
		}
		for _, mode := range []string{"kill", "error"} {
			shell(ctx, t, n, "NODEREFIT_FAULT='apply "+mode+" "+strconv.Itoa(i+1)+"' "+agent+" apply --no-reboot --config "+at)
			if _, _, exit, err := n.Agent(ctx, "recover"); exit != 0 || err != nil {
				t.Errorf("%s at %s: recover: %d %v", mode, point, exit, err)
			}
			if got := deployments(ctx, t, n); !slices.Equal(got, before) {
				t.Errorf("%s at %s: %v, before %v", mode, point, got, before)
			}
			verified(ctx, t, n)
		}
	}
}

func TestDeploymentOfSomebodyElseIsStartedFrom(t *testing.T) {
	ctx, n := onA(t)
	out, exit := shell(ctx, t, n, "ostree admin deploy --os=testos --karg-append=admin=1 "+lab.RefV1)
	if exit != 0 {
		t.Fatal(out)
	}
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if s, err := n.WaitState(ctx, transaction.Degraded); err != nil || !strings.Contains(s.Reason, "something else changed the OS") {
		t.Fatalf("%+v %v", s, err)
	}
	apply(ctx, t, n, mc("a", configA)) // nothing to do but to say so
	if _, _, exit, err := n.Agent(ctx, "recover"); exit != 0 || err != nil {
		t.Errorf("recover: %d %v", exit, err)
	}
	settled(ctx, t, n, "a")
	apply(ctx, t, n, mc("b", configB))
	settled(ctx, t, n, "b")
	if k := " " + n.Kargs() + " "; !strings.Contains(k, " admin=1 ") || !strings.Contains(k, " b=2 ") {
		t.Errorf("command line %s", k)
	}
}

// Whoever wants to see why it failed boots it once more, and pins what is known to be good.
func TestFailedDeploymentThatSomebodyBootsIsStartedFromAndPinnedOnesStay(t *testing.T) {
	long(t)
	ctx, n := onA(t)
	old := n.BootedDeployment()
	apply(ctx, t, n, mc("bad", configBad))
	if s, err := n.WaitState(ctx, transaction.RolledBack); err != nil {
		t.Fatalf("%+v %v", s, err)
	}
	failed := slices.DeleteFunc(deployments(ctx, t, n), func(id string) bool { return id == old })[0]
	if out, exit := shell(ctx, t, n, "ostree admin pin booted"); exit != 0 {
		t.Fatal(out)
	}
	choose(ctx, t, n, failed)
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if s, err := n.WaitState(ctx, transaction.Degraded); err != nil || n.BootedDeployment() != failed {
		t.Fatalf("%s has booted: %+v %v", n.BootedDeployment(), s, err)
	}
	for _, next := range []struct{ name, spec string }{{"a", configA}, {"b", configB}, {"a", configA}} {
		apply(ctx, t, n, mc(next.name, next.spec))
		settled(ctx, t, n, next.name)
	}
	now := deployments(ctx, t, n)
	if slices.Contains(now, failed) || !slices.Contains(now, old) {
		t.Errorf("there are %v; %s had failed, and %s is pinned", now, failed, old)
	}
}

func TestWayBackOutlivesAnUpdateThatCameToNothing(t *testing.T) {
	ctx, n := startFaulty(t)
	apply(ctx, t, n, mc("a", configA))
	settled(ctx, t, n, "a")
	old := n.BootedDeployment()
	apply(ctx, t, n, mc("b", configB))
	settled(ctx, t, n, "b")
	at, err := n.Document("c.json", mc("c", `{"kernelArguments":["c=1"],"config":{"ignition":{"version":"3.2.0"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	shell(ctx, t, n, "NODEREFIT_FAULT='apply kill 2' "+agent+" apply --config "+at+"; "+agent+" recover")
	choose(ctx, t, n, old)
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := n.WaitState(ctx, transaction.RolledBack, transaction.Degraded)
	if err != nil || s.State != transaction.RolledBack || s.Config.Committed != "a" {
		t.Fatalf("%+v %v", s, err)
	}
	verified(ctx, t, n)
}

func TestWayBackOutlivesAnUpdateThatWasRolledBack(t *testing.T) {
	ctx, n := onA(t)
	old := n.BootedDeployment()
	apply(ctx, t, n, mc("b", configB))
	settled(ctx, t, n, "b")
	apply(ctx, t, n, mc("bad", configBad))
	if s, err := n.WaitState(ctx, transaction.RolledBack); err != nil || s.Config.Committed != "b" || s.Config.Previous != "a" {
		t.Fatalf("%+v %v", s, err)
	}
	choose(ctx, t, n, old)
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := n.WaitState(ctx, transaction.RolledBack, transaction.Degraded)
	if err != nil || s.State != transaction.RolledBack || s.Config.Committed != "a" || n.BootedDeployment() != old {
		t.Fatalf("%+v %v", s, err)
	}
	verified(ctx, t, n)
}

func TestWayBackThatIsClosedIsNotClaimed(t *testing.T) {
	ctx, n := onA(t)
	old := n.BootedDeployment()
	apply(ctx, t, n, mc("b", configB))
	settled(ctx, t, n, "b")
	second := n.BootedDeployment()
	choose(ctx, t, n, old)
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := n.WaitState(ctx, transaction.RolledBack); err != nil {
		t.Fatal(err)
	}
	choose(ctx, t, n, second)
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if s, err := n.WaitState(ctx, transaction.Degraded); err != nil || !strings.Contains(s.Reason, "files outside the deployments could not be restored") {
		t.Fatalf("%+v %v", s, err)
	}
	apply(ctx, t, n, mc("b", configB))
	settled(ctx, t, n, "b")
}

// undecided is a configuration whose verdict takes long and then is no.
const undecided = `{"kernelArguments":["s=1"],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/greenboot/check/required.d/x.sh","mode":493,"contents":{"source":"data:,%23!/bin/sh%0Asleep%20600%0Aexit%201%0A"}}]}}}`

func TestGoingBackToADeploymentThatIsGoneStaysUsable(t *testing.T) {
	ctx, n := onA(t)
	apply(ctx, t, n, mc("s", undecided))
	waitPhase(ctx, t, n, transaction.PhaseProve)
	for range 2 { // whatever else there is beside the booted one
		shell(ctx, t, n, "ostree admin undeploy 1")
	}
	apply(ctx, t, n, mc("a", configA))
	settled(ctx, t, n, "a")
}

// hesitant is a configuration whose verdict is no, until there is a file.
const hesitant = `{"kernelArguments":["s=1"],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/greenboot/check/required.d/x.sh","mode":493,
  "contents":{"source":"data:,%23!/bin/sh%0Asleep%202%0Atest%20-e%20/run/ok%0A"}}]}}}`

func TestFailedConfigurationThatCannotBeLeftIsQuarantinedAndNotDone(t *testing.T) {
	ctx, n := onA(t)
	doc := mc("s", hesitant)
	apply(ctx, t, n, doc)
	waitPhase(ctx, t, n, transaction.PhaseProve)
	for range 2 {
		shell(ctx, t, n, "ostree admin undeploy 1")
	}
	refused := func(s *host.Status) {
		t.Helper()
		if s.State != transaction.Degraded || s.Config.Committed != "s" || len(s.Quarantined) != 1 {
			t.Fatalf("%+v", s)
		}
	}
	s, err := n.WaitState(ctx, transaction.Degraded, transaction.Done, transaction.RolledBack)
	if err != nil {
		t.Fatal(err)
	}
	refused(s)
	if res, exit, err := n.Apply(ctx, doc); exit != host.ExitUnreconcilable {
		t.Fatalf("exit %d, %v", exit, err)
	} else {
		refused(res.Status)
	}
	if res, exit, err := n.Apply(ctx, doc, "--lift-quarantine"); exit != host.ExitFailed {
		t.Fatalf("exit %d, %v", exit, err)
	} else {
		refused(res.Status)
	}
	shell(ctx, t, n, "touch /run/ok")
	apply(ctx, t, n, doc, "--lift-quarantine")
	settled(ctx, t, n, "s")
}

func TestRecoveryThatIsKilledAtTheFirstBootIsFinished(t *testing.T) {
	ctx, n := startFaulty(t)
	apply(ctx, t, n, mc("a", configA))
	settled(ctx, t, n, "a")
	apply(ctx, t, n, mc("b", configB), "--no-reboot")
	put(t, n, "/var/lib/noderefit-fault", "recover kill 3", 0o600)
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	settled(ctx, t, n, "b")
	if got := read(t, n, "/usr/local/bin/tool"); got != "tool B\n" {
		t.Errorf("tool %q", got)
	}
}

func TestVerdictThatFailsToGoBackTriesAgain(t *testing.T) {
	ctx, n := startFaulty(t)
	apply(ctx, t, n, mc("a", configA))
	settled(ctx, t, n, "a")
	put(t, n, "/var/lib/noderefit-fault", "prove error 2", 0o600)
	apply(ctx, t, n, mc("bad", configBad))
	waitPhase(ctx, t, n, transaction.PhaseUndo)
	if err := os.Remove(n.HostPath("/var/lib/noderefit-fault")); err != nil {
		t.Fatal(err)
	}
	if s, err := n.WaitState(ctx, transaction.RolledBack); err != nil || s.Config.Committed != "a" || len(s.Quarantined) != 1 {
		t.Fatalf("%+v %v", s, err)
	}
}

func TestKillDuringTheVerdictOfALiveChangeDoesNotCommitIt(t *testing.T) {
	ctx, n := start(t)
	p := policy(t, n)
	apply(ctx, t, n, mc("one", liveConfig("1", "ok")), "--policy", p)
	put(t, n, "/etc/greenboot/check/required.d/x.sh",
		"#!/bin/sh\ntouch /run/asked\nuntil test -e /run/cut; do sleep 0.1; done\n! grep -q 2 /etc/crio/crio.conf.d/10-x.conf\n", 0o755)
	at, err := n.Document("two.json", mc("two", liveConfig("2", "ok")))
	if err != nil {
		t.Fatal(err)
	}
	shell(ctx, t, n, agent+" apply --policy "+p+" --config "+at+" & until test -e /run/asked; do sleep 0.05; done; kill -9 $!; touch /run/cut")
	if _, _, exit, err := n.Agent(ctx, "recover"); exit != 1 || err != nil {
		t.Errorf("recover: exit %d, %v", exit, err)
	}
	if s, err := n.Status(ctx); err != nil || s.State != transaction.RolledBack || s.Config.Committed != "one" {
		t.Errorf("%+v %v", s, err)
	}
	verified(ctx, t, n)
}

func TestPlugPulledDuringTheVerdictOfALiveChange(t *testing.T) {
	ctx, n := start(t)
	p := policy(t, n)
	apply(ctx, t, n, mc("one", liveConfig("1", "ok")), "--policy", p)
	put(t, n, "/etc/greenboot/check/required.d/x.sh",
		"#!/bin/sh\ntouch /run/asked\nsleep 1\n! grep -q 2 /etc/crio/crio.conf.d/10-x.conf\n", 0o755)
	at, err := n.Document("two.json", mc("two", liveConfig("2", "ok")))
	if err != nil {
		t.Fatal(err)
	}
	shell(ctx, t, n, agent+" apply --policy "+p+" --config "+at+" >/dev/null 2>&1 & until test -e /run/asked; do sleep 0.05; done")
	if err := n.PowerCut(); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	boots := n.Boots()
	s, err := n.WaitState(ctx, transaction.RolledBack, transaction.Done)
	if err != nil || s.Config.Committed != "one" || len(s.Quarantined) != 1 {
		t.Fatalf("%+v %v", s, err)
	}
	// Everything had started with the change, and starts again without it.
	if err := n.WaitBoot(ctx, boots+1); err != nil {
		t.Fatal(err)
	}
	verified(ctx, t, n)
}

func TestEditsBeforeTheRebootAreTakenAlong(t *testing.T) {
	ctx, n := onA(t)
	res := apply(ctx, t, n, mc("b", configB), "--no-reboot")
	if !slices.ContainsFunc(res.Warnings, func(w string) bool { return strings.Contains(w, "/etc") }) {
		t.Errorf("no warning in %v", res.Warnings)
	}
	put(t, n, "/etc/mine", "mine\n", 0o644)
	apply(ctx, t, n, mc("b", configB))
	settled(ctx, t, n, "b")
	if got := read(t, n, "/etc/mine"); got != "mine\n" {
		t.Errorf("%q", got)
	}
}

func TestLinkBecomesADirectoryOverABoot(t *testing.T) {
	ctx, n := start(t)
	apply(ctx, t, n, mc("a", `{"config":{"ignition":{"version":"3.2.0"},"storage":{"directories":[{"path":"/var/b"}],
 "links":[{"path":"/etc/a","target":"/var/b"}]}}}`))
	settled(ctx, t, n, "a")
	apply(ctx, t, n, mc("b", `{"kernelArguments":["z=1"],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/a/f","contents":{"source":"data:,1"}}]}}}`))
	settled(ctx, t, n, "b")
}

func TestWhatBeganWithoutOSTreeGoesOnWithoutIt(t *testing.T) {
	ctx, n := startFaulty(t)
	three := func(v string) []byte {
		return mc("v"+v, strings.ReplaceAll(`{"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/x1","contents":{"source":"data:,V"}},{"path":"/etc/x2","contents":{"source":"data:,V"}},
 {"path":"/etc/x3","contents":{"source":"data:,V"}}]}}}`, "V", v))
	}
	apply(ctx, t, n, three("1"), "--os", "none")
	if s, err := n.WaitState(ctx, transaction.Done); err != nil || s.OS != host.OSNone || s.Config.Committed != "v1" {
		t.Fatalf("%+v %v", s, err)
	}
	at, err := n.Document("two.json", three("2"))
	if err != nil {
		t.Fatal(err)
	}
	shell(ctx, t, n, "NODEREFIT_FAULT='apply kill committed' "+agent+" apply --os none --no-reboot --config "+at)
	if err := n.PowerCut(); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if s, err := n.WaitState(ctx, transaction.Done); err != nil || s.OS != host.OSNone || s.Config.Committed != "v2" {
		t.Fatalf("%+v %v", s, err)
	}
	verified(ctx, t, n)
}
