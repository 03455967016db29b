// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/rpmostree/catalogue"
)

func TestPackagesAreLayeredOnTheBase(t *testing.T) {
	h := boot(t)
	base := h.status().Deployments[0].text("checksum")
	said := h.ok("install", "-n", "usbguard")
	const dry = "Installing 1 packages:\n  usbguard-1.0-1.x86_64 (lab)\nExiting because of '--dry-run' option\n"
	if !strings.HasSuffix(said, dry) || strings.Contains(said, "Added:") || len(h.status().Deployments) != 1 {
		t.Errorf("a dry run said %q", said)
	}
	h.ok("install", "usbguard")
	d := h.staged()
	if d.text("base-checksum") != base || d.text("checksum") == base || d.text("base-version") != "v1" || d["base-timestamp"] == nil ||
		!slices.Equal(d.list("packages"), []string{"usbguard"}) || !slices.Equal(d.list("requested-packages"), []string{"usbguard"}) {
		t.Errorf("installed: %v", d)
	}
	show := func(key string) string {
		return h.shell("ostree show --print-metadata-key=" + key + " " + d.text("checksum"))
	}
	for key, want := range map[string]string{
		"rpmostree.clientlayer": "true", "rpmostree.packages": "['usbguard']",
		"rpmostree.removed-base-packages": "@av []", "version": "'v1'",
	} {
		if got := show(key); got != want {
			t.Errorf("the commit's %s is %s, want %s", key, got, want)
		}
	}
	if parent := h.shell("ostree rev-parse " + d.text("checksum") + "^"); parent != base {
		t.Errorf("the parent is %s, want %s", parent, base)
	}
	dir := "/ostree/deploy/" + lab.OS + "/deploy/" + d.text("checksum") + ".0"
	if origin := h.shell("cat " + dir + ".origin"); origin != "[origin]\nbaserefspec="+lab.RefV1+"\n\n[packages]\nrequested=usbguard;" {
		t.Errorf("the origin is %q", origin)
	}
	if got := h.shell("cat " + dir + "/usr/bin/usbguard " + dir + "/usr/etc/usbguard.default"); got != "usbguard 1.0\nusbguard" {
		t.Errorf("the package has %q", got)
	}

	h.refused("Package/capability 'usbguard' is already requested", "install", "usbguard")
	h.refused("Package/capability 'sysstat' is not currently requested", "uninstall", "sysstat")
	h.refused("\"toolbox\" is already provided by: toolbox-1.0-1.x86_64. Use --allow-inactive to explicitly require it.", "install", "toolbox")
	for _, args := range [][]string{
		{"install", "no-such", "neither"}, {"install", "broken"},
	} {
		before := h.staged().text("id")
		a := h.run(append([]string{"rpm-ostree"}, args...)...)
		want := map[string]string{"no-such": "error: Packages not found: neither, no-such\n",
			"broken": "error: Could not depsolve transaction;"}[args[1]]
		if a.exit != 1 || !strings.HasPrefix(a.stderr, want) || h.staged().text("id") != before {
			t.Errorf("%v: exit %d: %q; staged %s, before %s", args, a.exit, a.stderr, h.staged().text("id"), before)
		}
	}
	for _, c := range []struct {
		args []string
		exit int
		said string
	}{
		{[]string{"install", "--idempotent", "usbguard"}, 0, "No change.\n"},
		{[]string{"install", "--idempotent", "--unchanged-exit-77", "usbguard"}, 77, "No change.\n"},
		{[]string{"uninstall", "--idempotent", "--unchanged-exit-77", "sysstat"}, 77, "No change.\n"},
	} {
		if a := h.run(append([]string{"rpm-ostree"}, c.args...)...); a.exit != c.exit || !strings.HasSuffix(a.stdout, c.said) {
			t.Errorf("%v: exit %d: %q", c.args, a.exit, a.stdout)
		}
	}
	h.ok("install", "--allow-inactive", "toolbox")
	if d := h.staged(); !slices.Equal(d.list("packages"), []string{"usbguard"}) ||
		!slices.Equal(d.list("requested-packages"), []string{"toolbox", "usbguard"}) {
		t.Errorf("an inactive request: %v", d)
	}

	// A rebase takes what is layered along; what the new base has is inactive there.
	h.ok("rebase", lab.RefV2, "--install", "late", "--uninstall", "toolbox", lock)
	d = h.staged()
	if !slices.Equal(d.list("packages"), []string{"usbguard"}) || !slices.Equal(d.list("requested-packages"), []string{"late", "usbguard"}) ||
		d.text("base-version") != "v2" || !h.locked() {
		t.Errorf("rebased to %v", d)
	}
	// What is layered stays in the package cache, whatever has become of the repository.
	h.withdraw("usbguard")
	h.ok("rebase", Remote+":"+RefV4, "--skip-purge")
	if d := h.staged(); d.text("base-version") != "v4" || !slices.Equal(d.list("packages"), []string{"late", "usbguard"}) {
		t.Errorf("rebased without the repository to %v", d)
	}
	h.ok("rebase", lab.RefV2, "--skip-purge")
	h.ok("uninstall", "usbguard", "--install", "sysstat")
	if got := h.staged().list("requested-packages"); !slices.Equal(got, []string{"late", "sysstat"}) {
		t.Errorf("in one go there are %q", got)
	}
	h.ok("reset")
	if d := h.staged(); d["base-checksum"] != nil || len(d.list("requested-packages")) != 0 || d.text("origin") != lab.RefV2 {
		t.Errorf("after a reset there is %v", d)
	}
	// The configuration counts from the next start, or from a reload.
	h.shell("printf '[Daemon]\\nLockLayering=true\\n' >/etc/rpm-ostreed.conf")
	h.ok("install", "sysstat")
	h.ok("reload")
	h.refused("Cannot operate; `LockLayering=true` in configuration.", "install", "usbguard")
	h.refused("Cannot operate; `LockLayering=true` in configuration.", "override", "remove", "toolbox")
	h.ok("kargs", "--append=x")
}

func TestEveryTransactionOnALayeredDeploymentComposesAnew(t *testing.T) {
	h := boot(t)
	base := h.status().Deployments[0].text("checksum")
	h.ok("kargs", "--append=plain", lock)
	if d := h.staged(); d.text("checksum") != base {
		t.Errorf("arguments alone have made another commit of the base: %v", d)
	}
	h.ok("install", "usbguard", lock)
	seen := map[string]bool{h.staged().text("checksum"): true}
	for _, argument := range []string{"x=1", "x=2"} {
		h.ok("kargs", "--append="+argument, lock)
		d := h.staged()
		if seen[d.text("checksum")] || d.text("base-checksum") != base || !slices.Equal(d.list("packages"), []string{"usbguard"}) ||
			!h.locked() {
			t.Errorf("%s has made %v", argument, d)
		}
		seen[d.text("checksum")] = true
	}
	if got := h.arguments(); got != initial+" plain x=1 x=2" {
		t.Errorf("the arguments are %q", got)
	}
	// The repository is not asked: all is in the package cache.
	h.withdraw("usbguard")
	h.ok("kargs", "--append=x=3")
	if d := h.staged(); seen[d.text("checksum")] || !slices.Equal(d.list("packages"), []string{"usbguard"}) {
		t.Errorf("without the repository it has made %v", d)
	}
}

func TestOverridesChangeTheBaseAndItsKernel(t *testing.T) {
	h := boot(t)
	kernel := func() string { return h.shell("cat /usr/lib/modules/*/vmlinuz; ls /usr/lib/modules/*/initramfs.img") }
	before, bootcsum := kernel(), h.Kargs()
	h.refused(`Package "no-such" not found`, "override", "remove", "no-such")
	h.refused("No overrides for package 'toolbox'", "override", "reset", "toolbox")
	h.refused("Non-local replacement overrides not implemented yet", "override", "replace", "toolbox")
	if a := h.run("rpm-ostree", "override", "remove", "kernel-modules-core"); a.exit != 1 ||
		!strings.Contains(a.stderr, "-6.12.0-1.x86_64 from @System requires kernel-modules-core, but none of the providers can be installed\n") ||
		!strings.HasSuffix(a.stderr, "- conflicting requests\n") {
		t.Errorf("what others require: exit %d: %s", a.exit, a.stderr)
	}
	newer := catalogue.Package{Name: "toolbox", Version: "2.0", Release: "1", Arch: "x86_64", Files: map[string]string{"/usr/bin/toolbox": "toolbox 2.0\n"}}
	file, err := program.LocalPackage(h.ctx, newer, h.HostPath("/var/tmp"))
	if err != nil {
		t.Fatal(err)
	}
	h.ok("override", "replace", "/var/tmp/"+filepath.Base(file))
	d := h.staged()
	if got := fmt.Sprint(d["base-local-replacements"]); got != "[[[toolbox-2.0-1.x86_64 toolbox 0 2.0 1 x86_64] [toolbox-1.0-1.x86_64 toolbox 0 1.0 1 x86_64]]]" {
		t.Errorf("replaced %s", got)
	}
	if got := d.list("requested-base-local-replacements"); !slices.Equal(got, []string{"toolbox-2.0-1.x86_64"}) {
		t.Errorf("requested replacements are %q", got)
	}
	swap := append([]string{"override", "remove", "--install=kernel-rt-core", "--install=kernel-rt-modules"}, KernelPackages...)
	h.ok(swap...)
	d = h.staged()
	removed, _ := d["base-removals"].([]any) // in no order
	if len(removed) != len(KernelPackages) || !strings.Contains(fmt.Sprint(removed), "[kernel-core-6.12.0-1.x86_64 kernel-core 0 6.12.0 1 x86_64]") ||
		!slices.Equal(d.list("requested-base-removals"), KernelPackages) {
		t.Errorf("removed %v of %v", d["base-removals"], d["requested-base-removals"])
	}
	if err := h.Reboot(h.ctx); err != nil {
		t.Fatal(err)
	}
	if got := kernel(); got != "kernel of kernel-rt-core-6.12.0-1.x86_64\n/usr/lib/modules/6.12.0-lab+rt/initramfs.img" {
		t.Errorf("the kernel is %q", got)
	}
	if got := h.shell("cat /usr/bin/toolbox; ls /usr/share/rpm"); !strings.HasPrefix(got, "toolbox 2.0\n") || strings.Contains(got, "kernel-core.json") {
		t.Errorf("the packages are %q", got)
	}
	if h.Kargs() == bootcsum {
		t.Errorf("another kernel has the boot entry %q", h.Kargs())
	}
	reset := append([]string{"override", "reset", "--uninstall=kernel-rt-core", "--uninstall=kernel-rt-modules"}, KernelPackages...)
	h.ok(reset...)
	d = h.staged()
	if len(d.list("requested-base-removals")) != 0 || len(d.list("requested-packages")) != 0 || len(d.list("requested-base-local-replacements")) != 1 {
		t.Errorf("after the reset: %v", d)
	}
	h.ok("override", "reset", "--all")
	if d := h.staged(); d["base-checksum"] != nil {
		t.Errorf("without overrides: %v", d)
	}
	if err := h.Reboot(h.ctx); err != nil {
		t.Fatal(err)
	}
	if got := kernel(); got != before {
		t.Errorf("the kernel is %q, was %q", got, before)
	}
}

func TestContainerImagesAreRebasedTo(t *testing.T) {
	standIn(t, images)
	h := boot(t)
	v2, err := Commit(h.ctx, h.Host, lab.RefV2)
	if err != nil {
		t.Fatal(err)
	}
	const name = "quay.example/os/node"
	image := catalogue.Image{Base: v2, Version: "41.1", Files: map[string]string{"/usr/lib/testos/version": "image 1\n"}}
	first, err := Push(h.Host, name+":latest", image)
	if err != nil {
		t.Fatal(err)
	}
	image.Version, image.Files = "41.2", map[string]string{"/usr/lib/testos/version": "image 2\n"}
	second, err := Push(h.Host, name+":next", image)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{catalogue.Storage + "/local/os", "/var/tmp/layout"} {
		if _, err := image.WriteLayout(h.HostPath(dir), "latest"); err != nil {
			t.Fatal(err)
		}
	}
	h.shell("cd /var/tmp/layout; tar -cf ../layout.tar .")
	a := h.run("rpm-ostree", "rebase", "ostree-unverified-registry:quay.example/os/absent")
	if a.exit != 1 || !strings.HasSuffix(a.stderr, "manifest unknown\n") || len(h.status().Deployments) != 1 {
		t.Errorf("an image that there is not: exit %d: %s", a.exit, a.stderr)
	}
	for _, c := range []struct{ from, reference, digest string }{
		{"ostree-unverified-registry:" + name, "ostree-unverified-registry:" + name, first},
		{"ostree-unverified-registry:" + name + "@" + second, "ostree-unverified-registry:" + name + "@" + second, second},
		{"ostree-image-signed:docker://" + name + ":next", "ostree-image-signed:docker://" + name + ":next", second},
		{"ostree-unverified-image:containers-storage:local/os", "ostree-unverified-image:containers-storage:local/os", second},
		{"ostree-unverified-image:oci:/var/tmp/layout", "ostree-unverified-image:oci:/var/tmp/layout", second},
		{"ostree-unverified-image:oci-archive:/var/tmp/layout.tar", "ostree-unverified-image:oci-archive:/var/tmp/layout.tar", second},
	} {
		h.ok("rebase", c.from)
		d := h.staged()
		if d.text("container-image-reference") != c.reference || d.text("container-image-reference-digest") != c.digest || d["origin"] != nil {
			t.Errorf("%s has become %v", c.from, d)
		}
		h.refused("Old and new refs are equal: "+c.reference, "rebase", c.from)
	}
	h.ok("rebase", "ostree-unverified-registry:"+name, second, "--install", "usbguard")
	d := h.staged()
	// A digest as the revision, since 2025.7: the name stays what is followed.
	if d.text("container-image-reference") != "ostree-unverified-registry:"+name || d.text("base-version") != "41.2" ||
		!slices.Equal(d.list("packages"), []string{"usbguard"}) || d.text("container-image-reference-digest") != second {
		t.Errorf("layered on an image: %v", d)
	}
	dir := h.HostPath("/ostree/deploy/" + lab.OS + "/deploy/" + d.text("checksum") + ".0.origin")
	if origin, err := os.ReadFile(dir); err != nil || !strings.HasPrefix(string(origin), "[origin]\ncontainer-image-reference=ostree-unverified-registry:"+name) {
		t.Errorf("the origin is %q, %v", origin, err)
	}
	// The tag moves, and an upgrade follows it.
	h.ok("uninstall", "usbguard")
	if d := h.staged(); d.text("container-image-reference-digest") != second {
		t.Errorf("a change of packages has moved the image: %v", d)
	}
	// Since 2026.1 the packages of an image are no error, and no request.
	before := h.staged().text("id")
	if said := h.ok("install", "--idempotent", "toolbox"); said[strings.LastIndex(said[:len(said)-1], "\n")+1:] != "No change.\n" ||
		h.staged().text("id") != before || len(h.staged().list("requested-packages")) > 0 {
		t.Errorf("a package that the image has: %q, and %v", said, h.staged())
	}
	h.ok("upgrade")
	if d := h.staged(); d.text("container-image-reference-digest") != first {
		t.Errorf("an upgrade does not follow the name: %v", d)
	}
	if _, err := Push(h.Host, name+":latest", image); err != nil {
		t.Fatal(err)
	}
	h.ok("upgrade")
	if d := h.staged(); d.text("container-image-reference-digest") != second || d.text("version") != "41.2" {
		t.Errorf("upgraded to %v", d)
	}
	if err := h.Reboot(h.ctx); err != nil {
		t.Fatal(err)
	}
	if got := h.shell("cat /usr/lib/testos/version"); got != "image 2" {
		t.Errorf("booted %q", got)
	}
}
