// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// scratch has the programs, which the tests share.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if scratch, err = os.MkdirTemp("", "noderefit-node-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(scratch)
		return m.Run()
	}())
}

// program builds a program once, in a directory of its own.
func program(name string, build func(dir string) (string, error)) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		dir := filepath.Join(scratch, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
		return build(dir)
	})
}

// The agents: as it is released, and with its fault points.
var (
	plain = program("plain", func(dir string) (string, error) { return Build(context.Background(), dir) })

	faulty = program("faulty", func(dir string) (string, error) { return Build(context.Background(), dir, "faults") })
)

// long skips a test that takes most of a minute, where all tests of a change have to end in time.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes most of a minute: make test-all has it")
	}
}

func start(t *testing.T) (context.Context, *Node) {
	t.Helper()
	return startWith(t, plain)
}

func startFaulty(t *testing.T) (context.Context, *Node) {
	t.Helper()
	return startWith(t, faulty)
}

// startWith makes a host with an agent. The test runs beside others from then on.
func startWith(t *testing.T, build func() (string, error)) (context.Context, *Node) {
	t.Helper()
	return startAs(t, build, lab.Options{})
}

func startAs(t *testing.T, build func() (string, error), options lab.Options) (context.Context, *Node) {
	t.Helper()
	return startOn(t, lab.Need, build, options)
}

// startOn makes a host of a Base.
func startOn(t *testing.T, need func(testing.TB) *lab.Base, build func() (string, error),
	options lab.Options) (context.Context, *Node) {
	t.Helper()
	base := need(t)
	t.Parallel() // hosts mostly wait
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(ctx, base, binary, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			if text, err := n.Journal(context.Background()); err == nil {
				t.Log(text)
			}
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx, n
}

func mc(name, spec string) []byte {
	return []byte(fmt.Sprintf(`{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig",
"metadata":{"name":%q},"spec":%s}`, name, spec))
}

func apply(ctx context.Context, t *testing.T, n *Node, doc []byte, flags ...string) *host.Result {
	t.Helper()
	res, _, err := n.Apply(ctx, doc, flags...)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func read(t *testing.T, n *Node, path string) string {
	t.Helper()
	data, err := os.ReadFile(n.HostPath(path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

const configA = `{"kernelArguments":["a=1"],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/chrony.conf","mode":420,"contents":{"source":"data:,from%20A%0A"}},
 {"path":"/usr/local/bin/tool","mode":493,"contents":{"source":"data:,tool%20A%0A"}},
 {"path":"/etc/only-a","mode":420,"contents":{"source":"data:,a%0A"}}]}}}`

const configB = `{"kernelArguments":["a=1","b=2"],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/chrony.conf","mode":420,"contents":{"source":"data:,from%20B%0A"}},
 {"path":"/usr/local/bin/tool","mode":493,"contents":{"source":"data:,tool%20B%0A"}},
 {"path":"/etc/only-b","mode":384,"contents":{"source":"data:,b%0A"}}]},
 "systemd":{"units":[{"name":"new.service","enabled":true,"contents":"[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"}]}}}`

func TestHostMovesForwardAndBack(t *testing.T) {
	ctx, n := start(t)
	first := n.BootedDeployment()
	res := apply(ctx, t, n, mc("a", configA))
	if res.Reboot != host.RebootStarted || !res.Plan.Reboot {
		t.Fatalf("reboot %s, plan %+v", res.Reboot, res.Plan)
	}
	s, err := n.WaitState(ctx, transaction.Done, transaction.RolledBack)
	if err != nil {
		t.Fatal(err)
	}
	if s.State != transaction.Done || s.Config.Committed != "a" || n.BootedDeployment() == first {
		t.Fatalf("%+v", s)
	}
	if !strings.Contains(" "+n.Kargs()+" ", " a=1 ") {
		t.Errorf("command line %s", n.Kargs())
	}
	if got := read(t, n, "/usr/local/bin/tool"); got != "tool A\n" {
		t.Errorf("tool %q", got)
	}

	apply(ctx, t, n, mc("b", configB))
	if s, err = n.WaitState(ctx, transaction.Done, transaction.RolledBack); err != nil {
		t.Fatal(err)
	}
	if s.State != transaction.Done || s.Config.Committed != "b" || s.Config.Previous != "a" {
		t.Fatalf("%+v", s)
	}
	if out, err := n.Output(ctx, "systemctl", "is-active", "new.service"); err != nil {
		t.Errorf("new.service: %s %v", out, err)
	}
	if _, stderr, exit, err := n.Agent(ctx, "verify"); err != nil || exit != 0 {
		t.Errorf("verify: %d %s %v", exit, stderr, err)
	}

	if _, stderr, exit, err := n.Agent(ctx, "rollback"); err != nil || exit != 0 {
		t.Fatalf("rollback: %d %s %v", exit, stderr, err)
	}
	if s, err = n.WaitState(ctx, transaction.Done, transaction.RolledBack); err != nil {
		t.Fatal(err)
	}
	if s.State != transaction.Done || s.Config.Committed != "a" || len(s.Quarantined) != 0 {
		t.Fatalf("%+v", s)
	}
	if strings.Contains(n.Kargs(), "b=2") || read(t, n, "/etc/chrony.conf") != "from A\n" {
		t.Errorf("kargs %s, chrony %q", n.Kargs(), read(t, n, "/etc/chrony.conf"))
	}
	if _, err := os.Lstat(n.HostPath("/etc/only-b")); !os.IsNotExist(err) {
		t.Errorf("/etc/only-b: %v", err)
	}
}

const configBad = `{"kernelArguments":["a=1","bad=1"],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/chrony.conf","mode":420,"contents":{"source":"data:,from%20bad%0A"}},
 {"path":"/usr/local/bin/tool","mode":493,"contents":{"source":"data:,tool%20bad%0A"}},
 {"path":"/etc/kubernetes/crio.conf","mode":420,"contents":{"source":"data:,fail%0A"}}]}}}`

func TestBadConfigurationComesBackByItself(t *testing.T) {
	ctx, n := start(t)
	apply(ctx, t, n, mc("a", configA))
	if s, err := n.WaitState(ctx, transaction.Done, transaction.RolledBack); err != nil || s.State != transaction.Done {
		t.Fatal(s, err)
	}
	good := n.BootedDeployment()
	apply(ctx, t, n, mc("bad", configBad))
	s, err := n.WaitState(ctx, transaction.RolledBack)
	if err != nil {
		t.Fatal(err)
	}
	if n.BootedDeployment() != good || s.Config.Committed != "a" {
		t.Errorf("booted %s, status %+v", n.BootedDeployment(), s)
	}
	if len(s.Quarantined) != 1 || s.Quarantined[0].Config != "bad" || !strings.Contains(s.Reason, "crio.service") {
		t.Errorf("status %+v", s)
	}
	if got := read(t, n, "/usr/local/bin/tool"); got != "tool A\n" {
		t.Errorf("tool %q", got)
	}
	if _, exit, err := n.Apply(ctx, mc("other-name", configBad)); exit != 3 {
		t.Errorf("quarantined content under another name: exit %d, %v", exit, err)
	}
}

// TestShutdownWaitsForTheAnswer has an apply that can't say what it did, because nobody reads it yet.
func TestShutdownWaitsForTheAnswer(t *testing.T) {
	ctx, n := start(t)
	at, err := n.Document("config.json", mc("a", configA))
	if err != nil {
		t.Fatal(err)
	}
	boots := n.Boots()
	shell(ctx, t, n, `{ head -c 65536 /dev/zero; exec `+agent+` apply -o json --config `+at+`; } | {
going() { busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager PreparingForShutdown; }
until [ "$(going)" = "b true" ]; do sleep 0.1; done
systemd-inhibit --list --no-legend >/var/tmp/inhibitors
tail -c +65537 >/var/tmp/answer
}`)
	if err := n.WaitBoot(ctx, boots+1); err != nil {
		t.Fatal(err)
	}
	if got := read(t, n, "/var/tmp/inhibitors"); !strings.Contains(got, "machine-config-daemon") {
		t.Errorf("the shutdown waits for %q", got)
	}
	if got := read(t, n, "/var/tmp/answer"); !strings.Contains(got, `"reboot": "started"`) {
		t.Errorf("it said %q", got)
	}
}
