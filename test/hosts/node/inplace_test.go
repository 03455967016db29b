// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// packages is a host without ostree.
var packages = lab.Options{WithoutOSTree: true}

// file returns a configuration of one file that needs a boot.
func bootFile(contents string) string {
	return `{"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/testos/booted.conf","contents":{"source":"data:,` + contents + `"}}]}}}`
}

func TestAHostWithoutOSTreeChangesInItsNextBootAndIsProved(t *testing.T) {
	ctx, n := startAs(t, plain, packages)
	s, err := n.Status(ctx)
	if err != nil || s.OS != host.OSNone || s.Road != string(transaction.RoadInPlace) {
		t.Fatalf("%+v %v", s, err)
	}
	res := apply(ctx, t, n, mc("a", bootFile("a")), "--no-reboot")
	if _, exit := shell(ctx, t, n, "test -e /etc/testos/booted.conf"); exit == 0 || res.Reboot != host.RebootNeeded ||
		res.Status.Config.Pending != "a" || res.Status.Phase != string(transaction.PhaseBoot) {
		t.Fatalf("it changed before the boot, or is no boot: %+v", res.Status)
	}
	boots := n.Boots()
	apply(ctx, t, n, mc("a", bootFile("a")))
	if s, err = n.WaitState(ctx, transaction.Done, transaction.RolledBack); err != nil || s.State != transaction.Done ||
		s.Config.Committed != "a" || s.Config.Pending != "" {
		t.Fatalf("%+v %v", s, err)
	}
	if n.Boots() != boots+1 || read(t, n, "/etc/testos/booted.conf") != "a" {
		t.Errorf("%d boots, %s", n.Boots()-boots, read(t, n, "/etc/testos/booted.conf"))
	}
	verified(ctx, t, n)
	apply(ctx, t, n, mc("b", bootFile("b")), "--no-reboot")
	for _, want := range []string{"a", "b"} { // withdrawn before the boot, and then proved
		if want == "b" {
			apply(ctx, t, n, mc("b", bootFile("b")))
			if s, err = n.WaitState(ctx, transaction.Done); err != nil || s.Config.Committed != "b" {
				t.Fatalf("%+v %v", s, err)
			}
		}
		if _, errs, exit, err := n.Agent(ctx, "rollback"); err != nil || exit > 0 {
			t.Fatalf("%d %v %s", exit, err, errs)
		}
		if s, err = n.WaitState(ctx, transaction.Done); err != nil || s.Config.Committed != "a" ||
			read(t, n, "/etc/testos/booted.conf") != "a" {
			t.Fatalf("%+v %v", s, err)
		}
		verified(ctx, t, n)
	}
}

func TestABadConfigurationOfAHostWithoutOSTreeComesBack(t *testing.T) {
	ctx, n := startAs(t, plain, packages)
	apply(ctx, t, n, mc("a", bootFile("a")))
	if s, err := n.WaitState(ctx, transaction.Done); err != nil || s.Config.Committed != "a" {
		t.Fatalf("%+v %v", s, err)
	}
	boots := n.Boots()
	bad := strings.Replace(bootFile("b"), `]}}}`, `,{"path":"/etc/kubernetes/kubelet.conf","contents":{"source":"data:,fail"}}]}}}`, 1)
	apply(ctx, t, n, mc("b", bad))
	s, err := n.WaitState(ctx, transaction.RolledBack)
	if err != nil || s.Config.Committed != "a" || len(s.Quarantined) != 1 || !strings.Contains(s.Reason, "kubelet") {
		t.Fatalf("%+v %v", s, err)
	}
	if _, err := n.WaitRunning(ctx); err != nil { // recovery says it before the services start
		t.Fatal(err)
	}
	if _, exit := shell(ctx, t, n, "test -e /etc/kubernetes/kubelet.conf"); exit == 0 || n.Boots() != boots+2 ||
		read(t, n, "/etc/testos/booted.conf") != "a" {
		t.Errorf("%d boots, %s", n.Boots()-boots, read(t, n, "/etc/testos/booted.conf"))
	}
	if got := log(ctx, t, n, "kubelet"); got != "start" {
		t.Errorf("the kubelet of the boot after: %s", got)
	}
	verified(ctx, t, n)
}
