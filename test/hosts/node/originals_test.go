// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// withArguments is a configuration of kernel arguments, and of a file in a deployment and one outside of it.
func withArguments(name, value string) []byte {
	return mc(name, fmt.Sprintf(`{"kernelArguments":["same=%[1]s","differing=%[1]s","absent=%[1]s"],"config":{
"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":"/etc/own.conf","contents":{"source":"data:,%[1]s"}},
{"path":"/var/lib/own.conf","contents":{"source":"data:,%[1]s"}}]}}}`, value))
}

var withoutArguments = mc("without", `{"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
{"path":"/etc/unrelated","contents":{"source":"data:,1"}}]}}}`)

func booted(ctx context.Context, t *testing.T, n *Node, doc []byte, name string) {
	t.Helper()
	apply(ctx, t, n, doc)
	settled(ctx, t, n, name)
}

// An admin's own kernel arguments, identical to what a configuration asks for, of another value, or none, and files that
// are identical, are as before once no configuration asks for them.
func TestAnAdminsOwnArgumentsAndFilesAreThereAgainAfterTheBoots(t *testing.T) {
	for name, way := range map[string]func(ctx context.Context, t *testing.T, n *Node){
		"let go": func(ctx context.Context, t *testing.T, n *Node) {
			t.Helper()
			booted(ctx, t, n, withArguments("with", "1"), "with")
			booted(ctx, t, n, withoutArguments, "without")
		},
		"rolled back": func(ctx context.Context, t *testing.T, n *Node) {
			t.Helper()
			booted(ctx, t, n, withArguments("with", "1"), "with")
			if _, stderr, exit, err := n.Agent(ctx, "rollback"); err != nil || exit != 0 {
				t.Fatalf("rollback: %d %s %v", exit, stderr, err)
			}
			settled(ctx, t, n, "without")
		},
		"changed and then let go": func(ctx context.Context, t *testing.T, n *Node) {
			t.Helper()
			booted(ctx, t, n, withArguments("with", "1"), "with")
			booted(ctx, t, n, withArguments("changed", "2"), "changed")
			booted(ctx, t, n, withoutArguments, "without")
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, n := start(t)
			if out, exit := shell(ctx, t, n, "ostree admin deploy --os=testos --karg-append=same=1 --karg-append=differing=admin "+
				lab.RefV1); exit != 0 {
				t.Fatal(out)
			}
			if err := n.Reboot(ctx); err != nil {
				t.Fatal(err)
			}
			booted(ctx, t, n, withoutArguments, "without")
			for _, at := range []string{"/etc/own.conf", "/var/lib/own.conf"} {
				put(t, n, at, "1", 0o644)
			}
			before := arguments(n)
			way(ctx, t, n)
			if now := arguments(n); !slices.Equal(before, now) {
				t.Errorf("the arguments were %v and are %v", before, now)
			}
			for _, at := range []string{"/etc/own.conf", "/var/lib/own.conf"} {
				if got, err := os.ReadFile(n.HostPath(at)); err != nil || string(got) != "1" {
					t.Errorf("%s is %q, %v", at, got, err)
				}
			}
			verified(ctx, t, n)
		})
	}
}

// arguments are those of the command line but for ostree's own, which names the deployment.
func arguments(n *Node) []string {
	return slices.DeleteFunc(strings.Fields(n.Kargs()), func(a string) bool { return strings.HasPrefix(a, "ostree=") })
}

// What is on the host already as a configuration asks for it disrupts nobody: no drain and no reboot.
func TestWhatTheHostHasAlreadyTakesNoReboot(t *testing.T) {
	ctx, n := start(t)
	booted(ctx, t, n, withoutArguments, "without")
	deployment := n.BootedDeployment()
	put(t, n, "/etc/own.conf", "1", 0o644)
	with := mc("with", `{"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
{"path":"/etc/unrelated","contents":{"source":"data:,1"}},{"path":"/etc/own.conf","contents":{"source":"data:,1"}}]}}}`)
	for _, doc := range [][]byte{with, withoutArguments} {
		res := apply(ctx, t, n, doc)
		if res.Plan.Reboot || res.Plan.Drain || res.Reboot != host.RebootNone || len(res.Plan.Unwritten) != 1 {
			t.Errorf("reboot %s, plan %+v", res.Reboot, res.Plan)
		}
		if s, err := n.Status(ctx); err != nil || s.State != transaction.Done || s.Config.Pending != "" {
			t.Errorf("%+v %v", s, err)
		}
		if got := read(t, n, "/etc/own.conf"); got != "1" {
			t.Errorf("/etc/own.conf is %q", got)
		}
	}
	if now := n.BootedDeployment(); now != deployment {
		t.Errorf("%s was booted, and %s is", deployment, now)
	}
}
