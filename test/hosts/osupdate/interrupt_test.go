// SPDX-License-Identifier: Apache-2.0

package osupdate

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/rpmostree"
	"github.com/noderefit/noderefit/test/standin/rpmostree/fault"
	"github.com/noderefit/noderefit/transaction"
)

// The units of an update: the agent's own run, that of rpm-ostree's client, and its daemon.
const (
	operationUnit = "operation.service"
	clientUnit    = "noderefit-rpm-ostree.service"
	daemonUnit    = "rpm-ostreed.service"
)

// side is a configuration, and how one sees that the host has all of it.
type side struct {
	name, version string
	doc           []byte
	layered       bool
	// marks are files that say the side's name, in every boot.
	marks []string
}

var (
	sideA = side{name: "a", version: "v1", doc: config("a", "a",
		`"osImageURL":"`+rpmostree.Remote+`:`+lab.RefV1+`","kernelArguments":["update=a"],`)}
	sideB = side{name: "b", version: "v4", layered: true, doc: config("b", "b",
		`"osImageURL":"`+rpmostree.Remote+`:`+rpmostree.RefV4+`","kernelType":"realtime",
 "extensions":["usbguard"],"kernelArguments":["update=b"],`)}
)

// victim is a host whose updates are interrupted. Its agent has fault points.
type victim struct {
	*node.Node

	t     *testing.T
	asked int // the transactions that have been counted
}

func newVictim(t *testing.T) (context.Context, *victim) {
	t.Helper()
	_, n := agentOn(t, faulty)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	t.Cleanup(cancel)
	v := &victim{Node: n, t: t}
	v.moveTo(ctx, sideA)
	v.transactions(ctx)
	return ctx, v
}

// moveTo applies a configuration until it is done, with the reboots that it says it needs.
func (v *victim) moveTo(ctx context.Context, to side) {
	v.t.Helper()
	boots := v.Boots()
	res, exit, err := v.Apply(ctx, to.doc)
	if err != nil && exit != -1 { // -1: the reboot was quicker than its answer
		v.t.Fatalf("applying %s: %v", to.name, err)
	}
	if exit == -1 || res.Reboot != "none" {
		if err := v.WaitBoot(ctx, boots+1); err != nil {
			v.t.Fatal(err)
		}
	}
	v.settled(ctx, to)
}

// settled waits until the host is done, and holds it to having all of that side and nothing else.
func (v *victim) settled(ctx context.Context, want side) {
	v.t.Helper()
	defer func() { counted.Ended(!v.t.Failed()) }() // a test ends with its first failure
	s, err := v.WaitState(ctx, transaction.Done, transaction.Degraded, transaction.RolledBack, transaction.Unreconcilable)
	if err != nil {
		v.t.Fatal(err)
	}
	if s.State != transaction.Done || s.Config.Committed != want.name || s.Reason != "" {
		v.t.Fatalf("it is %s on %s instead of %s: %s", s.State, s.Config.Committed, want.name, s.Reason)
	}
	for path, text := range map[string]string{"/usr/lib/testos/version": want.version, "/etc/update.conf": want.name} {
		if got := output(ctx, v.t, v.Node, "cat", path); got != text {
			v.t.Errorf("%s is %q on %s", path, got, want.name)
		}
	}
	for _, path := range want.marks {
		v.until(ctx, path+" is "+want.name, func() bool {
			got, err := v.Output(ctx, "cat", path)
			return err == nil && strings.TrimSpace(got) == want.name
		})
	}
	if arguments := updateArguments(v.Node); !slices.Equal(arguments, []string{"update=" + want.name}) {
		v.t.Errorf("it runs with %q on %s", arguments, want.name)
	}
	booted := output(ctx, v.t, v.Node, "rpm-ostree", "status", "--json", "--booted")
	for _, name := range []string{`"usbguard"`, `"kernel-rt-core"`} {
		if strings.Contains(booted, name) != want.layered {
			v.t.Errorf("%s on %s: %s", name, want.name, booted)
		}
	}
	if out, text, exit, err := v.Agent(ctx, "verify"); err != nil || exit != 0 {
		v.t.Errorf("verify on %s: %d %v %s%s", want.name, exit, err, out, text)
	}
	v.nothingHeld(ctx)
}

// held lists what an update holds while it is under way.
const held = `
ostree refs --list noderefit
ls -d /var/lib/machine-config-daemon/staged.json /run/*.composing /run/noderefit-origin-* \
  /run/ostree/staged-deployment* 2>/dev/null
ls /var/lib/machine-config-daemon/transactions | tail -n +2
ostree admin status | grep -i -e staged -e pending
rpm-ostree status --json | grep '"transaction"' | grep -v null
systemctl list-units --plain --no-legend --state=active,activating,deactivating,failed \
  'noderefit-*' 'machine-config-daemon-*' operation.service
flock --nonblock /run/machine-config-daemon/lock true || echo the lock is held
systemctl --failed --plain --no-legend
true`

// nothingHeld waits until the agent has cleaned up after a verdict, and holds nothing: at most the journal of the
// committed configuration is there.
func (v *victim) nothingHeld(ctx context.Context) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		left := output(ctx, v.t, v.Node, "sh", "-c", held)
		if left == "" {
			return
		}
		select {
		case <-ctx.Done():
			v.t.Fatalf("still held: %s", left)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// places lists what is on the disk for deployments, and their journals.
func (v *victim) places(ctx context.Context) []string {
	v.t.Helper()
	return strings.Split(output(ctx, v.t, v.Node, "sh", "-c", `
ls -d /ostree/deploy/`+lab.OS+`/deploy/* /boot/ostree/* /boot/loader/entries/* /var/lib/machine-config-daemon/*/*
ostree admin status`), "\n")
}

// transactions are the commands that rpm-ostree was given since the last call.
func (v *victim) transactions(ctx context.Context) []string {
	v.t.Helper()
	text := output(ctx, v.t, v.Node, "sh", "-c",
		"journalctl --sync; journalctl --output=cat --no-pager --unit="+clientUnit)
	var all []string
	for line := range strings.Lines(text) {
		if command, is := strings.CutPrefix(line, "Started "+clientUnit+" - "); is {
			all = append(all, strings.TrimSpace(command))
		}
	}
	fresh := all[v.asked:]
	v.asked = len(all)
	return fresh
}

// interruption is one way in which an update does not come to its end.
type interruption struct {
	name  string
	verb  string     // apply, if it is empty
	step  fault.Step // at which rpm-ostree hangs when it happens
	point string     // at which the agent does
	// happens is what interrupts it; the host is on when it returns.
	happens func(ctx context.Context, v *victim)
	// boots: it was decided, and the host is on the new side then.
	boots bool
	// further is how many transactions the same update still takes.
	further int
}

// where the fault points of the agent say that one was reached.
const hitFile = "/var/lib/noderefit-fault.hit"

// interrupt begins an update, and lets it be interrupted. What still hangs then does so until it is mended.
func (v *victim) interrupt(ctx context.Context, to side, i interruption) {
	v.t.Helper()
	verb := i.verb
	if verb == "" {
		verb = "apply"
	}
	if i.step != "" {
		if err := rpmostree.Break(v.Host, fault.Fault{Step: i.step, Action: fault.Hang}); err != nil {
			v.t.Fatal(err)
		}
	}
	at, err := v.Document("interrupted.json", to.doc)
	if err != nil {
		v.t.Fatal(err)
	}
	output(ctx, v.t, v.Node, "systemd-run", "--quiet", "--collect", "--unit="+operationUnit,
		"--setenv=NODEREFIT_FAULT="+verb+" hang "+i.point, "machine-config-daemon", verb, "--config", at)
	v.until(ctx, i.name, func() bool {
		if i.step != "" {
			return v.at(ctx, i.step)
		}
		point, err := os.ReadFile(v.HostPath(hitFile))
		return err == nil && strings.TrimSpace(string(point)) == i.point
	})
	i.happens(ctx, v)
}

// at says whether a transaction hangs at a step. Only the second of the two that sideB takes layers anything.
func (v *victim) at(ctx context.Context, step fault.Step) bool {
	v.t.Helper()
	command := "Description=rpm-ostree rebase"
	if step == fault.Compose {
		command = "Description=rpm-ostree override"
	}
	unit := output(ctx, v.t, v.Node, "systemctl", "show", "--property=Description", clientUnit)
	return strings.HasPrefix(unit, command) && v.busy(ctx)
}

// busy says whether a transaction is active.
func (v *victim) busy(ctx context.Context) bool {
	v.t.Helper()
	return !strings.Contains(output(ctx, v.t, v.Node, "rpm-ostree", "status", "--json"), `"transaction" : null`)
}

// until waits for what nothing announces.
func (v *victim) until(ctx context.Context, what string, condition func() bool) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for !condition() {
		select {
		case <-ctx.Done():
			text, _ := v.Journal(context.WithoutCancel(ctx))
			v.t.Fatalf("%s: %v\n%s", what, ctx.Err(), text[max(0, len(text)-5000):])
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// mend lifts what makes the update hang, on a host that is on or off.
func (v *victim) mend() {
	v.t.Helper()
	var errs []error
	for _, step := range []fault.Step{fault.Begin, fault.Pull, fault.Compose} {
		errs = append(errs, rpmostree.Mend(v.Host, step))
	}
	if err := os.Remove(v.HostPath(hitFile)); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		v.t.Fatal(err)
	}
}

// killed kills units one after the other, all of their processes at once.
func killed(units ...string) func(context.Context, *victim) {
	return func(ctx context.Context, v *victim) {
		v.t.Helper()
		for _, unit := range units {
			output(ctx, v.t, v.Node, "systemctl", "kill", "--signal=KILL", unit)
			v.ended(ctx, unit)
		}
	}
}

func (v *victim) ended(ctx context.Context, unit string) {
	v.t.Helper()
	v.until(ctx, unit+" ends", func() bool {
		state := output(ctx, v.t, v.Node, "systemctl", "show", "--property=ActiveState", unit)
		return state == "ActiveState=inactive" || state == "ActiveState=failed"
	})
}

// goesOn lets rpm-ostree finish the transaction that it is at, with or without its client.
func goesOn(ctx context.Context, v *victim) {
	v.t.Helper()
	v.mend()
	v.ended(ctx, clientUnit)
	v.until(ctx, "the transaction ends", func() bool { return !v.busy(ctx) })
}

// cut pulls the plug, and switches the host on again.
func cut(ctx context.Context, v *victim) {
	v.t.Helper()
	counted.Cuts.Add(1)
	if err := v.PowerCut(); err != nil {
		v.t.Fatal(err)
	}
	v.mend()
	if err := v.Start(ctx); err != nil {
		v.t.Fatal(err)
	}
}

// reboot is an orderly one, at which what is staged would become what boots.
func reboot(ctx context.Context, v *victim) {
	v.t.Helper()
	if err := v.Reboot(ctx); err != nil {
		v.t.Fatal(err)
	}
}

// both is one thing after the other.
func both(things ...func(context.Context, *victim)) func(context.Context, *victim) {
	return func(ctx context.Context, v *victim) {
		v.t.Helper()
		for _, thing := range things {
			thing(ctx, v)
		}
	}
}

// whileComposing are the points of an update from sideA to sideB at which its OS is not on the disk.
var whileComposing = []interruption{
	{name: "rebasing, the client is killed", step: fault.Pull,
		happens: both(killed(clientUnit, operationUnit), goesOn), further: 1},
	{name: "rebasing, the agent is killed", step: fault.Pull,
		happens: killed(operationUnit), further: 1},
	{name: "rebasing, rpm-ostreed is killed too", step: fault.Pull,
		happens: killed(operationUnit, daemonUnit), further: 2},
	{name: "rebasing, the power is cut", step: fault.Pull,
		happens: cut, further: 2},
	{name: "between the transactions, the agent is killed", step: fault.Pull,
		happens: both(killed(operationUnit), goesOn), further: 1},
	{name: "between the transactions, the power is cut", step: fault.Pull,
		happens: both(killed(operationUnit), goesOn, cut), further: 2},
	{name: "layering, the agent is killed", step: fault.Compose,
		happens: killed(operationUnit)},
	{name: "staging, the agent is killed", verb: "stage", step: fault.Pull,
		happens: both(killed(operationUnit), goesOn), further: 1},
	{name: "staging, the agent is killed and the host boots", verb: "stage", step: fault.Compose,
		happens: both(killed(operationUnit), goesOn, reboot), further: 2},
}

// whenComposed are those of any update at which it is.
var whenComposed = []interruption{
	{name: "composed, the agent is killed", point: "recorded", happens: killed(operationUnit)},
	{name: "composed, the power is cut", point: "materialise", happens: cut},
	{name: "materialised, the agent is killed", point: "pending", happens: killed(operationUnit)},
	{name: "materialised, the power is cut", point: "materialised", happens: cut},
	{name: "committed, the agent is killed", point: "committed", happens: killed(operationUnit)},
	{name: "committed, the power is cut", point: "committed", happens: cut, boots: true},
}

// every is all of a list, or with -short every second of it, from the first or the second on. Two tests that begin
// differently have all of it between them.
func every[T any](list []T, from int) []T {
	if !testing.Short() {
		return list
	}
	var out []T
	for i := from; i < len(list); i += 2 {
		out = append(out, list[i])
	}
	return out
}

func TestInterruptedUpdateThatIsRevertedLeavesNothing(t *testing.T) {
	ctx, v := newVictim(t)
	before, booted, deployments := v.places(ctx), v.BootedDeployment(), v.deployments(ctx)
	for _, i := range every(slices.Concat(whileComposing, whenComposed), 0) {
		v.interrupt(ctx, sideB, i)
		if i.boots {
			v.settled(ctx, sideB)
		} else if v.BootedDeployment() != booted {
			t.Errorf("%s: %s has booted", i.name, v.BootedDeployment())
		}
		v.moveTo(ctx, sideA)
		v.mend()
		if now := v.deployments(ctx); now > deployments {
			t.Errorf("%s: %d deployments, there were %d", i.name, now, deployments)
		}
		if d := cmp.Diff(before, v.places(ctx)); d != "" && !i.boots {
			t.Errorf("%s, and reverted:\n%s", i.name, d)
		}
		if t.Failed() {
			t.Fatalf("there is nothing to go on from after %s", i.name)
		}
	}
}

func TestInterruptedUpdateThatIsRepeatedEndsAndPullsNothingTwice(t *testing.T) {
	ctx, v := newVictim(t)
	deployments := v.deployments(ctx)
	repeat := func(i interruption, from, to side) {
		t.Helper()
		booted := v.BootedDeployment()
		v.interrupt(ctx, to, i)
		if i.boots {
			v.settled(ctx, to)
		} else if v.BootedDeployment() != booted {
			t.Errorf("%s: %s has booted", i.name, v.BootedDeployment())
		}
		v.mend()
		v.transactions(ctx)
		v.moveTo(ctx, to)
		if asked := v.transactions(ctx); len(asked) != i.further {
			t.Errorf("%s: from %s to %s it took %d more transactions instead of %d: %q",
				i.name, from.name, to.name, len(asked), i.further, asked)
		}
		if now := v.deployments(ctx); now > deployments {
			t.Errorf("%s: %d deployments, there were %d", i.name, now, deployments)
		}
		if t.Failed() {
			t.Fatalf("there is nothing to go on from after %s", i.name)
		}
	}
	// Every update ends with a boot, so the way back is one more to be interrupted.
	back := whenComposed
	for _, i := range every(whileComposing, 1) {
		repeat(i, sideA, sideB)
		if len(back) == 0 {
			v.moveTo(ctx, sideA)
			continue
		}
		repeat(back[0], sideB, sideA)
		back = back[1:]
	}
}

// TestRevertThatIsCutShortIsFinishedByTheNext pulls the plug while what was composed is being let go of.
func TestRevertThatIsCutShortIsFinishedByTheNext(t *testing.T) {
	ctx, v := newVictim(t)
	before := v.places(ctx)
	v.interrupt(ctx, sideB, whenComposed[0])
	v.mend()
	// Somebody else's transaction, for which a revert waits when its refs are gone already.
	if err := rpmostree.Break(v.Host, fault.Fault{Step: fault.Begin, Action: fault.Hang}); err != nil {
		t.Fatal(err)
	}
	output(ctx, t, v.Node, "systemd-run", "--quiet", "--collect", "rpm-ostree", "install", "sysstat")
	v.until(ctx, "somebody else is at work", func() bool { return v.busy(ctx) })
	at, err := v.Document("reverted.json", sideA.doc)
	if err != nil {
		t.Fatal(err)
	}
	output(ctx, t, v.Node, "systemd-run", "--quiet", "--collect", "--unit="+operationUnit,
		"machine-config-daemon", "apply", "--config", at)
	v.until(ctx, "the refs are gone", func() bool {
		return output(ctx, t, v.Node, "ostree", "refs", "--list", "noderefit") == ""
	})
	cut(ctx, v)
	v.moveTo(ctx, sideA)
	if d := cmp.Diff(before, v.places(ctx)); d != "" {
		t.Errorf("reverted twice:\n%s", d)
	}
}

func (v *victim) deployments(ctx context.Context) int {
	v.t.Helper()
	s, err := v.Status(ctx)
	if err != nil {
		v.t.Fatal(err)
	}
	return len(s.Deployments)
}
