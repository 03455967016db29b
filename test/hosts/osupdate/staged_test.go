// SPDX-License-Identifier: Apache-2.0

package osupdate

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/rpmostree"
	"github.com/noderefit/noderefit/transaction"
)

// ofOld puts the agent on a host whose ostree has no set-default.
func ofOld(t *testing.T, build func() (string, error)) (context.Context, *node.Node) {
	t.Helper()
	_, m := bootWith(t, lab.Options{Name: "rpm"}, true)
	n := agentOf(t, m, build)
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
	t.Cleanup(cancel)
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := n.Journal(context.WithoutCancel(ctx))
			t.Log(text[max(0, len(text)-12000):])
		}
	})
	return ctx, n
}

// updateArguments are the kernel arguments that run, of those that the tests set.
func updateArguments(n *node.Node) []string {
	return slices.DeleteFunc(strings.Fields(n.Kargs()), func(a string) bool { return !strings.HasPrefix(a, "update=") })
}

func TestHostWithoutSetDefaultTakesTheStagedRoad(t *testing.T) {
	ctx, n := ofOld(t, plain)
	s, err := n.Status(ctx)
	if err != nil || s.Road != "staged: ostree is 2023.5, and 2023.6 is the first with set-default" {
		t.Fatalf("%v: %+v", err, s)
	}
	first := n.BootedDeployment()

	// Files alone: no deployment, and nothing before the boot.
	update(ctx, t, n, config("a", "a", ""), transaction.Done)
	if n.BootedDeployment() != first {
		t.Errorf("%s has booted", n.BootedDeployment())
	}
	if got := output(ctx, t, n, "cat", "/etc/update.conf"); got != "a" {
		t.Errorf("/etc/update.conf: %q", got)
	}

	// Everything at once.
	boots := n.Boots()
	s = update(ctx, t, n, config("b", "b", `"osImageURL":"`+rpmostree.Remote+`:`+rpmostree.RefV4+`","kernelType":"realtime",
 "extensions":["usbguard"],"kernelArguments":["update=b"],`), transaction.Done)
	if s.Config.Committed != "b" || n.Boots()-boots != 1 {
		t.Errorf("%d boots: %+v", n.Boots()-boots, s)
	}
	for path, want := range map[string]string{"/usr/lib/testos/version": "v4", "/etc/update.conf": "b"} {
		if got := output(ctx, t, n, "cat", path); got != want {
			t.Errorf("%s: %q", path, got)
		}
	}
	if got := updateArguments(n); !slices.Equal(got, []string{"update=b"}) {
		t.Errorf("it runs with %q", got)
	}
	if out, text, exit, err := n.Agent(ctx, "verify"); err != nil || exit != 0 {
		t.Errorf("verify: %d %v %s%s", exit, err, out, text)
	}
	released(ctx, t, n)
	old := n.BootedDeployment()
	at := filepath.Join(n.Sysroot(), "ostree/deploy", strings.Replace(first, "/", "/deploy/", 1), "etc/update.conf")
	if text, err := os.ReadFile(at); err != nil || string(text) != "a" {
		t.Errorf("the deployment before has %q: %v", text, err)
	}

	// Arguments alone.
	s = update(ctx, t, n, config("c", "b", `"osImageURL":"`+rpmostree.Remote+`:`+rpmostree.RefV4+`","kernelType":"realtime",
 "extensions":["usbguard"],"kernelArguments":["update=c","update=c2"],`), transaction.Done)
	if got := updateArguments(n); s.Config.Committed != "c" || !slices.Equal(got, []string{"update=c", "update=c2"}) {
		t.Errorf("it runs with %q: %+v", got, s)
	}
	released(ctx, t, n)

	// Somebody goes back by hand: that is everything of b, and is said.
	output(ctx, t, n, "rpm-ostree", "rollback")
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if n.BootedDeployment() != old {
		t.Fatalf("%s has booted", n.BootedDeployment())
	}
	if s, err := n.WaitState(ctx, transaction.RolledBack); err != nil || s.Config.Committed != "b" {
		t.Errorf("%v %+v", err, s)
	}

	// And back to the one before that, image and all.
	boots = n.Boots()
	s = update(ctx, t, n, config("a", "a", `"osImageURL":"`+lab.RefV1+`",`), transaction.Done)
	if got := updateArguments(n); s.Config.Committed != "a" || len(got) != 0 || n.Boots()-boots != 1 {
		t.Errorf("it runs with %q after %d boots: %+v", got, n.Boots()-boots, s)
	}
	text := output(ctx, t, n, "rpm-ostree", "status", "--json", "--booted")
	if strings.Contains(text, `"usbguard"`) || strings.Contains(text, `"kernel-rt-core"`) {
		t.Errorf("still layered: %s", text)
	}
	released(ctx, t, n)

	// The verb takes all of it back again.
	res := rollback(ctx, t, n, boots+2)
	if res.Config.Committed != "b" || !slices.Equal(updateArguments(n), []string{"update=b"}) ||
		output(ctx, t, n, "cat", "/usr/lib/testos/version") != "v4" || output(ctx, t, n, "cat", "/etc/update.conf") != "b" {
		t.Errorf("%+v", res)
	}
}

// rollback is the verb, and the verdict after that many boots.
func rollback(ctx context.Context, t *testing.T, n *node.Node, boots int) *host.Status {
	t.Helper()
	if out, text, exit, err := n.Agent(ctx, "rollback", "-o", "json"); err != nil || exit > 0 {
		t.Fatalf("rollback: %d %v %s%s", exit, err, out, text)
	}
	if err := n.WaitBoot(ctx, boots); err != nil {
		t.Fatal(err)
	}
	s, err := n.WaitState(ctx, transaction.Done, transaction.Degraded, transaction.RolledBack)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
