// SPDX-License-Identifier: Apache-2.0

package osupdate

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/bootc"
	"github.com/noderefit/noderefit/transaction"
)

// bootcNode is a host with bootc and the agent, and two images in its registry, named by their digests: one of
// lab.RefV1, and one of lab.RefV2 that brings a kernel argument.
func bootcNode(t *testing.T) (ctx context.Context, n *bootcHost, first, second string) {
	t.Helper()
	return bootcNodeOf(t, plain)
}

func bootcNodeOf(t *testing.T, build func() (string, error)) (ctx context.Context, n *bootcHost, first, second string) {
	t.Helper()
	base := lab.Need(t)
	bootc.Need(t, base)
	t.Parallel() // boots mostly wait
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	stand, err := bootcStandIn()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	n = &bootcHost{}
	n.Node, err = node.New(ctx, base, binary, lab.Options{Name: "bootc"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		counted.Boots.Add(int64(n.Boots()))
		if t.Failed() {
			if journal, err := n.Journal(context.WithoutCancel(ctx)); err == nil {
				t.Log(journal[max(0, len(journal)-3000):])
			}
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := bootc.Install(ctx, n.Host, stand); err != nil {
		t.Fatal(err)
	}
	if n.registry, err = bootc.NewRegistry(ctx, n.Host, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	arguments := n.HostPath("/var/tmp/image/usr/lib/bootc/kargs.d")
	if err := os.MkdirAll(arguments, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(arguments, "10-image.toml"), []byte(`kargs = ["image=1"]`), 0o644); err != nil {
		t.Fatal(err)
	}
	output(ctx, t, n.Node, "ostree", "commit", "--branch=test/image", "--bootable", "--no-bindings", "--owner-uid=0",
		"--owner-gid=0", "--tree=ref="+lab.RefV2, "--tree=dir=/var/tmp/image")
	return ctx, n, pushed(ctx, t, n, lab.RefV1, "v1"), pushed(ctx, t, n, "test/image", "v2")
}

// bootcHost is a host with bootc and the agent, and its registry.
type bootcHost struct {
	*node.Node

	registry *bootc.Registry
}

// tag is the name of an image by its version.
func (n *bootcHost) tag(version string) string {
	return n.registry.Repository("os/lab") + ":" + version
}

// pushed makes an image of a ref, in the registry by its version, and returns its name with its digest.
func pushed(ctx context.Context, t *testing.T, n *bootcHost, ref, version string) string {
	t.Helper()
	digest, err := n.registry.Push(ctx, ref, version, n.tag(version))
	if err != nil {
		t.Fatal(err)
	}
	return n.registry.Repository("os/lab") + "@" + digest
}

func TestImageArgumentsAndFilesAreOneUpdateOnBootc(t *testing.T) {
	ctx, n, first, image := bootcNode(t)
	update(ctx, t, n.Node, config("a", "a", `"osImageURL":"`+first+`",`), transaction.Done)
	released(ctx, t, n.Node)
	before := n.BootedDeployment()
	b := config("b", "b", `"osImageURL":"`+image+`","kernelArguments":["update=b"],`)
	at, err := n.Document("b.json", b)
	if err != nil {
		t.Fatal(err)
	}
	if out, text, exit, err := n.Agent(ctx, "stage", "--config", at, "-o", "json"); err != nil || exit != 0 {
		t.Fatalf("stage: %d %v %s %s", exit, err, out, text)
	}
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if n.BootedDeployment() != before {
		t.Fatalf("what was only staged has booted: %s", n.BootedDeployment())
	}
	s := update(ctx, t, n.Node, b, transaction.Done)
	if s.Config.Committed != "b" || s.OS != host.OSBootc {
		t.Errorf("%+v", s)
	}
	for path, want := range map[string]string{"/usr/lib/testos/version": "v2", "/etc/update.conf": "b"} {
		if got := output(ctx, t, n.Node, "cat", path); got != want {
			t.Errorf("%s: %q", path, got)
		}
	}
	line := " " + strings.Join(s.Deployments[0].KernelArguments, " ") + " "
	for _, want := range []string{" image=1 ", " update=b "} {
		if strings.Count(line, want) != 1 {
			t.Errorf("kernel arguments: %s", line)
		}
	}
	if out, _, exit, err := n.Agent(ctx, "verify", "-o", "json"); err != nil || exit != 0 {
		t.Errorf("verify: %d %v %s", exit, err, out)
	}
	released(ctx, t, n.Node)

	// Somebody goes back by hand.
	output(ctx, t, n.Node, "bootc", "rollback")
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if n.BootedDeployment() != before || output(ctx, t, n.Node, "cat", "/etc/update.conf") != "a" {
		t.Errorf("%s has booted", n.BootedDeployment())
	}
	if s, err := n.Status(ctx); err != nil || s.State == transaction.Working || s.State == transaction.Done {
		t.Errorf("%v %+v", err, s)
	}
}

func TestPackagesOnBootcAreRefusedWithTheirReason(t *testing.T) {
	ctx, n, _, image := bootcNode(t)
	for field, more := range map[string]string{"extensions": `"extensions":["usbguard"],`, "kernelType": `"kernelType":"realtime",`} {
		at, err := n.Document("c.json", config("c", "c", `"osImageURL":"`+image+`",`+more))
		if err != nil {
			t.Fatal(err)
		}
		_, text, exit, err := n.Agent(ctx, "apply", "--config", at, "-o", "json")
		if err != nil || exit != 3 || !strings.Contains(text, field+": bootc can't layer packages") {
			t.Errorf("%s: %d %v %s", field, exit, err, text)
		}
	}
	if s, err := n.Status(ctx); err != nil || len(s.Deployments) != 1 {
		t.Errorf("%v %+v", err, s)
	}
}
