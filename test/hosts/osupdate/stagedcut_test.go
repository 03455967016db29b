// SPDX-License-Identifier: Apache-2.0

package osupdate

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/rpmostree"
	"github.com/noderefit/noderefit/test/standin/rpmostree/fault"
	"github.com/noderefit/noderefit/transaction"
)

// What the sides of the staged road have besides: a shared file, one that early boot reads, and a service. Early boot and
// the service say in each boot which side's they were.
const (
	sharedFile = "/var/lib/update.state"
	earlyFile  = "/etc/tmpfiles.d/update.conf"
	earlyMark  = "/run/update.early"
	unitMark   = "/run/update.unit"
)

// fullConfig is a MachineConfig with all of that, and with services that fail.
func fullConfig(t *testing.T, name, more string, failing ...string) []byte {
	t.Helper()
	file := func(path, text string) map[string]any {
		return map[string]any{"path": path, "overwrite": true, "contents": map[string]any{"source": "data:," + url.PathEscape(text)}}
	}
	spec := map[string]any{}
	if err := json.Unmarshal([]byte("{"+more+"}"), &spec); err != nil {
		t.Fatal(err)
	}
	units := []any{map[string]any{"name": "update.service", "enabled": true,
		"contents": "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh -c 'echo " + name + " >" + unitMark +
			"'\n[Install]\nWantedBy=multi-user.target\n"}}
	for _, unit := range failing {
		units = append(units, map[string]any{"name": unit, "enabled": true,
			"contents": "[Service]\nType=oneshot\nExecStart=/bin/false\n[Install]\nWantedBy=multi-user.target\n"})
	}
	spec["config"] = map[string]any{
		"ignition": map[string]any{"version": "3.2.0"},
		"storage": map[string]any{"files": []any{file("/etc/update.conf", name), file(sharedFile, name),
			file(earlyFile, "f+ "+earlyMark+" 0644 root root - "+name+"\n")}},
		"systemd": map[string]any{"units": units},
	}
	doc, err := json.Marshal(map[string]any{"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
		"metadata": map[string]any{"name": name}, "spec": spec})
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// What the configurations say of the OS.
const (
	osOfA = `"osImageURL":"` + rpmostree.Remote + `:` + lab.RefV1 + `","kernelArguments":["update=a"]`
	osOfB = `"osImageURL":"` + rpmostree.Remote + `:` + rpmostree.RefV4 + `","kernelType":"realtime",
 "extensions":["usbguard"],"kernelArguments":["update=b"]`
)

// sides are those of an update of everything.
func sides(t *testing.T) (a, b side) {
	t.Helper()
	marks := []string{sharedFile, earlyMark, unitMark}
	return side{name: "a", version: "v1", marks: marks, doc: fullConfig(t, "a", osOfA)},
		side{name: "b", version: "v4", layered: true, marks: marks, doc: fullConfig(t, "b", osOfB)}
}

// faultFile asks for a fault of a process that no environment can be given to.
const faultFile = "/var/lib/noderefit-fault"

// cutAt applies a configuration and pulls the plug when it hangs at a point of a later process, which it asks for.
func (v *victim) cutAt(ctx context.Context, to side, request string) {
	v.t.Helper()
	if err := os.WriteFile(v.HostPath(faultFile), []byte(request), 0o600); err != nil {
		v.t.Fatal(err)
	}
	if _, exit, err := v.Apply(ctx, to.doc, "--lift-quarantine"); err != nil && exit != -1 {
		v.t.Fatalf("%s: applying %s: %v", request, to.name, err)
	}
	v.pull(ctx, request)
}

// pull waits until a process hangs where it was asked to, and pulls the plug.
func (v *victim) pull(ctx context.Context, request string) {
	v.t.Helper()
	v.until(ctx, request, func() bool {
		_, err := os.Stat(v.HostPath(hitFile))
		return err == nil
	})
	counted.Cuts.Add(1)
	if err := v.PowerCut(); err != nil {
		v.t.Fatal(err)
	}
	if err := os.Remove(v.HostPath(faultFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.t.Fatal(err)
	}
	v.mend()
	if err := v.Start(ctx); err != nil {
		v.t.Fatal(err)
	}
}

// isOn waits until the host says by itself that it is done with a configuration, and holds it to its files.
func (v *victim) isOn(ctx context.Context, what string, want side, states ...transaction.State) {
	v.t.Helper()
	s, err := v.WaitState(ctx, states...)
	if err != nil {
		v.t.Fatalf("%s: %v", what, err)
	}
	if s.Config.Committed != want.name {
		v.t.Fatalf("%s: it is on %s instead of %s: %s", what, s.Config.Committed, want.name, s.Reason)
	}
	for _, path := range append([]string{"/etc/update.conf"}, want.marks...) {
		// A way back is told early in the boot, before all services have started.
		v.until(ctx, what+": "+path+" is "+want.name, func() bool {
			got, err := v.Output(ctx, "cat", path)
			return err == nil && strings.TrimSpace(got) == want.name
		})
	}
	if got := updateArguments(v.Node); !slices.Equal(got, []string{"update=" + want.name}) {
		v.t.Errorf("%s: it runs with %q", what, got)
	}
	if out, text, exit, err := v.Agent(ctx, "verify"); err != nil || exit != 0 {
		v.t.Errorf("%s: verify: %d %v %s%s", what, exit, err, out, text)
	}
	if v.t.Failed() {
		v.t.Fatalf("there is nothing to go on from after %s", what)
	}
}

func newStagedVictim(t *testing.T) (context.Context, *victim, side, side) {
	t.Helper()
	ctx, n := ofOld(t, faulty)
	a, b := sides(t)
	v := &victim{Node: n, t: t}
	v.moveTo(ctx, a)
	return ctx, v, a, b
}

func TestStagedUpdateThatIsCutBeforeItsDeploymentIsBootableLeavesNothing(t *testing.T) {
	ctx, v, a, b := newStagedVictim(t)
	before, booted, deployments := v.places(ctx), v.BootedDeployment(), v.deployments(ctx)
	reverted := func(what string) {
		t.Helper()
		if v.BootedDeployment() != booted {
			t.Fatalf("%s: %s has booted", what, v.BootedDeployment())
		}
		v.moveTo(ctx, a)
		v.mend()
		if now := v.deployments(ctx); now != deployments {
			t.Errorf("%s: %d deployments, there were %d", what, now, deployments)
		}
		if d := cmp.Diff(before, v.places(ctx)); d != "" {
			t.Errorf("%s, and reverted:\n%s", what, d)
		}
		if t.Failed() {
			t.Fatalf("there is nothing to go on from after %s", what)
		}
	}
	for _, i := range []interruption{
		{name: "rebasing, the power is cut", step: fault.Pull, happens: cut},
		{name: "composed, the agent is killed", point: "recorded", happens: killed(operationUnit)},
		{name: "composed, the power is cut", point: "materialise", happens: cut},
		{name: "staged, the agent is killed", point: "materialised", happens: killed(operationUnit)},
		{name: "staged, the host boots", point: "materialised", happens: both(killed(operationUnit), reboot)},
		{name: "decided, the agent is killed", point: "pending", happens: killed(operationUnit)},
		{name: "decided, the agent is killed and the host boots", point: "pending", happens: both(killed(operationUnit), reboot)},
		{name: "decided, the power is cut", point: "pending", happens: cut},
		{name: "released, the agent is killed", point: "committed", happens: killed(operationUnit)},
		{name: "released, the power is cut", point: "committed", happens: cut},
	} {
		v.interrupt(ctx, b, i)
		reverted(i.name)
	}
	v.cutAt(ctx, b, "shutdown hang before")
	v.isOn(ctx, "going down, before ostree's part", a, transaction.Done)
	s, err := v.Status(ctx)
	if err != nil || !strings.Contains(s.Reason, "went down before ostree had made its deployment bootable") {
		t.Errorf("%v: %+v", err, s)
	}
	reverted("going down, before ostree's part")
}

func TestStagedUpdateThatIsCutOnceItsDeploymentIsBootableEndsOnIt(t *testing.T) {
	ctx, v, a, b := newStagedVictim(t)
	to, from := b, a
	for _, request := range every([]string{
		"shutdown hang after", "recover hang clock", "recover hang etc staged", "recover hang etc recorded",
		"recover hang reread", "recover hang apply " + earlyFile, "recover hang again", "recover hang prove",
		"prove hang settle", "prove hang settled",
	}, 0) {
		v.cutAt(ctx, to, request)
		v.isOn(ctx, request, to, transaction.Done)
		v.moveTo(ctx, to) // which cleans up where the cut was in that
		to, from = from, to
	}
}

func TestStagedConfigurationThatFailsComesBackWhereverItIsCut(t *testing.T) {
	ctx, v, a, b := newStagedVictim(t)
	booted := v.BootedDeployment()
	back := func(what, reason string) {
		t.Helper()
		v.isOn(ctx, what, a, transaction.RolledBack)
		s, err := v.Status(ctx)
		if err != nil || v.BootedDeployment() != booted || len(s.Quarantined) == 0 || !strings.Contains(s.Reason, reason) {
			t.Fatalf("%s: %s has booted, %v: %+v", what, v.BootedDeployment(), err, s)
		}
		v.moveTo(ctx, a)
		v.nothingHeld(ctx)
	}
	lift := func(doc []byte) side { return side{doc: doc} }
	bad := fullConfig(t, "b", osOfB, "bad.service")
	update(ctx, t, v.Node, bad, transaction.RolledBack)
	back("everything", "bad.service")
	filesAlone := fullConfig(t, "c", osOfA, "bad.service")
	for _, request := range []string{"prove hang given up", "recover hang returned", "recover hang rolled back"} {
		v.cutAt(ctx, lift(bad), request)
		back(request, "bad.service")
	}
	for _, request := range every([]string{
		"", "recover hang etc staged", "recover hang etc recorded", "recover hang apply " + earlyFile, "recover hang again",
		"prove hang given up", "prove hang undo " + earlyFile, "prove hang taken back", "recover hang returned",
		"recover hang rolled back",
	}, 1) {
		if request == "" {
			update(ctx, t, v.Node, filesAlone, transaction.RolledBack)
		} else {
			v.cutAt(ctx, lift(filesAlone), request)
		}
		back("files alone: "+request, "bad.service")
	}
	v.moveTo(ctx, b)
}

func TestMindIsChangedBeforeAStagedUpdateBoots(t *testing.T) {
	ctx, v, a, b := newStagedVictim(t)
	before, boots := v.places(ctx), v.Boots()
	c := side{name: "c", version: "v1", marks: a.marks, doc: fullConfig(t, "c", osOfA)}
	d := side{name: "d", version: "v1", doc: fullConfig(t, "d", strings.ReplaceAll(osOfA, "update=a", "update=d"))}
	waits := func(to side) {
		t.Helper()
		res, _, err := v.Apply(ctx, to.doc, "--no-reboot")
		if err != nil || res.Reboot != host.RebootNeeded || res.Status.Phase != string(transaction.PhaseBoot) ||
			len(res.Warnings) > 0 {
			t.Fatalf("%s: %v %+v", to.name, err, res)
		}
	}
	for _, to := range []side{b, c, d} {
		for _, argv := range [][]string{{"apply", "--config", "/var/tmp/a.json"}, {"rollback"}} {
			if _, err := v.Document("a.json", a.doc); err != nil {
				t.Fatal(err)
			}
			waits(to)
			if out, text, exit, err := v.Agent(ctx, argv...); err != nil || exit != 0 {
				t.Fatalf("%s: %q: %d %v %s%s", to.name, argv, exit, err, out, text)
			}
			v.isOn(ctx, "withdrawn", a, transaction.Done)
			v.nothingHeld(ctx)
			if d := cmp.Diff(before, v.places(ctx)); d != "" || v.Boots() != boots {
				t.Fatalf("%s, and %q, after %d boots:\n%s", to.name, argv, v.Boots()-boots, d)
			}
		}
	}
	// One for another, and somebody boots it whose last change is not lost.
	waits(d)
	waits(c)
	waits(b)
	output(ctx, t, v.Node, "sh", "-c", "echo late >/etc/late.conf")
	reboot(ctx, v)
	v.isOn(ctx, "booted by hand", b, transaction.Done)
	v.settled(ctx, b)
	if got := output(ctx, t, v.Node, "cat", "/etc/late.conf"); got != "late" {
		t.Errorf("what was written before the reboot is %q", got)
	}
}

func TestStagedDeploymentThatCannotBeMadeBootableIsTold(t *testing.T) {
	ctx, v, a, b := newStagedVictim(t)
	booted := v.BootedDeployment()
	if res, _, err := v.Apply(ctx, b.doc, "--no-reboot"); err != nil {
		t.Fatalf("%v %+v", err, res)
	}
	// ostree itself says it: the kernel of what was staged is gone by then.
	output(ctx, t, v.Node, "unshare", "--mount", "sh", "-ec", `mount -o remount,rw /sysroot
d=$(ostree admin status | sed -n 's/^  testos \([^ ]*\) (.*/\1/p' | head -n 1)
rm /ostree/deploy/testos/deploy/$d/usr/lib/modules/*/vmlinuz`)
	reboot(ctx, v)
	v.isOn(ctx, "not bootable", a, transaction.Degraded)
	s, err := v.Status(ctx)
	if err != nil || v.BootedDeployment() != booted || !strings.Contains(s.Reason, "Failed to find kernel") {
		t.Errorf("%s has booted, %v: %+v", v.BootedDeployment(), err, s)
	}
	v.moveTo(ctx, a)
}
