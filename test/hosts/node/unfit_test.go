// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// commit makes a commit of lab.RefV2 with one more file, and returns its ref.
func commit(ctx context.Context, t *testing.T, n *Node, ref, path, text string) string {
	t.Helper()
	tree := "/var/tmp/" + strings.ReplaceAll(ref, "/", "-")
	at := n.HostPath(tree + path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	if out, err := n.Output(ctx, "ostree", "commit", "--repo=/ostree/repo", "--branch="+ref, "--bootable", "--no-bindings", "--owner-uid=0",
		"--owner-gid=0", "--tree=ref="+lab.RefV2, "--tree=dir="+tree); err != nil {
		t.Fatal(out, err)
	}
	return ref
}

func TestAnImageThatLeavesNoWayBackIsRefused(t *testing.T) {
	ctx, n := onA(t)
	before := deployments(ctx, t, n)
	for _, c := range []struct {
		name, path, text string
		says             []string
	}{
		{"transient", "/usr/lib/ostree/prepare-root.conf", "[etc]\ntransient=true\n",
			[]string{"etc.transient in the image's /usr/lib/ostree/prepare-root.conf", "use an image without it"}},
		{"transient-etc", "/usr/etc/ostree/prepare-root.conf", "[etc]\ntransient=true\n",
			[]string{"etc.transient in the image's /usr/etc/ostree/prepare-root.conf"}},
		{"verity", "/usr/lib/ostree/prepare-root.conf", "[composefs]\nenabled=verity\n",
			[]string{"composefs.enabled=verity in the image's /usr/lib/ostree/prepare-root.conf", "makes no composefs roots"}},
	} {
		doc := mc(c.name, `{"osImageURL":"`+commit(ctx, t, n, "unfit/"+c.name, c.path, c.text)+`"}`)
		at, err := n.Document("unfit.json", doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, verb := range []string{"stage", "apply"} {
			_, text, exit, err := n.Agent(ctx, verb, "--config", at, "-o", "json")
			if err != nil || exit != 3 || !strings.Contains(text, "osImageURL: ") {
				t.Errorf("%s of %s: exit %d, %v, %s", verb, c.name, exit, err, text)
			}
			for _, want := range c.says {
				if !strings.Contains(text, want) {
					t.Errorf("%s of %s does not say %q: %s", verb, c.name, want, text)
				}
			}
		}
		s, err := n.Status(ctx)
		if err != nil || s.State != transaction.Unreconcilable || s.Config.Pending != "" || s.Config.Committed != "a" {
			t.Errorf("%s: %+v %v", c.name, s, err)
		}
	}
	if got := deployments(ctx, t, n); !slices.Equal(got, before) {
		t.Errorf("%v, before %v", got, before)
	}
	fit := commit(ctx, t, n, "fit", "/usr/lib/ostree/prepare-root.conf", "[etc]\ntransient=false\n[sysroot]\nreadonly=true\n")
	apply(ctx, t, n, mc("fit", `{"osImageURL":"`+fit+`"}`))
	settled(ctx, t, n, "fit")
}

// TestADeploymentThatWouldNotBootIsRefused has an ostree that promises composefs roots and, for an argument, makes none.
// Only the deployment shows that.
func TestADeploymentThatWouldNotBootIsRefused(t *testing.T) {
	ctx, n := onA(t)
	put(t, n, "/var/tmp/ostree", "#!/bin/sh\n/var/tmp/ostree.real \"$@\" || exit\n[ \"$1\" != --version ] || echo '  - composefs'\n", 0o755)
	if out, exit := shell(ctx, t, n, "cp /usr/bin/ostree /var/tmp/ostree.real && mount --bind /var/tmp/ostree /usr/bin/ostree"); exit != 0 {
		t.Fatal(out)
	}
	entries, err := filepath.Glob(filepath.Join(n.Sysroot(), "boot/loader/entries/*.conf"))
	if err != nil || len(entries) == 0 {
		t.Fatal(entries, err)
	}
	for _, entry := range entries {
		text, err := os.ReadFile(entry)
		given := strings.Replace(string(text), "options ", "options ostree.prepare-root.composefs=1 ", 1)
		if err = errors.Join(err, os.WriteFile(entry, []byte(given), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	before := deployments(ctx, t, n)
	at, err := n.Document("unfit.json", mc("composefs", `{"osImageURL":"`+lab.RefV2+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, text, exit, err := n.Agent(ctx, "stage", "--config", at); err != nil || exit != 0 {
		t.Fatalf("stage, which can't know: exit %d, %v, %s", exit, err, text)
	}
	const says = "the kernel argument ostree.prepare-root.composefs=1: the host's ostree has made no .ostree.cfs for the deployment"
	_, text, exit, err := n.Agent(ctx, "apply", "--config", at)
	if err != nil || exit != 3 || !strings.Contains(text, "osImageURL: ") || !strings.Contains(text, says) {
		t.Errorf("apply: exit %d, %v, %s", exit, err, text)
	}
	s, err := n.Status(ctx)
	if err != nil || s.State != transaction.Unreconcilable || s.Config.Pending != "" || s.Config.Committed != "a" {
		t.Errorf("%+v %v", s, err)
	}
	if got := deployments(ctx, t, n); !slices.Equal(got, before) {
		t.Errorf("%v, before %v", got, before)
	}
}

// TestAHostThatCannotMakeADeploymentGoesBackToOne is about hosts on which no deployment can be made any more: what is
// on the disk already is gone back to.
func TestAHostThatCannotMakeADeploymentGoesBackToOne(t *testing.T) {
	ctx, n := onA(t)
	old := n.BootedDeployment()
	apply(ctx, t, n, mc("b", configB))
	settled(ctx, t, n, "b")
	put(t, n, "/etc/ostree/prepare-root.conf", "[etc]\ntransient=true\n", 0o644)
	if _, exit, err := n.Apply(ctx, mc("c", `{"kernelArguments":["c=1"]}`)); exit != 1 || !strings.Contains(err.Error(), "etc.transient") {
		t.Fatalf("a new deployment: exit %d, %v", exit, err)
	}
	boots := n.Boots()
	if _, text, exit, err := n.Agent(ctx, "rollback"); exit != 0 || err != nil {
		t.Fatalf("rollback: exit %d, %v, %s", exit, err, text)
	}
	if err := n.WaitBoot(ctx, boots+1); err != nil {
		t.Fatal(err)
	}
	s, err := n.WaitState(ctx, transaction.RolledBack)
	if err != nil {
		t.Fatal(err)
	}
	if s.Config.Committed != "a" || len(s.Quarantined) != 0 || n.BootedDeployment() != old ||
		!strings.HasPrefix(s.Reason, "an update went back from the deployment of b to the deployment of a, because") {
		t.Errorf("%+v", s)
	}
	if strings.Contains(n.Kargs(), "b=2") || read(t, n, "/etc/chrony.conf") != "from A\n" || read(t, n, "/usr/local/bin/tool") != "tool A\n" {
		t.Errorf("%s", n.Kargs())
	}
	verified(ctx, t, n)

	// The same by apply: from a deployment of somebody else's too.
	if out, exit := shell(ctx, t, n, "ostree admin deploy --os=testos --karg-delete=a=1 "+lab.RefV1); exit != 0 {
		t.Fatal(out)
	}
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := n.WaitState(ctx, transaction.Degraded); err != nil {
		t.Fatal(err)
	}
	put(t, n, "/etc/ostree/prepare-root.conf", "[etc]\ntransient=true\n", 0o644)
	boots = n.Boots()
	apply(ctx, t, n, mc("a", configA))
	if err := n.WaitBoot(ctx, boots+1); err != nil {
		t.Fatal(err)
	}
	if _, err := n.WaitState(ctx, transaction.Done, transaction.RolledBack); err != nil {
		t.Fatal(err)
	}
	if n.BootedDeployment() != old {
		t.Errorf("%s has booted instead of %s", n.BootedDeployment(), old)
	}
}
