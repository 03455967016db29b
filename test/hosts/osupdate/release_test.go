// SPDX-License-Identifier: Apache-2.0

package osupdate

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/rpmostree"
	"github.com/noderefit/noderefit/test/standin/rpmostree/catalogue"
	"github.com/noderefit/noderefit/transaction"
)

// releasesFile has other packages for release 99 of the lab's OS than for what it really is, as RHEL 9.7 has for 9.6.
const releasesFile = `systems:
- ids: [debian]
  kernels:
    default: {packages: [kernel, kernel-core, kernel-modules, kernel-modules-core, kernel-modules-extra]}
    realtime: {packages: [kernel-rt-core, kernel-rt-modules, kernel-rt-kvm], release: '\+rt'}
  extensions:
    ipsec: [libreswan]
- ids: [debian]
  versions: ["99"]
  kernels:
    realtime: {packages: [kernel-rt-core, kernel-rt-modules], release: '\+rt'}
  extensions:
    ipsec: [libreswan, openvswitch3.5-ipsec]
    two-node-ha: [pacemaker, pcs]
`

// pushRelease puts an image of release 99 into the registry, and gives it by its digest.
func pushRelease(ctx context.Context, t *testing.T, n *node.Node, tag string) string {
	t.Helper()
	commit, err := rpmostree.Commit(ctx, n.Host, lab.RefV2)
	if err != nil {
		t.Fatal(err)
	}
	release := regexp.MustCompile(`(?m)^VERSION_ID=.*$`).ReplaceAllString(
		output(ctx, t, n, "cat", "/usr/lib/os-release"), `VERSION_ID="99"`)
	digest, err := rpmostree.Push(n.Host, "quay.example/os/node:"+tag, catalogue.Image{Base: commit, Version: tag,
		Files: map[string]string{"/usr/lib/os-release": release + "\n", "/usr/lib/testos/tag": tag}})
	if err != nil {
		t.Fatal(err)
	}
	return "quay.example/os/node@" + digest
}

// requested are the packages that the booted deployment was asked for.
func requested(ctx context.Context, t *testing.T, n *node.Node) []string {
	t.Helper()
	var status struct {
		Deployments []struct {
			Packages []string `json:"requested-packages"` //nolint:tagliatelle // rpm-ostree's key
		} `json:"deployments"`
	}
	text := output(ctx, t, n, "rpm-ostree", "status", "--json", "--booted")
	if err := json.Unmarshal([]byte(text), &status); err != nil || len(status.Deployments) != 1 {
		t.Fatalf("%v %s", err, text)
	}
	return slices.Sorted(slices.Values(status.Deployments[0].Packages))
}

func TestPackagesAreThoseOfTheReleaseThatIsGoneTo(t *testing.T) {
	ctx, n := agentOn(t, plain)
	if err := os.WriteFile(n.HostPath("/etc/machine-config-daemon/packages.yaml"), []byte(releasesFile), 0o644); err != nil {
		t.Fatal(err)
	}
	update(ctx, t, n, config("a", "a", `"kernelType":"realtime","extensions":["ipsec"],`), transaction.Done)
	if got := requested(ctx, t, n); strings.Join(got, " ") != "kernel-rt-core kernel-rt-kvm kernel-rt-modules libreswan" {
		t.Fatalf("layered are %q", got)
	}
	released(ctx, t, n)

	// The repositories of the new release have not what only the old one asks for.
	for _, p := range rpmostree.Packages() {
		if p.Name == "kernel-rt-kvm" {
			if err := rpmostree.Withdraw(n.Host, p); err != nil {
				t.Fatal(err)
			}
		}
	}
	b := config("b", "b", `"osImageURL":"`+pushRelease(ctx, t, n, "43")+`","kernelType":"realtime",
 "extensions":["ipsec","two-node-ha"],`)
	at, err := n.Document("b.json", b)
	if err != nil {
		t.Fatal(err)
	}
	if out, text, exit, err := n.Agent(ctx, "stage", "--config", at, "-o", "json"); err != nil || exit != 0 {
		t.Fatalf("stage: %d %v %s %s", exit, err, out, text)
	}
	// Nothing is left to ask a repository or a registry for.
	output(ctx, t, n, "rm", "-r", catalogue.Registries)
	s := update(ctx, t, n, b, transaction.Done)
	if s.Config.Committed != "b" {
		t.Errorf("%+v", s)
	}
	want := "kernel-rt-core kernel-rt-modules libreswan openvswitch3.5-ipsec pacemaker pcs"
	if got := requested(ctx, t, n); strings.Join(got, " ") != want {
		t.Errorf("layered are %q", got)
	}
	if out, _, exit, err := n.Agent(ctx, "verify", "-o", "json"); err != nil || exit != 0 {
		t.Errorf("verify: %d %v %s", exit, err, out)
	}
	released(ctx, t, n)

	// What is ours is known by the new names: all of it goes again.
	update(ctx, t, n, config("c", "c", `"osImageURL":"`+pushRelease(ctx, t, n, "44")+`",`), transaction.Done)
	if got := requested(ctx, t, n); len(got) > 0 {
		t.Errorf("still layered are %q", got)
	}

	// What no release has is refused before anything is pulled.
	released(ctx, t, n)
	at, err = n.Document("d.json", config("d", "d", `"osImageURL":"`+pushRelease(ctx, t, n, "45")+
		`","extensions":["sysstat"],`))
	if err != nil {
		t.Fatal(err)
	}
	_, text, exit, err := n.Agent(ctx, "stage", "--config", at, "-o", "json")
	if err != nil || exit != 3 || !strings.Contains(text, "no packages are known for sysstat on debian 99") {
		t.Errorf("an extension that no release has: %d %v %s", exit, err, text)
	}
}
