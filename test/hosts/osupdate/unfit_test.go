// SPDX-License-Identifier: Apache-2.0

package osupdate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/rpmostree"
	"github.com/noderefit/noderefit/test/standin/rpmostree/catalogue"
)

const transientEtc = "[etc]\ntransient=true\n"

// refusesTransient holds stage and apply of an image with a transient /etc to their refusal.
func refusesTransient(ctx context.Context, t *testing.T, n *node.Node, image string) {
	t.Helper()
	at, err := n.Document("t.json", config("t", "t", `"osImageURL":"`+image+`",`))
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"stage", "apply"} {
		_, text, exit, err := n.Agent(ctx, verb, "--config", at, "-o", "json")
		if err != nil || exit != 3 ||
			!strings.Contains(text, "osImageURL: ") || !strings.Contains(text, "etc.transient in the image's /usr/lib/ostree/prepare-root.conf") {
			t.Errorf("%s: %d %v %s", verb, exit, err, text)
		}
	}
	if s, err := n.Status(ctx); err != nil || len(s.Deployments) != 1 || s.Config.Pending != "" {
		t.Errorf("%v %+v", err, s)
	}
}

func TestAnImageWithATransientEtcIsRefusedOnRPMOSTree(t *testing.T) {
	ctx, n := agentOn(t, plain)
	commit, err := rpmostree.Commit(ctx, n.Host, lab.RefV2)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := rpmostree.Push(n.Host, "quay.example/os/node:t", catalogue.Image{Base: commit, Version: "t",
		Files: map[string]string{"/usr/lib/ostree/prepare-root.conf": transientEtc}})
	if err != nil {
		t.Fatal(err)
	}
	refusesTransient(ctx, t, n, "quay.example/os/node@"+digest)
}

func TestAnImageWithATransientEtcIsRefusedOnBootc(t *testing.T) {
	ctx, n, _, _ := bootcNode(t)
	at := n.HostPath("/var/tmp/transient/usr/lib/ostree/prepare-root.conf")
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(transientEtc), 0o644)); err != nil {
		t.Fatal(err)
	}
	output(ctx, t, n.Node, "ostree", "commit", "--repo=/ostree/repo", "--branch=test/transient", "--bootable", "--no-bindings",
		"--owner-uid=0", "--owner-gid=0", "--tree=ref="+lab.RefV2, "--tree=dir=/var/tmp/transient")
	refusesTransient(ctx, t, n.Node, pushed(ctx, t, n, "test/transient", "t"))
}
