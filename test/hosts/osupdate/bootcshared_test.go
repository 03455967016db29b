// SPDX-License-Identifier: Apache-2.0

package osupdate

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/bootc"
	bootcfault "github.com/noderefit/noderefit/test/standin/bootc/fault"
	"github.com/noderefit/noderefit/transaction"
)

// What other users of bootc do on the same host.

func image(name, with string) []byte {
	return config(name, name, `"osImageURL":"`+with+`",`)
}

// stage has the agent stage a configuration.
func stage(ctx context.Context, t *testing.T, n *bootcHost, doc []byte) {
	t.Helper()
	at, err := n.Document("staged.json", doc)
	if err != nil {
		t.Fatal(err)
	}
	if out, text, exit, err := n.Agent(ctx, "stage", "--config", at, "-o", "json"); err != nil || exit != 0 {
		t.Fatalf("stage: %d %v %s %s", exit, err, out, text)
	}
}

// healthy fails if bootc or the agent has something to say about the host.
func healthy(ctx context.Context, t *testing.T, n *bootcHost) {
	t.Helper()
	output(ctx, t, n.Node, "bootc", "status", "--json")
	if out, text, exit, err := n.Agent(ctx, "verify", "-o", "json"); err != nil || exit != 0 {
		t.Errorf("verify: %d %v %s %s", exit, err, out, text)
	}
}

// derived makes an image of lab.RefV2 with one more file, whose layers no other image has.
func derived(ctx context.Context, t *testing.T, n *bootcHost, version string, files map[string]string) string {
	t.Helper()
	tree := "/var/tmp/" + version
	for name, text := range files {
		path := n.HostPath(tree + name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, is := strings.CutPrefix(text, "-> "); is {
			err = os.Symlink(to, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	output(ctx, t, n.Node, "ostree", "commit", "--branch=test/"+version, "--bootable", "--no-bindings", "--owner-uid=0",
		"--owner-gid=0", "--tree=ref="+lab.RefV2, "--tree=dir="+tree)
	return pushed(ctx, t, n, "test/"+version, version)
}

func TestCleanUpBetweenStageAndApplyOnBootcLosesNothing(t *testing.T) {
	ctx, n, first, second := bootcNode(t)
	update(ctx, t, n.Node, image("a", first), transaction.Done)
	released(ctx, t, n.Node)
	b := image("b", second)
	stage(ctx, t, n, b)
	derived(ctx, t, n, "v3", map[string]string{"/usr/lib/testos/v3": "v3\n"})
	said := output(ctx, t, n.Node, "bootc", "switch", "--retain", n.tag("v3"))
	if !strings.Contains(said, "Pruned images: ") {
		t.Errorf("nothing is cleaned up: %s", said)
	}
	update(ctx, t, n.Node, b, transaction.Done)
	if got := output(ctx, t, n.Node, "cat", "/usr/lib/testos/version"); got != "v2" {
		t.Errorf("it runs %q", got)
	}
	healthy(ctx, t, n)
	released(ctx, t, n.Node)
	output(ctx, t, n.Node, "bootc", "internals", "cleanup")
	healthy(ctx, t, n)
	if refs := output(ctx, t, n.Node, "ostree", "refs", "--list", "ostree/container/baseimage"); refs != "" {
		t.Errorf("refs are left: %s", refs)
	}
}

// The agent is killed at each of its points, and then somebody's bootc cleans up.
func TestCleanUpAtAnyPointOfAnUpdateOnBootcLosesNothing(t *testing.T) {
	ctx, n, first, second := bootcNodeOf(t, faulty)
	update(ctx, t, n.Node, image("a", first), transaction.Done)
	released(ctx, t, n.Node)
	b := image("b", second)
	at, err := n.Document("b.json", b)
	if err != nil {
		t.Fatal(err)
	}
	before := n.BootedDeployment()
	apply := "machine-config-daemon apply --no-reboot --config " + at
	output(ctx, t, n.Node, "sh", "-c", "NODEREFIT_FAULT='apply trace /var/tmp/points' "+apply+" && machine-config-daemon rollback")
	points := strings.Split(output(ctx, t, n.Node, "cat", "/var/tmp/points"), "\n")
	committed := slices.Index(points, "committed")
	if committed < 0 {
		t.Fatalf("there is no commit among %q", points)
	}
	for i, point := range points[:committed+1] {
		if testing.Short() && i%4 != 0 && i != committed {
			continue
		}
		stage(ctx, t, n, b)
		output(ctx, t, n.Node, "sh", "-c", "! NODEREFIT_FAULT='apply kill "+strconv.Itoa(i+1)+"' "+apply)
		output(ctx, t, n.Node, "bootc", "internals", "cleanup")
		output(ctx, t, n.Node, "bootc", "status", "--json")
		output(ctx, t, n.Node, "machine-config-daemon", "recover")
		if i == committed {
			output(ctx, t, n.Node, "machine-config-daemon", "rollback")
		}
		if s, err := n.Status(ctx); err != nil || s.Config.Committed != "a" {
			t.Fatalf("after %s: %v %+v", point, err, s)
		}
	}
	if n.BootedDeployment() != before {
		t.Errorf("%s has booted", n.BootedDeployment())
	}
	update(ctx, t, n.Node, b, transaction.Done)
	released(ctx, t, n.Node)
	healthy(ctx, t, n)
}

// forget removes the refs of the layers of a deployment's image, as bootc's clean-up once did with what was staged.
func forget(ctx context.Context, t *testing.T, n *bootcHost, id string) {
	t.Helper()
	checksum, _, _ := strings.Cut(filepath.Base(id), ".")
	manifest := output(ctx, t, n.Node, "ostree", "show", "--print-metadata-key=ostree.manifest", checksum)
	gone := 0
	for ref := range strings.FieldsSeq(output(ctx, t, n.Node, "ostree", "refs", "--list", "ostree/container/blob")) {
		if digest := strings.TrimPrefix(ref, "ostree/container/blob/sha256_3A_"); strings.Contains(manifest, digest) {
			output(ctx, t, n.Node, "ostree", "refs", "--delete", ref)
			gone++
		}
	}
	if gone == 0 {
		t.Fatalf("%s has no layers", id)
	}
	_, stderr, exit, err := n.Exec(ctx, nil, "bootc", "status", "--json")
	if err != nil || exit != 1 || !strings.Contains(string(stderr), "Missing base image ref") {
		t.Fatalf("bootc status ended with %d: %s (%v)", exit, stderr, err)
	}
}

func TestBootcHostWhoseOlderDeploymentHasLostALayerIsHealedByTheNextApply(t *testing.T) {
	healed(t, false)
}

func TestBootcHostWhoseDeploymentHasLostALayerIsHealedByTheNextApply(t *testing.T) { healed(t, true) }

// healed has the deployment that runs, or the one before, lose a layer. The agent works on as ever.
func healed(t *testing.T, booted bool) {
	t.Helper()
	ctx, n, first, second := bootcNode(t)
	update(ctx, t, n.Node, image("a", first), transaction.Done)
	released(ctx, t, n.Node)
	s := update(ctx, t, n.Node, image("b", second), transaction.Done)
	released(ctx, t, n.Node)
	at := slices.IndexFunc(s.Deployments, func(d host.DeploymentStatus) bool { return d.Booted == booted })
	forget(ctx, t, n, s.Deployments[at].ID)
	if out, text, exit, err := n.Agent(ctx, "verify", "-o", "json"); err != nil || exit != 0 {
		t.Errorf("verify: %d %v %s %s", exit, err, out, text)
	}
	third := derived(ctx, t, n, "v3", map[string]string{"/usr/lib/testos/v3": "v3\n"})
	update(ctx, t, n.Node, image("c", third), transaction.Done)
	released(ctx, t, n.Node)
	healthy(ctx, t, n)
	if got := output(ctx, t, n.Node, "cat", "/usr/lib/testos/v3"); got != "v3" {
		t.Errorf("it runs %q", got)
	}
}

func TestAgentOnBootcNeedsNoLockToKnowWhatRunsAndNamesWhoHasIt(t *testing.T) {
	ctx, n, first, second := bootcNode(t)
	update(ctx, t, n.Node, image("a", first), transaction.Done)
	released(ctx, t, n.Node)
	if bootc.Real() != "" {
		t.Skip("the stand-in's faults are needed")
	}
	root := "/proc/" + strconv.Itoa(n.Leader()) + "/root"
	if err := bootcfault.Set(root, bootcfault.Layers, bootcfault.Hang, 0); err != nil {
		t.Fatal(err)
	}
	output(ctx, t, n.Node, "systemd-run", "--quiet", "--unit=of-an-admin", "bootc", "switch", "--retain", second)
	soon := func(what string, condition func() bool) {
		t.Helper()
		for !condition() {
			select {
			case <-ctx.Done():
				t.Fatalf("%s: %v", what, ctx.Err())
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	soon("bootc has the lock", func() bool { return bootcfault.Hangs(root, bootcfault.Layers) })

	short, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if out, text, exit, err := n.Agent(short, "verify", "-o", "json"); err != nil || exit != 0 {
		t.Errorf("verify: %d %v %s %s", exit, err, out, text)
	}
	at, err := n.Document("b.json", image("b", second))
	if err != nil {
		t.Fatal(err)
	}
	type ended struct {
		text string
		exit int
		err  error
	}
	done := make(chan ended, 1)
	go func() {
		_, text, exit, err := n.Agent(ctx, "stage", "--config", at, "-o", "json")
		done <- ended{text, exit, err}
	}()
	said := ""
	soon("the agent says what it waits for: "+said, func() bool {
		s, err := n.Status(ctx)
		if err == nil && s.Pulling != nil {
			said = s.Pulling.Says
		}
		return strings.Contains(said, "which bootc (process ") && strings.Contains(said, "of of-an-admin.service) holds")
	})
	if err := bootcfault.Lift(root, bootcfault.Layers); err != nil {
		t.Fatal(err)
	}
	if e := <-done; e.err != nil || e.exit != 0 {
		t.Errorf("stage: %d %v %s", e.exit, e.err, e.text)
	}
}

func TestImagesThatAnImageIsBoundToAreThereWithIt(t *testing.T) {
	ctx, n, first, _ := bootcNode(t)
	update(ctx, t, n.Node, image("a", first), transaction.Done)
	released(ctx, t, n.Node)
	app := n.registry.Repository("app") + ":1"
	if _, err := n.registry.Push(ctx, lab.RefV1, "1", app); err != nil {
		t.Fatal(err)
	}
	bound := derived(ctx, t, n, "bound", map[string]string{
		"/usr/lib/app/app.container":                  "[Container]\nImage=" + app + "\n",
		"/usr/share/containers/systemd/app.container": "-> ../../../lib/app/app.container",
		"/usr/lib/bootc/bound-images.d/app.container": "-> /usr/share/containers/systemd/app.container"})
	stored := func() bool {
		t.Helper()
		_, stderr, exit, err := n.Exec(ctx, nil, "podman", "--root", "/run/lab-podman/root", "--runroot", "/run/lab-podman/run",
			"--storage-opt", "additionalimagestore=/sysroot/ostree/bootc/storage", "image", "exists", app)
		if err != nil || exit > 1 {
			t.Fatalf("podman ended with %d: %s (%v)", exit, stderr, err)
		}
		return exit == 0
	}
	b := image("b", bound)
	stage(ctx, t, n, b)
	if !stored() {
		t.Error("it did not come with the stage")
	}
	output(ctx, t, n.Node, "bootc", "internals", "cleanup")
	if stored() {
		t.Error("a clean-up has left it")
	}

	// Without the container image the update is not done. What is removed here had come with the deployment.
	c, err := n.Document("c.json", image("c", bound))
	if err != nil {
		t.Fatal(err)
	}
	if _, text, exit, err := n.Agent(ctx, "apply", "--no-reboot", "--config", c); err != nil || exit != 0 || !stored() {
		t.Fatalf("apply: %d %v %s; stored: %t", exit, err, text, stored())
	}
	if err := lab.RemoveTree(filepath.Join(n.Sysroot(), "ostree/bootc/storage")); err != nil {
		t.Fatal(err)
	}
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := n.WaitState(ctx, transaction.RolledBack)
	if err != nil {
		t.Fatal(err)
	}
	if s.Config.Committed != "a" || !strings.Contains(s.Reason, "bound images: the container image "+app+", which") {
		t.Errorf("%+v", s)
	}
	update(ctx, t, n.Node, b, transaction.Done)
	if !stored() {
		t.Error("it is not there with the image that is bound to it")
	}
	healthy(ctx, t, n)
}
