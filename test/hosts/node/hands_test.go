// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/programs"
	"github.com/noderefit/noderefit/transaction"
)

// headPath is where the host has the program that stands in for the head's pod.
const headPath = "/var/usrlocal/bin/head"

var headProgram = program("head", func(dir string) (string, error) {
	return programs.Build(context.Background(), dir, "test/hosts/node/head")
})

// answer is what head prints.
type answer struct {
	Status       *host.Status       `json:"status"`
	Plan         *plan.Plan         `json:"plan"`
	Result       *host.Result       `json:"result"`
	Verification *host.Verification `json:"verification"`
	Config       string             `json:"config"`
	Error        string             `json:"error"`
	Kind         string             `json:"kind"`
	Took         []float64          `json:"took"`
	Ran          int                `json:"ran"`
}

// goingDown reports whether the host was on its way down when the head asked: systemd takes no unit any more, is not
// there to be asked, or ends while it is asked.
func (a answer) goingDown() bool {
	return slices.ContainsFunc([]string{"the host is going down", "connecting to the system bus",
		"read unix @->/run/systemd/private: recvmsg: connection reset by peer"},
		func(said string) bool { return strings.Contains(a.Error, said) })
}

// startHead makes a host with the agent, and the head beside it.
func startHead(t *testing.T) (context.Context, *Node) {
	t.Helper()
	ctx, n := start(t)
	giveHead(t, n)
	return ctx, n
}

func giveHead(t *testing.T, n *Node) {
	t.Helper()
	program, err := headProgram()
	if err == nil {
		err = n.put(program, headPath)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// head runs the head in a pod on the host until it has its answer.
func head(ctx context.Context, t *testing.T, n *Node, args ...string) answer {
	t.Helper()
	stdout, stderr, exit, err := n.Exec(ctx, nil, append([]string{headPath, "pod"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return read1(t, stdout, fmt.Sprintf("exit %d: %s", exit, stderr))
}

func read1(t *testing.T, stdout []byte, about string) answer {
	t.Helper()
	var a answer
	if err := json.Unmarshal(stdout, &a); err != nil {
		t.Fatalf("the head printed %q: %v; %s", stdout, err, about)
	}
	return a
}

// running is a head that is still at work.
type running struct {
	cmd *exec.Cmd
	out *strings.Builder
}

func begin(ctx context.Context, t *testing.T, n *Node, args ...string) *running {
	t.Helper()
	cmd, err := n.Command(ctx, append([]string{headPath, "pod"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{cmd: cmd, out: &strings.Builder{}}
	cmd.Stdout, cmd.Stderr = r.out, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// end signals the head, and waits until it has gone.
func (r *running) end(ctx context.Context, t *testing.T, n *Node, signal string) {
	t.Helper()
	shell(ctx, t, n, "pkill -"+signal+" -x head; while pgrep -x head >/dev/null; do sleep 0.01; done")
	_ = r.cmd.Wait()
}

func (r *running) answer(t *testing.T) answer {
	t.Helper()
	err := r.cmd.Wait()
	return read1(t, []byte(r.out.String()), fmt.Sprint(err))
}

func document(t *testing.T, n *Node, name string, data []byte) string {
	t.Helper()
	at, err := n.Document(name, data)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// nothingLeft checks that the host has neither documents nor units of the head's any more.
// nothingLeft waits until the hands' files and units are gone. An answer comes before systemd has seen its program end.
func nothingLeft(ctx context.Context, t *testing.T, n *Node) {
	t.Helper()
	ours := []string{transaction.RecoverUnit, transaction.ProveUnit}
	var left []string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		files, _ := shell(ctx, t, n, "find /run/machine-config-daemon/hands -mindepth 1 2>/dev/null")
		units, _ := shell(ctx, t, n, "systemctl list-units --all --plain --no-legend 'machine-config-daemon-*'")
		left = strings.Fields(files)
		for line := range strings.Lines(units) {
			if name, _, _ := strings.Cut(strings.TrimSpace(line), " "); !slices.Contains(ours, name) {
				left = append(left, strings.TrimSpace(line))
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("left: %q", left)
}

func TestHeadInAPodWithoutCapabilitiesDrivesTheHost(t *testing.T) {
	ctx, n := startHead(t)
	p := policy(t, n)
	live := document(t, n, "live.json", mc("live", liveConfig("1", "ok")))

	s := head(ctx, t, n, "status", "--times", "5")
	if s.Error != "" || s.Status == nil || s.Status.State != transaction.Done || s.Ran != 1 {
		t.Fatalf("%+v", s)
	}
	t.Logf("status: first %.1f ms, then %.2f ms", s.Took[0], s.Took[4])
	pl := head(ctx, t, n, "plan", "--config", live, "--policy", p, "--name", "live", "--times", "5")
	if pl.Error != "" || pl.Plan == nil || pl.Plan.Desired != "live" || pl.Plan.Reboot {
		t.Fatalf("%+v", pl)
	}
	t.Logf("plan: %.1f ms", slices.Min(pl.Took))
	if st := head(ctx, t, n, "stage", "--config", live, "--policy", p, "--name", "live"); st.Error != "" {
		t.Fatalf("%+v", st)
	} else {
		t.Logf("stage: %.1f ms", st.Took[0])
	}
	if s := head(ctx, t, n, "status"); s.Status.Config.Committed != "" {
		t.Errorf("staging committed %+v", s.Status)
	}
	a := head(ctx, t, n, "apply", "--config", live, "--policy", p, "--name", "live")
	if a.Error != "" || a.Result == nil || a.Result.Status.Config.Committed != "live" || a.Result.Reboot != host.RebootNone {
		t.Fatalf("%+v", a)
	}
	t.Logf("live apply: %.1f ms", a.Took[0])
	if s := head(ctx, t, n, "status"); s.Status.Config.Committed != "live" {
		t.Errorf("%+v", s.Status)
	}
	if v := head(ctx, t, n, "verify"); v.Error != "" || len(v.Verification.Drift) != 0 {
		t.Errorf("%+v", v)
	}
	if c := head(ctx, t, n, "config", "--name", "live"); !strings.Contains(c.Config, `"kind":"MachineConfig"`) {
		t.Errorf("%+v", c)
	}
	if c := head(ctx, t, n, "config", "--name", "other"); c.Error == "" {
		t.Errorf("%+v", c)
	}
	nothingLeft(ctx, t, n)
	out, err := n.Output(ctx, "journalctl", "-u", "machine-config-daemon-apply", "-t", "machine-config-daemon", "-o", "cat")
	if err != nil || !strings.Contains(out, "settle: live") {
		t.Errorf("the journal has %q, %v", out, err)
	}

	boots := n.Boots()
	b := document(t, n, "b.json", mc("b", configB))
	a = head(ctx, t, n, "apply", "--config", b, "--name", "b")
	if a.Error != "" || a.Result.Reboot != host.RebootStarted {
		t.Fatalf("%+v", a)
	}
	if err := n.WaitBoot(ctx, boots+1); err != nil {
		t.Fatal(err)
	}
	for done := false; !done; {
		w := head(ctx, t, n, "node", "--ready")
		s := head(ctx, t, n, "status")
		if w.Error != "" || s.Error != "" {
			t.Fatalf("%+v %+v", w, s)
		}
		done = s.Status.Config.Pending == ""
		if done && (s.Status.State != transaction.Done || s.Status.Config.Committed != "b") {
			t.Fatalf("%+v", s.Status)
		}
	}
	verified(ctx, t, n)
	nothingLeft(ctx, t, n)
}

// slowScript is a check script that says when it is asked, and answers a second after it may.
const (
	slowScript = "#!/bin/sh\necho >>/run/asked\nuntil test -e /run/may; do sleep 0.1; done\nsleep 1\n"
	letAnswer  = "touch /run/may"
)

func TestHeadThatIsKilledInterruptsNothingAndTheNextOneAttaches(t *testing.T) {
	for _, signal := range []string{"KILL", "TERM"} {
		t.Run(signal, func(t *testing.T) {
			ctx, n := startHead(t)
			p := policy(t, n)
			put(t, n, "/etc/greenboot/check/required.d/slow.sh", slowScript, 0o755)
			one := document(t, n, "one.json", mc("one", liveConfig("1", "ok")))
			two := document(t, n, "two.json", mc("two", liveConfig("2", "ok")))
			first := begin(ctx, t, n, "apply", "--config", one, "--policy", p, "--name", "one")
			shell(ctx, t, n, "until test -e /run/asked; do sleep 0.02; done")
			group, err := n.Output(ctx, "systemctl", "show", "-P", "ControlGroup", "machine-config-daemon-apply")
			if err != nil || strings.TrimSpace(group) != "/system.slice/machine-config-daemon-apply.service" {
				t.Errorf("cgroup %q, %v", group, err)
			}
			if out, _ := shell(ctx, t, n, "find /run/machine-config-daemon/hands -name 'config*' -o -name 'policy*'"); out != "" {
				t.Errorf("documents are still there: %s", out)
			}
			before, err := n.Status(ctx)
			if err != nil {
				t.Fatal(err)
			}
			first.end(ctx, t, n, signal)
			if other := head(ctx, t, n, "apply", "--config", two, "--policy", p, "--name", "two"); other.Kind != "refused" ||
				!strings.Contains(other.Error, "one") {
				t.Errorf("%+v", other)
			}
			attached := begin(ctx, t, n, "apply", "--config", one, "--policy", p, "--name", "one")
			shell(ctx, t, n, letAnswer)
			second := attached.answer(t)
			if second.Error != "" || second.Result.Status.Config.Committed != "one" {
				t.Fatalf("%+v", second)
			}
			if before.Transaction == nil {
				t.Errorf("%+v", before)
			}
			if got := log(ctx, t, n, "crio"); got != "start start" {
				t.Errorf("crio: %s", got)
			}
			nothingLeft(ctx, t, n)
		})
	}
}

func TestHeadThatIsKilledAtAnyTimeRestartsNothing(t *testing.T) {
	long(t)
	ctx, n := startHead(t)
	p := policy(t, n)
	runs := func() int {
		out, err := n.Output(ctx, "journalctl", "-u", "machine-config-daemon-apply", "-o", "cat", "-g", "^commit: ")
		if err != nil && !strings.Contains(err.Error(), "exit status 1") {
			t.Fatal(err)
		}
		return strings.Count(out, "commit: ")
	}
	// From before anything is handed over to after the end.
	for i, after := range []string{"0", "0.02", "0.04", "0.06", "0.08", "0.12", "0.16", "0.2", "0.3", "0.5"} {
		name := fmt.Sprintf("c%d", i)
		doc := document(t, n, name, mc(name, liveConfig(name, "ok")))
		r := begin(ctx, t, n, "apply", "--config", doc, "--policy", p, "--name", name)
		shell(ctx, t, n, "sleep "+after)
		r.end(ctx, t, n, "KILL")
		a := head(ctx, t, n, "apply", "--config", doc, "--policy", p, "--name", name)
		if a.Error != "" || a.Result.Status.Config.Committed != name {
			t.Fatalf("killed after %s s: %+v", after, a)
		}
		if got := runs(); got != i+1 {
			t.Errorf("killed after %s s: committed %d times in all", after, got)
		}
		verified(ctx, t, n)
		nothingLeft(ctx, t, n)
	}
}

func TestHeadThatIsKilledDuringASwitchFindsItGoneOn(t *testing.T) {
	ctx, n := startHead(t)
	const boot = "/var/lib/machine-config-daemon/boot.json"
	found := 0
	for i, until := range []string{
		"systemctl -q is-active machine-config-daemon-apply",
		"grep -q prepare " + boot,
		"ls -d /ostree/deploy/testos/deploy/*.1.origin 2>/dev/null | grep -q . || grep -q '\"phase\":\"boot\"' " + boot,
	} {
		name := fmt.Sprintf("s%d", i)
		doc := document(t, n, name+".json", mc(name, strings.ReplaceAll(configB, "b=2", "b="+name)))
		boots := n.Boots()
		r := begin(ctx, t, n, "apply", "--config", doc, "--name", name)
		shell(ctx, t, n, "until "+until+"; do sleep 0.01; done")
		r.end(ctx, t, n, "KILL")
		a := head(ctx, t, n, "apply", "--config", doc, "--name", name)
		// A host that was quicker than the test is on its way down, and nobody answers there: what it does counts.
		down := a.goingDown()
		if !down {
			if a.Error != "" || a.Result.Reboot != host.RebootStarted {
				t.Fatalf("killed at %s: %+v", until, a)
			}
			found++
		}
		if err := n.WaitBoot(ctx, boots+1); err != nil {
			t.Fatal(err)
		}
		head(ctx, t, n, "node", "--ready")
		settled(ctx, t, n, name)
		if n.Boots() != boots+1 {
			t.Errorf("killed at %s: %d boots", until, n.Boots()-boots)
		}
		out, err := n.Output(ctx, "journalctl", "-u", "machine-config-daemon-apply", "-o", "cat")
		if err != nil || strings.Count(out, "materialise: "+name) != 1 {
			t.Errorf("killed at %s: %s %v", until, out, err)
		}
	}
	if found == 0 {
		t.Error("no head came in time to find a switch at work: the test shows nothing")
	}
}

// Reboots are left to people, and the head, or the program on the host that commits, is killed in the middle of it. The
// host stays wholly on the configuration before until the next head comes, which finds the update gone on or does it
// anew; then the host says that it needs a reboot, has not booted, and serves. Taking the update back leaves nothing.
func TestHeadThatIsKilledDuringACommitLeavesItToPeople(t *testing.T) {
	ctx, n := onA(t)
	giveHead(t, n)
	const boot = "/var/lib/machine-config-daemon/boot.json"
	const apply = "machine-config-daemon-apply"
	a, boots := document(t, n, "a.json", mc("a", configA)), n.Boots()
	for i, until := range []string{
		"systemctl -q is-active " + apply,
		"grep -q prepare " + boot,
		"grep -q '\"phase\":\"boot\"' " + boot,
	} {
		for _, victim := range []string{"head", apply} {
			name := fmt.Sprintf("m%d%d", i, len(victim))
			doc := document(t, n, name+".json", mc(name, strings.ReplaceAll(configB, "b=2", "b="+name)))
			update := []string{"apply", "--config", doc, "--name", name, "--no-reboot"}
			r := begin(ctx, t, n, update...)
			shell(ctx, t, n, "until "+until+"; do sleep 0.01; done")
			if victim == apply {
				shell(ctx, t, n, "systemctl kill -s KILL "+apply)
			}
			r.end(ctx, t, n, "KILL")
			if s := status(ctx, t, n); s.Config.Committed != "a" || s.State == transaction.Degraded {
				t.Errorf("%s killed at %q: %+v", victim, until, s)
			}
			if next := head(ctx, t, n, update...); next.Error != "" || next.Result.Reboot != host.RebootNeeded {
				t.Fatalf("%s killed at %q: %+v", victim, until, next)
			}
			s := status(ctx, t, n)
			if !s.NeedsReboot || s.Config.Committed != "a" || s.Config.Pending != name ||
				wanted(s) != "Configuration "+name+" is committed, and the next boot leads to it " {
				t.Errorf("%s killed at %q: %+v", victim, until, s)
			}
			if out, exit := shell(ctx, t, n, "systemctl is-active kubelet"); exit != 0 || n.Boots() != boots {
				t.Errorf("%s killed at %q: kubelet %s, %d boots", victim, until, out, n.Boots()-boots)
			}
			if back := head(ctx, t, n, "apply", "--config", a, "--name", "a"); back.Error != "" {
				t.Fatalf("%s killed at %q: going back: %+v", victim, until, back)
			}
			if s = status(ctx, t, n); s.State != transaction.Done || s.NeedsReboot || s.Config.Pending != "" || n.Boots() != boots {
				t.Errorf("%s killed at %q: after going back: %+v", victim, until, s)
			}
			verified(ctx, t, n)
			nothingLeft(ctx, t, n)
		}
	}
}

func TestStageRefusesAFullBootAndAFullDisk(t *testing.T) {
	ctx, n := startHead(t)
	b := document(t, n, "b.json", mc("b", configB))
	ask := func() answer { return head(ctx, t, n, "stage", "--config", b, "--name", "b") }
	for _, c := range []struct{ size, says string }{{"size=40k", "bytes"}, {"nr_inodes=14", "inodes"}} {
		if out, exit := shell(ctx, t, n, "rm -rf /run/b; mkdir /run/b; cp -a /boot/. /run/b; mount -t tmpfs -o "+c.size+
			" boot /boot; cp -a /run/b/loader* /boot"); exit != 0 {
			t.Fatal(out)
		}
		if a := ask(); !strings.Contains(a.Error, "/boot") || !strings.Contains(a.Error, c.says) {
			t.Errorf("%s: %+v", c.size, a)
		}
		shell(ctx, t, n, "umount /boot")
	}
	if a := ask(); a.Error != "" {
		t.Errorf("%+v", a)
	}
	if s, err := n.Status(ctx); err != nil || s.State != transaction.Done {
		t.Errorf("%+v %v", s, err)
	}
}

func TestErrorsOfTheHostKeepTheirTypes(t *testing.T) {
	ctx, n := startHead(t)
	p := policy(t, n)
	ask := func(verb, name, spec string, more ...string) answer {
		at := document(t, n, name+".json", mc(name, spec))
		return head(ctx, t, n, append([]string{verb, "--config", at, "--policy", p, "--name", name}, more...)...)
	}
	if a := ask("apply", "good", liveConfig("1", "ok")); a.Error != "" {
		t.Fatalf("%+v", a)
	}
	usr := `{"kernelArguments":["u=1"],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/usr/lib/new.conf","contents":{"source":"data:,x"}}]}}}`
	raid := `{"config":{"ignition":{"version":"3.2.0"},"storage":{"raid":[{"name":"r","level":"raid1","devices":["/dev/a","/dev/b"]}]}}}`
	user := `{"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/x","user":{"name":"nobody-knows"},"contents":{"source":"data:,x"}}]}}}`
	for _, c := range []struct{ what, verb, name, spec, kind, says string }{
		{"a path in the image", "stage", "usr", usr, "unreachable", "/usr/lib/new.conf"},
		{"a path in the image", "plan", "usr", usr, "unreachable", "/usr/lib/new.conf"},
		{"an unknown user", "stage", "user", user, "", "nobody-knows"},
		{"a RAID", "stage", "raid", raid, "unreachable", "storage.raid"},
		{"a RAID", "plan", "raid", raid, "unreachable", "storage.raid"},
		{"a RAID", "apply", "raid", raid, "unreachable", "storage.raid"},
		{"a service that fails", "apply", "bad", liveConfig("2", "fail"), "rolledBack", "crio.service"},
		{"content in quarantine", "apply", "again", liveConfig("2", "fail"), "unreachable", "quarantined"},
		{"content in quarantine", "stage", "again", liveConfig("2", "fail"), "unreachable", "quarantined"},
	} {
		a := ask(c.verb, c.name, c.spec)
		if a.Kind != c.kind || !strings.Contains(a.Error, c.says) {
			t.Errorf("%s %s: %q: %s", c.verb, c.what, a.Kind, a.Error)
		}
		if c.verb == "plan" && (a.Plan == nil || len(a.Plan.Unreconcilable) == 0) {
			t.Errorf("no plan beside the error: %+v", a)
		}
	}
	if a := ask("stage", "again", liveConfig("2", "fail"), "--lift"); a.Error != "" {
		t.Errorf("%+v", a)
	}
	if s := head(ctx, t, n, "status"); len(s.Status.Quarantined) != 1 {
		t.Errorf("staging lifted the quarantine: %+v", s.Status)
	}
	lock := "exec 9>/run/machine-config-daemon/lock; flock 9; echo 'somebody else' >&9; touch /run/locked; until test -e /run/free; do sleep 0.1; done"
	shell(ctx, t, n, "systemd-run -q sh -c \""+lock+"\"; until test -e /run/locked; do sleep 0.02; done")
	if a := ask("apply", "later", liveConfig("3", "ok")); a.Kind != "refused" || !strings.Contains(a.Error, "another operation") {
		t.Errorf("%+v", a)
	}
	shell(ctx, t, n, "touch /run/free")
	byHand := n.HostPath("/etc/crio/crio.conf.d/10-x.conf")
	if err := os.WriteFile(byHand, []byte("by hand"), 0o644); err != nil {
		t.Fatal(err)
	}
	if v := head(ctx, t, n, "verify"); v.Error != "" || len(v.Verification.Drift) == 0 {
		t.Errorf("%+v", v)
	}
	nothingLeft(ctx, t, n)
}

func TestStagedImageIsThereForApplyAndNothingOfItBoots(t *testing.T) {
	ctx, n := startHead(t)
	image := lab.Remote + ":" + lab.RefV3
	doc := document(t, n, "os.json", mc("os", `{"osImageURL":"`+image+`","config":{"ignition":{"version":"3.2.0"}}}`))
	before := deployments(ctx, t, n)
	if a := head(ctx, t, n, "stage", "--config", doc, "--name", "os"); a.Error != "" {
		t.Fatalf("%+v", a)
	}
	if got := deployments(ctx, t, n); !slices.Equal(got, before) {
		t.Errorf("%v, before %v", got, before)
	}
	if out, exit := shell(ctx, t, n, "ostree fsck -q --no-bindings-check 2>&1 | tail -3; ostree rev-parse "+image); exit != 0 {
		t.Errorf("it is not in the repository: %s", out)
	}
	if s, err := n.Status(ctx); err != nil || s.Config.Pending != "" || s.State != transaction.Done {
		t.Errorf("%+v %v", s, err)
	}
}

func TestWhatWasStagedIsAppliedWhateverBecomesOfItsRefAndRemote(t *testing.T) {
	ctx, n := startHead(t)
	image := lab.Remote + ":" + lab.RefV3
	os := mc("os", `{"osImageURL":"`+image+`","config":{"ignition":{"version":"3.2.0"}}}`)
	if a := head(ctx, t, n, "stage", "--config", document(t, n, "os.json", os), "--name", "os"); a.Error != "" {
		t.Fatalf("%+v", a)
	}
	const kept = "/var/lib/machine-config-daemon/staged.json"
	if out, exit := shell(ctx, t, n, "set -e; mount -o remount,rw /sysroot; sed -i 's,file:///run/lab/remote,file:///nowhere,' /ostree/repo/config; "+
		"v2=$(ostree rev-parse "+lab.RefV2+"); ostree refs --delete "+image+"; ostree refs --create="+image+" $v2; "+
		"test -f "+kept); exit != 0 {
		t.Fatal(out)
	}
	res := apply(ctx, t, n, os)
	if !slices.ContainsFunc(res.Warnings, func(w string) bool { return strings.Contains(w, "was staged for os") }) {
		t.Errorf("nothing is said of the ref: %v", res.Warnings)
	}
	settled(ctx, t, n, "os")
	if v := read(t, n, "/usr/lib/testos/version"); strings.TrimSpace(v) != "v3" {
		t.Errorf("version %q", v)
	}
	if _, exit := shell(ctx, t, n, "test -e "+kept); exit == 0 {
		t.Error("what was staged is kept after its apply")
	}
}

func TestStagingOutlivesItsHeadUntilSomethingElseIsWanted(t *testing.T) {
	ctx, n := startHead(t)
	for _, signal := range []string{"TERM", "KILL"} {
		shell(ctx, t, n, "ip link set lo up; cp "+headPath+" /run/stall; "+
			"systemd-run -q --unit stall-"+signal+" /run/stall stall 127.0.0.1:8080; ostree remote add --if-not-exists --no-gpg-verify stall http://127.0.0.1:8080")
		doc := document(t, n, "os.json", mc("os", `{"osImageURL":"stall:some/ref","config":{"ignition":{"version":"3.2.0"}}}`))
		other := document(t, n, "b.json", mc("b", configB))
		r := begin(ctx, t, n, "stage", "--config", doc, "--name", "os")
		shell(ctx, t, n, "until journalctl -u stall-"+signal+" -o cat | grep -q '^1$'; do sleep 0.05; done")
		r.end(ctx, t, n, signal)
		if out, _ := shell(ctx, t, n, "systemctl is-active machine-config-daemon-stage"); strings.TrimSpace(out) != "active" {
			t.Errorf("SIG%s: it went with its head: %s", signal, out)
		}
		if a := head(ctx, t, n, "stage", "--config", other, "--name", "b"); a.Error != "" {
			t.Errorf("%+v", a)
		}
		// The head has its answer a moment before the command has ended.
		out, _ := shell(ctx, t, n, "for i in $(seq 1200); do systemctl -q is-active machine-config-daemon-stage || break; "+
			"sleep 0.05; done; systemctl is-active machine-config-daemon-stage; pgrep -x ostree")
		if strings.TrimSpace(out) != "inactive" {
			t.Errorf("SIG%s: still there: %s", signal, out)
		}
		nothingLeft(ctx, t, n)
		if s, err := n.Status(ctx); err != nil || s.State != transaction.Done || s.Config.Pending != "" {
			t.Errorf("%+v %v", s, err)
		}
		shell(ctx, t, n, "systemctl stop stall-"+signal)
	}
}

func TestProgramIsReplacedUnderAnUpdateThatRuns(t *testing.T) {
	ctx, n := startHead(t)
	p := policy(t, n)
	put(t, n, "/etc/greenboot/check/required.d/slow.sh", slowScript, 0o755)
	one := document(t, n, "one.json", mc("one", liveConfig("1", "ok")))
	r := begin(ctx, t, n, "apply", "--config", one, "--policy", p, "--name", "one")
	shell(ctx, t, n, "until test -e /run/asked; do sleep 0.02; done")
	// A newer one differs in its bytes; images give every program the same time.
	newer := "/var/usrlocal/bin/newer"
	shell(ctx, t, n, "cp -p "+agent+" "+newer+" && printf newer >>"+newer+" && touch -r "+agent+" "+newer)
	second := begin(ctx, t, n, "apply", "--program", newer, "--config", one, "--policy", p, "--name", "one")
	placed := "cmp -s " + newer + " /var/lib/machine-config-daemon/bin/machine-config-daemon"
	shell(ctx, t, n, "until "+placed+"; do sleep 0.05; done")
	if out, _ := shell(ctx, t, n, "systemctl is-active machine-config-daemon-apply"); strings.TrimSpace(out) != "active" {
		t.Errorf("the update went with the program: %s", out)
	}
	shell(ctx, t, n, letAnswer)
	// One of them takes the report; the other asks again.
	for _, a := range []answer{second.answer(t), r.answer(t)} {
		if a.Error != "" || a.Result.Status.Config.Committed != "one" {
			t.Errorf("%+v", a)
		}
	}
	if got := log(ctx, t, n, "crio"); got != "start start" {
		t.Errorf("crio: %s", got)
	}
	for _, unit := range []string{transaction.RecoverUnit, transaction.ProveUnit} {
		if out, err := n.Output(ctx, "systemctl", "is-enabled", unit); err != nil {
			t.Errorf("%s: %s %v", unit, out, err)
		}
	}
}

// A head takes what was handed over away name by name. Another head that looks meanwhile waits for the command's end.
func TestHandoverThatIsBeingTakenAwayRefusesNobody(t *testing.T) {
	ctx, n := startHead(t)
	p := policy(t, n)
	put(t, n, "/etc/greenboot/check/required.d/slow.sh", slowScript, 0o755)
	one := document(t, n, "one.json", mc("one", liveConfig("1", "ok")))
	r := begin(ctx, t, n, "apply", "--config", one, "--policy", p, "--name", "one")
	shell(ctx, t, n, "until test -e /run/asked; do sleep 0.02; done; rm /run/machine-config-daemon/hands/apply-*/request.json")
	second := begin(ctx, t, n, "apply", "--config", one, "--policy", p, "--name", "one")
	shell(ctx, t, n, letAnswer)
	for _, a := range []answer{second.answer(t), r.answer(t)} {
		if a.Error != "" || a.Result.Status.Config.Committed != "one" {
			t.Errorf("%+v", a)
		}
	}
}

func TestHeadSeesTheRecordChange(t *testing.T) {
	ctx, n := startHead(t)
	p := policy(t, n)
	r := begin(ctx, t, n, "changed")
	shell(ctx, t, n, "until test -e /var/lib/machine-config-daemon/bin/machine-config-daemon; do sleep 0.02; done; sleep 0.5")
	apply(ctx, t, n, mc("one", liveConfig("1", "ok")), "--policy", p)
	if a := r.answer(t); a.Error != "" {
		t.Errorf("%+v", a)
	}
}

func TestCommandThatIsKilledOnTheHostIsReported(t *testing.T) {
	ctx, n := startHead(t)
	p := policy(t, n)
	put(t, n, "/etc/greenboot/check/required.d/slow.sh", slowScript, 0o755)
	one := document(t, n, "one.json", mc("one", liveConfig("1", "ok")))
	r := begin(ctx, t, n, "apply", "--config", one, "--policy", p, "--name", "one")
	shell(ctx, t, n, "until test -e /run/asked; do sleep 0.02; done; systemctl kill -s KILL machine-config-daemon-apply; "+letAnswer)
	if a := r.answer(t); !strings.Contains(a.Error, "signal") && !strings.Contains(a.Error, "failed") {
		t.Errorf("%+v", a)
	}
	// The next one finishes what it finds, and the unit that was killed is not held against it.
	a := head(ctx, t, n, "apply", "--config", one, "--policy", p, "--name", "one")
	if a.Error != "" || a.Result.Status.Config.Committed != "one" {
		t.Errorf("%+v", a)
	}
	nothingLeft(ctx, t, n)
}

func TestOtherManagersAreNamedAndRefused(t *testing.T) {
	ctx, n := startHead(t)
	b := document(t, n, "b.json", mc("b", configB))
	ask := func() answer { return head(ctx, t, n, "stage", "--config", b, "--name", "b") }
	for _, c := range []struct{ what, make, unmake, says string }{
		{"kured with a reason",
			"cp /bin/sleep /run/kured; systemd-run -q -p Type=exec --unit x /run/kured 600; touch /run/reboot-required",
			"systemctl stop x; rm /run/reboot-required", "kured"},
		{"upstream's agent", "mkdir /run/bin; cp " + headPath + " /run/bin/machine-config-daemon; " +
			"systemd-run -q -p Type=exec --unit x /run/bin/machine-config-daemon start 127.0.0.1:8081",
			"systemctl stop x", "/run/bin/machine-config-daemon start"},
		{"upstream's units", "mkdir -p /etc/machine-config-daemon; echo {} >/etc/machine-config-daemon/currentconfig; " +
			"printf '[Service]\\nExecStart=/bin/true\\n' >/etc/systemd/system/machine-config-daemon-pull.service; systemctl daemon-reload",
			"rm /etc/machine-config-daemon/currentconfig /etc/systemd/system/machine-config-daemon-pull.service; systemctl daemon-reload",
			"machine-config-daemon-pull.service"},
	} {
		if out, exit := shell(ctx, t, n, c.make); exit != 0 {
			t.Fatal(out)
		}
		a := ask()
		if a.Kind != "refused" || !strings.Contains(a.Error, c.says) {
			t.Errorf("%s: %+v", c.what, a)
		}
		if out, exit := shell(ctx, t, n, c.unmake); exit != 0 {
			t.Fatal(out)
		}
		if a := ask(); a.Error != "" {
			t.Errorf("without %s: %+v", c.what, a)
		}
	}
}

func TestWordOfTheClusterIsPartOfTheVerdict(t *testing.T) {
	lost := errors.New("default route")
	for _, c := range []struct {
		what  string
		word  []string // what the head says after the boot; nil for nothing
		route bool     // there was one before
		want  error
	}{
		{"ready", []string{"node", "--ready"}, false, nil},
		{"not ready", []string{"node", "--why", "the network plugin is not there"}, false, errors.New("the network plugin is not there")},
		{"silence", nil, false, nil},
		{"silence, and no route any more", nil, true, lost},
	} {
		t.Run(c.what, func(t *testing.T) {
			ctx, n := startHead(t)
			if c.route {
				if out, exit := shell(ctx, t, n, "ip link set lo up; ip route add default dev lo"); exit != 0 {
					t.Fatal(out)
				}
			}
			head(ctx, t, n, "node", "--ready")
			boots := n.Boots()
			apply(ctx, t, n, mc("a", configA), "--cluster", "--verdict-timeout", "24s")
			if err := n.WaitBoot(ctx, boots+1); err != nil {
				t.Fatal(err)
			}
			if c.route { // the lab's network lasts over boots
				shell(ctx, t, n, "ip route del default")
			}
			var s *host.Status
			for {
				if c.word != nil {
					_, _, _, _ = n.Exec(ctx, nil, append([]string{headPath, "pod"}, c.word...)...)
				}
				var err error
				if s, err = n.Status(ctx); err == nil && s.Config.Pending == "" {
					break
				}
				select {
				case <-ctx.Done():
					t.Fatalf("%+v %v", s, err)
				case <-time.After(poll):
				}
			}
			switch {
			case c.want == nil && (s.State != transaction.Done || s.Config.Committed != "a"):
				t.Errorf("%+v", s)
			case c.want != nil && (s.State != transaction.RolledBack || !strings.Contains(s.Reason, c.want.Error())):
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestHeadReachesTheHostWithoutItsBus(t *testing.T) {
	ctx, n := startHead(t)
	live := document(t, n, "live.json", mc("live", liveConfig("1", "ok")))
	if out, exit := shell(ctx, t, n, "systemctl stop dbus.socket dbus.service"); exit != 0 {
		t.Fatal(out)
	}
	if a := head(ctx, t, n, "status"); a.Error != "" || a.Status.State != transaction.Done {
		t.Errorf("%+v", a)
	}
	p := policy(t, n)
	a := head(ctx, t, n, "apply", "--config", live, "--policy", p, "--name", "live")
	if a.Error != "" || a.Result.Status.Config.Committed != "live" {
		t.Errorf("%+v", a)
	}
	nothingLeft(ctx, t, n)
}
